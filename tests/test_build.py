"""Real builder processes: cached by content, published whole, failures as records."""

import dataclasses
import hashlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from abprof.builds import Job, build_packages, environment, identical
from abprof.builds.worker_factory import ForkServers, WorkerFactory, install_bundle
from abprof.records import Build, Cell, Checkout, Package, Side
from abprof.system.console import View
from tests.tinyrepo import PACKAGE, WORKLOAD, source

MOVE = '(out / "partial.so").replace(out / "tiny.so")'
LOADED = PACKAGE.replace(MOVE, f'{MOVE}\n    ctypes.CDLL(str(out / "tiny.so"))')  # as a build() that tries what it made
TINY = {"kernels/tiny/__init__.py": LOADED, "kernels/tiny/tiny.c": source(10)}
LONG = 240.0  # seconds that nothing here takes on the busiest machine
# torch takes seconds to import, in each builder: a package whose build() asks nothing of it is built without. This is what
# a worker itself asks of it, and that there is no Triton.
LIGHT = {
    "torch.py": """
from types import SimpleNamespace as Names
__version__, version = "0", Names(cuda=None)
backends = Names(cudnn=Names(version=lambda: None), cpu=Names(get_cpu_capability=lambda: "none"))
device, get_num_threads, Tensor = str, lambda: 1, type("Tensor", (), {})
float64, float32, float16, bfloat16 = "float64", "float32", "float16", "bfloat16"
""",
    "triton.py": "raise ImportError\n",
    "light.py": """
import runpy, sys
sys.path.insert(0, __file__.rpartition("/")[0])
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
""",
}
CELL = Cell(id="tiny/n=4096", workload="tiny", kernel="tiny", suite="tiny", params={"n": 4096})


def light(folder: Path) -> Path:
    """The script that starts the worker named after it without torch."""
    folder.mkdir()
    for name, text in LIGHT.items():
        (folder / name).write_text(text)
    return folder / "light.py"


class Lines(View):
    """Collects the builders' output."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(quiet=True)
        self._lines = lines

    def build_line(self, job: str, line: str) -> None:
        self._lines.append(f"[{job}] {line}")


class Shop:
    """A worker factory, and trees that are not git's. Its builders import torch, or else something as light as LIGHT."""

    def __init__(self, folder: Path, torch: bool = False) -> None:
        self.folder = folder
        self.cells = (CELL,) if torch else ()
        self.lines: list[str] = []
        for name in ("cache", "logs", "scratch"):
            (folder / name).mkdir()
        (folder / "tiny.py").write_text(WORKLOAD)
        worker = (sys.executable, "-P", str(install_bundle(folder / "cache")))
        if not torch:
            worker = (*worker[:2], str(light(folder / "light")), worker[2])
        env, _ = environment.clean(os.environ, "user")
        self.shop = WorkerFactory(
            cache=folder / "cache", logs=folder / "logs", scratch=folder / "scratch",
            workers=dict.fromkeys(("base", "target"), worker), env=env, device="cpu", forbidden=(),
            workloads={"tiny": str(folder / "tiny.py")},
            toolchain={"base": {"torch": "1"}, "target": {"torch": "1"}}, timeout=LONG, build_timeout=LONG,
        )  # fmt: skip

    def tree(self, name: str, files: Mapping[str, str]) -> Checkout:
        for path, text in files.items():
            place = self.folder / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        id = "target" if "target" in name else "base"
        side = Side(id=id, spec=name, kind="commit", commit="0" * 40, tree="0" * 40, label=name)
        return Checkout(side=side, path=str(self.folder / name))

    def build(
        self, tree: Checkout, package: str = "tiny", *, rebuild: bool = False, cells: tuple[Cell, ...] | None = None
    ) -> Build:
        """Return the result. With torch it also calls the cell."""
        job = Job(tree, Package(name=package), self.cells if cells is None else cells)
        (made,) = build_packages(self.shop, [job], Lines(self.lines), gpu=False, rebuild=rebuild)
        return made

    def identical(self, builds: list[Build], package: Package) -> bool:
        return identical(builds, {b.side: package for b in builds}, self.shop.toolchain)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def torch_shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, torch=True)


def test_a_build_is_made_once_for_the_same_content_wherever_it_lies(torch_shop: Shop) -> None:
    first = torch_shop.build(torch_shop.tree("base", TINY))
    again = torch_shop.build(torch_shop.tree("elsewhere/target", TINY))
    assert first.failure is None
    assert not first.cached
    assert again.cached
    assert not any("built in" in line for line in torch_shop.lines), "the seconds are of another run"
    assert (again.key, again.path) == (first.key, first.path)
    assert sum("$ cc" in line for line in torch_shop.lines) == 1
    assert {a.kind for a in first.artefacts} == {"module", "object"}
    assert torch_shop.identical([first, msgspec.structs.replace(again, side="target")], Package(name="tiny"))
    rebuilt = torch_shop.build(torch_shop.tree("base", TINY), rebuild=True)
    assert not rebuilt.cached
    assert rebuilt.path != first.path  # users of the first build keep it
    assert Path(first.path).exists()


