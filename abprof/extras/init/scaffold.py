"""What is written, as paths and texts: for code that is there, and for a package and a workload that begin here."""

from __future__ import annotations

import json
import keyword
import re
import textwrap
from collections.abc import Sequence
from string import Template

import msgspec

from abprof.extras.init import repository
from abprof.extras.init.conventions import scaled, sizes
from abprof.extras.init.propose import Argument, Called, Proposal, place_of, propose, unused
from abprof.extras.init.repository import Candidate, Found
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.records.options import File, PackageEntry
from abprof.system.bundled import bundled
from abprof.system.config_file import parse_file


class Made(Record, frozen=True, kw_only=True):
    """Files to be written, relative to the repository's root, and where they come from."""

    files: dict[str, str]
    workload: str  # which of them that is
    proposal: Proposal
    missing: tuple[str, ...] = ()  # lines that the configuration which is there lacks


def adopted(
    found: Found, one: Candidate, file: File | None, folder: str, name: str = "", under: Sequence[str] = ()
) -> Made:
    """A table for the candidate's package where the configuration, all of whose keys stand under `under`, has none yet, and
    a workload."""
    proposal = propose(found, one)
    known = _entry_of(proposal, file)
    proposal = msgspec.structs.replace(proposal, kernel=known or proposal.kernel, workload=name or proposal.workload)
    settings = "" if known or (file and not proposal.entry) else toml_text(proposal, folder)
    lacking = proposal.entry if file and settings else None
    table = table_lines(proposal.kernel, lacking, proposal.why, under) if lacking else []
    place = f"{folder}/{proposal.workload}.py"
    files = {place: workload_text(proposal)}
    if settings and file is None:
        files = {"abprof.toml": settings, **files}
    _readable(settings, files[place], one)
    return Made(files=files, workload=place, proposal=proposal, missing=tuple(table))


def _readable(settings: str, workload: str, one: Candidate) -> None:
    """Raises AbprofError for names of files and folders of which no file can be made that abprof and Python read."""
    try:
        (settings + workload).encode()
        compile(workload, "workload", "exec")
        parse_file(settings, "abprof.toml")
    except (SyntaxError, ValueError, AbprofError) as error:
        what = f"no workload can be made for a file of this name: {ascii(str(error))[1:-1]}"
        raise AbprofError(
            what, where=ascii(one.module)[1:-1], advice="docs/WRITING.md says how one is written"
        ) from None


def _entry_of(proposal: Proposal, file: File | None) -> str:
    """The name under which the configuration has this package already."""
    entry = proposal.entry
    for name, there in (file.kernels if file else {}).items():
        if entry and (there.path.rstrip("/"), there.import_) == (entry.path, entry.import_):
            return name
    return ""


def begun(name: str, workload: str, file: File | None, folder: str) -> Made:
    """A kernel package in abprof's own layout that runs as it stands, and its workload."""
    path = f"kernels/{name}/__init__.py"
    text = Template((bundled("templates") / "adopt" / "kernel.txt").read_text(encoding="utf-8")).substitute(name=name)
    found = repository.look([path], {path: text}.__getitem__)
    made = adopted(found, repository.candidates(found)[0], file, folder, workload or name)
    return msgspec.structs.replace(made, files={path: text, **made.files})


def within(found: Found, kernel: str, file: File | None) -> tuple[Candidate, ...]:
    """What can be measured in a kernel package that is there. Raises AbprofError for one that is not, or holds nothing."""
    package = (file or File()).package(kernel)
    folder = (package.path or (package.module.replace(".", "/") if package.module else f"kernels/{kernel}")).rstrip("/")
    inside = [p for p in found.files if p.startswith(f"{folder}/") or p in {folder, f"{folder}.py"}]
    if not inside:
        advice = f"abprof init --kernel {kernel} begins one; with a workload of another name --kernel says for which"
        raise AbprofError(f"no kernel package {kernel}", where=folder, advice=advice)
    modules = {path: module for path, module in found.modules.items() if path in inside}
    some = tuple(
        one for one in repository.candidates(msgspec.structs.replace(found, modules=modules)) if one.module in inside
    )
    if not some:
        raise AbprofError(
            "no function of tensors found", where=folder, advice="docs/WRITING.md says how a workload is written"
        )
    return some


def plain_name(name: str, option: str) -> str:
    """A name that a file, a module and a TOML key can have. Raises AbprofError."""
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise AbprofError(f"{name!r} is no name for a module", where=option, advice="letters, digits and _")
    return name


def shown(found: Found, one: Candidate) -> str:
    """A candidate in one line."""
    place = place_of(found, found.modules[one.module])
    taken = ", ".join(p.name for p in one.function.parameters if not p.rest)
    how = (
        f"launches {', '.join(one.kernels[:2])}"
        if one.kernels
        else {"extension": "calls an extension"}.get(one.kind, "plain torch")
    )
    return f"{place.module or one.module}.{one.called}({taken}) at {one.module}:{one.function.line}, {how}"


# ---------------------------------------------------------------- the files as text; templates/adopt/ has their frames


_UNJUDGED = """

# WRITE: reference(case, inputs), what it computes in plain torch and higher precision, and check(case, outputs, expected),
# which compares. Without them only this is checked: that the sides' outputs agree.
"""


def toml_text(proposal: Proposal, workloads: str) -> str:
    """The whole file; "" where the conventional layout needs none."""
    lines = [] if workloads == "workloads" else [f"workloads = {_quoted(workloads)}", ""]
    if proposal.entry:
        lines += table_lines(proposal.kernel, proposal.entry, proposal.why)
    return "\n".join(["# docs/CONFIG.md has every key.", "schema = 1", "", *lines, ""]) if lines else ""


def table_lines(name: str, entry: PackageEntry, why: dict[str, str], under: Sequence[str] = ()) -> list[str]:
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


def workload_text(proposal: Proposal) -> str:
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
    known = {axis: sizes(call.meant.get(axis, axis), beside[axis]) for axis in call.axes}
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
        line = f'    "{name}": {json.dumps({**axes, "dtype": dtypes})},'
        lines += textwrap.wrap(line, 118, subsequent_indent=" " * 8, break_long_words=False)
    return lines


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
