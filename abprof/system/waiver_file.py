"""Parse abprof-waivers.toml, and add a waiver."""

from __future__ import annotations

import datetime
import json

from abprof.records import Record, Waiver
from abprof.records.errors import AbprofError, place_of
from abprof.system import toml

_HEAD = "# Accepted slow-downs. abprof reads this file from the commit that a branch is compared with.\nschema = 1\n"
_KEYS = "keys of a [[waiver]]: cells, most_percent, reason, owner, expires (a date)"


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
    """Return the waivers in `text`, the content of the file `where`. Raises an AbprofError that names the key."""
    file = toml.converted(toml.loads(text, where), _File, _Entry, where=where, advice=_KEYS)
    checks = [("schema", file.schema == 1, f"schema = {file.schema}, this abprof reads schema = 1")]
    for number, one in enumerate(file.waiver):
        most = f"most_percent = {one.most_percent:g} is not between 0 and 1000"
        checks += [(f"waiver.{number}.most_percent", 0 < one.most_percent < 1000, most)]
        texts = (("cells", one.cells), ("reason", one.reason), ("owner", one.owner))
        checks += [(f"waiver.{number}.{name}", bool(text.strip()), f"{name} is empty") for name, text in texts]
    for key, good, what in checks:
        if not good:
            raise AbprofError(what, where=place_of(key, where))
    return tuple(
        Waiver(cells=e.cells, most_pct=e.most_percent, reason=e.reason, owner=e.owner, expires=e.expires.isoformat())
        for e in file.waiver
    )


def with_one_more(text: str, waiver: Waiver, where: str) -> str:
    """Return the waiver file's text ("" for a new file) with `waiver` added. Raises AbprofError."""
    for option, value in (("CELLS", waiver.cells), ("--reason", waiver.reason), ("--owner", waiver.owner)):
        if not value.strip() or not value.isprintable():
            what = "the value contains unprintable characters" if value.strip() else "the value is empty"
            raise AbprofError(what, where=option)
    if waiver in parse(text, where):
        raise AbprofError("the file already has this waiver", where=where)
    cells, reason, owner = (json.dumps(t, ensure_ascii=False) for t in (waiver.cells, waiver.reason, waiver.owner))
    head = text.rstrip("\n") + "\n" if text.strip() else _HEAD
    made = f"{head}\n[[waiver]]\ncells = {cells}\nmost_percent = {waiver.most_pct:g}\nreason = {reason}\n"
    made += f"owner = {owner}\nexpires = {waiver.expires}\n"
    if parse(made, where)[-1] != waiver:
        raise AbprofError("the new waiver cannot be read back", where=where, advice="add the waiver by hand")
    return made
