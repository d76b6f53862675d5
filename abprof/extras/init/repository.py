"""A repository as far as it can be read: its packaging files, its Python files, and what in them can be measured."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from abprof.extras.init import source
from abprof.extras.init.conventions import known
from abprof.extras.init.source import Function, Module, Use
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.system import toml

Kind = Literal["triton", "extension", "torch"]  # what a callable runs: Triton's kernels, an extension's, torch's own


class Project(Record, frozen=True, kw_only=True):
    """What pyproject.toml, setup.cfg, setup.py and .gitmodules say."""

    name: str = ""
    roots: tuple[str, ...] = ("",)  # folders that import names start from, the likeliest first
    extensions: tuple[str, ...] = ()  # import names that setup.py builds; "" for one that it computes
    cuda: bool = False  # one of them needs CUDA's compiler
    reads: tuple[str, ...] = ()  # tracked files and folders that setup.py names
    generated: tuple[str, ...] = ()  # files that a build writes and git does not have (setuptools-scm's)
    submodules: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()  # a line for each of these files that says nothing because it cannot be read


class Found(Record, frozen=True, kw_only=True):
    """A repository as far as it can be read."""

    files: tuple[str, ...]
    modules: dict[str, Module]
    project: Project
    unread: tuple[str, ...] = ()  # Python files that are no Python of this version, or no text


class Candidate(Record, frozen=True, kw_only=True):
    """A callable that can be measured."""

    module: str  # its file
    function: Function
    called: str  # the name to call: the function's, or the alias of a Class.apply
    kind: Kind
    kernels: tuple[str, ...] = ()  # Triton kernels that it comes to
    positional: bool = False


_ASIDE = """
test tests testing unit_tests benchmark benchmarks bench docs doc example examples scripts script tools third_party 3rdparty
vendor evals ci legacy profiling utils exps experiments baselines prototypes workloads runs node_modules dev demo demos tutorial
tutorials
"""
ASIDE = frozenset(_ASIDE.split())  # folders whose Python files are measured only if there are no others
_LARGEST = 1 << 20  # bytes of a Python file that a person wrote
_DEPTH = 6
_BACK = ("backward", "bwd", "_grad", "grad_", "dgrad", "wgrad")
_COMPILED = re.compile(r"_C|\w+_(?:C|cuda|cpp|ext|extension)")  # how modules are called whose name setup.py computes
_INNER = ("_forward", "_fwd", "_impl", "_inner", "_kernel", "_launch", "_update", "_cpu", "autotune", "_config")


def look(files: Sequence[str], text: Callable[[str], str]) -> Found:
    """Read what is there. `text` gives a file's content, and raises OSError, ValueError or SyntaxError where it cannot."""
    python = [path for path in files if path.endswith(".py")]
    modules, unread = _modules([path for path in python if not _aside(path)], text)
    if not any(module.kernels or module.forwards or module.functions for module in modules.values()):
        modules, unread = _modules(python, text)  # a repository of tutorials, of benchmarks
    return Found(files=tuple(files), modules=modules, project=read_project(files, text), unread=unread)


def _modules(files: Sequence[str], text: Callable[[str], str]) -> tuple[dict[str, Module], tuple[str, ...]]:
    modules, unread = {}, []
    for path in files:
        try:
            content = text(path)
            if len(content) <= _LARGEST:
                modules[path] = source.read(path, content)
        except (OSError, SyntaxError, ValueError, RecursionError):
            unread.append(path)
    return modules, tuple(unread)


def candidates(found: Found) -> tuple[Candidate, ...]:
    """What can be measured, the likeliest first: what launches kernels; without any, functions of tensors."""
    index = _Index(found)
    every = [one for module in found.modules.values() for one in _of_module(index, module)]
    for kinds in (("triton", "extension"), ("torch",)):
        some = [one for one in every if one.kind in kinds]
        main = [one for one in some if not _aside(one.module)] or some
        if main:
            # What another candidate or an autograd function's forward calls is less likely to be what people call.
            forwards = [pair for pairs in index.forwards.values() for pair in pairs]
            callers = [*forwards, *((found.modules[one.module], one.function) for one in main)]
            inner = {step[1].name for caller in callers for step in index.steps(*caller)}
            scored = ((-_score(found, one, one.called in inner), one.module, one.function.line, one) for one in main)
            return tuple(one for *_, one in sorted(scored, key=lambda row: row[:3]))
    return ()


