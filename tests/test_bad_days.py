"""Days on which the machine or the kernel misbehaves while it is timed, with real workers and a C kernel.

Each cell of one run has a bad day of its own. Beside the days on which both sides are alike stand some on which the target
does everything twice (`planted=2`). The kernel tells the epoch by how many processes of its side were there before, and
that turns are being taken by how often it was called. Calls take a millisecond or two: a crowded machine interrupts few,
and a fast one does not put many into a turn.
Memory that does not fit has its own file, tests/test_one_at_a_time.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from abprof.records import Block, Comparison, Run
from abprof.store.runfolder import read
from tests.tinyrepo import PACKAGE, Done, abprof_afresh, tiny_repo

# A week takes two to three minutes, all of them in the set-up of its first test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CPU = ("--device", "cpu", "--no-peers", "--json")
DAYS = [("drop", 1), ("drop", 2), ("spin", 1), ("stop", 1), ("stop", 2)]
DAYS += [(day, 1) for day in ("back", "stands", "first", "modes", "short")]

SOURCE = """
void twice(const float *x, float *y, long n, long repeat) {
  for (long r = 0; r < repeat; ++r)
    for (long i = 0; i < n; ++i) ((volatile float *)y)[i] = 2.0f * x[i];
}
"""
KERNEL = (
    PACKAGE.replace("def double(x)", "def double(x, repeat)")
    .replace("[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]", "[ctypes.c_void_p] * 2 + [ctypes.c_long] * 2")
    .replace("x.numel())", "x.numel(), repeat)")
    + """
import signal, time

SIDE, PLACE = %r, Path(%r)
MIDDLE = 12  # called oftener than an opening does, and not as often as by an epoch with the fewest rounds
# What a process draws: its slow mode, or not. The base's stand between those of the control, where there is one.
MODES = {"base": [0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0], "target": [1, 1, 1, 0, 1, 0]}
called, process, past, timed = {}, {}, set(), 0
real, behind, stands = time.perf_counter_ns, 0, None

def clock():
    return real() - behind if stands is None else stands

def number(key):
    \"\"\"How many processes of this side were here before.\"\"\"
    with open(PLACE / f"{key}-{SIDE}", "ab") as file:
        file.write(b".")
        file.flush()
        return file.tell() - 1

def tell(word, text=""):
    (PLACE / f"{word}.part").write_text(text)
    (PLACE / f"{word}.part").rename(PLACE / word)

def act(day, planted, x, again):
    global behind, past, stands, timed
    stands = (stands or clock()) if day == "stands" and SIDE == "target" else None
    times = planted if SIDE == "target" else 1
    if day == "long":
        time.sleep(1.5 * times)
    if day in ("long", "short"):
        return double(x, 1)
    key = f"{day}{planted}"
    if key not in called:
        called[key], process[key] = 0, number(key)
    called[key] += 1
    nth = process[key]
    # `again`: not the first call on these inputs, which is not timed
    middle = SIDE == "target" and nth in (1, 2) and called[key] >= MIDDLE and again and key not in past
    past |= {key} if middle else set()
    slower = False
    if day == "drop":  # of the clock, for all, from the middle of the second epoch on
        if middle:
            tell(f"{key}.dropped")
        slower = (PLACE / f"{key}.dropped").exists()
    if day == "spin" and middle:
        tell(f"{key}.{nth}.spin")
        while not (PLACE / f"{key}.{nth}.spinning").exists():
            time.sleep(0.01)
    if day == "stop" and middle:
        tell(f"{key}.{nth}.stop", str(os.getpid()))
        if nth == 1:  # in the middle of a call; the other time it is stopped wherever it is met
            os.kill(os.getpid(), signal.SIGSTOP)
    if day == "first":
        slower = SIDE == "target" and nth == 0
    if day == "modes":
        slower = MODES[SIDE][nth]
    y = double(x, 350 * times * (3 if slower else 2))
    if day == "back":
        timed += again > 0
        behind += 1_000_000_000 if again and timed %% 7 == 0 else 0
    if day in ("back", "stands"):
        time.perf_counter_ns = clock
    return y
