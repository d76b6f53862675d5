"""What is kept from one question to the next never changes an answer, and what is not new is not read again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from abprof.measure import resume as rerun
from abprof.records import (
    POWER_CAP,
    SUSTAINED,
    Arm,
    Block,
    Build,
    Ceilings,
    CheckResult,
    Failure,
    Kernel,
    Loss,
    Machine,
    MachineState,
    Outcome,
    Proof,
    Run,
    Status,
    Touched,
)
from abprof.store import runfolder
from abprof.store.record import Record
from abprof.system.console import View
from abprof.verdict import cell_data as evidence
from abprof.verdict import judge as verdict
from abprof.verdict.cache import OF_NO_CELL, Kept

from . import blocks as made

CELLS = 5
RESULTS = ("header", "observations", "comparisons", "within", "controls", "warnings")
STATUSES: tuple[Status, ...] = ("crash", "wrong", "oom", "identical", "unsupported")


class Days:
    """A run's life by chance: every kind of news that a record takes, in any order."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        variants = self.chance.choice([(), ("ws", "pp")])
        settings = {"allow_wrong": self.chance.random() < 0.3, "precision": self.chance.choice([None, 0.2])}
        cell = {"kernel": "ffa", "flops": 1e9}
        peers = self.chance.choice([(), ("lib",)])
        head = made.head(CELLS, variants=variants, peers=peers, control=True, settings=settings, cell=cell)
        self.folder = runfolder.create(folder / "runs", head.id)
        head = msgspec.structs.replace(head, id=self.folder.id, status="running")
        self.record = Record(self.folder, head, [], View(quiet=True))
        self.record._next_write = float("inf")  # when run.json is rewritten is a matter of time
        self.epochs = dict.fromkeys((cell.id for cell in head.cells), 0)
        self.device = {cell: self.chance.choice(["GPU-0", "GPU-1"]) for cell in self.epochs}
        self.pulls = {cell: self.chance.choice([1.0, 1.0, 1.03, 0.96, 1.004]) for cell in self.epochs}
        self.shard = 1

    def go_on(self) -> None:
        news: list[Callable[[], None]] = [self.block] * 14
        news += [self.proof, self.lost, self.note, self.kernel, self.placed, self.arm, self.ceilings, self.resumed]
        self.chance.choice(news)()

    def block(self) -> None:
        cell = self.chance.choice(sorted(self.epochs))
        self.epochs[cell] += 1
        epoch, kind = self.epochs[cell], self.chance.random()
        arms = [arm for arm in self.record.head.arms if arm.side != "control" or self.chance.random() < 0.5]
        ratios = {arm.id: 1.0 if arm.side != "target" else self.pulls[cell] for arm in arms}
        status: dict[str, Outcome] = {}
        for arm, ratio in ratios.items():
            failed = self.chance.random() < 0.04
            check = CheckResult(ok=True, max_abs=0.1) if self.chance.random() < 0.05 else None
            phases = {"total": 1e6, "run": 9e5 * ratio} if epoch == 2 else None
            named = self.chance.choice(STATUSES) if failed else "ok"
            status[arm] = Outcome(status=named, reason="why" if failed else "", check=check, phases=phases)
        fields = {"metric": SUSTAINED} if kind < 0.05 else {"quick": True} if kind < 0.1 else {}
        block = made.block(
            epoch,
            ratios,
            cell=cell,
            status=status,
            rounds=6,
            noise=self.chance.choice([0.0002, 0.003]),
            seed=self.chance.randrange(10**9),
            mhz=dict.fromkeys(ratios, self.chance.choice([0.0, 1500.0])),
            device=self.device[cell],
            shard=self.shard,
            state=MachineState(throttle=(POWER_CAP,) if kind > 0.7 else ()),
            **fields,
        )
        self.record.add(block)

    def proof(self) -> None:
        self.record.add(
            Proof(
                epoch=1,
                side=self.chance.choice(["base", "target"]),
                kernel=self.chance.choice(["ffa", "other"]),
                device=self.chance.choice(["", "GPU-0", "GPU-1"]),
                ok=self.chance.random() < 0.7,
            )
        )

    def lost(self) -> None:
        """A shard is lost: of some of its cells nothing stands."""
        cells = self.chance.sample(sorted(self.epochs), 2)
        self.record.lost([Loss(shard=self.shard, device="GPU-0", cells=tuple(cells), reason="gone")])
        self.shard += 1
        for cell in cells:  # and they are measured elsewhere
            if not any(block.cell == cell and block.metric for block in self.record.blocks):
                self.device[cell] = self.chance.choice(["GPU-0", "GPU-1"])

    def note(self) -> None:
        self.record.note([Touched(path="/a", how="changed", moment="then", falsifies=self.chance.random() < 0.5)])

    def kernel(self) -> None:
        side = self.chance.choice(["base", "target"])
        key = f"k{self.chance.randrange(4)}"
        self.record.add(Kernel(side=side, package="ffa", name="k", kind="triton", key=key, registers=8, missing=""))

    def placed(self) -> None:
        failure = Failure(status="build_failed", reason="no") if self.chance.random() < 0.3 else None
        key = f"b{self.chance.randrange(3)}"
        built = (Build(side="target", kernel="ffa", key=key, failure=failure),) if self.chance.random() < 0.6 else ()
        machine = Machine(host="h", device="d", kind="cuda", builds=built, ceilings=Ceilings(tflops=0.5))
        self.record.placed(self.chance.choice(["GPU-0", "GPU-1"]), machine)

    def arm(self) -> None:
        self.record.knows(Arm(id="control:pp", side="control", variant="pp"))

    def ceilings(self) -> None:
        self.record.head = msgspec.structs.replace(self.record.head, ceilings=Ceilings(tflops=self.chance.random()))

    def resumed(self) -> None:
        """The run is read from its folder: gone on with, or rerun with epochs that are planned on their own."""
        self.folder.write_run(self.record.judged("interrupted"))
        head, blocks, _ = runfolder.read(self.folder.path)
        older = self.chance.choice([0, len(blocks)])
        self.record = Record(self.folder, head, blocks, View(quiet=True), older)
        self.record._next_write = float("inf")


