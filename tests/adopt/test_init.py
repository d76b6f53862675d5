"""`abprof init` on whole repositories: its files, its errors, and that the next command runs."""

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.worker.checks import OVERWRITTEN
from tests.adopt.repositories import GATED, ROWS, SINGLE, WRONG, repository
from tests.gitrepo import GitRepo, make_repo
from tests.tinyrepo import Done, abprof

PLAIN = {"ops/__init__.py": "", "ops/rows.py": ROWS}
TWO = {"ops.py": ROWS + "\n\ndef scaled(x):\n    return x / x.shape[0]\n"}


def init(repo: GitRepo, *args: str, home: Path) -> Done:
    """In this process: nothing of the repository is run."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("ABPROF_CACHE_DIR", str(home / "cache"))
        patch.chdir(repo.path)
        code = run_command_line(["init", *args])
    return Done(code, out.getvalue(), err.getvalue())


@pytest.mark.parametrize("asked", [[], ["--github"]])
@pytest.mark.parametrize(("name", "text"), [("abprof.toml", "schema = \n"), ("pyproject.toml", "[tool.abprof\n")])
def test_a_broken_configuration_is_refused_in_a_line(tmp_path: Path, asked: list[str], name: str, text: str) -> None:
    repo = repository(tmp_path / "repo", SINGLE)
    (repo.path / name).write_text(text)
    before = repo.git("status", "--porcelain", "--untracked-files=all")
    done = init(repo, *asked, home=tmp_path)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert f"{name}:1: " in done.err
    assert repo.git("status", "--porcelain", "--untracked-files=all") == before


def test_the_likeliest_function_is_taken_and_others_are_named(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", TWO)
    lacking = init(repo, "--function", "nothing", home=tmp_path)
    assert (lacking.code, repo.git("status", "--porcelain")) == (2, "")
    assert "no such function (did you mean scaled, softmax)" in lacking.err
    done = init(repo, home=tmp_path)
    assert done.code == 0
    assert (repo.path / "workloads" / "softmax.py").exists()
    again, same = init(repo, home=tmp_path).out, done.out.replace("wrote ", "unchanged ")
    assert sorted(again.splitlines()) == sorted(same.splitlines()), "the same files, and the same count of marks"
    assert "other candidates for --function: ops.py:scaled" in done.out
    done = init(repo, "--function", "ops.py:scaled", home=tmp_path)
    assert done.code == 0
    assert "Next: abprof . --workloads scaled --dry-run\n" in done.out, "without the first workload"
    assert "abprof BASE TARGET --workloads scaled" in done.out
    assert (repo.path / "workloads" / "scaled.py").exists()


def test_existing_files_are_overwritten_only_with_overwrite(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {**PLAIN, "workloads/softmax.py": "API = 1\n"})
    done = init(repo, home=tmp_path)
    assert done.code == 2
    assert "exists with other content (nothing was written; --overwrite replaces the file)" in done.err
    assert repo.git("status", "--porcelain") == ""
    assert init(repo, "--overwrite", home=tmp_path).code == 0
    assert "KERNEL" in (repo.path / "workloads" / "softmax.py").read_text()


def test_missing_keys_of_an_existing_configuration_are_printed(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {**PLAIN, "abprof.toml": "schema = 1\n[defaults]\nthreshold = 3.0\n"})
    done = init(repo, home=tmp_path)
    assert done.code == 2
    assert "add the lines above, then try again" in done.err
    with (repo.path / "abprof.toml").open("a") as file:
        file.write(done.out)
    assert init(repo, home=tmp_path).code == 0
    assert "threshold = 3.0" in (repo.path / "abprof.toml").read_text()


def test_workloads_beside_the_repository(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", PLAIN)
    done = init(repo, "--workloads-dir", str(tmp_path / "judges"), home=tmp_path)
    assert done.code == 0, done
    assert repo.git("status", "--porcelain") == "?? abprof.toml"
    assert 'workloads = "../judges"' in (repo.path / "abprof.toml").read_text()


@pytest.mark.parametrize("how", ["configured", "linked"])
def test_nothing_is_written_outside_of_the_repository_unasked(tmp_path: Path, how: str) -> None:
    repo = repository(tmp_path / "repo", {"kernels/rows.py": ROWS})
    (tmp_path / "elsewhere").mkdir()
    folder = "../elsewhere" if how == "configured" else "workloads"
    if how == "configured":
        repo.write({"abprof.toml": 'schema = 1\nworkloads = "../elsewhere"\n'})
    else:
        (repo.path / folder).symlink_to(tmp_path / "elsewhere")
    done = init(repo, home=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1), done
    assert f"leads outside the repository, to {tmp_path}/elsewhere (to write there, give --workloads-dir /" in done.err
    assert not list((tmp_path / "elsewhere").iterdir())
    asked = done.err.partition("--workloads-dir ")[2].partition(")")[0]
    assert init(repo, "--workloads-dir", asked, home=tmp_path).code == 0
    assert (tmp_path / "elsewhere" / "softmax.py").exists()


def test_nothing_to_measure(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {"README.md": "# nothing\n", "old.py": "print 'hello'\n"})
    done = init(repo, home=tmp_path)
    assert done.code == 2
    assert "found no function to measure" in done.err
    assert "not parsed as Python: old.py" in done.err
    assert "docs/WRITING.md describes kernel packages" in done.err


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_check_mends_what_its_failures_explain(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {"gated.py": GATED})
    done = abprof("init", "--function", "gated", "--check", cwd=repo.path, home=tmp_path, ABPROF_DEVICE="cpu")
    assert done.code == 0, done
    assert [line for line in done.out.splitlines() if line.startswith(("mended", "failed", "checked"))] == [
        "mended: not float16, float32: TypeError: expected torch.bfloat16, got torch.float32",
        "mended: only x has a gradient",
        f"mended: fresh inputs for each call, because of: {OVERWRITTEN}",
        "checked: 2 of 2 cells ran, without a reference, on the CPU",
    ]
    workload = (repo.path / "workloads" / "gated.py").read_text()
    assert "running the smallest cells of gated.py:gated" in done.err
    assert 'wrt=["x"], fresh=True)' in workload
    assert "# only x has a gradient" in workload
    wrong = repository(tmp_path / "wrong", {"exp.py": WRONG})
    named = abprof("init", "--check", cwd=wrong.path, home=tmp_path, ABPROF_DEVICE="cpu")
    assert named.code == 1
    assert "failed: exp/n_rows=128,n_cols=256,direction=bwd,dtype=float32: wrong: output 0: largest error" in named.out
    assert "mended" not in named.out, "a remedy that changes nothing is undone"
    assert "fresh" not in (wrong.path / "workloads" / "exp.py").read_text()


def test_a_repository_without_a_commit_is_an_error(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    repo.write({"kernels/rows.py": ROWS})
    repo.git("add", ".")
    assert init(repo, home=tmp_path).code == 0
    done = abprof(".", "--dry-run", cwd=repo.path, home=tmp_path)  # the command that init prints next
    assert done.code == 2
    assert "the repository has no commits yet (run git add --all && git commit)" in done.err
