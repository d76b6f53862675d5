"""Parse the forms of a kernel that compilers write, from MLIR to machine code. Each parser yields (text, chain): an
instruction, and its lines of source as (path, line), innermost first, then the lines it is inlined at."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

Chain = tuple[tuple[str, int], ...]
Instruction = tuple[str, Chain, str, int]  # text, chain, function (of a CPU), offset in it; offset -1: a label
Parsed = Iterator[tuple[str, Chain]]
_DEEPEST = 20  # lines of a chain

# ---------------------------------------------------------------- TTIR, TTGIR: `... loc(#loc12)`

_DEFINED = re.compile(r"^#(loc\d*) = loc\((.*)\)\s*$")
_MLIR_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
_LAST_LOC = re.compile(r"\sloc\(((?:[^()]|\([^()]*\))*)\)$")
_ANY_LOC = re.compile(r"\s?loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_CALLSITE = re.compile(r"callsite\((.+) at (.+)\)$")
_OTHER_LOC = re.compile(r"#(loc\d*)")


def mlir(text: str) -> Parsed:
    """Parse TTIR or TTGIR."""
    known = {found[1]: found[2] for line in text.splitlines() if (found := _DEFINED.match(line))}

    def chain(of: str, deep: int = 0) -> Chain:
        if deep > _DEEPEST:
            return ()
        if call := _CALLSITE.match(of):
            return chain(call[1], deep + 1) + chain(call[2], deep + 1)
        if where := _MLIR_FILE.match(of):
            return ((where[1], int(where[2])),)
        other = _OTHER_LOC.search(of)  # an alias, the target of a name, or the first of a fused location
        return chain(known.get(other[1], ""), deep + 1) if other else ()

    for line in text.splitlines():
        if line.strip() and not _DEFINED.match(line):
            own = _LAST_LOC.search(line)
            yield _ANY_LOC.sub("", line), chain(own[1]) if own else ()


# ---------------------------------------------------------------- LLVM IR: `..., !dbg !12`

_METADATA = re.compile(r"^!(\d+) = (?:distinct )?!(\w+)\((.*)\)$", re.MULTILINE)
_DBG = re.compile(r",? !dbg !(\d+)")


def llvm(text: str) -> Parsed:
    """Parse LLVM IR."""
    nodes: dict[str, tuple[str, dict[str, str]]]
    nodes = {number: (kind, dict(re.findall(r'(\w+): !?("(?:[^"\\]|\\.)*"|[\w.]+)', body)))
             for number, kind, body in _METADATA.findall(text)}  # fmt: skip

    def path(scope: str) -> str:
        for _ in range(_DEEPEST):
            kind, fields = nodes.get(scope, ("", {}))
            if kind == "DIFile":
                folder, name = fields.get("directory", "").strip('"'), fields.get("filename", "").strip('"')
                return str(name if name.startswith("/") or not folder else f"{folder}/{name}")
            scope = fields.get("file", fields.get("scope", ""))
        return ""

    def chain(node: str, deep: int = 0) -> Chain:
        kind, fields = nodes.get(node, ("", {}))
        if kind != "DILocation" or deep > _DEEPEST or not fields.get("line", "").isdigit():
            return ()
        here = path(fields.get("scope", "")), int(fields["line"])
        return (here, *(chain(fields["inlinedAt"], deep + 1) if "inlinedAt" in fields else ()))

    for line in text.splitlines():
        if line.strip() and not line.startswith(("!", "source_filename", "; ModuleID")):
            own = _DBG.search(line)
            yield _DBG.sub("", line), chain(own[1]) if own else ()


# ---------------------------------------------------------------- PTX: `.loc 1 87 3, function_name $L, inlined_at 1 12 3`

_PTX_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_PTX_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:,.*?inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
# Triton 3.6 leaves inlined_at out: `.loc 2 9 1 // standard.py:9:1 @[ standard.py:7:3 @[ f.py:2:1 ] ]`.
_PTX_CALLER = re.compile(r"@\[ (.+?):(\d+):\d+")
_PTX_NOISE = re.compile(r"^\s*(//.*|\$L__tmp\d+:|\$L__func_\w+:|\.file\s.*)?$")
_Loc = tuple[str, str, str]


def ptx(text: str) -> Parsed:
    """Parse PTX, without its debug sections."""
    for _, line, chain in _ptx(text):
        inside = re.match(r"\s*[a-z@]", line)
        yield line.expandtabs(4).split(" //")[0].rstrip(), chain if inside else ()


def ptx_lines(text: str) -> dict[int, Chain]:
    """Return the lines of source of each line of PTX, counted from 1: machine code may refer to lines of PTX."""
    return {number: chain for number, _, chain in _ptx(text)}


def _ptx(text: str) -> Iterator[tuple[int, str, Chain]]:
    files = dict(_PTX_FILE.findall(text))
    names = Counter(PurePath(file).name for file in {*files.values()})
    paths = {name: file for file in files.values() if names[name := PurePath(file).name] == 1}
    callers: dict[_Loc, _Loc] = {}  # a location that was inlined -> where
    now: Chain = ()
    # Whether this inline assembly has had its location: LLVM counts its later lines as lines of source.
    inline = located = False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\.section\s+\.debug", line):
            return
        if "// begin inline asm" in line or "// end inline asm" in line:
            located = False
            inline = "begin" in line
        elif (found := _PTX_LOC.match(line)) and not located:
            here: _Loc = (found[1], found[2], found[3])
            located = inline
            if found[4]:
                callers[here] = (found[4], found[5], found[6])
            places = [here]
            while places[-1] in callers and len(places) < _DEEPEST and (found[4] or len(places) > 1):
                places.append(callers[places[-1]])
            now = tuple((files.get(file, ""), int(row)) for file, row, _ in places)
            now += tuple((paths.get(file, ""), int(row)) for file, row in _PTX_CALLER.findall(line) if not found[4])
        elif not found and not _PTX_NOISE.match(line):
            yield number, line, now


# ---------------------------------------------------------------- SASS: `nvdisasm -c -gi -gp`

_SASS_LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')
_SASS_CODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;?\s*$")
_SASS_BEGIN = re.compile(r"\.text\.(\S+):")
_OF_PTX = ".nv_debug_ptx_txt"


def sass(
    printed: Iterable[str], wanted: Callable[[str], bool], of_ptx: Mapping[int, Chain] | None = None
) -> Iterator[Instruction]:
    """Parse the first kernel whose mangled name is wanted. Instructions lie 16 bytes apart.

    `of_ptx`: lines of source by line of PTX. They count if given: ptxas believes LLVM's lines of inline assembly.
    """
    now: Chain = ()
    at, inside, open_ = 0, False, False  # open_: whether the line before is of the same chain
    for line in printed:
        if begin := _SASS_BEGIN.match(line):
            if inside:
                return
            inside = wanted(begin[1])
        elif not inside:
            continue
        elif found := _SASS_LINE.match(line):
            here = (found[1], int(found[2]))
            if found[1] == _OF_PTX:
                now = now if of_ptx is None else of_ptx.get(here[1], ())
            elif of_ptx is None:
                now = (*now[:-1], here) if open_ and now[-1:] == (here,) else (here,)
                now += ((found[3], int(found[4])),) if found[3] else ()
                open_ = bool(found[3])
        elif code := _SASS_CODE.match(line):
            open_ = False
            yield f"    {code[1]}", now, "", at
            at += 16
        elif line.startswith(".L_"):
            yield line.rstrip(), (), "", -1
        elif line.startswith("//----"):
            return


_PRODUCT = re.compile(r"\s*(?:wgmma\.mma_async|(?:@!?U?P\w+\s+)?[HIQB]GMMA)\b")  # of a warp group, in PTX and SASS


def with_products(code: Sequence[Instruction], text: str) -> list[Instruction]:
    """Return SASS with the lines of its products of warp groups, which ptxas does not write: those of its PTX, in order."""
    chains = [chain for _, line, chain in _ptx(text) if _PRODUCT.match(line)]
    places = [place for place, one in enumerate(code) if _PRODUCT.match(one[0])]
    found = dict(zip(places, chains, strict=True)) if len(places) == len(chains) else {}
    return [(one[0], found.get(place, one[1]), *one[2:]) for place, one in enumerate(code)]


# ---------------------------------------------------------------- x86-64: `objdump -d -l --inlines -C --no-show-raw-insn`

_X86_FILE = re.compile(r"^(?: *inlined by )?(.+):(\d+)(?: \(.*\))?$")
_X86_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_X86_CODE = re.compile(r"^\s+([0-9a-f]+):\s+(.+?)\s*(?:#.*)?$")


def x86(printed: Iterable[str], names: Container[str]) -> Iterator[Instruction]:
    """Parse the functions `names`."""
    name, start, now, fresh = "", 0, list[tuple[str, int]](), True
    for line in printed:
        if found := _X86_FUNCTION.match(line):
            name, start, now = found[2] if found[2] in names else "", int(found[1], 16), []
            if name:
                yield f"{name}:", (), name, -1
        elif name and (code := _X86_CODE.match(line)):
            fresh = True
            yield f"    {code[2]}", tuple(now), name, int(code[1], 16) - start
        elif name and (found := _X86_FILE.match(line)):
            here = found[1], int(found[2])
            # objdump leaves out the innermost line where it is the last instruction's.
            now = [*(now[:1] if fresh else now), here] if line.lstrip().startswith("inlined by ") else [here]
            fresh = False
