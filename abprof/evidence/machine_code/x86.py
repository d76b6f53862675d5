"""A processor's machine code, as `objdump -d -C --no-show-raw-insn` prints it: vector width, loops, loads and stores."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from abprof.evidence.machine_code.reading import Reading

CLASSES = ("512-bit arithmetic", "256-bit arithmetic", "128-bit arithmetic", "scalar arithmetic", "loads", "stores",
           "calls", "loops", "other")  # fmt: skip
_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:\n((?:.+\n?)*)", re.MULTILINE)
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)[ \t]*([^#\n]*)", re.MULTILINE)
_TAKEN = re.compile(r"\slea\s.*# [0-9a-f]+ <(.+)>$", re.MULTILINE)  # the address of a function, or of data
_OUTLINED = re.compile(r"\b_?omp_fn\b|\.omp_outlined")  # a parallel loop, which a runtime is handed and calls
_TARGET = re.compile(r"^([0-9a-f]+) <(.+?)(?:\+0x[0-9a-f]+)?>$")
_RIP = re.compile(r"-?0x[0-9a-f]+\(%rip\)")
# Arithmetic on floats (…ps, …pd, …ph and scalar …ss, …sd) and on packed integers; moves, shuffles and logic are none.
_FLOAT = re.compile(
    r"v?(add|sub|mul|div|sqrt|min|max|rcp(14|28)?|rsqrt(14|28)?|f?n?m(add|sub)\w*|dp|hadd)(ps|pd|ph|ss|sd|sh)(\w*)"
)
_FMA = re.compile(r"vfn?m(add|sub|addsub|subadd)(132|213|231)(ps|pd|ph|ss|sd|sh)")
_INTEGER = re.compile(r"v?p(add|sub|mul|madd|min|max|sad|abs)\w+|vdp\w+|vpdp\w+")
_JUMP = re.compile(r"j\w+|loop\w*|xbegin")
_NO_ACCESS = ("lea", "nop", "prefetch", "call", "j")
_PREFIXES = {
    "data16",
    "addr32",
    "cs",
    "ds",
    "es",
    "fs",
    "gs",
    "ss",
    "rex.W",
    "lock",
    "rep",
    "repz",
    "repnz",
    "bnd",
    "notrack",
}
_COMPARES = ("cmp", "test", "ucomi", "vucomi", "comi", "vcomi")
_GLUE = ("_init", "_fini", "deregister_tm_clones", "register_tm_clones", "frame_dummy", "__do_global_dtors_aux", ".plt")


def parse(text: str) -> dict[str, Reading]:
    """Each function by its demangled name. The parts that a compiler splits off (`.cold`) stand for themselves; functions
    of one name, as every source file may have a static one, are read together."""
    found: dict[str, list[Reading]] = {}
    for at, name, body in _FUNCTION.findall(text):
        if not name.startswith(_GLUE) and "@plt" not in name:
            found.setdefault(name, []).append(_reading(int(at, 16), name, body))
    return {name: _together(readings) for name, readings in found.items()}


def _together(readings: Sequence[Reading]) -> Reading:
    """As one: the sums of their instructions, and a hash that does not depend on their order."""
    if len(readings) == 1:
        return readings[0]
    digest = hashlib.sha256(" ".join(sorted(one.code for one in readings)).encode())
    return Reading(
        code=digest.hexdigest(),
        classes={name: sum(r.classes[name] for r in readings) for name in CLASSES},
        calls=tuple(sorted({name for one in readings for name in one.calls})),
    )


def _reading(start: int, name: str, body: str) -> Reading:
    lines = _LINE.findall(body)
    called = {taken for taken in _TAKEN.findall(body) if _OUTLINED.search(taken)}
    counted = dict.fromkeys(CLASSES, 0)
    digest = hashlib.sha256()
    heads = set()
    end = len(lines)
    while end and _pads(*lines[end - 1][1:]):
        end -= 1  # what fills up to the next function is of where that begins
    for at, word, told in lines[:end]:
        prefix, opcode, operands = _split(word, told.strip())
        target = _TARGET.match(operands)
        inside = target is not None and target[2] == name and _JUMP.fullmatch(opcode)
        if target and inside:
            to = int(target[1], 16)
            digest.update(f"{prefix}{opcode} {to - start}\n".encode())
            if start <= to < int(at, 16):
                heads.add(to)  # two jumps back to one place are one loop
        else:
            if target and opcode.startswith(("call", "jmp")):
                called.add(target[2].removesuffix("@plt"))
            plain = target[2] if target else _RIP.sub("(%rip)", operands)
            digest.update(f"{prefix}{opcode} {plain}\n".encode())
        if not _idle(opcode, operands):
            _count(counted, opcode, "" if inside else operands)
    counted["loops"] = len(heads)
    return Reading(code=digest.hexdigest(), classes=counted, calls=tuple(sorted(called - {name})))


def _split(opcode: str, operands: str) -> tuple[str, str, str]:
    """(prefixes, opcode, operands): objdump prints `data16 cs nopw 0x0(%rax)` with a prefix in the opcode's place."""
    prefix = ""
    while opcode in _PREFIXES and operands:
        prefix += f"{opcode} "
        opcode, _, operands = operands.partition(" ")
        operands = operands.strip()
    return prefix, opcode, operands


def _idle(opcode: str, operands: str) -> bool:
    """Whether it does nothing: compilers align loops with such."""
    return opcode.startswith("nop") or (opcode == "xchg" and operands.replace(" ", "") == "%ax,%ax")


def _pads(word: str, told: str) -> bool:
    _, opcode, operands = _split(word, told.strip())
    return opcode == "int3" or _idle(opcode, operands)


def _count(counted: dict[str, int], opcode: str, operands: str) -> None:
    arithmetic = _arithmetic(opcode, operands)
    if arithmetic:
        counted[arithmetic] += 1
    elif opcode.startswith("call") or (opcode == "jmp" and _TARGET.match(operands)):  # to another function, for good
        counted["calls"] += 1
    else:
        counted["other"] += 1
    if "(" in operands and not opcode.startswith(_NO_ACCESS):
        last = re.split(r",(?![^(]*\))", operands)[-1]  # what is written; of a comparison it is read
        counted["stores" if "(" in last and not opcode.startswith(_COMPARES) else "loads"] += 1


def _arithmetic(opcode: str, operands: str) -> str:
    """The class of an instruction that computes with floats, or with packed integers; "" for any other."""
    floats = _FMA.fullmatch(opcode) or _FLOAT.fullmatch(opcode)
    if floats:
        kind = next(group for group in floats.groups() if group in {"ps", "pd", "ph", "ss", "sd", "sh"})
        if kind in {"ss", "sd", "sh"}:
            return "scalar arithmetic"
    elif not _INTEGER.fullmatch(opcode):
        return ""
    for register, width in (("%zmm", "512"), ("%ymm", "256"), ("%xmm", "128")):
        if register in operands:
            return f"{width}-bit arithmetic"
    return ""
