"""Disassembly as text -> functions: a hash of each one's instructions, and how many there are of each class."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

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
SASS_CLASSES: dict[str, tuple[str, ...]] = {
    "tensor": ("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA",
               "UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA"),
    "global loads": ("LDG", "LD"),
    "global stores": ("STG", "ST"),
    "asynchronous copies": ("LDGSTS", "UBLKCP", "UBLKRED", "UTMALDG", "UTMASTG", "UTMAREDG"),
    "atomics": ("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDUX"),
    "shared loads": ("LDS", "LDSM"),
    "shared stores": ("STS", "STSM"),
    "local loads": ("LDL",),
    "local stores": ("STL",),
    "special functions": ("MUFU",),
    "barriers": ("BAR", "SYNCS", "MEMBAR", "WARPGROUP", "LDGDEPBAR", "DEPBAR", "UTMACMDFLUSH"),
}  # fmt: skip
_CLASS_OF = {opcode: name for name, opcodes in SASS_CLASSES.items() for opcode in opcodes}
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
        counted = dict.fromkeys((*SASS_CLASSES, "loops", "other"), 0)
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

X86_CLASSES = ("512-bit arithmetic", "256-bit arithmetic", "128-bit arithmetic", "scalar arithmetic", "loads", "stores",
               "calls", "loops", "other")  # fmt: skip
_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:\n((?:.+\n?)*)", re.MULTILINE)
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)[ \t]*([^#\n]*)", re.MULTILINE)
_ADDRESS = re.compile(r"\slea\s.*# [0-9a-f]+ <(.+)>$", re.MULTILINE)  # the address of a function, or of data
_OUTLINED = re.compile(r"\b_?omp_fn\b|\.omp_outlined")  # a parallel loop, which a runtime is handed and calls
_TARGET = re.compile(r"^([0-9a-f]+) <(.+?)(?:\+0x[0-9a-f]+)?>$")
_RIP = re.compile(r"-?0x[0-9a-f]+\(%rip\)")
# Arithmetic on floats (...ps, ...pd, ...ph; scalar ...ss, ...sd, ...sh) and packed integers; not moves, shuffles, logic.
_FLOAT = re.compile(
    r"v?(?:add|sub|mul|div|sqrt|min|max|rcp(?:14|28)?|rsqrt(?:14|28)?|f?n?m(?:add|sub)\w*|dp|hadd)(ps|pd|ph|ss|sd|sh)\w*"
    r"|vfn?m(?:add|sub|addsub|subadd)(?:132|213|231)(ps|pd|ph|ss|sd|sh)"
)
_INTEGER = re.compile(r"v?p(?:add|sub|mul|madd|min|max|sad|abs)\w+|vdp\w+|vpdp\w+")
_JUMP = re.compile(r"j\w+|loop\w*|xbegin")
_NO_ACCESS = ("lea", "nop", "prefetch", "call", "j")
_PREFIXES = frozenset(
    ["data16", "addr32", "cs", "ds", "es", "fs", "gs", "ss", "rex.W", "lock", "rep", "repz", "repnz", "bnd", "notrack"]
)
_COMPARES = ("cmp", "test", "ucomi", "vucomi", "comi", "vcomi")
_GLUE = ("_init", "_fini", "deregister_tm_clones", "register_tm_clones", "frame_dummy", "__do_global_dtors_aux", ".plt")


def x86(text: str) -> dict[str, Reading]:
    """Each function by its demangled name; functions of one name (static ones of several files) are read together. Parts
    that a compiler splits off (`.cold`) are functions of their own."""
    found: dict[str, list[Reading]] = {}
    for at, name, body in _FUNCTION.findall(text):
        if not name.startswith(_GLUE) and "@plt" not in name:
            found.setdefault(name, []).append(_function(int(at, 16), name, body))
    return {name: _together(readings) for name, readings in found.items()}


def _together(readings: Sequence[Reading]) -> Reading:
    """The sums, and a hash that does not depend on the order."""
    if len(readings) == 1:
        return readings[0]
    return Reading(
        code=hashlib.sha256(" ".join(sorted(one.code for one in readings)).encode()).hexdigest(),
        classes={name: sum(one.classes[name] for one in readings) for name in X86_CLASSES},
        calls=tuple(sorted({name for one in readings for name in one.calls})),
    )


def _function(start: int, name: str, body: str) -> Reading:
    lines = [(int(at, 16), *_split(word, rest.strip())) for at, word, rest in _LINE.findall(body)]
    while lines and (lines[-1][2] == "int3" or _idle(*lines[-1][2:])):
        lines.pop()  # padding before the next function
    calls = {name for name in _ADDRESS.findall(body) if _OUTLINED.search(name)}
    counted = dict.fromkeys(X86_CLASSES, 0)
    digest, heads = hashlib.sha256(), set()
    for at, prefix, opcode, operands in lines:
        target = _TARGET.match(operands)
        inside = target is not None and target[2] == name and _JUMP.fullmatch(opcode) is not None
        if target and inside:
            to = int(target[1], 16)
            plain = str(to - start)
            if start <= to < at:
                heads.add(to)  # several jumps back to one place are one loop
        else:
            plain = target[2] if target else _RIP.sub("(%rip)", operands)
            if target and opcode.startswith(("call", "jmp")):
                calls.add(target[2].removesuffix("@plt"))
        digest.update(f"{prefix}{opcode} {plain}\n".encode())
        if not _idle(opcode, operands):
            _count(counted, opcode, "" if inside else operands)
    counted["loops"] = len(heads)
    return Reading(code=digest.hexdigest(), classes=counted, calls=tuple(sorted(calls - {name})))


def _split(opcode: str, operands: str) -> tuple[str, str, str]:
    """(prefixes, opcode, operands): objdump prints `data16 cs nopw 0x0(%rax)` with a prefix as the opcode."""
    prefix = ""
    while opcode in _PREFIXES and operands:
        prefix += f"{opcode} "
        opcode, _, operands = operands.partition(" ")
        operands = operands.strip()
    return prefix, opcode, operands


def _idle(opcode: str, operands: str) -> bool:
    """Whether it does nothing: compilers align loops with these."""
    return opcode.startswith("nop") or (opcode == "xchg" and operands.replace(" ", "") == "%ax,%ax")


def _count(counted: dict[str, int], opcode: str, operands: str) -> None:
    kind = _arithmetic(opcode, operands)
    if not kind:
        calls = opcode.startswith("call") or (opcode == "jmp" and _TARGET.match(operands))  # also a tail call
        kind = "calls" if calls else "other"
    counted[kind] += 1
    if "(" in operands and not opcode.startswith(_NO_ACCESS):
        last = re.split(r",(?![^(]*\))", operands)[-1]  # written, except by a comparison
        counted["stores" if "(" in last and not opcode.startswith(_COMPARES) else "loads"] += 1


def _arithmetic(opcode: str, operands: str) -> str:
    """The class of an instruction that computes with floats or packed integers, else ""."""
    floats = _FLOAT.fullmatch(opcode)
    if floats and (floats[1] or floats[2]) in {"ss", "sd", "sh"}:
        return "scalar arithmetic"
    if not floats and not _INTEGER.fullmatch(opcode):
        return ""
    widths = (("%zmm", "512"), ("%ymm", "256"), ("%xmm", "128"))
    return next((f"{width}-bit arithmetic" for register, width in widths if register in operands), "")