def _aside(path: str) -> bool:
    parts = path.split("/")
    name = parts[-1]
    beside = name.startswith(("test_", "bench", "conftest", "setup.")) or name.endswith(("_test.py", "_bench.py"))
    return beside or bool(ASIDE & set(parts[:-1]))


def _of_module(index: _Index, module: Module) -> Iterator[Candidate]:
    path = module.path.rpartition("/")[2]
    if path.startswith(("test_", "conftest", "setup.")) or path.endswith("_test.py"):
        return
    for function in module.functions.values():
        if not function.name.startswith("_") and function.name != "main":
            made = _candidate(index, module, function, function.name)
            if made:
                yield made
    for alias, owner in module.aliases.items():
        forward = index.forward(module, owner)
        if forward and not alias.startswith("_") and owner not in index.wrapped:
            made = _candidate(index, module, forward, alias, positional=True)
            if made:
                yield made
    for owner, forward in module.forwards.items():
        if owner not in index.wrapped and owner not in module.aliases.values():
            made = _candidate(index, module, forward, f"{owner}.apply", positional=True)
            if made:
                yield made


def _candidate(
    index: _Index, module: Module, function: Function, called: str, *, positional: bool = False
) -> Candidate | None:
    kernels, native = index.reaches(module, function)
    uses = index.uses(module, function)
    function = msgspec.structs.replace(function, uses=uses)
    if not any(
        "Tensor" in p.annotation or (p.name in uses and not p.annotation) for p in function.parameters if not p.rest
    ):
        return None
    kind: Kind = "triton" if kernels else "extension" if native else "torch"
    if kind == "torch" and "torch" not in module.roots:  # x.shape is numpy's as well
        return None
    return Candidate(
        module=module.path,
        function=function,
        called=called,
        kind=kind,
        kernels=tuple(sorted(kernels)),
        positional=positional,
    )


def _score(found: Found, one: Candidate, inner: bool) -> int:
    """How likely it is what people call, and that it can be called by what is known of it."""
    name = one.called.lower()
    required = [p for p in one.function.parameters if p.default is None and not p.rest]
    uses = [one.function.uses.get(p.name, Use()) for p in required]
    front = any(one.called in m.exports for path, m in found.modules.items() if path.endswith("__init__.py"))
    project = re.sub(r"[-.]", "_", found.project.name)
    score = 3 * bool(known(name)) + 2 * front + 3 * (project in one.module.split("/")[:-1])
    score += min(3, sum(use.ndim > 0 for use in uses)) - max(0, len(required) - 3)
    score -= 4 * sum(not use.tensor and not p.annotation for use, p in zip(uses, required, strict=True))
    score -= 2 * inner + 2 * any(word in name for word in _INNER) + 2 * name.endswith("_")
    score -= 6 * any(word in name for word in _BACK) + 3 * (not one.function.returns)
    other = "backend" in one.module or "experimental" in one.module  # of another vendor, or not yet meant
    return score - 3 * other - 2 * (found.modules[one.module].runs is not None)


