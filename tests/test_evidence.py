"""Evidence recorded during a run survives the end of abprof; a machine's refusal is one line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from abprof import session
from abprof.records import Finding, Kernel, Proof, Touched
from abprof.store import Record, runfolder
from abprof.system.console import View

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
