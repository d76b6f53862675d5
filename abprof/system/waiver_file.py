"""abprof-waivers.toml: parse it, and add a waiver."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence

import msgspec

from abprof.records import Record, Waiver
from abprof.records.errors import AbprofError
from abprof.system import config_errors, toml

_HEAD = "# Accepted slow-downs. abprof reads this file from the commit that a branch is compared with.\nschema = 1\n"
_KEYS = "a [[waiver]] has cells, most_percent, reason, owner and expires, a date"


class _Entry(Record, frozen=True):
    cells: str
    most_percent: float
    reason: str
    owner: str
    expires: datetime.date


class _File(Record, frozen=True):
    schema: int = 1
    waiver: tuple[_Entry, ...] = ()


def parse(text: str, where: str) -> tuple[Waiver, ...]:
    """The waivers of a file's text. Raises AbprofError with line and key."""
    loose, lines = toml.loads(text, where), toml.lines(text)
    try:
        file = msgspec.convert(loose, _File)
    except msgspec.ValidationError as error:
        known = (field.name for table in (_File, _Entry) for field in msgspec.structs.fields(table))
        raise config_errors.refused(error, loose, where, lines, known, _KEYS) from None

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
        Waiver(cells=e.cells, most_pct=e.most_percent, reason=e.reason, owner=e.owner, expires=e.expires.isoformat())
        for e in file.waiver
    )


def with_one_more(text: str, waiver: Waiver, where: str) -> str:
    """The file's text (or "") with a further waiver, verified by reading it back. Raises AbprofError."""
    for name in ("cells", "reason", "owner"):
        value, option = getattr(waiver, name), "CELLS" if name == "cells" else f"--{name}"
        if not value.strip():
            raise AbprofError("it is empty", where=option)
        if not value.isprintable():
            raise AbprofError("it contains unprintable characters", where=option)
    if waiver in parse(text, where):
        raise AbprofError("this waiver is already there", where=where)
    entry = {"cells": waiver.cells, "most_percent": waiver.most_pct, "reason": waiver.reason, "owner": waiver.owner}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f'{value:g}'}"
             for key, value in entry.items()]  # fmt: skip
    head = text.rstrip("\n") + "\n" if text.strip() else _HEAD
    made = "\n".join([head, "[[waiver]]", *lines, f"expires = {waiver.expires}", ""])
    if parse(made, where)[-1] != waiver:
        raise AbprofError("the waiver does not read back as given", where=where, advice="add it by hand")
    return made


def matches_workload(cells: str, workloads: Sequence[str]) -> bool:
    """Whether a pattern of cell ids (WORKLOAD/...) can match a cell of one of these workloads."""
    fixed = re.split(r"[*?\[]", cells, maxsplit=1)[0]
    return any(fixed.startswith(f"{name}/") or (fixed != cells and f"{name}/".startswith(fixed)) for name in workloads)
