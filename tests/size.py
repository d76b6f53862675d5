"""`python -m tests.size`: the sizes that the project holds itself to, counted in this checkout."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import grimp
import networkx

ROOT = Path(__file__).parent.parent
WORDED = ("abprof", "docs", "templates", "tests", "README.md", "CHANGELOG.md", "Makefile")
MUST = {"lines in abprof/": 26_000, "entries at its top": 19, "import cycles": 0, "modules with one importer": 50}
MUST |= {"option declarations": 130, "lines in tests/": 36_000, "words in docs/": 30_000, "told": 20, "nobody": 10}


def tracked(folder: str) -> list[Path]:
    """The files of a folder that git tracks."""
    names = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.splitlines() if (ROOT / name).is_file()]


def lines(folder: str) -> int:
    """Lines of all files, as `wc -l` counts them."""
    return sum(file.read_bytes().count(b"\n") for file in tracked(folder))


def words(*folders: str, only: str = "") -> int:
    """Words of a folder's text, or how often one word stands there."""
    files = [file for folder in folders for file in tracked(folder) if file.suffix != ".xz"]
    found = [
        word.strip(".,;:!?'\"()`*_").lower() for file in files for word in file.read_text(errors="replace").split()
    ]
    return found.count(only) if only else len(found)


def cycles(graph: grimp.ImportGraph) -> int:
    """Import cycles of modules, and of the packages at the top."""
    edges = [(a, b) for a in graph.modules for b in graph.find_modules_directly_imported_by(a)]
    rooms = [(".".join(a.split(".")[:2]), ".".join(b.split(".")[:2])) for a, b in edges]
    found = [networkx.strongly_connected_components(networkx.DiGraph(pairs)) for pairs in (edges, rooms)]
    return sum(len(component) > 1 for components in found for component in components)


def counted() -> dict[str, int]:
    """Every figure by its name."""
    graph = grimp.build_graph("abprof", cache_dir=None)
    importers = [len(graph.find_modules_that_directly_import(module)) for module in graph.modules]
    sources = "".join(file.read_text() for file in tracked("abprof") if file.suffix == ".py")
    return {
        "lines in abprof/": lines("abprof"),
        "entries at its top": len({file.relative_to(ROOT).parts[1] for file in tracked("abprof")}),
        "import cycles": cycles(graph),
        "modules with one importer": importers.count(1),
        "option declarations": len(
            re.findall(r"typer.(?:Option|Argument)\(|\b(?:flag|text|number|many|Option)\(\s*\"--", sources)
        ),
        "lines in tests/": lines("tests"),
        "words in docs/": sum(len(f.read_text().split()) for f in tracked("docs") if f.suffix == ".md"),
        "told": words(*WORDED, only="told"),
        "nobody": words(*WORDED, only="nobody"),
    }


if __name__ == "__main__":
    print("| | now | must |\n|---|---:|---:|")
    for name, count in counted().items():
        print(f"| {name} | {count:,} | {MUST[name]:,} |")
