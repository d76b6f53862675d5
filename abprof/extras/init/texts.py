"""The proposal as texts: abprof.toml, a workload, and what is printed. templates/adopt/ has their frames."""

from __future__ import annotations

import json
import keyword
import re
import textwrap
from collections.abc import Sequence
from string import Template

from abprof.extras.init.arguments import Argument, Called, unused
from abprof.extras.init.propose import Proposal
from abprof.extras.init.sizes import scaled, sizes
from abprof.records.options import PackageEntry
from abprof.system.bundled import bundled

_UNJUDGED = """

# WRITE: reference(case, inputs), what it computes in plain torch and higher precision, and check(case, outputs, expected),
# which compares. Without them only this is checked: that the sides' outputs agree.
"""


def toml(proposal: Proposal, workloads: str) -> str:
    """The whole file; "" where the conventional layout needs none."""
    lines = [] if workloads == "workloads" else [f"workloads = {_quoted(workloads)}", ""]
    if proposal.entry:
        lines += table(proposal.kernel, proposal.entry, proposal.why)
    return "\n".join(["# docs/CONFIG.md has every key.", "schema = 1", "", *lines, ""]) if lines else ""


def table(name: str, entry: PackageEntry, why: dict[str, str], under: Sequence[str] = ()) -> list[str]:
    """A [kernels.NAME] table, under other tables in pyproject.toml, with a comment where a value is a guess."""
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
    loose: dict[str, str | Sequence[str] | dict[str, str]] = {
        "path": entry.path,
        "import": entry.import_,
        "inputs": entry.inputs,
        "build": entry.build,
        "env": entry.env,
    }
    lines = [f"[{'.'.join((*under, 'kernels', key))}]"]
    for item, value in loose.items():
        if value:
            lines += [f"# GUESSED: {' '.join(why[item].split())}"] if item in why else []
            lines.append(f"{item} = {_value(value)}")
    return [*lines, "submodules = true"] if entry.submodules else lines


def _value(value: str | Sequence[str] | dict[str, str]) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_quoted(text)}" for name, text in value.items()) + " }"
    return "[" + ", ".join(_quoted(text) for text in value) + "]"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# ---------------------------------------------------------------- the workload


def workload(proposal: Proposal) -> str:
    """The workload's text."""
    one, call = proposal.candidate, proposal.call
    outs = [a.local for a in call.arguments if a.out]
    front, dot, inner = one.called.partition(".")
    local = unused(front, outs)
    calling = f"{local if proposal.access else f'kernel.{front}'}{dot}{inner}({_passed(call, one.positional)})"
    prepare = _access(proposal.access, front, local)
    given = [a for a in call.arguments if a.shape is not None and not a.out]
    prepare += [f'{name} = torch.empty_like(inputs["{given[0].name}"])  # GUESSED: the shape' for name in outs]
    prepare += [f"return Op(lambda: {f'({calling}, {outs[0]})[1]' if outs else calling})"]
    frame = Template((bundled("templates") / "adopt" / "workload.txt").read_text(encoding="utf-8"))
    return frame.substitute(
        title=f"{one.called} of {_told_of(one.module)}, as `abprof init` found it: look at what is GUESSED.",
        imports="from importlib import import_module\n\n" if any("import_module(" in line for line in prepare) else "",
        helpers="Op, compare" if call.reference else "Op",
        kernel=_quoted(proposal.kernel),
        presets="\n".join(_presets(proposal)),
        tensors="\n".join(f"        {line}" for line in _tensors(call)),
        prepare="\n".join(f"    {line}" if line else "" for line in [*_told(call), *prepare]),
        judge=_judge(proposal, given),
    )


def _told_of(name: str) -> str:
    """A file's name as it can stand in a docstring, whatever letters it has."""
    return "".join(
        f"\\{c}" if c in '"\\' else c if c.isprintable() else c.encode("unicode_escape").decode() for c in name
    )


def _access(module: str, name: str, local: str) -> list[str]:
    """Lines that bring a module's function in as `local`."""
    if module.startswith("."):  # in kernels/ a package bears another name on each side
        return [f"{local} = import_module({_quoted(module)}, kernel.__name__).{name}"]
    if any(not part.isidentifier() or keyword.iskeyword(part) for part in module.split(".") if module):
        return [f"{local} = import_module({_quoted(module)}).{name}  # this side's own", ""]
    renamed = "" if local == name else f" as {local}"
    return [f"from {module} import {name}{renamed}  # this side's own", ""] if module else []


