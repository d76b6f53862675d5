"""Why a row changed, in a sentence, and the kernels of both sides beside each other with what differs marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from abprof.evidence.causes.sides import Pair, Part, Sides
from abprof.evidence.causes.wording import dims, ns
from abprof.records import Arm, Census, Comparison, Kernel, Launch, Run, Value
from abprof.report import words
from abprof.report.view import Group, Row

NO_CAUSE = "no cause found"
_LONGEST = 300  # letters of a cause
_MOST = 4  # kernels of a row that the page shows, those that differ first
_MOST_FUNCTIONS = 6
_DIFFERENT = "≠ "


def because(judged: Comparison | None) -> str:
    """The causes of a row that changed, in words; "" where nothing changed, or nothing was recorded to look at."""
    if judged is None or judged.causes is None:
        return ""
    return "; ".join(words.clean(cause.text, _LONGEST) for cause in judged.causes) or NO_CAUSE


def counted(judged: Comparison | None) -> bool:
    """Whether a cause rests on Nsight Compute's counters, which have a section of their own."""
    return judged is not None and any("ncu" in cause.evidence for cause in judged.causes or ())


def sentence(judged: Comparison) -> str:
    """The causes with the change of time that they explain: `...; time +6.1 % [5.9, 6.3]`."""
    said = because(judged)
    if not said or judged.pct is None:
        return said
    bounds = (
        "" if judged.low_pct is None or judged.high_pct is None else f" [{judged.low_pct:.1f}, {judged.high_pct:.1f}]"
    )
    return f"{said}; time {judged.pct:+.1f} %{bounds}"


def reasons(group: Group) -> list[tuple[str, str]]:
    """(case, sentence) of every row of the group that has something to say."""
    told = [(group.name(row), sentence(row.comparison)) for row in group.rows if row.comparison]
    return [(case, said) for case, said in told if said]


def rows(run: Run, row: Row) -> Iterator[tuple[str, ...]]:
    """Label and a text per side, of what a row launches and what it is made of; what differs is marked.

    Rows that did not change say in one line whether both sides ran the same; one branch's say what it ran.
    """
    judged = row.comparison
    if judged is None:
        yield from _alone(row.base.census if row.base else None)
        return
    sides = _sides(run, row, judged)
    if judged.causes is None:
        if _unchanged(sides):
            told = f"{words.plural(len(sides.pairs), 'kernel')}, the same code and launches on both sides"
            yield "kernels", "; ".join([told, *_heaviest(sides.census[0])])
        return
    yield from _missing(sides)
    ordered = sorted(sides.pairs, key=lambda pair: (_alike(pair), -pair.after.ns))
    for pair in ordered[:_MOST]:
        yield from _pair(pair, "kernel" if sides.on_gpu else "operation")
    for label, parts in (("only base launches", sides.gone), ("only target launches", sides.new)):
        if parts:
            told = ", ".join(f"{words.clean(part.name, 60)} ({part.count}×, {ns(part.ns)})" for part in parts[:_MOST])
            yield f"{_DIFFERENT}{label}", told
    if len(ordered) > _MOST:
        yield "further ones", f"{len(ordered) - _MOST}, in run.json"
    for one, two in sides.objects:
        yield from _object(one, two)


def _alone(census: Census | None) -> Iterator[tuple[str, str]]:
    """What one branch's call launches on the device, the longest first."""
    launches = sorted(census.launches, key=lambda launch: -launch.ns) if census and census.on_device else []
    for launch in launches[:_MOST]:
        told = (_launched(Part(launch.name, (launch,), None)), ns(launch.ns), *_resources(launch))
        yield "kernel", ", ".join((words.clean(launch.name, 60), *told))
    if len(launches) > _MOST:
        yield "further ones", f"{len(launches) - _MOST}, in run.json"


def _heaviest(census: Census | None) -> Iterator[str]:
    """The resources of the kernel that takes the most time."""
    if census and census.on_device and census.launches:
        launch = max(census.launches, key=lambda launch: launch.ns)
        if any(_resources(launch)):
            yield ", ".join((words.clean(launch.name, 40), *_resources(launch)))


def _resources(launch: Launch) -> Iterator[str]:
    if launch.registers is not None:
        yield f"{launch.registers} registers"
    if launch.shared_bytes:
        yield f"{words.size(launch.shared_bytes)} shared"


def _sides(run: Run, row: Row, judged: Comparison) -> Sides:
    seen = row.base, row.target
    names = [Arm.of(arm).side for arm in (judged.from_, judged.to)]
    before, after = (tuple(k for k in run.kernels if (k.side, k.package) == (name, row.cell.kernel)) for name in names)
    first, second = (one.census if one else None for one in seen)
    return Sides(
        row=judged,
        on_gpu=run.machine.kind == "cuda",
        base_ns=0.0,
        census=(first, second),
        kernels=(before, after),
        phases=(None, None),
    )


