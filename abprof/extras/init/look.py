"""A repository's Python files together: what in it can be called and measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from abprof.extras.init import project, source
from abprof.extras.init.conventions import known
from abprof.extras.init.facts import Candidate, Found, Function, Kind, Module, Use

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
    return Found(files=tuple(files), modules=modules, project=project.read(files, text), unread=unread)


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
            inner = {name for one in main for name in index.called_by(one)} | index.inside_forwards()
            judged = [msgspec.structs.replace(one, score=_score(found, one, one.called in inner)) for one in main]
            return tuple(sorted(judged, key=lambda one: (-one.score, one.module, one.function.line)))
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
            for name, use in source.along(self.uses(place, callee, depth - 1), places).items():
                uses[name] = source.merged(uses.get(name), use)
        return uses

    def inside_forwards(self) -> set[str]:
        """Names of functions that an autograd function's forward calls: its wrapper is what people call."""
        every = [pair for pairs in self.forwards.values() for pair in pairs]
        return {step[1].name for module, forward in every for step in self.steps(module, forward)}

    def called_by(self, one: Candidate) -> set[str]:
        """Names of this repository's functions that it calls."""
        return {step[1].name for step in self.steps(self.found.modules[one.module], one.function)}
