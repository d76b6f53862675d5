"""The files that `abprof init` writes, as texts: abprof.toml and a workload. Their frames are in templates/adopt/."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template

from abprof.extras.init.propose import Argument, Call, Package, call_of, package_of
from abprof.extras.init.source import Found, Function, candidates, look
from abprof.records import PackageTable
from abprof.records.errors import AbprofError
from abprof.records.options import File
from abprof.system.bundled import bundled

_SIZES = (  # what an axis is called -> smoke, default; the first that fits
    (r"b|bs|bsz|n?_?batch\w*|z", 2, 8),
    (r"vocab\w*", 512, 32768),
    (r"t|l|s|seq\w*|n_?ctx|\w*seqlen\w*|\w*tokens", 128, 2048),
    (r"h|(n_?|num_)?heads?|h[qkv]", 2, 16),
    (r"head_?dim\w*|d_?head|hd|d[hkv]", 64, 128),
    (r"rows|n_?rows?", 128, 4096),
    (r"width|n_?cols?|hidden\w*|d_?model|dim|c|d|[mnk]", 256, 4096),
    (r".*", 64, 512),
)
_VECTOR = (65536, 1 << 24)  # sizes of the only axis of all tensors
_STEPPED = (_SIZES[2][0], r"rows|n_?rows?|m", r".*")  # the axis of which the presets have several values
_NO_REFERENCE = """

# WRITE: reference(case, inputs), what it computes in plain torch and higher precision, and check(case, outputs, expected),
# which compares. Without them only this is checked: that the sides' outputs agree.
"""


@dataclass(frozen=True)
class Made:
    """Files to be written, path -> text, relative to the repository's root."""

    function: Function  # what the workload calls
    workload: str  # path of the workload
    files: dict[str, str]
    missing: tuple[str, ...] = ()  # lines that the existing configuration lacks


def adopted(
    found: Found,
    one: Function,
    file: File | None,
    folder: str,
    setup: str = "",
    name: str = "",
    under: Sequence[str] = (),
) -> Made:
    """A workload called `name` for a function, and a table for its package unless the configuration `file` has one.

    `under`: the tables above abprof's keys, in pyproject.toml; `setup`: the text of setup.py.
    """
    package = package_of(found, one, setup)
    place = f"{folder}/{name or one.name.removesuffix('.apply').strip('_')}.py"
    entry = package.entry
    for known, there in (file.kernels if file else {}).items():
        if entry and (there.path.rstrip("/"), there.module) == (entry.path, entry.module):
            package, entry = replace(package, kernel=known), None
    table = _table(package.kernel, entry, package.why, under) if entry else []
    files = {place: _workload(one, package)}
    if file is None and (table or folder != "workloads"):
        head = ["# docs/CONFIG.md has every key.", "schema = 1", ""]
        head += [f"workloads = {_quoted(folder)}", ""] if folder != "workloads" else []
        files = {"abprof.toml": "\n".join([*head, *table, ""]), **files}
    return Made(one, place, files, missing=tuple(table) if file else ())


def begun(name: str, workload: str, file: File | None, folder: str) -> Made:
    """A kernel package in abprof's own layout that runs as it stands, and its workload."""
    path = f"kernels/{name}/__init__.py"
    text = Template((bundled("templates") / "adopt" / "kernel.txt").read_text(encoding="utf-8")).substitute(name=name)
    found = look([path], {path: text}.__getitem__)
    made = adopted(found, candidates(found)[0], file, folder, name=workload or name)
    return replace(made, files={path: text, **made.files})


def within(found: Found, kernel: str, file: File | None) -> tuple[Function, ...]:
    """The functions of an existing kernel package. Raises AbprofError if there is none, or no function of tensors in it."""
    package = (file or File()).package(kernel)
    folder = (package.path or (package.module.replace(".", "/") if package.module else f"kernels/{kernel}")).rstrip("/")
    some = tuple(
        one for one in candidates(found) if one.path.startswith((f"{folder}/", f"{folder}.py")) or one.path == folder
    )
    if not some:
        advice = f"abprof init --kernel {kernel} begins a package; docs/WRITING.md says how a workload is written"
        raise AbprofError(f"no function of tensors in a kernel package {kernel}", where=folder, advice=advice)
    return some


def plain_name(name: str, option: str) -> str:
    """A name that a file, a module and a TOML key can have. Raises AbprofError."""
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise AbprofError(f"{name!r} is no name for a module", where=option, advice="letters, digits and _")
    return name


# ---------------------------------------------------------------- abprof.toml


