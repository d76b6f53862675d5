"""Find the functions that two trees of a repository differ in: whose own code, or whose callees' code, is another.

A definition is a top-level function, class or assignment of a Python file. It reaches the definitions that it names, what
those name, and so on through imports, and the C and CUDA files of an extension that it imports. Comments, docstrings,
layout and the place of a definition do not count. No file is imported.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from abprof.extras.init.propose import Made, adopted
from abprof.extras.init.source import _ASIDE, _BACKWARD, Found, Function, _dotted, _top, candidates, look
from abprof.records.options import File
from abprof.system.config_file import parse_file

_MOST = 3  # functions that get a workload
_CONFIG = "abprof.toml"
_NATIVE = (".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".hip")
_OWN_OPS = re.compile(r"torch\.ops\.(?!aten|prims?|c10d)\w+\.")
_DEEPEST = 20  # imports that lead to imports
Tree = tuple[Mapping[str, str], Mapping[str, str]]  # path -> hash of each file; path -> text of each Python file
Name = tuple[str, str]  # module (path without .py, `/__init__.py`), name there; ("", name): a name outside of the tree


@dataclass(frozen=True)
class Change:
    """A function that two trees differ in."""

    function: Function
    parts: tuple[str, ...]  # names of the definitions and files that it reaches and that differ, kernels first
    kernels: frozenset[str]  # those of `parts` that are Triton kernels, or C or CUDA files
    entries: frozenset[str]  # functions of a changed extension that it calls
    causes: frozenset[str]  # what to measure it for: digests of the changed kernels, or else of all `parts`; `entries`
    launched: int  # Triton kernels that it reaches, except those of a backward; at least 1
    new: bool  # whether the base lacks the function


def changes(base: Tree, target: Tree) -> tuple[Found, list[Change]]:
    """Return the target's functions, and those of them that the trees differ in, the best to measure first.

    First are functions that both trees have and that reach a changed kernel which few others reach. Functions in folders
    such as tests are left out unless there are no others.
    """
    found = look(list(target[0]), target[1].__getitem__)
    same = {*base[0].values()} & {*target[0].values()}
    texts = {hashes[path]: text for hashes, own in (base, target) for path, text in own.items()}
    parsed = {key: _parsed(text, key if key in same else "") for key, text in texts.items()}
    before, after = _Code(base, parsed), _Code(target, parsed)
    made: list[Change] = []
    for one in candidates(found):
        name = one.name.removesuffix(".apply")
        old, new = before.reached(one.path, name), after.reached(one.path, name)
        if differ := {part for part, digest in old ^ new if digest} or {part for part, _ in old ^ new}:
            files = {part for part in differ if part.endswith(_NATIVE)}
            kernels = frozenset(files | (differ & found.kernels))
            entries = frozenset(part for part, _ in new if files and after.patterns(part))
            launched = sum(part in found.kernels and not _BACKWARD.search(part) for part, _ in new)
            parts = (*sorted(kernels), *sorted(differ - kernels))
            causes = entries.union(digest for part, digest in old ^ new if part in (kernels or differ))
            made.append(Change(one, parts, kernels, entries, causes, max(1, launched), not old))
    made = [change for change in made if not _ASIDE.fullmatch(change.function.path)] or made
    spread = Counter(part for change in made for part in change.parts)

    def rank(one: Change) -> tuple[bool, bool, bool, int, int]:  # equals stay in the order of `candidates`
        files = {PurePosixPath(part).stem for part in one.kernels if part.endswith(_NATIVE)}
        other = bool(files) and not files & {entry.rpartition(".")[2] for entry in one.entries}
        return one.new, not one.kernels, other, min(spread[part] for part in one.kernels or one.parts), one.launched

    return found, sorted(made, key=rank)


def best(some: Sequence[Change]) -> list[Change]:
    """Return the first few changes, without those that reach only what others before them reach."""
    chosen: list[Change] = []
    for change in some:
        if len(chosen) < _MOST and not change.causes <= {part for one in chosen for part in one.causes}:
            chosen.append(change)
    return chosen


def proposed(found: Found, some: Sequence[Function], file: File | None, folder: str, under: Sequence[str]) -> Made:
    """Propose a workload for each function, and the tables that the configuration `file` lacks (see `adopted`)."""
    files: dict[str, str] = {}
    missing: dict[str, None] = {}
    for one in some:
        known = parse_file(files[_CONFIG], _CONFIG) if _CONFIG in files else file
        made = adopted(found, one, known, folder, under=under)
        if files.keys() & made.files.keys() - {_CONFIG}:  # another function of this name
            made = adopted(found, one, known, folder, f"{one.name}_{len(files)}".replace(".", "_"), under)
        if file is None and made.missing:
            files[_CONFIG] += "\n".join(["", *made.missing, ""])
        else:
            missing |= dict.fromkeys(made.missing[:1] and ["\n".join(made.missing)])
        files |= made.files
    return Made(some[0], files, tuple(missing))


# ---------------------------------------------------------------- one file


@dataclass
class _Definition:
    digest: str = ""
    names: set[str] = field(default_factory=set)  # what it reads, dotted: `ops.norm.rms_norm`
    files: set[str] = field(default_factory=set)  # ends of paths of C and CUDA files in its strings


@dataclass
class _Module:
    definitions: dict[str, _Definition] = field(default_factory=dict)
    imports: dict[str, tuple[int, str, str]] = field(
        default_factory=dict
    )  # name -> level, module, name there ("": none)
    extensions: dict[str, set[str]] = field(default_factory=dict)  # module that setup.py builds -> ends of its sources


def _parsed(text: str, digest: str) -> _Module:
    """Read a file. `digest`: what stands for each definition's code; "": the hash of this code alone."""
    module = _Module()
    with contextlib.suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in strings
        tree = ast.parse(text)
        for node in ast.walk(tree):  # an import inside a function counts as one of the file
            if isinstance(node, ast.Import):
                tops = ((each.asname or each.name.partition(".")[0], each) for each in node.names)
                module.imports |= {name: (0, each.name if each.asname else name, "") for name, each in tops}
            elif isinstance(node, ast.ImportFrom):
                source = node.level, node.module or ""
                module.imports |= {each.asname or each.name: (*source, each.name) for each in node.names}
            elif isinstance(node, ast.Call) and _dotted(node.func).endswith("Extension"):
                named = [word.value for word in node.keywords if word.arg == "name"] + node.args[:1]
                names = [str(each.value).rpartition(".")[2] for each in named if isinstance(each, ast.Constant)]
                module.extensions |= {name: set(_natives(ast.walk(node))) for name in names[:1]}
        for statement in _top(tree.body):
            for name in _defined(statement):
                one, nodes = module.definitions.setdefault(name, _Definition()), list(ast.walk(statement))
                one.names |= {name for node in nodes if (name := _dotted(node))}
                one.files |= set(_natives(nodes))
                one.digest += digest or hashlib.sha256(_code(statement, nodes).encode()).hexdigest()
    return module


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _code(statement: ast.stmt, nodes: Sequence[ast.AST]) -> str:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(statement)