def _unchanged(sides: Sides) -> bool:
    """Whether a GPU's launches are the same, and all code of the side's own that was read; some was."""
    own = [pair.same_code for pair in sides.pairs if pair.before.kernel or pair.after.kernel]
    return sides.on_gpu and sides.same_launches and bool(own) and all(own)


def _missing(sides: Sides) -> Iterator[tuple[str, ...]]:
    told = [words.clean(census.missing if census else "not asked", 120) for census in sides.census]
    if any(told):
        yield "launches", *(f"{words.NOT_RECORDED}: {why}" if why else "recorded" for why in told)


def _alike(pair: Pair) -> bool:
    return bool(pair.same_code) and pair.before.shape == pair.after.shape


def _pair(pair: Pair, noun: str) -> Iterator[tuple[str, ...]]:
    parts = pair.before, pair.after
    names = [words.clean(part.name, 60) for part in parts]
    yield _both(noun, [f"{name}, {_launched(part)}" for name, part in zip(names, parts, strict=True)])
    yield from _shown("– registers", [part.registers for part in parts])
    yield from _shown("– autotuned", [words.clean(part.choice[0], 120) for part in parts])
    compiled = [part.kernel for part in parts]
    for label, field in (("stack", "stack_bytes"), ("shared memory", "shared_bytes")):
        sizes = [getattr(kernel, field) if kernel else None for kernel in compiled]
        yield from _shown(f"– {label}", [None if size is None else f"{size} B" for size in sizes])
    yield from _shown("– warps, stages", [_pipeline(kernel) for kernel in compiled])
    yield from _shown("– constants", [_constants(kernel) for kernel in compiled])
    yield from _shown("– instructions", [_classes(kernel) for kernel in compiled])
    yield from _shown("– machine code", [kernel.code[:8] if kernel else None for kernel in compiled])
    seconds = [f"{k.seconds:.2f} s" if k and k.seconds is not None else words.NOT_RECORDED for k in compiled]
    if any(kernel and kernel.seconds is not None for kernel in compiled):
        yield "– compiled in", *seconds


def _launched(part: Part) -> str:
    grids = dict.fromkeys(dims(launch.grid) for launch in part.launches if launch.grid)
    blocks = dict.fromkeys(dims(launch.block) for launch in part.launches if launch.block)
    said = [f"{part.count}×"]
    said += [f"grid {', '.join(grids)}"] if grids else []
    return " ".join([*said, *([f"block {', '.join(blocks)}"] if blocks else [])])


def _pipeline(kernel: Kernel | None) -> str | None:
    if kernel is None or (kernel.warps is None and kernel.stages is None):
        return None
    return ", ".join(words.NOT_RECORDED if n is None else str(n) for n in (kernel.warps, kernel.stages))


def _constants(kernel: Kernel | None) -> str | None:
    if kernel is None or not kernel.constants:
        return None
    told: dict[str, Value] = kernel.constants
    return words.clean(" ".join(f"{name}={value}" for name, value in sorted(told.items())), 200)


def _classes(kernel: Kernel | None) -> str | None:
    if kernel is None:
        return None
    if kernel.classes is None:
        return f"{words.NOT_RECORDED}: {words.clean(kernel.missing, 80)}" if kernel.missing else None
    return ", ".join(f"{name} {count}" for name, count in kernel.classes.items() if count)


def _object(one: Kernel, two: Kernel) -> Iterator[tuple[str, ...]]:
    """A shared object of the sides' own: what made it, and the functions that differ."""
    name = words.clean(one.key, 60)
    code = [kernel.code[:8] or words.NOT_RECORDED for kernel in (one, two)]
    yield _both("object", [f"{name}, code {told}" for told in code])
    yield from _shown("– compiler", [words.clean(kernel.compiler, 80) for kernel in (one, two)])
    yield from _shown("– flags", [words.clean(kernel.flags, 200) for kernel in (one, two)])
    if one.missing or two.missing:
        yield from _shown("– functions", [f"{words.NOT_RECORDED}: {words.clean(k.missing, 80)}" if k.missing else "read"
                                          for k in (one, two)])  # fmt: skip
    before, after = ({f.name: f.classes for f in kernel.functions} for kernel in (one, two))
    for function in list(dict.fromkeys((*before, *after)))[:_MOST_FUNCTIONS]:
        told = [", ".join(f"{n} {c}" for n, c in side[function].items() if c) if function in side else "not there"
                for side in (before, after)]  # fmt: skip
        yield f"{_DIFFERENT}{words.clean(function, 60)}", *told


def _shown(label: str, texts: Sequence[object]) -> Iterator[tuple[str, ...]]:
    """A row, unless no side has anything."""
    told = ["" if text is None else str(text) for text in texts]
    if any(told):
        yield _both(label, [text or words.NOT_RECORDED for text in told])


def _both(label: str, told: Sequence[str]) -> tuple[str, ...]:
    """Once where both sides say the same, else marked."""
    return (label, told[0]) if told[0] == told[1] else (f"{_DIFFERENT}{label}", *told)
