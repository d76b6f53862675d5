"""A pytest-benchmark suite: each test is a case, and what it hands to its `benchmark` fixture is timed.

pytest runs one test in this process with a fixture of that name which catches the callable and ends the test. Fixtures are
taken down before the callable is timed: what they close or undo is not there then.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from abprof.worker.adapters.caught import Caught, as_now, caught
from abprof.worker.adapters.files import importing
from abprof.worker.adapters.wrapped import Wrapped, caller
from abprof.worker.api import Op, Unsupported

_AXIS = "test"
# No configuration, cache or plug-in of the same name: nothing is written beside the tests, and the fixture is ours.
_QUIET = (
    "-q",
    "-c",
    "/dev/null",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:benchmark",
    "-p",
    "no:xdist",
    "--import-mode=importlib",
)


def pytest_benchmark(where: str, *, kernel: str) -> Wrapped:
    """WORKLOAD = pytest_benchmark("tests/test_speed.py", kernel="mylib"); a folder's tests are a suite too."""
    return _Suite(where, kernel, caller())


class _Suite(Wrapped):
    @property
    def PRESETS(self) -> dict[str, Any]:  # noqa: N802 - the workload's contract
        """Every preset is all tests that ask for the fixture. Raises ValueError where none does."""
        with importing(self.path, self.KERNEL.partition(".")[0]):
            tests = _collected(self.path)
        if not tests:
            raise ValueError(f"{self.file} has no test that asks for the fixture `benchmark`")
        return {preset: {_AXIS: tests} for preset in ("smoke", "default", "full")}

    def operation(self, case: Mapping[str, Any], device: str) -> Op:
        """What the test hands to `benchmark(...)` or `benchmark.pedantic(...)` first."""
        del device
        test = str(case[_AXIS])
        return caught(lambda: _run(self.path, test), f"{test} handed nothing to its benchmark")


# ---------------------------------------------------------------- pytest


def _pytest() -> Any:
    """pytest, of this interpreter. Raises Unsupported where it has none."""
    try:
        return importlib.import_module("pytest")
    except ImportError:
        raise Unsupported("pytest is not installed for this interpreter") from None


def _collected(path: Path) -> list[str]:
    """The tests that ask for the fixture, by their ids below `path`. Raises ValueError where pytest cannot read them."""
    finder = _Finder()
    code, said = _main(path, [str(path), "--collect-only"], finder)
    if code not in (0, 5):  # 5: no test at all
        raise ValueError(f"pytest cannot collect {path.name}: {said}")
    return finder.tests


def _run(path: Path, test: str) -> None:
    """Run one test. Raises Caught, what the test skipped for as Unsupported, and ValueError where it failed."""
    file, _, name = test.partition("::")
    node = f"{path / file if path.is_dir() else path}::{name}"
    runner = _Runner()
    code, said = _main(path, [node], runner.plugin)
    if runner.found is not None:
        raise Caught(runner.found)
    if runner.skipped:
        raise Unsupported(runner.skipped)
    if code:
        raise ValueError(f"{test} failed before it handed anything to its benchmark: {runner.failed or said}")


def _main(path: Path, argv: list[str], plugin: object) -> tuple[int, str]:
    """The exit code, and the last line that pytest printed; all of it goes to the worker's log."""
    out = io.StringIO()
    root = path if path.is_dir() else path.parent
    try:
        with contextlib.redirect_stdout(out):
            code = int(_pytest().main([*_QUIET, f"--rootdir={root}", *argv], plugins=[plugin]))
    finally:
        print(out.getvalue(), flush=True)
    lines = [line for line in out.getvalue().splitlines() if line.startswith("E ")] or out.getvalue().splitlines()
    return code, lines[-1].removeprefix("E ").strip() if lines else ""


class _Finder:
    """A plug-in that notes the tests."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Ids as `FILE::NAME`, or what comes after a single file's name."""
        self.tests = [item.nodeid for item in items if "benchmark" in getattr(item, "fixturenames", ())]


class _Runner:
    """Brings the fixture, and keeps what it caught."""

    def __init__(self) -> None:
        self.found: Op | None = None
        self.skipped = self.failed = ""

    @property
    def plugin(self) -> types.ModuleType:
        """A module, because pytest finds no fixture on an object."""
        made, fixture = types.ModuleType("abprof_benchmark"), _Fixture(self)
        made.__dict__["benchmark"] = _pytest().fixture(name="benchmark")(lambda: fixture)
        made.__dict__["pytest_runtest_logreport"] = self.pytest_runtest_logreport
        return made

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Why there was nothing to catch."""
        if report.skipped:
            self.skipped = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        elif report.failed and self.found is None and not self.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed = " ".join(str(crash.message if crash else report.longrepr).split())[:300]


class _Fixture:
    """What a test is given as `benchmark`."""

    def __init__(self, runner: _Runner) -> None:
        self._runner = runner
        self.extra_info: dict[str, Any] = {}
        self.group = self.name = None
        self.disabled = self.enabled = False

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Catch it, and end the test."""
        self._caught(Op(as_now(lambda: function(*args, **kwargs))))

    def pedantic(
        self, target: Callable[..., Any], args: Any = (), kwargs: Any = None, setup: Any = None, **rounds: Any
    ) -> Any:
        """The same; its `setup`, which may make the arguments anew, goes untimed before every call."""
        del rounds
        given: dict[str, Any] = {"args": tuple(args), "kwargs": dict(kwargs or {})}

        def reset() -> None:
            made = setup()
            if made is not None:
                given.update(args=tuple(made[0]), kwargs=dict(made[1]))

        if setup is not None:
            reset()
        self._caught(
            Op(as_now(lambda: target(*given["args"], **given["kwargs"])), reset if setup is not None else None)
        )

    def _caught(self, op: Op) -> None:
        self._runner.found = op
        raise Caught(op)
