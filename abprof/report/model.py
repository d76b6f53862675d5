"""The content of a report: headline, warnings, tables and details. It is the same in every format."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from abprof.records import HOST, JUDGED_METRIC, SUSTAINED, Arm, Ceilings, Kernel, Observation, Run
from abprof.records import Block as Measured
from abprof.records.quantities import plural, signed
from abprof.report import charts, code_pages, probes, rows, sentences, tables
from abprof.report.rows import Block, Group, Line, Row, Section
from abprof.report.text import LONGEST, NOT_RECORDED, clean, duration, rate, size

DETAILS_UP_TO = 300  # rows with an entry under "Cell by cell", those that need a person first
_REASONS = 3  # causes below the headline: of the largest changes whose line was found
Facts = list[tuple[str, str]]
_CHANGES = {"device clock in the target's turns": "clock_pct", "change as the clocks read it": "read_pct",
            "change without pauses": "sustained_pct", "change with pauses": "burst_pct",
            "change of the slowest tenth of calls": "tail_pct", "change of the host's time to enqueue a call": "host_pct"}  # fmt: skip
_TIMES = {"host, to enqueue": HOST, "with pauses": "gpu_span", "without pauses": SUSTAINED, "wall clock": "wall"}
Texts = tuple[str, ...]  # a label, then one text for all sides or one per side


class Page:
    """Everything that a report of a judged run shows, in the report's order."""

    def __init__(self, run: Run, blocks: Sequence[Measured]) -> None:
        groups = rows.groups(run)
        every = sorted((line for group in groups for line in group.lines), key=lambda line: line.row.folded)
        for number, line in enumerate(every[:DETAILS_UP_TO], 1):
            line.id = f"c{number}"
        code = code_pages.pages(run)
        for line in every if code else ():
            row = line.row.comparison
            named = {name for one in (row.causes if row else None) or () if one.at == line.at for name in one.kernels}
            found = [page for page in code if any(of is row for of, _ in page.rows)]
            line.code = sorted(found, key=lambda page: not any(one.kernel in named for _, one in page.rows))
        located = ((abs(line.row.comparison.pct or 0.0), line) for line in every if line.at and line.row.comparison)
        self.reasons = [line for _, line in sorted(located, key=lambda one: -one[0])][:_REASONS]
        for line in self.reasons:
            if (row := line.row.comparison) and row.causes:
                line.changed = code_pages.changed_line(run, row, row.causes[0])
        self.run, self.headline, self.where = run, sentences.headline(run), _where(run)
        self.machine = _machine(run)
        self.alerts = [*_alerts(run)]
        self.counts = _counts(run)
        self.weaker = sentences.weaker(run)  # sentences about guarantees weaker than usual
        self.trusted = _trusted(run)
        why = [*(("guarantee", text) for text in (*self.weaker, sentences.guarantee(run))), ("trust", self.trusted)]
        self.trust = [
            *((name, text) for name, text in why if text),
            ("proofs", _proofs(run)),
            ("epochs", _epochs(blocks)),
        ]
        self.strip = charts.Strip((row.comparison for g in groups for row in g.rows if row.comparison), run.options)
        detailed = {line.row.cell.id for line in every if line.id}
        self._measured: dict[str, list[Measured]] = {}  # judged blocks with turns, by cell, of the rows with an entry
        for block in blocks:
            if block.cell in detailed and block.judged and block.rounds:
                self._measured.setdefault(block.cell, []).append(block)
        self.workloads = groups
        left_out = f"{DETAILS_UP_TO} of {len(every)} rows have a detail; cells.csv and rounds.jsonl have all numbers."
        self.caption = sentences.CHANGE_AND_TIMES if groups and groups[0].target else ""
        self.left_out = left_out if len(every) > DETAILS_UP_TO else ""
        self.probes = [*probes.sections(run)]
        self.failed = rows.all_failures(run, groups)
        self.about = [*_about(run, blocks)]  # machine, builds, environments; method and words
        self.tables = cache(tables.blocks)  # the further tables of a workload, below its rows

    def details(self, of: Group) -> Iterator[dict[str, Any]]:
        """Yield a workload's entries of the section "Cell by cell", one at a time to save memory."""
        run, traced = self.run, probes.trace_pages(self.run)
        pages = {(seen[0].cell, Arm.of(seen[0].arm).variant): path for path, seen in traced.items()}
        for line in (line for line in of.lines if line.id):
            row, sides = line.row, [line.row.of(side) for side in of.sides]
            command = shlex.join(("abprof", "rerun", f"runs/{run.id}", "--only", row.cell.id))
            arms = {side: seen.arm for side, seen in zip(("base", "target"), sides, strict=False) if seen}
            yield {
                "line": line,
                "rows": [*_numbers(run, row, sides)],
                "logs": dict.fromkeys(rows.log_path(seen.log) for seen in sides if seen and seen.log),
                "command": "" if run.workloads_from in (sentences.FORKED, sentences.HERE) else clean(command, LONGEST),
                "turns": charts.Densities(self._measured.get(row.cell.id, ()), arms),
                "tree": charts.call_tree(*sides) if line.verdict in ("slower", "faster", "slight") else None,
                "traces": pages.get((row.cell.id, row.variant), ""),  # page that opens them
            }


