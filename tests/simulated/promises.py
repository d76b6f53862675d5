"""abprof's promises under any fault, checked after a round. Each function returns a line for each broken promise."""

import contextlib
import fcntl
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from abprof import verdict
from abprof.records import Block, Run
from abprof.records.errors import AbprofError
from abprof.store import runfolder
from tests.simulated.lab import Lab, Result

CODES = (0, 1, 2, 4, 130)  # abprof/records/errors.py; 3 is a bug


def of_a_command(result: Result) -> Iterator[str]:
    """It ended with a documented code and no traceback, and gave one line for an error."""
    own = [line for line in result.err.splitlines() if not line.startswith("[")]  # lines of a builder
    if result.code not in CODES or any(line.startswith("Traceback") for line in own):
        yield f"exit code {result.code}: {result.err[:300]} ... {result.err[-300:]}"
    elif result.code == 2 and not (result.err + result.out).strip():
        yield "exit code 2, and not a word"


def of_a_run(result: Result, truth: Mapping[str, str], spared: bool) -> Iterator[str]:
    """`of_a_record`, and a verdict is the programmed one or says why there is none. `spared`: nothing stood in the way of any
    cell's verdict."""
    yield from of_a_record(result, truth)
    if result.folder is None or not (result.folder / "run.json").exists():
        return
    with contextlib.suppress(AbprofError):
        run = runfolder.read(result.folder)[0]
        uncertain = set() if spared and run.status == "complete" else {"unclear", "broken"}
        for row in run.comparisons:
            allowed = {truth.get(row.cell, "broken")} | uncertain
            if row.verdict not in allowed:
                yield f"{row.cell} is {row.verdict} {row.reasons}, not {' or '.join(sorted(allowed))}"


def of_a_record(result: Result, cells: Collection[str]) -> Iterator[str]:
    """No cell is lost or twice there, and verdicts rest on complete evidence."""
    yield from of_a_command(result)
    if result.folder is None or not (result.folder / "run.json").exists():
        if result.code not in (2, 130):
            yield f"exit code {result.code} and no run.json"
        return
    try:
        run, blocks, _ = runfolder.read(result.folder)
    except AbprofError as error:
        if result.code != 2:  # a torn one is refused
            yield f"its run.json cannot be read: {error.line}"
        return
    yield from _whole(result, run, cells)
    yield from on_one_device(blocks)
    yield from _once(run, blocks)
    if result.code in (0, 1, 4, 130):
        yield from _evident(run, blocks)
    wrong: list[str] = []
    json.loads((result.folder / "run.json").read_text(), parse_constant=wrong.append)
    yield from (f"{word} in run.json" for word in wrong)


def _whole(result: Result, run: Run, truth: Collection[str]) -> Iterator[str]:
    cells = [cell.id for cell in run.cells]
    rows = [row.cell for row in run.comparisons if row.to == "target"]
    if run.status == "running" and result.code in (0, 1, 4):
        yield "run.json says running"
    whole = {cell.workload + "/" for cell in run.cells}  # one cell for a workload that could not say what it is
    if cells and sorted(cells) != sorted(truth) and set(cells) != whole:
        yield f"cells: {cells}"
    if cells and run.status == "complete" and sorted(rows) != sorted(cells):
        yield f"rows: {rows}"


def _once(run: Run, blocks: list[Block]) -> Iterator[str]:
    """No cell was measured twice in an epoch, or in an epoch after its decision."""
    # A profiled pass has processes and an epoch of its own, and no rounds.
    passes = [
        b for b in blocks if not b.rounds and all(each.status in ("ok", "identical") for each in b.outcomes.values())
    ]
    kept = [block for block in blocks if block.judged and block.metric and block not in passes]
    count = Counter((block.epoch, block.cell) for block in kept)
    yield from (f"{cell} stands {many} times in epoch {epoch}" for (epoch, cell), many in count.items() if many > 1)
    for part in _planned(run, kept):
        for epoch in sorted({block.epoch for block in part}):
            before = [block for block in part if block.epoch < epoch]
            proofs = [proof for proof in run.proofs if proof.epoch < epoch and proof.device == part[0].device]
            extra = {block.cell for block in part if block.epoch == epoch} - verdict.undecided(run, before, proofs)
            if extra:
                yield f"measured in epoch {epoch} though they were decided: {sorted(extra)}"


