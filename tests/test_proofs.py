"""Which code was measured, and how a run proves it: real workers, and every way by which other code comes in."""

import hashlib
import json
import os
import subprocess
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.gitrepo import GitRepo
from tests.tinyrepo import PACKAGE, WORKLOAD, Done, abprof, source, tiny_repo

QUICK = ("--quick", "--device", "cpu", "--no-peers", "--json")
CELL = "tiny/n=4096"


def branch(repo: GitRepo, files: dict[str, str]) -> None:
    """The branch `fast` with these files; main stays where it is."""
    repo.branch("fast")
    repo.commit("change", files)
    repo.checkout("main")


def reasons(done: Done, arm: str) -> str:
    return next(row["reason"] for row in done.run["observations"] if row["arm"] == arm)


def artefacts(done: Done, side: str, kind: str) -> dict[str, dict[str, str]]:
    """name -> artefact, of the side's last proof."""
    proofs = [proof for proof in done.run["proofs"] if proof["side"] == side]
    return {item["name"]: item for item in proofs[-1]["artefacts"] if item["kind"] == kind}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Ordinary:
    """A run of two branches that differ, where nothing is wrong: many a test looks at this one."""

    repo: GitRepo
    home: Path
    done: Done


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Ordinary:
    """Both branches also hold an abprof/ folder that raises, and the workload imports a helper that raises on fast."""
    home = tmp_path_factory.mktemp("ordinary")
    repo = tiny_repo(home / "repo")
    bomb = "raise RuntimeError('the abprof folder of the branch was imported')"
    judge = WORKLOAD.replace("API = 1", "from ._shared import N\nAPI = 1").replace("[4096]", "[N]")
    abprofs = {
        f"{folder}abprof/{name}": bomb
        for folder in ("", "kernels/")
        for name in ("__init__.py", "kit.py", "wire/__init__.py")
    }
    repo.commit("more", {**abprofs, "workloads/_shared.py": "N = 4096\n", "workloads/tiny.py": judge})
    says = PACKAGE + "\nimport abprof.kit; print('KIT', abprof.kit.__file__, flush=True)\n"
    fast = {"kernels/tiny/__init__.py": says, "kernels/tiny/tiny.c": source(110)}
    branch(repo, {**fast, "workloads/_shared.py": "raise RuntimeError('not the judge')\n"})
    done = abprof("main", "fast", *QUICK, cwd=repo.path, home=home)
    assert done.statuses("base") == done.statuses("target") == {CELL: "ok"}
    return Ordinary(repo, home, done)


# ---------------------------------------------------------------- what is recorded


def test_each_side_proves_its_own_commits_code(ordinary: Ordinary) -> None:
    """The script that abprof replaces measured the base twice; here both sides' hashes are those of their commits."""
    repo, done = ordinary.repo, ordinary.done
    objects = {}
    for side, ref in (("base", "main"), ("target", "fast")):
        module = artefacts(done, side, "module")["abprof_side.tiny"]
        assert module["sha256"] == sha256(repo.git("show", f"{ref}:kernels/tiny/__init__.py").encode() + b"\n")
        objects[side] = artefacts(done, side, "object")["tiny.so"]
        assert objects[side]["sha256"] == sha256(Path(objects[side]["path"]).read_bytes())
        assert objects[side]["path"].startswith(str(ordinary.home / "cache" / "builds"))
        assert len(artefacts(done, side, "module")) == len(artefacts(done, side, "object")) == 1, "and nothing else"
    assert objects["base"]["sha256"] != objects["target"]["sha256"]
    sides = {side["id"]: side["commit"] for side in done.run["sides"]}
    assert sides == {"base": repo.git("rev-parse", "main"), "target": repo.git("rev-parse", "fast")}
    assert all(proof["ok"] for proof in done.run["proofs"])
    assert not repo.git("status", "--porcelain")


