"""After all timing: every kernel that the workers compiled or loaded, with what its machine code is made of."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from abprof.evidence.disassembly import Reading, sass, x86
from abprof.records import UNREADABLE, Function, Kernel, Run
from abprof.system import files
from abprof.system import processes as proc

_LAUNCHERS = re.compile(r"__triton_launcher|cuda_utils|hip_utils|__grp__")  # what Triton makes to launch kernels
_MOST_FUNCTIONS = 60  # of an object that differs between sides: the largest
_FLAGS = re.compile(r"^(?:cflags|cuda_cflags|post_cflags|cuda_post_cflags) = (.+)$", re.MULTILINE)
_PATH_FLAG = re.compile(r"(?:-I|-isystem|-L|--sysroot)[ =]?\S+ ?")
_replace = msgspec.structs.replace


def read_kernels(run: Run, compiled: Iterable[Kernel], reader: Reader) -> tuple[Kernel, ...]:
    """The run's kernels with their code. `compiled`: those that the workers reported; objects come from the proofs."""
    # The builder's compile time, if the worker found the kernel in the build's cache.
    known = {(b.side, b.kernel, key): took for b in reversed(run.builds) for key, took in b.compile_seconds.items()}
    triton = [one for one in compiled if one.kind == "triton"]
    times = [known.get((one.side, one.package, one.key), one.seconds) for one in triton]
    todo = [*(_replace(one, seconds=took) for one, took in zip(triton, times, strict=True)), *_objects(run)]
    with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2)) as pool:
        contents = list(pool.map(lambda kernel: _content(reader, kernel), todo))
    read = [_with_code(kernel, content) for kernel, content in zip(todo, contents, strict=True)]
    found = {
        id(kernel): content for kernel, content in zip(read, contents, strict=True) if isinstance(content, Content)
    }
    objects = [_with_functions(kernel, found, read) for kernel in read]
    return (*objects, *(made for kernel in read if id(kernel) in found for made in _on_gpu(kernel, found[id(kernel)])))


def _content(reader: Reader, kernel: Kernel) -> Content | str:
    """What its file contains, or why it was not read."""
    if not kernel.path:
        return "it has no file of machine code"
    try:
        return reader.read(Path(kernel.path))
    except Unread as why:
        return str(why)
    except Exception as error:  # noqa: BLE001 - any file may be loaded, and evidence must not end a run
        return f"it could not be read: {type(error).__name__}: {error}"[:200]


def _on_gpu(kernel: Kernel, content: Content) -> list[Kernel]:
    """The CUDA C++ kernels in a shared object, which launches know by name."""
    if kernel.kind != "object":
        return []
    found = []
    for name, one in content.functions.items():
        if one.registers is not None:
            own = _replace(kernel, name=name, kind="cuda", key=f"{name} in {kernel.key}", code=one.code, missing="")
            resources = {"registers": one.registers, "stack_bytes": one.stack_bytes, "shared_bytes": one.shared_bytes}
            found.append(_replace(own, classes=one.classes, functions=(), compiler="", **resources))
    return found


def _objects(run: Run) -> list[Kernel]:
    """The distinct shared objects of each side's own build."""
    homes = {(build.side, build.kernel): build.path for build in run.builds if build.path}
    found: dict[tuple[str, str, str], Kernel] = {}
    for proof in run.proofs:
        home = homes.get((proof.side, proof.kernel))
        for artefact in proof.artefacts:
            native = artefact.kind == "object" or (artefact.kind == "module" and ".so" in artefact.path)
            own = home and artefact.path.startswith(f"{home}/")
            if native and own and not _LAUNCHERS.search(artefact.path):
                found[proof.side, proof.kernel, artefact.path] = Kernel(
                    side=proof.side,
                    package=proof.kernel,
                    name=artefact.name,
                    kind="object",
                    key=artefact.name,
                    path=artefact.path,
                    sha256=artefact.sha256,
                    flags=_flags(Path(artefact.path)),
                )
    return list(found.values())


def _flags(path: Path) -> str:
    """The compiler flags in build.ninja beside the object (torch's extension builder), without paths."""
    try:
        text = (path.parent / "build.ninja").read_text(errors="replace")
    except OSError:
        return ""
    flags = " ".join(_PATH_FLAG.sub("", line).strip() for line in _FLAGS.findall(text))
    return " ".join(dict.fromkeys(flags.split()))[:500]


def _with_code(kernel: Kernel, content: Content | str) -> Kernel:
    if isinstance(content, str):
        return _replace(kernel, missing=content)
    fields: dict[str, Any] = {"code": content.code, "compiler": content.compiler, "missing": content.missing}
    own = content.functions.get(kernel.name) if kernel.kind == "triton" else None
    if own is not None:
        fields |= {"registers": own.registers, "stack_bytes": own.stack_bytes, "classes": own.classes}
        if kernel.shared_bytes is None:
            fields["shared_bytes"] = own.shared_bytes
    elif kernel.kind == "triton" and not content.missing:
        fields["missing"] = "its name is not in the disassembly"
    elif not content.missing:
        total: dict[str, int] = {}
        for reading in (one for one in content.functions.values() if one.registers is None):  # on the processor
            for name, count in reading.classes.items():
                total[name] = total.get(name, 0) + count
        fields["classes"] = total
    return _replace(kernel, **fields)


def _with_functions(kernel: Kernel, contents: dict[int, Content], every: Sequence[Kernel]) -> Kernel:
    """An object with those of its functions that differ between sides."""
    if kernel.kind != "object" or id(kernel) not in contents:
        return kernel
    package = [other for other in every if other.kind == "object" and other.package == kernel.package]
    fellows = [other for other in package if other.key == kernel.key] if kernel.key else []
    if len({other.side for other in fellows}) < 2:  # a name with a hash in it: the only one of each side
        alone = [other for other in package if sum(one.side == other.side for one in package) == 1]
        fellows = alone if kernel in alone else fellows
    sides = [contents[id(other)].functions for other in fellows if id(other) in contents]
    names = differing(sides) if len(sides) > 1 else set()
    own = {name: one for name, one in contents[id(kernel)].functions.items() if one.registers is None}
    kept = sorted(names & own.keys(), key=lambda name: -sum(own[name].classes.values()))[:_MOST_FUNCTIONS]
    functions = tuple(
        Function(name=n, code=own[n].code, classes=own[n].classes, calls=tuple(c for c in own[n].calls if c in kept))
        for n in kept
    )
    return _replace(kernel, functions=functions)


# ---------------------------------------------------------------- one file

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