def _table(name: str, entry: PackageTable, why: Mapping[str, str], under: Sequence[str]) -> list[str]:
    values = {"path": entry.path, "import": entry.module, "inputs": entry.inputs, "build": entry.build}
    lines = [f"[{'.'.join((*under, 'kernels', name if name.isascii() else _quoted(name)))}]"]
    for key, value in values.items():
        if value:
            lines += [f"# GUESSED: {why[key]}"] if key in why else []
            lines.append(f"{key} = {_quoted(value)}")
    if entry.env:
        pairs = ", ".join(f"{key} = {_quoted(value)}" for key, value in entry.env.items())
        lines += [f"# GUESSED: {why['env']}", f"env = {{ {pairs} }}"]
    return [*lines, "submodules = true"] if entry.submodules else lines


def _quoted(value: str | Sequence[str]) -> str:
    """A string or an array, in TOML and Python."""
    return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- the workload


def _workload(one: Function, package: Package) -> str:
    call = call_of(one)
    tensors = [a for a in call.arguments if a.shape]
    front, _, method = one.name.partition(".")
    guessed = [a.name for a in call.arguments if not a.shape]
    prepare = [f"# GUESSED: the value of {', '.join(guessed)}"] if guessed else []
    if call.left_out:
        prepare += [f"# {line}" for line in textwrap.wrap(f"Not given: {', '.join(call.left_out)}", 110)]
    target = f"kernel.{front}"
    if package.access:  # each side's own module
        prepare.append(f"{front}_ = import_module({_quoted(package.access)}, kernel.__name__).{front}")
        target = f"{front}_"
    passed = (a.value if not a.shape else f'inputs["{a.name}"]' for a in call.arguments)
    given = ", ".join(f"{a.name}={text}" if a.keyword else text for a, text in zip(call.arguments, passed, strict=True))
    prepare.append(f"return Op(lambda: {target}{f'.{method}' if method else ''}({given}))")
    frame = Template((bundled("templates") / "adopt" / "workload.txt").read_text(encoding="utf-8"))
    return frame.substitute(
        title=f"{one.name}, as `abprof init` found it: look at what is GUESSED.",
        imports="from importlib import import_module\n\n" if package.access else "",
        helpers="Op, compare" if call.reference else "Op",
        kernel=_quoted(package.kernel),
        presets="\n".join(_presets(call, triton=bool(one.kernels))),
        tensors="\n".join(f"        {line}" for line in _tensors(tensors)),
        prepare="\n".join(f"    {line}" for line in prepare),
        judge=_judge(call, tensors, triton=bool(one.kernels)) if call.reference else _NO_REFERENCE,
    )


def _presets(call: Call, *, triton: bool) -> list[str]:
    """Sizes by the axes' names; dtypes that such a kernel is likely to take."""
    heads = any(len(a.shape) == 4 for a in call.arguments)
    small = "float16" if heads and triton else "float32"
    large = "float32" if not triton else "float16" if heads else "bfloat16"
    sizes = {axis: next(row[1:] for row in _SIZES if re.fullmatch(row[0], axis.lower())) for axis in call.axes}
    if len(sizes) == 1:
        sizes = dict.fromkeys(sizes, _VECTOR)
    stepped = next((axis for pattern in _STEPPED for axis in sizes if re.fullmatch(pattern, axis.lower())), "")
    lines = []
    for name, dtype, at, steps in (
        ("smoke", small, 0, (1,)),
        ("default", large, 1, (2, 1)),
        ("full", large, 1, (4, 2, 1)),
    ):
        axes = {
            axis: [size[at] // step for step in (steps if axis == stepped else (1,))] for axis, size in sizes.items()
        }
        lines += textwrap.wrap(
            f'    "{name}": {json.dumps({**axes, "dtype": [dtype]})},', 118, subsequent_indent=" " * 8
        )
    return lines


def _tensors(tensors: Sequence[Argument]) -> list[str]:
    lines = []
    for a in tensors:
        axes = ", ".join(axis if axis.isdigit() else f'"{axis}"' for axis in a.shape)
        made = f"draw({axes})"
        if a.index and a is not tensors[0]:
            last = tensors[0].shape[-1]
            most = last if last.isdigit() else f'case["{last}"]'
            made = f"torch.randint({most}, {made}.shape, generator=generator, device=device)"
        elif a.name.endswith("mask"):
            made += " > 0"
        lines.append(f'"{a.name}": {made},' + (f"  # GUESSED: {a.guessed}" if a.guessed else ""))
    return lines


def _judge(call: Call, tensors: Sequence[Argument], *, triton: bool) -> str:
    """`reference` and `check`, in float64; a GPU multiplies float32 as TF32."""
    wide = "".join(f'    {a.local} = inputs["{a.name}"]{"" if a.index else ".double()"}\n' for a in tensors)
    tolerance = f'rtol={"2e-3" if triton else "1e-5"} if case["dtype"] == "float32" else 2e-2, atol=0'
    return (
        f"\n\ndef reference(case, inputs):\n{wide}    return {call.reference}  # GUESSED by the name\n"
        f"\n\ndef check(case, outputs, expected):\n    return compare(outputs, expected, {tolerance})\n"
    )
