"""Read the machine code of every kernel that the workers compiled or loaded, after all timing."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

from abprof.records import UNREADABLE, Function, Kernel, Record, Run
from abprof.records.errors import AbprofError
from abprof.system import doorway, files
from abprof.system import processes as proc

_LAUNCHERS = re.compile(r"__triton_launcher|cuda_utils|hip_utils|__grp__")  # Triton makes these to launch kernels
_MOST_FUNCTIONS = 60  # kept of an object that differs between sides: the largest
_replace = msgspec.structs.replace


class Reading(Record, frozen=True, kw_only=True):
    """What the machine code of a function shows: numbers of instructions and, on a GPU, its registers and memory."""

    code: str  # hash of its instructions
    classes: dict[str, int]  # number of instructions by class, and of loops
    registers: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    calls: tuple[str, ...] = ()  # of a CPU's function: functions that it calls, or passes to a runtime as loops


class Content(msgspec.Struct, frozen=True):
    """The machine code of a file: its hash, and its functions by name. `missing`: why functions were not read."""

    code: str = ""
    functions: dict[str, Reading] = {}
    missing: str = ""


_CONTENT = msgspec.json.Decoder(Content)  # made here, since threads decode: see system/processes/worker.py


def read_kernels(run: Run, compiled: Iterable[Kernel], cache: Path) -> tuple[Kernel, ...]:
    """Return the kernels in `compiled` and in the shared objects that workers loaded, with their machine code.

    `cache`: a folder that keeps the disassembly of each file for later runs.
    """
    # The builder's compile time, if the worker found the kernel in the build's cache.
    known = {(b.side, b.kernel, key): took for b in reversed(run.builds) for key, took in b.compile_seconds.items()}
    triton = [_replace(one, seconds=known.get((one.side, one.package, one.key), one.seconds))
              for one in compiled if one.kind == "triton"]  # fmt: skip
    todo = [*triton, *_objects(run)]
    homes = [Path(build.path) for build in run.builds if build.path]
    contents = at_once(lambda kernel: content(kernel.path, cache, homes), todo)
    pairs = list(zip(todo, contents, strict=True))
    found = []
    for kernel, of in pairs:
        if kernel.kind == "triton":
            own = of.functions.get(kernel.name)
            missing = of.missing or ("" if own else "the disassembly lacks the kernel's name")
            found.append(_filled(kernel, own, code=of.code, missing=missing))
            continue
        # The CUDA C++ kernels in a shared object are known to launches by name; the rest runs on the processor.
        host = {name: one for name, one in of.functions.items() if one.registers is None}
        total = Counter[str]()
        for one in host.values():
            total.update(one.classes)
        differ = _differing(kernel, pairs)
        kept = sorted(differ & host.keys(), key=lambda name: -sum(host[name].classes.values()))[:_MOST_FUNCTIONS]
        functions = tuple(Function(name=n, code=host[n].code, classes=host[n].classes,
                                   calls=host[n].calls) for n in kept)  # fmt: skip
        classes = None if of.missing else dict(total)
        found.append(_replace(kernel, code=of.code, missing=of.missing, classes=classes, functions=functions))
        for name, one in of.functions.items():
            if one.registers is not None:
                made = _replace(kernel, name=name, kind="cuda", key=f"{name} in {kernel.key}")
                found.append(_filled(made, one, code=one.code, missing=""))
    return tuple(found)


def at_once(function: Callable[[Any], Any], each: Iterable[Any]) -> list[Any]:
    """Return the function's result for each item, made by threads on half of the processors."""
    with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2)) as pool:
        return list(pool.map(function, each))


def _filled(kernel: Kernel, of: Reading | None, **fields: Any) -> Kernel:
    if of is not None:
        fields |= {name: getattr(of, name) for name in ("registers", "stack_bytes", "classes")}
        fields["shared_bytes"] = of.shared_bytes if kernel.shared_bytes is None else kernel.shared_bytes
    return _replace(kernel, **fields)