def test_the_same_commit_twice_loads_three_builds(tmp_path: Path) -> None:
    """What a build bakes in, such as its path, differs between base, target and control; without build() too."""
    baked = PACKAGE.replace('"-O2",', '"-O2", f"-DBAKED={os.urandom(8).hex()}",')
    lazy = baked.replace("def build(*, verbose)", "def compile()").replace(
        "    if _library is None:\n",
        '    if _library is None:\n        (Path(os.environ["ABPROF_BUILD_DIR"]) / "tiny.so").exists() or compile()\n',
    )
    code = (
        source(100) + "#define TEXT(x) #x\n#define TEXT_OF(x) TEXT(x)\nconst char *baked = TEXT_OF(BAKED) __FILE__;\n"
    )
    repo = tiny_repo(tmp_path / "repo")
    files = {"kernels/tiny/__init__.py": baked, "kernels/tiny/tiny.c": code}
    files |= {"kernels/lazy/__init__.py": lazy, "kernels/lazy/tiny.c": code}
    repo.commit("baked", {**files, "workloads/lazy.py": WORKLOAD.replace('"tiny"', '"lazy"')})
    done = abprof("main", "main", "--device", "cpu", "--budget", "1s", "--json", cwd=repo.path, home=tmp_path)
    assert all(proof["ok"] for proof in done.run["proofs"]), done.run["proofs"]
    assert set(done.verdicts()) == {CELL, "lazy/n=4096"}
    for kernel in ("tiny", "lazy"):
        builds = {build["side"]: build for build in done.run["builds"] if build["kernel"] == kernel}
        loaded = {
            proof["side"]: artefact
            for proof in done.run["proofs"]
            for artefact in proof["artefacts"]
            if proof["kernel"] == kernel and artefact["kind"] == "object"
        }
        assert set(loaded) == set(builds) == {"base", "target", "control"}
        assert len({artefact["sha256"] for artefact in loaded.values()}) == 3, kernel
        for side, artefact in loaded.items():
            assert artefact["path"].startswith(builds[side]["path"] + "/"), (kernel, side)
            assert builds[side]["key"].removeprefix(builds["base"]["key"]) == {"base": ""}.get(side, f"-{side}")
    assert done.run["header"]["counts"]["controls_second_build"] == done.run["header"]["counts"]["controls"]


@pytest.mark.slow
def test_a_binary_is_never_stale(tmp_path: Path) -> None:
    """A header's content changes and its time goes back: abprof compares content, so it finds the wrong factor."""
    repo = tiny_repo(tmp_path / "repo")
    header = repo.path / "kernels" / "tiny" / "factor.h"
    repo.commit(
        "header",
        {
            "kernels/tiny/factor.h": "#define FACTOR 2.0f\n",
            "kernels/tiny/tiny.c": '#include "factor.h"\n' + source(100).replace("2.0f", "FACTOR"),
        },
    )
    first = abprof("run", ".", *QUICK, cwd=repo.path, home=tmp_path)
    assert first.statuses("base") == {CELL: "ok"}
    header.write_text("#define FACTOR 3.0f\n")
    os.utime(header, (1, 1))
    second = abprof("main", ".", *QUICK, cwd=repo.path, home=tmp_path)
    assert second.statuses("base") == {CELL: "ok"}
    assert second.statuses("target") == {CELL: "wrong"}
    assert [build["cached"] for build in second.run["builds"]] == [True, False]
    assert second.code == 1


# ---------------------------------------------------------------- code that comes from elsewhere


def test_branches_that_also_hold_an_abprof_folder(ordinary: Ordinary) -> None:
    """abprof is installed here (editable, in a checkout), and each branch has one that raises: neither mixes in."""
    log = (Path(ordinary.done.run["run_dir"]) / "logs" / "worker-target-tiny.log").read_text()
    kit = next(line for line in log.splitlines() if line.startswith("KIT ")).removeprefix("KIT ")
    assert kit.startswith(str(ordinary.home / "cache" / "worktrees"))
    assert "/worker/abprof/kit.py" in kit


FINDER = '''
import importlib.util, sys
WHERE = {where!r}

class Finder:
    """As build backends write them for an editable install."""
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top, _, rest = name.partition(".")
        if top != "mypkg":
            return None
        file = WHERE + "/mypkg/" + (rest.replace(".", "/") + ".py" if rest else "__init__.py")
        places = None if rest else [WHERE + "/mypkg"]
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)

def install():
    sys.meta_path.insert(0, Finder)
'''


