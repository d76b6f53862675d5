"""Compose the files that `abprof init` proposes: a table in abprof.toml, and workloads that call functions with guessed
arguments. Their templates are in templates/adopt/. `checked` runs a workload once, and mends it."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, FileSystemLoader, Template

from abprof import devices, session
from abprof.extras.init.call import SUFFIXES, Argument, Call, call_of
from abprof.extras.init.source import BACKWARD, LIBRARY, Found, Function
from abprof.records import Observation, PackageTable
from abprof.records.options import File, Options
from abprof.system import files as disk
from abprof.system.console import View
from abprof.system.paths import bundled

_CONFIG = "abprof.toml"


@dataclass(frozen=True)
class Choices:
    """What a check of the proposal has found out; by default nothing."""

    directions: tuple[str, ...] = ("fwd", "bwd")  # of a function with gradients
    wrt: tuple[str, ...] = ()  # inputs with gradients; (): those that the code shows
    refused: frozenset[str] = frozenset()  # dtypes that failed
    reference: bool = True  # whether to propose a reference
    fresh: bool = False  # whether to restore inputs before each call
    why: tuple[str, ...] = ()  # comments in the workload: the failures that led to the above


@dataclass(frozen=True)
class Part:
    """A proposed workload. `text` makes it."""

    function: Function  # that it calls
    path: str  # in the repository
    text: Callable[[Choices], str]


@dataclass(frozen=True)
class Made:
    """A proposal of `abprof init`. `files`: path in the repository -> content."""

    files: dict[str, str]
    parts: tuple[Part, ...]  # one for each function
    missing: tuple[str, ...]  # tables that the existing configuration lacks
    notes: tuple[str, ...]  # lines to print
    triton: bool  # whether a function launches Triton kernels, or its file imports Triton


def proposed(found: Found, some: Sequence[Function], file: File | None, folder: str, under: Sequence[str] = ()) -> Made:
    """Propose a workload for each function, and the tables of packages that the configuration `file` lacks.

    `folder`: the folder of workloads. `under`: the keys before a table's name, ("tool", "abprof") in pyproject.toml.
    """
    known, tables, parts = dict(file.kernels) if file else {}, list[str](), dict[str, Part]()
    notes = dict[str, None]()
    for one in some:
        kernel, access, entry = _package_of(found, one)
        there = (
            name
            for name, it in known.items()
            if entry and (it.path.rstrip("/"), it.module) == (entry.path, entry.module)
        )
        if own := next(there, ""):
            kernel, entry = own, None
        if entry:
            if kernel in known:  # another package has this name
                kernel = re.sub(r"\W+", "_", entry.path.removesuffix(".py"))
            known[kernel] = entry
            tables.append("\n".join(_table(kernel, entry, under)))
        path = f"{folder}/{one.name.removesuffix('.apply').strip('_')}.py"
        if path in parts:  # another function of this name
            path = f"{folder}/{one.name.replace('.', '_')}_{len(parts) + 1}.py"
        alone = _forward_alone(found, one)
        notes |= dict.fromkeys([*([f"The workload times {alone}."] if alone else []), *_at_import(found, one)])
        parts[path] = Part(one, path, partial(_workload, one, kernel, access, alone))
    files = {part.path: part.text(Choices()) for part in parts.values()}
    if file is None and (tables or folder != "workloads"):
        head = ["# docs/CONFIG.md has every key.", "schema = 1", ""]
        head += [f"workloads = {_quoted(folder)}", ""] if folder != "workloads" else []
        files = {_CONFIG: "\n".join([*head, *(["\n\n".join(tables)] if tables else []), ""]), **files}
    imports = {name.partition(".")[0] for one in some for name in found.imports.get(one.path, ())}
    triton = "triton" in imports or any(one.kernels for one in some)
    return Made(files, tuple(parts.values()), tuple(tables) if file else (), tuple(notes), triton)


def _at_import(found: Found, one: Function) -> Iterator[str]:
    """Yield a line on the first test, or function with kernels, that the file of a function calls when it is imported."""
    own = {each.name: each.kernels for same in found.functions.values() for each in same if each.path == one.path}
    for name, line in found.called.get(one.path, ()):
        if own.get(name) or (name in own and name.startswith("test")):
            advice = 'put such code below `if __name__ == "__main__":`'
            yield f"{one.path}:{line} calls {name} at import, so in every worker: {advice}"
            return


def _forward_alone(found: Found, one: Function) -> str:
    """Say why the workload of a function times the forward alone; "" if it times gradients too, or if there are none."""
    if one.differentiable or BACKWARD.search(one.name):
        return ""
    if lacking := next((f for f in (one, *(callee for callee, _ in found.callees(one))) if f.applied), None):
        return f"the forward alone: {lacking.name.removesuffix('.apply')} has no backward"
    stem = re.sub(f"{SUFFIXES}$", "", one.name)
    other = next((name for name in found.functions if BACKWARD.search(name) and name.startswith(stem)), "")
    return f"the forward alone: {one.name} does not lead to {other}" if other else ""


# ---------------------------------------------------------------- the package

_BUILD_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in")
_NATIVE = ("csrc", "include", "cpp", "cuda", "src/csrc")


_WHY = {  # key of a proposed table -> comment on the guessed value of this key
    "inputs": "files that a build reads; a change rebuilds: add any further files",
    "build": "setup.py compiles an extension, once for each content of `inputs`",
    "env": "the extension is imported from the top, not from inside the package",
}


def _package_of(found: Found, one: Function) -> tuple[str, str, PackageTable | None]:
    """Guess the kernel package of the function `one`. Return the package's name, the path of the function's submodule
    in it, such as `.norm` (may be ""), and the package's table (None if the package is in kernels/)."""
    path = PurePosixPath(one.path)
    home = path
    for folder in path.parents:
        if f"{folder}/__init__.py" not in found.files:
            break
        home = folder
    if home.parts[:1] != ("kernels",):
        home = min((home, *_namespaces(found, path)), key=lambda folder: len(folder.parts))
    inner = path.relative_to(home).with_suffix("").parts if home != path else ()
    access = "".join(f".{part}" for part in inner).removesuffix(".__init__")
    if one.name.partition(".")[0] in found.fronts.get(f"{home}/__init__.py", ()):
        access = ""
    kernel = home.name.removesuffix(".py")
    if home.parts[:-1] == ("kernels",):
        return kernel, access, None
    # A folder without __init__.py below src/ is a namespace.
    parts = home.parts[1:] if home.parts[0] == "src" else home.parts[-1:]
    module = "" if home == path else ".".join(parts)
    fronts = [f"{folder}/__init__.py" for folder in path.parents if folder.is_relative_to(home)] if module else []
    outside, _ = _needed(found, [str(path), *fronts], home.parent)
    own, files = _needed(found, [str(path)], home.parent)
    more = {name.partition(".")[0] for name in outside - own} - {"", "torch", "triton", "numpy"}
    if module and more - sys.stdlib_module_names and len(files) == 1:  # the package needs what this file does not
        home, module, access, outside = path, "", "", own
        kernel = home.name.removesuffix(".py")
    inputs, built = [f"{home}/**" if module else str(home)], _uses_extension(found.setup, outside)
    if built:
        inputs += [name for name in _BUILD_FILES if name in found.files]
        inputs += [name for name in found.files if "/" not in name and f'"{name}"' in found.setup]
    if built or any("cpp_extension" in name for name in outside):
        inputs += [f"{folder}/**" for folder in _NATIVE if any(name.startswith(f"{folder}/") for name in found.files)]
    entry = PackageTable(
        path=str(home),
        module=module,
        inputs=tuple(dict.fromkeys(inputs)),
        build=("python", "setup.py", "build_ext", "--inplace") if built else (),
        env={"PYTHONPATH": "{worktree}"} if built else {},
        submodules=built and ".gitmodules" in found.files,
    )
    return re.sub(r"[^\w-]", "_", kernel), access, entry


