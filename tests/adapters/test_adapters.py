"""Existing benchmarks wrapped in one line: their axes, that abprof times the code that they time, and whole runs of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from abprof.records import messages as wire
from abprof.system.processes import WorkerFault
from tests.adapters.repository import WORKLOADS, files, package, wrapped
from tests.tinyrepo import abprof
from tests.workloads.worker import Side, started


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("repository")
    for name, text in (files() | {f"workloads/{name}.py": text for name, text in WORKLOADS.items()}).items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


def mylib(root: Path) -> wire.Mount:
    return wire.Mount("mylib", str(root / "src"), "mylib", str(root), [str(root / "src")])


@pytest.fixture(scope="module")
def side(root: Path) -> Iterator[Side]:
    """A worker that reads the workloads where they lie, with mylib of this repository."""
    with started(root / "side", mylib(root), [*(root / "workloads").iterdir()]) as made:
        yield made


@pytest.fixture(scope="module")
def discovery(root: Path) -> Iterator[Side]:
    """The same without any package."""
    with started(root / "discovery", None, [*(root / "workloads").iterdir()]) as made:
        yield made


def test_cases_are_listed_without_the_package(discovery: Side) -> None:
    report = discovery.ask(wire.Describe("report"))
    assert report.presets["default"] == [(["N"], [[128], [256]]), (["provider"], [["mylib"], ["torch"]])]
    assert report.presets["smoke"][0] == (["N"], [[128]])
    suite = discovery.ask(wire.Describe("suite"))
    names = ["test_softmax[32]", "test_softmax[64]", "test_pedantic", "test_skipped", "test_broken"]
    assert suite.presets["default"] == [(["test"], [[f"test_speed.py::{name}"] for name in names])]
    operator = discovery.ask(wire.Describe("operator"))
    assert operator.presets["default"] == [
        (["input", "x"], [[0, "32"], [1, "64"]]),
        (["backend"], [["torch_softmax"], ["mylib_softmax"]]),
    ]
    assert [one.checked for one in (report, suite, operator)] == ["sides"] * 3
    assert report.kernel == "mylib"


CASES = [
    ("report", {"N": 128, "provider": "mylib"}),
    ("report", {"N": 128, "provider": "torch"}),
    ("report", {"N": 256, "provider": "torch"}),
    ("suite", {"test": "test_speed.py::test_softmax[32]"}),
    ("suite", {"test": "test_speed.py::test_pedantic"}),
    ("operator", {"input": 1, "x": "64", "backend": "mylib_softmax"}),
    ("operator", {"input": 1, "x": "64", "backend": "torch_softmax"}),
]


@pytest.mark.parametrize(("load", "case"), CASES)
def test_what_the_benchmark_would_time_is_called(side: Side, load: str, case: dict[str, wire.Value]) -> None:
    opened = side.open(load, case)
    assert opened.call_ns > 0
    checked = side.check(expected=f"{load}{sorted(case.items())}".replace("/", "_"))
    assert checked.ok
    assert "checked" not in checked.facts, "its outputs are tensors"
    turned = side.ask(wire.Turn("base", 3, "cpu_clock", placement=7))
    assert turned.value > 0


def test_what_was_loaded_is_proved_and_benchmarks_judge(side: Side) -> None:
    side.open("report", {"N": 128, "provider": "mylib"})
    proved = side.ask(wire.Prove())
    # Here the benchmarks lie in the repository itself; a run copies them beside the workloads.
    assert "mylib" in {row.name for row in proved.artefacts}


def test_equal_seeds_make_equal_inputs(side: Side) -> None:
    digests = []
    for arm in ("base", "again"):
        side.open("operator", {"input": 0, "x": "32", "backend": "mylib_softmax"}, arm=arm)
        digests.append(side.check(arm, expected="seeds").digest)
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("case", "status", "message"),
    [
        ("test_speed.py::test_skipped", "unsupported", "needs a GPU"),
        ("test_speed.py::test_broken", "crash", "RuntimeError: no such thing"),
        ("test_speed.py::test_no_benchmark", "crash", "did not call the fixture `benchmark`"),
    ],
)
def test_a_test_without_an_operation_is_typed(side: Side, case: str, status: str, message: str) -> None:
    with pytest.raises(WorkerFault) as fault:
        side.open("suite", {"test": case})
    assert fault.value.status == status
    assert message in fault.value.reason


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ('perf_report("nowhere/b.py:f", kernel="mylib")', 'benchmarks = ["nowhere"]'),
        (
            'perf_report("benchmarks/shapes.py:f", kernel="mylib")',
            "function f has 0 Benchmarks in triton.testing.perf_report",
        ),
        ('perf_report("benchmarks/shapes.py", kernel="mylib")', "FILE:NAME without a name"),
        ('pytest_benchmark("benchmarks/shapes.py", kernel="mylib")', "has no test that uses the fixture"),
        ('tritonbench("benchmarks/shapes.py:Op", kernel="mylib")', "has no class Op"),
        ('tritonbench("benchmarks/shapes.py:Op", kernel="mylib", mode="up")', "'up' is not a valid Mode"),
    ],
)
def test_what_cannot_be_wrapped_says_so(root: Path, discovery: Side, workload: str, message: str) -> None:
    name = f"bad{abs(hash(workload))}"
    file = root / "workloads" / f"{name}.py"
    file.write_text(f"from abprof.adapters import *\nWORKLOAD = {workload}\n")
    discovery.ask(wire.Start("cpu", "base", None, {name: str(file)}))
    with pytest.raises(WorkerFault) as fault:
        discovery.ask(wire.Describe(name))
    assert message in fault.value.reason


@pytest.mark.parametrize("mode", ["bwd", "fwd_bwd"])
def test_modes_of_an_operator(root: Path, side: Side, mode: str) -> None:
    file = root / "workloads" / f"operator_{mode}.py"
    file.write_text(WORKLOADS["operator"].replace(")\n", f', mode="{mode}")\n'))
    side.ask(wire.Start("cpu", "base", mylib(root), {file.stem: str(file)}, str(root)))
    opened = side.open(file.stem, {"input": 0, "x": "32", "backend": "mylib_softmax"})
    assert opened.call_ns > 0
    assert side.check(expected=f"mode-{mode}").ok


def test_the_page_has_the_lines_that_are_tested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ADOPT.md").read_text()
    assert WORKLOADS["report"].splitlines()[1] in page
    assert 'pytest_benchmark("tests/test_speed.py", kernel="mylib")' in page
    assert 'tritonbench("operators/softmax/operator.py:Operator", kernel="mylib")' in page


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
    assert "abprof.toml, benchmarks: " in done.err
    repo.write({"abprof.toml": 'schema = 1\nbenchmarks = ["../x"]\n'})
    done = abprof("main", ".", "--device", "cpu", "--quick", cwd=repo.path, home=tmp_path)
    assert "abprof.toml, benchmarks: '../x' is not below the repository's root" in done.err