@dataclass
class _Index:
    """Names of the whole repository, and what a function comes to through what it calls."""

    found: Found
    functions: dict[str, list[tuple[Module, Function]]] = field(init=False)
    forwards: dict[str, list[tuple[Module, Function]]] = field(init=False)
    kernels: frozenset[str] = field(init=False)
    wrapped: frozenset[str] = field(init=False)  # autograd functions that a Python function applies

    def __post_init__(self) -> None:
        self.functions, self.forwards = {}, {}
        for module in self.found.modules.values():
            for function in module.functions.values():
                self.functions.setdefault(function.name, []).append((module, function))
            for name, function in module.forwards.items():
                self.forwards.setdefault(name, []).append((module, function))
        self.kernels = frozenset(name for module in self.found.modules.values() for name in module.kernels)
        every = (function for module in self.found.modules.values() for function in module.functions.values())
        self.wrapped = frozenset(call.name for function in every for call in function.calls if call.apply)
        self._reached: dict[tuple[str, str, int], tuple[frozenset[str], bool]] = {}

    def forward(self, module: Module, name: str) -> Function | None:
        """The forward of an autograd function that this file knows by `name`."""
        if name in module.forwards:
            return module.forwards[name]
        others = self.forwards.get(module.imported.get(name, ""), [])
        return others[0][1] if others else None

    def steps(self, module: Module, function: Function) -> Iterator[tuple[Module, Function, dict[str, str]]]:
        """What it calls of this repository, with the callee's parameter -> its own."""
        for call in function.calls:
            table = self.forwards if call.apply else self.functions
            here = module.forwards if call.apply else module.functions
            where = (module, here[call.name]) if call.name in here else None
            others = table.get(module.imported.get(call.name, ""), [])
            target = where or (others[0] if others else None)
            if target and target[1] is not function:
                names = [p.name for p in target[1].parameters]
                places = {
                    (names[at] if isinstance(at, int) and at < len(names) else str(at)): mine
                    for at, mine in call.places
                }
                yield (*target, places)

    def reaches(self, module: Module, function: Function, depth: int = _DEPTH) -> tuple[frozenset[str], bool]:
        """The Triton kernels that it launches, itself or through others, and whether it comes to a built extension."""
        key = (module.path, function.name, function.line)
        if key in self._reached:
            return self._reached[key]
        self._reached[key] = (frozenset(), False)  # for what calls itself
        known_here = set(module.kernels) | {n for n, real in module.imported.items() if real in self.kernels}
        mine = frozenset(function.names & known_here)
        native = bool(function.names & self._native(module))
        for place, callee, _ in self.steps(module, function) if depth else ():
            more, built = self.reaches(place, callee, depth - 1)
            mine, native = mine | more, native or built
        self._reached[key] = (mine, native)
        return mine, native

    def _native(self, module: Module) -> set[str]:
        """Names of this file that stand for a built extension."""
        built = {name.rpartition(".")[2] for name in self.found.project.extensions if name}
        mine = {name for name, real in module.imported.items() if real in built or name in built}
        if "" in self.found.project.extensions:
            mine |= {name for name, real in module.imported.items() if _COMPILED.fullmatch(real)}
        return mine | module.extensions | ({"torch.ops"} if self.found.project.extensions else set())

    def uses(self, module: Module, function: Function, depth: int = 3) -> dict[str, Use]:
        """What its own body and those it hands its parameters to say of them."""
        uses = dict(function.uses)
        for place, callee, places in self.steps(module, function) if depth else ():
            for theirs, use in self.uses(place, callee, depth - 1).items():
                if theirs in places:
                    uses[places[theirs]] = source.merged(uses.get(places[theirs]), use)
        return uses


# ---------------------------------------------------------------- packaging files


_EXTENSION = re.compile(r"(?:Extension|CUDAExtension|CppExtension|cpp_extension|Pybind11Extension|HIPExtension)$")
_NOT_READ = {"tests", "test", "docs", "doc", "examples", "scripts", "assets", "tools", "benchmarks", "dist", "build"}
_GENERATED = (  # where setuptools-scm and hatch-vcs are told which file to write
    ("tool", "setuptools_scm", "version_file"),
    ("tool", "setuptools_scm", "write_to"),
    ("tool", "hatch", "build", "hooks", "vcs", "version-file"),
    ("tool", "pdm", "version", "write_to"),
)


def read_project(files: Sequence[str], text: Callable[[str], str]) -> Project:
    """The project at the top of these files; `text` gives a file's content. What cannot be read says nothing but why."""
    there, broken = set(files), list[str]()

    def said(path: str) -> str:
        try:
            return text(path) if path in there else ""
        except (OSError, SyntaxError, ValueError) as error:
            broken.append(f"{path} cannot be read: {error}")
            return ""

    declared, setup = _toml(said("pyproject.toml"), broken), _tree(said("setup.py"), broken)
    options = _cfg(said("setup.cfg"), broken)
    named = next(iter(_texts(_at(declared, "project", "name"))), "")
    roots = _roots(declared, options, setup, there)
    generated = [name for path in _GENERATED for name in _texts(_at(declared, *path))]
    submodules = tuple(re.findall(r"^\s*path\s*=\s*(.+?)\s*$", said(".gitmodules"), re.M))
    return Project(
        name=named or options.get("name") or _argument(setup, "name"),
        roots=roots,
        extensions=tuple(_extensions(setup)),
        cuda=any(_callee(node) == "CUDAExtension" for node in _setup_calls(setup)),
        reads=tuple(_reads(setup, there)),
        generated=tuple(path for path in dict.fromkeys(generated) if path not in there),
        submodules=submodules,
        broken=tuple(f"{' '.join(line.split())[:300]}: nothing was taken from it" for line in broken),
    )