def python_with_an_editable_mypkg(folder: Path, elsewhere: Path) -> Path:
    """An interpreter with this environment's packages, in which a finder gives `import mypkg` the package at `elsewhere`."""
    venv.create(folder, symlinks=True, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "a_shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    (site / "__editable___mypkg_finder.py").write_text(FINDER.format(where=str(elsewhere)))
    (site / "__editable__.mypkg.pth").write_text(
        "import __editable___mypkg_finder; __editable___mypkg_finder.install()\n"
    )
    return folder / "bin" / "python"


LEAKS: dict[str, tuple[str, str]] = {
    # the package's fault on the branch -> words of the reason
    "a module of the user's checkout": (
        PACKAGE + "\nimport sys; sys.path.insert(0, {repo!r} + '/tools'); import helper\n",
        "module helper was loaded from {repo}/tools/helper.py, outside this side's tree",
    ),
    "a library built for another branch": (
        PACKAGE.replace(
            'ctypes.CDLL(str(Path(os.environ["ABPROF_BUILD_DIR"]) / "tiny.so"))',
            'ctypes.CDLL(str(next((p for p in sorted(Path({cache!r}).glob("*/*/out/tiny.so")) '
            'if not str(p).startswith(os.environ["ABPROF_BUILD_DIR"])), '
            'Path(os.environ["ABPROF_BUILD_DIR"]) / "tiny.so")))',
        ),
        "/out/tiny.so was loaded from outside this side's tree",
    ),
    "a library in a cache that all branches share": (
        PACKAGE.replace(
            'out = Path(os.environ["ABPROF_BUILD_DIR"])',
            'out = Path.home() / ".cache" / "tiny"; out.mkdir(parents=True, exist_ok=True)\n'
            '    if (out / "tiny.so").exists(): return',
        ).replace('Path(os.environ["ABPROF_BUILD_DIR"]) / "tiny.so"', 'Path.home() / ".cache" / "tiny" / "tiny.so"'),
        "shared object {home}/.cache/tiny/tiny.so was loaded from outside this side's tree",
    ),
    "a module from an unknown folder": (
        PACKAGE + "\nimport sys; sys.path.insert(0, {away!r}); import leakmod\n",
        "module leakmod was loaded from {away}/leakmod.py, outside this side's tree",
    ),
    "a library from there": (
        PACKAGE + "\nctypes.CDLL({away!r} + '/leak.bin')\n",
        "shared object {away}/leak.bin was loaded from outside this side's tree",
    ),
}  # fmt: skip
SHARES = PACKAGE + "\nimport helpful; ctypes.CDLL({shared!r} + '/libhelpful.so')\n"


def test_code_from_elsewhere_is_broken_and_never_a_number(tmp_path: Path) -> None:
    """Every leak is a branch, and a target of one run; main leaks nothing. The last one uses what abprof.toml's
    PYTHONPATH gives to all sides: that may be, and is on record."""
    repo, home = tiny_repo(tmp_path / "repo"), tmp_path / "home"
    away, shared = tmp_path / "away", tmp_path / "shared"
    for folder in (away, shared, home / ".cache"):
        folder.mkdir(parents=True)
    places = {"repo": str(repo.path), "cache": str(tmp_path / "cache" / "builds"), "home": str(home)}
    places |= {"away": str(away), "shared": str(shared)}
    (away / "leakmod.py").write_text("")
    (shared / "helpful.py").write_text("")
    for library in (away / "leak.bin", shared / "libhelpful.so"):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, repo.path / "kernels/tiny/tiny.c"], check=True)
    settings = f'[environment.set]\nPYTHONPATH = "{shared}"\n'
    repo.commit("tools", {"tools/helper.py": "WHO = 'the checkout'\n", "abprof.toml": settings})
    packages = [*(package for package, _ in LEAKS.values()), SHARES]
    for number, package in enumerate(packages):
        for name, value in places.items():
            package = package.replace(f"{{{name}!r}}", repr(value))  # noqa: PLW2901
        repo.branch(f"leak{number}")
        repo.commit("leak", {"kernels/tiny/__init__.py": package})
        repo.checkout("main")
    branches = [f"leak{number}" for number in range(len(packages))]
    done = abprof("main", *branches, *QUICK, cwd=repo.path, home=tmp_path, HOME=str(home))
    arms = ["target", *(f"target{number}" for number in range(2, len(packages) + 1))]
    *leaking, sharing = arms
    assert done.statuses("base") == done.statuses(sharing) == {CELL: "ok"}
    assert done.code == 1
    assert [row["verdict"] == "broken" for row in done.run["comparisons"]] == [*(True for _ in leaking), False]
    for arm, (leak, (_, says)) in zip(leaking, LEAKS.items(), strict=True):
        assert says.format(**places) in reasons(done, arm), leak
        observed: list[dict[str, Any]] = [row for row in done.run["observations"] if row["arm"] == arm]
        assert observed[0]["metrics"] == {}, "never a number"
        assert [proof["ok"] for proof in done.run["proofs"] if proof["side"] == arm][-1] is False
    for arm, kind, file in (
        (leaking[-2], "module", away / "leakmod.py"),
        (leaking[-1], "object", away / "leak.bin"),
        (sharing, "module", shared / "helpful.py"),
        (sharing, "object", shared / "libhelpful.so"),
    ):
        on_record = {item["path"]: item["sha256"] for item in artefacts(done, arm, kind).values()}
        assert on_record[str(file)] == sha256(file.read_bytes()), arm


