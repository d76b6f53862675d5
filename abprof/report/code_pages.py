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
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from markupsafe import Markup

from abprof.records import UNREADABLE, Arm, Cause, Comparison, Listed, Listing, Run, lines_of
from abprof.records.names import short_labels
from abprof.records.visible import visible
from abprof.report import sentences
from abprof.report.text import clean
from abprof.system import doorway
from abprof.system import files as disk

LARGEST = 1_000_000  # bytes of a page
_TEXT_PART = 250_000  # bytes of its unified diffs
_LINE = 160  # characters of a cause's line beside its headline
_CONTEXT = 3  # lines around a difference
_HIGHLIGHTED = 300_000  # characters of a stage: more take Pygments seconds
_EXACT = 3000  # lines: in longer stages difflib ignores lines that are frequent
_LISTING = 64 << 20  # bytes
_NAMES = {  # stage -> what is a name, and its replacement
    "TTIR": [(r"%[\w$.-]+(?:#\d+)?|#\w+\d*\b|\^bb\d+", "%")],
    "TTGIR": [(r"%[\w$.-]+(?:#\d+)?|\^bb\d+", "%"), (r"(#[A-Za-z_]+)\d+\b", r"\1")],
    "LLVM IR": [(r"%[\w.$-]+|![\d]+|#\d+|^\d+:.*", "%")],
    "PTX": [(r"%[a-z]+\d+|\$L_?_?\w+", "%")],
    "SASS": [(r"\b(U?R|U?P|B|SB)\d+\b|\.L_x_\d+", r"\1"), (r"\.reuse\b", "")],
    "assembly": [
        (r"%(?:[re]?(?:[abcd]x|[sd]i|[sb]p)|[abcd][lh]|[sd]il|r\d+[dwb]?)\b", "%r"), (r"%([xyz]mm|k)\d+", r"%\1"),
        (r"\b[0-9a-f]+ (<.*?)(\+0x[0-9a-f]+)?>$", r"\1>"), (r"-?0x[0-9a-f]+\(%r(ip)?\)", "(%r)"),
    ],
}  # fmt: skip
_LEXERS = {"TTIR": "llvm", "TTGIR": "llvm", "LLVM IR": "llvm", "PTX": "ptx", "assembly": "gas"}
_KINDS = (("Comment", "c"), ("String", "s"), ("Number", "m"), ("Keyword", "k"), ("Name.Variable", "n"),
          ("Name.Function", "f"), ("Name.Builtin", "k"))  # fmt: skip
_COUNTS = re.compile(r"(?:(?:more|fewer) (?:instructions of )?)?(\w[\w -]*?:? \d+) -> (\d+)")  # in a cause's text
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
            name = re.sub(r"\W+", "_", one.kernel, flags=re.ASCII)[:60]
            page = found.setdefault(one.files, Code(f"code/{name}-{digest}.html", clean(one.kernel, 120)))
            page.rows.append((row, one))
    return list(found.values())


def write(run: Run, folder: Path, render: Any) -> Iterator[Path]:
    """Write the pages whose listings the run folder has. `render`: makes the page of its template from its values."""
    for page in pages(run):
        try:
            before, after = (_listing(folder, name) for name in page.rows[0][1].files)
        except (OSError, ValueError, EOFError, zlib.error, *UNREADABLE):
            continue  # a run folder without them, or a damaged one: the report stands without this page
        yield disk.put(folder / page.path, render(values(run, page, before, after)).encode(errors="replace"))


def _listing(folder: Path, name: str) -> Listing:
    with doorway.opened(folder / name, folder) as file, gzip.open(file) as plain:
        data = plain.read(_LISTING + 1)
    if len(data) > _LISTING:
        raise ValueError("too large")
    return msgspec.json.decode(data, type=Listing)