def _toml(text: str, broken: list[str]) -> dict[str, Any]:
    try:
        return toml.loads(text, "pyproject.toml")
    except AbprofError as error:
        broken.append(error.line)
        return {}


def _cfg(text: str, broken: list[str]) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text, "setup.cfg")
    except configparser.Error as error:
        broken.append(f"setup.cfg: {error}")
        return {}
    found = dict(parser["metadata"]) if parser.has_section("metadata") else {}
    where = parser.get("options.packages.find", "where", fallback="")
    folder = re.search(r"^\s*=\s*(\S+)", parser.get("options", "package_dir", fallback=""), re.M)
    return found | {"where": where or (folder[1] if folder else "")}


def _tree(text: str, broken: list[str]) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        broken.append(f"setup.py{line}: {error.msg if isinstance(error, SyntaxError) else error}")
        return None


def _at(table: Mapping[str, Any], *path: str) -> Any:
    value: Any = table
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _texts(value: Any) -> list[str]:
    """The texts of a value that is to be a text, or a list or a table of texts; what is something else says nothing."""
    loose = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    return [one for one in loose if isinstance(one, str) and one]


def _roots(
    declared: Mapping[str, Any], options: Mapping[str, str], setup: ast.Module | None, files: set[str]
) -> tuple[str, ...]:
    """Folders that import names start from; "" is the top, and always the last of them."""
    found = _texts(_at(declared, "tool", "setuptools", "packages", "find", "where"))
    found += _texts(_at(declared, "tool", "setuptools", "package-dir"))
    hatch = _texts(_at(declared, "tool", "hatch", "build", "targets", "wheel", "packages"))
    found += [folder.rpartition("/")[0] for folder in hatch]
    found += [*_texts(_at(declared, "tool", "maturin", "python-source")), options.get("where", "")]
    found += [value for node in _setup_calls(setup) for value in _where(node)]
    found += ["src"] if any(name.startswith("src/") and name.endswith(".py") for name in files) else []
    cleaned = (re.sub(r"^\./|/$", "", place) for place in found)
    return (*dict.fromkeys(place for place in cleaned if place and place != "."), "")


def _where(node: ast.Call) -> Iterator[str]:
    """Of setup.py: `package_dir={"": "src"}` and `find_packages("src")`."""
    for word in node.keywords:
        if word.arg == "package_dir" and isinstance(word.value, ast.Dict):
            yield from (v.value for v in word.value.values if isinstance(v, ast.Constant) and isinstance(v.value, str))
        if word.arg == "where" and isinstance(word.value, ast.Constant):
            yield str(word.value.value)
    if _callee(node).startswith(("find_packages", "find_namespace_packages")) and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def _setup_calls(setup: ast.Module | None) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(setup) if isinstance(node, ast.Call)) if setup else ()


def _callee(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def _argument(setup: ast.Module | None, name: str) -> str:
    for node in _setup_calls(setup):
        if _callee(node) == "setup":
            for word in node.keywords:
                if word.arg == name and isinstance(word.value, ast.Constant):
                    return str(word.value.value)
    return ""


def _extensions(setup: ast.Module | None) -> Iterator[str]:
    """Import names of the extension modules that setup.py makes, "" for a name that it computes."""
    constants = {}
    for node in ast.walk(setup) if setup else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
    for node in _setup_calls(setup):
        if _EXTENSION.search(_callee(node)):
            given = next(
                (word.value for word in node.keywords if word.arg == "name"), node.args[0] if node.args else None
            )
            if isinstance(given, ast.Name):
                given = constants.get(given.id)
            yield str(given.value) if isinstance(given, ast.Constant) else ""


def _reads(setup: ast.Module | None, files: set[str]) -> Iterator[str]:
    """Files, and folders as `DIR/**`, whose names stand in setup.py."""
    folders = {name[:at] for name in files for at in range(len(name)) if name[at] == "/"}
    words = (
        {n.value for n in ast.walk(setup) if isinstance(n, ast.Constant) and isinstance(n.value, str)} if setup else ()
    )
    for word in sorted(re.sub(r"^\./|/$", "", word) for word in words):
        if word in files:
            yield word
        elif word in folders and word not in _NOT_READ:
            yield f"{word}/**"
