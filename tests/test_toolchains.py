"""Sides with environments of their own, made by uv from wheels that are made here: whole runs without a network."""

import os
from pathlib import Path

import pytest

from abprof.records import Kernel, Toolchain
from tests import runs
from tests.gitrepo import make_repo
from tests.reports import markdown
from tests.runs import changed
from tests.tinyrepo import ROOT, WORKLOAD, Done, abprof, abprof_afresh
from tests.wheels import wheel

pytest.importorskip("uv")
pytestmark = pytest.mark.timeout(600)
QUICK = ("--quick", "--device", "cpu", "--json")
CELL = "w/n=4096"
KERNEL = "import tool\nfrom .made import N\n\n\ndef double(x):\n    for _ in range(min(N, tool.REPEAT)):\n        y = x * 2\n    return y\n"
CONFIG = """
[kernels.ops]
path = "kernels/ops"
build = ["python", "-c", "import tool; open('kernels/ops/made.py', 'w').write('N = %d' % tool.REPEAT)"]
"""


class Bench:
    """A repository whose kernel imports the package `tool`, of which there are wheels, and abprof's command line in it."""

    def __init__(self, home: Path) -> None:
        self.home, self.links, self.repo = home, home / "links", make_repo(home / "repo")
        files = {
            "kernels/ops/__init__.py": KERNEL,
            "workloads/w.py": WORKLOAD.replace('"tiny"', '"ops"'),
            ".gitignore": "runs/\n",
            "abprof.toml": CONFIG,
        }
        self.repo.commit("a kernel", files)
        for version, repeat in (("1.0", 1), ("2.0", 3), ("3.0", 40), ("4.0", 40)):
            self.release(version, repeat)

    def release(self, version: str, repeat: int, needs: tuple[str, ...] = ()) -> None:
        wheel(self.links, "tool", version, {"tool.py": f"REPEAT = {repeat}\n"}, needs=needs)

    def abprof(self, *words: str, **env: str) -> Done:
        uv = {"UV_FIND_LINKS": str(self.links), "UV_OFFLINE": "1", "UV_CACHE_DIR": str(self.home / "uv")}
        return abprof(*words, cwd=self.repo.path, home=self.home, **{**uv, **env})

    @property
    def environments(self) -> list[str]:
        return sorted(path.name for path in self.home.glob("cache/environments/*") if path.is_dir())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.slow
def test_two_environments_of_one_tree(bench: Bench) -> None:
    """The same commit under two versions of a package: both sides are measured, the difference is in the report, the
    environments are kept and reused, and a rerun has the same ones."""
    done = bench.abprof(".", *QUICK, "--with", "tool==1.0", "--with", "tool==3.0")
    assert (done.statuses("base"), done.statuses("target")) == ({CELL: "ok"}, {CELL: "ok"}), done.err
    sides = {side["id"]: side for side in done.run["sides"]}
    assert [side["requirements"] for side in sides.values()] == [["tool==1.0"], ["tool==3.0"]]
    assert sides["target"]["label"] == "working-tree with tool==3.0"
    assert done.run["comparisons"][0]["pct"] > 50
    assert not any("A/A" in note for note in done.run["notes"])
    folder = Path(done.run["run_dir"])
    assert "base 1.0; target 3.0" in (folder / "report.md").read_text()
    made = bench.environments
    assert len(made) == 2
    (bench.home / "cache" / "environments" / "killed").mkdir()
    again = bench.abprof("rerun", str(folder), "--budget", "5s", "--json")
    assert again.run["toolchains"] == done.run["toolchains"], again.err
    once = bench.abprof("HEAD", ".", "--dry-run", "--device", "cpu", "--with", "tool<2")
    assert "(main with tool<2) and target (working-tree with tool<2) hold the same files: this is an A/A" in once.err
    assert bench.environments == made, "the same resolved packages, so the same environment; the leftover is gone"
    bench.release("1.0", 2)
    changed = bench.abprof("rerun", str(folder), "--budget", "5s")
    assert changed.code == 2, "the wheel has another content"
    assert "is not the run's (other than then: toolchain: prefix" in changed.err
    bench.abprof("clean", "--all")
    assert bench.environments == []


