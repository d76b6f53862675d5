"""Where the sides' environments differ: interpreters, packages, compilers, variables, build commands, the device's clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from abprof.records import Block, Run
from abprof.report import words
from abprof.report.lines import TextTable
from abprof.verdict.rounds import ARM, MHZ, table

CLOCKS_AGREE = 0.1  # per cent: less than that is no difference
BY_SIDE = Mapping[str, str]  # side id -> text


def differences(run: Run, blocks: Sequence[Block]) -> TextTable:
    """A row for each thing that is not the same on all sides."""
    sides = [side.id for side in run.sides]
    rows = [
        (what, kind, *(words.clean(texts.get(side, "-")) for side in sides)) for kind, what, texts in _differing(run)
    ]
    clocks = _clocks(run, blocks)
    if clocks and _apart(clocks) >= CLOCKS_AGREE:
        rows.append(("mean clock of its turns", "device", *(f"{clocks[side]:.0f} MHz" for side in sides)))
    return TextTable(("what", "kind", *sides), tuple(rows), 2 + len(sides))


def said(run: Run, blocks: Sequence[Block]) -> str:
    """What was compared, in a sentence that stands above the table or in its place."""
    if not run.toolchains:
        return "What each side was built and run with is not recorded in this run."
    counted = max(len(one.packages) for one in run.toolchains.values())
    things = ["interpreter", words.plural(counted, "installed package"), "compilers", "variables", "build commands"]
    nothing = not differences(run, blocks).rows
    found = "Nothing differs" if nothing else "All else is the same"
    clocks = _clocks(run, blocks)
    agree = bool(clocks) and _apart(clocks) < CLOCKS_AGREE
    clock = f" The mean clocks of the sides' turns agree within {_apart(clocks):.2f} %." if agree else ""
    return (
        f"{found} between the sides: {', '.join(things)}, on one device in turns.{clock} "
        "Flags that a package's own build() passes are its code: they stand in the build's log."
    )


def _differing(run: Run) -> Iterator[tuple[str, str, BY_SIDE]]:
    """(kind, what, side -> text) of all that is recorded by side and differs."""
    chains = run.toolchains
    yield from _unlike("toolchain", {side: chain.versions for side, chain in chains.items()})
    yield from _unlike("package", {side: chain.packages for side, chain in chains.items()})
    if len(set(run.options.python.values())) > 1:
        yield "toolchain", "python's file", run.options.python
    for kernel in dict.fromkeys(build.kernel for build in run.builds):
        made = [build for build in run.builds if build.kernel == kernel and not build.failure]
        recipes = {build.side: {kernel: " ".join(build.recipe)} for build in made}
        yield from _unlike(f"variable of {words.clean(kernel)}", {build.side: build.variables for build in made})
        yield from _unlike("build command", recipes)


def _unlike(kind: str, sides: Mapping[str, BY_SIDE]) -> Iterator[tuple[str, str, BY_SIDE]]:
    for name in dict.fromkeys(name for of in sides.values() for name in of):
        texts = {side: of[name] for side, of in sides.items() if name in of}
        if len(texts) < len(sides) or len(set(texts.values())) > 1:
            yield kind, words.clean(name), texts


def _clocks(run: Run, blocks: Sequence[Block]) -> dict[str, float]:
    """Side -> the device's mean clock over its judged turns, MHz; nothing where turns did not read it on every side."""
    arms = {arm.id: arm.side for arm in run.arms if not arm.peer}
    read: dict[str, list[float]] = {side.id: [0.0, 0.0] for side in run.sides}  # the sum, and of how many
    for block in blocks:
        if not (block.judged and block.rounds):
            continue
        turns, rows = table(block.rounds)
        told = ~np.isin(rows, block.rejected) & (turns[:, MHZ] > 0)
        for number, arm in enumerate(block.arms):
            mhz = turns[told & (turns[:, ARM] == number), MHZ]
            if arms.get(arm, "") in read:
                read[arms[arm]][0] += float(mhz.sum())
                read[arms[arm]][1] += len(mhz)
    return {side: total / count for side, (total, count) in read.items()} if all(n for _, n in read.values()) else {}


def _apart(clocks: Mapping[str, float]) -> float:
    """How far the fastest is above the slowest, per cent."""
    return 100 * (max(clocks.values()) / min(clocks.values()) - 1)
