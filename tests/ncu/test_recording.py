"""Files of ncu --csv: both pages say the same, real ones are read, and nothing is a traceback."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abprof.evidence.ncu import recording
from abprof.evidence.ncu.traffic import measured
from abprof.records import ncu
from abprof.records.errors import AbprofError

from .fake_ncu import SOURCE
from .recorded import DETAILS, L, details, moves, put, raw

COPY = L("void at::native::<unnamed>::CopyFunctor<float, 4>(int, T2)", "(8, 1, 1)")
LAUNCHES = [L(), COPY, L(bytes={"dram": 3_141_592, "l2": 0, "l1": 9e6})]
SAME = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_the_real_details_page_without_the_metrics_says_how_to_record_them() -> None:
    with pytest.raises(
        AbprofError, match=r"none of the 3 launches has dram__bytes.sum or .* \(record with .*--page raw .*lts__t"
    ):
        recording.read(DETAILS)


@pytest.mark.parametrize("unit", ["byte", "Kbyte", "Mbyte"])
def test_both_pages_say_the_same(tmp_path: Path, unit: str) -> None:
    texts = [details(LAUNCHES, old=old, nvtx=nvtx, rules=rules, unit=unit)
             for old in (True, False) for nvtx in (True, False) for rules in (True, False)]  # fmt: skip
    texts += [raw(LAUNCHES, nvtx=nvtx, unit=unit) for nvtx in (True, False)]
    for text in texts:
        for seen, meant in zip(recording.read(put(tmp_path / "a.csv", text)), LAUNCHES, strict=True):
            moved = {level: value for level, _, value in ncu.moved(seen.metrics)}
            assert moved == pytest.approx(meant.bytes, rel=0.005)
            assert seen.name[0] == meant.kernel
            assert seen.name[1] in ("", meant.grid)


def test_a_programs_output_between_the_rows_is_skipped(tmp_path: Path) -> None:
    lines = details(LAUNCHES).splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith('"ID"'))
    lines.insert(first + 3, '{"0","1"}, 3, "4"')
    lines.insert(first + 4, "0,1,2")
    found = recording.read(put(tmp_path / "a.csv", "\r\n".join(lines)))
    assert [launch.metrics["dram__bytes.sum"] for launch in found] == [3e6, 3e6, 3_141_592]


def of(number: str, unit: str) -> str:
    return details([L(bytes={"dram": 1.0})]).replace('"byte","1"', f'"{unit}","{number}"').replace("84.50", "84")


NONE = r"a\.csv: 0 tables of ncu --csv in this file, expected one"
REFUSED = {
    "empty": ("", NONE),
    "prose": ("hello\n", NONE),
    "a permission": ("==ERROR== ERR_NVGPUCTRPERM - The user\n", rf"{NONE}; ncu printed '==ERROR== ERR_NVGPUCTRPERM"),
    "no kernels": ("==WARNING== No kernels were profiled.\n", rf"{NONE}; ncu printed '==WARNING== No kernels"),
    "a report": ("NVR\0\1", r"from a report: ncu --import REPORT.ncu-rep --csv --page raw"),
    "two recordings": (2 * raw(LAUNCHES), r"a\.csv: 2 tables of ncu --csv in this file, expected one"),
    "no launch": (details([]), r"none of the 0 launches has "),
    "cut off": (details(LAUNCHES)[:-30], r"a\.csv:\d+: an incomplete row: .*cut off"),
    "a unit": (of("1", "sector"), r"a\.csv: dram__bytes.sum: '1' sector is not a number of bytes"),
    "no number": (of("many", "byte"), r"'many' byte is not a number of bytes"),
    "a negative number": (of("-1", "byte"), r"'-1' byte is not a number"),
    "another locale": (of("1.024.000", "byte"), r"'1.024.000' byte is not .* \(record again with LC_ALL=C"),
    "another locale's thousand": (of("1.024", "byte"), r"'1.024' byte is not"),
    "another locale's megabytes": (of("65,77", "Mbyte"), r"'65,77' Mbyte is not"),
    "twice": (raw(LAUNCHES) + raw(LAUNCHES).splitlines()[-1], r"a\.csv: launch 2 has two rows"),
    "no units": (re.sub(r'\n"","".*', "", raw(LAUNCHES)), r"is not a number of bytes"),
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


def test_samples_by_instruction_of_a_real_source_page() -> None:
    """One launch on an H100 by ncu 2025.3.1: the multiply waits for the load before it."""
    samples = recording.sampled(SOURCE, "scale(float const*, float*, int)")
    assert (len(samples), sum(sum(stalls.values()) for stalls in samples.values())) == (32, 1478)
    most = max(samples, key=lambda at: sum(samples[at].values()))
    assert (most, samples[most]["long_scoreboard"]) == (0xE0, 1076)
    assert recording.sampled(SOURCE, "another") == {}


def test_samples_of_two_instances_of_a_template_are_not_mixed(tmp_path: Path) -> None:
    """All names of templates begin with `void`, and torch launches many."""
    names = ("void at::fill<int>(int *)", "void scale<float>(const float *)", "void scale<double>(const double *)")
    tables = [
        f'"Kernel Name","{name}"\n"Address","Source","# Samples"\n"0x{n}00","NOP","{n}"\n'
        for n, name in enumerate(names, 1)
    ]
    file = put(tmp_path / "a.csv", "".join(tables))
    assert recording.sampled(file, "void scale<float>(float const*)") == {0: {"": 2}}
    assert recording.sampled(file, "void at::fill<int>(int*)") == {0: {"": 1}}
    assert recording.sampled(file, "scale") == {}, "either instance may be meant"
    assert recording.sampled(put(tmp_path / "cut.csv", '"Kernel Name"\n'), "scale") == {}
