"""docs/ADOPT.md's shapes of repository: their structure is rebuilt, the page's own commands are run in it, and what the
page says is written is written."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from abprof.devices import choose
from tests.adopt.repositories import EXTENSION, SINGLE, TRITON, repository
from tests.adopt.test_init import init
from tests.tinyrepo import ROOT, abprof

PAGE = (ROOT / "docs" / "ADOPT.md").read_text()


@dataclass(frozen=True)
class Shape:
    """A section of the page: the repository it is about, what the branch `faster` changes, what a CPU needs."""

    title: str
    files: dict[str, str]
    change: tuple[str, str, str]  # file, text, text in its place
    env: dict[str, str]

    @property
    def section(self) -> str:
        return PAGE.split(f"\n## {self.title}\n")[1].split("\n## ")[0]

    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", self.section, re.M | re.S)

    @property
    def commands(self) -> list[list[str]]:
        return [shlex.split(line)[1:] for block in self.blocks("sh") for line in block.splitlines()]


INTERPRETED = {"TRITON_INTERPRET": "1", "ABPROF_SET": "n_rows=4"}
SHAPES = [
    Shape(
        "A Python package of Triton kernels in src/ layout",
        TRITON,
        (
            "src/tiny_kernels/norm.py",
            "BLOCK=triton.next_power_of_2(n_cols))",
            "BLOCK=2 * triton.next_power_of_2(n_cols))",
        ),
        INTERPRETED,
    ),
    Shape(
        "An extension that setup.py builds",
        EXTENSION,
        ("csrc/scaled.c", "((float *)a)[i] + ((float *)b)[i]", "((float *)b)[i] + ((float *)a)[i]"),
        {},
    ),
    Shape("A single file of kernels", SINGLE, ("02-softmax.py", "other=-float", "other=-2.0 * float"), INTERPRETED),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.title)
def test_what_the_page_says_is_written_is_written(tmp_path: Path, shape: Shape) -> None:
    tree = [line.split()[0] for line in shape.blocks("")[0].splitlines()]
    assert tree == list(shape.files), "the page shows the repository that is rebuilt here"
    repo = repository(tmp_path / "repo", shape.files)
    first = shape.commands[0]
    assert first[0] == "init"
    done = init(repo, *first[1:], home=tmp_path)
    assert done.code == 0, done
    assert [(repo.path / "abprof.toml").read_text()] == shape.blocks("toml")
    (workload,) = (repo.path / "workloads").glob("*.py")
    for excerpt in shape.blocks("python"):
        assert excerpt in workload.read_text()
    interpreted = "TRITON_INTERPRET=1 " if shape.env and choose(()).kind == "cpu" else ""
    assert f"Next: {interpreted}abprof . --dry-run\nthen: {interpreted}abprof run ." in done.out
    assert shape.commands[1] == [".", "--dry-run"], "what init says comes next"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.title)
def test_the_pages_commands_run(tmp_path: Path, shape: Shape) -> None:
    """On a CPU, with the smallest matrix: where the page's reader has a GPU, Triton's interpreter stands in."""
    repo = repository(tmp_path / "repo", shape.files)
    file, before, after = shape.change
    text = (repo.path / file).read_text()
    assert text.count(before) == 1
    repo.branch("faster")
    repo.commit("another launch", {file: text.replace(before, after)})
    repo.checkout("main")
    assert [command[0] for command in shape.commands] == ["init", ".", "run", "main"]
    env = {"ABPROF_DEVICE": "cpu", "ABPROF_PRESET": "smoke", **shape.env}
    for command in shape.commands:
        extra = [] if command[0] == "init" or "--dry-run" in command else ["--json"]
        done = abprof(*command, *extra, cwd=repo.path, home=tmp_path, **env)
        assert done.code in {0, 1, 4}, (command, done.err)  # which of them is a matter of times
        if extra:
            arms = {"base", "target"} if command[0] == "main" else {"base"}
            said = {row["arm"]: row["status"] for row in done.run["observations"]}
            assert said == dict.fromkeys(arms, "ok"), (command, done.run["observations"])