def _planned(run: Run, kept: list[Block]) -> list[list[Block]]:
    """The blocks of one plan each: a run's on one device, or a shard's of cells that no earlier one had measured. What a later
    one adds the verdicts of all devices asked for, and the time of the look-up is left out."""
    if not run.machines:
        return [kept] if kept else []
    first: dict[str, int] = {}
    for block in kept:
        first[block.cell] = min(block.shard, first.get(block.cell, block.shard))
    own = [block for block in kept if first[block.cell] == block.shard]
    return [[block for block in own if block.shard == shard] for shard in sorted({block.shard for block in own})]


def on_one_device(blocks: list[Block]) -> Iterator[str]:
    """All blocks of a cell are of one device."""
    homes: dict[str, set[str]] = {}
    for block in blocks:
        if block.metric:
            homes.setdefault(block.cell, set()).add(block.device)
    yield from (f"{cell} stands on {' and '.join(sorted(many))}" for cell, many in homes.items() if len(many) > 1)


def _evident(run: Run, blocks: list[Block]) -> Iterator[str]:
    """A verdict uses only epochs in which both sides' workers listed their loaded files."""
    proved = {(proof.epoch, proof.shard, proof.side) for proof in run.proofs if proof.ok}
    for row in run.comparisons:
        if row.verdict in ("unclear", "broken"):
            continue
        if row.epochs < verdict.stats.LOOKS[0]:
            yield f"{row.cell} is {row.verdict} on {row.epochs} epochs"
        rests = {(b.epoch, b.shard) for b in blocks if b.cell == row.cell and b.judged and b.rounds and _both_ran(b)}
        bare = sorted((*at, side) for at in rests for side in ("base", "target") if (*at, side) not in proved)
        if bare:
            yield f"{row.cell} is {row.verdict}, and nothing says what was loaded in {bare}"


def _both_ran(block: Block) -> bool:
    """Whether a verdict rests on this block."""
    sides = [block.outcomes[arm].status for arm in ("base", "target") if arm in block.outcomes]
    return len(sides) == 2 and set(sides) <= {"ok", "identical"}


def of_a_round(lab: Lab, played: Iterator[str], what: str) -> list[str]:
    """Return broken promises of the `played` round and after it: `abprof clean` succeeds and leaves nothing."""
    before = lab.fingerprint()
    broken = [*played, *(f"clean: {line}" for line in of_a_command(lab.command("clean")))]
    return [f"{line} ({what})" for line in (*broken, *of_what_is_left(lab, before))]


def of_what_is_left(lab: Lab, before: Mapping[str, str]) -> Iterator[str]:
    """No process, worktree, lock or half-written file stays, and the user's repository is as it was."""
    yield from (f"left behind: {line}" for line in lab.left_behind())
    yield from (f"left behind: process {pid}" for pid in _processes(lab))
    for folder in (lab.cache, lab.state, lab.runs):
        for path in sorted(folder.rglob("*")):
            where = path.relative_to(lab.folder)
            of_trees = path.suffix == ".lock" and path.parent.name == "worktrees"
            if of_trees or path.suffix == ".partial" or path.parent.name == "unfinished":
                yield f"left behind: {where}"
            elif path.name.endswith("lock") and path.is_file() and _held(path):
                yield f"left behind: {where} is held"
    now = lab.fingerprint()
    changed = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    yield from (f"the user's repository: {path} changed" for path in changed)


def _processes(lab: Lab) -> Iterator[int]:
    """Return living processes whose environment or command line has this lab's folders."""
    needle = f"ABPROF_STATE_DIR={lab.state}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and needle in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def _held(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
