"""Arguments and set-up that cannot be: one clear line, exit code 2, and nothing left behind."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from tests.gitrepo import make_repo
from tests.simulated.lab import Lab, Result, loose
from tests.simulated.scenario import Scenario, Time, Workload
from tests.tinyrepo import PACKAGE, ROOT, abprof, tiny_repo

LOAD = Workload(
    kernel="k", peers=["flex", "sdpa"], default_peers=[],
    presets={"default": {"case": ["a", "b"], "n": [1]}, "zipped": {"case": ["a"], "q,on": [[64, False], [128, True]]},
             "empty": {"case": []}, "twice": {"case": ["b", "a", "b"]}},
)  # fmt: skip
PLAIN = Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """One repository for all errors: leftovers of one command would break the next."""
    return Lab(tmp_path_factory.mktemp("bad"), PLAIN)


@pytest.fixture
def inside(lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`lab.command` in this process."""
    for name, value in lab.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(lab.folder)
    return lambda *args: Result(run_command_line(args), *capsys.readouterr(), lab.newest())


def refused(
    lab: Lab, *args: str, says: str, repo: Path | None = None, device: str = "simulated",
    run: Callable[..., Result] | None = None,
) -> Result:  # fmt: skip
    """Run it with --json; it must be refused in one line that says so, and leave no trace of itself."""
    before = lab.fingerprint()
    places = [] if "--resume" in args else ["--device", device]  # a run that is gone on with has its own
    result = (run or lab.command)("--json", "--repo", str(repo or lab.repo.path), *places, *args)
    lines = [line for line in result.err.splitlines() if line.startswith("abprof: ")]
    assert result.code == 2, result
    assert result.err.splitlines()[-1:] == lines, "one line, and it is the last"
    assert says in lines[0]
    assert "Traceback" not in result.err
    error = loose(result)["error"]
    assert set(error) == {"what", "where", "advice"}
    assert error["what"] in lines[0]
    assert lab.left_behind() == []
    assert lab.fingerprint() == before, "byte-identical: no runs folder, nothing in .git"
    return result


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("main fst", "unknown ref 'fst' (did you mean fast)"),
        ("main -- -x", "-x on base: -x could not be started: No such file or directory"),
        ("main -x", "No such option: -x (abprof run --help)"),
        ("main --sustained", "--sustained: no such option (give --regime sustained)"),
        ("main --quick --epochs 8", "--epochs: --quick measures exactly one epoch (leave one of them out)"),
        ("--quick", "no refs given (abprof BASE TARGET, or abprof run REF for one branch alone)"),
        ("main fast --only case=z", "--only: case has no value 'z' (it has a, b)"),
        ("main fast --preset zipped --set q=32", "--set: no row of workload w has q=32: it zips q, on (set all of these,"),
        ("main fast --preset twice", "workload w, preset twice: case has b twice"),
        ("main fast --preset empty", "--preset: the matrix is empty: no cell is left"),
        ("main fast --cell zz/case=a", "--cell: no workload 'zz' in "),
        ("main fast --cell w/case=a", "--cell: no cell w/case=a (an id names every axis: w/case=a,n=1"),
        ("main ~no-such-user-here/x", "unknown ref '~no-such-user-here/x'"),
        ("main fast --workloads nope", "--workloads: no workload 'nope'"),
        ("main --workloads-from target", "--workloads-from: no side 'target' (sides: base; for a folder of that name"),
        ("main fast --regime never", "--regime: 'never' is not one of auto, burst, sustained"),
        ("main fast --workloads-from nowhere", "--workloads-from nowhere: no workloads: there is no such folder"),
        ("main fast --seed 9223372036854775808", "--seed: "),
        ("main fast --executor-option a=b", "--executor-option: has no effect without --executor (add"),
        ("main fast --threshold much", "--threshold: 'much' is not a positive percentage (write 1.5 or 1.5%)"),
        ("main fast --margin 0", "--margin: '0' is not a positive percentage"),
        ("main fast --precision nan", "--precision: 'nan' is not a positive percentage"),
        ("main fast --budget soon", "--budget: 'soon' is not a duration (write 90s, 10m or 1.5h)"),
        ("main fast --timeout 0", "--timeout: '0' is not a duration (write 90s, 10m or 1.5h)"),
        ("main fast --build-timeout 1d", "--build-timeout: '1d' is not a duration (write 90s, 10m or 1.5h)"),
        ("--resume {repo} --budget soon", "--budget: 'soon' is not a duration"),
        ("rerun {repo} --budget soon", "--budget: 'soon' is not a duration"),
        ("main fast --margin 10 --threshold 2", "--margin: 10 % is wider than the threshold of 2 % (a narrower margin, or a"),
        ("main fast --python bogus=python", "--python: no side 'bogus' (sides: base, target)"),
        ("main --python target=python", "--python: no side 'target' (sides: base)"),
        ("main fast --python target=", "--python: 'target=' is not [SIDE=]PATH"),
        ("main fast --kernels k,zzz", "--kernels: no workload is for zzz (there are k)"),
        ("main fast --kernels=", "--kernels: a name is empty"),
        ("main fast --peer=", "--peer: a name is empty"),
        ("main fast --peer lib --no-peers", "--peer: --no-peers leaves out all peers (give one of the two)"),
        ("main fast --peer flax", "--peer: no workload has a peer 'flax' (did you mean flex"),
        ("main fast --fail-on=", "--fail-on: '' is not one of slower, broken, unclear, never"),
        ("main fast --fail-on never,slower", "--fail-on: 'never,slower': 'never' excludes other values (give never alone)"),
        ("--resume {repo} --threshold 2", "--threshold: a resumed run keeps its options (with --resume use only --repo,"),
        ("--resume {repo} --no-peers", "--peers: a resumed run keeps its options"),
        ("main fast --env mine", "--env: 'mine' is not one of user, clean"),
        ("main fast --seed x", "--seed: 'x' is not a whole number of 64 bits"),
        ("main fast --epochs 2.5", "--epochs: '2.5' is not a whole number of 1 or more"),
        ("main fast --runs-dir /proc/abprof", "/proc/abprof"),
        ("main fast --runs-dir {repo}/workloads/w.py", "workloads/w.py: File exists (choose another place with --runs-dir)"),
        ("main fast --resume {repo}", "--resume: cannot be used with refs (abprof run --resume RUN)"),
        ("--resume {repo}", "no run here (a run folder holds run.json)"),
        ("rerun {repo}", "no run here (a run folder holds run.json)"),
    ],
)  # fmt: skip
def test_arguments(lab: Lab, inside: Callable[..., Result], typed: str, says: str) -> None:
    words = typed.format(repo=lab.repo.path).split()
    if words[0] == "rerun":
        result = inside(*words, "--repo", str(lab.repo.path))
        assert (result.code, result.out) == (2, "")
        assert says in result.err
    else:
        refused(lab, *words, says=says, run=inside)


