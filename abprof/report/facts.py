"""Labelled lines about a run: why it may be trusted, how it was measured, on what machine, and with which builds."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from abprof.records import JUDGED_METRIC, REPORTED, Block, Ceilings, Machine, Run
from abprof.records.quantities import plural
from abprof.report import rows, sentences
from abprof.report.rows import Group, Table
from abprof.report.sentences import weaker
from abprof.report.text import LONGEST, NOT_RECORDED, clean, interval, rate, size
from abprof.verdict import waivers
from abprof.verdict.cells import ARM, MHZ, table
from abprof.verdict.headline import inside_margin, outside_margin

Facts = list[tuple[str, str]]


# ---------------------------------------------------------------- trust


def counts(run: Run) -> list[tuple[str, int]]:
    """The verdicts and how many rows have each, with unsupported and missing apart."""
    found = run.header.counts if run.header else {}
    return [(name, found[name]) for name in (*sentences.VERDICTS, "unsupported", "missing") if found.get(name)]


def _controls(run: Run) -> tuple[int, int, int]:
    """How many controls have an interval, how many lie inside the margin, and how many beyond it."""
    counted = run.header.counts if run.header else {}
    known = sum(one.low_pct is not None and one.high_pct is not None for one in run.controls)
    inside = counted.get("controls_inside", sum(inside_margin(run, one) for one in run.controls))
    outside = counted.get("controls_outside", sum(outside_margin(run, one) for one in run.controls))
    return counted.get("controls", known), inside, outside


def trusted(run: Run) -> str:
    """In one line whether the run may be trusted, and why: the end of a run on a terminal."""
    if any(one.falsifies for one in run.touched):
        return "not trusted: files that the run rests on changed while it ran (see the warnings)"
    tested, inside, outside = _controls(run)
    sentence = f"{inside} of {plural(tested, 'control')} within {run.options.margin:g} %" if tested else ""
    for count, what in ((outside, "beyond it"), (tested - inside - outside, "undecided")):
        sentence += f", {count} {what}" if count else ""
    if run.header and not run.header.trusted:
        return f"not trusted: {sentence or 'a control failed'}; any cell may be off by as much"
    if len(run.sides) < 2:
        return ""
    bad = [proof for proof in run.proofs if not proof.ok]
    proofs = "; each worker loaded its own side's files" if run.proofs and not bad else ""
    if not sentence:
        return f"no control was measured{proofs}"
    return f"{'trusted' if inside else 'not contradicted'}: {sentence}{proofs}"


def trust(run: Run, blocks: Sequence[Block]) -> Facts:
    """Why this run may be believed, or may not."""
    found: Facts = [("guarantee", text) for text in weaker(run)]
    if sentence := trusted(run):
        found.append(("trust", sentence))
    known = [(c.low_pct, c.high_pct) for c in run.controls if c.low_pct is not None and c.high_pct is not None]
    if known:
        span = interval(min(low for low, _ in known), max(high for _, high in known), 2)
        found.append(("controls", f"their intervals lie within {span}"))
    else:
        found.append(("controls", "none in this run" if len(run.sides) > 1 else "none: the run has one side"))
    return [*found, ("proofs", _proofs(run)), *_epochs(blocks), *_state(blocks)]


def _proofs(run: Run) -> str:
    if run.command:
        return "none: abprof does not see what a command's processes load"
    if not run.proofs:
        return NOT_RECORDED
    bad = [proof for proof in run.proofs if not proof.ok]
    if bad:
        first = f"{bad[0].side} {clean(bad[0].kernel)}: {clean(bad[0].reason)}"
        return f"{len(bad)} of {len(run.proofs)} failed; first: {first}"
    looks = f"{plural(sum(proof.looks for proof in run.proofs), 'look')} at {plural(len(run.proofs), 'worker')}"
    return f"each worker loaded its own side's files and its environment's only, before and after timing ({looks})"


def _epochs(every: Sequence[Block]) -> Facts:
    blocks = [block for block in every if block.rounds and block.judged]
    if not blocks:
        return [("epochs", NOT_RECORDED)]
    per_cell = Counter(block.cell for block in blocks)
    low, high = min(per_cell.values()), max(per_cell.values())
    rounds, rejected = sum(len(b.rounds) for b in blocks), sum(len(b.rejected) for b in blocks)
    why = "; ".join(dict.fromkeys(clean(b.rejected_why) for b in blocks if b.rejected_why))
    dropped = f"{rejected} dropped by a rule fixed beforehand ({why})" if rejected else "none dropped"
    return [("epochs", f"{low if low == high else f'{low} to {high}'} per cell"),
             ("rounds", f"{rounds} in all, {dropped}")]  # fmt: skip


def _state(blocks: Sequence[Block]) -> Facts:
    """Ranges of clocks, power, temperature and load while the cells were measured."""
    states = [block.state for block in blocks]
    found: Facts = []
    for label, unit, name in (
        ("SM clock", "MHz", "sm_clock_mhz"),
        ("processor clock", "MHz", "cpu_mhz"),
        ("power", "W", "power_w"),
        ("temperature", "°C", "temperature_c"),
        ("load (1 min)", "", "load1"),
    ):
        known = [value for state in states if (value := getattr(state, name)) is not None]
        if known:
            low, high = (f"{value:.{0 if unit else 2}f}" for value in (min(known), max(known)))
            found.append((label, f"{low if low == high else f'{low} to {high}'} {unit}".strip()))
    throttle = sorted({clean(reason) for state in states for reason in state.throttle})
    foreign = sorted({clean(name) for state in states for name in state.foreign})
    watched = any(state.sm_clock_mhz is not None for state in states)  # then the other two are read as well
    found += [("throttled by", ", ".join(throttle) or "nothing")] if throttle or watched else []
    return found + ([("other processes", ", ".join(foreign) or "none seen")] if foreign or watched else [])


# ---------------------------------------------------------------- method


def method(run: Run, blocks: Sequence[Block]) -> Facts:
    """How the numbers were made, and the rules that judged them."""
    settings = run.options
    measured = [block for block in blocks if block.rounds and block.judged]
    judged = [name for metric, name in sentences.JUDGED_BY.items() if metric in {block.metric for block in measured}]
    found: Facts = []
    if len(run.sides) > 1 or run.comparisons or run.within:
        found.append(("rules", f"slower and faster beyond {settings.threshold:g} %, same within {settings.margin:g} %"))
        found += [("own threshold", f"{clean(cells)}: {limit:g} %") for cells, limit in settings.thresholds or ()]
    found += [("waiver", clean(waivers.describe(one))) for one in waivers.in_force(run)]
    found += [("epochs", "one (--quick)")] if settings.quick else []
    by = " or ".join(judged) + (", by workload" if len(judged) > 1 else "")
    found.append(("judged by", by or sentences.JUDGED_BY[JUDGED_METRIC[settings.judge]]))
    if not run.command:
        wanted = settings.timer or "auto"
        found.append(("timer", f"{wanted}: {sentences.TIMERS[wanted]}"))
    found += [("allowed", "wrong outputs are timed too (--allow-wrong)")] if settings.allow_wrong else []
    first = {block.cell: block for block in reversed(measured)}.values()
    ways = Counter((block.metric, block.timer, block.calls, block.rule) for block in first)
    for (metric, timer, calls, rule), cells in ways.items():
        turn = "" if metric == REPORTED else f", {plural(calls, 'call')} a turn"
        found.append((plural(cells, "cell"), f"{metric} by {timer}{turn}: {clean(rule)}"))
    if command := run.command:
        found.append(("command", clean(shlex.join(command.argv), LONGEST)))
        found += [("built by", clean(shlex.join(command.build), LONGEST))] if command.build else []
        return [*found, *((f"with {clean(name, 80)}", clean(value)) for name, value in command.env.items())]
    conventions = ", ".join(sorted({clean(c.convention) for c in run.cells if c.convention})) or "-"
    return [*found, ("conventions", conventions), ("workloads from", clean(run.workloads_from) or NOT_RECORDED)]


# ---------------------------------------------------------------- machine, builds


def where(run: Run) -> str:
    """`NVIDIA H200`, `4 x NVIDIA H200`, `NVIDIA A100, 2 x NVIDIA H200`."""
    counted = Counter(machine.device for machine in run.machines.values()) or Counter([run.machine.device])
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items())


def machine(run: Run) -> Facts:
    """The machine and device, and the versions of what ran on it."""
    of: Machine = run.machine
    if run.machines:
        found = [("devices", clean(where(run))), ("host", clean(of.host)), *_devices(run)]
    else:
        found = [("device", clean(of.device)), ("kind", of.kind), ("host", clean(of.host))]
        found += [("uuid", clean(of.uuid))] if of.uuid else []
        found += [("processors", str(of.cpus))] if of.cpus else []
        found += [("memory", size(of.memory_bytes))] if of.memory_bytes else []
    found += [(clean(name, 80), clean(value)) for name, value in (*of.facts.items(), *run.versions.items())]
    if len({machine.device for machine in run.machines.values()}) < 2:
        known = run.ceilings or Ceilings()
        why = clean(known.why_not) or "not measured in this run"
        for unit, best, how in (("TFLOP/s", known.tflops, known.tflops_by), ("GB/s", known.gbps, known.gbps_by)):
            found.append((f"peak {unit}", f"{rate(best)}: {clean(how)}" if best else why))
    return found


def _devices(run: Run) -> Iterator[tuple[str, str]]:
    """A line for each of several devices: what it is, where, its peak rates, and what was measured there."""
    homes = {seen.cell: seen.device for seen in run.observations if seen.device}
    cells, found = Counter(homes.values()), list(run.machines.items())
    controls = Counter(homes.get(control.cell, "") for control in run.controls)
    for lease, one in found[:16]:
        best = one.ceilings or Ceilings()
        peaks = [f"{rate(value)} {unit}" for value, unit in ((best.tflops, "TFLOP/s"), (best.gbps, "GB/s")) if value]
        peak = f", at its peak {' and '.join(peaks)}" if peaks else ""
        measured = f"{plural(cells[lease], 'cell')}, {plural(controls[lease], 'control')}"
        yield clean(lease), f"{clean(one.device)} on {clean(one.host)}{peak}: {measured}"
    if len(found) > 16:
        yield "more", plural(len(found) - 16, "device")


def peak(run: Run, unit: str) -> float | None:
    """The device's best rate in this unit; None where it was not measured or devices of several models have several."""
    if len({machine.device for machine in run.machines.values()}) > 1 or not run.ceilings:
        return None
    return {"TFLOP/s": run.ceilings.tflops, "GB/s": run.ceilings.gbps}[unit]