def _objects(run: Run) -> list[Kernel]:
    homes = {(build.side, build.kernel): build.path for build in run.builds if build.path}
    found: dict[tuple[str, str, str], Kernel] = {}
    for proof in run.proofs:
        home = homes.get((proof.side, proof.kernel))
        for one in proof.artefacts:
            native = one.kind == "object" or (one.kind == "module" and ".so" in one.path)
            if native and home and one.path.startswith(f"{home}/") and not _LAUNCHERS.search(one.path):
                found[proof.side, proof.kernel, one.path] = Kernel(
                    side=proof.side, package=proof.kernel, name=one.name, kind="object", key=one.name, path=one.path,
                    sha256=one.sha256,
                )  # fmt: skip
    return list(found.values())


def _differing(kernel: Kernel, pairs: Sequence[tuple[Kernel, Content]]) -> set[str]:
    """Return the names of a shared object's functions whose code differs between sides."""
    package = [(other, of) for other, of in pairs if other.kind == "object" and other.package == kernel.package]
    fellows = [(other, of) for other, of in package if other.key == kernel.key]
    if len({other.side for other, _ in fellows}) < 2 and len({other.side for other, _ in package}) == len(package):
        fellows = package
    read = [of.functions for _, of in fellows if of.code]
    names = {name for functions in read for name in functions}
    return {name for name in names if len({of[name].code if name in of else "" for of in read}) > 1}


# ---------------------------------------------------------------- one file

_VERSION = 10  # of the cached readings: another number makes them void
_LARGEST = 256 << 20  # bytes of a file
_MOST_NAMES = 2000  # per command line of c++filt
_TIMEOUT = 120.0  # seconds per file
# Code and constants. Other sections have names, paths and line numbers, which do not make two kernels different.
_CODE = re.compile(r"\.(text|rodata|data\.rel\.ro|data|tdata|nv\.constant\d|nv\.global\.init|nv_fatbin)\b")


def content(path: str, cache: Path, homes: Iterable[Path] = ()) -> Content:
    """Read the machine code of a file. Never raises: if reading fails, the result's `missing` says why. `homes`: folders
    of builds, in which no link is followed."""
    if not path:
        return Content(missing="the kernel has no file of machine code")
    try:
        file = Path(path)
        home = next((one for one in homes if file.is_relative_to(one)), None)
        data = doorway.read(file if home else file.resolve(), _LARGEST + 1, home)
        if len(data) > _LARGEST:
            return Content(missing=f"larger than {_LARGEST >> 20} MiB")
        with tempfile.NamedTemporaryFile(suffix=file.suffix) as copy:  # the tools read what was read here
            return _read(copy, data, cache)
    except Exception as error:  # noqa: BLE001
        return Content(missing=f"the file could not be read: {getattr(error, 'strerror', '') or error}"[:200])


def _read(copy: IO[bytes], data: bytes, cache: Path) -> Content:
    machine, sections = elf_sections(data)
    digest = hashlib.sha256()
    for name, body in sections:
        if found := _CODE.match(name):
            digest.update(f"{found[1]} {len(body)} ".encode() + body)
    on_gpu = machine == "EM_CUDA" or any(name == ".nv_fatbin" and body for name, body in sections)
    objdump = shutil.which("objdump") or ""
    tool = cuda_binary("cuobjdump") if on_gpu else objdump
    # A cubin is known by its code, because its paths and line numbers differ between sides; an object by all its bytes.
    names = sorted(name for name, _ in sections if name.startswith(".text"))
    identity = f"{digest.hexdigest()} {names}".encode() if machine == "EM_CUDA" else data
    cached = cache / f"{_VERSION}-{hashlib.sha256(identity + tool.encode()).hexdigest()}.json"
    try:
        return _CONTENT.decode(cached.read_bytes())
    except (OSError, *UNREADABLE):
        pass
    copy.write(data)
    copy.flush()
    functions: dict[str, Reading] = {}
    missing = failed = ""
    if machine not in ("EM_CUDA", "EM_X86_64"):
        missing = "machine code of this kind of processor is not read"
    elif not tool:
        missing = f"no {'cuobjdump (Triton and the CUDA toolkit have' if on_gpu else 'objdump (binutils has'} it)"
    else:
        if on_gpu:
            search = os.pathsep.join([str(Path(tool).parent), os.environ.get("PATH", os.defpath)])
            argv = [tool, "-sass", "-res-usage", copy.name]
            functions |= _demangled(sass(proc.output(argv, timeout=_TIMEOUT, env={"PATH": search}) or ""))
        stripped = all(name != ".symtab" for name, _ in sections)  # nothing shows where each function begins
        if machine == "EM_X86_64" and objdump and not stripped:
            argv = [objdump, "-d", "-C", "--no-show-raw-insn", copy.name]
            try:
                host = x86(proc.output_lines(argv, timeout=_TIMEOUT, env={"LC_ALL": "C"}))
                functions = host | functions  # a kernel, not the host's function of its name, which launches it
            except proc.WorkerDied as died:
                failed = died.reason
        if not functions:
            missing = failed or ("stripped of its symbols" if stripped else "the disassembler found no function")
    fresh = Content(digest.hexdigest(), functions, missing)
    if not missing:
        with contextlib.suppress(AbprofError, OSError):  # without the cache another run disassembles it again
            files.put(cached, msgspec.json.encode(fresh))
    return fresh


