"""`python -m tests.size`: the sizes that the project holds itself to, counted in this checkout."""

import re
import subprocess
from pathlib import Path

import grimp
from networkx import DiGraph, strongly_connected_components

ROOT = Path(__file__).parent.parent
WORDED = ("abprof", "docs", "templates", "tests", "README.md", "CHANGELOG.md", "Makefile")
MUST = {"lines in abprof/": 26_000, "entries at its top": 19, "import cycles": 0, "modules with one importer": 50}
MUST |= {"option declarations": 130, "lines in tests/": 36_000, "words in docs/": 30_000, "told": 20, "nobody": 10}
OPTION = r"typer.(?:Option|Argument)\(|\b(?:flag|text|number|many|Option)\(\s*\"--"


def tracked(*folders: str) -> list[Path]:
    """The files of the folders that git tracks."""
    names = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.splitlines() if (ROOT / name).is_file()]


def lines(folder: str) -> int:
    """Lines of all files, as `wc -l` counts them."""
    return sum(file.read_bytes().count(b"\n") for file in tracked(folder))


def uses(pattern: str, *folders: str) -> int:
    """How often a pattern fits the text of the folders."""
    return sum(len(re.findall(pattern, file.read_text(errors="replace"))) for file in tracked(*folders))


def cycles(graph: grimp.ImportGraph) -> int:
    """Import cycles of modules, and of the packages at the top."""
    edges = [(a, b) for a in graph.modules for b in graph.find_modules_directly_imported_by(a)]
    rooms = [(".".join(a.split(".")[:2]), ".".join(b.split(".")[:2])) for a, b in edges]
    return sum(len(part) > 1 for pairs in (edges, rooms) for part in strongly_connected_components(DiGraph(pairs)))


def counted() -> dict[str, int]:
    """Every figure by its name."""
    graph = grimp.build_graph("abprof", cache_dir=None)
    importers = [len(graph.find_modules_that_directly_import(module)) for module in graph.modules]
    return {
        "lines in abprof/": lines("abprof"),
        "entries at its top": len({file.relative_to(ROOT).parts[1] for file in tracked("abprof")}),
        "import cycles": cycles(graph),
        "modules with one importer": importers.count(1),
        "option declarations": uses(OPTION, "abprof"),
        "lines in tests/": lines("tests"),
        "words in docs/": sum(len(file.read_text().split()) for file in tracked("docs") if file.suffix == ".md"),
        **{word: uses(rf"(?i)\b{word}\b", *WORDED) for word in ("told", "nobody")},
    }


if __name__ == "__main__":
    print("| | now | must |\n|---|---:|---:|")
    for name, count in counted().items():
        print(f"| {name} | {count:,} | {MUST[name]:,} |")