def share_of_peak(run: Run, unit: str, value: float | None) -> str:
    """`616.0, 82 %`; the rate alone without a known peak, "" without a rate."""
    best = peak(run, unit)
    if value is None:
        return ""
    part = value / best if best else 0.0
    share = f", {100 * part:.0f} %" if part >= 0.01 else f", {100 * part:.1g} %"
    return rate(value) + (share if best else "")


def peak_sentence(run: Run, group: Group) -> str:
    """What the percentages behind rates are shares of; "" where no cell has rates."""
    if len({machine.device for machine in run.machines.values()}) > 1:
        return "Rates have no percentage: each device's peak rates stand under Machine."
    if not any(row.cell.flops or row.cell.bytes for row in group.rows):
        return ""
    known = [(peak(run, "TFLOP/s"), "TFLOP/s by matrix products"), (peak(run, "GB/s"), "GB/s by copies")]
    parts = [f"{rate(best)} {unit}" for best, unit in known if best]
    if not parts:
        return sentences.NO_CEILING
    return f"Percentages of rates are of the most that plain torch reached on this device: {' and '.join(parts)}."


def builds(run: Run) -> Facts:
    """One line per kernel package and side."""
    found: Facts = []
    apart = [(build, f" on {machine.device}") for machine in run.machines.values() for build in machine.builds]
    for build, place in [*((build, "") for build in run.builds), *apart]:
        if build.failure:
            sentence = f"failed: {clean(build.failure.reason, LONGEST)}"
        else:
            sentence = ("from the cache" if build.cached else f"built in {build.seconds:.1f} s") + f", key {build.key}"
        facts = ", ".join(f"{clean(name)} {clean(value, 120)}" for name, value in build.facts.items())
        if len(build.facts) > 4:
            facts = f"{len(build.facts)} kernels compiled, each in run.json and the log"
        log = f"; log {clean(rows.log_path(build.log))}" if build.log else ""
        sentence += (f"; {facts}" if facts else "") + log
        found.append((f"{build.side} {clean(build.kernel)}{clean(place)}", sentence))
    return found