def installed_from(site: Path, origin: Path, name: str, *files: str) -> None:
    """Write the metadata that `pip install ORIGIN` writes beside these files."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    (info / "direct_url.json").write_text(json.dumps({"url": origin.as_uri(), "dir_info": {}}))


@pytest.mark.slow
def test_an_install_that_was_built_from_the_repository_is_no_sides_own(tmp_path: Path) -> None:
    """Under names that abprof does not mount, beside torch; one from another place is part of the environment."""
    repo = tiny_repo(tmp_path / "repo")
    repo.git("worktree", "add", "-q", str(tmp_path / "mine too"), "-b", "old")
    python = python_with_an_editable_mypkg(tmp_path / "venv", repo.path)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    installed_from(site, repo.path, "mypkg", "__editable__.mypkg.pth", "__editable___mypkg_finder.py")
    for name, origin in {"a_c": repo.path, "b_c": tmp_path / "mine too", "free_c": tmp_path / "other"}.items():
        (site / f"{name}.py").write_text("")
        installed_from(site, origin, name, f"{name}.py")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", site / "lib_c.so", repo.path / "kernels/tiny/tiny.c"], check=True)
    installed_from(site, repo.path, "lib_c", "lib_c.so")
    lib = "ctypes.CDLL(str(next(p for p in (Path(p) / 'lib_c.so' for p in sys.path) if p.exists())))"
    leaks = ["import free_c", "import a_c", "import b_c", f"import ctypes, sys; {lib}"]
    for number, line in enumerate(leaks):
        repo.branch(f"leak{number}")
        repo.commit("leak", {"kernels/tiny/__init__.py": f"{PACKAGE}\n{line}\n"})
        repo.checkout("main")
    done = abprof(
        "main", *(f"leak{n}" for n in range(4)), *QUICK, "--python", str(python), cwd=repo.path, home=tmp_path
    )
    for arm in ("base", "target"):
        assert done.statuses(arm) == {CELL: "ok"}, "the finder of an editable install does nothing unasked"
    assert [row["verdict"] == "broken" for row in done.run["comparisons"]] == [False, True, True, True]
    assert f"module a_c is of a_c, which was installed from {repo.path}, outside" in reasons(done, "target2")
    assert f"module b_c is of b_c, which was installed from {tmp_path / 'mine too'}, outside" in reasons(
        done, "target3"
    )
    assert f"lib_c.so is of lib_c, which was installed from {repo.path}, outside" in reasons(done, "target4")
