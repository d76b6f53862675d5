"""What stands behind a verdict, as labelled lines: controls, epochs, machine state, proofs, how it was measured.

Each function returns (label, text) pairs that every page shows in its own way.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from abprof.records import JUDGED_METRIC, REPORTED, Block, Command, Comparison, Machine, Run
from abprof.report import ceilings, places, timing, words
from abprof.report.failures import LONGEST, log_path
from abprof.verdict import waivers
from abprof.verdict.guarantees import weaker
from abprof.verdict.headline import inside_margin, outside_margin
from abprof.verdict.observations import busy_share, check_share

Facts = list[tuple[str, str]]

GLOSSARY: Facts = [
    ("base, target", "the two sides: a ref resolved once to a commit, or the working tree as it was"),
    ("cell", "one point of a workload's matrix, measured on every arm"),
    ("arm", "what takes a turn: a side, a variant of its kernel, a library implementation (peer), or a control"),
    ("round", "one turn of every arm of a cell, in random order"),
    ("epoch", "fresh worker processes: the statistical unit. Rounds of one epoch are not independent evidence"),
    ("change of time", "from turns that were neighbours, so it need not be the ratio of the two times beside it"),
    ("interval", "a repeated 95 % confidence interval over epochs, valid at every planned look together"),
    ("threshold", "how large a change must certainly be to be called slower or faster"),
    ("margin", "how small a change must certainly be to be called the same"),
    ("control", "the base measured against itself in a worker of its own: what is seen when nothing differs"),
    ("residual", "the profiled pass's total time minus its recorded phases"),
]  # fmt: skip


_CLOCKS = {**timing.CLOCKS, REPORTED: "what the command says of itself"}


def trust(run: Run, blocks: Sequence[Block]) -> Facts:
    """Why this run may be believed, or may not."""
    header = run.header
    found: Facts = [("guarantee", text) for text in weaker(run)]
    if header and len(run.sides) > 1:
        found.append(("trusted", _trusted(run)))
    found += controls(run) or [("controls", _no_controls(run))]
    found += [("proofs", _proofs(run)), *_epochs(blocks), *_state(blocks)]
    return found


def controls(run: Run) -> Facts:
    """What the same code against itself showed, and what that says of false alarms; nothing without controls."""
    known, tested = _known(run), _tested(run)
    if not tested:
        return []
    inside, out = _decided(run)
    undecided = tested - inside - out
    text = f"{inside} of {tested} inside the margin of {run.options.margin:g} %, {out} beyond it"
    text += f", {undecided} undecided (the interval reaches across it)" if undecided else ""
    if known:
        low, high = min(c.low_pct or 0.0 for c in known), max(c.high_pct or 0.0 for c in known)
        text += f"; their intervals lie within {words.interval(low, high, 2)}"
    less = len(run.controls) - len(known)
    found = [("controls", text + (f"; {less} more without an interval" if less else ""))]
    found += [("controls by device", by_device)] if (by_device := _by_device(run)) else []
    if run.header and run.header.false_alarm_bound is not None:
        decided = words.plural(inside + out, "control")
        bound = f"at most {100 * run.header.false_alarm_bound:.0f} % of cells (95 % upper bound, from {decided} that decided)"
        found.append(("false alarms", bound))
    return found


def _by_device(run: Run) -> str:
    """What every device's own controls say, in a run on several: one that is bad is not hidden by the others."""
    homes = {observation.cell: observation.device for observation in run.observations}
    said = []
    for lease in run.machines:
        mine = [one for one in run.controls if homes.get(one.cell) == lease]
        inside = sum(inside_margin(run, one) for one in mine)
        beyond = sum(outside_margin(run, one) for one in mine)
        told = f"{inside} of {len(mine)} inside, {beyond} beyond" if mine else "none"
        said.append(f"{words.clean(lease)}: {told}")
    return "; ".join(said)


def method(run: Run, blocks: Sequence[Block]) -> Facts:
    """How the numbers were made, and the rules that judged them."""
    settings = run.options
    measured = _judged(blocks)
    ways = Counter((block.metric, block.timer, block.calls, block.rule) for block in _first_blocks(measured))
    rules = [
        ("rules", f"slower and faster beyond {settings.threshold:g} %, same within {settings.margin:g} %"),
        *(("own threshold", f"{words.clean(cells)}: {limit:g} %") for cells, limit in settings.thresholds or ()),
    ]
    rules += [("waiver", words.clean(waivers.said(one))) for one in waivers.in_force(run)]
    found: Facts = [
        *(rules if len(run.sides) > 1 or run.comparisons or run.within else []),
        *_families(run),
        ("protocol", _protocol(run)),
        ("judged by", _judged_by(measured) or _CLOCKS[JUDGED_METRIC[settings.judge]]),
        *timing.facts(run, blocks),
        *(("allowed", "wrong outputs are timed too (--allow-wrong)") for _ in range(settings.allow_wrong)),
    ]
    for (metric, timer, calls, rule), cells in ways.items():
        by = f"{metric} by {timer}" + ("" if metric == REPORTED else f", {words.plural(calls, 'call')} a turn")
        text = f"{by}: {words.clean(rule)}"
        found.append((words.plural(cells, "cell"), text))
    if run.command:
        return [*found, *_command(run.command)]
    found.append(
        ("conventions", ", ".join(sorted({words.clean(c.convention) for c in run.cells if c.convention})) or "-")
    )
    found.append(("workloads from", words.clean(run.workloads_from) or words.NOT_RECORDED))
    return found