def artefacts(run: Run) -> Table:
    """Everything that workers loaded, each once."""
    listed = {
        (f"{proof.side} {clean(proof.kernel)}", clean(a.name), clean(a.path), a.sha256): None
        for proof in run.proofs
        for a in proof.artefacts
    }
    header = ("side, package", "name", "path", "SHA-256")
    return Table(header, tuple(listed), 4, "What the workers loaded, recorded before and after timing")


# ---------------------------------------------------------------- the sides' environments

CLOCKS_AGREE = 0.1  # per cent: a smaller difference of the sides' mean clocks is none
BySide = Mapping[str, str]  # side id -> text


def differences(run: Run, blocks: Sequence[Block]) -> tuple[str, Table]:
    """What was compared, in a sentence, and a row for each thing that is not the same on all sides."""
    sides = [side.id for side in run.sides]
    found = [(what, kind, *(clean(texts.get(side, "-")) for side in sides)) for kind, what, texts in _differing(run)]
    clocks = _mean_clocks(run, blocks)
    apart = 100 * (max(clocks.values()) / min(clocks.values()) - 1) if clocks else 0.0
    if apart >= CLOCKS_AGREE:
        found.append(("mean clock of its turns", "device", *(f"{clocks[side]:.0f} MHz" for side in sides)))
    header = ("what", "kind", *sides)
    made = Table(header, tuple(found), len(header), "What differs between the sides")
    if not run.toolchains:
        return "What each side was built and run with is not recorded in this run.", made
    packages = plural(max(len(one.packages) for one in run.toolchains.values()), "installed package")
    sentence = f"{'All else is the same' if found else 'Nothing differs'} between the sides: interpreter, {packages}, "
    sentence += "compilers, variables, build commands, on one device in turns."
    if clocks and apart < CLOCKS_AGREE:
        sentence += f" The mean clocks of the sides' turns agree within {apart:.2f} %."
    return f"{sentence} Flags that a package's own build() passes stand in the build's log.", made


