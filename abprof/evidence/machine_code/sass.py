"""A GPU's machine code, as cuobjdump prints it (`-sass -res-usage`): resources and classes of instructions."""

from __future__ import annotations

import hashlib
import re

from abprof.evidence.machine_code.reading import Reading

# Class -> first parts of the opcodes (CUDA Binary Utilities, "Instruction Set Reference", Volta to Blackwell).
CLASSES: dict[str, tuple[str, ...]] = {
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
_CLASS_OF = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes}
_USAGE = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)")
_FUNCTION = re.compile(r"^\s*Function : (\S+)\s*$", re.MULTILINE)
_OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
_JUMP = re.compile(r"/\*([0-9a-f]{4,})\*/[^;/]*\bBRA\b[^;]*?\b0x([0-9a-f]+)\s*;")
_ENCODING = re.compile(r"/\* (0x[0-9a-f]{16}) \*/")


def parse(text: str) -> dict[str, Reading]:
    """Each function of a cubin, or of an object with GPU code in it. An object for several architectures gives the last's."""
    usage = {name: (int(registers), int(stack), int(shared)) for name, registers, stack, shared in _USAGE.findall(text)}
    parts = _FUNCTION.split(text)[1:]
    found = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        registers, stack, shared = usage.get(name, (None, None, None))
        encoding = hashlib.sha256("".join(_ENCODING.findall(body)).encode()).hexdigest()
        found[name] = Reading(
            code=encoding, registers=registers, stack_bytes=stack, shared_bytes=shared, classes=classes(body)
        )
    return found


def classes(body: str) -> dict[str, int]:
    """How many instructions there are of each class, and of no class ("other"), and how many loops. Padding is not
    counted."""
    counted = dict.fromkeys((*CLASSES, "loops", "other"), 0)
    jumps = [(int(at, 16), int(to, 16)) for at, to in _JUMP.findall(body)]
    counted["loops"] = len({to for at, to in jumps if to < at})  # a jump to itself is the padding after the end
    for opcode in _OPCODE.findall(body):
        if opcode != "NOP":
            counted[_CLASS_OF.get(opcode, "other")] += 1
    return counted
