"""--probe torch: traced rows, kept files, and that a failed trace does not fail a run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from abprof.records import Run
from tests.gitrepo import GitRepo
from tests.simulated.planted import SLOWER, SPEEDS, NewLab, broken, load, new_lab, planted, times
from tests.simulated.scenario import Scenario
from tests.tinyrepo import PACKAGE, abprof, source, tiny_repo

__all__ = ["new_lab"]


def rows(run: Run) -> list[tuple[str, str]]:
    return [(trace.cell.removeprefix("w/case="), trace.arm) for trace in run.traces]


def test_the_rows_that_changed_are_traced_on_both_sides_the_most_changed_first(new_lab: NewLab) -> None:
    result = new_lab(SPEEDS).abprof("main", "fast", "--probe", "torch")
    assert result.code == 1
    assert result.run.options.probe == ("torch",)
    cells = [cell for cell, _ in rows(result.run)]
    assert cells[:4] == ["slower", "slower", "faster", "faster"]
    assert sorted(cells[4:]) == ["less", "less", "slight", "slight"], "and nothing of the one that is the same"
    assert [arm for _, arm in rows(result.run)] == ["base", "target"] * 4
    assert result.folder
    for trace in result.run.traces:
        made = result.folder / trace.file
        assert (trace.missing, trace.bytes) == ("", made.stat().st_size)
        assert json.loads(made.read_text())["traceEvents"]
    page, text = ((result.folder / name).read_text() for name in ("report.html", "report.md"))
    assert f'href="{result.run.traces[0].file}"' in page
    linked = re.findall(r'<a href="(traces/[^"]+\.html)">Traces</a>', page)
    assert len(set(linked)) == 4
    assert all((result.folder / name).is_file() for name in linked)
    assert "| shared | 2 | 2 | 10.00 ms | 11.50 ms | +1.500 ms |" in text


def test_a_probe_that_fails_says_why_and_the_run_is_whole(new_lab: NewLab) -> None:
    faults = [broken("torn_trace", "slower", "target", verb="trace"), broken("kill", "faster", "base", verb="trace")]
    result = new_lab(replace(SPEEDS, faults=faults)).abprof("main", "fast", "--probe", "torch")
    assert result.code == 1
    assert result.run.status == "complete"
    missing = {row: trace.missing for row, trace in zip(rows(result.run), result.run.traces, strict=True)}
    assert len(missing) == 8
    assert "not JSON" in missing["slower", "target"]
    assert missing["faster", "base"]
    assert sum(not why for why in missing.values()) == 6, "the others have theirs"
    assert result.folder
    assert len(list((result.folder / "traces").glob("*.json"))) == 6
    assert "target has no trace: the file could not be kept: not JSON" in (result.folder / "report.md").read_text()


@pytest.mark.slow
def test_at_most_eight_rows_are_traced_and_it_is_said(new_lab: NewLab) -> None:
    names = [f"c{i}" for i in range(9)]
    factors = [planted(name, SLOWER + i / 100) for i, name in enumerate(names)]
    result = new_lab(Scenario(workloads={"w": load(names)}, times=times(*factors))).abprof(
        "main", "fast", "--probe", "torch"
    )
    assert [cell for cell, arm in rows(result.run) if arm == "base"] == names[:0:-1]
    assert "8 of 9 rows are probed" in result.err


@pytest.mark.slow
def test_a_branch_alone_is_traced_and_nothing_is_where_nothing_changed(new_lab: NewLab) -> None:
    lab = new_lab(Scenario(workloads={"w": load(["a"])}, times=times()))
    alone = lab.abprof("run", "main", "--probe", "torch")
    assert rows(alone.run) == [("a", "base")]
    assert alone.folder
    assert "| simulated base | 1 | 20.00 ms |" in (alone.folder / "report.md").read_text()
    same = lab.abprof("main", "fast", "--probe", "torch")
    assert same.run.traces == ()
    assert "no row changed" in same.err


@pytest.mark.slow
def test_real_workers_on_a_cpu(tmp_path: Path) -> None:
    """A side with an operation more: it is in its trace and in the table, and in the other side's not."""
    repo: GitRepo = tiny_repo(tmp_path / "repo", 100)
    repo.branch("slow")
    more = PACKAGE.replace("y = torch.empty_like(x)", "y = torch.zeros_like(x) + 0")
    repo.commit("slower", {"kernels/tiny/tiny.c": source(800), "kernels/tiny/__init__.py": more})
    places = ("--device", "cpu", "--budget", "5m", "--json")
    done = abprof("main", "slow", "--probe", "torch", *places, cwd=repo.path, home=tmp_path / "home")
    assert set(done.verdicts().values()) == {"slower"}, done.err
    base, target = done.run["traces"]
    assert (base["missing"], target["missing"]) == ("", "")
    for trace in (base, target):
        text = (Path(done.run["run_dir"]) / trace["file"]).read_text()
        assert ("aten::zeros_like" in text) == (trace is target)
        assert str(tmp_path) not in text
    assert re.search(r"\| aten::zeros\\_like \| 0 \| \d", (Path(done.run["run_dir"]) / "report.md").read_text())
    page = (Path(done.run["run_dir"]) / "report.html").read_text()
    assert re.search(r"<code>aten::zeros_like</code><td>–<td>[\d.]+ .s<td>\+[\d.]+ .s<td>target only", page)
