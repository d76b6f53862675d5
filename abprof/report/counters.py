"""Both sides' kernels under Nsight Compute: a table of metrics with their differences, for pages, terminal and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from abprof.evidence.causes.wording import ns
from abprof.evidence.ncu import metrics
from abprof.evidence.ncu.metrics import Shown
from abprof.evidence.ncu.traffic import beside
from abprof.records import KernelProfile, Profile, Run
from abprof.report import memory, profiled, tables, view, words
from abprof.report.lines import TextTable

TITLE = "Under Nsight Compute"
TEXT = (
    "Counters of single launches after all timing, with caches emptied before each and clocks left as they are: they say what "
    "a kernel does, and not how fast it is. Sums are of a call; rates, shares and waits are means over its launches."
)
MOST = 3  # reasons to wait that are shown of a kernel
HEADER = ("cell", "variant", "kernel", "grid", "block", "launches_a_call", "metric", "from", "to", "from_value", "to_value",
          "change_pct", "presence", "status", "reason")  # fmt: skip
_ABSENT = "not launched"

Values = Mapping[str, float]
Both = tuple[KernelProfile | None, KernelProfile | None]


@dataclass(frozen=True)
class Part:
    """One row of the run: its files, what is missing or to be known, and its tables."""

    title: str
    files: tuple[tuple[str, str], ...]  # arm, path from the run folder
    said: tuple[str, ...]
    tables: tuple[tuple[str, TextTable], ...]


def parts(run: Run) -> list[Part]:
    """A part for each row that was looked at: bytes alone where only they were asked for, else every metric."""
    return [part for row in profiled.rows(run) for part in _parts(run, row)]


def files(run: Run) -> dict[str, str]:
    """profiles.csv, where anything was looked at: every metric of a launch, by ncu's name in base units, and a line for each
    arm that has none."""
    return {"profiles.csv": tables.csv_text(HEADER, _lines(run))} if run.profiles else {}


def _parts(run: Run, row: list[Profile]) -> Iterator[Part]:
    if all(one.purpose == "memory" for one in row):
        groups = profiled.of_row(run, row)
        yield _part(row, tuple(made for group in groups for made in memory.titled(group.tables)))
        return
    pairs = list(_compared(run, row))
    yield _part(row, tuple(made for one, two in pairs for made in _tables(one, two, named=len(pairs) > 1)))


def _compared(run: Run, row: list[Profile]) -> Iterator[tuple[Profile, Profile | None]]:
    """Base with each other side that ran; one that stands alone with nothing."""
    for first, *others in profiled.beside(run, row):
        if not others:
            yield first, None
        yield from ((first, other) for other in others)


def _part(row: list[Profile], made: tuple[tuple[str, TextTable], ...]) -> Part:
    said = [words.clean(f"{one.arm}: {one.status}: {one.reason}", 400) for one in row if one.status != "ok"]
    said += [words.clean(f"{one.arm}: {note}", 400) for one in row for note in one.notes]
    title = words.clean(f"{row[0].cell} {', '.join(one.arm for one in row)}")
    return Part(title, tuple((one.arm, one.file) for one in row if one.file), tuple(said), made)


def _tables(before: Profile, after: Profile | None, *, named: bool = False) -> Iterator[tuple[str, TextTable]]:
    """A table for each kernel of a call. `named`: its title says whose, where others are of other sides."""
    arms = (before.arm, after.arm) if after else (before.arm,)
    for one, two in _pairs(before, after):
        either = two or one
        assert either is not None
        title = words.clean(
            f"{either.name} {either.grid} x {either.block}" + (f", {' and '.join(arms)}" if named else ""), 200
        )
        header = ("metric", *arms, *(("difference",) if after else ()))
        yield title, TextTable(header, tuple(_rows((one, two), compared=after is not None)), 1)


def _pairs(before: Profile, after: Profile | None) -> list[Both]:
    """Kernels by name, grid and block, then by name alone, as the traffic's table has them."""
    if after is None:
        return [(kernel, None) for kernel in before.kernels]
    first, second = profiled.table(before), profiled.table(after)
    of = {id(row): kernel for made, told in ((first, before), (second, after))
          for row, kernel in zip(made.rows, told.kernels, strict=True)}  # fmt: skip
    return [(of.get(id(pair.base)), of.get(id(pair.target))) for pair in beside(first, second)]