def _namespaces(found: Found, path: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the folders above `path` that imports name as a package (`import acme.rows`, of acme/rows.py), also without
    an __init__.py."""
    known = {name.removesuffix(".py") for name in found.imports}
    for folder in path.parents:
        for dotted in found.absolute:
            whole = folder.parent / dotted.replace(".", "/")
            if dotted.startswith(f"{folder.name}.") and not known.isdisjoint(map(str, (whole, whole.parent))):
                yield folder


def _needed(found: Found, paths: Sequence[str], root: PurePosixPath) -> tuple[set[str], list[str]]:
    """Return what an import of the files `paths` also imports, directly or not: dotted names from outside the repository
    (after a dot: names in modules of the repository), and the repository's files."""
    known = {path.removesuffix(".py").removesuffix("/__init__"): path for path in found.imports}
    files, outside = list(paths), set[str]()
    for path in files:  # grows
        for dotted in found.imports.get(path, ()):
            whole = dotted.replace(".", "/")
            near = [prefix + name for prefix in ("", f"{root}/") for name in (whole, whole.rpartition("/")[0])]
            hits = [known[name] for name in near if name in known]
            if not {near[0], near[2]} & known.keys():
                outside.add(f".{dotted}" if hits else dotted)
            above = {str(folder) for hit in hits for folder in PurePosixPath(hit).parents} & known.keys()
            files += {*hits, *map(known.__getitem__, above)} - {*files}
    return outside, files


def _uses_extension(setup: str, imported: set[str]) -> bool:
    """Return whether `imported` has an extension that setup.py, whose text is `setup`, builds."""
    names = re.findall(r"[Ee]xtension\(\s*(?:name\s*=\s*)?f?[\"'](?:[\w{}]+\.)*(\w+)[\"']", setup)
    usual = "|".join(names) or r"_C|\w+_(cuda|C|ext|cpp)"
    return bool(re.search(r"Extension\b", setup)) and any(
        re.search(rf"(^|\.)({usual})$|^{LIBRARY}$", name) for name in imported
    )


def _table(name: str, entry: PackageTable, under: Sequence[str]) -> list[str]:
    env = ", ".join(f"{key} = {_quoted(value)}" for key, value in entry.env.items())
    values = {key: _quoted(getattr(entry, field)) for key, field in
              (("path", "path"), ("import", "module"), ("inputs", "inputs"), ("build", "build"))
              if getattr(entry, field)}  # fmt: skip
    values |= {"env": f"{{ {env} }}"} if env else {}
    lines = [f"[{'.'.join((*under, 'kernels', name if name.isascii() else _quoted(name)))}]"]
    for key, text in values.items():
        lines += [f"# GUESSED: {_WHY[key]}"] if key in _WHY else []
        lines.append(f"{key} = {text}")
    return [*lines, "submodules = true"] if entry.submodules else lines


def _quoted(value: str | Sequence[str]) -> str:
    return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- the workload

_POINTERS = re.compile(r"cu_seq\w*|(ind|row_?|col_?|seg\w*_)?(ptr|splits|offsets)|crow_indices")  # where segments begin
_SIZES = (  # pattern of an axis -> sizes in smoke and default; the first match counts
    (r"b|bs|bsz|n?_?batch\w*|z", 2, 8),
    (r"v|vocab\w*", 512, 32768),
    (r"t|l|s|bt|seq\w*|n_?ctx|\w*seqlen\w*|\w*tokens|total\w*", 128, 2048),
    (r"rot\w*_dim", 32, 64),
    (r"head_?dim\w*|d_?head|hd|d[hkv]", 64, 128),
    (r"h[qkv]?|\w*heads?(_\w+)?", 2, 16),
    (r"rows|n_?rows?", 128, 4096),
    (r"width|n_?cols?|hidden\w*|d_?model|dim|\w+_dim|c|d|[mnk]", 256, 4096),
    (r".*", 64, 512),
)
_DTYPES = ("bfloat16", "float16", "float32")
_VECTOR = (65536, 1 << 24)  # sizes if all tensors share a single axis
_STEPPED = (_SIZES[2][0], r"rows|n_?rows?|m", r".*")  # the first matching axis gets several values in a preset


def _workload(one: Function, kernel: str, access: str, alone: str, choices: Choices) -> str:
    call = call_of(one)
    call = replace(call, reference=call.reference if choices.reference else "", wrt=choices.wrt or call.wrt)
    directions = choices.directions if one.differentiable else ("fwd",)
    directed = len(directions) > 1 or (choices.fresh and one.differentiable)
    front, _, method = one.name.partition(".")
    target = f"{front}_" if access else f"kernel.{front}"  # with `access` each side's own module
    guessed = ", ".join(a.name for a in call.arguments if not a.shape)
    comments = [line for text in choices.why for line in textwrap.wrap(text, 110)]
    comments += [f"GUESSED: the value of {guessed}"] if guessed else []
    comments += textwrap.wrap(f"Not given: {', '.join(call.left_out)}", 110) if call.left_out else []
    comments += [f"This times {alone}."] if alone else []
    passed = ((a, f'inputs["{a.name}"]' if a.shape else a.value) for a in call.arguments)
    given = ", ".join(f"{a.name}={text}" if a.keyword else text for a, text in passed)
    made = f"{target}{f'.{method}' if method else ''}({given})"
    wrt = f", wrt={_quoted(call.wrt)}" if call.wrt else ""
    op = f"return Op(lambda: {made})"
    if choices.fresh and not directed:  # no gradients: torch refuses to write to a tensor that requires one
        op = "kept = {name: one.clone() for name, one in inputs.items() if isinstance(one, torch.Tensor)}\n    "
        op += f"return Op(lambda: {made}, lambda: [inputs[name].copy_(one) for name, one in kept.items()])"
    if directed:
        op = f"return directed(case, inputs, lambda inputs: {made}{wrt}{', fresh=True' if choices.fresh else ''})"
        op = op if len(op) < 116 else f"{op[:16]}\n        {op[16:-1]}\n    )"
    helpers = (("Op", not directed), ("compare", call.reference), ("directed", directed))
    return _template("workload.txt").render(
        one=one, kernel=kernel, access=access, call=call, target=target, comments=comments, op=op, directed=directed, wrt=wrt,
        helpers=[name for name, used in helpers if used],
        presets=_presets(call, one, choices.refused, directions if directed else ()),
        tensors=_tensors([a for a in call.arguments if a.shape]),
    )  # fmt: skip


def _template(name: str) -> Template:
    folder = FileSystemLoader(bundled("templates") / "adopt")
    made = Environment(loader=folder, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)  # noqa: S701 - Python
    made.filters["quoted"] = _quoted
    return made.get_template(name)


def _presets(call: Call, one: Function, refused: Collection[str], directions: Sequence[str]) -> list[str]:
    shapes = [a.shape for a in call.arguments if a.shape]
    heads = any(len(shape) == 4 for shape in shapes)
    usual = ("float32", "float32") if not one.kernels else ("float16",) * 2 if heads else ("float32", "bfloat16")
    small, large = (next(name for name in (first, *_DTYPES, first) if name not in refused) for first in usual)
    sizes = {axis: _size(axis, shapes) for axis in call.axes}
    if len(sizes) == 1:
        sizes = dict.fromkeys(sizes, _VECTOR)
    stepped = next((axis for pattern in _STEPPED for axis in sizes if re.fullmatch(pattern, axis.lower())), "")
    lines = []
    presets = (("smoke", small, 0, (1,)), ("default", large, 1, (2, 1)), ("full", large, 1, (4, 2, 1)))
    for name, dtype, at, steps in presets:
        axes = {axis: [n[at] // step for step in (steps if axis == stepped else (1,))] for axis, n in sizes.items()}
        more = {"direction": directions} if directions else {}
        line = f'    "{name}": {json.dumps({**axes, **more, "dtype": [dtype]})},'
        lines += textwrap.wrap(line, 118, subsequent_indent=" " * 8)
    return lines


def _size(axis: str, shapes: Sequence[Sequence[str]]) -> tuple[int, int]:
    lower, last = axis.lower(), {shape.index(axis) == len(shape) - 1 for shape in shapes if axis in shape}
    if lower == "h" and last == {True}:  # (B, T, H): no axis follows, so these are not heads
        lower = "hidden"
    if re.fullmatch(_SIZES[0][0], lower) and max(map(len, shapes)) == 2 and last == {False}:
        lower = "rows"  # (batch, width): no other axis counts
    if last == {True} and len(lower) == 1 and any(shape[-1] == axis and len(shape) == 4 for shape in shapes):
        lower = "head_dim"
    return next((small, large) for pattern, small, large in _SIZES if re.fullmatch(pattern, lower))


def _tensors(tensors: Sequence[Argument]) -> list[tuple[Argument, str]]:
    lines = []
    first = next((a for a in tensors if not a.index), tensors[0])
    for a in tensors:
        axes = ", ".join(axis if axis.isdigit() else f'"{axis}"' for axis in a.shape)
        made = f"draw({axes})"
        if a.index and a is not first:
            # An index before its table (an embedding) and a graph's edges are of the rows, a target of the columns.
            rows = tensors.index(a) < tensors.index(first) or a.name.startswith("edge")
            last = first.shape[0 if rows else -1]
            last = next((axis for b in tensors for axis in b.shape if re.fullmatch("v|vocab.*", axis.lower())), last)
            most = last if last.isdigit() else f'case["{last}"]'
            made = f"torch.randint({most}, {made}.shape, generator=generator, device=device)"
            if _POINTERS.fullmatch(a.name):
                total, dtype = f'case["{first.shape[0]}"]', "int32" if a.name.startswith("cu_seq") else "int64"
                made = f"torch.tensor([0, {total} // 2, {total}], dtype=torch.{dtype}, device=device)"
        elif a.name.endswith("mask"):
            made += " > 0"
        lines.append((a, f"[{made}, {made}]" if a.several else made))
    return lines


# ---------------------------------------------------------------- --check

_OF_TYPE = re.compile(r"dtype|scalar type|not (supported|implemented) for '|\b(fp(16|32)|bf16|Half)\b", re.IGNORECASE)


def checked(part: Part, root: Path) -> tuple[str, list[str], bool]:
    """Run the workload's preset smoke for one epoch, on a CPU in Triton's interpreter if there is no GPU. While failures
    have a known remedy, write the workload again and repeat. Return its last text, lines to print, and whether every
    cell is right. Raises AbprofError if the run cannot start.
    """
    cpu, lines, choices = devices.choose(()).kind == "cpu", list[str](), Choices()
    if cpu and part.function.kernels:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # in this process, which ends after the check
    where = "on the GPU" if not cpu else "in Triton's interpreter" if part.function.kernels else "on the CPU"
    text, before, failed = part.text(choices), "", list[Observation]()
    for _ in range(6):  # more runs than there are remedies
        seen, last = _run(root, Path(part.path).stem), failed
        failed = [one for one in seen if one.status != "ok"]
        if failed and [(one.cell, one.reason) for one in failed] == [(one.cell, one.reason) for one in last]:
            text = before  # the remedy changed nothing
            disk.put(root / part.path, text.encode())
            lines.pop()
            break
        better = _mended(choices, text, failed)
        if better is None:
            break
        before, text, choices = text, part.text(better), better
        disk.put(root / part.path, text.encode())
        lines.append(f"mended: {choices.why[-1]}")
    lines += [f"failed: {one.cell}: {one.status}: {one.reason}" for one in failed]
    how = "are right" if "\ndef reference(" in text else "ran, without a reference,"
    return text, [*lines, f"checked: {len(seen) - len(failed)} of {len(seen)} cells {how} {where}"], not failed


def _run(root: Path, name: str) -> Sequence[Observation]:
    with tempfile.TemporaryDirectory() as folder:
        once = Options(specs=(".",), repo=str(root), workloads=(name,), preset="smoke", quick=True, runs_dir=folder)
        run, _ = session.run(once, View(quiet=True))
    if run.status == "interrupted":
        raise KeyboardInterrupt
    return [one for one in run.observations if one.arm == "base"]


def _mended(old: Choices, text: str, failed: Sequence[Observation]) -> Choices | None:
    """Return choices that avoid one of the failures of the workload `text`; None if there is no remedy left."""

    def chosen(why: str, **new: Any) -> Choices:
        return replace(old, why=(*old.why, why), **new)

    forward, dtypes = [one for one in failed if "direction=bwd" not in one.cell], frozenset(_DTYPES)
    for one in failed:
        reason, wrong = one.reason, one.status == "wrong"
        if (reached := re.search(r"wrt=\(([^)]*)\)", reason)) and not old.wrt:
            names = tuple(re.findall(r"\w+", reached[1]))
            return chosen(f"only {', '.join(names)} has a gradient", wrt=names)
        if "no output has a gradient" in reason:
            return chosen("this times the forward alone: no output has a gradient", directions=("fwd",))
        if not old.fresh and ("overwrote its inputs" in reason or (wrong and not forward)):
            return chosen(f"fresh inputs for each call, because of: {reason}", fresh=True)
        if old.reference and (one.at.startswith("reference") or (wrong and one in forward)):
            return chosen(f"no reference, because the one guessed by the name fails: {reason}", reference=False)
        present = re.findall(r'"dtype":\s+\["(\w+)"\]', text)[:1]
        named = dtypes.intersection(re.findall(r"b?float\d+", reason)).difference(present)
        against = dtypes - named if named else {*present} if _OF_TYPE.search(reason) else set()
        refused = old.refused | against
        if one.status in {"crash", "build_failed"} and old.refused < refused < dtypes:
            return chosen(f"not {', '.join(sorted(refused))}: {reason}", refused=refused)
    return None