def _alerts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the reasons not to rely on the run, as (what is wrong, why it matters)."""
    if run.status != "complete":
        yield f"This run is {run.status}", "what is missing was not measured"
    if run.header and not run.header.trusted:
        yield "This run cannot be trusted", _trusted(run).removeprefix("not trusted: ")
    if run.options.allow_wrong:
        yield "Wrong outputs were timed too (--allow-wrong)", "the time of a wrong answer says nothing about speed"


def _about(run: Run, blocks: Sequence[Measured]) -> Iterator[Section]:
    found = [Block(facts=_machine(run))]
    if differing := _differences(run):
        found.append(Block("Toolchains that differ between the sides", facts=differing))
        if compiled := _machine_code(run):
            found.append(Block("Machine code of the kernels that they compiled", facts=compiled))
    if made := _builds(run):
        found.append(Block("Builds", facts=made))
    if run.withheld:
        found.append(Block(facts=[("variables withheld from workers", ", ".join(map(clean, run.withheld)))]))
    yield Section("Machine and builds", tuple(found))
    found = [Block(facts=_method(run, blocks))]
    if len(run.sides) > 1 or run.comparisons or run.within:
        found.append(Block("The verdicts", facts=[*sentences.VERDICTS.items()]))
    yield Section("How it was measured", tuple(found))


def folded_title(lines: Sequence[Line]) -> str:
    """Return a title for hidden rows, which counts them by verdict: `31 unchanged, 2 unsupported`."""
    verdicts = [line.verdict.replace("same", "unchanged") for line in lines]
    return ", ".join(f"{verdicts.count(verdict)} {clean(verdict)}" for verdict in dict.fromkeys(verdicts))


# ---------------------------------------------------------------- one cell in detail


def _numbers(run: Run, row: Row, sides: Sequence[Observation | None]) -> Iterator[Texts]:
    """Yield a row's numbers: a label, then one text per side, or one text if all sides agree."""
    judged = row.comparison
    for label, name in _CHANGES.items():
        if (pct := getattr(judged, name, None)) is not None:
            yield label, f"{pct:+.2f} %" if name == "clock_pct" else signed(pct, 2)
    if judged and judged.verdict == "same" and judged.epochs:  # of E processes none shows a mode with 0.05^(1/E)
        yield "processes that may differ unseen", f"at most {100 * (1 - 0.05 ** (1 / judged.epochs)):.0f} % (95 %)"
    known = [dict(_of_arm(run, row, seen)) if seen else {} for seen in sides]
    for label in dict.fromkeys(label for of in known for label in of):
        texts = [of.get(label) or NOT_RECORDED for of in known]
        yield (clean(label, 42), *(texts[:1] if len(set(texts)) == 1 else texts))


def _of_arm(run: Run, row: Row, seen: Observation) -> Iterator[tuple[str, str]]:
    """Yield (label, text) for everything that was recorded of one arm in one cell."""
    ns, timed, check, parts = row.ns(seen), rows.metric(seen, row.metric), seen.check, rows.Breakdown(row.cell, seen)
    alike = run.ceilings and len({machine.device for machine in run.machines.values()}) < 2
    best_of = {"TFLOP/s": run.ceilings.tflops, "GB/s": run.ceilings.gbps} if alike and run.ceilings else {}
    if ns:
        yield "time", f"{rows.time_text(seen, row.metric)} ({rows.own_interval(seen, row.metric)})"
    yield from ((label, clean(text)) for label, text in (("why", seen.reason), ("device", seen.device)) if text)
    if timed:
        yield "timer", clean(timed.protocol, 100)
    for unit, of in (("TFLOP/s", rows.tflops), ("GB/s", rows.gbps)):
        if reached := of(row.cell, ns):
            best = best_of.get(unit)
            share = f", {100 * reached / best:.3g} %" if best else ""
            yield f"{unit} of {rate(best)}" if best else unit, f"{rate(reached)}{share}"
    times = {label: rows.value(seen, name) for label, name in _TIMES.items() if name != row.metric}
    times |= {f"– {name}": time for name, time in parts.all.items()}
    times |= {"– residual": parts.residual, "profiled": parts.total}
    yield from ((label, duration(time)) for label, time in times.items() if time is not None)
    if memory := rows.value(seen, "peak_mem_bytes"):
        yield "memory", size(memory)
    if check and check.compared and check.max_abs is not None:
        other = "" if check.base_max_abs is None else f"; {check.base_max_abs:.2g} from base’s output"
        yield "error", f"{check.max_abs:.2g}{other}"
    elif check and not check.compared:
        yield "error", "not known: nothing was compared"
    yield from ((name, sentences.fact(known)) for name, known in seen.facts.items())