def _differing(run: Run) -> Iterator[tuple[str, str, BySide]]:
    """(kind, what, side -> text) of all that is recorded by side and differs."""
    yield from _unlike("toolchain", {side: chain.versions for side, chain in run.toolchains.items()})
    yield from _unlike("package", {side: chain.packages for side, chain in run.toolchains.items()})
    if len(set(run.options.python.values())) > 1:
        yield "toolchain", "python's file", run.options.python
    for kernel in dict.fromkeys(build.kernel for build in run.builds):
        made = [build for build in run.builds if build.kernel == kernel and not build.failure]
        yield from _unlike(f"variable of {clean(kernel)}", {build.side: build.variables for build in made})
        yield from _unlike("build command", {build.side: {kernel: " ".join(build.recipe)} for build in made})


def _unlike(kind: str, sides: Mapping[str, BySide]) -> Iterator[tuple[str, str, BySide]]:
    for name in dict.fromkeys(name for of in sides.values() for name in of):
        texts = {side: of[name] for side, of in sides.items() if name in of}
        if len(texts) < len(sides) or len(set(texts.values())) > 1:
            yield kind, clean(name), texts


def _mean_clocks(run: Run, blocks: Sequence[Block]) -> dict[str, float]:
    """Side -> the device's mean clock over its judged turns, MHz; {} unless turns read it on every side."""
    arms = {arm.id: arm.side for arm in run.arms if not arm.peer}
    read: dict[str, list[float]] = {side.id: [0.0, 0] for side in run.sides}  # sum, count
    for block in blocks:
        if block.judged and block.rounds:
            turns, rounds = table(block.rounds)
            counted = ~np.isin(rounds, block.rejected) & (turns[:, MHZ] > 0)
            for number, arm in enumerate(block.arms):
                if kept := read.get(arms.get(arm, "")):
                    mhz = turns[counted & (turns[:, ARM] == number), MHZ]
                    kept[0] += float(mhz.sum())
                    kept[1] += len(mhz)
    return {side: total / n for side, (total, n) in read.items()} if all(n for _, n in read.values()) else {}