def fresh(record: Record, status: str) -> Run:
    """The same question to a record that was never asked anything."""
    head = msgspec.structs.replace(record.head, proofs=tuple(record.proofs))
    again = Record(record.folder, head, list(record.blocks), View(quiet=True), record.older)
    again.kernels = record.kernels
    return again.judged(status)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(12))
def test_kept_and_fresh_say_the_same(tmp_path: Path, seed: int) -> None:
    """After every piece of news: which cells go on, all verdicts, and how many epochs count."""
    days = Days(tmp_path, seed)
    for _ in range(40):
        for _ in range(days.chance.choice([1, 1, 2, 5])):
            days.go_on()
        record = days.record
        own, proofs = record.blocks[record.older :], tuple(record.proofs)
        assert record.wanted() == verdict.undecided(record.head, own, proofs)
        if days.chance.random() < 0.5:
            status = days.chance.choice(["running", "running", "interrupted", "complete"])
            kept, anew = record.judged(status), fresh(record, status)  # type: ignore[arg-type]
            assert {name: getattr(kept, name) for name in RESULTS} == {name: getattr(anew, name) for name in RESULTS}
        if days.chance.random() < 0.2:
            assert record.epochs() == rerun.epochs(msgspec.structs.replace(record.head, proofs=proofs), own)
    assert any(days.epochs.values())


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """Blocks whose rounds were read."""
    seen: list[Block] = []
    plain = evidence.digest

    def counted(block: Block) -> evidence.Digest:
        seen.append(block)
        return plain(block)

    monkeypatch.setattr(evidence, "digest", counted)
    return seen


def test_only_cells_with_something_new_are_read_again(digested: list[Block]) -> None:
    run, kept = made.head(4), Kept()
    cells = [cell.id for cell in run.cells]
    blocks = [made.block(e, {"base": 1.0, "target": 1.03}, cell=c, noise=0.001) for c in cells for e in (1, 2, 3, 4)]

    def asked(of: Run, proofs: tuple[Proof, ...] = ()) -> list[str]:
        digested.clear()
        verdict.undecided(of, blocks, proofs, kept.gather)
        verdict.judge(of, blocks, proofs, kept.gather)
        rerun.epochs(of, blocks, kept.gather)
        return sorted({block.cell for block in digested})

    assert asked(run) == cells
    assert asked(run) == []
    blocks.append(made.block(5, {"base": 1.0, "target": 1.0}, cell=cells[2]))
    assert asked(run) == [cells[2]]
    del blocks[0]
    assert asked(run) == [cells[0]]
    blocks[-1] = made.block(5, {"base": 1.0, "target": 1.1}, cell=cells[2])
    assert asked(run) == [cells[2]]
    news = {"machines": {"d": run.machine}, "ended": "now", "status": "running", "notes": ("seen",)}
    assert asked(msgspec.structs.replace(run, **news)) == []
    good = Proof(epoch=1, side="target", kernel="ffa", ok=True)
    assert asked(run, (good,)) == []
    assert verdict.judge(run, blocks, (good,), kept.gather).comparisons[0].verdict != "broken"
    bad = msgspec.structs.replace(good, ok=False)
    assert {row.verdict for row in verdict.judge(run, blocks, (bad,), kept.gather).comparisons} == {"broken"}
    assert asked(run) == cells
    strict = msgspec.structs.replace(run.settings, threshold=0.1)
    assert asked(msgspec.structs.replace(run, settings=strict)) == cells


def test_what_is_left_out_of_the_head_is_a_field_of_a_run() -> None:
    assert {field.name for field in msgspec.structs.fields(Run)} > OF_NO_CELL


def test_impossible_input_is_refused_each_time() -> None:
    run, kept = made.head(2), Kept()
    torn = [made.block(1, {"base": 1.0, "target": 1.0}, metric=metric) for metric in ("wall", "gpu_span")]
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be put together"):
            verdict.judge(run, torn, (), kept.gather)
    stray = [made.block(1, {"base": 1.0, "target": 1.0}, cell="dense/n=7")]
    with pytest.raises(ValueError, match="not in the run"):
        verdict.judge(run, stray, (), kept.gather)
    assert verdict.judge(run, torn[:1], (), kept.gather) == verdict.judge(run, torn[:1])
