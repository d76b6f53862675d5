"""Labelled lines about a run: why it may be trusted, how it was measured, on what machine, and with which builds."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from abprof.records import JUDGED_METRIC, Block, Ceilings, Machine, Run
from abprof.records.quantities import plural
from abprof.report import sentences
from abprof.report.rows import log_path
from abprof.report.text import LONGEST, NOT_RECORDED, clean, interval, rate, size
from abprof.verdict import waivers

Facts = list[tuple[str, str]]


def counts(run: Run) -> list[tuple[str, int]]:
    """The verdicts and how many rows have each, with unsupported and missing apart."""
    found = run.header.counts if run.header else {}
    return [(name, found[name]) for name in (*sentences.VERDICTS, "unsupported", "missing") if found.get(name)]


# ---------------------------------------------------------------- trust


def trusted(run: Run) -> str:
    """Whether the run may be trusted and why, in one line; "" for one side without controls."""
    if any(one.falsifies for one in run.touched):
        return "not trusted: files that the run rests on changed while it ran (see the warnings)"
    counted = run.header.counts if run.header else {}
    tested, inside, outside = (counted.get(key, 0) for key in ("controls", "controls_inside", "controls_outside"))
    sentence = f"{inside} of {plural(tested, 'control')} within {run.options.margin:g} %" if tested else ""
    for count, what in ((outside, "beyond it"), (tested - inside - outside, "undecided")):
        sentence += f", {count} {what}" if count else ""
    if run.header and not run.header.trusted:
        return f"not trusted: {sentence or 'a control failed'}; any cell may be off by as much"
    if len(run.sides) < 2:
        return ""
    proven = run.proofs and all(proof.ok for proof in run.proofs)
    proofs = "; each worker loaded its own side's files" if proven else ""
    if not sentence:
        return f"no control was measured{proofs}"
    return f"{'trusted' if inside else 'not contradicted'}: {sentence}{proofs}"


def trust(run: Run, blocks: Sequence[Block]) -> Facts:
    """Why this run may be believed, or may not."""
    found: Facts = [("guarantee", text) for text in sentences.weaker(run)]
    if sentence := trusted(run):
        found.append(("trust", sentence))
    known = [(c.low_pct, c.high_pct) for c in run.controls if c.low_pct is not None and c.high_pct is not None]
    if known:
        span = interval(min(low for low, _ in known), max(high for _, high in known), 2)
        found.append(("controls", f"their intervals lie within {span}"))
    return [*found, ("proofs", _proofs(run)), ("epochs", _epochs(blocks))]


def _proofs(run: Run) -> str:
    if run.command:
        return "none: abprof does not see what a command's processes load"
    if not run.proofs:
        return NOT_RECORDED
    if bad := [proof for proof in run.proofs if not proof.ok]:
        first = f"{bad[0].side} {clean(bad[0].kernel)}: {clean(bad[0].reason)}"
        return f"{len(bad)} of {len(run.proofs)} failed; first: {first}"
    looks = f"{plural(sum(proof.looks for proof in run.proofs), 'look')} at {plural(len(run.proofs), 'worker')}"
    return f"each worker loaded its own side's files and its environment's only, before and after timing ({looks})"


def _epochs(every: Sequence[Block]) -> str:
    blocks = [block for block in every if block.rounds and block.judged]
    if not blocks:
        return NOT_RECORDED
    per_cell = Counter(block.cell for block in blocks).values()
    span = " to ".join(dict.fromkeys((str(min(per_cell)), str(max(per_cell)))))
    rounds, rejected = sum(len(b.rounds) for b in blocks), sum(len(b.rejected) for b in blocks)
    why = "; ".join(dict.fromkeys(clean(b.rejected_why) for b in blocks if b.rejected_why))
    return f"{span} per cell; {rounds} rounds, {rejected} dropped by a rule fixed beforehand" + (
        f" ({why})" if why else ""
    )


# ---------------------------------------------------------------- method, machine, builds


def method(run: Run, blocks: Sequence[Block]) -> Facts:
    """How the numbers were made, and the rules that judged them."""
    settings = run.options
    measured = {block.metric for block in blocks if block.rounds and block.judged}
    found: Facts = []
    if len(run.sides) > 1 or run.comparisons or run.within:
        found.append(("rules", f"slower and faster beyond {settings.threshold:g} %, same within {settings.margin:g} %"))
        found += [("own threshold", f"{clean(cells)}: {limit:g} %") for cells, limit in settings.thresholds or ()]
    found += [("waiver", clean(waivers.describe(one))) for one in waivers.in_force(run)]
    found += [("epochs", "one (--quick)")] if settings.quick else []
    judged = [name for metric, name in sentences.JUDGED_BY.items() if metric in measured]
    found.append(("judged by", " or ".join(judged) or sentences.JUDGED_BY[JUDGED_METRIC[settings.judge]]))
    if command := run.command:
        found.append(("command", clean(shlex.join(command.argv), LONGEST)))
        found += [("built by", clean(shlex.join(command.build), LONGEST))] if command.build else []
        return [*found, *((f"with {clean(name, 80)}", clean(value)) for name, value in command.env.items())]
    found.append(("timer", sentences.TIMERS[settings.timer or "auto"]))
    conventions = ", ".join(sorted({clean(c.convention) for c in run.cells if c.convention}))
    found += [("conventions", conventions)] if conventions else []
    return [*found, ("workloads from", clean(run.workloads_from) or NOT_RECORDED)]


def where(run: Run) -> str:
    """`NVIDIA H200`, `4 x NVIDIA H200`, `NVIDIA A100, 2 x NVIDIA H200`."""
    counted = Counter(machine.device for machine in run.machines.values()) or Counter([run.machine.device])
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items())


def machine(run: Run) -> Facts:
    """The machine and its devices, their peak rates, and the versions of what ran."""
    of: Machine = run.machine
    found = [("device", clean(where(run))), ("kind", of.kind), ("host", clean(of.host)), ("uuid", clean(of.uuid)),
             ("processors", str(of.cpus or "")), ("memory", size(of.memory_bytes) if of.memory_bytes else "")]  # fmt: skip
    found += [(clean(name, 80), clean(value)) for name, value in (*of.facts.items(), *run.versions.items())]
    cells = Counter(seen.device for seen in {seen.cell: seen for seen in run.observations if seen.device}.values())
    for lease, one in run.machines.items():
        found.append((clean(lease), f"{clean(one.device)} on {clean(one.host)}: {plural(cells[lease], 'cell')}"))
    if not _several_models(run):
        known = run.ceilings or Ceilings()
        why = clean(known.why_not) or "not measured in this run"
        for unit, best, how in (("TFLOP/s", known.tflops, known.tflops_by), ("GB/s", known.gbps, known.gbps_by)):
            found.append((f"peak {unit}", f"{rate(best)}: {clean(how)}" if best else why))
    return [(label, text) for label, text in found if text]


def _several_models(run: Run) -> bool:
    return len({machine.device for machine in run.machines.values()}) > 1


def peak(run: Run, unit: str) -> float | None:
    """The device's best rate in this unit; None where it was not measured or devices of several models have several."""
    if _several_models(run) or not run.ceilings:
        return None
    return {"TFLOP/s": run.ceilings.tflops, "GB/s": run.ceilings.gbps}[unit]


def share_of_peak(run: Run, unit: str, value: float | None) -> str:
    """`616.0, 82 %`; the rate alone without a known peak, "" without a rate."""
    best = peak(run, unit)
    if value is None or not best:
        return "" if value is None else rate(value)
    part = value / best
    return rate(value) + (f", {100 * part:.0f} %" if part >= 0.01 else f", {100 * part:.1g} %")


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
        log = f"log {clean(log_path(build.log))}" if build.log else ""
        label = f"{build.side} {clean(build.kernel)}{clean(place)}"
        found.append((label, "; ".join(filter(None, (sentence, facts, log)))))
    return found


def differences(run: Run) -> Facts:
    """The interpreters, compilers and packages that are not the same on all sides."""
    of = {side: {**chain.versions, **chain.packages} for side, chain in run.toolchains.items()}
    found: Facts = []
    for name in dict.fromkeys(name for known in of.values() for name in known):
        texts = [f"{side} {clean(known.get(name, '-'))}" for side, known in of.items()]
        if len({known.get(name) for known in of.values()}) > 1:
            found.append((clean(name), "; ".join(texts)))
    return found
