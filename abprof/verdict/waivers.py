"""Waivers: slow-downs that somebody has accepted, with who, why, how much and until when.

They stand in abprof-waivers.toml and are read from base's commit, so that a pull request cannot waive itself. Rules: a row
that is `slower` by no more than the waiver takes, in a run that began on or before its last day, is still `slower` and has the
reason `waived`: it does not count as one to act on. What is slower than that counts as without the waiver.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

from abprof.records import Advice, Comparison, Record, Run, Waiver
from abprof.records.errors import AbprofError
from abprof.system import config_errors as complaints
from abprof.system import toml

FILE = "abprof-waivers.toml"
_HEAD = "# Accepted slow-downs. abprof reads this file from the commit that a branch is compared with.\nschema = 1\n"


class _Entry(Record, frozen=True):
    cells: str
    most_percent: float
    reason: str
    owner: str
    expires: datetime.date


class _File(Record, frozen=True):
    schema: int = 1
    waiver: tuple[_Entry, ...] = ()


# ---------------------------------------------------------------- the file


def parse(text: str, where: str) -> tuple[Waiver, ...]:
    """The waivers of a file. Raises AbprofError with line and key."""
    loose = toml.loads(text, where)
    lines = toml.lines(text)
    try:
        file = msgspec.convert(loose, _File)
    except msgspec.ValidationError as error:
        known = (field.name for table in (_File, _Entry) for field in msgspec.structs.fields(table))
        raise complaints.refused(error, loose, where, lines, known, _KEYS) from None

    def at(key: str) -> str:
        return f"{where}:{lines.get(key, 1)}, {key}"

    if file.schema != 1:
        raise AbprofError(f"schema = {file.schema}, this abprof reads schema = 1", where=at("schema"))
    for number, one in enumerate(file.waiver):
        for name in ("cells", "reason", "owner"):
            if not getattr(one, name).strip():
                raise AbprofError(f"{name} is empty", where=at(f"waiver.{number}.{name}"), advice=_KEYS)
        if not 0 < one.most_percent < 1000:
            what = f"most_percent = {one.most_percent:g}"
            raise AbprofError(what, where=at(f"waiver.{number}.most_percent"), advice="above 0 and below 1000")
    return tuple(
        Waiver(
            cells=one.cells,
            most_pct=one.most_percent,
            reason=one.reason,
            owner=one.owner,
            expires=one.expires.isoformat(),
        )
        for one in file.waiver
    )


_KEYS = "a [[waiver]] has cells, most_percent, reason, owner and expires, a date"


def with_one_more(text: str, waiver: Waiver, where: str) -> str:
    """The file's text (or "") with a further waiver, checked as it will be read. Raises AbprofError."""
    for name in ("cells", "reason", "owner"):
        said, where_said = getattr(waiver, name), "CELLS" if name == "cells" else f"--{name}"
        if not said.strip():
            raise AbprofError("it is empty", where=where_said)
        if not said.isprintable():
            raise AbprofError("it holds what cannot be printed", where=where_said)
    if waiver in parse(text, where):
        raise AbprofError("this very waiver is there already", where=where)
    entry = [
        "[[waiver]]",
        f"cells = {json.dumps(waiver.cells, ensure_ascii=False)}",
        f"most_percent = {waiver.most_pct:g}",
        f"reason = {json.dumps(waiver.reason, ensure_ascii=False)}",
        f"owner = {json.dumps(waiver.owner, ensure_ascii=False)}",
        f"expires = {waiver.expires}",
    ]
    made = (text.rstrip("\n") + "\n" if text.strip() else _HEAD) + "\n" + "\n".join(entry) + "\n"
    if parse(made, where)[-1] != waiver:
        raise AbprofError("the waiver does not read back as it was given", where=where, advice="add it by hand")
    return made


def of_some(cells: str, workloads: Sequence[str]) -> bool:
    """Whether this pattern of ids, which are WORKLOAD/..., can match a cell of one of these workloads."""
    fixed = re.split(r"[*?\[]", cells, maxsplit=1)[0]
    return any(fixed.startswith(f"{name}/") or (fixed != cells and f"{name}/".startswith(fixed)) for name in workloads)


# ---------------------------------------------------------------- what they do


def in_force(run: Run) -> tuple[Waiver, ...]:
    """Those whose last day had not passed when the run began: a run that is judged again is judged the same."""
    return tuple(one for one in run.waivers if run.began[:10] <= one.expires)


def applied(run: Run, rows: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The rows, those that a waiver covers with the reason `waived`."""
    valid = in_force(run)
    return tuple(
        msgspec.structs.replace(row, reasons=(*row.reasons, "waived")) if _covered(row, valid) else row for row in rows
    )


def said(waiver: Waiver) -> str:
    """`dense/*: up to 5 % slower until 2026-12-31 (ada: the new layout)`."""
    return (
        f"{waiver.cells}: up to {waiver.most_pct:g} % slower until {waiver.expires} ({waiver.owner}: {waiver.reason})"
    )


def advice(run: Run, rows: Sequence[Comparison]) -> Iterator[Advice]:
    """Warnings: a waiver of these cells has expired; a row is slower than its waiver takes."""
    valid = in_force(run)
    names = [cell.id for cell in run.cells]
    old = [one for one in run.waivers if one not in valid and any(fnmatchcase(name, one.cells) for name in names)]
    if old:
        yield Advice(
            kind="waiver_expired",
            text=f"{len(old)} of the waivers for these cells no longer hold: " + "; ".join(map(said, old)),
            advice=f"mend what is slower and take it out of {FILE}, or renew it: abprof waive",
            cells=tuple(name for name in names if any(fnmatchcase(name, one.cells) for one in old)),
        )
    beyond = [row for row in rows if row.verdict == "slower" and not _covered(row, valid) and _meant(row, valid)]
    if beyond:
        yield Advice(
            kind="waiver_exceeded",
            text=f"{len(beyond)} of the slower cells are slower than their waivers take",
            advice=f"{FILE} on base says how much was accepted",
            cells=tuple(dict.fromkeys(row.cell for row in beyond)),
        )


def _meant(row: Comparison, valid: Sequence[Waiver]) -> list[Waiver]:
    return [one for one in valid if fnmatchcase(row.cell, one.cells)]


def _covered(row: Comparison, valid: Sequence[Waiver]) -> bool:
    return (
        row.verdict == "slower" and row.pct is not None and any(row.pct <= one.most_pct for one in _meant(row, valid))
    )