def _rows(both: Both, *, compared: bool) -> Iterator[tuple[str, ...]]:
    calls = [str(one.launches_a_call) if one else "0" for one in both]
    yield ("launches a call", *(calls if compared else calls[:1]), *(("",) if compared else ()))
    seen: set[str] = set()
    for shown in metrics.TABLE:
        told = [_value(shown, one) for one in both]
        if shown.label in seen or all(value is None for value in told):
            continue
        seen.add(shown.label)
        yield _row(shown, told, both, compared=compared)
    for reason in _reasons(both):
        shown = Shown(f"waits: {reason.replace('_', ' ')}", (metrics.stall(reason),), "", "lower")
        yield _row(shown, [_value(shown, one) for one in both], both, compared=compared)


def _value(shown: Shown, kernel: KernelProfile | None) -> float | None:
    if kernel is None or any(name not in kernel.metrics for name in shown.names):
        return None
    return sum(kernel.metrics[name] for name in shown.names) * (kernel.launches_a_call if shown.per_call else 1)


def _reasons(both: Both) -> list[str]:
    """What warps of either side wait for most."""
    found: dict[str, float] = {}
    for kernel in both:
        told = {r: kernel.metrics.get(metrics.stall(r), 0.0) for r in metrics.STALLS} if kernel else {}
        for reason in sorted(told, key=lambda reason: -told[reason])[:MOST]:
            found[reason] = max(found.get(reason, 0.0), told[reason])
    return sorted((reason for reason in found if found[reason] > 0), key=lambda reason: -found[reason])


def _row(shown: Shown, told: list[float | None], both: Both, *, compared: bool) -> tuple[str, ...]:
    texts = [_ABSENT if kernel is None else _text(value, shown.unit) for value, kernel in zip(told, both, strict=True)]
    if not compared:
        return shown.label, texts[0]
    return shown.label, *texts, _difference(shown, *told)


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return words.NOT_RECORDED
    if unit == "ns":
        return ns(value)
    if unit == "bytes":
        return words.size(value)
    plain = {"bytes/s": f"{value / 1e9:.1f} GB/s", "%": f"{value:.1f} %", "count": f"{value:,.0f}"}
    return plain.get(unit, f"{value:.2f}")


def _difference(shown: Shown, before: float | None, after: float | None) -> str:
    """Shares in points, waits as they are, all else in per cent."""
    if before is None or after is None:
        return ""
    if shown.unit == "%":
        return f"{after - before:+.1f} points"
    if not shown.unit:
        return f"{after - before:+.2f}"
    return f"{100 * (after / before - 1):+.1f} %" if before else ("" if not after else "from none")


def _lines(run: Run) -> Iterator[tables.Line]:
    for row in profiled.rows(run):
        for before, after in _compared(run, row):
            for both in _pairs(before, after):
                yield from _of_kernel(run, before, after, both)
        for one in row:
            if one.status != "ok":
                line = {"cell": one.cell, "variant": view.arm(run, one.arm).variant, "from": one.arm}
                line |= {"status": one.status, "reason": one.reason}
                yield {column: tables.plain(text) for column, text in line.items()}


def _of_kernel(run: Run, before: Profile, after: Profile | None, both: Both) -> Iterator[tables.Line]:
    either = both[1] or both[0]
    assert either is not None
    first, second = (one.metrics if one else {} for one in both)
    line = {
        "cell": before.cell,
        "variant": view.arm(run, before.arm).variant,
        "kernel": either.name,
        "grid": either.grid,
    }
    line |= {"block": either.block, "from": before.arm, "to": after.arm if after else ""}
    line["status"] = "ok"
    line["launches_a_call"] = str(either.launches_a_call)
    line["presence"] = "" if after is None else "both" if all(both) else "only from" if both[0] else "only to"
    for name in dict.fromkeys((*first, *second)):
        values = {"metric": name, "from_value": _plain(first.get(name)), "to_value": _plain(second.get(name))}
        if first.get(name) and name in second:
            values["change_pct"] = f"{100 * (second[name] / first[name] - 1):.4f}"
        yield {column: tables.plain(text) for column, text in (line | values).items()}


def _plain(value: float | None) -> str:
    return "" if value is None else repr(value) if value != int(value) else str(int(value))
