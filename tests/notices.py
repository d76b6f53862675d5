"""Notices of every kind, from the realistic runs of tests/runs.py."""

from __future__ import annotations

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


def act() -> Run:
    return counted(runs.run())


def slower() -> Run:
    return counted(only("slower", "faster", "same"))


def unchanged() -> Run:
    return counted(runs.changed(only("same"), warnings=()))


def faster() -> Run:
    return counted(runs.changed(only("faster", "slight", "same"), warnings=()))


def untrusted() -> Run:
    return counted(only("slower", "same"), controls_outside=1, controls_inside=5)


def undecided() -> Run:
    return counted(only("unclear", "same"))


def nothing_measured() -> Run:
    plain = only("broken")
    rows = tuple(runs.changed(c, verdict="unclear", reasons=("base_build_failed",)) for c in plain.comparisons)
    return counted(runs.changed(plain, comparisons=rows))


def fixed() -> Run:
    plain = only("broken")
    rows = tuple(runs.changed(c, verdict="unclear", reasons=("base_wrong",)) for c in plain.comparisons)
    return counted(runs.changed(plain, comparisons=rows))


def running() -> Run:
    return runs.changed(runs.run(), status="running", ended=None, header=None, comparisons=(), observations=())


def hostile() -> Run:
    return counted(runs.hostile())


def command(verdicts: str = "same") -> Run:
    """Of a command that times itself."""
    return runs.changed(
        counted(runs.changed(only(*verdicts.split()), warnings=())), command=Command(argv=("python", "bench.py"))
    )


def without_reference(*names: str) -> Run:
    """Of workloads without a reference, of these names."""
    load = runs.changed(runs.run().workloads[0], checked="sides")
    return runs.changed(slower(), workloads=tuple(runs.changed(load, name=name) for name in names))


KINDS = {
    "act": act, "slower": slower, "unchanged": unchanged, "faster": faster, "untrusted": untrusted,
    "undecided": undecided, "nothing_measured": nothing_measured, "running": running, "hostile": hostile,
    "command": command,
}  # fmt: skip


def made(kind: str) -> Notice:
    return runs.changed(make_notice(KINDS[kind]()), abprof="0.1.0")