def changed_line(run: Run, row: Comparison, cause: Cause) -> dict[str, str]:
    """Return the cause's line of source, if it changed, as {"-": text before, "+": text after}; new lines have no "-"."""
    for hunk in run.hunks.get(Arm.of(row.to).side, ()):
        removed, added = lines_of(hunk.removed), lines_of(hunk.added)
        now = next((line for at, line in enumerate(added, hunk.at[1]) if f"{hunk.file}:{at}" == cause.at), None)
        if now is not None:
            alone = len(removed) == len(added) == 1
            [was] = removed if alone else difflib.get_close_matches(now, removed, 1) or [""]
            if not alone and difflib.get_close_matches(was, added, 1) != [now]:
                was = ""  # of another line
            return {sign: clean(line, _LINE) for sign, line in (("-", was), ("+", now)) if line.strip()}
    return {}


# ---------------------------------------------------------------- both sides, aligned


@dataclass
class _Stage:
    """`rows`, as code.js reads them: kind (0 alike, 1 changed, 2 gone, 3 new), left, right, places of both (-1: none)."""

    name: str
    rows: list[list[Any]]

    def diff(
        self, room: int, named: Collection[str], numbers: Sequence[Mapping[int, str]] = ()
    ) -> tuple[str, Markup, str]:
        """Return the name, the unified diff in at most `room` bytes of HTML, and what it leaves out. Each line begins with
        its number in the source, of `numbers` by place in another form. `named`: lines of the source to mark."""
        guilty = {at for at, row in enumerate(self.rows) if not numbers and f"{self.name}:{row[4]}" in named}
        near = {at + by for at, row in enumerate(self.rows) if row[0] or at in guilty
                for by in range(-_CONTEXT, _CONTEXT + 1)}  # fmt: skip
        lines, last = list[str](), -1
        for at in sorted(near & set(range(len(self.rows)))):
            kind, left, right, *where = self.rows[at]
            was, now = (of.get(place, "") for of, place in zip(numbers, where, strict=True)) if numbers else where
            made = ["<b>…</b>"] if at > last + 1 else []
            made += [f"{was:>5} <del>-{left}</del>"] if kind in (1, 2) else []
            new = f"<ins>+{right}</ins>" if kind else f" {right or left}"
            if at in guilty:
                made.append(f'<b id="{escape(f"{self.name}:{now}")}">{now:>5}</b> {new} <b>← the line of the cause</b>')
            elif kind != 2:
                made.append(f"{now:>5} {new}")
            last, room = at, room - sum(len(line.encode()) + 1 for line in made)
            if room < 0:
                break
            lines += made
        cut = "" if room >= 0 else "the first differences" if lines else "too large to show"
        return self.name, Markup("\n".join(lines)), cut  # noqa: S704 - escaped