def _passed(call: Called, positional: bool) -> str:
    placed = [a for a in call.arguments if positional or a.placed]
    if not placed:
        return ", ".join(["**inputs", *(f"{a.name}={_given(a)}" for a in call.arguments if a.out or a.shape is None)])
    return ", ".join([*map(_given, placed), *(f"{a.name}={_given(a)}" for a in call.arguments if a not in placed)])


def _given(a: Argument) -> str:
    return a.local if a.out else a.value if a.shape is None else f'inputs["{a.name}"]'


def _told(call: Called) -> list[str]:
    guessed = [a.name for a in call.arguments if a.shape is None]
    lines = [f"# GUESSED: the value of {', '.join(guessed)}"] if guessed else []
    rest = textwrap.wrap(f"Not given: {', '.join(call.left_out)}", 110, break_long_words=False) if call.left_out else []
    return [*lines, *(f"# {line}" for line in rest)]


def _presets(proposal: Proposal) -> list[str]:
    """Sizes by the axes' names; dtypes that a kernel of this kind is likely to take."""
    call, kind = proposal.call, proposal.candidate.kind
    shapes = [a.shape for a in call.arguments if a.shape]
    beside = {axis: max(len(shape) for shape in shapes if axis in shape) - 1 for axis in call.axes}
    known = {axis: sizes(call.meant.get(axis, axis), beside[axis], call.axes) for axis in call.axes}
    along = scaled(call.axes) if call.axes else ""
    heads = any(len(shape) == 4 for shape in shapes)
    small = ["float16"] if heads and kind == "triton" else ["float32"]
    large = ["float32"] if kind == "torch" else ["float16"] if heads else ["bfloat16"]
    lines = []
    for name, dtypes, steps in (("smoke", small, ()), ("default", large, (1,)), ("full", large, (1, 2, 4))):
        axes = {axis: [known[axis][bool(steps)]] for axis in call.axes}
        if steps and along:
            most = known[along][1]
            axes[along] = sorted({max(1, most // step) for step in (*steps, 2 if name == "default" else 1)})
        lines += _wrapped(f'    "{name}": {json.dumps({**axes, "dtype": dtypes})},', "        ")
    return lines


def _wrapped(line: str, indent: str) -> list[str]:
    return textwrap.wrap(line, 118, subsequent_indent=indent, break_long_words=False, drop_whitespace=True) or [line]


def _tensors(call: Called) -> list[str]:
    lines, first = [], ""
    for a in call.arguments:
        if a.shape is None or a.out:
            continue
        axes = ", ".join(axis if axis.isdigit() else f'"{axis}"' for axis in a.shape)
        made = f"draw({axes})"
        if a.index and first:
            made = f"torch.randint({first}, draw({axes}).shape, generator=generator, device=device)"
        elif a.name.endswith("mask"):
            made += " > 0"
        elif not first:
            first = a.shape[-1] if a.shape[-1].isdigit() else f'case["{a.shape[-1]}"]'
        lines.append(f'"{a.name}": {made},' + (f"  # GUESSED: {a.guessed}" if a.guessed else ""))
    return lines


def _judge(proposal: Proposal, given: Sequence[Argument]) -> str:
    """`reference` and `check` where the function's name says what it computes."""
    call = proposal.call
    if not call.reference:
        return _UNJUDGED
    wide = [f'    {a.local} = inputs["{a.name}"]{"" if a.index else ".double()"}\n' for a in given]
    wide += [f"    # GUESSED: {' '.join(text.split())}\n" for text in call.assumed]
    tight = "1e-5" if proposal.candidate.kind == "torch" else "2e-3"  # a GPU multiplies float32 as TF32
    tolerance = f'rtol={tight} if case["dtype"] == "float32" else 2e-2, atol=0'
    return (
        f"\n\ndef reference(case, inputs):\n{''.join(wide)}    return {call.reference}  # GUESSED by the name\n"
        f"\n\ndef check(case, outputs, expected):\n    return compare(outputs, expected, {tolerance})\n"
    )