"""
)
WORKLOAD = """
import itertools
import torch
from abprof.kit import Op, compare

API = 1
KERNEL = "tiny"
SUITE = "tiny"
PRESETS = {"default": {("day", "planted"): %r}, "long": {("day", "planted"): [("long", 2)]}}

def inputs(case, device, seed):
    return torch.randn(64 if case["day"] == "short" else 4096)

def prepare(kernel, variant, case, inputs):
    calls = itertools.count()
    return Op(lambda: kernel.act(case["day"], case["planted"], inputs, next(calls)))

def reference(case, inputs):
    return inputs.double() * 2

def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-6, atol=0.0)
"""


@dataclass
class Watcher:
    """What happens to the machine from outside of abprof, when the kernel says that it is time."""

    place: Path
    stopped: list[str] = field(default_factory=list)  # the states of the processes that were stopped
    spinners: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ended_by_others: int = 0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over, self._told()))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._end_spinners()

    def _told(self) -> set[Path]:
        return {*self.place.glob("*.spin"), *self.place.glob("*.stop")}

    def _watch(self, over: threading.Event, seen: set[Path]) -> None:
        """`seen`: what an earlier run left."""
        while not over.wait(0.02):
            # Whoever spins waits for this: who is to be stopped before that is still there, however late it is seen.
            for told in sorted(self._told() - seen, key=lambda told: told.suffix == ".spin"):
                seen.add(told)
                if told.suffix == ".spin":
                    self._spin(told)
                elif told.suffix == ".stop":
                    with contextlib.suppress(psutil.NoSuchProcess):  # then one is missing in `stopped`
                        self._stop(int(told.read_text()), itself=told.stem.endswith(".1"))

    def _spin(self, told: Path) -> None:
        """As many foreign processes as there are cores, for three seconds."""
        self.spinners = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in os.sched_getaffinity(0)]
        told.with_suffix(".spinning").touch()
        time.sleep(3)
        self._end_spinners()

    def _end_spinners(self) -> None:
        for spinner in self.spinners:
            self.ended_by_others += spinner.poll() is not None
            spinner.kill()
            spinner.wait()
        self.spinners = []

    def _stop(self, pid: int, *, itself: bool) -> None:
        process = psutil.Process(pid)
        if not itself:
            process.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 10
        while process.status() != psutil.STATUS_STOPPED and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(2)
        self.stopped.append(process.status())
        process.send_signal(signal.SIGCONT)


@dataclass(frozen=True)
class Week:
    """A run of bad days, and what was seen of it."""

    home: Path
    done: Done
    run: Run
    blocks: list[Block]
    watcher: Watcher
    left: list[str]  # processes that lived on

    @property
    def place(self) -> Path:
        return self.home / "place"

    def row(self, day: str, planted: int = 1) -> Comparison:
        (row,) = (r for r in self.run.comparisons if r.cell == f"tiny/day={day},planted={planted}")
        return row

    def blocks_of(self, day: str, planted: int = 1) -> list[Block]:
        return [block for block in self.blocks if block.cell == f"tiny/day={day},planted={planted}"]


def living(home: Path) -> list[str]:
    """Processes that work in a folder of this test, as every process of abprof does."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd().startswith(str(home)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds main, and `other`: the same kernel, that knows itself to be the target."""
    home = tmp_path_factory.mktemp("home")
    place = home / "place"
    place.mkdir()
    repo = tiny_repo(home / "repo")
    kernel = {side: KERNEL % (side, str(place)) for side in ("base", "target")}
    shared = {"kernels/tiny/tiny.c": SOURCE, "workloads/tiny.py": WORKLOAD % DAYS}
    repo.commit("bad days", {"kernels/tiny/__init__.py": kernel["base"], **shared})
    repo.branch("other")
    repo.commit("the target", {"kernels/tiny/__init__.py": kernel["target"]})
    repo.checkout("main")
    return home