def _natives(nodes: Iterable[ast.AST]) -> Iterator[str]:
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    yield from (text.lstrip("./") for text in texts if text.endswith(_NATIVE))


# ---------------------------------------------------------------- one tree


class _Code:
    """The definitions of a tree. `parsed`: hash of a file's content -> its definitions."""

    def __init__(self, tree: Tree, parsed: Mapping[str, _Module]) -> None:
        self.hashes = tree[0]
        self.modules = {_stem(path): parsed[self.hashes[path]] for path in tree[1]}
        self.known: dict[Name, tuple[set[Name], set[Name]]] = {}
        self.roots: dict[str, list[str]] = {}  # module that a file imports -> folders that it may be in
        self.places = {*self.modules, *(str(folder) for stem in self.modules for folder in PurePosixPath(stem).parents)}
        setups = {f"{stem}.py": module for stem, module in self.modules.items() if f"/{stem}".endswith("/setup")}
        self.extensions = {  # module that a setup.py builds -> patterns of its files
            name: {*(ends or {"*"}), path}
            for path, module in setups.items()
            for name, ends in module.extensions.items()
        }

    def reached(self, path: str, name: str) -> set[Name]:
        """Return (name, digest) of all that a definition reaches, itself included; empty if the tree lacks it."""
        todo, seen, parts = [(_stem(path), name)], set[Name](), set[Name]()
        while todo:
            if (one := todo.pop()) not in seen:
                seen.add(one)
                self.known[one] = self.known.get(one) or self._own(*one)
                parts |= self.known[one][0]
                todo += self.known[one][1]
        return parts

    def _own(self, stem: str, name: str) -> tuple[set[Name], set[Name]]:
        """Return (name, digest) of a definition, its files and the outside names in it; and the definitions it names."""
        one = self.modules.get(stem, _Module()).definitions.get(name)
        if one is None:
            return set(), set()
        meant = {each for dotted in one.names if (each := self._meant(stem, dotted))}
        outside = {each for place, each in meant if not place}
        ends = one.files.union(*map(self.patterns, outside))
        files = [path for path in self.hashes if path.endswith((*_NATIVE, "setup.py"))] if ends else []
        named = {path for path in files for end in ends if fnmatchcase(f"/{path}", f"*/{end}")}
        folders = tuple(f"{PurePosixPath(path).parent}/" for path in named if path.endswith(_NATIVE))
        named |= {path for path in files if path.startswith(folders) and path.endswith(_NATIVE)}  # headers
        parts = {(name, one.digest), *((path, self.hashes[path]) for path in named), *((each, "") for each in outside)}
        return parts, {each for each in meant if each[0]}

    def patterns(self, outside: str) -> set[str]:
        """Return patterns of the files that a name is built from; empty unless the name is of an extension module."""
        names = self.extensions.keys() & {*outside.split(".")}
        if _OWN_OPS.match(outside) or (outside.startswith(".") and not self.extensions):  # maybe built by other means
            return set[str]().union(*self.extensions.values()) or {"*"}
        return set[str]().union(*(self.extensions[name] for name in names))

    def _meant(self, stem: str, dotted: str) -> Name | None:
        """Return what a name in a module means; None for a local variable, a builtin, or a module alone."""
        while dotted:
            part, _, dotted = dotted.partition(".")
            found = self._within(stem, part)
            if found is None or found[1]:
                return found if found is None or found[0] else ("", f"{found[1]}.{dotted}".rstrip("."))
            stem = found[0]
        return None

    def _within(self, stem: str, name: str, depth: int = 0) -> Name | None:
        """Return what a single name in a module means; (module, "") for a module."""
        module = self.modules.get(stem, _Module())
        if name in module.definitions or depth > _DEEPEST:
            return stem, name
        if f"{stem}/{name}" in self.places and name not in module.imports:
            return f"{stem}/{name}", ""
        if name not in module.imports and "*" not in module.imports:
            return None
        level, source, there = module.imports.get(name) or (*module.imports["*"][:2], name)
        place = self._module(stem, level, source)
        inner = self._within(place, there, depth + 1) if place and there else None
        outside = "." * level + ".".join(filter(None, (source, there)))
        return inner or ((place, "") if place and not there else ("", outside) if name in module.imports else None)

    def _module(self, stem: str, level: int, name: str) -> str | None:
        """Return the module or folder that an import in the module `stem` names; None if the tree lacks it."""
        inner = name.replace(".", "/")
        if level:
            parts = stem.split("/")
            place = "/".join([*parts[: len(parts) - level + (f"{stem}/__init__.py" in self.hashes)], inner]).rstrip("/")
            return place if place in self.places else None
        if name not in self.roots:
            roots = [place[: -len(inner)] for place in self.places if f"/{place}".endswith(f"/{inner}")]
            self.roots[name] = [root for root in roots if f"{root}__init__.py" not in self.hashes]
        near = max(self.roots[name], key=lambda root: (stem.startswith(root), len(root)), default=None)
        return None if near is None else f"{near}{inner}"


def _stem(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__")
