"""A bisection with real workers: a C kernel that one commit made four times slower."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tinyrepo import abprof, source, tiny_repo


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_commit_that_made_a_c_kernel_slower(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo")
    file = "kernels/tiny/tiny.c"
    repo.commit("Say what it is for", {"README.md": "It doubles.\n"})  # changes no kernel, so it is not measured
    culprit = repo.commit("Four times the work", {file: source(400)})
    repo.commit("What does not compile", {file: f"{source(400)} oh"})
    repo.commit("Taken back", {file: source(400)})  # as slow as the culprit, which is not measured for that
    done = abprof("bisect", "main~4", "main", "--device", "cpu", "--json", cwd=repo.path, home=tmp_path)
    assert done.code == 0, done.err
    assert done.run["culprits"] == [culprit]
    (finding,) = done.run["found"][0]["findings"]
    assert finding["parent"] == repo.git("rev-parse", "main~3")
    assert finding["answer"]["low"] > 0.5, "log ratio: four times is 1.39"