# ---------------------------------------------------------------- facts: trust, method, machine, builds


def _counts(run: Run) -> list[tuple[str, int]]:
    """Return (verdict, number of rows) for each verdict that occurs, and for unsupported and missing rows."""
    found = run.header.counts if run.header else {}
    return [(name, found[name]) for name in (*sentences.VERDICTS, "fixed", "unsupported", "missing") if found.get(name)]


def _trusted(run: Run) -> str:
    """Say whether the run can be trusted, and why. Return "" for a run of one side that has no problem."""
    if any(one.falsifies for one in run.touched):
        return "not trusted: files that the run rests on changed while it ran (see the warnings)"
    counted = run.header.counts if run.header else {}
    tested, inside, outside = (counted.get(key, 0) for key in ("controls", "controls_inside", "controls_outside"))
    sentence = f"{inside} of {plural(tested, 'control')} within {run.options.margin:g} %" if tested else ""
    noisy = tested - inside - outside
    for count, what in ((outside or (inside and noisy and "none"), "beyond"), (noisy, "too noisy to tell")):
        sentence += f", {count} {what}" if count else ""
    sentence += f" ({counted.get('controls_second_build') or 'none'} with a second build)" if tested else ""
    if run.header and not run.header.trusted:
        return f"not trusted: {sentence or 'a control failed'}; any cell may be off by as much"
    if len(run.sides) < 2:
        return ""
    proven = run.proofs and all(proof.ok for proof in run.proofs)
    proofs = "; each worker loaded its own side's files" if proven else ""
    if not sentence:
        return f"no control {'has an interval' if run.controls else 'was measured'}{proofs}"
    return f"{'trusted' if inside else 'not confirmed'}: {sentence}{proofs}"


def _proofs(run: Run) -> str:
    if run.command:
        return "none: abprof does not see what a command's processes load"
    if not run.proofs:
        return NOT_RECORDED
    if bad := [proof for proof in run.proofs if not proof.ok]:
        first = f"{bad[0].side} {clean(bad[0].kernel)}: {clean(bad[0].reason)}"
        return f"{len(bad)} of {len(run.proofs)} failed; first: {first}"
    looks = f"{plural(sum(proof.looks for proof in run.proofs), 'check')} of {plural(len(run.proofs), 'worker')}"
    looks += f", {forked} of them forked" if (forked := sum(proof.forked for proof in run.proofs)) else ""
    return f"each worker loaded its own side's files and its environment's only, after timing ({looks})"


def _epochs(every: Sequence[Measured]) -> str:
    blocks = [block for block in every if block.rounds and block.judged]
    if not blocks:
        return NOT_RECORDED
    per_cell = Counter(block.cell for block in blocks).values()
    span = " to ".join(dict.fromkeys((str(min(per_cell)), str(max(per_cell)))))
    rounds, rejected = sum(len(b.rounds) for b in blocks), sum(len(b.rejected) for b in blocks)
    why = "; ".join(dict.fromkeys(clean(b.rejected_why) for b in blocks if b.rejected_why))
    dropped = f"{rejected} discarded{f' ({why})' if why else ''}"
    return f"{span} per cell; {rounds} rounds, {dropped}"


