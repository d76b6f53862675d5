"""`abprof scripts`: the tests run its scripts with tools that record their arguments, and with abprof itself."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from abprof.records import Cell, Run
from abprof.records.errors import AbprofError
from abprof.report.scripts import NAMES, scripts
from tests import runs
from tests.programs import ABPROF, program
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload
from tests.tinyrepo import WORKLOAD, abprof, environment, tiny_repo

BIN = Path(sys.executable).parent
# A tool that records its arguments and writes the files that a script waits for.
TOOL = r"""#!/usr/bin/env bash
me=${0##*/}
printf '%s\0' "$me" "$@" $'\x1e' >>"$CALLS"
[[ " $FAILS " != *" $me "* ]] || exit 9
[[ $me != abprof ]] || exit 0
file=
while [[ $# -gt 0 && $1 != */abprof && $1 != abprof ]]; do
  [[ $1 != --export ]] || file=$2.ncu-rep
  [[ $1 != --output=* ]] || file=${1#--output=}.nsys-rep
  shift
done
[[ -z $file || $FAILS == silent ]] || echo report >"$file"
if [[ $# -gt 0 ]]; then "$@"; else echo table; fi
"""
ODD = [
    "a b", "$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "', "two\nlines\ntouch pwned", "\\", "*", "~/x",
    "-n", "é🔥", "{{ 7 * 7 }}{% raise %}", "${IFS}", "!!", "#",
]  # fmt: skip


@pytest.fixture(scope="session")
def shellcheck() -> str:
    return str(BIN / "shellcheck")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with an abprof, an ncu and an nsys."""
    for name in ("abprof", "ncu", "nsys"):
        program(tmp_path / "bin" / name, TOOL)
    return tmp_path / "bin"


def written(texts: dict[str, str], folder: Path) -> Path:
    for name, text in texts.items():
        program(folder / name, text)
    return folder


class Called:
    """A script's result: exit code, output, and the tools' arguments in order."""

    def __init__(self, script: Path, path: Path | str, *args: str, fails: str = "") -> None:
        calls = script.with_suffix(".calls")
        calls.unlink(missing_ok=True)
        env = {"PATH": f"{path}:/usr/bin:/bin", "CALLS": str(calls), "FAILS": fails, "HOME": str(script.parent)}
        done = subprocess.run(
            [script, *args], env=env, cwd=script.parent, capture_output=True, text=True, check=False, timeout=120
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        kept = calls.read_text().split("\x1e\0")[:-1] if calls.exists() else []
        self.calls = [call.split("\0")[:-1] for call in kept]

    def cells(self, warmup: str) -> list[tuple[str, str]]:
        """(ref, cell) of each `abprof run-cell` with so many warm-ups, in order."""
        mine = [call for call in self.calls if call[:2] == ["abprof", "run-cell"]]
        return [(call[-2], call[-1]) for call in mine if call[call.index("--warmup") + 1] == warmup]


def hostile() -> Run:
    """A run whose every foreign string would do harm in a shell."""
    made = runs.run()
    bad = [cell_of(made.cells[0], f"dense/mask={text}") for text in ODD]
    seen = [runs.observed(cell, arm, 1.0) for cell in bad for arm in ("base", "target")]
    side = msgspec.structs.replace(made.sides[1], label="$(touch pwned)", spec="`touch pwned`", subject="\ntouch pwned")
    options = msgspec.structs.replace(
        made.options, python={"base": "/o p/$(touch pwned)/python", "target": "/usr/bin/python"}
    )
    return msgspec.structs.replace(
        made, cells=tuple(bad), observations=tuple(seen), comparisons=(), sides=(made.sides[0], side), options=options
    )


def cell_of(like: Cell, id: str) -> Cell:
    return msgspec.structs.replace(like, id=id, params={"mask": id.partition("=")[2]})


@pytest.mark.parametrize("name", NAMES)
def test_foreign_text_is_one_argument_and_is_never_executed(
    name: str, tmp_path: Path, tools: Path, shellcheck: str
) -> None:
    run = hostile()
    folder = written(scripts(run, run.cells, tmp_path / "o'dd $(touch pwned) repo"), tmp_path / "made here $x")
    (tmp_path / "o'dd $(touch pwned) repo").mkdir()
    done = subprocess.run([shellcheck, str(folder / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    called = Called(folder / name, tools)
    assert called.code == 0, called.err
    assert not list(tmp_path.rglob("pwned"))
    ids = [f"dense/mask={text}" for text in ODD]
    base, target = (side.commit for side in run.sides)
    if name == "compare_analysis.sh":
        (call,) = called.calls
        there = str(tmp_path / "o'dd $(touch pwned) repo")
        assert call[:8] == ["abprof", "run", base, target, "--repo", there, "--device", "cuda"]
        assert [word.removeprefix("--cell=") for word in call if word.startswith("--cell=")] == ids
        assert "--python=base=/o p/$(touch pwned)/python" in call
        assert "--" not in call, "what is behind it would be a command"
        return
    calls = {"nvtx_analysis.sh": "10", "ncu_analysis.sh": "1"}[name]
    assert called.cells(calls) == [(ref, id) for id in ids for ref in (base, target)]
    assert called.cells("0") == [(base, ids[0]), (target, ids[0])], (
        "each side is built once, and not under the profiler"
    )
    pythons = {call[call.index("--python") + 1] for call in called.calls if "--python" in call and call[-2] == base}
    assert pythons == {"/o p/$(touch pwned)/python"}


def test_arguments_of_the_profilers(tmp_path: Path, tools: Path) -> None:
    run = runs.run()
    folder = written(scripts(run, run.cells[:1], tmp_path), tmp_path / "made")
    ncu = Called(folder / "ncu_analysis.sh", tools, "--warmup", "2", "--runs", "5")
    recorded = [call for call in ncu.calls if call[0] == "ncu" and "--export" in call]
    file = recorded[0][recorded[0].index("--export") + 1]
    assert file.startswith("dense-seqlen-8192-mask_type-full")
    assert file.endswith(".base")
    around = "--target-processes all --nvtx --nvtx-include abprof_call --clock-control none --set detailed --metrics"
    metrics = "lts__t_bytes.sum,l1tex__t_bytes.sum,dram__bytes_read.sum,dram__bytes_write.sum"
    options = ["--device", "cuda", "--seed", "0", "--warmup", "2", "--runs", "5"]
    cell = ["abprof", "run-cell", "--repo", str(tmp_path), *options]
    assert recorded[0][1:] == [
        *(*around.split(" "), metrics, "--force-overwrite", "--export", file),
        *(*cell, "--", run.sides[0].commit, run.cells[0].id),
    ]
    target = file.removesuffix("base") + "target"
    files = ["--from", f"{file}.csv", "--from", f"{target}.csv"]
    assert ncu.calls[-1] == ["abprof", "memory", *files, "--warmup", "2", "--runs", "5"]
    assert (folder / "ncu" / f"{target}.ncu-rep").exists()
    assert (folder / "ncu" / f"{target}.csv").read_text() == "table\n"

    nsys = Called(folder / "nvtx_analysis.sh", tools, "--out", str(tmp_path / "else"))
    first = next(call for call in nsys.calls if call[:2] == ["nsys", "profile"])
    options = "--trace=cuda,nvtx,osrt --sample=none --cpuctxsw=none --force-overwrite=true"
    assert first[2:7] == [*options.split(" "), f"--output={file}"]
    assert first[7:9] == ["abprof", "run-cell"]
    stats = [call for call in nsys.calls if call[:2] == ["nsys", "stats"]]
    assert [call[-1] for call in stats] == [f"{file}.nsys-rep", f"{target}.nsys-rep"]
    assert (tmp_path / "else" / f"{file}.txt").read_text() == "table\n"


def test_flagged_rows_come_first_and_arms_that_did_not_run_are_left_out(tmp_path: Path) -> None:
    run = runs.run()
    text = scripts(run, run.cells, tmp_path)["ncu_analysis.sh"]
    rows = [line for line in text.splitlines() if line.startswith(("look dense", "look ladder"))]
    order = [
        next(i for i, cell in enumerate(run.cells) if f"'{cell.id}'" in row or cell.id in row) for row in rows[::2]
    ]
    # slower, faster, slight, unclear, then the rest: runs.py has full/fwd faster, full/bwd slower, causal/fwd slight ...
    assert order[:6] == [1, 0, 2, 4, 3, 5]
    assert "--variant ws_pp" in text
    assert text.count("look ladder") == 4
    crashed = next(cell for cell in run.cells if "sparsity_ratio=0.1,q_block_size=64" in cell.id)
    assert [line.split()[2] for line in text.splitlines() if crashed.id in line] == ["base"]
    assert text.count("compare dense") == 6
    assert "compare\n" in text, "one side alone has nothing beside it"


@pytest.mark.parametrize(("name", "tool"), [("nvtx_analysis.sh", "nsys"), ("ncu_analysis.sh", "ncu")])
def test_without_the_tool_a_line_says_so(name: str, tool: str, tmp_path: Path, tools: Path) -> None:
    run = runs.run()
    folder = written(scripts(run, run.cells, tmp_path), tmp_path / "made")
    (tools / tool).unlink()
    bare = Called(folder / name, str(tools))
    if not shutil.which(tool, path="/usr/bin:/bin"):
        assert bare.code == 2
        assert bare.err.startswith(f"{name}: {tool} is not installed, or not on PATH: NVIDIA Nsight ")
        assert bare.calls == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--frames"], "unknown option --frames"),
        (["--out"], "--out needs a value"),
        (["--repo", "/nowhere/at/all"], "no such folder: /nowhere/at/all"),
        (["no such cell"], "no cell id contains no such cell"),
    ],
)
def test_a_script_refuses_what_it_does_not_know(args: list[str], said: str, tmp_path: Path, tools: Path) -> None:
    run = runs.run()
    folder = written(scripts(run, run.cells[:1], tmp_path), tmp_path / "made")
    done = Called(folder / "ncu_analysis.sh", tools, *args)
    assert done.code == 2
    assert f"ncu_analysis.sh: {said}" in done.err
    helped = Called(folder / "ncu_analysis.sh", tools, "--help")
    assert (helped.code, helped.calls) == (0, [])
    assert "usage: ncu_analysis.sh" in helped.out


def test_what_fails_is_said_and_the_others_go_on(tmp_path: Path, tools: Path) -> None:
    run = runs.run()
    folder = written(scripts(run, run.cells[:2], tmp_path), tmp_path / "made")
    for name, fails, said in (
        ("ncu_analysis.sh", "ncu", f"ncu could not record {run.cells[0].id} on base"),
        ("ncu_analysis.sh", "silent", f"ncu wrote no report of {run.cells[0].id} on base"),
        ("ncu_analysis.sh", "abprof", f"base: {run.cells[0].id} could not be called"),
        ("nvtx_analysis.sh", "nsys", f"nsys could not record {run.cells[0].id} on base"),
        ("nvtx_analysis.sh", "silent", f"nsys wrote no report of {run.cells[0].id} on base"),
    ):
        done = Called(folder / name, tools, fails=fails)
        assert done.code == 1
        assert f"{name}: {said}" in done.err
        assert done.out.count("\n== ") == 4
    part = Called(folder / "nvtx_analysis.sh", tools, "direction=bwd")
    assert {cell for _, cell in part.cells("10")} == {run.cells[1].id}


def test_where_nothing_could_be_called_no_script_is_written(tmp_path: Path) -> None:
    run = runs.run()
    with pytest.raises(AbprofError, match="no cell can be called"):
        scripts(msgspec.structs.replace(run, observations=()), run.cells, tmp_path)


# ---------------------------------------------------------------- the verb


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    load = Workload(kernel="k", presets={"default": {"n": [1, 2]}})
    slow = Time(factor=1.3, cell="*n=2", side="target")
    made = Lab(tmp_path_factory.mktemp("scripts"), Scenario(workloads={"w": load}, times=[Time(ns=20e6), slow]))
    made.abprof("main", "fast", "--epochs", "4")
    yield made
    assert made.left_behind() == []


def test_scripts_of_a_run_measure_the_same_again_at_its_commits(lab: Lab, tmp_path: Path) -> None:
    """Written of a run, executed after both branches have moved on; by the real abprof."""
    run = lab.command("report", str(lab.newest())).run
    done = lab.command("scripts", str(lab.newest()), "--repo", str(lab.repo.path), "--only", "slower")
    assert done.code == 0, done.err
    folder = lab.newest()
    assert done.out.splitlines() == [str(folder / "scripts" / name) for name in NAMES]
    text = (folder / "scripts" / "ncu_analysis.sh").read_text()
    assert "w/n=2" in text
    assert "w/n=1" not in text
    lab.repo.checkout("fast")
    lab.repo.commit("moved on", {"kernels/k/__init__.py": "WHO = 'later'\n"})
    lab.repo.checkout("main")
    again = planned(lab, folder / "scripts" / "compare_analysis.sh", tmp_path)
    assert again.sides == tuple(
        msgspec.structs.replace(side, spec=side.commit, label=now.label)
        for side, now in zip(run.sides, again.sides, strict=True)
    )
    assert [cell.id for cell in again.cells] == ["w/n=2"]
    assert again.options.threshold == run.options.threshold


def planned(lab: Lab, script: Path, folder: Path) -> Run:
    """Return the plan of compare_analysis.sh with this checkout's `abprof`."""
    program(folder / "abprof", ABPROF)
    env = {**lab.environment(), "PATH": f"{folder}:{os.environ['PATH']}"}
    argv = [script, "--dry-run", "--json"]
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Run)


def test_scripts_of_refs_need_no_run(lab: Lab, tmp_path: Path) -> None:
    args = ("main", "fast", "--cell", "w/n=7", "--cell", "w/n=2", "--out", str(tmp_path / "made"))
    done = lab.command("scripts", *args, "--repo", str(lab.repo.path), "--device", "simulated")
    assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == sorted(NAMES)
    made = planned(lab, tmp_path / "made" / "compare_analysis.sh", tmp_path)
    assert [cell.id for cell in made.cells] == ["w/n=7", "w/n=2"], "one that no preset has, too"


def test_what_cannot_be_as_in_the_run_is_said(lab: Lab, tmp_path: Path) -> None:
    """A changed working tree, and workloads that exist for one side only."""
    lab.repo.write({"kernels/k/__init__.py": "WHO = 'now'\n"})
    given = ("main", ".", "--cell", "w/n=2", "--workloads-from", "base", "--out", str(tmp_path / "made"))
    done = lab.command("scripts", *given, "--repo", str(lab.repo.path), "--device", "simulated")
    lab.repo.git("checkout", "--", ".")
    assert done.code == 0, done.err
    text = (tmp_path / "made" / "ncu_analysis.sh").read_text()
    base, target = (line for line in text.splitlines() if line.startswith("look w-n-2"))
    assert base.endswith("--workloads-from base")
    assert " . w/n=2" in target
    assert "--workloads-from" not in target
    assert "--workloads-from=base" in (tmp_path / "made" / "compare_analysis.sh").read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["RUN", "--preset", "smoke"], "--preset: a run keeps its own options"),
        (["RUN", "--only", "n=9"], "n has no value '9'"),
        (["nowhere", "main"], "unknown ref 'nowhere'"),
        (["main", "fast", "--cell", "w/n=1", "--set", "n=2"], "--set: a cell's id sets its values"),
    ],
)
def test_what_the_verb_refuses(lab: Lab, args: Sequence[str], said: str, tmp_path: Path) -> None:
    words = [str(lab.newest()) if word == "RUN" else word for word in args]
    device = [] if "RUN" in args else ["--device", "simulated"]
    done = lab.command("scripts", *words, "--repo", str(lab.repo.path), "--out", str(tmp_path / "no"), *device)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "no").exists()


@pytest.mark.gpu
def test_the_profilers_scripts_on_a_gpu(tmp_path: Path) -> None:
    """Real ncu and nsys if installed: their files, and the ranges that mark the calls."""
    repo = tiny_repo(tmp_path / "repo", 1)
    workload = WORKLOAD.replace(
        'torch.randn(case["n"], generator=torch.Generator().manual_seed(seed))', 'torch.randn(case["n"], device=device)'
    )
    workload += "\ndef nvtx(case, arm):\n    return ['forward_pass']\n"
    package = "import torch\n\ndef double(x):\n    return x * 2\n"
    repo.commit("on a GPU", {"kernels/tiny/__init__.py": package, "workloads/tiny.py": workload})
    repo.branch("other")
    repo.commit("two kernels", {"kernels/tiny/__init__.py": package.replace("x * 2", "x.clone().mul_(2)")})
    repo.checkout("main")
    home, out = tmp_path / "home", tmp_path / "made"
    given = ("scripts", "main", "other", "--cell", "tiny/n=5000", "--device", "cuda", "--out", str(out))
    done = abprof(*given, cwd=repo.path, home=home)
    assert done.code == 0, done.err
    program(tmp_path / "abprof", ABPROF)
    env = environment(home, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})

    def ran(name: str, tool: str) -> subprocess.CompletedProcess[str]:
        made = subprocess.run([out / name], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        if shutil.which(tool):
            assert made.returncode == 0, made.stdout + made.stderr
        else:
            assert (made.returncode, f"{tool} is not installed" in made.stderr) == (2, True)
        return made

    ncu = ran("ncu_analysis.sh", "ncu")
    if shutil.which("ncu"):
        reports = sorted((out / "ncu").glob("*.ncu-rep"))
        assert [path.suffixes[-2] for path in reports] == [".base", ".target"]
        assert "a call moves DRAM" in ncu.stdout, "the memory traffic of both sides, by abprof memory"
        rows = [sum("elementwise" in line for line in path.with_suffix(".csv").open()) for path in reports]
        assert rows[0] == 4, "a warm-up and three runs of one kernel, and nothing of the set-up"
    ran("nvtx_analysis.sh", "nsys")
    if shutil.which("nsys"):
        for text in (path.read_text() for path in (out / "nsys").glob("*.txt")):
            assert {"abprof_call", "forward_pass"} <= set(text.replace(":", " ").split())
