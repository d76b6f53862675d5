"""Wrapped benchmarks in whole runs: the benchmark from one place, the package from each side, outputs against each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.repository import package, wrapped
from tests.tinyrepo import abprof

GUARANTEE = "has no reference. At most the agreement of the sides' outputs was checked"


def test_the_sides_outputs_are_compared_with_each_other(tmp_path: Path) -> None:
    repo = wrapped(tmp_path / "repo", "report")
    repo.write({"src/mylib/__init__.py": package(more=" + 1"), "benchmarks/shapes.py": "WIDTHS = [64]\n"})
    done = abprof("main", ".", "--device", "cpu", "--quick", "--json", cwd=repo.path, home=tmp_path)
    assert done.verdicts() == {"report/N=64,provider=mylib": "broken", "report/N=64,provider=torch": "unclear"}, (
        done.err
    )
    rows = {(row["cell"], row["arm"]): row for row in done.run["observations"]}
    wrong = rows["report/N=64,provider=mylib", "target"]
    assert wrong["status"] == "wrong"
    assert wrong["reason"].startswith("the sides do not agree: output 0: largest error 1")
    fine = rows["report/N=64,provider=torch", "target"]
    assert (fine["status"], fine["check"]["ok"]) == ("ok", True)
    assert done.run["workloads"][0]["checked"] == "sides"
    assert all(proof["ok"] for proof in done.run["proofs"]), "the benchmark judges, and belongs to no side"
    (folder,) = (repo.path / "runs").glob("2*")
    for page in ("report.html", "report.md", "output.txt"):
        assert GUARANTEE in (folder / page).read_text().replace("&#39;", "'")


@pytest.mark.slow
def test_a_slower_package_is_slower_in_every_benchmark(tmp_path: Path) -> None:
    repo = wrapped(tmp_path / "repo", "report", "suite")
    repo.write({"src/mylib/__init__.py": package(400), "benchmarks/test_speed.py": "def test_x(benchmark): 1 / 0\n"})
    repo.commit("slower")
    # The benchmarks are the working tree's, for both sides: a commit of before has the whole suite.
    repo.git("checkout", "--quiet", "main~1", "--", "benchmarks/test_speed.py")
    cells = ("report/N=128,provider=mylib", "suite/test=test_speed.py::test_pedantic")
    requested = [word for cell in cells for word in ("--cell", cell)]
    done = abprof(
        "main~1", "main", "--device", "cpu", "--epochs", "4", "--json", *requested, cwd=repo.path, home=tmp_path
    )
    assert done.verdicts() == dict.fromkeys(cells, "slower"), done.err
    assert done.code == 1


def test_benchmarks_that_are_not_taken_along_are_named(tmp_path: Path) -> None:
    repo = wrapped(tmp_path / "repo", "report")
    repo.write({"abprof.toml": 'schema = 1\nbenchmarks = ["gone"]\n'})
    done = abprof("main", ".", "--device", "cpu", "--quick", cwd=repo.path, home=tmp_path)
    assert done.code == 2
    assert "abprof.toml:2, benchmarks: " in done.err
    repo.write({"abprof.toml": 'schema = 1\nbenchmarks = ["../x"]\n'})
    done = abprof("main", ".", "--device", "cpu", "--quick", cwd=repo.path, home=tmp_path)
    assert "abprof.toml:2, benchmarks: '../x' is not below the repository's root" in done.err