def _method(run: Run, blocks: Sequence[Measured]) -> Facts:
    settings = run.options
    measured = {row.metric for row in run.comparisons if row.pct is not None}
    measured |= {block.metric for block in blocks if block.rounds and block.judged and not measured}
    found: Facts = []
    if len(run.sides) > 1 or run.comparisons or run.within:
        found.append(("rules", f"slower and faster beyond {settings.threshold:g} %, same within {settings.margin:g} %"))
        found += [("own threshold", f"{clean(cells)}: {limit:g} %") for cells, limit in settings.thresholds or ()]
    found += [("waiver", clean(one.line)) for one in run.in_force]
    found += [("epochs", "one (--quick)")] if settings.quick else []
    judged = [name for metric, name in sentences.JUDGED_BY.items() if metric in measured]
    found.append(("judged by", " or ".join(judged) or sentences.JUDGED_BY[JUDGED_METRIC[settings.judge]]))
    if command := run.command:
        found.append(("command", clean(shlex.join(command.argv), LONGEST)))
        found += [("built by", clean(shlex.join(command.build), LONGEST))] if command.build else []
        return [*found, *((f"with {clean(name, 80)}", clean(value)) for name, value in command.env.items())]
    conventions = ", ".join(sorted({clean(c.convention) for c in run.cells if c.convention}))
    found += [("conventions", conventions)] if conventions else []
    return [*found, ("workloads from", clean(run.workloads_from) or NOT_RECORDED)]


def _where(run: Run) -> str:
    """Return the names and numbers of the measured devices, like `NVIDIA A100, 2 x NVIDIA H200`."""
    counted = Counter(machine.device for machine in run.machines.values()) or Counter([run.machine.device])
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items())


def _machine(run: Run) -> Facts:
    of = run.machine
    found = [("device", clean(_where(run))), ("kind", of.kind), ("host", clean(of.host)), ("uuid", clean(of.uuid)),
             ("processors", str(of.cpus or "")), ("memory", size(of.memory_bytes) if of.memory_bytes else "")]  # fmt: skip
    found += [(clean(name, 80), clean(value)) for name, value in (*of.facts.items(), *run.versions.items())]
    cells = Counter(seen.device for seen in {seen.cell: seen for seen in run.observations if seen.device}.values())
    for lease, one in run.machines.items():
        found.append((clean(lease), f"{clean(one.device)} on {clean(one.host)}: {plural(cells[lease], 'cell')}"))
    known = run.ceilings or Ceilings(why_not="not measured in this run")
    for unit, best, how in (("TFLOP/s", known.tflops, known.tflops_by), ("GB/s", known.gbps, known.gbps_by)):
        found.append((f"peak {unit}", f"{rate(best)}: {clean(how)}" if best else clean(known.why_not)))
    return [(label, text) for label, text in found if text]


def _builds(run: Run) -> Facts:
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
        log = f"log {clean(rows.log_path(build.log))}" if build.log else ""
        label = f"{build.side} {clean(build.kernel)}{clean(place)}"
        found.append((label, "; ".join(filter(None, (sentence, facts, log)))))
    return found


def _differences(run: Run) -> Facts:
    """Return the versions of interpreters, compilers and packages that differ between the sides."""
    of = {side: {**chain.versions, **chain.packages} for side, chain in run.toolchains.items()}
    if run.command:  # nothing is known of its environment but what --with installed
        of = {side.id: dict(pin.split("==", 1) for pin in side.requirements if "==" in pin) for side in run.sides}
    found: Facts = []
    for name in dict.fromkeys(name for known in of.values() for name in known):
        texts = [f"{side} {clean(known.get(name, '-'))}" for side, known in of.items()]
        if len({known.get(name) for known in of.values()}) > 1:
            found.append((clean(name), "; ".join(texts)))
    return found


def _machine_code(run: Run) -> Facts:
    """Return, for each kernel that Triton compiled once on base and once on a target, what differs in its machine code."""
    known: dict[tuple[str, str, str], list[Kernel]] = {}
    for one in run.kernels:
        if one.kind == "triton" and one.code:
            known.setdefault((one.package, one.name, repr(sorted(one.constants.items()))), []).append(one)
    found: Facts = []
    for (package, name, _), kernels in known.items():
        of = {kernel.side: kernel for kernel in kernels}
        if run.sides[0].id not in of or len(of) != len(kernels) or len(of) == 1:
            continue
        base = of.pop(run.sides[0].id)
        texts = [f"{side} {clean(_changes(base, other), LONGEST)}" for side, other in of.items()]
        found.append((f"{clean(package)} {clean(name)}", "; ".join(texts)))
    return found


def _changes(base: Kernel, other: Kernel) -> str:
    if base.code == other.code:
        return "the same machine code"
    counts = [{**(one.classes or {}), "registers": one.registers, "shared bytes": one.shared_bytes, "stack bytes": one.stack_bytes}
              for one in (base, other)]  # fmt: skip
    moved = [f"{name} {now} -> {counts[1].get(name)}" for name, now in counts[0].items() if now != counts[1].get(name)]
    return f"other machine code: {', '.join(moved) or 'as many instructions of each class'}"