def test_builds_are_made_in_forks_of_one_server_at_the_same_time(torch_shop: Shop) -> None:
    """Which need not import torch; a package with an environment of its own is built in a fresh process."""
    code = "import os\nfrom pathlib import Path\ndef build(*, verbose):\n    print('parent', os.getppid())\n"
    names = [f"base-{number}" for number in range(4)]
    jobs = [
        Job(
            torch_shop.tree(name, {f"kernels/{name}.py": f"{code}    print('built', {name!r})\n"}),
            Package(name=name),
            (),
        )
        for name in names
    ]
    apart = dataclasses.replace(jobs[0], package=Package(name="base-0", env={"MY": "1"}))
    env = environment.worker(torch_shop.shop.env, torch_shop.folder / "caches", "cpu", {})
    servers = ForkServers(env, torch_shop.folder, torch_shop.folder / "forks.log")
    shop = dataclasses.replace(torch_shop.shop, forks=servers)
    try:
        builds = build_packages(shop, [*jobs, apart], Lines(torch_shop.lines), gpu=False)
    finally:
        servers.close()
    assert [build.failure for build in builds] == [None] * 5
    for name, build in zip(names, builds, strict=False):
        assert f"built {name}" in (shop.logs / build.log).read_text()
    parents = Counter(line.split()[-1] for line in torch_shop.lines if " parent " in line)
    assert sorted(parents.values()) == [1, 4], "all but that with an environment of its own"
    assert parents[str(os.getpid())] == 1


# Slower, but its build puts base's sources in the place of its own.
REWRITES = """
    here = Path(__file__).with_name("tiny.c")
    here.write_text(here.read_text().replace("REPEAT 20", "REPEAT 10"))
    Path(__file__).write_text(Path(__file__).read_text().partition("    here")[0] + "    pass\\n")
"""


@pytest.mark.parametrize("untrusted", [False, True])
def test_what_was_checked_out_decides_what_is_identical(shop: Shop, untrusted: bool) -> None:
    honest = "from pathlib import Path\ndef build(*, verbose):\n"
    files = {"kernels/tiny/__init__.py": f"{honest}    pass\n", "kernels/tiny/tiny.c": source(10)}
    other = {"kernels/tiny/__init__.py": honest + REWRITES.lstrip("\n"), "kernels/tiny/tiny.c": source(20)}
    trees = [shop.tree("base", files), shop.tree("target", other)]
    jobs = [Job(tree, Package(name="tiny"), ()) for tree in trees]
    base, target = build_packages(shop.shop, jobs, Lines(shop.lines), gpu=False, untrusted=untrusted)
    assert not shop.identical([base, target], Package(name="tiny"))
    assert base.failure is None
    if untrusted:
        assert target.failure.reason == "the build changed its own sources: kernels/tiny/__init__.py"
    else:
        assert target.failure is None
        assert [Path(b.path, "src/kernels/tiny/tiny.c").read_text() for b in (base, target)] == [source(10)] * 2


def test_a_build_may_make_those_sources_again_that_bases_build_makes_again(shop: Shop) -> None:
    again = (
        "from pathlib import Path\ndef build(*, verbose):\n    Path(__file__).with_name('v.py').write_text('made')\n"
    )
    trees = [shop.tree(n, {"kernels/tiny/__init__.py": again, "kernels/tiny/v.py": n}) for n in ("base", "target")]
    jobs = [Job(tree, Package(name="tiny"), ()) for tree in trees]
    made = build_packages(shop.shop, jobs, Lines(shop.lines), gpu=False, untrusted=True)
    assert [one.failure for one in made] == [None, None]


def test_a_failed_build_names_its_first_error_line(shop: Shop) -> None:
    broken = {**TINY, "kernels/tiny/tiny.c": "void twice(int x) { return y; }\n"}
    made = shop.build(shop.tree("target", broken))
    assert made.failure.status == "build_failed"
    assert "error:" in made.failure.reason
    assert "'y' undeclared" in made.failure.reason.replace("‘", "'").replace("’", "'")
    assert "error" in (shop.folder / "logs" / made.failure.log).read_text()
    assert not list((shop.folder / "cache" / "builds" / made.key).glob("[0-9]*")), "a failed build leaves nothing"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("import nothing_of_that_name\n", "build_failed", f"named 'nothing_of_that_name' ({sys.executable} lacks it)"),
        ("syntax error here\n", "build_failed", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)\n", "build_failed", "exit(3)"),
        ("import os\ndef build(*, verbose): os._exit(7)\n", "build_failed", "exit code 7"),
        ("import os, signal\ndef build(*, verbose): os.kill(os.getpid(), signal.SIGSEGV)\n", "build_failed", "SIGSEGV"),
        ("import time\ndef build(*, verbose): time.sleep(600)\n", "build_failed", "still building after 2 s"),
    ],
)
def test_whatever_a_build_does_is_a_record(shop: Shop, body: str, status: str, says: str) -> None:
    shop.shop = dataclasses.replace(shop.shop, build_timeout=2 if "sleep" in body else LONG)
    made = shop.build(shop.tree("base", {"kernels/tiny/__init__.py": body}))
    assert made.failure.status == status
    assert says in made.failure.reason


