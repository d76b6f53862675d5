"""What is told while a run is measured outlives abprof, and what a machine refuses is one line."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from abprof import session
from abprof.cli.guard import guarded
from abprof.records import Arm, Ceilings, Kernel, Machine, Proof, Told, Touched
from abprof.records.errors import Exit
from abprof.store import runfolder
from abprof.store.record import Record
from abprof.store.runfolder import RunFolder
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
    return Record(folder, run, runs.blocks(run), View(quiet=True))


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


def test_two_looks_are_one_proof_whoever_reads_them(record: Record) -> None:
    good = msgspec.structs.replace(BAD, ok=True, reason="")
    record.add(good)
    record.add(good)
    assert record.proofs == [msgspec.structs.replace(good, looks=2)]
    assert list(runfolder.read(record.folder.path)[0].proofs) == record.proofs
    record.folder.write_run(record.judged("running"))
    assert list(runfolder.read(record.folder.path)[0].proofs) == record.proofs, "and they are not counted twice"


def test_kernels_and_touched_files_are_known_after_a_kill(record: Record) -> None:
    kernel = Kernel(side="base", package="ffa", name="k", kind="triton", key="k0")
    touched = Touched(path="/a", how="changed", moment="in epoch 2")
    record.add(kernel)
    record.add(kernel)
    record.note([touched])
    run = runfolder.read(record.folder.path)[0]
    assert kernel in run.kernels
    assert run.touched == (touched,)
    assert len((record.folder.path / runfolder.EVIDENCE).read_bytes().splitlines()) == 2, "a kernel is told once"


def test_devices_and_arms_are_known_after_a_kill(record: Record) -> None:
    """Which device a cell's rounds are of, what it is, and whose builds were loaded there."""
    build = msgspec.structs.replace(record.head.builds[0], key="of another node")
    machine = Machine(
        host="n1", device="A100", kind="cuda", uuid="GPU-b", ceilings=Ceilings(tflops=1.0), builds=(build,)
    )
    arm = Arm(id="control:of_the_second", side="control", variant="of_the_second")
    record.placed("GPU-b", machine)
    record.placed("GPU-b", msgspec.structs.replace(machine, ceilings=None, builds=()))
    record.knows(arm)
    record.knows(arm)
    run = runfolder.read(record.folder.path)[0]
    assert run.machines == record.head.machines == {"GPU-b": machine}
    assert run.arms == record.head.arms
    assert run.arms[-1] == arm
    assert len((record.folder.path / runfolder.EVIDENCE).read_bytes().splitlines()) == 2, "each is told once"


def test_evidence_of_before_devices_stood_in_it(record: Record) -> None:
    """As it was written then: a proof, a touched file, and no word of devices."""
    (record.folder.path / runfolder.EVIDENCE).write_bytes(
        b'{"proof":{"epoch":3,"side":"target","kernel":"ffa","ok":false,"reason":"elsewhere","artefacts":[],"looks":1,'
        b'"device":"","shard":0},"sum":"9d7d0028f6fee471"}\n'
        b'{"touched":{"path":"/a","how":"changed","moment":"in epoch 2","falsifies":true},"sum":"f57b3a8c68cb4aef"}\n'
    )
    run, _, notes = runfolder.read(record.folder.path)
    assert notes == []
    assert run.proofs[-1].reason == "elsewhere"
    assert [one.path for one in run.touched] == ["/a"]
    assert (run.machines, run.arms) == (record.head.machines, record.head.arms)


def test_a_line_of_evidence_that_is_torn_is_said_and_written_over(record: Record) -> None:
    record.add(BAD)
    file = record.folder.path / runfolder.EVIDENCE
    file.write_bytes(file.read_bytes() + b'{"proof":{"epoch":4')
    notes = runfolder.read(record.folder.path)[2]
    assert notes == ["evidence.jsonl line 2: torn (the run was killed while writing it), dropped"]
    record.folder.append_told(Told(touched=Touched(path="/a", how="added", moment="in epoch 2")))
    run, _, notes = runfolder.read(record.folder.path)
    assert (notes, len(run.touched), BAD in run.proofs) == ([], 1, True)


def test_what_a_killed_run_was_replacing_is_swept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / ".0123456789abcdef.partial").write_text("{")
    (tmp_path / "notes.partial").write_text("the user's")
    folder.sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.partial"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/runs/a"), "abprof: /runs/a: No space left on device (make room"),
        (OSError(errno.EROFS, "Read-only file system", b"/state"), "abprof: /state: Read-only file system (choose a folder"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "abprof: Cannot allocate memory (end other programs"),
        (OSError(errno.EMFILE, "Too many open files"), "abprof: Too many open files (raise the limit"),
        (MemoryError(), "abprof: there is no memory left for abprof itself (end other programs"),
        (RuntimeError("can't start new thread"), "abprof: the system starts no further thread (end other programs"),
        (ImportError("numpy: failed to map segment from shared object"), "abprof: there is no memory left for abprof"),
    ],
)  # fmt: skip
def test_what_the_machine_refuses_is_one_line(error: Exception, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> None:
        raise error

    assert guarded(refused, []) == Exit.CANNOT_RUN
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith(said)


@pytest.mark.parametrize(
    "error", [OSError(errno.EBADF, "Bad file descriptor"), ImportError("no module x"), RuntimeError("x")]
)
def test_anything_else_is_a_bug_as_before(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ABPROF_STATE_DIR", str(tmp_path))

    def broken() -> None:
        raise error

    assert guarded(broken, []) == Exit.BUG
    assert "a bug in abprof" in capsys.readouterr().err
