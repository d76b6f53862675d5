"""Golden runs: the results of `abprof report RUN` for recorded runs stay the same when the code changes.

tests/golden/runs.tar.xz holds a folder a run: `run.json`, `rounds.jsonl` and `evidence.jsonl` as abprof wrote them, without
results where rounds give them again, and `expected.json`, what `abprof report RUN --json` said of it (without prose) and the
CSV files that it wrote, without columns of prose. 15 are whole runs, recorded at commit 68e5379 with this suite's simulated
workers, torch on a CPU, and commands that time themselves. `record_*` are of tests/runs.py, tests/declared.py and
tests/fuzz/rich.py; `judged_*` are records of unit tests of then, most of which have gone. Of these two kinds those are kept
that reach something which neither the whole runs reach nor test_verdict, test_outcomes, test_one_clock,
test_timer_cross_check, test_secondary_comparisons or tests/why: a verdict with its reasons, a cause, a warning, or a line of
abprof's verdict, evidence and report. Long runs have three rounds a block, or times in whole ns. Names of folders and
machines were replaced.

The words of sentences, warnings and reasons of failures may change; verdicts, numbers, codes and tables may not. Where one
is to change on purpose, the expectation in the archive changes in the same commit, which says why.
"""

import csv
import functools
import io
import json
import math
import tarfile
from pathlib import Path
from typing import Any

import pytest

from abprof.cli import run_command_line

ARCHIVE = Path(__file__).parent / "golden" / "runs.tar.xz"
RECORDED = ("run.json", "rounds.jsonl", "evidence.jsonl")
RESULTS = ("header", "comparisons", "within", "controls", "observations", "warnings")
PROSE = {"sentence", "text", "advice", "reason", "missing", "protocol", "uncaptured"}  # keys whose text is for people
# Readings that no verdict read went: by CUDA graphs beside the judged timer, and by other protocols. So did the geometric
# mean of all changes, which no report showed. Recorded runs have them.
GONE = {"graph_pct", "graph_low_pct", "graph_high_pct", "gpu_graph", "seed_latency", "do_bench_latency", "geomean_pct"}
JOINED = {  # since then
    "detectable_pct", "tail_pct", "host_pct", "needed_epochs", "needed_seconds", "controls_second_build", "burst_pct",
}  # fmt: skip


@functools.cache
def kept() -> dict[str, dict[str, bytes]]:
    """Run -> file name -> content."""
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None, member.name
            run, _, name = member.name.partition("/")
            found.setdefault(run, {})[name] = content.read()
    return found


def without_prose(value: Any) -> Any:
    """The value without its prose."""
    if isinstance(value, dict):
        return {key: without_prose(one) for key, one in value.items() if key not in PROSE | GONE | JOINED}
    return [without_prose(one) for one in value] if isinstance(value, list) else value


def table(text: str, like: str) -> list[list[str]]:
    """The columns of a CSV file that `like` has. Columns may join, and not go."""
    columns = next(csv.reader(io.StringIO(like)))
    return [columns, *([row[column] for column in columns] for row in csv.DictReader(io.StringIO(text)))]


def report(folder: Path, out: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run `abprof report` on a folder: exit code, results and CSV files."""
    out.readouterr()
    code = run_command_line(["report", str(folder), "--json"])
    said = json.loads(out.readouterr().out)
    files = {path.name: path.read_bytes().decode() for path in sorted(folder.glob("*.csv"))}
    return {"code": code, **{name: without_prose(said[name]) for name in RESULTS}, "files": files}


def differences(was: Any, now: Any, where: str = "") -> list[str]:
    """Where two values differ; numbers that are equal to nine digits do not."""
    if isinstance(was, dict) and isinstance(now, dict):
        keys = [*was, *(key for key in now if key not in was)]
        return [line for key in keys for line in differences(was.get(key), now.get(key), f"{where}.{key}")]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = enumerate(zip(was, now, strict=True))
        return [line for number, (a, b) in pairs for line in differences(a, b, f"{where}[{number}]")]
    if isinstance(was, float) and isinstance(now, float | int) and math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-12):
        return []
    return [] if was == now else [f"{where}: was {was!r}, is {now!r}"]


@pytest.mark.parametrize("run", sorted(kept()))
def test_a_recorded_run_is_judged_as_it_was(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / run
    folder.mkdir()
    for name in RECORDED:
        if name in kept()[run]:
            (folder / name).write_bytes(kept()[run][name])
    was, now = without_prose(json.loads(kept()[run]["expected.json"])), report(folder, capsys)
    files, made = was.pop("files"), now.pop("files")
    assert differences(was, now) == []
    assert sorted(made) == sorted(files)
    for name, text in files.items():
        assert table(made[name], text) == table(text, text), name
        if name.startswith("compare_"):
            assert made[name] == text, f"{name}, byte for byte"
