"""From a finished run to the notice that is posted of it: cut to size here, so that its reader need not trust it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from abprof import __version__
from abprof.extras.bot import notice as made
from abprof.extras.bot.notice import Counts, Notice, Ref, Row, Tally, Trouble, Warned
from abprof.records import Comparison, Run, Side
from abprof.records.errors import AbprofError
from abprof.report import facts, failures, numbers, places, view, words
from abprof.store.runfolder import LOGS
from abprof.verdict import waivers
from abprof.verdict.guarantees import lacking
from abprof.verdict.warnings import undescribed, workloads_own

NAME, TEXT = 200, 600  # characters
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BEFORE = 3  # lines of a log that are shown above its first error


def notice(run: Run, folder: Path | None = None) -> Notice:
    """The notice of a run; with its folder, failed builds bring the first lines of their logs.

    Raises AbprofError for a run of one branch or without times: there is nothing that a reviewer could be told to act on.
    """
    if not run.options.timed:
        what = "nothing was timed in this run, so it has no verdict to post"
        raise AbprofError(what, where=run.id, advice="its report.md has the counters")
    if len(run.sides) < 2:
        raise AbprofError("a run of one branch has no verdict to post", where=run.id, advice="compare two refs")
    groups = view.groups(run)
    rows = sorted(_rows(run, groups), key=_weight)
    troubles = list(_troubles(run, groups, folder))
    counts = run.header.counts if run.header else {}
    lack, names = lacking(run)
    return Notice(
        schema=1,
        abprof=__version__,
        run=words.clean(run.id, NAME),
        status=run.status,
        began=run.began,
        base=_ref(run.sides[0]),
        targets=tuple(map(_ref, run.sides[1:10])),
        measured=bool(run.header) and any(c.pct is not None or c.verdict != "unclear" for c in _targets(run)),
        same_code=len({side.tree for side in run.sides}) == 1,
        counts=Counts(
            **{name: min(count, 10**6) for name, count in counts.items() if name in Counts.__struct_fields__}
        ),
        threshold=run.options.threshold,
        margin=run.options.margin,
        fail_on=tuple(run.options.fail_on),  # type: ignore[arg-type] # checked by the reader of the notice
        false_alarm_bound=run.header.false_alarm_bound if run.header else None,
        device=words.clean(places.said(run), NAME),
        lacking=lack,
        lacking_in=tuple(words.clean(name, NAME) for name in names[: made.MOST_ROWS]),
        tallies=tuple(_tallies(run)),
        rows=tuple(rows[: made.MOST_ROWS]),
        rows_left_out=max(0, len(rows) - made.MOST_ROWS),
        troubles=tuple(troubles[: made.MOST_FAILURES]),
        troubles_left_out=max(0, len(troubles) - made.MOST_FAILURES),
        warnings=tuple(_warnings(run))[:20],
        notes=tuple(words.clean(note, TEXT) for note in (*run.notes, *_waived(run)))[:20],
        environment=tuple((words.clean(k, NAME), words.clean(v, TEXT)) for k, v in facts.machine(run))[
            : made.MOST_FACTS
        ],
        command=_command(run),
    )


def _ref(side: Side) -> Ref:
    return Ref(
        id=words.clean(side.id, NAME),
        label=words.clean(side.label, NAME),
        commit=side.commit,
        uncommitted=side.kind == "worktree",
        subject=words.clean(side.subject, NAME),
    )


def _targets(run: Run) -> list[Comparison]:
    """The comparisons that the header counts: of sides, not with peers."""
    return [one for one in run.comparisons if not one.with_peer]


def _tallies(run: Run) -> Iterator[Tally]:
    for verdict in words.VERDICTS:
        found = [one for one in _targets(run) if one.verdict == verdict]
        changes = [one.pct for one in found if one.pct is not None]
        if found:
            low, high = (min(changes), max(changes)) if changes else (None, None)
            yield Tally(verdict=verdict, rows=len(found), lowest_pct=low, highest_pct=high)


def _rows(run: Run, groups: tuple[view.Group, ...]) -> Iterator[Row]:
    """What is not the same, and was not left out on both sides."""
    for group in groups:
        for row in group.rows:
            if row.comparison and row.verdict != "same" and not row.apart:
                yield _row(run, group, row)


def _row(run: Run, group: view.Group, row: view.Row) -> Row:
    judged = row.comparison
    assert judged
    case = failures.case_name(group, row.cell, row.variant)
    several = f" against {group.target.label}" if group.target and len(run.sides) > 2 else ""
    failed = failures.failing(row)
    causes = [cause.text for cause in judged.causes] if judged.causes is not None else None
    if failed and not causes:
        causes = [failed[-1].reason] if failed[-1].reason else []
    return Row(
        case=words.clean(case + several, NAME),
        to=words.clean(judged.to, NAME),
        verdict=judged.verdict,
        status=failed[-1].status if failed else "",
        reasons=tuple(re.sub("[^a-z0-9_]", "", code)[:40] for code in judged.reasons[:10]),
        pct=judged.pct,
        low_pct=judged.low_pct,
        high_pct=judged.high_pct,
        certifiable_pct=judged.certifiable_pct,
        epochs=judged.epochs,
        discovery=judged.discovery,
        base_ns=numbers.time_ns(row.base, row.metric),
        target_ns=numbers.time_ns(row.target, row.metric),
        causes=None if causes is None else tuple(words.clean(cause, TEXT) for cause in causes[:8]),
    )


def _weight(row: Row) -> tuple[int, float]:
    """What needs a person most comes first: by verdict, then by size."""
    return view.ORDER.index(row.verdict), -abs(row.pct or 0.0)


def _troubles(run: Run, groups: tuple[view.Group, ...], folder: Path | None) -> Iterator[Trouble]:
    """Builds that failed come first: they cost the most."""
    every = failures.all_failures(run, groups)
    for one in sorted(every, key=lambda one: not one.package):
        seen = next(o for o in run.observations if (o.cell, o.arm) == one.seen[0])
        yield Trouble(
            arm=words.clean(one.arm, NAME),
            what=words.clean(one.what, NAME),
            status=seen.status,
            reason=words.clean(one.reason, TEXT),
            on_base=view.arm(run, one.seen[0][1]).side == "base" and not undescribed(seen.cell),
            workload=workloads_own(seen.arm, {o.arm: o for o in run.observations if o.cell == seen.cell}),
            log=words.clean(one.log, NAME),
            lines=tuple(_log(folder, one.log, one.reason)) if folder and seen.status == "build_failed" else (),
        )


def _log(folder: Path, name: str, reason: str) -> list[str]:
    """Lines of a log of this run, from just above its first error, without what steers a terminal."""
    path = folder / LOGS / Path(name).name
    try:
        if not name or path.is_symlink() or not path.is_file():
            return []
        with path.open("rb") as file:
            text = file.read(1 << 20).decode(errors="replace")
    except OSError:
        return []
    lines = [words.clean(_ESCAPES.sub("", line), NAME) for line in re.split(r"[\r\n]+", text)]
    lines = [line for line in lines if line]
    error = words.clean(reason, 60).removesuffix("…")
    first = next((number for number, line in enumerate(lines) if error and error in line), 0)
    start = max(0, first - _BEFORE)
    return lines[start : start + made.MOST_LINES]


def _warnings(run: Run) -> Iterator[Warned]:
    for advice in run.warnings:
        text = words.clean(failures.advice_text(run, advice), TEXT)
        yield Warned(kind=words.clean(advice.kind, NAME), text=text, advice=words.clean(advice.advice, TEXT))


def _waived(run: Run) -> Iterator[str]:
    for one in waivers.in_force(run):
        yield f"waiver: {waivers.said(one)}"


def _command(run: Run) -> tuple[str, ...]:
    """The command line of this run with its refs as commits and its seed, a word each; none where it is too long to say, or
    where it cannot be told which words are the refs. Of a night it is the plain comparison of its commits."""
    if run.arguments[:1] == ("demo",):  # its repository is made for it, and is the same every time
        return ("abprof", *run.arguments)
    given = list(run.arguments)
    given = given[1:] if given[:1] == ["abprof"] else given
    given = given[1:] if given[:1] == ["run"] else given
    own = given.index("--") if "--" in given else len(given)
    given, measured = given[:own], given[own:]  # a command behind `--` has words and a --seed of its own
    rest = [] if run.night else _without_refs(given, [side.spec for side in run.sides])
    if rest is None:
        return ()
    sides = [side.anew for side in run.sides]
    seed = [] if "--seed" in rest else ["--seed", str(run.options.seed)]
    command = ["abprof", *sides, *rest, *seed, *measured]
    if len(command) > 100 or any(len(word) > TEXT or words.clean(word, TEXT) != word for word in command if word):
        return ()
    return tuple(command)


def _without_refs(given: list[str], specs: list[str]) -> list[str] | None:
    """The words that are not this run's refs; None where an option's value could be one of them."""
    for refs in (specs, ["...".join(specs[:2]), *specs[2:]]):
        if given[: len(refs)] == refs:
            return given[len(refs) :]
        if [word for word in given if word in refs] == refs:
            return [word for word in given if word not in refs]
    return None


def spelled(command: tuple[str, ...]) -> str:
    """A command as it is typed."""
    return shlex.join(command)
