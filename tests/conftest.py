"""For all tests: signals and environment as a terminal has them, and examples that do not depend on the machine."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.github_server import GitHub
from tests.gpus import its_share
from tests.nvml import Nvml
from tests.simulated.lab import Lab
from tests.simulated.planted import NewLab

# A shell script that starts the suite in the background has it ignore ^C, and nohup has it ignore that the terminal went,
# and its children too, which the tests send both to.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# abprof does otherwise where it runs for CI: a test that means that sets it for the process it starts.
if os.environ.pop("CI", None):
    os.environ.setdefault("BROWSER_TESTS", "required")

# With two threads beside another test process, one call of torch takes 2 us or 150 us, as the other thread has a core
# or waits for one. torch reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples wherever and whenever the suite runs, and no clock: how long one took says how busy the machine was.
settings.register_profile(
    "suite", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)


def inherited() -> dict[str, object]:
    """Return the state of this process that its children inherit."""
    heard = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    return {
        "signals": [signal.getsignal(number) for number in heard],
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "limits": [resource.getrlimit(kind) for kind in _LIMITS],
        "folder": Path.cwd(),
    }


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """A test that ignores ^C, say, leaves an abprof that ^C does not end to one that comes an hour later in its process."""
    before, own = inherited(), {"PYTEST_CURRENT_TEST"}
    limits = [resource.getrlimit(kind) for kind in _LIMITS]
    environment = {name: value for name, value in os.environ.items() if name not in own}
    yield
    for name in os.environ.keys() - environment.keys() - own:
        del os.environ[name]  # torch's profiler sets some, for good
    os.environ.update(environment)
    for kind, limit in zip(_LIMITS, limits, strict=True):
        # A CPU's clock, which is made for a worker's process, limits this one to what memory is free in that moment.
        resource.setrlimit(kind, limit)
    assert inherited() == before


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Its share of the GPU for a test that is marked so, and for what its module makes before it: no fixture would come before
    that. Waiting for it is no part of the test's time."""
    if item.get_closest_marker("gpu") is None:
        return (yield)
    with its_share(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A temporary folder that every user may enter, unlike pytest's."""
    top = Path(tempfile.mkdtemp(prefix="abprof-test-"))
    top.chmod(0o777)
    yield top
    subprocess.run(["chmod", "-R", "u+w", str(top)], check=True)
    shutil.rmtree(top)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """Three idle GPUs, all visible."""
    played = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", played)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return played


@pytest.fixture
def new_lab(tmp_path: Path) -> NewLab:
    """new_lab(scenario): a laboratory in a fresh folder."""
    return lambda scenario: Lab(tmp_path, scenario)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    for name in [name for name in os.environ if name.startswith(("GITHUB_", "GH_"))]:
        monkeypatch.delenv(name)
    with GitHub() as made:
        for name, value in {"NO_PROXY": "*", "GITHUB_API_URL": made.url, "GITHUB_TOKEN": "bot-token"}.items():
            monkeypatch.setenv(name, value)
        yield made