def machine(run: Run) -> Facts:
    """The machine and device, and the versions of what ran on it."""
    of: Machine = run.machine
    if run.machines:
        shown = [("devices", words.clean(places.said(run))), ("host", words.clean(of.host)), *places.facts(run)]
        return [*shown, *_foreign(of.facts), *_foreign(run.versions), *ceilings.facts(run)]
    found: Facts = [("device", words.clean(of.device)), ("kind", of.kind), ("host", words.clean(of.host))]
    found += [("uuid", words.clean(of.uuid))] if of.uuid else []
    found += [("processors", str(of.cpus))] if of.cpus else []
    found += [("memory", words.size(of.memory_bytes))] if of.memory_bytes else []
    return [*found, *_foreign(of.facts), *_foreign(run.versions), *ceilings.facts(run)]


def environment(run: Run) -> Facts:
    """Environment variables the workers had, and the names of those kept from them."""
    withheld = ", ".join(words.clean(name) for name in run.withheld)
    return [*_foreign(run.environment), *([("withheld", withheld)] if withheld else [])]


def _protocol(run: Run) -> str:
    own = "the command's own" if run.command else run.options.protocol
    return own + (", one epoch (--quick)" if run.options.quick else "")


def _command(command: Command) -> Facts:
    """What was run on each side, as it was typed or configured."""
    found = [("command", words.clean(shlex.join(command.argv), LONGEST))]
    found += [("built by", words.clean(shlex.join(command.build), LONGEST))] if command.build else []
    return [*found, *((f"with {words.clean(name, 80)}", words.clean(value)) for name, value in command.env.items())]


_FEW = 4  # compiled kernels of a build that are named in its line


def builds(run: Run) -> Facts:
    """One line per kernel package and side."""
    found: Facts = []
    apart = [(build, f" on {machine.device}") for machine in run.machines.values() for build in machine.builds]
    for build, where in [*((build, "") for build in run.builds), *apart]:
        if build.failure:
            text = f"failed: {words.clean(build.failure.reason, LONGEST)}"
        else:
            text = ("from the cache" if build.cached else f"built in {build.seconds:.1f} s") + f", key {build.key}"
        facts = ", ".join(f"{words.clean(k)} {words.clean(v, 120)}" for k, v in build.facts.items())
        if len(build.facts) > _FEW:
            facts = f"{len(build.facts)} kernels compiled, each in run.json and the log"
        log = f"; log {words.clean(log_path(build.log))}" if build.log else ""
        found.append(
            (
                f"{build.side} {words.clean(build.kernel)}{words.clean(where)}",
                text + (f"; {facts}" if facts else "") + log,
            )
        )
    return found


def artefacts(run: Run) -> list[tuple[str, str, str, str]]:
    """(side and package, name, path, SHA-256) of everything loaded, each once."""
    listed = {
        (f"{proof.side} {words.clean(proof.kernel)}", words.clean(a.name), words.clean(a.path), a.sha256): None
        for proof in run.proofs
        for a in proof.artefacts
    }
    return list(listed)


def counts(run: Run) -> list[tuple[str, int]]:
    """The verdicts and how many rows have each, with unsupported and missing apart."""
    if run.header is None:
        return []
    return [(name, run.header.counts[name]) for name in (*words.VERDICTS, "unsupported", "missing")
            if run.header.counts.get(name)]  # fmt: skip


def _trusted(run: Run) -> str:
    if any(one.falsifies for one in run.touched):
        return "no: files that it rests on changed while it ran (see the warnings)"
    if run.header and not run.header.trusted:
        return "no: a control moved beyond the margin, so may any cell"
    if not _tested(run):
        return "nothing speaks against it, but no control was measured that could"
    return "yes" if any(_decided(run)) else "nothing speaks against it, but no control decided"


def _known(run: Run) -> list[Comparison]:
    return [c for c in run.controls if c.low_pct is not None and c.high_pct is not None]


def _tested(run: Run) -> int:
    """How many controls have an interval."""
    counted = run.header.counts if run.header else {}
    return counted.get("controls", len(_known(run)))


