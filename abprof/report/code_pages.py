"""Write a page for each kernel of a changed row: source, intermediate code and machine code of both sides, aligned.

Names of registers and values are no differences. The page needs no network, and has a unified diff for readers without
scripts.
"""

from __future__ import annotations

import base64
import difflib
import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from markupsafe import Markup

from abprof.records import UNREADABLE, Comparison, Hunk, Listed, Listing, Run
from abprof.report import sentences
from abprof.report.text import clean
from abprof.system import doorway
from abprof.system import files as disk

LARGEST = 1_000_000  # bytes of a page
_TEXT_PART = 250_000  # bytes of its unified diffs
_CONTEXT = 3  # lines around a difference
_HIGHLIGHTED = 300_000  # characters of a stage: more take Pygments seconds
_EXACT = 3000  # lines: in longer stages difflib ignores lines that are frequent
_LISTING = 64 << 20  # bytes
_NAMES = {  # stage -> what is a name, and its replacement
    "TTIR": [(r"%[\w$.-]+(?:#\d+)?|#\w+\d*\b|\^bb\d+", "%")],
    "TTGIR": [(r"%[\w$.-]+(?:#\d+)?|\^bb\d+", "%")],
    "LLVM IR": [(r"%[\w.$-]+|![\d]+|#\d+|^\d+:.*", "%")],
    "PTX": [(r"%[a-z]+\d+|\$L_?_?\w+", "%")],
    "SASS": [(r"\b(U?R|U?P|B|SB)\d+\b|\.L_x_\d+", r"\1"), (r"\.reuse\b", "")],
    "assembly": [
        (r"%(?:[re]?(?:[abcd]x|[sd]i|[sb]p)|[abcd][lh]|[sd]il|r\d+[dwb]?)\b", "%r"), (r"%([xyz]mm|k)\d+", r"%\1"),
        (r"\b[0-9a-f]+ (<[^>]*?)(\+0x[0-9a-f]+)?>", r"\1>"), (r"-?0x[0-9a-f]+\(%r(ip)?\)", "(%r)"),
    ],
}  # fmt: skip
_LEXERS = {"TTIR": "llvm", "TTGIR": "llvm", "LLVM IR": "llvm", "PTX": "ptx", "assembly": "gas"}
_KINDS = (("Comment", "c"), ("String", "s"), ("Number", "m"), ("Keyword", "k"), ("Name.Variable", "n"),
          ("Name.Function", "f"), ("Name.Builtin", "k"))  # fmt: skip
_SASS = re.compile(r"(?P<k>^\s+(?:@!?U?P\w+\s+)?[A-Z][\w.]*)|(?P<n>\b(?:U?R|U?P)(?:\d+|Z|T)\b)|(?P<m>\b0x[0-9a-f]+\b)")


@dataclass(frozen=True)
class Code:
    """A page beside the report: its path in the run folder, and what it shows."""

    path: str
    kernel: str
    rows: list[tuple[Comparison, Listed]] = field(default_factory=list)


def pages(run: Run) -> list[Code]:
    """Return the pages of a run. Rows that compare the same compiled kernels share one."""
    found: dict[tuple[str, str], Code] = {}
    rows = {(row.cell, row.from_, row.to): row for row in run.comparisons}
    for one in run.listed:
        if row := rows.get((one.cell, one.from_, one.to)):
            digest = hashlib.sha256("\0".join(one.files).encode()).hexdigest()[:8]
            name = re.sub(r"\W+", "_", one.kernel)[:60]
            page = found.setdefault(one.files, Code(f"code/{name}-{digest}.html", clean(one.kernel, 120)))
            page.rows.append((row, one))
    return list(found.values())


def write(run: Run, folder: Path, render: Any) -> Iterator[Path]:
    """Write the pages whose listings the run folder has. `render`: makes the page of its template from its values."""
    for page in pages(run):
        try:
            before, after = (_listing(folder, name) for name in page.rows[0][1].files)
        except (OSError, ValueError, EOFError, *UNREADABLE):
            continue  # a run folder without them, or a damaged one: the report stands without this page
        yield disk.put(folder / page.path, render(values(run, page, before, after)).encode(errors="replace"))


def _listing(folder: Path, name: str) -> Listing:
    with doorway.opened(folder / name, folder) as file, gzip.open(file) as plain:
        data = plain.read(_LISTING + 1)
    if len(data) > _LISTING:
        raise ValueError("too large")
    return msgspec.json.decode(data, type=Listing)