def elf_sections(data: bytes) -> tuple[str, list[tuple[str, bytes]]]:
    """Return a 64-bit ELF file's processor and its sections as (name, content). Raises ValueError for other data."""
    from elftools.elf.elffile import ELFFile

    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    try:
        file, sections = ELFFile(io.BytesIO(data)), []
        for section in file.iter_sections():
            begin, size = section["sh_offset"], 0 if section["sh_type"] == "SHT_NOBITS" else section["sh_size"]
            if begin + size > len(data) and size:
                raise ValueError("a section ends beyond the file")
            sections.append((section.name, data[begin : begin + size]))
        return str(file["e_machine"]), sections
    except Exception as error:  # noqa: BLE001 - the parser trips over damaged files in many ways
        raise ValueError(f"a damaged ELF file: {error}") from None


def _demangled(functions: dict[str, Reading]) -> dict[str, Reading]:
    mangled = [name for name in functions if name.startswith("_Z")][:_MOST_NAMES]
    text = proc.output(["c++filt", *mangled]) if mangled else None
    plain = dict(zip(mangled, (text or "").splitlines(), strict=False))
    return {plain.get(name, name): reading for name, reading in functions.items()}


def cuda_binary(name: str) -> str:
    """Return the path of a tool like cuobjdump, Triton's or the CUDA toolkit's; "" if there is none."""
    spec = importlib.util.find_spec("triton")
    folders = [f"{place}/backends/nvidia/bin" for place in (spec.submodule_search_locations or () if spec else ())]
    return shutil.which(name, path=os.pathsep.join(folders)) or proc.cuda_tool(name)


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
    "double precision": "DADD DMUL DFMA DSETP DMNMX",
    "barriers": "BAR SYNCS MEMBAR WARPGROUP LDGDEPBAR DEPBAR UTMACMDFLUSH",
}
_CLASS_OF = {opcode: name for name, opcodes in _SASS.items() for opcode in opcodes.split()}
_USAGE = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)")
_SASS_FUNCTION = re.compile(r"^\s*Function : (\S+)\s*$", re.MULTILINE)
_OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
_BRANCH = re.compile(r"/\*([0-9a-f]{4,})\*/[^;/]*\bBRA\b[^;]*?\b0x([0-9a-f]+)\s*;")
_ENCODING = re.compile(r"/\* (0x[0-9a-f]{16}) \*/")


def sass(text: str) -> dict[str, Reading]:
    """Parse the output of `cuobjdump -sass -res-usage` into function name -> Reading."""
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


def sass_classes(text: str) -> list[str]:
    """Return the class of an instruction of SASS; [] for a label or a NOP."""
    found = re.match(r"\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", text)
    return [_CLASS_OF.get(found[1], "other")] if found and found[1] != "NOP" else []


# ---------------------------------------------------------------- x86-64: `objdump -d -C --no-show-raw-insn`

