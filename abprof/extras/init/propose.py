"""Facts and what was chosen in, a proposal out: the table of abprof.toml, and a first workload. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from abprof.extras.init.arguments import Called, called
from abprof.extras.init.facts import Candidate, Found, Module
from abprof.records import Record
from abprof.records.options import PackageEntry

_BUILD_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in")
_NATIVE = ("csrc", "include", "cpp", "cuda", "src/csrc")


class Proposal(Record, frozen=True, kw_only=True):
    """What would be written, and what a person should know of it."""

    kernel: str  # the kernel package's name
    entry: PackageEntry | None  # its table in abprof.toml; None: found by the conventional layout
    why: dict[str, str]  # key of the table -> why it has that value, where it is a guess
    workload: str  # name
    access: str  # how `prepare` comes by the function: "" is kernel.NAME, else the module to import it from (".rows": inside)
    candidate: Candidate
    call: Called
    notes: tuple[str, ...] = ()
    cuda: bool = False  # its build needs CUDA's compiler


class Place(Record, frozen=True, kw_only=True):
    """Where a file's code is imported from."""

    package: str  # the top package's import name, or a single file's stem
    path: str  # its folder, or the file
    module: str  # the file's own import name; "" for a single file, relative (".rows") in kernels/
    single: bool = False
    conventional: bool = False  # kernels/NAME


def propose(found: Found, one: Candidate) -> Proposal:
    """What abprof needs to measure this candidate."""
    place = place_of(found, found.modules[one.module])
    entry, why = (None, {}) if place.conventional else _entry(found, place)
    return Proposal(
        kernel=place.package.rpartition(".")[2],
        entry=entry,
        why=why,
        workload=re.sub(r"\W", "_", one.called.removesuffix(".apply")).strip("_") or "first",
        access="" if _at_front(found, one, place) else place.module,
        candidate=one,
        call=called(one),
        notes=tuple(_notes(found, one, place)),
        cuda=found.project.cuda,
    )


def _at_front(found: Found, one: Candidate, place: Place) -> bool:
    """Whether `package.NAME` is this function: the package's front brings it, and no other file there has one so called."""
    front, name = f"{place.path}/__init__.py", one.called.partition(".")[0]
    if place.single or one.module == front:
        return True
    same = [
        path
        for path, module in found.modules.items()
        if path.startswith(f"{place.path}/") and (name in module.functions or name in module.forwards)
    ]
    return front in found.modules and name in found.modules[front].exports and same == [one.module]


def place_of(found: Found, module: Module) -> Place:
    """The import name of a file: as far up as there is an __init__.py, or up to a folder that import names start from."""
    path = PurePosixPath(module.path)
    if _conventional(found, path):
        name = path.parts[1].removesuffix(".py")
        inside = ".".join(("", *path.with_suffix("").parts[2:])).removesuffix(".__init__")
        folder = f"kernels/{name}" if len(path.parts) > 2 else module.path
        return Place(package=name, path=folder, module=inside, single=len(path.parts) == 2, conventional=True)
    top = path.parent
    while str(top) != "." and f"{top}/__init__.py" in found.files:
        top = top.parent
    if top == path.parent and not _in_namespace(found, module):
        return Place(package=path.stem, path=module.path, module="", single=True)
    root = next((r for r in found.project.roots if not r or str(top) == r or str(top).startswith(f"{r}/")), "")
    inner = path.relative_to(root) if root else path
    module_name = ".".join(inner.with_suffix("").parts).removesuffix(".__init__")
    step = path.relative_to(top).parts[0] if top != path.parent else ""
    home = top / step if step else path.parent
    package = ".".join((home.relative_to(root) if root else home).parts)
    return Place(package=package, path=str(home), module=module_name)


def _conventional(found: Found, path: PurePosixPath) -> bool:
    """Whether it lies in kernels/NAME/, a package, or is kernels/NAME.py."""
    if path.parts[0] != "kernels" or len(path.parts) < 2 or "kernels/__init__.py" in found.files:
        return False
    return len(path.parts) == 2 or f"kernels/{path.parts[1]}/__init__.py" in found.files


def _in_namespace(found: Found, module: Module) -> bool:
    """Whether a folder without __init__.py is a package all the same: its files import each other by its name."""
    folder = PurePosixPath(module.path).parent
    if str(folder) in {".", *found.project.roots}:
        return False
    under_root = next((r for r in found.project.roots if r and str(folder).startswith(f"{r}/")), None)
    return module.relative or under_root is not None or any(folder.parts[0] in m.roots for m in found.modules.values())


