"""Files of ncu --csv: every dialect says the same, real ones are read, and nothing is a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abprof.evidence.ncu import recording
from abprof.evidence.ncu.traffic import measured
from abprof.records.errors import AbprofError

from .recorded import DETAILS, RAW, L, details, moves, put, raw

COPY = L("void at::native::<unnamed>::CopyFunctor<float, 4>(int, T2)", "(8, 1, 1)")
LAUNCHES = [L(), COPY, L(bytes={"dram": 3_141_592, "l2": 0, "l1": 9e6})]
SAME = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_the_real_raw_page() -> None:
    read = recording.read(RAW)
    assert read.page == "raw"
    assert [launch.bytes["dram"] for launch in read.launches][:2] == [
        134_227_968 + 47_158_784,
        134_224_896 + 44_647_424,
    ]
    assert [launch.bytes["l2"] for launch in read.launches] == [303840864, 304001184, 304023712, 304464992, 304447680]
    assert {launch.bytes["l1"] for launch in read.launches} == {201_326_592}
    shapes = {(launch.kernel, launch.grid, launch.block) for launch in read.launches}
    assert shapes == {("add_kernel", "(16384, 1, 1)", "(128, 1, 1)")}
    assert read.sources["dram"] == "dram__bytes_read.sum + dram__bytes_write.sum"


def test_the_real_details_page_without_the_metrics_says_how_to_record_them() -> None:
    with pytest.raises(
        AbprofError, match=r"none of dram__bytes.sum, .* in its 3 launches \(record with ncu --csv .*lts__t"
    ):
        recording.read(DETAILS)


@pytest.mark.parametrize("locale", ["C", "de", "fr", "ch"])
@pytest.mark.parametrize("unit", ["byte", "Kbyte", "Mbyte"])
def test_every_dialect_says_the_same(tmp_path: Path, unit: str, locale: str) -> None:
    texts = [details(LAUNCHES, old=old, nvtx=nvtx, rules=rules, unit=unit, locale=locale)
             for old in (True, False) for nvtx in (True, False) for rules in (True, False)]  # fmt: skip
    texts += [raw(LAUNCHES, nvtx=nvtx, unit=unit, locale=locale) for nvtx in (True, False)]
    for text in texts:
        read = recording.read(put(tmp_path / "a.csv", text))
        assert [launch.kernel for launch in read.launches] == [launch.kernel for launch in LAUNCHES]
        for seen, meant in zip(read.launches, LAUNCHES, strict=True):
            assert seen.bytes == pytest.approx(meant.bytes, rel=0.005)
            assert seen.grid in ("", meant.grid)


def test_a_programs_output_between_the_rows_and_glued_to_one(tmp_path: Path) -> None:
    lines = details(LAUNCHES).splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith('"ID"'))
    lines[first] = "loading ..." + lines[first]
    lines[first + 2] = "50 % " + lines[first + 2]
    lines.insert(first + 3, '{"0","1"}, 3, "4"')
    lines.insert(first + 4, "0,1,2")
    text = "\r\n".join(lines)
    assert len(recording.read(put(tmp_path / "a.csv", text)).launches) == 3
    assert recording.read(tmp_path / "a.csv").launches[0].bytes["dram"] == 3e6


def torn(text: str) -> str:
    return text[: text.rindex('"Command line') + 30]


def of(number: str, unit: str) -> str:
    return details([L(bytes={"dram": 1.0})]).replace('"byte","1"', f'"{unit}","{number}"').replace("84.50", "84")


REFUSED = {
    "empty": ("", r"a\.csv: no table of ncu --csv in this file"),
    "prose": ("hello\n", r"no table of ncu --csv"),
    "a permission": ("==ERROR== ERR_NVGPUCTRPERM - The user\n", r"may not read the GPU's counters.*as root"),
    "no kernels": ("==WARNING== No kernels were profiled.\n", r"ncu printed '==WARNING== No kernels"),
    "a summary": (
        '"Process ID","Kernel Name","Invocations","Minimum"\n',
        r"a summary over launches.*without --print-summary",
    ),
    "a report": ("NVR\0\1", r"a report of ncu, not a CSV file \(ncu -i a.csv --csv --page raw > a.csv\)"),
    "no launch": (details([]), r"no launch below it"),
    "cut off": (torn(details(LAUNCHES)), r"a\.csv:\d+: a torn row: it has .*cut off"),
    "a unit": (
        of("1", "sector"),
        r"a\.csv:\d+: dram__bytes.sum: 'sector' is not a unit of bytes \(record with",
    ),
    "no number": (of("many", "byte"), r"'many' is not a number"),
    "a negative number": (of("-1", "byte"), r"'-1' is not a number"),
    "two ways to read it": (of("1,024", "Mbyte"), r"'1,024' is ambiguous"),
    "two locales": (of("1.024.000,5", "byte") + of("1,024,000.5", "byte"), r"numbers mix locales"),
    "twice": (
        raw(LAUNCHES).rstrip("\n") + "\n" + raw(LAUNCHES).splitlines()[-1],
        r"a\.csv:\d+: launch 2 is there twice",
    ),
    "no units": (re.sub(r'\n"","".*', "", raw(LAUNCHES)), r"no row of units between the header and the first launch"),
    "no unit column": (details(LAUNCHES).replace('"Metric Unit"', '"Unit"'), r"a\.csv:5: no column 'Metric Unit'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_clear_line(tmp_path: Path, case: str) -> None:
    text, said = REFUSED[case]
    with pytest.raises(AbprofError, match=said) as refused:
        recording.read(put(tmp_path / "a.csv", text))
    assert "\n" not in refused.value.line
    assert refused.value.where.startswith(str(tmp_path / "a.csv"))


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path, Path("a\0b")):
        with pytest.raises(AbprofError):
            recording.read(path)


@SAME
@given(st.integers(1, 2000))
def test_a_file_that_is_cut_off_loses_no_launch_unsaid(tmp_path: Path, cut: int) -> None:
    """Cut within a row it is refused; cut at its end the count is off by one, which the census refuses."""
    text = details([moves("attn_fwd", 1e6)] * 4)
    path = put(tmp_path / "a.csv", text[: -min(cut, len(text.partition('"ID"')[2]) - 200)])
    try:
        table = measured(path, warmup=1, runs=3)
    except AbprofError:
        return
    assert table.rows[0].launches == 4
