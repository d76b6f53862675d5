"""`abprof bisect GOOD BAD -- COMMAND`, with real processes that print planned times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo, make_repo
from tests.reported.test_command import BENCH, abprof, lines
from tests.tinyrepo import Done

WEAKER = "Weaker guarantee: the command timed itself."
TOML = 'schema = 1\n[command]\nbuild = ["sh", "-c", "test ! -e broken"]\n'


def history(tmp_path: Path, steps: list[dict[str, str]]) -> tuple[GitRepo, list[str]]:
    made = make_repo(tmp_path / "r é")
    made.commit("one", {"bench.py": BENCH, ".gitignore": "runs/\n", "times.py": lines(sort=1.0, copy=2.0)})
    return made, [made.git("rev-parse", "HEAD"), *(made.commit(f"step {n}", files) for n, files in enumerate(steps, 1))]


def bisect(repo: GitRepo, *args: str) -> Done:
    return abprof(repo, "bisect", *args, "--device", "cpu", "--", sys.executable, "bench.py")


def test_the_commit_that_made_a_command_slower(tmp_path: Path) -> None:
    repo, commits = history(tmp_path, [{"times.py": lines(sort=1.3, copy=2.0)}])
    done = bisect(repo, commits[0], commits[-1], "--only", "name=sort", "--json")
    assert done.code == 0, done.err
    out = json.loads(done.out)
    assert out["culprits"] == [commits[1]]
    assert out["weaker"][0].startswith(WEAKER)
    assert WEAKER in done.err, "before the first step"
    for page in ("report.md", "report.html"):
        assert WEAKER.replace(".", "") in (Path(out["bisect_dir"]) / page).read_text().replace(".", "")


@pytest.mark.slow
def test_what_does_not_build_prints_nothing_or_crashes_is_passed_over(tmp_path: Path) -> None:
    repo, commits = history(
        tmp_path,
        [
            {"abprof.toml": TOML, "note": "1"},
            {"broken": ""},
            {"times.py": lines(sort=1.3, copy=2.0)},
            {"times.py": "raise SystemExit(3)"},
            {"times.py": lines(copy=2.0)},
            {"times.py": lines(sort=1.3, copy=2.0), "bench.py": BENCH + "# built again\n"},
        ],
    )
    repo.git("rm", "--quiet", "broken")
    repo.git("commit", "--quiet", "--amend", "--no-edit")
    bad = repo.git("rev-parse", "HEAD")
    repo.write({"abprof.toml": TOML})
    done = bisect(repo, commits[0], bad, "--json")
    assert done.code == 4, done.err
    out = json.loads(done.out)
    (finding,) = [one for found in out["found"] for one in found["findings"]]
    assert finding["kind"] == "range"
    assert finding["commits"] == [*commits[2:6], bad]
    said = {
        row["answer"]["reason"] for step in out["steps"] for row in step["rows"] if row["answer"]["result"] == "cannot"
    }
    assert said <= {"build_failed", "crash", "missing"}
    assert "build_failed" in said