def _decided(run: Run) -> tuple[int, int]:
    """How many controls lie inside the margin, and how many beyond it; the others straddle it."""
    counted = run.header.counts if run.header else {}
    inside = counted.get("controls_inside", sum(inside_margin(run, control) for control in run.controls))
    return inside, counted.get("controls_outside", sum(outside_margin(run, control) for control in run.controls))


def _no_controls(run: Run) -> str:
    return "none in this run" if len(run.sides) > 1 else "none: one branch alone has no other side"


def _families(run: Run) -> Facts:
    """What is judged beside base against target, and how many of its changes are left when chance is controlled."""
    peers = [one for one in run.comparisons if one.with_peer]
    found: Facts = []
    for family, rows in (("with peers", peers), ("between variants", run.within)):
        changed = [one for one in rows if one.verdict in ("faster", "slower")]
        doubtful = sum(map(words.chance, changed))
        if rows:
            text = f"{words.plural(len(rows), 'comparison')} by the same rules, {len(changed)} faster or slower"
            found.append((family, f"{text}, of which {doubtful} may be chance (control at 5 % over these alone)"))
    return found


def _proofs(run: Run) -> str:
    if run.command:
        return "none can be given: what a command's processes load is not seen"
    if not run.proofs:
        return words.NOT_RECORDED
    bad = [proof for proof in run.proofs if not proof.ok]
    if not bad:
        looks = words.plural(sum(proof.looks for proof in run.proofs), "look")
        workers = words.plural(len(run.proofs), "worker")
        return (
            "every worker had loaded its own side's files and its environment's, and no others, before and after timing "
            f"({looks} at {workers}, epoch by epoch)"
        )
    first = f"{bad[0].side} {words.clean(bad[0].kernel)}: {words.clean(bad[0].reason)}"
    return f"{len(bad)} of {len(run.proofs)} failed; first: {first}"


def _epochs(every: Sequence[Block]) -> Facts:
    blocks = _judged(every)
    if not blocks:
        return [("epochs", words.NOT_RECORDED)]
    per_cell = Counter(block.cell for block in blocks)
    low, high = min(per_cell.values()), max(per_cell.values())
    rounds, rejected = sum(len(b.rounds) for b in blocks), sum(len(b.rejected) for b in blocks)
    why = "; ".join(dict.fromkeys(words.clean(b.rejected_why) for b in blocks if b.rejected_why))
    dropped = f"{rejected} dropped by a rule fixed beforehand ({why})" if rejected else "none dropped"
    span = f"{low}" if low == high else f"{low} to {high}"
    busy, checking = busy_share(blocks), check_share(blocks)
    found = [("epochs", f"{span} per cell"), ("rounds", f"{rounds} in all, {dropped}")]
    found += [("busy", f"{100 * busy:.0f} % of the measuring was spent inside turns")] if busy else []
    return found + ([("checks", f"{100 * checking:.2g} % of it on checking outputs")] if busy and checking else [])


def _state(blocks: Sequence[Block]) -> Facts:
    """Ranges of what the machine did while the clock ran."""
    states = [block.state for block in blocks]
    found: Facts = []
    for label, unit, values in (
        ("SM clock", "MHz", [s.sm_clock_mhz for s in states]),
        ("processor clock", "MHz", [s.cpu_mhz for s in states]),
        ("power", "W", [s.power_w for s in states]),
        ("temperature", "°C", [s.temperature_c for s in states]),
        ("load (1 min)", "", [s.load1 for s in states]),
    ):
        known = [value for value in values if value is not None]
        if known:
            low, high = (f"{value:.{0 if unit else 2}f}" for value in (min(known), max(known)))
            found.append((label, f"{low if low == high else f'{low} to {high}'} {unit}".strip()))
    throttle = sorted({words.clean(reason) for state in states for reason in state.throttle})
    foreign = sorted({words.clean(name) for state in states for name in state.foreign})
    watched = any(state.sm_clock_mhz is not None for state in states)  # then the device tells the other two as well
    found += [("throttled by", ", ".join(throttle) or "nothing")] if throttle or watched else []
    return found + ([("other processes", ", ".join(foreign) or "none seen")] if foreign or watched else [])


def _judged(blocks: Iterable[Block]) -> list[Block]:
    """Blocks that verdicts rest on. An arm that could not run leaves one without rounds, and others' ways of timing
    are shown, never judged."""
    return [block for block in blocks if block.rounds and block.judged]


def _judged_by(measured: Iterable[Block]) -> str:
    metrics = {block.metric for block in measured}
    names = [name for metric, name in _CLOCKS.items() if metric in metrics]
    return " or ".join(names) + (", by workload" if len(names) > 1 else "")


def _first_blocks(blocks: Iterable[Block]) -> Iterable[Block]:
    return {block.cell: block for block in reversed(list(blocks))}.values()


def _foreign(pairs: dict[str, str]) -> Facts:
    return [(words.clean(name, 80), words.clean(value)) for name, value in pairs.items()]
