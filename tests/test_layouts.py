"""Layouts of other people's repositories, rebuilt: each side's own files are loaded, whatever the interpreter has of the
same packages. One repository holds one package of each layout, so that one run looks at all of them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo, make_repo
from tests.test_proofs import QUICK
from tests.test_proofs import python_with_an_editable_mypkg as python_with
from tests.tinyrepo import WORKLOAD, Done, abprof

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # many workers that import torch

EXTENSION = """
#include <Python.h>
#include <string>
#if STAGE
static PyObject *factor(PyObject *, PyObject *) { return PyFloat_FromDouble(std::stod("2.0") + 0 * STAGE); }
#endif
static PyMethodDef methods[] = {{"factor", factor, METH_NOARGS, ""}, {0, 0, 0, 0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "cpp_ops", "", -1, methods};
extern "C" PyObject *PyInit_cpp_ops() { return PyModule_Create(&module); }
"""
SETUP = """
import sys
from setuptools import Extension, setup
setup(name="cpp-pkg", version="1.0", package_dir={"": "lib"}, packages=["cpp_pkg"],
      ext_modules=[Extension("cpp_ops", ["csrc/ops.cpp"], extra_compile_args=["-DSTAGE=%d" % STAGE])])
"""
CONFIG = """
schema = 1

[kernels.sources]  # src/ layout
path = "src/sources_pkg"
import = "sources_pkg"

[kernels.spaced]  # acme/ has no __init__.py
path = "acme/spaced"
import = "acme.spaced"

[kernels.versioned]  # as setuptools-scm has it: _version.py is made by the build and git does not have it
path = "src/versioned_pkg"
import = "versioned_pkg"
build = ["python", "-c", "open('src/versioned_pkg/_version.py', 'w').write('version = 1')"]

[kernels.inplace]  # an extension module at the top level, built where it lies
path = "lib/cpp_pkg"
import = "cpp_pkg"
build = ["sh", "-c", "python setup.py build_ext --build-lib lib"]

[kernels.target]  # the same, as `pip install --target` or `setup.py install` leave it: the path is made by the build
path = "site/cpp_pkg"
import = "cpp_pkg"
build = ["sh", "-c", "python setup.py build --build-lib site"]

[kernels.linked]  # a part of it is a submodule
path = "linked"
submodules = true

[kernels.attention]  # one file, of another name
path = "my_kernels.py"
"""
DOUBLE = "def double(x): return x * {}\n"
DEEP = "from sources_pkg.deep import names\nassert names.FACTOR == 2\n"
PACKAGES = {
    "src/sources_pkg/__init__.py": "from sources_pkg.ops import double\n",
    "src/sources_pkg/ops.py": DOUBLE.format(2) + DEEP,
    "src/sources_pkg/deep/__init__.py": "",
    "src/sources_pkg/deep/names.py": "FACTOR = 2\n",
    "acme/spaced/__init__.py": "from acme.spaced.ops import double\n",
    "acme/spaced/ops.py": DOUBLE.format(2),
    "src/versioned_pkg/__init__.py": "from ._version import version\nfrom .ops import double\n",
    "src/versioned_pkg/ops.py": DOUBLE.format(2),
    "lib/cpp_pkg/__init__.py": "import cpp_ops\ndef double(x): return x * cpp_ops.factor()\n",
    "csrc/ops.cpp": EXTENSION,
    "setup.py": SETUP.replace("% STAGE", "% 1"),
    "linked/__init__.py": "from .third.ops import double\n",
    "my_kernels.py": DOUBLE.format(2),
    "abprof.toml": CONFIG,
    ".gitignore": "runs/\n_version.py\n*.so\nbuild/\n",
}
KERNELS = ("sources", "spaced", "versioned", "inplace", "target", "linked", "attention")
CHANGED = ("src/sources_pkg/ops.py", "acme/spaced/ops.py", "src/versioned_pkg/ops.py", "my_kernels.py")


def interpreter(folder: Path) -> Path:
    """One that has of all these packages other copies, which treble: editable by a hook, by a path, and installed."""
    elsewhere = folder / "elsewhere"
    python = python_with(folder / "venv", elsewhere)
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    hook = (site / "__editable___mypkg_finder.py").read_text().replace("mypkg", "sources_pkg")
    (site / "__editable___mypkg_finder.py").write_text(hook)
    (site / "__editable__.versioned.pth").write_text(f"{elsewhere}\n")
    wrong = DOUBLE.format(3)
    copies = {
        elsewhere: {
            "sources_pkg/__init__.py": wrong, "sources_pkg/more.py": "", "sources_pkg/deep/names.py": "FACTOR = 3\n",
            "versioned_pkg/__init__.py": wrong,
        },
        site: {
            "acme/spaced/__init__.py": wrong, "acme/tools/__init__.py": "FACTOR = 2\n", "cpp_pkg/__init__.py": wrong,
            "cpp_ops.py": "def factor(): return 3\n", "my_kernels.py": wrong,
        },
    }  # fmt: skip
    for place, files in copies.items():
        for name, text in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
    for name, files in {
        "cpp_pkg": ("cpp_pkg/__init__.py", "cpp_ops.py"),
        "acme_tools": ("acme/tools/__init__.py",),
    }.items():
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return python


@dataclass(frozen=True)
class Ran:
    """The run of all layouts: main, fast where each package was changed, and `lost`, which builds no extension, imports a module
    that it does not have, and has none of the other packages that need no build."""

    repo: GitRepo
    done: Done


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    home = tmp_path_factory.mktemp("layouts")
    third = make_repo(home / "third")
    third.commit("a library", {"__init__.py": "", "ops.py": DOUBLE.format(2)})
    repo = make_repo(home / "repo")
    workloads = {
        f"workloads/{name}.py": WORKLOAD.replace('"tiny"', f'"{name}"').replace("[4096]", "[64]") for name in KERNELS
    }
    repo.write({**PACKAGES, **workloads})
    repo.git("submodule", "--quiet", "add", str(home / "third"), "linked/third")
    repo.commit("seven layouts")
    repo.branch("fast")
    later = third.commit("later", {"ops.py": DOUBLE.format("2.0")})
    subprocess.run(["git", "-C", str(repo.path / "linked" / "third"), "pull", "-q"], check=True)
    assert (
        later
        == subprocess.check_output(
            ["git", "-C", str(repo.path / "linked/third"), "rev-parse", "HEAD"], text=True
        ).strip()
    )
    repo.commit("change", {**dict.fromkeys(CHANGED, DOUBLE.format("2.0")), "setup.py": SETUP.replace("% STAGE", "% 2")})
    repo.checkout("main")
    repo.branch("lost")
    repo.git("rm", "-rqf", "acme", "linked", "my_kernels.py")
    repo.commit(
        "no extension",
        {
            "src/sources_pkg/__init__.py": "from sources_pkg import more, ops\ndouble = ops.double\n",
            "setup.py": SETUP.split("ext_modules", maxsplit=1)[0].rstrip().rstrip(",") + ")\n",
        },
    )
    repo.checkout("main")
    repo.git("submodule", "--quiet", "update")
    python = interpreter(home)
    done = abprof("main", "fast", "lost", *QUICK, "--python", str(python), "-v", cwd=repo.path, home=home)
    return Ran(repo, done)


@pytest.mark.parametrize("name", KERNELS)
def test_each_side_loads_its_own(ran: Ran, name: str) -> None:
    cell = f"{name}/n=64"
    done = ran.done
    assert (done.statuses("base")[cell], done.statuses("target")[cell]) == ("ok", "ok"), done.err
    loaded: dict[str, dict[str, dict[str, str]]] = {"base": {}, "target": {}}
    for proof in (proof for proof in done.run["proofs"] if proof["kernel"] == name and proof["side"] in loaded):
        loaded[proof["side"]] |= {item["name"]: item for item in proof["artefacts"]}
    for side, items in loaded.items():
        own = [item for item in items.values() if item["kind"] != "kernel" and "/acme/tools/" not in item["path"]]
        build = next(b for b in done.run["builds"] if (b["side"], b["kernel"]) == (side, name))
        assert own, side
        assert all(item["path"].startswith(build["path"]) for item in own), own
    both = loaded["base"].keys() & loaded["target"].keys()
    assert any(loaded["base"][n]["sha256"] != loaded["target"][n]["sha256"] for n in both), "what the branch changed"


def test_what_a_side_does_not_build_is_not_taken_from_the_installed_copy(ran: Ran) -> None:
    says = "module cpp_ops is of cpp_pkg, which is an installed copy of the package, outside this side's tree"
    seen = {row["cell"]: row["reason"] for row in ran.done.run["observations"] if row["arm"] == "target2"}
    assert "/elsewhere/sources_pkg/more.py, outside this side's tree" in seen["sources/n=64"], (
        "which that finder brings in"
    )
    assert says in seen["inplace/n=64"]
    assert says in seen["target/n=64"]
    verdicts = {(row["cell"], row["to"]): row["verdict"] for row in ran.done.run["comparisons"]}
    gone = {cell.removesuffix("/n=64") for cell, status in ran.done.statuses("target2").items() if status == "missing"}
    assert gone == {"spaced", "linked", "attention"}
    assert {verdicts[f"{name}/n=64", "target2"] for name in ("sources", "inplace", "target")} == {"broken"}
