"""`abprof run-cell`: exactly the calls that were asked for, by a worker in the foreground."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.records.errors import Exit
from tests.gitrepo import GitRepo
from tests.tinyrepo import PACKAGE, WORKLOAD, abprof, abprof_afresh, source, tiny_repo

CELL = "tiny/n=4096"
# Every call writes a line with the profiler's environment variable.
LOGGED = """
    with open(os.environ["CALLS"], "a") as file:
        print(x.numel(), os.environ.get("NV_NSIGHT_X", ""), file=file)
"""
COUNTING = PACKAGE.replace("    global _library\n", "    global _library\n" + LOGGED)
VARIED = (
    WORKLOAD
    + """
VARIANTS = ("plain", "odd")
PEERS = {"torch": lambda case, inputs: Op(lambda: print("the peer") or inputs * 2)}
"""
)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    made = tiny_repo(tmp_path_factory.mktemp("cells") / "repo", 1)
    made.commit("calls leave a line", {"kernels/tiny/__init__.py": COUNTING})
    return made


def called(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_the_calls_that_were_asked_for_and_the_build_of_before_under_a_profiler(repo: GitRepo, tmp_path: Path) -> None:
    """The first call compiles, and is no part of them. What a profiler tells reaches the worker, and builds nothing anew."""
    home, calls = repo.path.parent / "home", tmp_path / "calls"
    asked = ("run-cell", "main", "tiny/n=777", "--device", "cpu", "--warmup", "2", "--runs", "3")
    done = abprof(*asked, cwd=repo.path, home=home, CALLS=str(calls))
    assert (done.code, done.out.count("\n")) == (0, 1), done.err
    assert "ran tiny/n=777: tiny of main (" in done.out
    assert "2 + 3 calls; outputs not checked" in done.out
    assert called(calls)[-6:] == ["777 "] * 6
    before = len(called(calls))
    again = abprof(*asked, cwd=repo.path, home=home, CALLS=str(calls), NV_NSIGHT_X="here")
    assert "base tiny: cached" in again.err
    assert called(calls)[before:] == ["777 here"] * 6
    assert list((home / "cache" / "worktrees").glob("*/*/base")) == [], "the worktree is gone"


@pytest.mark.slow
def test_a_variant_a_peer_and_the_working_tree(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo", 1)
    package = COUNTING + '\nVARIANTS = ("plain", "odd")\n'
    repo.write({"kernels/tiny/__init__.py": package, "workloads/tiny.py": VARIED})
    repo.write(
        {"workloads/tiny.py": VARIED.replace("kernel.double(inputs)", "print(variant) or kernel.double(inputs)")}
    )

    def cell(*more: str) -> tuple[int, str, str]:
        asked = ("run-cell", ".", CELL, "--device", "cpu", "--warmup", "0", "--runs", "1", *more)
        done = abprof(*asked, cwd=repo.path, home=tmp_path / "home", CALLS=str(tmp_path / "calls"))
        return done.code, done.out, done.err

    code, out, _ = cell("--variant", "odd")
    assert (code, out.splitlines()[:2]) == (0, ["odd", "odd"])
    assert "tiny odd of . (" in out
    assert cell()[1].startswith("plain\nplain\n"), "the first one"
    code, out, _ = cell("--peer", "torch")
    assert (code, out.splitlines()[:2]) == (0, ["the peer", "the peer"])
    for wrong, said in (
        (("--variant", "even"), "--variant: tiny has no variant 'even' (variants: plain, odd)"),
        (("--peer", "jax"), "--peer: no workload has a peer 'jax'"),
    ):
        code, _, err = cell(*wrong)
        assert code == Exit.CANNOT_RUN
        assert said in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("tiny/m=3", "no cell tiny/m=3 on main: no workload has an axis 'm' (did you mean n)"),
        ("tiny/n=1,2", "no cell tiny/n=1,2 (an id names every axis: tiny/n=1, tiny/n=2)"),
        ("huge/n=1", "no cell huge/n=1 on main: no workload 'huge'"),
    ],
)
def test_a_cell_that_is_not_there(repo: GitRepo, cell: str, said: str) -> None:
    done = abprof("run-cell", "main", cell, "--device", "cpu", cwd=repo.path, home=repo.path.parent / "home")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("abprof: ") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["main", "tiny"], "'tiny': not a cell's id (write it as reports do: WORKLOAD/axis=value"),
        (["main", CELL, "--runs", "0"], "--runs: "),
        (["main", CELL, "--warmup", "-1"], "--warmup: "),
        (["main", CELL, "--peer", "a", "--variant", "b"], "--variant: a peer has no variants"),
        (["nowhere", CELL], "unknown ref 'nowhere'"),
        (["main", CELL, "--contain", "always"], "--contain always: the cell of run-cell runs for a profiler"),
    ],
)
def test_what_is_refused_before_anything_starts(
    repo: GitRepo, capsys: pytest.CaptureFixture[str], words: Sequence[str], said: str
) -> None:
    code = run_command_line(["run-cell", *words, "--repo", str(repo.path), "--device", "cpu"])
    assert code == Exit.CANNOT_RUN
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_called_finds_no_secret_in_its_parent(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo", 1)
    looks = """
    counts = [Path(f"/proc/{pid}/environ").read_bytes().count(b"s3cret") for pid in (os.getpid(), os.getppid())]
    print("FOUND", *counts, flush=True)
"""
    looking = PACKAGE.replace("    global _library\n", "    global _library\n" + looks)
    repo.commit("looks", {"kernels/tiny/__init__.py": looking})
    asked = ("run-cell", "main", CELL, "--device", "cpu", "--warmup", "0", "--runs", "1")
    done = abprof_afresh(*asked, cwd=repo.path, home=tmp_path / "home", MY_API_TOKEN="s3cret")
    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if line.startswith("FOUND")] == ["FOUND 0 0"] * 2


@pytest.mark.slow
def test_a_call_that_fails_is_said_in_a_line(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo", 1)
    failing = PACKAGE.replace("    global _library\n", "    global _library\n    raise ValueError('not today')\n")
    repo.commit("fails", {"kernels/tiny/__init__.py": failing, "kernels/tiny/tiny.c": source(2)})
    repo.branch("dies")
    dying = failing.replace("raise ValueError('not today')", "os._exit(7)")
    repo.commit("dies", {"kernels/tiny/__init__.py": dying})
    for ref, said in (("main", "crash: ValueError: not today"), ("dies", "crash: ended with exit code 7")):
        done = abprof("run-cell", ref, CELL, "--device", "cpu", "-q", cwd=repo.path, home=tmp_path / "home")
        assert done.code == 2
        assert f"abprof: {CELL} on {ref}: {said}" in done.err
        assert done.err.count("abprof: ") == 1
        if ref == "main":  # where in the kernel it failed, and nothing of abprof's own
            assert "kernels/tiny/__init__.py" in done.err
