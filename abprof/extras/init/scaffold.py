"""What is written, as paths and texts: for code that is there, and for a package and a workload that begin here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Template

import msgspec

from abprof.extras.init import look, texts
from abprof.extras.init.facts import Candidate, Found
from abprof.extras.init.propose import Proposal, place_of, propose
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.records.options import File
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
    settings = "" if known or (file and not proposal.entry) else texts.toml(proposal, folder)
    lacking = proposal.entry if file and settings else None
    table = texts.table(proposal.kernel, lacking, proposal.why, under) if lacking else []
    place = f"{folder}/{proposal.workload}.py"
    files = {place: texts.workload(proposal)}
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
    found = look.look([path], {path: text}.__getitem__)
    made = adopted(found, look.candidates(found)[0], file, folder, workload or name)
    return msgspec.structs.replace(made, files={path: text, **made.files})


def within(found: Found, kernel: str, file: File | None) -> tuple[Candidate, ...]:
    """What can be measured in a kernel package that is there. Raises AbprofError for one that is not, or holds nothing."""
    package = (file or File()).package(kernel)
    folder = (package.path or (package.module.replace(".", "/") if package.module else f"kernels/{kernel}")).rstrip("/")
    inside = [p for p in found.files if p.startswith(f"{folder}/") or p in {folder, f"{folder}.py"}]
    if not inside:
        advice = f"abprof init --kernel {kernel} begins one; with a workload of another name --kernel says for which"
        raise AbprofError(f"no kernel package {kernel}", where=folder, advice=advice)
    some = tuple(one for one in look.candidates(_only(found, inside)) if one.module in inside)
    if not some:
        raise AbprofError(
            "no function of tensors found", where=folder, advice="docs/WRITING.md says how a workload is written"
        )
    return some


def _only(found: Found, inside: Sequence[str]) -> Found:
    modules = {path: module for path, module in found.modules.items() if path in inside}
    return msgspec.structs.replace(found, modules=modules)


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