@pytest.mark.parametrize(
    "typed",
    [
        *(f"compare {bad} {bad} out.csv" for bad in ("fifo", "/dev/zero", "/dev/full", "huge", "folder", "junk")),
        *(f"memory --from {bad} --warmup 1 --runs 1" for bad in ("fifo", "huge", "junk")),
        *(f"admit --event {bad}" for bad in ("fifo", "/dev/zero", "huge", "junk")),
        *(f"admit --event event.json --allow {bad}" for bad in ("fifo", "junk")),
        *(f"demo {bad}" for bad in ("junk", "fifo", "/dev/null", "junk/x", "LONG")),
        *(f"{verb} LONG" for verb in ("profile", "scripts", "report", "rerun", "bisect --resume", "run --resume")),
        *(f"{verb} spoilt" for verb in ("profile", "report", "rerun", "bisect --resume", "run --resume")),
        *(f"{verb} --repo LONG" for verb in ("list", "init", "history query")),
        *(f"main fast {option} LONG" for option in ("--workloads", "--workloads-from")),
        *("history", "history changes --runs-dir LONG", "selfcheck --device cpu --budget soon"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_one_line(lab: Lab, typed: str) -> None:
    """Pipes, devices, long names, binary content: no wait, no page of help, no bug."""
    folder = lab.folder
    if not (folder / "fifo").exists():
        for name in ("fifo", "spoilt/run.json", "spoilt/bisect.json"):
            (folder / name).parent.mkdir(exist_ok=True)
            os.mkfifo(folder / name)
        (folder / "folder").mkdir()
        (folder / "junk").write_bytes(b"\xff\0caf\xe9\n" * 100)
        comment = {"id": 1, "body": f"/abprof {'a' * 40}", "user": {"login": "ada", "type": "User"}}
        event = {"action": "created", "issue": {"number": 7, "pull_request": {"url": "x"}}, "comment": comment}
        (folder / "event.json").write_text(json.dumps(event))
        with (folder / "huge").open("wb") as file:
            file.truncate(5 << 30)
    words = typed.replace("LONG", "a/" * 2500).split()
    result = lab.command(*words, *(["--repo", str(lab.repo.path)] if words[0] == "main" else []), seconds=60)
    assert (result.code, len(result.err.splitlines())) == (2, 1), result
    assert result.err.startswith("abprof: ")


def test_devices(lab: Lab) -> None:
    refused(
        lab, "main", "fast", device="tpu", says="--device: unknown device 'tpu' (use cpu, cuda, cuda:N or a GPU's UUID)"
    )
    refused(lab, "main", "fast", "--device", "cpu", says="--device cpu: cannot be combined with GPUs")
    refused(lab, "main", "fast", "--timer", "graph", device="cpu", says="graph times a GPU")
    on_a_gpu = "calls without pauses are timed on a GPU, at its power limit"
    refused(lab, "main", "fast", "--regime", "sustained", device="cpu", says=on_a_gpu)


def test_no_gpu(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it looks on a machine with a GPU that is hidden, and on one without any."""
    monkeypatch.setattr(lab, "more", {"CUDA_VISIBLE_DEVICES": ""})
    for device in ("cuda", "cuda:0", "GPU-0000"):
        refused(lab, "main", "fast", device=device, says=f"--device {device}: no CUDA device (abprof doctor lists")


def test_an_interpreter_that_is_no_python(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo")
    done = abprof("main", "main", "--python", "/bin/false", "--device", "cpu", cwd=repo.path, home=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith("abprof: /bin/false: the worker did not start: ended with exit code 1")


# ---------------------------------------------------------------- the repository


def test_places_that_are_no_repository(lab: Lab, tmp_path: Path) -> None:
    refused(lab, "main", "fast", repo=tmp_path / "nowhere", says="no such folder")
    refused(
        lab, "main", "fast", repo=tmp_path, says="not a git repository (run abprof inside a repository, or name one"
    )
    lab.repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare"))
    refused(lab, "main", "fast", repo=tmp_path / "bare", says="a bare repository")


def test_no_workloads_and_no_kernels(lab: Lab, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    repo.commit("nothing", {"README.md": "hello\n"})
    refused(lab, "main", "main", repo=repo.path, says="no such folder (abprof init proposes a first one; or")
    at_target = ("--workloads-from", "target")
    refused(
        lab, "main", "main", *at_target, repo=repo.path, says="workloads: no workloads: main has no such folder (commit"
    )
    repo.commit("no workload", {"workloads/README.md": "to be written\n"})
    refused(lab, "main", "main", repo=repo.path, says="no workload files (abprof init proposes a first one)")
    repo.commit("no kernels", {"workloads/w.py": "# simulated\n"})
    nowhere = "no side has a kernel package k: kernels/k does not exist on this side"
    refused(lab, "main", "main", repo=repo.path, says=nowhere)
    assert repo.git("status", "--porcelain", "--ignored") == ""


@pytest.mark.slow
def test_a_kernel_that_one_side_lacks_is_an_outcome_and_no_refusal(tmp_path: Path) -> None:
    """The scenario's other workload goes on; a kernel that no side has is `missing` on both and counted apart."""
    loads = {name: Workload(kernel=name, presets={"default": {"case": ["a"]}}) for name in ("k", "new", "never")}
    lab = Lab(tmp_path, Scenario(workloads=loads, times=[Time(ns=20e6)]))
    lab.repo.git("rm", "-rq", "kernels/never")
    lab.repo.commit("never was")
    lab.repo.checkout("fast")
    lab.repo.git("rm", "-rq", "kernels/new", "kernels/never")
    lab.repo.commit("gone")
    lab.repo.checkout("main")
    result = lab.abprof("main", "fast")
    assert result.table() == {"k/case=a": "same", "new/case=a": "broken", "never/case=a": "unclear"}
    assert result.status("new/case=a", "target")[0] == "missing"
    assert result.row("never/case=a").reasons[0] == "missing"
    assert result.code == 1
    back = lab.abprof("fast", "main")
    assert back.table()["new/case=a"] == "unclear"
    assert back.row("new/case=a").reasons[0] == "base_missing"
    assert back.code == 0


# ---------------------------------------------------------------- the machine


def test_a_full_disk(tmp_path: Path) -> None:
    """Files are limited to 1 KiB, then 26 KiB: no run remains without run.json; later the measurements remain."""
    lab = Lab(tmp_path, PLAIN)
    env = {**lab.environment(), "PYTHONDONTWRITEBYTECODE": "1"}  # the limit would cut abprof's own short
    for kib, left in ((1, False), (26, True)):
        line = (
            f"ulimit -f {kib}; exec {sys.executable} -P -m abprof main fast --repo {lab.repo.path} --device simulated"
        )
        done = subprocess.run(["bash", "-c", line], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done
        assert re.fullmatch(
            r"abprof: /.*\.(py|json|jsonl): File too large \(make room there.*", done.stderr.splitlines()[-1]
        )
        assert lab.left_behind() == []
        runs = lab.repo.path / "runs"
        assert runs.exists() == left
    (folder,) = (path for path in runs.iterdir() if path.is_dir())
    assert json.loads((folder / "run.json").read_bytes())["status"] == "running"
    assert not list(folder.glob(".*.partial"))
    assert (folder / "rounds.jsonl").read_bytes().count(b"\n") >= 1
    shown = lab.command("report", str(folder))
    assert (shown.code, shown.err) == (0, ""), "no line is cut"


FILL = """    import tempfile
    with tempfile.TemporaryFile(dir=os.environ["ABPROF_BUILD_DIR"]) as file:
        file.write(bytes(64 << 20))
"""


@pytest.mark.parametrize("before", ["    out = Path(", "    y = torch.empty_like(x)\n"], ids=["build", "call"])
def test_a_disk_that_fills_up_while_code_under_test_runs_does_not_break_that_code(tmp_path: Path, before: str) -> None:
    """What the failed process wrote is removed when abprof looks, as a compiler's files are."""
    line = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=24m tmpfs "$0" && exec "$@"', str(tmp_path / "disk")]
    (tmp_path / "disk").mkdir()
    if subprocess.run([*line, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    repo = tiny_repo(tmp_path / "repo")
    repo.branch("fills")
    repo.commit("fills", {"kernels/tiny/__init__.py": PACKAGE.replace(before, FILL + before)})
    command = [sys.executable, "-P", "-m", "abprof", "main", "fills", "--device", "cpu", "--epochs", "1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ABPROF_CACHE_DIR": line[-1], "ABPROF_STATE_DIR": str(tmp_path)}
    done = subprocess.run([*line, *command], env=env, cwd=repo.path, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, ": No space left on device (make room there" in last) == (2, True), done


def test_no_compiler(tmp_path: Path) -> None:
    """The build fails, by name, on each side; it is no bug of abprof's, and the run's folder tells it."""
    repo = tiny_repo(tmp_path / "repo")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("git", "env"):
        (tools / name).symlink_to(shutil.which(name) or "")
    done = abprof("main", "main", "--device", "cpu", "--json", cwd=repo.path, home=tmp_path, PATH=str(tools))
    assert done.verdicts() == {"tiny/n=4096": "broken"}
    for side in ("base", "target"):
        assert done.statuses(side) == {"tiny/n=4096": "build_failed"}
    reasons = {row["reason"] for row in done.run["observations"]}
    assert reasons == {"FileNotFoundError: [Errno 2] No such file or directory: 'cc'"}
    assert done.code == 1


def test_a_cache_that_cannot_be_written(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ABPROF_CACHE_DIR", "ABPROF_STATE_DIR"):
        monkeypatch.setattr(lab, "more", {name: "/proc/abprof"})
        refused(lab, "main", "fast", says=f"(set {name})")


def test_no_git(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "env").symlink_to(shutil.which("env") or "")
    monkeypatch.setattr(lab, "more", {"PATH": str(tmp_path)})
    refused(lab, "main", "fast", says="git")