def measured(home: Path, *options: str) -> Week:
    watcher = Watcher(home / "place")
    with watcher.watch():
        done = abprof_afresh("main", "other", *options, *CPU, cwd=home / "repo", home=home)
        left = living(home)
    run, blocks, _ = read(Path(done.run["run_dir"]))
    return Week(home, done, run, blocks, watcher, left)


@pytest.fixture(scope="module")
def week(home: Path) -> Week:
    """By a threshold that demo and tests have on a CPU: 15 %. Rounds end by it, so the week is not too long."""
    return measured(home, "--epochs", "6", "--threshold", "15", "--margin", "15", "--budget", "1h")


@pytest.fixture(scope="module")
def long(home: Path) -> Week:
    return measured(home, "--preset", "long", "--quick")


def alike(row: Comparison) -> None:
    """Both sides were: no difference is called real, and what is not decided shows its interval and why."""
    assert row.verdict in {"same", "slight", "unclear"}, row
    assert row.low_pct is not None, row
    assert row.high_pct is not None, row
    assert row.reasons == (("epochs",) if row.verdict == "unclear" else ()), row


def torn(row: Comparison, why: str) -> None:
    """Its epochs disagree so that neither no change nor one beyond the threshold can be ruled out."""
    alike(row)
    assert row.verdict == "unclear", why
    assert row.low_pct is not None
    assert row.high_pct is not None
    assert row.low_pct < 0 < 15 < row.high_pct


def twice_as_slow(row: Comparison) -> None:
    assert row.verdict == "slower", row
    assert row.pct is not None
    assert 50 < row.pct < 200, row


def test_nothing_hangs_and_nothing_is_left(week: Week) -> None:
    assert week.left == []
    assert week.run.status == "complete"
    assert {(row.status, row.reason) for row in week.run.observations} == {("ok", "")}
    header = week.run.header
    assert header is not None
    assert header.trusted
    assert week.done.code == 1, "some are slower, as planted"


def test_a_foreign_process_in_the_middle(week: Week) -> None:
    """It has all cores for three seconds, twice, from the middle of a cell on; and abprof leaves it alone."""
    assert len(list(week.place.glob("spin1.*.spinning"))) == 2
    assert week.watcher.ended_by_others == 0
    assert week.watcher.spinners == []
    alike(week.row("spin"))


def test_a_worker_is_stopped_for_seconds(week: Week) -> None:
    """In the middle of a call, and between them, of either cell."""
    assert week.watcher.stopped == [psutil.STATUS_STOPPED] * 4
    longest = max(turn.end - turn.start for block in week.blocks_of("stop") for row in block.rounds for turn in row)
    assert longest > 1e9, "one of them was a turn"
    alike(week.row("stop"))
    twice_as_slow(week.row("stop", 2))


def test_a_kernel_of_microseconds(week: Week) -> None:
    alike(week.row("short"))
    assert all(block.calls > 1 for block in week.blocks_of("short")), "some share a turn"


def test_the_clock_stands_still(week: Week) -> None:
    """On one side: no round of it is a measurement, and it is said."""
    row = week.row("stands")
    assert (row.verdict, row.reasons, row.pct) == ("unclear", ("not_measured",), None)
    for block in week.blocks_of("stands"):
        assert len(block.rejected) == len(block.rounds)
    (said,) = (warning for warning in week.run.warnings if warning.kind == "rejected")
    assert row.cell in said.cells


def test_a_kernel_of_seconds(long: Week) -> None:
    """1.5 s, and 3 s on the target: a screen of a single epoch."""
    (row,) = long.run.comparisons
    assert (row.verdict, row.reasons) == ("unclear", ("quick_worth_confirming",))
    assert row.pct is not None
    assert 80 < row.pct < 120
    (block,) = long.blocks
    assert (block.calls, len(block.rounds)) == (1, 8)
    assert long.left == []