# Arithmetic on floats (...ps, ...pd, ...ph; scalar ...ss, ...sd, ...sh) and packed integers; not moves, shuffles, logic.
_FLOAT = r"v?(?:f?n?m)?(?:add|sub|mul|div|sqrt|min|max|rcp|rsqrt|dp|hadd)\w*?"
_DIVISION = re.compile(r"v?(?:div|sqrt)[ps][sdh]\s|(i?div[bwlq]?\s)")  # counted as another class, too
_PACKED = rf"(?:{_FLOAT}p[sdh]|v?p(?:add|sub|mul|madd|min|max|sad|abs)\w+|v?p?dp\w+)\s.*"
_X86 = {  # class -> instruction; the first that matches
    "512-bit arithmetic": re.compile(rf"{_PACKED}%zmm"),
    "256-bit arithmetic": re.compile(rf"{_PACKED}%ymm"),
    "128-bit arithmetic": re.compile(rf"{_PACKED}%xmm"),
    "scalar arithmetic": re.compile(rf"{_FLOAT}s[sdh]\s"),
    "calls": re.compile(r"call|jmp\s+[0-9a-f]+ <"),  # also a tail call
    "other": re.compile(""),
}
_FUNCTION = re.compile(r"([0-9a-f]+) <(.+)>:$")
_PREFIX = r"(?:(?:data16|addr32|[cdefgs]s|rex\.W|lock|repn?z?|bnd|notrack)\s+)*"
_LINE = re.compile(rf"^\s*([0-9a-f]+):[ \t]+({_PREFIX})(.+?)(?:[ \t]+# .*)?[ \t]*$", re.MULTILINE)
_IDLE = re.compile(r"nop|int3|xchg\s+%ax,\s*%ax$")  # instructions that align loops or pad functions
_ADDRESS = re.compile(r"\slea\s.*# [0-9a-f]+ <(.+)>$", re.MULTILINE)  # the address of a function, or of data
_OUTLINED = re.compile(r"\b_?omp_fn\b|\.omp_outlined")  # a parallel loop, which is passed to a runtime
_TARGET = re.compile(r"\s([0-9a-f]+) <(.+?)(?:\+0x[0-9a-f]+)?>$")
_RIP = re.compile(r"-?0x[0-9a-f]+\(%rip\)")
_JUMP = re.compile(r"j\w+\s|loop\w*\s|xbegin\s")
_NO_ACCESS = ("lea", "prefetch", "call", "j")
_COMPARES = ("cmp", "test", "ucomi", "vucomi", "comi", "vcomi")
_GLUE = ("_init", "_fini", "deregister_tm_clones", "register_tm_clones", "frame_dummy", "__do_global_dtors_aux", ".plt")


def x86(printed: Iterable[str]) -> dict[str, Reading]:
    """Parse the lines of `objdump -d -C` into function name -> Reading. Functions of equal name become one."""
    found, part = dict[str, list[Reading]](), list[str]()
    for line in chain(printed, [""]):  # a blank line follows each function
        if line.strip():
            part.append(line.rstrip("\n"))
            continue
        head = _FUNCTION.match(part[0]) if part else None
        if head and not head[2].startswith(_GLUE) and "@plt" not in head[2]:
            found.setdefault(head[2], []).append(_function(int(head[1], 16), head[2], "\n".join(part[1:])))
        part.clear()
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
    counted = dict.fromkeys((*_X86, "loads", "stores", "loops", "divisions", "integer divisions"), 0)
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
        for kind in ["other"] if jump else _kinds(text):
            counted[kind] += 1
    counted["loops"] = len(heads)
    return Reading(code=digest.hexdigest(), classes=counted, calls=tuple(sorted(calls - {name})))


def x86_classes(text: str) -> list[str]:
    """Return the classes of an instruction as objdump prints it: its own, and whether it loads or stores."""
    plain = re.sub(f"^{_PREFIX}", "", text)
    return [] if _IDLE.match(plain) else ["other"] if _JUMP.match(plain) else _kinds(plain)


def _kinds(text: str) -> list[str]:
    kinds = [next(kind for kind, pattern in _X86.items() if pattern.match(text))]
    if found := _DIVISION.match(text):
        kinds.append("integer divisions" if found[1] else "divisions")
    if "(" in text and not _TARGET.search(text) and not text.startswith(_NO_ACCESS):
        last = re.split(r",(?![^(]*\))", text)[-1]  # written, except by a comparison
        kinds.append("stores" if "(" in last and not text.startswith(_COMPARES) else "loads")
    return kinds
