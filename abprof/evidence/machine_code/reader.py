"""Reads machine code by the disassemblers that are there, once per distinct content: what was read is kept in the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from abprof.evidence.machine_code import elf, sass, x86
from abprof.evidence.machine_code.reading import Reading
from abprof.records import UNREADABLE
from abprof.system import processes as proc

_VERSION = 6  # of what is read out of a disassembly: another makes what is kept unread
_LARGEST = 256 << 20  # bytes of a file
_MOST_NAMES = 2000  # of one file: more do not fit into a command line
_TIMEOUT = 120.0  # seconds for one file


class Unread(Exception):
    """Why a file's machine code was not read."""


class Content(msgspec.Struct, frozen=True):
    """One file: the hash of its code, its compiler, each function. `missing`: why the functions are not here."""

    code: str
    compiler: str = ""
    functions: dict[str, Reading] = {}
    missing: str = ""


class Reader:
    """`folder` keeps what was read; `prefixes` are interpreters' folders whose Triton may bring a disassembler along."""

    def __init__(self, folder: Path, prefixes: Sequence[str] = ()) -> None:
        self._folder = folder
        self._cuobjdump = _cuobjdump(prefixes)
        self._objdump = shutil.which("objdump") or ""

    def read(self, path: Path) -> Content:
        """What the file is made of. Raises Unread when it is gone, too large or no ELF file."""
        try:
            if path.stat().st_size > _LARGEST:
                raise Unread(f"larger than {_LARGEST >> 20} MiB")
            data = path.read_bytes()
            found = elf.parse(data)
        except OSError as error:
            raise Unread(f"its file could not be read: {error.strerror}") from None
        except ValueError as error:
            raise Unread(str(error)) from None
        tool = self._cuobjdump if found.on_gpu else self._objdump
        # A cubin by its code: paths and line numbers in it differ between sides. An object has names in many places.
        content = f"{found.code} {found.names}".encode() if found.machine == elf.CUDA else data
        kept = self._folder / f"{_VERSION}-{hashlib.sha256(content + tool.encode()).hexdigest()}.json"
        try:
            return msgspec.json.decode(kept.read_bytes(), type=Content)
        except (OSError, *UNREADABLE):
            pass
        fresh = self._disassemble(path, found)
        if not fresh.missing:
            _keep(kept, msgspec.json.encode(fresh))
        return fresh

    def _disassemble(self, path: Path, found: elf.Elf) -> Content:
        code, compiler = found.code, found.compiler
        functions: dict[str, Reading] = {}
        if found.on_gpu:
            if not self._cuobjdump:
                return Content(code, compiler, missing="no cuobjdump here (Triton and the CUDA toolkit bring one)")
            beside = {"PATH": os.pathsep.join([str(Path(self._cuobjdump).parent), os.environ.get("PATH", os.defpath)])}
            text = proc.output([self._cuobjdump, "-sass", "-res-usage", str(path)], timeout=_TIMEOUT, env=beside)
            functions |= _demangled(sass.parse(text or ""))
        if found.machine == elf.X86_64:
            if not self._objdump:
                return Content(code, compiler, missing="no objdump here (binutils has it)")
            if not found.stripped:
                argv = [self._objdump, "-d", "-C", "--no-show-raw-insn", str(path)]
                functions |= x86.parse(proc.output(argv, timeout=_TIMEOUT, env={"LC_ALL": "C"}) or "")
            elif not functions:
                return Content(code, compiler, missing="stripped of its symbols: its functions cannot be told apart")
        elif found.machine != elf.CUDA:
            return Content(code, compiler, missing="machine code of this kind of processor is not read")
        missing = "" if functions else "the disassembler found no function in it"
        return Content(code, compiler, functions, missing)


def _demangled(functions: dict[str, Reading]) -> dict[str, Reading]:
    """By the names that a profiler shows; by those in the file where c++filt is not there."""
    mangled = [name for name in functions if name.startswith("_Z")][:_MOST_NAMES]
    told = proc.output(["c++filt", *mangled]) if mangled else None
    plain = dict(zip(mangled, (told or "").splitlines(), strict=False))
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


def _keep(path: Path, data: bytes) -> None:
    """Losing it costs a disassembly, so a disk that refuses is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        return


def differing(sides: Sequence[Mapping[str, Reading]]) -> set[str]:
    """Functions that are not the same on all sides."""
    names = {name for side in sides for name in side}
    return {name for name in names if len({side[name].code if name in side else "" for side in sides}) > 1}
