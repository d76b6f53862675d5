"""Find the functions whose code, or whose callees' code, differs between two trees of a repository.

A definition (a top-level function, class or assignment) reaches the definitions that it names, what those name, and so on
through imports, and the C and CUDA files of an extension. Comments, docstrings, layout and place do not count.
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

from abprof.extras.init.source import _ASIDE, BACKWARD, Found, Function, _dotted, _outer, _top, candidates, look

_MOST = 3  # functions that get a workload
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
    causes: frozenset[str]  # what to measure it for: digests of changed kernels, or else of all `parts`; entries
    new: bool  # whether the base lacks the function
    apart: bool  # whether it reaches changed C or CUDA files, none of them named like it or what it calls


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
    made: list[tuple[Change, int]] = []
    for one in candidates(found):
        name = one.name.removesuffix(".apply")
        old, new = before.reached(one.path, name), after.reached(one.path, name)
        if differ := {part for part, digest in old ^ new if digest} or {part for part, _ in old ^ new}:
            files = {part for part in differ if part.endswith(_NATIVE)}
            kernels = frozenset(files | (differ & found.kernels))
            entries = frozenset(part for part, _ in new if files and after.patterns(part))  # functions of extensions
            own = [_words(each.rpartition(".")[2]) for each in (*entries, name)]
            named = any(_words(PurePosixPath(file).stem) <= words for file in files for words in own)
            launched = sum(part in found.kernels and not BACKWARD.search(part) for part, _ in new)
            causes = entries.union(digest for part, digest in old ^ new if part in (kernels or differ))
            parts = (*sorted(kernels), *sorted(differ - kernels))
            change = Change(one, parts, kernels, causes, not old, bool(files) and not named)
            made.append((change, max(1, launched)))
    made = [row for row in made if not _ASIDE.fullmatch(row[0].function.path)] or made
    spread = Counter(part for change, *_ in made for part in change.parts)

    def rank(row: tuple[Change, int]) -> tuple[bool, bool, bool, bool, int, int]:  # equals stay in `candidates`' order
        one, launched = row
        least = min(spread[part] for part in one.kernels or one.parts)
        gradient = bool(BACKWARD.search(one.function.name))  # what differentiates passes it better arguments
        return one.new, not one.kernels, one.apart, gradient, least, launched

    return found, [change for change, *_ in sorted(made, key=rank)]


def _words(name: str) -> set[str]:
    """Return the words of a name that say what is computed: `segment`, `csr` of segment_csr_cpu."""
    return {*name.lower().split("_")} - {"", "cpu", "cuda", "gpu", "hip", "kernel", "kernels"}


def best(some: Sequence[Change]) -> list[Change]:
    """Return the first few changes, without those that reach only what others before them reach; only functions that the
    base has, that launch kernels, and that are named like a changed source, if there are any."""
    kinds = [(one.new, not (one.kernels or one.function.kernels), one.apart) for one in some]
    chosen: list[Change] = []
    for change in (one for one, kind in zip(some, kinds, strict=True) if kind == min(kinds)):
        if len(chosen) < _MOST and not change.causes <= {part for one in chosen for part in one.causes}:
            chosen.append(change)
    return chosen


@dataclass
class _Module:
    digests: dict[str, str] = field(default_factory=dict)  # definition -> what stands for its code
    uses: dict[str, set[str]] = field(default_factory=dict)  # dotted names that it reads; "/" and a C file's path
    # Name -> level, module, name there or ""; "function:name" for an import inside a function.
    imports: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    extensions: dict[str, set[str]] = field(default_factory=dict)  # module that setup.py builds -> ends of its sources


def _parsed(text: str, digest: str) -> _Module:
    """Read a file. `digest`: what stands for each definition's code; "": the hash of this code alone."""
    module = _Module()
    with contextlib.suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in strings
        tree = ast.parse(text)
        module.imports = _imports(_outer(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _dotted(node.func).endswith("Extension"):
                named = [word.value for word in node.keywords if word.arg == "name"] + node.args[:1]
                texts = [str(each.value) for each in named if isinstance(each, ast.Constant)]
                module.extensions |= {text.rpartition(".")[2]: set(_natives(ast.walk(node))) for text in texts[:1]}
        for statement in _top(tree.body):
            nodes = list(ast.walk(statement))
            own = _imports(nodes)
            for name in _defined(statement):
                if name in module.imports and isinstance(getattr(statement, "value", None), ast.Constant):
                    continue  # f = None, where the import fails
                module.imports |= {f"{name}:{each}": meant for each, meant in own.items()}
                used = (f"{name}:{each}" if each.partition(".")[0] in own else each for each in map(_dotted, nodes))
                module.uses.setdefault(name, set()).update(used, (f"/{end}" for end in _natives(nodes)))
                for node in nodes:
                    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                        node.body = node.body[1:]
                code = digest or hashlib.sha256(ast.dump(statement).encode()).hexdigest()
                module.digests[name] = module.digests.get(name, "") + code
    return module


def _imports(nodes: Iterable[ast.AST]) -> dict[str, tuple[int, str, str]]:
    made: dict[str, tuple[int, str, str]] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            tops = ((each.asname or each.name.partition(".")[0], each) for each in node.names)
            made |= {name: (0, each.name if each.asname else name, "") for name, each in tops}
        elif isinstance(node, ast.ImportFrom):
            names = [((each.asname or each.name).replace("*", f"*{node.lineno}"), each.name) for each in node.names]
            made |= {name: (node.level, node.module or "", there) for name, there in names}
    return made


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _natives(nodes: Iterable[ast.AST]) -> Iterator[str]:
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    yield from (text.lstrip("./") for text in texts if text.endswith(_NATIVE))


class _Code:
    """The definitions of a tree. `parsed`: hash of a file's content -> its definitions."""

    def __init__(self, tree: Tree, parsed: Mapping[str, _Module]) -> None:
        self.hashes = tree[0]
        self.modules = {_stem(path): parsed[self.hashes[path]] for path in tree[1]}
        self.known: dict[Name, tuple[set[Name], set[Name]]] = {}
        self.roots: dict[str, list[str]] = {}  # module that a file imports -> folders that it may be in
        self.places = {*self.modules, *(str(folder) for stem in self.modules for folder in PurePosixPath(stem).parents)}
        setups = [(f"{stem}.py", module) for stem, module in self.modules.items() if f"/{stem}".endswith("/setup")]
        # Module that a setup.py builds -> patterns of its files.
        built = ((path, *each) for path, module in setups for each in module.extensions.items())
        self.extensions = {name: {*(ends or "*"), path} for path, name, ends in built}

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
        module = self.modules.get(stem, _Module())
        if name not in module.digests:
            return set(), set()
        meant = {each for dotted in module.uses[name] if (each := self._meant(stem, dotted))}
        outside = {each for place, each in meant if not place}
        ends = {use[1:] for use in module.uses[name] if use.startswith("/")}.union(*map(self.patterns, outside))
        files = [path for path in self.hashes if path.endswith((*_NATIVE, "setup.py"))] if ends else []
        named = {path for path in files for end in ends if fnmatchcase(f"/{path}", f"*/{end}")}
        folders = tuple(f"{PurePosixPath(path).parent}/" for path in named if path.endswith(_NATIVE))
        named |= {path for path in files if path.startswith(folders) and path.endswith(_NATIVE)}  # headers
        parts = {(path, self.hashes[path]) for path in named} | {(each, "") for each in outside}
        return parts | {(name, module.digests[name])}, {each for each in meant if each[0]}

    def patterns(self, outside: str) -> set[str]:
        """Return patterns of the files that a name is built from; empty unless the name is of an extension module."""
        own = _OWN_OPS.match(outside) or (outside.startswith(".") and not self.extensions)  # maybe built by other means
        names = self.extensions.keys() if own else self.extensions.keys() & {*outside.split(".")}
        return set[str]().union(*(self.extensions[name] for name in names)) or set("*" if own else "")

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
        if name in module.digests or depth > _DEEPEST:
            return stem, name
        if f"{stem}/{name}" in self.places and name not in module.imports:
            return f"{stem}/{name}", ""
        if name in module.imports:
            level, source, there = module.imports[name]
            place = self._module(stem, level, source)
            inner = self._within(place, there, depth + 1) if place and there else None
            outside = "." * level + ".".join(filter(None, (source, there)))
            return inner or ((place, "") if place and not there else ("", outside))
        stars = (self._module(stem, *each[:2]) for key, each in module.imports.items() if key[0] == "*")
        found = (self._within(place, name, depth + 1) for place in stars if place)
        return next((each for each in found if each and each[0]), None)

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
