"""The proposal as texts: abprof.toml, a workload, and what is printed. templates/adopt/ has their frames."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from string import Template

from abprof.adopt.arguments import Called
from abprof.adopt.propose import Proposal
from abprof.adopt.sizes import scaled, sizes
from abprof.bundled import bundled
from abprof.config import PackageEntry

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


def table(name: str, entry: PackageEntry, why: dict[str, str]) -> list[str]:
    """A [kernels.NAME] table, with a comment where a value is a guess."""
    key = name if name.replace("_", "").replace("-", "").isalnum() else _quoted(name)
    loose: dict[str, str | Sequence[str] | dict[str, str]] = {
        "path": entry.path,
        "import": entry.import_,
        "inputs": entry.inputs,
        "build": entry.build,
        "env": entry.env,
    }
    lines = [f"[kernels.{key}]"]
    for item, value in loose.items():
        if value:
            lines += [f"# {why[item]}"] if item in why else []
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
    outs = [a.name for a in call.arguments if a.out]
    how = one.called if proposal.access else f"kernel.{one.called}"
    calling = f"{how}({_passed(call, one.positional)})"
    prepare = _access(proposal)
    first = next(a.name for a in call.arguments if a.shape is not None and not a.out)
    prepare += [f'{name} = torch.empty_like(inputs["{first}"])  # GUESSED: the shape' for name in outs]
    prepare += [f"return Op(lambda: {f'({calling}, {outs[0]})[1]' if outs else calling})"]
    names = [a.name for a in call.arguments if a.shape is not None and not a.out]
    frame = Template((bundled("templates") / "adopt" / "workload.txt").read_text(encoding="utf-8"))
    return frame.substitute(
        title=f"{one.called} of {one.module}, as `abprof init` found it: look at what is GUESSED.",
        imports="from importlib import import_module\n\n" if proposal.access.startswith(".") else "",
        helpers="Op, compare" if call.reference else "Op",
        kernel=proposal.kernel,
        presets="\n".join(_presets(proposal)),
        tensors="\n".join(f"        {line}" for line in _tensors(call)),
        prepare="\n".join(f"    {line}" if line else "" for line in [*_told(call), *prepare]),
        judge=_judge(proposal, names),
    )


def _access(proposal: Proposal) -> list[str]:
    name, module = proposal.candidate.called.partition(".")[0], proposal.access
    if module.startswith("."):  # in kernels/ a package bears another name on each side
        return [f'{name} = import_module("{module}", kernel.__name__).{name}']
    return [f"from {module} import {name}  # this side's own", ""] if module else []


def _passed(call: Called, positional: bool) -> str:
    if positional:
        return ", ".join(f'inputs["{a.name}"]' if a.shape is not None else a.value for a in call.arguments)
    named = [f"{a.name}={a.name if a.out else a.value}" for a in call.arguments if a.out or a.shape is None]
    return ", ".join(["**inputs", *named])


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


def _judge(proposal: Proposal, names: Sequence[str]) -> str:
    """`reference` and `check` where the function's name says what it computes."""
    call = proposal.call
    if not call.reference:
        return _UNJUDGED
    by_name = {a.name: a for a in call.arguments}
    wide = [f'    {name} = inputs["{name}"]{"" if by_name[name].index else ".double()"}\n' for name in names]
    tight = "1e-5" if proposal.candidate.kind == "torch" else "2e-3"  # a GPU multiplies float32 as TF32
    tolerance = f'rtol={tight} if case["dtype"] == "float32" else 2e-2, atol=0'
    return (
        f"\n\ndef reference(case, inputs):\n{''.join(wide)}    return {call.reference}  # GUESSED by the name\n"
        f"\n\ndef check(case, outputs, expected):\n    return compare(outputs, expected, {tolerance})\n"
    )
