"""A repository whose kernels leave a line for each launch, and the ncu that reads them (fake_ncu.py)."""

import sys
from pathlib import Path

from tests.gitrepo import GitRepo
from tests.tinyrepo import WORKLOAD, Done, abprof, tiny_repo

PACKAGE = """
import json, os

calls = 0

def launch(kernel, bytes, **more):
    if "FAKE_NCU_LAUNCHES" in os.environ:
        with open(os.environ["FAKE_NCU_LAUNCHES"], "a") as file:
            print(json.dumps({"kernel": kernel, "bytes": bytes, "call": calls, **more}), file=file)

def double(x):
    global calls
    THE_LAUNCHES
    calls += 1
    return x * 2
"""
ONCE = 'launch("twice_kernel", 8 * x.numel())'
PEERS = """
def torch_peer(case, inputs):
    import sys
    kernel = sys.modules["peer_launches"] = __import__("types").ModuleType("peer_launches")
    kernel.calls = 0
    def call():
        import json, os
        if "FAKE_NCU_LAUNCHES" in os.environ:
            with open(os.environ["FAKE_NCU_LAUNCHES"], "a") as file:
                print(json.dumps({"kernel": "at::mul", "bytes": 80, "call": kernel.calls}), file=file)
        kernel.calls += 1
        return inputs * 2
    return Op(call)

PEERS = {"torch": torch_peer}
"""


def package(launches: str) -> str:
    """The kernel package whose call makes these launches, a statement."""
    return PACKAGE.replace("THE_LAUNCHES", launches.replace("\n", "\n    "))


def launching_repo(path: Path, base: str = ONCE, *, peers: bool = False, **branches: str) -> GitRepo:
    """Make branch main, and one for each name, with the launches of their calls."""
    repo = tiny_repo(path, 1)
    files = {"kernels/tiny/__init__.py": package(base), "workloads/tiny.py": WORKLOAD + (PEERS if peers else "")}
    repo.commit("launches", files)
    for name, launches in branches.items():
        repo.git("checkout", "-q", "-b", name, "main")
        repo.commit(name, {"kernels/tiny/__init__.py": package(launches)})
    repo.git("checkout", "-q", "main")
    return repo


def path_with_ncu(folder: Path) -> str:
    """A folder with `ncu` in it."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "ncu"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.ncu.fake_ncu import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    script.chmod(0o755)
    return str(folder)


def with_ncu(*words: str, repo: GitRepo, home: Path, **env: str) -> Done:
    """Run abprof on a CPU with the simulated ncu on PATH and no other ncu."""
    path = f"{path_with_ncu(home / 'bin')}:{Path(sys.executable).parent}:/usr/bin:/bin"
    return abprof(*words, cwd=repo.path, home=home, **{"PATH": path, "CUDA_HOME": "", **env})
