"""Disassembly as text -> functions: a hash of each one's instructions, and how many there are of each class."""

from __future__ import annotations

import hashlib
import re

from abprof.records import Record


class Reading(Record, frozen=True, kw_only=True):
    """One function. Resources are None on a processor."""

    code: str  # hash of its instructions
    classes: dict[str, int]  # instructions by class, and loops
    registers: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    calls: tuple[str, ...] = ()  # on a processor: functions it calls, or hands to a runtime as a parallel loop


# ---------------------------------------------------------------- GPU: `cuobjdump -sass -res-usage`

# Class -> first parts of opcodes (CUDA Binary Utilities, "Instruction Set Reference", Volta to Blackwell).
_SASS = {
    "tensor": "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCQMMA UTCIMMA UTCOMMA",
    "global loads": "LDG LD",
    "global stores": "STG ST",
    "asynchronous copies": "LDGSTS UBLKCP UBLKRED UTMALDG UTMASTG UTMAREDG",
    "atomics": "ATOM ATOMG ATOMS RED REDG REDUX",
    "shared loads": "LDS LDSM",
    "shared stores": "STS STSM",
    "local loads": "LDL",
    "local stores": "STL",
    "special functions": "MUFU",
    "barriers": "BAR SYNCS MEMBAR WARPGROUP LDGDEPBAR DEPBAR UTMACMDFLUSH",
}
_CLASS_OF = {opcode: name for name, opcodes in _SASS.items() for opcode in opcodes.split()}
_USAGE = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)")
_SASS_FUNCTION = re.compile(r"^\s*Function : (\S+)\s*$", re.MULTILINE)
_OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
_BRANCH = re.compile(r"/\*([0-9a-f]{4,})\*/[^;/]*\bBRA\b[^;]*?\b0x([0-9a-f]+)\s*;")
_ENCODING = re.compile(r"/\* (0x[0-9a-f]{16}) \*/")


def sass(text: str) -> dict[str, Reading]:
    """Each function of a cubin or of an object with GPU code; of several architectures the last."""
    usage = {name: (int(registers), int(stack), int(shared)) for name, registers, stack, shared in _USAGE.findall(text)}
    parts = _SASS_FUNCTION.split(text)[1:]
    found = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        counted = dict.fromkeys((*_SASS, "loops", "other"), 0)
        branches = [(int(at, 16), int(to, 16)) for at, to in _BRANCH.findall(body)]
        counted["loops"] = len({to for at, to in branches if to < at})  # a jump to itself pads the end
        for opcode in _OPCODE.findall(body):
            if opcode != "NOP":
                counted[_CLASS_OF.get(opcode, "other")] += 1
        registers, stack, shared = usage.get(name, (None, None, None))
        code = hashlib.sha256("".join(_ENCODING.findall(body)).encode()).hexdigest()
        found[name] = Reading(code=code, registers=registers, stack_bytes=stack, shared_bytes=shared, classes=counted)
    return found


# ---------------------------------------------------------------- x86-64: `objdump -d -C --no-show-raw-insn`

