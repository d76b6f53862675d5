"""After all timing: every kernel that the workers compiled or loaded, with what its machine code is made of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from abprof.evidence.machine_code.reader import Content, Reader, Unread, differing
from abprof.records import Artefact, Function, Kernel, Run

_LAUNCHERS = re.compile(r"__triton_launcher|cuda_utils|hip_utils|__grp__")  # what Triton makes to launch kernels
_MOST_FUNCTIONS = 60  # of an object that differs between sides: the largest
_FLAGS = re.compile(r"^(?:cflags|cuda_cflags|post_cflags|cuda_post_cflags) = (.+)$", re.MULTILINE)
_PATH_FLAG = re.compile(r"(?:-I|-isystem|-L|--sysroot)[ =]?\S+ ?")
_replace = msgspec.structs.replace


def read_kernels(run: Run, compiled: Iterable[Kernel], reader: Reader) -> tuple[Kernel, ...]:
    """The run's kernels with their code. `compiled`: those that the workers reported; objects come from the proofs."""
    todo = [*(_with_seconds(run, kernel) for kernel in compiled if kernel.kind == "triton"), *_objects(run)]
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


def _with_seconds(run: Run, kernel: Kernel) -> Kernel:
    """With the builder's compile time, if the worker found it in the build's cache."""
    builds = (b.compile_seconds for b in run.builds if (b.side, b.kernel) == (kernel.side, kernel.package))
    return _replace(
        kernel, seconds=next((known[kernel.key] for known in builds if kernel.key in known), kernel.seconds)
    )


def _objects(run: Run) -> list[Kernel]:
    """The distinct shared objects of each side's own build."""
    homes = {(build.side, build.kernel): build.path for build in run.builds if build.path}
    found: dict[tuple[str, str, str], Kernel] = {}
    for proof in run.proofs:
        home = homes.get((proof.side, proof.kernel))
        for artefact in proof.artefacts:
            if home and artefact.path.startswith(f"{home}/") and _is_object(artefact):
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


def _is_object(artefact: Artefact) -> bool:
    native = artefact.kind == "object" or (artefact.kind == "module" and ".so" in artefact.path)
    return native and not _LAUNCHERS.search(artefact.path)


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
