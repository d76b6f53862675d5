"""abprof from Python: `import abprof`, and what it offers to scripts, notebooks and tests."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import abprof
from abprof.records.errors import AbprofError
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload

ROOT = Path(__file__).parents[1]
HEAVY = "{'torch', 'triton', 'pandas', 'numpy', 'msgspec', 'typer', 'rich'}"
# Functions of one thread, of about a millisecond, in which a call of torch.mm is a tenth of the time.
FUNCTIONS = """
import sys, torch, abprof
torch.set_num_threads(1)
def calls(count):
    def function(x):
        for _ in range(count):
            y = torch.mm(x, x)
        return y
    return function
base, slow, x = calls(10), calls(11), torch.randn(160, 160)
"""
# A GPU's inputs, of about 0.3 ms for the functions.
MADE = "torch.randn(2048, 2048, device='cuda', dtype=torch.bfloat16)"
PATHS = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def python(code: str, *args: str, **env: str) -> str:
    """Run code in a fresh interpreter, and return what it printed."""
    given = {**os.environ, **PATHS, **env}
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False, env=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compared(code: str, tmp_path: Path) -> Any:
    """Run code in a process that has FUNCTIONS, with folders of its own, and return the value that it printed as JSON."""
    folders = {f"ABPROF_{name}_DIR": str(tmp_path / name) for name in ("CACHE", "STATE")}
    return json.loads(python(f"import json\n{FUNCTIONS}\n{code}", **folders))


def test_the_import_is_light_and_has_exactly_the_public_names() -> None:
    assert python(f"import sys, abprof; print({HEAVY} & set(sys.modules))").strip() == "set()"
    assert all(getattr(abprof, name).__doc__ for name in abprof.__all__)
    with pytest.raises(AttributeError, match="no attribute 'comparre'"):
        abprof.comparre  # type: ignore[attr-defined]  # noqa: B018


def test_a_run_from_python_is_the_run_of_the_command_line(tmp_path: Path) -> None:
    load = Workload(kernel="ffa", suite="dense", presets={"default": {"n": [1, 2]}})
    times = [Time(ns=20e6), *(Time(factor=by, cell=f"*n={n}", side="target") for n, by in ((1, 0.8), (2, 1.2)))]
    lab = Lab(tmp_path, Scenario(workloads={"dense": load}, times=times))
    code = """
import abprof, json, sys
from concurrent.futures import ThreadPoolExecutor  # signals have handlers in the main thread alone
options = dict(repo=sys.argv[1], device="simulated", runs_dir=sys.argv[2], threshold=1.5, quiet=True)
made = ThreadPoolExecutor(1).submit(abprof.run, "main", "fast", **options).result()
rows = made.comparisons
print(json.dumps({"folder": str(made.folder), "verdicts": dict(zip(rows["cell"], rows["verdict"])), "code": made.exit_code,
                  "columns": list(rows.columns), "base": list(rows["base_latency_ms"]), "worst": made.verdict,
                  "torch": "torch" in sys.modules}))
