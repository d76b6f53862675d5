"""Odd words beside a run's own reports: two runs compared, nights, recordings of ncu, older scripts' tables, summaries."""

from __future__ import annotations

import csv
import io

import pytest

from abprof.extras.nightly import NightReport, summary
from abprof.extras.nightly.changes import Change, Shift
from abprof.extras.nightly.index import NightRow
from abprof.records.errors import AbprofError
from tests import runs
from tests.fuzz import rich
from tests.fuzz.asked import Asker, asker, one_clear_line, steering
from tests.fuzz.mutations import hunt
from tests.fuzz.test_odd_texts import LETTERS, ODD, odd, rendered, same, whole
from tests.ncu import recorded
from tests.nights import Nights

__all__ = ["asker"]
seldom = pytest.mark.parametrize("examples", [1, pytest.param(60, marks=pytest.mark.slow)])


@seldom
def test_two_runs_beside_each_other(asker: Asker, examples: int) -> None:
    plain = runs.write(asker.folder / "runs", rich.spread())

    def ask(letters: list[str]) -> None:
        other = runs.write(asker.folder / "runs", runs.changed(odd(rich.spread(), letters), id=plain.name))
        for format in ("csv", "md"):
            assert asker("report", plain, other, "--format", format) == 0
            if format == "csv":
                whole("two runs", asker.said.decode())
            elif format == "md":
                rendered(asker.said.decode())

    ask(list(ODD))
    hunt(LETTERS, ask, examples)


def test_nights_of_odd_cells(asker: Asker) -> None:
    cells = [f"{text}{number}".encode(errors="replace").decode() for number, text in enumerate(ODD)]
    nights = Nights(asker.folder / "runs", series="\x1b[2J=1+1|`<b>\n@you")
    nights.add(dict.fromkeys(cells, (None, 100.0)), kind="first")
    nights.add(dict.fromkeys(cells, (100.0, 110.0)), verdicts=dict.fromkeys(cells, "slower"))
    where = ("--runs-dir", nights.runs_dir)
    assert asker("history", "query", *where) == 0
    whole("history", asker.said.decode())
    assert asker.said.count(b"\n") == len(list(csv.reader(io.StringIO(asker.said.decode()))))
    assert asker("history", "changes", *where) == 0
    assert asker("history", "page", asker.folder / "page.html", *where) == 0
    page = (asker.folder / "page.html").read_text()
    assert not steering(page)
    assert "<script>alert" not in page
    assert "<img" not in page


def test_kernels_of_odd_names_in_a_recording(asker: Asker) -> None:
    names = [
        text.encode(errors="replace").decode() + str(number) for number, text in enumerate(ODD) if "\n" not in text
    ]
    names = [name for name in names if not {"\r", "\0"} & set(name)]
    file = asker.folder / "ncu.csv"
    file.write_text(recorded.details([recorded.moves(name, 3e6) for name in names] * 2))
    for format in ("csv", "md", ""):
        words = ("--format", format) if format else ()
        assert asker("memory", "--from", file, "--warmup", "1", "--runs", "1", *words) == 0
        if format == "csv":
            whole("memory", asker.said.decode())
        elif format == "md":
            rendered(asker.said.decode())


@seldom
def test_keys_of_odd_values_in_tables_of_older_scripts(asker: Asker, examples: int) -> None:
    files = [asker.folder / name for name in ("a.csv", "b.csv", "out.csv")]

    def ask(letters: list[str]) -> None:
        for place, file in enumerate(files[:2]):
            with file.open("w", newline="", errors="replace") as out:
                table = csv.writer(out)
                table.writerow(["seqlen", "mask_type", "direction", "latency_ms", "tflops_per_sec", "fwd_main_ms"])
                for number, text in enumerate(letters):
                    table.writerow([1024, f"{text}{number}", "fwd", 0.5, 12.5 + place, 0.4])
        if asker("compare-csv", *files) == 0:
            whole("out.csv", files[2].read_text())

    ask(list(ODD))
    hunt(LETTERS, ask, examples)


@pytest.mark.parametrize("text", ODD, ids=lambda text: ascii(text)[:30])
def test_a_nights_summary(text: str) -> None:
    def made(word: str) -> list[object]:
        change = Change(word, 7, 9, 5.25, "code")
        run = NightRow(word, "main", 9, "step", "", "", "", "a" * 40, "b" * 40, word, 1, word, 1)
        report = NightReport("step", word, 9, "b" * 40, 1, (run,), (word,), (change,), (Shift(9, 4.0, 12),), (word,))
        return rendered(summary(report))

    same(made(text), made("a word"))
    one_clear_line(AbprofError(f"x{text}", where=text, advice=text))