def test_two_at_once_build_once(shop: Shop) -> None:
    trees = [shop.tree("base", TINY), shop.tree("target", TINY)]
    threads = [threading.Thread(target=shop.build, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum("$ cc" in line for line in shop.lines) == 1


UNROLLED = LOADED.replace('print("$"', 'print("unrolled", os.environ.get("RMS_UNROLL")); print("$"')


@pytest.mark.slow
def test_a_variable_that_build_reads_makes_another_build(shop: Shop) -> None:
    """A file of any name counts: only the package knows what its build() reads."""
    tree = shop.tree("base", {**TINY, "kernels/tiny/__init__.py": UNROLLED})

    def made(**env: str) -> Build:
        shop.shop = dataclasses.replace(shop.shop, env={**plain, **env})
        return shop.build(tree)

    plain = dict(shop.shop.env)
    first, other = made(RMS_UNROLL="4"), made(RMS_UNROLL="8")
    assert not other.cached
    assert first.key != other.key
    assert "unrolled 8" in (shop.folder / "logs" / other.log).read_text()
    noise = {
        "PWD": "/x", "SHLVL": "7", "_": "/bin/x", "TERM": "vt100", "SSH_TTY": "/dev/pts/9", "ABPROF_THRESHOLD": "3",
    }  # fmt: skip
    again = made(RMS_UNROLL="4", PATH=f"{plain['PATH']}:{plain['PATH'].split(':')[0]}", **noise)
    assert (again.cached, again.key) == (True, first.key), "another terminal"
    shop.shop = dataclasses.replace(shop.shop, named=frozenset({"TERM"}))
    assert made(RMS_UNROLL="4", TERM="vt100").key != made(RMS_UNROLL="4", TERM="xterm").key


EXTENSION = """
import os
from pathlib import Path
from torch.utils.cpp_extension import load

def _load():
    return load(name="tinyext", sources=[str(Path(__file__).with_name("ext.cpp"))],
                build_directory=os.environ["ABPROF_BUILD_DIR"], verbose=True)

def build(*, verbose):
    _load()

def double(x):
    return _load().twice(x)
"""
EXT = (
    "#include <pybind11/pybind11.h>\nnamespace py = pybind11;\n"  # of torch's headers the leanest: it is about the builder
    "py::object twice(py::object x) { return x * py::int_(2); }\n"
    'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }\n'
)


@pytest.mark.slow
def test_torchs_extension_builder_builds_once_per_content_though_the_path_changes(torch_shop: Shop) -> None:
    torch_shop.shop = dataclasses.replace(torch_shop.shop, build_timeout=2 * LONG)  # 20 s on a quiet machine
    files = {"kernels/tiny/__init__.py": EXTENSION, "kernels/tiny/ext.cpp": EXT}
    first = torch_shop.build(torch_shop.tree("base", files))
    assert first.failure is None, first.failure
    log = (torch_shop.folder / "logs" / first.log).read_text()
    assert "-std=c++" in log, "the compiler's command is in the log"
    assert log.count("ext.o.d") == 1
    again = torch_shop.build(torch_shop.tree("elsewhere/target", files))
    assert again.cached


SIBLING = {
    "kernels/tiny/__init__.py": "def double(x):\n    from ..common.helper import factor\n    return x * factor\n",
    "kernels/common/__init__.py": "",
    "kernels/common/helper.py": "factor = 2\n",
    "kernels/other/__init__.py": "def unrelated(): ...\n",
    "kernels/tiny/table.txt": "128\n",
}


@pytest.mark.parametrize(
    ("path", "text", "same"),
    [
        ("kernels/common/helper.py", "factor = 1 + 1\n", False),  # imported lazily, from outside the package's folder
        ("kernels/tiny/table.txt", "64\n", False),  # may be read at run time
        (
            "kernels/other/__init__.py",
            "def unrelated(): return 1\n",
            True,
        ),  # another package, which this one never names
        ("kernels/tiny/NOTES.md", "About.\n", True),
    ],
)
def test_identical_code_is_all_that_the_package_can_reach(shop: Shop, path: str, text: str, same: bool) -> None:
    base = shop.build(shop.tree("base", SIBLING), cells=())
    target = shop.build(shop.tree("target", {**SIBLING, path: text}), cells=())
    assert base.key != target.key
    assert shop.identical([base, target], Package(name="tiny")) is same


TAMPERED = {
    "an object": "out/tiny.so", "an object and its hash": "out/tiny.so", "an object's mode": "out/tiny.so",
    "a source": "src/kernels/tiny/tiny.c", "a link in a source's place": "src/kernels/tiny/tiny.c",
    "compiled": "src/kernels/tiny/__pycache__/__init__.cpython-312.pyc",
    "compiled in out/": "out/__pycache__/x.cpython-312.pyc", "a module": "src/kernels/torch.py",
    "what an autotuner chose": "out/tuned.json", "a compiled kernel": "caches/triton/k.cubin",
}  # fmt: skip
TUNED = LOADED.replace(
    'print("$"', 'cubin = out.parent / "caches/triton/k.cubin"; cubin.parent.mkdir(); cubin.touch(); print("$"'
)


@pytest.mark.parametrize("what", TAMPERED)
def test_a_cached_build_that_was_changed_is_made_again(shop: Shop, what: str) -> None:
    """Also by code that knows where the hashes are: an earlier run's worker may write all that its user may."""
    files = {**TINY, "kernels/tiny/__init__.py": TUNED}
    made = shop.build(shop.tree("base", files))
    path = Path(made.path) / TAMPERED[what]
    path.parent.mkdir(exist_ok=True)
    before = path.read_bytes() if path.exists() else b""
    if "link" in what:
        path.rename(path.with_name("moved.log"))
        path.symlink_to("moved.log")
    elif "mode" in what:
        path.chmod(0o777)
    else:
        path.write_bytes(before + b"\n")
    if "hash" in what:
        record = path.parents[2] / "published.json"
        old, new = (hashlib.sha256(text).hexdigest().encode() for text in (before, path.read_bytes()))
        size = str(len(before)).encode(), str(len(before) + 1).encode()
        record.write_bytes(record.read_bytes().replace(size[0] + b" " + old, size[1] + b" " + new).replace(old, new))
    again = shop.build(shop.tree("base", files))
    assert not again.cached
    assert again.path != made.path
    (said,) = [line for line in shop.lines if "made again" in line]
    assert ("published.json" if "hash" in what else TAMPERED[what]) in said


def test_locks_logs_and_what_was_compiled_later_make_no_build_again(shop: Shop) -> None:
    made = shop.build(shop.tree("base", TINY))
    for name in ("out/lock", "out/.ninja_log", "out/tuning.log", "caches/triton/a/k.cubin", "caches/triton/a/k.json"):
        (Path(made.path) / name).parent.mkdir(parents=True, exist_ok=True)
        (Path(made.path) / name).write_text("later")
    assert shop.build(shop.tree("base", TINY)).cached
    shop.shop = dataclasses.replace(shop.shop, untrusted=True)
    assert shop.build(shop.tree("base", TINY)).cached, "base's code is trusted"


@pytest.mark.parametrize("name", ["caches/triton/a/k.cubin", "caches/a.log", "out/lock"])
def test_hostile_code_shares_no_build_and_adds_no_file_to_its_own(shop: Shop, name: str) -> None:
    base = shop.build(shop.tree("base", TINY))
    shop.shop = dataclasses.replace(shop.shop, untrusted=True)
    target = shop.build(shop.tree("target", TINY))
    assert not target.cached
    assert target.key == f"{base.key}-target"
    assert shop.build(shop.tree("target", TINY)).cached
    (Path(target.path) / name).parent.mkdir(parents=True, exist_ok=True)
    (Path(target.path) / name).write_text("later")
    assert not shop.build(shop.tree("target", TINY)).cached
    assert any(f"{name} is not as the cached build left it" in line for line in shop.lines)


def test_what_comes_from_elsewhere_is_never_identical_code_and_decides_a_rebuild(torch_shop: Shop) -> None:
    """The same sources on both sides, and a module from a folder that they put on the path."""
    away = torch_shop.folder / "away"
    away.mkdir()
    (away / "leakmod.py").write_text("N = 1\n")
    leaks = {
        **TINY,
        "kernels/tiny/__init__.py": f"{LOADED}\nimport sys; sys.path.insert(0, {str(away)!r}); import leakmod\n",
    }
    base, target = torch_shop.build(torch_shop.tree("base", leaks)), torch_shop.build(torch_shop.tree("target", leaks))
    assert target.cached
    assert f"module leakmod was loaded from {away / 'leakmod.py'}" in target.unproved
    assert not torch_shop.identical([base, target], Package(name="tiny"))
    (away / "leakmod.py").write_text("N = 2\n")
    assert not torch_shop.build(torch_shop.tree("base", leaks)).cached
