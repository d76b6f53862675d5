"""Code under test puts links, FIFOs and endless files where the parent reads and writes: the run goes on, and the user's
files stay as they are and where they are."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from abprof.system import locks as leases
from tests.sandboxes import needs_sandbox
from tests.tinyrepo import PACKAGE, abprof, source, tiny_repo

# What a hostile package does in its build's folder, PLACE, at the end of its build() or (after CALL) of its first call.
# USER is a folder of the user, where "secret" has a line to keep and __pycache__ has a file.
ATTACKS = {
    "log-link": "swap('build.log', link=USER / 'secret'); raise SystemExit('no')",
    "log-fifo": "swap('build.log'); dig(); raise SystemExit('no')",
    "log-append": "swap('build.log', link=USER / 'secret') CALL print('hostile', flush=True); os._exit(1)",
    "source-fifo": "swap('src/kernels/tiny/tiny.c')",
    "out-link": "swap('out', link=USER)",
    "caches-link": "swap('caches', link=USER)",
    "object-fifo": "made.append(1) CALL made or swap('out/tiny.so')",  # in a worker
    "temporary": "swap('caches/tmp', link=USER / 'new') CALL Path(os.environ['TMPDIR'], 'planted').touch()",
}
SWAP = """
import shutil
USER = Path({user!r})
PLACE = Path(os.environ["ABPROF_BUILD_DIR"]).parent

made = []

def swap(name, link=None):
    path = PLACE / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if link:
        path.symlink_to(link)
    else:
        os.mkfifo(path)

def dig():
    os.chdir(PLACE / "out")
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")

_build, _double = build, double

def build(*, verbose):
    _build(verbose=verbose)
    {built}

def double(x):
    y = _double(x)
    {called}
    return y
"""


@needs_sandbox
@pytest.mark.slow
def test_what_a_build_leaves_for_the_parent(tmp_path: Path) -> None:
    user = tmp_path / "user"
    (user / "__pycache__").mkdir(parents=True)
    kept = {user / "secret": "SECRET LINE\nerror: SECRET LINE\n", user / "__pycache__" / "own.pyc": "own"}
    for path, text in kept.items():
        path.write_text(text)
    repo = tiny_repo(tmp_path / "repo", 100)
    for name, attack in ATTACKS.items():
        built, _, called = attack.partition(" CALL ")
        repo.checkout("main")
        repo.branch(name)
        hostile = PACKAGE + SWAP.format(user=str(user), built=built, called=called or "pass")
        repo.commit(name, {"kernels/tiny/__init__.py": hostile, "kernels/tiny/tiny.c": source(90)})
    repo.checkout("main")
    repo.branch("dangling")
    (repo.path / "kernels" / "tiny" / "gone").symlink_to("nowhere")
    repo.commit("dangling")
    options = ("--quick", "--device", "cpu", "--no-peers", "--json", "--env", "clean", "--contain", "always")
    done = abprof("main", *ATTACKS, "dangling", *options, cwd=repo.path, home=tmp_path)
    assert done.code == 1, done.err
    assert done.statuses("base") == {"tiny/n=4096": "ok"}
    assert done.statuses("target7") == {"tiny/n=4096": "crash"}  # a worker cannot write to the objects
    assert {path: path.read_text() for path in kept} == kept
    assert sorted(path.name for path in user.iterdir()) == ["__pycache__", "secret"]
    files = [path for path in Path(done.run["run_dir"]).rglob("*") if path.is_file()]
    assert not [path for path in files if b"SECRET" in path.read_bytes()]
    assert "SECRET" not in done.out + done.err
    replaced = {build["failure"]["reason"] for build in done.run["builds"] if build["failure"]}
    assert {f"the build replaced its folder {name}/ by something else" for name in ("out", "caches")} < replaced


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("USER", "this link leads out of the repository"),
        ("nowhere", "this link leads to no file"),
        (".", "this link leads to its own folder"),
    ],
)
def test_a_link_among_workloads_is_not_followed_out_of_the_repository(tmp_path: Path, target: str, why: str) -> None:
    """The copy could be read where the user's file cannot."""
    (tmp_path / "key").write_text("SECRET")
    repo = tiny_repo(tmp_path / "repo")
    repo.branch("hostile")
    (repo.path / "workloads" / "helper").symlink_to(target.replace("USER", str(tmp_path / "key")))
    repo.commit("hostile")
    done = abprof("main", "hostile", "--workloads-from", "target", "--device", "cpu", cwd=repo.path, home=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert f"workloads/helper: {why}" in done.err


def test_temporary_files_go_with_the_run(tmp_path: Path) -> None:
    """As of a compiler that was killed."""
    repo = tiny_repo(tmp_path / "repo")
    leaves = "\n    import tempfile; tempfile.mkstemp(); raise SystemExit('no')"
    repo.commit("leaves", {"kernels/tiny/__init__.py": PACKAGE.replace("verbose):", f"verbose):{leaves}")})
    (tmp_path / "users").mkdir()
    options = ("--quick", "--device", "cpu", "--no-peers")
    done = abprof("main", "main", *options, cwd=repo.path, home=tmp_path, TMPDIR=str(tmp_path / "users"))
    assert "exit('no')" in done.err
    assert [path for folder in ("users", "cache/worktrees") for path in (tmp_path / folder).rglob("tmp*")] == []


ROOT = Path(__file__).parents[1]


def free(lock: Path) -> bool:
    with leases.abandoned(lock) as acquired:
        return acquired


def test_held_until_dropped(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    assert leases.hold(lock)
    assert not leases.hold(lock)
    assert not free(lock)
    leases.drop(lock)
    assert not lock.exists()
    assert free(lock)
    leases.drop(lock)


def test_shared_by_several_processes(tmp_path: Path) -> None:
    lock = tmp_path / "a.use"
    assert leases.hold(lock, shared=True)
    assert leases.hold(lock, shared=True)
    script = (
        "import sys; from pathlib import Path; from abprof.system import locks as leases; lock = Path(sys.argv[1])\n"
    )
    script += "print(leases.hold(lock), leases.hold(lock, shared=True))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(lock)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False True\n"
    leases.drop(lock)


def test_who_waited_for_a_deleted_lock_takes_the_new_one(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    leases.hold(lock)
    inside, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with leases.locked(lock):
            inside.set()
            leave.wait(120)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not inside.wait(0.3)
    leases.drop(lock)
    assert inside.wait(120)
    assert not free(lock)
    leave.set()
    waiter.join()
    assert free(lock)
