"""Make a notice of a run: every text is cut and cleaned here, so that the stage that posts it need not trust it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from abprof import __version__
from abprof.extras.bot import notice as limits
from abprof.extras.bot.notice import Notice, Ref, Row, Trouble
from abprof.records import Run, Side
from abprof.records.errors import AbprofError
from abprof.report import page as pages
from abprof.report import rows as tables
from abprof.report.sentences import lacking
from abprof.report.text import clean
from abprof.verdict import waivers

_NAME, _TEXT = 200, 600  # characters
_SHARED = ("verdict", "pct", "low_pct", "high_pct", "certifiable_pct", "epochs", "discovery")


def make_notice(run: Run) -> Notice:
    """The notice of a run.

    Raises AbprofError for a run of one branch or without times: it has no verdict.
    """
    if not run.options.timed:
        advice = "its report.md has the counters"
        raise AbprofError("nothing was timed in this run, so it has no verdict to post", where=run.id, advice=advice)
    if len(run.sides) < 2:
        raise AbprofError("a run of one branch has no verdict to post", where=run.id, advice="compare two refs")
    groups = tables.groups(run)
    between_sides = [one for one in run.comparisons if not one.with_peer]
    rows = sorted(_rows(run, groups), key=lambda row: (tables.ORDER.index(row.verdict), -abs(row.pct or 0.0)))
    troubles = list(_troubles(run, groups))
    lack, names = lacking(run)
    notes = (*run.notes, *(f"waiver: {waivers.describe(one)}" for one in waivers.in_force(run)))
    return Notice(
        schema=3,
        abprof=__version__,
        run=_name(run.id),
        status=run.status,
        began=run.began,
        base=_ref(run.sides[0]),
        targets=tuple(map(_ref, run.sides[1:10])),
        measured=bool(run.header) and any(c.pct is not None or c.verdict != "unclear" for c in between_sides),
        same_code=len({side.tree for side in run.sides}) == 1,
        counts={name: min(count, 10**6) for name, count in (run.header.counts if run.header else {}).items()},
        threshold=run.options.threshold,
        margin=run.options.margin,
        device=_name(pages.where(run)),
        lacking=lack,
        lacking_in=tuple(map(_name, names[: limits.MOST_ROWS])),
        rows=tuple(rows[: limits.MOST_ROWS]),
        rows_left_out=max(0, len(rows) - limits.MOST_ROWS),
        troubles=tuple(troubles[: limits.MOST_FAILURES]),
        troubles_left_out=max(0, len(troubles) - limits.MOST_FAILURES),
        warnings=tuple(_text(": ".join(filter(None, (text, advice)))) for text, advice, _ in tables.warnings(run))[:20],
        notes=tuple(map(_text, notes[:20])),
        environment=tuple((_name(k), _text(v)) for k, v in pages.machine(run))[: limits.MOST_FACTS],
        command=_command(run),
    )


def _name(text: str) -> str:
    return clean(text, _NAME)


def _text(text: str) -> str:
    return clean(text, _TEXT)


def _ref(side: Side) -> Ref:
    return Ref(label=_name(side.label), commit=side.commit, uncommitted=side.kind == "worktree")


def _rows(run: Run, groups: tuple[tables.Group, ...]) -> Iterator[Row]:
    """The rows that are not the same, without those left out on both sides."""
    for group in groups:
        several = f" against {group.target.label}" if group.target and len(run.sides) > 2 else ""
        for row in group.rows:
            judged = row.comparison
            if not judged or row.verdict == "same" or row.apart:
                continue
            failed = tables.failing(row)
            causes = [cause.text for cause in judged.causes] if judged.causes is not None else None
            if failed and not causes:
                causes = [failed[-1].reason] if failed[-1].reason else []
            yield Row(
                case=_name(group.full_name(row.cell, row.variant) + several),
                status=failed[-1].status if failed else "",
                reasons=tuple(re.sub("[^a-z0-9_]", "", code)[:40] for code in judged.reasons[:10]),
                **{name: getattr(judged, name) for name in _SHARED},
                base_ns=row.ns(row.base),
                target_ns=row.ns(row.target),
                causes=None if causes is None else tuple(map(_text, causes[:8])),
            )


def _troubles(run: Run, groups: tuple[tables.Group, ...]) -> Iterator[Trouble]:
    """What failed; builds first, since they cost the most cells."""
    for one in sorted(tables.all_failures(run, groups), key=lambda one: one.seen[0].status != "build_failed"):
        seen = one.seen[0]
        yield Trouble(
            arm=_name(one.arm),
            what=_name(one.what),
            status=seen.status,
            reason=_text(one.reason),
            on_base=tables.arm(run, seen.arm).side == "base" and not seen.cell.endswith("/"),
            workload=bool(seen.at),
            log=_name(one.log),
        )


def _command(run: Run) -> tuple[str, ...]:
    """The run's command line with its seed; () if it is too long. The bot names refs by their commits."""
    words = run.options.arguments
    words = words[1:] if words[:1] == ("abprof",) else words
    end = words.index("--") if "--" in words else len(words)  # a command behind `--` has options of its own
    seed = () if "--seed" in words[:end] or words[:1] == ("demo",) else ("--seed", str(run.options.seed))
    command = ("abprof", *words[:end], *seed, *words[end:])
    return command if len(command) <= 100 and all(_text(word) == word for word in command) else ()