# Arithmetic on floats (...ps, ...pd, ...ph; scalar ...ss, ...sd, ...sh) and packed integers; not moves, shuffles, logic.
_FLOAT = r"v?(?:f?n?m)?(?:add|sub|mul|div|sqrt|min|max|rcp|rsqrt|dp|hadd)\w*?"
_PACKED = rf"(?:{_FLOAT}p[sdh]|v?p(?:add|sub|mul|madd|min|max|sad|abs)\w+|v?p?dp\w+)\s.*"
_X86 = {  # class -> instruction; the first that matches
    "512-bit arithmetic": re.compile(rf"{_PACKED}%zmm"),
    "256-bit arithmetic": re.compile(rf"{_PACKED}%ymm"),
    "128-bit arithmetic": re.compile(rf"{_PACKED}%xmm"),
    "scalar arithmetic": re.compile(rf"{_FLOAT}s[sdh]\s"),
    "calls": re.compile(r"call|jmp\s+[0-9a-f]+ <"),  # also a tail call
    "other": re.compile(""),
}
_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:\n((?:.+\n?)*)", re.MULTILINE)
_PREFIX = r"(?:(?:data16|addr32|[cdefgs]s|rex\.W|lock|repn?z?|bnd|notrack)\s+)*"
_LINE = re.compile(rf"^\s*([0-9a-f]+):[ \t]+({_PREFIX})(.+?)(?:[ \t]+# .*)?[ \t]*$", re.MULTILINE)
_IDLE = re.compile(r"nop|int3|xchg\s+%ax,\s*%ax$")  # what aligns loops and pads functions
_ADDRESS = re.compile(r"\slea\s.*# [0-9a-f]+ <(.+)>$", re.MULTILINE)  # the address of a function, or of data
_OUTLINED = re.compile(r"\b_?omp_fn\b|\.omp_outlined")  # a parallel loop, which a runtime is handed and calls
_TARGET = re.compile(r"\s([0-9a-f]+) <(.+?)(?:\+0x[0-9a-f]+)?>$")
_RIP = re.compile(r"-?0x[0-9a-f]+\(%rip\)")
_JUMP = re.compile(r"j\w+\s|loop\w*\s|xbegin\s")
_NO_ACCESS = ("lea", "prefetch", "call", "j")
_COMPARES = ("cmp", "test", "ucomi", "vucomi", "comi", "vcomi")
_GLUE = ("_init", "_fini", "deregister_tm_clones", "register_tm_clones", "frame_dummy", "__do_global_dtors_aux", ".plt")


def x86(text: str) -> dict[str, Reading]:
    """Each function by its demangled name; functions of one name (static ones of several files) are read together. Parts
    that a compiler splits off (`.cold`) are functions of their own."""
    found: dict[str, list[Reading]] = {}
    for at, name, body in _FUNCTION.findall(text):
        if not name.startswith(_GLUE) and "@plt" not in name:
            found.setdefault(name, []).append(_function(int(at, 16), name, body))
    return {
        name: Reading(
            code=hashlib.sha256(" ".join(sorted(one.code for one in readings)).encode()).hexdigest(),
            classes={kind: sum(one.classes[kind] for one in readings) for kind in readings[0].classes},
            calls=tuple(sorted({called for one in readings for called in one.calls})),
        )
        for name, readings in found.items()
    }


def _function(start: int, name: str, body: str) -> Reading:
    calls = {name for name in _ADDRESS.findall(body) if _OUTLINED.search(name)}
    counted = dict.fromkeys((*_X86, "loads", "stores", "loops"), 0)
    digest, heads = hashlib.sha256(), set()
    for place, prefix, text in _LINE.findall(body):
        if _IDLE.match(text):
            continue
        target, plain, jump = _TARGET.search(text), _RIP.sub("(%rip)", text), False
        if target:
            jump, to = target[2] == name and _JUMP.match(text) is not None, int(target[1], 16)
            plain = text[: target.start()] + (f" {to - start}" if jump else f" {target[2]}")
            if jump and start <= to < int(place, 16):
                heads.add(to)  # several jumps back to one place are one loop
            elif not jump and text.startswith(("call", "jmp")):
                calls.add(target[2].removesuffix("@plt"))
        digest.update(f"{prefix}{plain}\n".encode())
        counted["other" if jump else next(kind for kind, pattern in _X86.items() if pattern.match(text))] += 1
        if "(" in text and not target and not text.startswith(_NO_ACCESS):
            last = re.split(r",(?![^(]*\))", text)[-1]  # written, except by a comparison
            counted["stores" if "(" in last and not text.startswith(_COMPARES) else "loads"] += 1
    counted["loops"] = len(heads)
    return Reading(code=digest.hexdigest(), classes=counted, calls=tuple(sorted(calls - {name})))
