"""What of an ELF file is machine code, so that names, paths and line numbers in it do not make two kernels different."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass

X86_64, CUDA = 62, 190  # e_machine
_CODE = re.compile(r"\.(text|rodata|data\.rel\.ro|data|tdata|nv\.constant\d|nv\.global\.init|nv_fatbin)\b")
_NOBITS = 8


@dataclass(frozen=True)
class Elf:
    """A 64-bit ELF file: what it is for, and its sections."""

    machine: int
    sections: tuple[tuple[str, bytes], ...]

    @property
    def code(self) -> str:
        """SHA-256 of code and constants, without the names of what they belong to."""
        digest = hashlib.sha256()
        for name, body in self.sections:
            found = _CODE.match(name)
            if found:
                digest.update(f"{found[1]} {len(body)} ".encode() + body)
        return digest.hexdigest()

    @property
    def names(self) -> list[str]:
        """The names of its sections: those of a cubin's kernels are in them."""
        return sorted(name for name, _ in self.sections if name.startswith(".text"))

    @property
    def stripped(self) -> bool:
        """Whether nothing in it says where each function begins; what it exports is told all the same."""
        return all(name != ".symtab" for name, _ in self.sections)

    @property
    def compiler(self) -> str:
        """What made it, by its own account; "" where it does not say."""
        notes = [body for name, body in self.sections if name == ".comment"]
        told = dict.fromkeys(part.decode(errors="replace") for body in notes for part in body.split(b"\0") if part)
        return "; ".join(told)[:200]

    @property
    def on_gpu(self) -> bool:
        """Whether it has code for a GPU in it."""
        return self.machine == CUDA or any(name == ".nv_fatbin" and body for name, body in self.sections)


def parse(data: bytes) -> Elf:
    """The file's sections. Raises ValueError for anything but a whole little-endian 64-bit ELF file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    try:
        (machine,) = struct.unpack_from("<H", data, 18)
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count, names_at = struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
        names = _body(data, headers[names_at])
        found = [(_name(names, header[0]), _body(data, header)) for header in headers]
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"a damaged ELF file: {error}") from None
    return Elf(machine, tuple(found))


def _body(data: bytes, header: tuple[int, ...]) -> bytes:
    _, kind, _, _, offset, size = header
    if kind == _NOBITS:
        return b""
    if offset + size > len(data):
        raise IndexError("a section ends beyond the file")
    return data[offset : offset + size]


def _name(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at) if b"\0" in names[at:] else len(names)].decode()
