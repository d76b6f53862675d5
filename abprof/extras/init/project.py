"""What a project's own files say of it: name, where import names start, what setup.py builds, what a build generates."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from abprof.extras.init.facts import Project
from abprof.records.errors import AbprofError
from abprof.system import toml

_EXTENSION = re.compile(r"(?:Extension|CUDAExtension|CppExtension|cpp_extension|Pybind11Extension|HIPExtension)$")
_ASIDE = {"tests", "test", "docs", "doc", "examples", "scripts", "assets", "tools", "benchmarks", "dist", "build"}
_GENERATED = (  # where setuptools-scm and hatch-vcs are told which file to write
    ("tool", "setuptools_scm", "version_file"),
    ("tool", "setuptools_scm", "write_to"),
    ("tool", "hatch", "build", "hooks", "vcs", "version-file"),
    ("tool", "pdm", "version", "write_to"),
)


def read(files: Sequence[str], text: Callable[[str], str]) -> Project:
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
        cuda=any(_name(node) == "CUDAExtension" for node in _calls(setup)),
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
    found += [value for node in _calls(setup) for value in _where(node)]
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
    if _name(node).startswith(("find_packages", "find_namespace_packages")) and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def _calls(setup: ast.Module | None) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(setup) if isinstance(node, ast.Call)) if setup else ()


def _name(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def _argument(setup: ast.Module | None, name: str) -> str:
    for node in _calls(setup):
        if _name(node) == "setup":
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
    for node in _calls(setup):
        if _EXTENSION.search(_name(node)):
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
        elif word in folders and word not in _ASIDE:
            yield f"{word}/**"