# ---------------------------------------------------------------- the table of abprof.toml


def _entry(found: Found, place: Place) -> tuple[PackageEntry, dict[str, str]]:
    build: tuple[str, ...] = ()
    env: dict[str, str] = {}
    why: dict[str, str] = {}
    inputs = [place.path if place.single else f"{place.path}/**", *_beside(found, place)]
    native = [f"{folder}/**" for folder in _NATIVE if any(name.startswith(f"{folder}/") for name in found.files)]
    submodules = [f"{sub}/**" for sub in found.project.submodules]
    if found.project.extensions:
        build = ("python", "setup.py", "build_ext", "--inplace")
        why["build"] = "setup.py makes an extension: it is compiled once for each content of `inputs`"
        inputs += [name for name in _BUILD_FILES if name in found.files] + list(found.project.reads) + native
        if any(name and not name.startswith(f"{place.package}.") for name in found.project.extensions):
            env = {"PYTHONPATH": "{worktree}"}
            why["env"] = "the extension is imported from the top, not from inside the package"
    elif any(found.modules[path].extensions for path in found.modules):
        inputs += native
    elif found.project.generated:
        build, why["build"] = _generate(found.project.generated[0])
    if place.single and _siblings(found, place):
        env = {"PYTHONPATH": "{worktree}/" + str(PurePosixPath(place.path).parent)}
        env = {name: value.removesuffix("/.") for name, value in env.items()}
        why["env"] = "it imports files beside it"
    inputs = _without_covered([*inputs, *(submodules if build else [])])
    entry = PackageEntry(
        path=place.path,
        import_="" if place.single else place.package,
        inputs=tuple(inputs),
        build=build,
        env=env,
        submodules=bool(submodules and build),
    )
    why["inputs"] = "what decides a rebuild, and all that a build is given: add what else it reads"
    return entry, why


def _generate(path: str) -> tuple[tuple[str, ...], str]:
    """A recipe for the version file that a packaging tool writes."""
    code = f"open({path!r}, 'w').write(\"__version__ = version = '0'\\n__version_tuple__ = version_tuple = (0,)\\n\")"
    return ("python", "-c", code), f"{path} is written by a packaging tool, and git does not have it"


def _beside(found: Found, place: Place) -> list[str]:
    """Other packages and files of this repository that its modules import."""
    mine = [m for path, m in found.modules.items() if path == place.path or path.startswith(f"{place.path}/")]
    wanted = {root for module in mine for root in module.roots} - {place.package.split(".")[0]}
    made = []
    folder = str(PurePosixPath(place.path).parent)
    for root in dict.fromkeys((*found.project.roots, "" if folder == "." else folder)):
        prefix = f"{root}/" if root else ""
        for name in sorted(wanted):
            if f"{prefix}{name}.py" in found.files:
                made.append(f"{prefix}{name}.py")
            elif f"{prefix}{name}/__init__.py" in found.files:
                made.append(f"{prefix}{name}/**")
    return made


def _siblings(found: Found, place: Place) -> bool:
    folder = str(PurePosixPath(place.path).parent)
    prefix = "" if folder == "." else f"{folder}/"
    roots = found.modules[place.path].roots
    return any(f"{prefix}{name}.py" in found.files or f"{prefix}{name}/__init__.py" in found.files for name in roots)


def _without_covered(globs: list[str]) -> list[str]:
    """Each once, and none that lies in a folder which is there as a whole."""
    whole = {glob[:-2] for glob in globs if glob.endswith("/**")}
    return [g for g in dict.fromkeys(globs) if not any(g.startswith(w) and g != f"{w}**" for w in whole)]


# ---------------------------------------------------------------- what a person should know


def _notes(found: Found, one: Candidate, place: Place) -> list[str]:
    notes = []
    module = found.modules[one.module]
    if module.runs:
        line, text = module.runs
        notes.append(f"{one.module}:{line} runs when the file is imported, in every worker: {text.strip()[:80]}")
    if place.single and found.project.submodules:
        notes.append("submodules are not checked out: set submodules = true should the file need them")
    if "" in found.project.extensions:
        notes.append(
            "setup.py computes an extension's name: see that `build` makes it where the package imports it from"
        )
    return notes