"""
    found = json.loads(python(code, str(lab.repo.path), str(lab.runs), **lab.environment()))
    assert found["verdicts"] == {"dense/n=1": "faster", "dense/n=2": "slower"}
    assert (found["worst"], found["code"], found["torch"]) == ("slower", 1, False)
    assert found["base"] == pytest.approx([20, 20], rel=0.1)
    folder = Path(found["folder"])
    with (folder / "cells.csv").open() as file:
        assert [*next(csv.reader(file)), "base_latency_ms"] == found["columns"]

    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    again = abprof.load(folder)
    assert again.verdict == "slower"
    assert "dense" in again.report()
    assert again.report("csv") == (folder / "cells.csv").read_text()
    assert len(json.loads(again.report("bmf"))) == len(json.loads(again.report("action"))) == 2
    sentence, *rows = repr(again).splitlines()
    assert sentence == again.run.header.sentence  # type: ignore[union-attr]
    assert [row.partition(";")[0] for row in rows] == ["dense/n=1: faster", "dense/n=2: slower"]
    page = again._repr_html_()
    assert page.count("<tr>") == 3  # head and two cells
    assert "slower" in page
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresold": 3}, "abprof.run: no option 'thresold' (did you mean threshold"),
        ({"threshold": "x"}, "--threshold: 'x' is not a positive percentage"),
        ({"quick": True, "epochs": 2}, "--epochs: --quick measures exactly one epoch"),
        ({"cell": "a/n=1", "set": ["n=1"]}, "--set: a cell's id sets its values"),
        ({"repo": "/no/such"}, "--repo /no/such: no such folder"),
        ({"python": {"": "no-such-python"}}, "'=no-such-python' is not [SIDE=]PATH"),
    ],
)
def test_options_are_checked_by_the_command_lines_code(options: Any, message: str) -> None:
    with pytest.raises(AbprofError) as refused:
        abprof.run("main", "HEAD", **options)
    assert message in str(refused.value)


def test_bad_arguments_are_errors_that_say_what_to_do() -> None:
    with pytest.raises(AbprofError, match="no refs given"):
        abprof.run()
    with pytest.raises(AbprofError, match="no option 'only'"):
        abprof.compare(len, len, only="a")
    with pytest.raises(AbprofError, match="must be functions"):
        abprof.compare(3, len)  # type: ignore[arg-type]
    with pytest.raises(AbprofError):
        abprof.load("/no/such/run")


@pytest.mark.slow
@pytest.mark.parametrize("started", [False, True])
def test_compare_tells_twice_the_work_from_nothing(tmp_path: Path, started: bool) -> None:
    """In forks, although this process has OpenMP's threads; and, where CUDA has started, in one process. Beside
    load the times of epochs scatter by more than a tenth."""
    code = (
        "torch.cuda.is_initialized = lambda: True\n"
        if started
        else "torch.set_num_threads(2); slow(torch.randn(600, 600))\n"
    )
    code += "torch.set_num_threads(1)\nstate = torch.get_rng_state()\n"
    code += "found = [abprof.compare(base, other, x, device='cpu') for other in (calls(20), base)]\n"
    code += (
        "print(json.dumps([[r.verdict for r in found], repr(found[0]), bool((state == torch.get_rng_state()).all())]))"
    )
    (slower, same), text, untouched = compared(code, tmp_path)
    assert slower == "slower"
    assert same in {"same", "unclear"}
    assert ("in one process" if started else "in forks of one process") in text
    assert untouched


@pytest.mark.slow
def test_inputs_on_the_cpu_where_cuda_has_started_do_not_say_what_to_time(tmp_path: Path) -> None:
    code = """
torch.cuda.is_initialized, torch.cuda.get_device_properties = lambda: True, lambda _: type("Gpu", (), {"uuid": "1"})
try:
    abprof.compare(base, base, x)
except abprof.AbprofError as error:
    print(json.dumps(error.line))
"""
    what = "abprof.compare: the inputs are on the CPU, but CUDA has started in this process"
    assert compared(code, tmp_path) == f'{what} (give device="cpu" or device="cuda")'


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("first", ["made = lambda: (MADE,)", "made = MADE", "torch.cuda.is_available()"])
def test_compare_on_a_gpu(tmp_path: Path, first: str) -> None:
    """Inputs that a function makes leave CUDA to the forks. With inputs on the GPU CUDA has started here; after a question
    for it no fork can use it."""
    code = f"made = lambda: ({MADE},)\n{first.replace('MADE', MADE)}\n"
    code += "found = [abprof.compare(base, other, made, budget='30s') for other in (slow, base)]\n"
    code += "print(json.dumps([[r.verdict for r in found], [*map(repr, found)], found[0].run.machine.kind]))"
    (slower, same), texts, kind = compared(code, tmp_path)
    print(*texts, sep="\n")
    assert (slower, kind) == ("slower", "cuda")
    assert same in {"same", "unclear"}
    assert ("in forks of one process" if "lambda" in first else "in one process") in texts[0]


@pytest.mark.gpu
@pytest.mark.alone
def test_what_no_gpu_computes_and_what_breaks_cuda(tmp_path: Path) -> None:
    code = f"""
idle, on_gpu, lines = abprof.compare(base, base, lambda: (x,), quick=True), {MADE}, []
def breaks(x):
    return base(x), x[torch.tensor([10**6], device="cuda")]
for target, device in ((base, "cpu"), (breaks, "cuda")):
    try:
        abprof.compare(base, target, on_gpu, device=device, quick=True)
    except abprof.AbprofError as error:
        lines.append(error.line)
