"""Evidence recorded during a run survives the end of abprof, and traces of --probe; a refusal is one line."""

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from abprof import session
from abprof.records import Finding, Kernel, Proof, Run, Touched
from abprof.store import Record, runfolder
from abprof.system.console import View
from tests.gitrepo import GitRepo
from tests.simulated.planted import SLOWER, SPEEDS, NewLab, broken, load, planted, times
from tests.simulated.scenario import Scenario
from tests.tinyrepo import PACKAGE, abprof, source, tiny_repo

from . import runs

BAD = Proof(epoch=3, side="target", kernel="ffa", ok=False, reason="loaded from outside its own tree: /elsewhere")


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """A run whose run.json was written, and is not written again: its abprof is killed in a moment."""
    run = runs.run()
    folder = runfolder.create(tmp_path / "runs", "20261120T021700Z-a-b")
    run = msgspec.structs.replace(run, id=folder.id, proofs=())
    folder.write_run(run)
    for block in runs.blocks(run):
        folder.append_block(block)
    return session.new_record(folder, run, runs.blocks(run), View(quiet=True))


def test_a_proof_that_failed_is_known_after_a_kill(record: Record) -> None:
    before = {row.cell: row.verdict for row in session.judged(record.folder.path, print)[0].comparisons}
    record.add(BAD)
    run, _ = session.judged(record.folder.path, print)
    own = {cell.id for cell in run.cells if cell.kernel == "ffa"}
    after = {
        row.cell: row.verdict for row in run.comparisons if row.to == "target" and not row.from_.startswith("peer:")
    }
    assert BAD in run.proofs
    assert set(before.values()) > {"broken"}
    assert {verdict for cell, verdict in after.items() if cell in own} <= {"broken", "unclear"}


def test_kernels_and_touched_files_are_known_after_a_kill(record: Record) -> None:
    kernel = Kernel(side="base", package="ffa", name="k", kind="triton", key="k0")
    touched = Touched(path="/a", how="changed", moment="in epoch 2")
    record.add(kernel)
    record.add(kernel)
    record.note([touched])
    run = runfolder.read(record.folder.path)[0]
    assert kernel in run.kernels
    assert run.touched == (touched,)
    assert len((record.folder.path / runfolder.EVIDENCE).read_bytes().splitlines()) == 2, "a kernel is recorded once"


def test_a_line_of_evidence_that_is_torn_is_said_and_written_over(record: Record) -> None:
    record.add(BAD)
    file = record.folder.path / runfolder.EVIDENCE
    file.write_bytes(file.read_bytes() + b'{"proof":{"epoch":4')
    notes = runfolder.read(record.folder.path)[2]
    assert notes == ["evidence.jsonl line 2: torn (the run was killed while writing it), dropped"]
    record.folder.append_finding(Finding(touched=Touched(path="/a", how="added", moment="in epoch 2")))
    run, _, notes = runfolder.read(record.folder.path)
    assert (notes, len(run.touched), BAD in run.proofs) == ([], 1, True)


def rows(run: Run) -> list[tuple[str, str]]:
    return [(trace.cell.removeprefix("w/case="), trace.arm) for trace in run.traces]


def test_the_rows_that_changed_are_traced_on_both_sides_the_most_changed_first(new_lab: NewLab) -> None:
    result = new_lab(SPEEDS).abprof("main", "fast", "--probe", "torch", "--epochs", "4")
    assert result.code == 1
    assert result.run.options.probe == ("torch",)
    cells = [cell for cell, _ in rows(result.run)]
    assert cells[:4] == ["slower", "slower", "faster", "faster"]
    assert sorted(cells[4:]) == ["less", "less", "slight", "slight"], "and nothing of the one that is the same"
    assert [arm for _, arm in rows(result.run)] == ["base", "target"] * 4
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
    result = new_lab(replace(SPEEDS, faults=faults)).abprof("main", "fast", "--probe", "torch", "--epochs", "4")
    assert result.code == 1
    assert result.run.status == "complete"
    missing = {row: trace.missing for row, trace in zip(rows(result.run), result.run.traces, strict=True)}
    assert len(missing) == 8
    assert "not JSON" in missing["slower", "target"]
    assert missing["faster", "base"]
    assert sum(not why for why in missing.values()) == 6, "the others have theirs"
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
    assert "| simulated base | 1 | 20.00 ms |" in (alone.folder / "report.md").read_text()
    same = lab.abprof("main", "fast", "--probe", "torch", "--epochs", "4")
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