# ---------------------------------------------------------------- both sides, aligned


@dataclass
class _Stage:
    name: str
    rows: list[
        list[Any]
    ]  # kind (0 alike, 1 changed, 2 gone, 3 new), left, right, places of both; as page.js reads them
    changed: int = 0

    def diff(self, room: int) -> tuple[str, Markup, str]:
        """Return the name, the unified diff in at most `room` bytes of HTML, and what it leaves out."""
        near = {at + by for at, row in enumerate(self.rows) if row[0] for by in range(-_CONTEXT, _CONTEXT + 1)}
        lines, last = list[str](), -1
        for at in sorted(near & set(range(len(self.rows)))):
            kind, left, right, *_ = self.rows[at]
            made = ["<b>…</b>"] if at > last + 1 else []
            made += [f"<del>-{left}</del>"] if kind in (1, 2) else []
            made += [f"<ins>+{right}</ins>"] if kind in (1, 3) else []
            made += [f" {right or left}"] if not kind else []
            last, room = at, room - sum(len(line.encode()) + 1 for line in made)
            if room < 0:
                break
            lines += made
        return self.name, Markup("\n".join(lines)), "the first differences" if room < 0 else ""  # noqa: S704 - escaped


def values(run: Run, page: Code, before: Listing, after: Listing) -> dict[str, Any]:
    """Return what the template shows; forms of the kernel are left out, the largest first, until the page fits."""
    hunks = [hunk for row, _ in page.rows[:1] for hunk in run.hunks.get(row.to.partition(":")[0], ())]
    both = before, after
    sources = [_source(path, hunks, both) for path in dict.fromkeys((*before.files, *after.files))]
    names = dict.fromkeys(stage.name for one in both for stage in one.stages)
    stages, left_out = [_stage(name, both) for name in names], list[str]()
    every, spent = [*sources, *stages], _spent(page)
    diffs = [made for stage in every if (made := stage.diff(_TEXT_PART // len(every)))[1]]
    while True:
        data = {
            "places": [one.places for one in both], "stages": [[s.name, s.rows] for s in stages],
            "sources": [[s.name, s.rows] for s in sources], "at": _at(page), "spent": spent,
        }  # fmt: skip
        packed = base64.b64encode(gzip.compress(msgspec.json.encode(data), 9, mtime=0)).decode()
        if len(packed) + _TEXT_PART <= LARGEST or not stages:
            break
        gone = max(stages, key=lambda stage: len(stage.rows))
        stages.remove(gone)
        left_out.append(f"{gone.name} has {len(gone.rows)} lines: no room for it side by side")
    notes = [f"{one.side}: {clean(note)}" for one in both for note in one.notes] + left_out
    causes = dict.fromkeys(sentences.cause(cause, 600) for row, _ in page.rows for cause in row.causes or ()
                           if not cause.kernels or set(cause.kernels) & {page.rows[0][1].kernel, *_functions(before)})  # fmt: skip
    cells = dict.fromkeys(f"{row.cell}, {row.to}: {sentences.verdict_and_change(row)}" for row, _ in page.rows)
    safe = Markup(packed)  # noqa: S704 - letters of base64
    return {"run": run, "page": page, "data": safe, "diffs": diffs, "notes": notes, "causes": list(causes),
            "cells": list(cells), "sampled": any(spent), "sides": [one.side for one in both]}  # fmt: skip


def _functions(listing: Listing) -> set[str]:
    return {
        line[:-1] for stage in listing.stages if stage.name == "assembly" for line in stage.lines if line[:1] != " "
    }


def _at(page: Code) -> str:
    return next((cause.at for row, _ in page.rows for cause in row.causes or () if cause.at), "")


def _spent(page: Code) -> list[dict[str, tuple[float, str]]]:
    """Return the share of samples by line of both sides, in per cent, from the first row that has them."""
    both = next((one.spent for _, one in page.rows if one.by), ({}, {}))
    wholes = [sum(each.samples for each in spent.values()) for spent in both]
    return [{where: (round(100 * each.samples / whole, 1), each.stall.replace("_", " ")) for where, each in spent.items() if where}
            for spent, whole in zip(both, wholes, strict=True)]  # fmt: skip


def _stage(name: str, both: Sequence[Listing]) -> _Stage:
    found = [next(((s.lines, s.at) for s in one.stages if s.name == name), ((), ())) for one in both]
    patterns = [(re.compile(pattern), to) for pattern, to in _NAMES.get(name, ())]
    keys = []
    for lines, _ in found:
        plain = list[str]()
        for line in lines:
            text = line
            for pattern, to in patterns:
                text = pattern.sub(to, text)
            plain.append(text.strip())
        keys.append(plain)
    exact = max(map(len, keys)) <= _EXACT
    codes = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=not exact).get_opcodes()
    shown = [_highlighted(name, lines) for lines, _ in found]
    made = _Stage(name, [])
    for tag, i, j, k, m in codes:
        for at in range(max(j - i, m - k)):
            left, right = (i + at if i + at < j else None), (k + at if k + at < m else None)
            texts = ["" if place is None else lines[place] for lines, place in zip(shown, (left, right), strict=True)]
            places = [-1 if place is None else at_[place] for (_, at_), place in zip(found, (left, right), strict=True)]
            kind = 0 if tag == "equal" else 2 if right is None else 3 if left is None else 1
            made.rows.append([kind, texts[0], "" if not kind and texts[0] == texts[1] else texts[1], *places])
    return made


def _source(path: str, hunks: Sequence[Hunk], both: Sequence[Listing]) -> _Stage:
    """Align a file of both sides by its hunks. Its rows have line numbers in the place of places."""
    texts = [one.files.get(path, "").splitlines() for one in both]
    shown = [_highlighted(path, lines) for lines in texts]
    made, at = _Stage(path, []), [0, 0]

    def rows(kind: int, count: Sequence[int]) -> None:
        for _ in range(max(count)):
            have = [place < stop for place, stop in zip(at, stops, strict=True)]
            left, right = (lines[place] if has else "" for lines, place, has in zip(shown, at, have, strict=True))
            numbers = [place + 1 if has else -1 for place, has in zip(at, have, strict=True)]
            one = (2 if not have[1] else 3 if not have[0] else kind) if kind else 0
            made.rows.append([one, left, "" if not kind and left == right else right, *numbers])
            at[0], at[1] = at[0] + have[0], at[1] + have[1]

    for hunk in [*(one for one in hunks if one.file == path), None]:
        begin = [first - 1 for first in hunk.at] if hunk else [len(lines) for lines in texts]
        stops = [min(place, len(lines)) for place, lines in zip(begin, texts, strict=True)]
        rows(0, [stop - place for stop, place in zip(stops, at, strict=True)])
        if hunk:
            stops = [min(place + n, len(lines)) for place, n, lines in zip(at, hunk.count, texts, strict=True)]
            rows(1, hunk.count)
    return made


# ---------------------------------------------------------------- highlighting


def _highlighted(name: str, lines: Sequence[str]) -> list[str]:
    """Return lines as HTML: `<i class=k>` and the like around what Pygments recognises."""
    text = "\n".join(lines)
    if name == "SASS":
        return [_sass(line) for line in lines]
    if not text or len(text) > _HIGHLIGHTED:
        return [escape(line) for line in lines]
    from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
    from pygments.util import ClassNotFound

    keep: dict[str, Any] = {"stripnl": False, "ensurenl": False}
    try:
        known = _LEXERS.get(name)
        lexer = get_lexer_by_name(known, **keep) if known else get_lexer_for_filename(PurePosixPath(name).name, **keep)
    except ClassNotFound:
        return [escape(line) for line in lines]
    made, styles = [list[str]()], dict[Any, str]()
    for kind, token in lexer.get_tokens(text):
        if kind not in styles:
            styles[kind] = next((css for known, css in _KINDS if known in str(kind)), "")
        for place, part in enumerate(token.split("\n")):
            if place:
                made.append([])
            css = styles[kind] if part.strip() else ""
            made[-1].append(f"<i class={css}>{escape(part)}</i>" if css else escape(part))
    return ["".join(parts) for parts in made] if len(made) == len(lines) else [escape(line) for line in lines]


def _sass(line: str) -> str:
    made, last = "", 0
    for found in _SASS.finditer(line):
        made += f"{escape(line[last : found.start()])}<i class={found.lastgroup}>{escape(found[0])}</i>"
        last = found.end()
    return made + escape(line[last:])