@pytest.mark.slow
def test_a_command_that_times_itself(bench: Bench) -> None:
    """`python` is the interpreter of the side's environment."""
    bench.repo.commit("a benchmark", {"bench.py": "import tool\nprint(f'a,{tool.REPEAT}')\n"})
    done = bench.abprof(".", *QUICK, "--with", "tool==2.0", "--with", "tool==3.0", "--", "python", "bench.py")
    assert {row["arm"]: row["metrics"]["reported"]["value"] for row in done.run["observations"]} == {
        "base": 3e6,
        "target": 4e7,
    }
    assert "| tool | base 2.0; target 3.0 |" in (Path(done.run["run_dir"]) / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--with", "tool==9"], ". with tool==9: No solution found when resolving dependencies: Because "),
        (["--with", "lost"], ". with lost: No solution found when resolving dependencies: Because lost was not found "),
        (["--with", "tool==1.0,tool==2.0"], "you require tool==1.0 and tool==2.0, we can conclude that your "),
        (["--with", "tool = 1"], ". with tool = 1: not requirements: "),
        (
            ["--with", "tool==5.0"],
            "depends on lost, we can conclude that tool>=5.0 cannot be used (UV_DEFAULT_INDEX and ",
        ),
        (["fast", "main", "--with", "tool", "--with", "tool<3"], "--with: given 2 times for 3 refs (give it once, or "),
    ],
)
def test_an_environment_that_cannot_be_made(bench: Bench, words: list[str], says: str) -> None:
    bench.release("5.0", 1, ("lost",))
    before = sorted(bench.repo.path.rglob("*"))
    done = bench.abprof(".", *words, "--device", "cpu")
    assert done.code == 2
    assert says in done.err.splitlines()[-1]
    assert bench.environments == []
    assert sorted(path for path in bench.repo.path.rglob("*") if ".git" not in path.parts) == [
        path for path in before if ".git" not in path.parts
    ]


def test_without_uv(bench: Bench) -> None:
    (bench.home / "uv.py").write_text("raise ImportError")
    env = {"PYTHONPATH": f"{bench.home}:{ROOT}", "PATH": os.defpath}
    done = abprof_afresh(".", "--with", "tool==1.0", "--device", "cpu", cwd=bench.repo.path, home=bench.home, **env)
    assert (done.code, bench.environments) == (2, [])
    assert done.err == "abprof: . with tool==1.0: uv is not installed (pip install 'abprof[uv]')\n"


def test_no_network_is_one_line(bench: Bench) -> None:
    env = {"UV_OFFLINE": "0", "UV_DEFAULT_INDEX": "http://user:secret@127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    done = bench.abprof(".", "--with", "lost==1", "--device", "cpu", **env)
    assert (done.code, bench.environments) == (2, [])
    assert done.err.startswith(
        "abprof: . with lost==1: Failed to fetch: http://127.0.0.1:9/simple/lost/: error sending"
    )
    assert len(done.err.splitlines()) == 1
    assert "secret" not in done.err


@pytest.mark.slow
def test_bisecting_over_versions(bench: Bench) -> None:
    """Both versions that made the command slower are found, with environments in the place of commits."""
    bench.repo.commit("a benchmark", {"bench.py": "import tool\nprint(f'a,{tool.REPEAT}')\n"})
    versions = [word for number in (1, 2, 3, 4) for word in ("--with", f"tool=={number}.0")]
    done = bench.abprof("bisect", ".", *versions, "--device", "cpu", "--json", "--", "python", "bench.py")
    assert (done.code, done.run["culprits"]) == (0, [". with tool==2.0", ". with tool==3.0"]), done.err
    page = (Path(done.run["bisect_dir"]) / "report.html").read_text()
    assert "<h1>Which version made it slower</h1>" in page
    assert "<p>3 versions from <code>. with tool==1.0</code> to <code>. with tool==4.0</code>; " in page
    assert "command/name=a: . with tool==2.0 made it slower than its parent . with tool==1.0: " in page
    refused = bench.abprof("bisect", ".", "--with", "tool")
    assert "abprof bisect: needs two refs (give GOOD BAD, one ref and --with for each version, or" in refused.err


def test_machine_code_of_two_compilers() -> None:
    """The report says which kernels two releases of Triton compile to other code, of each kernel compiled once a side."""

    def kernel(side: str, name: str, code: str, loads: int) -> Kernel:
        more = {"registers": 32, "classes": {"global loads": loads, "other": 9}, "missing": ""}
        return Kernel(side=side, package="ops", name=name, kind="triton", key=name, code=code, **more)

    made = [kernel("base", "add", "a", 8), kernel("target", "add", "a", 8), kernel("base", "gone", "c", 8)]
    made += [kernel("base", "dot", "a", 8), kernel("target", "dot", "b", 12)]
    run = changed(runs.run(), kernels=tuple(made))
    page = markdown(run)
    assert "| ops add | target the same machine code |" in page
    assert "| ops dot | target other machine code: global loads 8 -&gt; 12 |" in page
    assert "ops gone" not in page
    assert "Machine code of the kernels" not in markdown(changed(run, toolchains={}))


def test_one_tree_under_two_interpreters_is_no_aa_run() -> None:
    side = runs.run().sides[0]
    chains = {id: Toolchain(versions={"prefix": f"/envs/{id}"}) for id in ("base", "target")}
    run = changed(runs.run(), sides=(side, changed(side, id="target")), toolchains={})
    assert run.one_code
    assert not changed(run, toolchains=chains).one_code
    assert not changed(run, sides=(side, changed(side, id="target", requirements=("tool==1.0",)))).one_code
