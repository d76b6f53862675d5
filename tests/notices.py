"""Notices of every kind, from the realistic runs of tests/runs.py."""

from collections.abc import Callable

from abprof.extras.bot import Notice, make_notice
from abprof.records import Command, Header, Run
from abprof.verdict.headline import count

from . import runs


def counted(run: Run, **more: int) -> Run:
    """The run with a header whose counts are those of its rows."""
    counts = {
        **count(run, run.comparisons),
        "controls": len(run.controls),
        "controls_inside": len(run.controls),
        **more,
    }
    return runs.changed(run, header=Header(sentence="", counts=counts, trusted=True, false_alarm_bound=0.39))


def only(*verdicts: str, run: Run | None = None) -> Run:
    """The run without its rows of other verdicts."""
    run = run or runs.run()
    kept = tuple(c for c in run.comparisons if c.verdict in verdicts)
    names = {c.cell for c in kept}
    return runs.changed(
        run,
        comparisons=kept,
        cells=tuple(c for c in run.cells if c.id in names),
        observations=tuple(o for o in run.observations if o.cell in names),
    )


def quiet(*verdicts: str) -> Run:
    """The run with rows of these verdicts alone, and without warnings."""
    return counted(runs.changed(only(*verdicts), warnings=()))


def unclear(reason: str) -> Run:
    """The run's broken rows, whose base it is."""
    plain = only("broken")
    rows = tuple(runs.changed(c, verdict="unclear", reasons=(reason,)) for c in plain.comparisons)
    return counted(runs.changed(plain, comparisons=rows))


def slower() -> Run:
    return counted(only("slower", "faster", "same"))


def without_reference(*names: str) -> Run:
    """Of workloads without a reference, of these names."""
    load = runs.changed(runs.run().workloads[0], checked="sides")
    made, workloads = slower(), tuple(runs.changed(load, name=name) for name in names)
    cells = (runs.changed(made.cells[0], workload=name) for name in names)
    return runs.changed(made, workloads=workloads, cells=(*made.cells, *cells))


KINDS: dict[str, Callable[[], Run]] = {
    "act": lambda: counted(runs.run()),
    "slower": slower,
    "unchanged": lambda: quiet("same"),
    "faster": lambda: quiet("faster", "slight", "same"),
    "untrusted": lambda: counted(only("slower", "same"), controls_outside=1, controls_inside=5),
    "undecided": lambda: counted(only("unclear", "same")),
    "nothing_measured": lambda: unclear("base_build_failed"),
    "running": lambda: runs.changed(
        runs.run(), status="running", ended=None, header=None, comparisons=(), observations=()
    ),
    "hostile": lambda: counted(runs.hostile()),
    "command": lambda: runs.changed(quiet("same"), command=Command(argv=("python", "bench.py"))),
}


def made(kind: str) -> Notice:
    return runs.changed(make_notice(KINDS[kind]()), abprof="0.1.0")
