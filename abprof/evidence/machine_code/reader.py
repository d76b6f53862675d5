"""Reads machine code with the disassemblers that are installed, once per distinct content (cached on disk)."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof.evidence.machine_code.disassembly import Reading, sass, x86
from abprof.records import UNREADABLE
from abprof.system import files
from abprof.system import processes as proc

_VERSION = 6  # of what is read from a disassembly: a change makes cached readings void
_LARGEST = 256 << 20  # bytes of a file
_MOST_NAMES = 2000  # per command line of c++filt
_TIMEOUT = 120.0  # seconds per file
# Code and constants. Other sections have names, paths and line numbers, which do not make two kernels different.
_CODE = re.compile(r"\.(text|rodata|data\.rel\.ro|data|tdata|nv\.constant\d|nv\.global\.init|nv_fatbin)\b")


class Unread(Exception):
    """Why a file's machine code was not read."""


@dataclass(frozen=True)
class Elf:
    """What a 64-bit ELF file contains. `code`: SHA-256 of code and constants, without the names of what they belong to."""

    machine: str
    code: str
    names: tuple[str, ...]  # of the code sections: a cubin's kernels are in them
    compiler: str
    stripped: bool  # nothing shows where each function begins
    on_gpu: bool


class Content(msgspec.Struct, frozen=True):
    """One file: hash of its code, its compiler, its functions. `missing`: why the functions are not here."""

    code: str
    compiler: str = ""
    functions: dict[str, Reading] = {}
    missing: str = ""


def parse_elf(data: bytes) -> Elf:
    """Raises ValueError for anything but a whole little-endian 64-bit ELF file."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    try:
        file = ELFFile(io.BytesIO(data))
        machine, sections = str(file["e_machine"]), []
        for section in file.iter_sections():
            begin, size = section["sh_offset"], 0 if section["sh_type"] == "SHT_NOBITS" else section["sh_size"]
            if begin + size > len(data) and size:
                raise ValueError("a damaged ELF file: a section ends beyond the file")
            sections.append((section.name, data[begin : begin + size]))
    except ValueError:
        raise
    except (ELFError, Exception) as error:  # noqa: BLE001 - the parser trips over damaged files in many ways
        raise ValueError(f"a damaged ELF file: {error}") from None
    digest = hashlib.sha256()
    for name, body in sections:
        found = _CODE.match(name)
        if found:
            digest.update(f"{found[1]} {len(body)} ".encode() + body)
    comments = [body for name, body in sections if name == ".comment"]
    compilers = dict.fromkeys(part.decode(errors="replace") for body in comments for part in body.split(b"\0") if part)
    return Elf(
        machine=machine,
        code=digest.hexdigest(),
        names=tuple(sorted(name for name, _ in sections if name.startswith(".text"))),
        compiler="; ".join(compilers)[:200],
        stripped=all(name != ".symtab" for name, _ in sections),
        on_gpu=machine == "EM_CUDA" or any(name == ".nv_fatbin" and body for name, body in sections),
    )


class Reader:
    """`folder` caches readings; `prefixes` are interpreters' folders whose Triton may have a disassembler."""

    def __init__(self, folder: Path, prefixes: Sequence[str] = ()) -> None:
        self._folder = folder
        self._cuobjdump = _cuobjdump(prefixes)
        self._objdump = shutil.which("objdump") or ""

    def read(self, path: Path) -> Content:
        """A file's content. Raises Unread if it is gone, too large or not an ELF file."""
        try:
            if path.stat().st_size > _LARGEST:
                raise Unread(f"larger than {_LARGEST >> 20} MiB")
            data = path.read_bytes()
            elf = parse_elf(data)
        except OSError as error:
            raise Unread(f"its file could not be read: {error.strerror}") from None
        except ValueError as error:
            raise Unread(str(error)) from None
        tool = self._cuobjdump if elf.on_gpu else self._objdump
        # A cubin by its code: paths and line numbers in it differ between sides. An object has names in many places.
        content = f"{elf.code} {list(elf.names)}".encode() if elf.machine == "EM_CUDA" else data
        cached = self._folder / f"{_VERSION}-{hashlib.sha256(content + tool.encode()).hexdigest()}.json"
        try:
            return msgspec.json.decode(cached.read_bytes(), type=Content)
        except (OSError, *UNREADABLE):
            pass
        fresh = self._disassemble(path, elf)
        if not fresh.missing:
            try:
                files.put(cached, msgspec.json.encode(fresh))
            except Exception:  # noqa: BLE001, S110 - a cache that cannot be written costs another disassembly
                pass
        return fresh

    def _disassemble(self, path: Path, elf: Elf) -> Content:
        functions: dict[str, Reading] = {}
        missing = ""
        if elf.on_gpu:
            if not self._cuobjdump:
                missing = "no cuobjdump here (Triton and the CUDA toolkit bring one)"
                return Content(elf.code, elf.compiler, missing=missing)
            search = os.pathsep.join([str(Path(self._cuobjdump).parent), os.environ.get("PATH", os.defpath)])
            argv = [self._cuobjdump, "-sass", "-res-usage", str(path)]
            functions |= _demangled(sass(proc.output(argv, timeout=_TIMEOUT, env={"PATH": search}) or ""))
        if elf.machine == "EM_X86_64":
            if not self._objdump:
                return Content(elf.code, elf.compiler, missing="no objdump here (binutils has it)")
            if not elf.stripped:
                argv = [self._objdump, "-d", "-C", "--no-show-raw-insn", str(path)]
                functions |= x86(proc.output(argv, timeout=_TIMEOUT, env={"LC_ALL": "C"}) or "")
            elif not functions:
                missing = "stripped of its symbols: its functions cannot be distinguished"
        elif elf.machine != "EM_CUDA":
            return Content(elf.code, elf.compiler, missing="machine code of this kind of processor is not read")
        missing = missing or ("" if functions else "the disassembler found no function in it")
        return Content(elf.code, elf.compiler, functions, missing)


def _demangled(functions: dict[str, Reading]) -> dict[str, Reading]:
    """By the names that a profiler shows; unchanged without c++filt."""
    mangled = [name for name in functions if name.startswith("_Z")][:_MOST_NAMES]
    text = proc.output(["c++filt", *mangled]) if mangled else None
    plain = dict(zip(mangled, (text or "").splitlines(), strict=False))
    return {plain.get(name, name): reading for name, reading in functions.items()}


def _cuobjdump(prefixes: Sequence[str]) -> str:
    """Triton's own, of abprof's interpreter or of a side's; else the toolkit's."""
    inside = "backends/nvidia/bin/cuobjdump"
    spec = importlib.util.find_spec("triton")
    places = [Path(place) / inside for place in (spec.submodule_search_locations or () if spec else ())]
    for prefix in prefixes:
        places += sorted(Path(prefix).glob(f"lib/python*/site-packages/triton/{inside}"))
    found = next((str(place) for place in places if os.access(place, os.X_OK)), "")
    toolkit = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return found or shutil.which("cuobjdump") or shutil.which("cuobjdump", path=f"{toolkit}/bin") or ""


def differing(sides: Sequence[Mapping[str, Reading]]) -> set[str]:
    """Functions that are not the same on all sides."""
    names = {name for side in sides for name in side}
    return {name for name in names if len({side[name].code if name in side else "" for side in sides}) > 1}
