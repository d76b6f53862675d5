"""What only one side has: a package, a module, a function, a parameter, a case, a variant, a dependency. All of it is
typed and shown in every report, and nothing is dropped."""

import re
import sysconfig
import venv
from pathlib import Path

import pytest

from abprof.report import FORMATS, rendered
from abprof.worker.api import accepts
from tests.adopt.test_page import PAGE
from tests.gitrepo import GitRepo, make_repo
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload
from tests.tinyrepo import abprof

QUICK = ("main", "next", "--quick", "--device", "cpu", "--json")
PREPARE = PAGE.split("\n## Differences between the sides\n")[1].split("```python\n")[1].split("```")[0]

HEAD = """
import torch
from abprof.kit import Op, Unsupported, accepts, compare

API = 1
KERNEL = "{kernel}"
PRESETS = {{"default": {{"clamp": [{clamps}]}}}}


def inputs(case, device, seed):
    return torch.randn(256, generator=torch.Generator().manual_seed(seed))


def reference(case, inputs):
    return (inputs.double() * 2).clamp(max=1.0) if case["clamp"] else inputs.double() * 2


def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-6, atol=0)


"""
PLAIN = """
def prepare(kernel, variant, case, inputs):
    {prepare}
"""
OLD = "def scale(x):\n    return x * 2\n\n\ndef old(x):\n    return x * 2\n"
NEW = """
import torch
from .extra import LIMIT


def scale(x, out=None, clamp=False):
    y = torch.mul(x, 2, out=out)
    return y.clamp_(max=LIMIT) if clamp else y
"""


def workload(prepare: str, kernel: str = "ops", clamps: str = "False") -> str:
    body = prepare if prepare.startswith("def ") else PLAIN.format(prepare=prepare)
    return HEAD.format(kernel=kernel, clamps=clamps) + body


def differing(path: Path) -> GitRepo:
    """main has kernels ops and gone; next has ops with another signature and another module, and begun."""
    repo = make_repo(path)
    loads = {
        "adapts": workload(PREPARE, clamps="False, True"),
        "function": workload("return Op(lambda: kernel.old(inputs))"),
        "module": workload(
            "from importlib import import_module\n    extra = import_module('.extra', kernel.__name__)\n"
            "    return Op(lambda: inputs * 2 * extra.LIMIT)"
        ),
        "gone": workload("return Op(lambda: kernel.scale(inputs))", "gone"),
        "begun": workload("return Op(lambda: kernel.scale(inputs))", "begun"),
    }
    files = {f"workloads/{name}.py": text for name, text in loads.items()}
    repo.commit(
        "old", {**files, "kernels/ops/__init__.py": OLD, "kernels/gone/__init__.py": OLD, ".gitignore": "runs/\n"}
    )
    repo.branch("next")
    repo.git("rm", "-rq", "kernels/gone")
    new = {"kernels/ops/__init__.py": NEW, "kernels/ops/extra.py": "LIMIT = 1.0\n", "kernels/begun/__init__.py": OLD}
    repo.commit("new", new)
    repo.checkout("main")
    return repo


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_workload_judges_sides_that_differ(tmp_path: Path) -> None:
    done = abprof(*QUICK, cwd=differing(tmp_path / "repo").path, home=tmp_path)
    base, target, verdicts = done.statuses("base"), done.statuses("target"), done.verdicts()
    both = {cell: (base[cell], target[cell], verdicts[cell]) for cell in base}
    assert both.pop("adapts/clamp=false")[:2] == ("ok", "ok"), "another signature, the same question"
    assert both == {
        "adapts/clamp=true": ("unsupported", "ok", "unclear"),
        "function/clamp=false": ("ok", "missing", "broken"),
        "module/clamp=false": ("missing", "ok", "unclear"),
        "gone/clamp=false": ("ok", "missing", "broken"),
        "begun/clamp=false": ("missing", "ok", "unclear"),
    }
    reasons = {(row["cell"], row["arm"]): row["reason"] for row in done.run["observations"] if row.get("reason")}
    assert reasons["adapts/clamp=true", "base"] == "this side's scale takes no clamp"
    assert "has no attribute 'old'" in reasons["function/clamp=false", "target"]
    assert "extra" in reasons["module/clamp=false", "base"]
    assert reasons["gone/clamp=false", "target"] == "kernels/gone does not exist on this side"
    assert done.code == 1, "what the target no longer has is broken"