print(json.dumps([repr(idle), *lines]))
"""
    idle, on_cpu, broken = compared(code, tmp_path)
    assert on_cpu == 'abprof.compare: the inputs are on a GPU (leave out device="cpu")'
    assert "Unsupported: neither the inputs nor the outputs are on the GPU" in idle
    assert "abprof.compare: CUDA has failed: " in broken
    assert "device-side assert" in broken


def test_modes_and_strides_of_the_caller_reach_the_forks(tmp_path: Path) -> None:
    code = """
torch.set_default_device("meta")
def keeps(x):
    assert (x.stride(), torch.empty(1).is_meta) == ((128, 2), True)
    return x @ x
found = abprof.compare(keeps, keeps, torch.randn(64, 128, device="cpu")[:, ::2], quick=True)
print(json.dumps([[o.status for o in found.run.observations], repr(found)]))
"""
    statuses, text = compared(code, tmp_path)
    assert {*statuses} == {"ok"}, text


@pytest.mark.slow
def test_compare_finds_wrong_outputs_and_failures(tmp_path: Path) -> None:
    code = """
def fails(x):
    raise ValueError("no good")
def writes(x):
    x += 1
    return x.sum()
def differs(mine, other):
    assert mine.shape == (2, 2), "not two by two"
quick = {"quick": True, "quiet": True}
args = {"wrong": (base, lambda x: base(x) + 1, x), "fails": (base, fails, (x,)), "checked": (base, base, {"x": x}, differs),
        "overwrites": (writes, writes, x), "no": (base, base, x, lambda *_: False)}
found = {name: abprof.compare(*each, **quick) for name, each in args.items()}
found["reset"] = abprof.compare(writes, writes, x, reset=lambda x: x.fill_(1.0), **quick)
found["made"] = abprof.compare(slow, base, lambda: (torch.randn(64, 64),), check=torch.testing.assert_close, **quick)
print(json.dumps({name: [r.verdict, " ".join(o.reason for o in r.run.observations), repr(r)] for name, r in found.items()}))
"""
    found = compared(code, tmp_path)
    texts = {name: each.pop() for name, each in found.items()}
    assert "(first: <lambda>, target wrong: the sides do not agree: output 0: largest error 1, " in texts["wrong"]
    assert not any(word in text for text in texts.values() for word in ("report", "another ref", "logs/", "workload"))
    reasons = {"wrong": "the sides do not agree", "fails": "ValueError: no good", "checked": "not two by two"}
    reasons |= {"overwrites": "the kernel overwrote its inputs", "no": "the check returned False"}
    for name, reason in reasons.items():
        assert reason in found[name][1]
    assert {name: found[name][0] for name in ("wrong", "fails")} == {"wrong": "broken", "fails": "broken"}
    for name in ("reset", "made"):
        assert found[name] == ["unclear", " "]  # --quick gives no verdict, and nothing failed


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.alone])])
def test_the_fixture_fails_a_test_whose_target_is_broken(tmp_path: Path, device: str) -> None:
    (tmp_path / "test_it.py").write_text(f"""{FUNCTIONS}
x = x.to("{device}")
def test_good(abprof_compare):
    assert abprof_compare(base, base, x, quick=True).run.cells[0].id == "test_good"
def test_broken(abprof_compare):
    abprof_compare(base, lambda x: base(x) + 1, x, quick=True)
def test_allowed(abprof_compare):
    assert abprof_compare(base, lambda x: base(x) + 1, x, quick=True, fail_on="never").verdict == "broken"
""")
    command = ["-m", "pytest", "-q", "-p", "abprof.extras.pytest_plugin", "-p", "no:cacheprovider", str(tmp_path)]
    env = {**os.environ, **PATHS, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "ABPROF_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env=env, cwd=tmp_path
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "1 broken (1 cell)." in done.stdout
    code = "import sys, pytest; before = set(sys.modules); import abprof.extras.pytest_plugin; "
    assert python(f"{code} print({HEAVY} & (set(sys.modules) - before))").strip() == "set()"


@pytest.mark.slow
def test_the_notebook_of_the_docs_runs(tmp_path: Path) -> None:
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    python(f"{code}\nassert wrong.verdict == 'broken'\n", ABPROF_STATE_DIR=str(tmp_path))