def values(run: Run, page: Code, before: Listing, after: Listing) -> dict[str, Any]:
    """Return what the template shows; forms of the kernel are left out, the largest first, until the page fits."""
    both, left_out = (before, after), list[str]()
    texts = {path: [lines_of(one.files.get(path, "")) for one in both] for path in (*before.files, *after.files)}
    sources = [_aligned(path, [(lines, range(1, len(lines) + 1)) for lines in of]) for path, of in texts.items()]
    names = dict.fromkeys(stage.name for one in both for stage in one.stages)
    forms = [{stage.name: (stage.lines, stage.at) for stage in one.stages} for one in both]
    stages = [_aligned(name, [of.get(name, ((), ())) for of in forms]) for name in names]
    spent, others = _spent(run, page), {one.kernel for one in run.listed} - {page.rows[0][1].kernel}
    causes = {sentences.cause(one, 600): (row, one) for row, _ in page.rows for one in row.causes or ()
              if not others & set(one.kernels)}  # fmt: skip
    named = {one.at: ", ".join(f"{was} → {now}" for was, now in _COUNTS.findall(clean(one.text)))
             for _, one in reversed(causes.values()) if one.at}  # fmt: skip
    numbers = [{at: of[0].rpartition(":")[2] for at, of in enumerate(one.places) if of} for one in both]
    diffs, room = list[tuple[str, Markup, str]](), _TEXT_PART
    for left, one in zip(range(len(sources) + len(stages), 0, -1), [*sources, *stages], strict=True):
        diffs.append(one.diff(room // left, named, numbers if one in stages else ()))
        room -= len(diffs[-1][1].encode())  # what a form does not need goes to those after it
    labels = {side.id: clean(side.label, 60) for side in run.sides}
    while True:
        data = {
            "places": [one.places for one in both], "classes": [one.classes for one in both], "spent": spent,
            "stages": [[s.name, s.rows] for s in stages], "sources": [[s.name, s.rows] for s in sources], "named": named,
            "at": next((one.at for _, one in causes.values() if one.at), ""),
        }  # fmt: skip
        packed = Markup(base64.b64encode(gzip.compress(msgspec.json.encode(data), 9, mtime=0)).decode())  # noqa: S704
        if len(packed) + _TEXT_PART <= LARGEST or not (stages or sources):
            break
        gone = max(stages + sources, key=lambda stage: len(stage.rows))
        (stages if gone in stages else sources).remove(gone)
        left_out.append(f"{gone.name} has {len(gone.rows)} lines: no room for it side by side")
    return {
        "run": run, "page": page, "data": packed, "sides": [labels.get(one.side, one.side) for one in both], "sampled": bool(spent),
        "diffs": [diff for diff in diffs if diff[1] or diff[2]],
        "notes": [f"{one.side}: {clean(note)}" for one in both for note in one.notes] + left_out,
        "causes": {text: changed_line(run, *of) for text, of in causes.items()},
        "cells": dict.fromkeys(f"{r.cell}, {labels.get(Arm.of(r.to).side, r.to)}: {sentences.verdict_and_change(r)}" for r, _ in page.rows),
    }  # fmt: skip


def _spent(run: Run, page: Code) -> list[tuple[str, list[dict[str, tuple[float, str]]]]]:
    """Return each sampled row's cell, and on both sides the share of samples in per cent and the longest wait by line."""
    found, cells = [], short_labels(run.cells)
    for row, one in page.rows:
        wholes = [sum(each.samples for each in spent.values()) for spent in one.spent]
        shares = [{where: (round(100 * of.samples / whole, 1), of.stall.replace("_", " ")) for where, of in spent.items() if where}
                  for spent, whole in zip(one.spent, wholes, strict=True)]  # fmt: skip
        found += [(clean(cells.get(row.cell, ""), 60), shares)] if one.by else []
    return [("", shares) for _, shares in found] if len(found) == 1 else found


def _aligned(name: str, both: Sequence[tuple[Sequence[str], Sequence[int]]]) -> _Stage:
    """Align (lines, places) of both sides by their lines, in which names are replaced."""
    patterns, keys = [(re.compile(pattern), to) for pattern, to in _NAMES.get(name, ())], [list[str](), list[str]()]
    for key, (lines, _) in zip(keys, both, strict=True):
        for line in lines:
            text = line
            for pattern, to in patterns:
                text = pattern.sub(to, text)
            key.append(text.strip() if patterns else text)
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=max(map(len, keys)) > _EXACT)
    # Bidirectional and invisible characters would make code look like other code.
    shown = [_highlighted(name, [visible(line.expandtabs(4)) for line in lines]) for lines, _ in both]
    made = _Stage(name, [])
    for tag, *ends in matcher.get_opcodes():
        for offset in range(max(ends[1] - ends[0], ends[3] - ends[2])):
            at = [begin + offset for begin in ends[::2]]
            has = [place < stop for place, stop in zip(at, ends[1::2], strict=True)]
            left, right = (lines[place] if one else "" for lines, place, one in zip(shown, at, has, strict=True))
            places = [of[place] if one else -1 for (_, of), place, one in zip(both, at, has, strict=True)]
            kind = 0 if tag == "equal" else 1 if all(has) else 2 if has[0] else 3
            made.rows.append([kind, left, "" if not kind and left == right else right, *places])
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