def test_a_package_that_only_one_side_has_is_in_every_report(tmp_path: Path) -> None:
    loads = {name: Workload(kernel=name, presets={"default": {"case": ["a"]}}) for name in ("k", "begun", "gone")}
    lab = Lab(tmp_path, Scenario(workloads=loads, times=[Time(ns=20e6)]))
    lab.repo.git("rm", "-rq", "kernels/begun")
    lab.repo.commit("not yet")
    lab.repo.checkout("fast")
    lab.repo.git("rm", "-rq", "kernels/gone")
    lab.repo.commit("no longer", {"kernels/begun/__init__.py": ""})
    lab.repo.checkout("main")
    result = lab.abprof("main", "fast", "--quick")
    assert result.folder
    for name in set(FORMATS) - {"png", "bmf", "action"}:
        text = rendered(result.run, (), name).decode()
        for cell in ("begun", "gone"):
            assert cell in text, name
        assert len(re.findall(r"missing", text)) >= 2, name
    assert "kernels/gone does not exist on this side" in result.out
    assert "missing" in result.out


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_workloads_of_the_target_bring_their_own_cells(tmp_path: Path) -> None:
    """--workloads-from target: a workload that only that side has is measured on both, and the difference is printed."""
    loads = {name: Workload(kernel="k", presets={"default": {"case": ["a"]}}) for name in ("w", "more")}
    lab = Lab(tmp_path, Scenario(workloads=loads, times=[Time(ns=20e6)]))
    lab.repo.git("rm", "-q", "workloads/more.py")
    lab.repo.commit("one workload")
    lab.repo.checkout("fast")
    lab.repo.commit("one more", {"workloads/more.py": "# simulated\n"})
    lab.repo.checkout("main")
    mine = lab.abprof("main", "fast", "--quick")
    assert set(mine.table()) == {"w/case=a"}
    assert "fast's own workloads/ differs from the workloads of this run" in mine.err
    theirs = lab.abprof("main", "fast", "--quick", "--workloads-from", "target")
    assert set(theirs.table()) == {"w/case=a", "more/case=a"}
    assert theirs.status("more/case=a", "base")[0] == "ok"
    assert "main's own workloads/ differs" in theirs.err


def interpreter(folder: Path, extra: str) -> Path:
    """This environment's packages, and one more module."""
    venv.create(folder, symlinks=True, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "a_shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    (site / "dependency.py").write_text(extra)
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sides_with_different_dependencies(tmp_path: Path) -> None:
    """The target needs a package that only its own interpreter has, in another version than base's."""
    repo = make_repo(tmp_path / "repo")
    text = "import dependency\n\n\ndef scale(x):\n    return x * dependency.{name}\n"
    load = workload("return Op(lambda: kernel.scale(inputs))")
    repo.commit("old", {"kernels/ops.py": text.format(name="TWO"), "workloads/w.py": load, ".gitignore": "runs/\n"})
    repo.branch("next")
    repo.commit("new", {"kernels/ops.py": text.format(name="ZWEI")})
    repo.checkout("main")
    base, target = interpreter(tmp_path / "v1", "TWO = 2\n"), interpreter(tmp_path / "v2", "ZWEI = 2\n")
    done = abprof(*QUICK, "--python", f"base={base}", "--python", f"target={target}", cwd=repo.path, home=tmp_path)
    assert (done.statuses("base"), done.statuses("target")) == ({"w/clamp=false": "ok"}, {"w/clamp=false": "ok"})
    assert done.run["options"]["python"] == {"base": str(base), "target": str(target)}
    alike = abprof(*QUICK, "--python", str(base), cwd=repo.path, home=tmp_path)
    assert (alike.statuses("base"), alike.statuses("target")) == ({"w/clamp=false": "ok"}, {"w/clamp=false": "crash"})
    assert "ZWEI" in next(row["reason"] for row in alike.run["observations"] if row["arm"] == "target")
    assert alike.verdicts() == {"w/clamp=false": "broken"}


def test_accepts() -> None:
    def plain(x, /, y, *, z=1):
        return x, y, z

    def rest(x, **more):
        return x, more

    class Called:
        def __call__(self, scale):
            return scale

    assert accepts(plain, "y", "z")
    assert accepts(plain)
    assert not accepts(plain, "x"), "only by its place"
    assert not accepts(plain, "y", "w")
    assert accepts(rest, "anything")
    assert accepts(Called(), "scale")
    assert not accepts(dict.fromkeys, "nothing")
