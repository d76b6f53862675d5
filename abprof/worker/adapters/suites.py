"""A pytest-benchmark suite: each test is a case, and what it passes to its `benchmark` fixture is timed.

pytest runs one test in this process with a fixture of that name which intercepts the callable and ends the test. Fixtures
are torn down before the callable is timed: what they close or undo is gone then.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from abprof.worker.adapters.base import Caught, Wrapped, as_now, caller, caught, importing
from abprof.worker.api import Op, Unsupported

_AXIS = "test"
# No configuration, cache or plug-in of the same name: nothing is written beside the tests, and the fixture is ours.
_QUIET = [
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
]


def pytest_benchmark(where: str, *, kernel: str) -> Wrapped:
    """WORKLOAD = pytest_benchmark("tests/test_speed.py", kernel="mylib"); `where` may be a folder of tests."""
    return _Suite(where, kernel, caller())


class _Suite(Wrapped):
    @property
    def PRESETS(self) -> dict[str, Any]:  # noqa: N802 - the workload's contract
        """Every preset is all tests that use the fixture. Raises ValueError if there is none, or pytest fails."""
        finder = _Finder()
        with importing(self.path, self.package):
            code, last = _run(self.path, [str(self.path), "--collect-only"], finder)
        if code not in (0, 5):  # 5: no test at all
            raise ValueError(f"pytest cannot collect {self.path.name}: {last}")
        if not finder.tests:
            raise ValueError(f"{self.file} has no test that uses the fixture `benchmark`")
        return {preset: {_AXIS: finder.tests} for preset in ("smoke", "default", "full")}

    def operation(self, case: Mapping[str, Any], device: str) -> Op:  # noqa: ARG002
        """What the test passes to `benchmark(...)` or `benchmark.pedantic(...)` first."""
        test = str(case[_AXIS])
        return caught(lambda: self._run_test(test), f"{test} passed nothing to its benchmark")

    def _run_test(self, test: str) -> None:
        """Raises Caught, Unsupported if the test was skipped, and ValueError if it failed."""
        file, _, name = test.partition("::")
        fixture = _Fixture()
        node = f"{self.path / file if self.path.is_dir() else self.path}::{name}"
        code, last = _run(self.path, [node], fixture.plugin())
        if fixture.found is not None:
            raise Caught(fixture.found)
        if fixture.skipped:
            raise Unsupported(fixture.skipped)
        if code:
            raise ValueError(f"{test} failed before it passed anything to its benchmark: {fixture.failed or last}")


def _pytest() -> Any:
    """This interpreter's pytest. Raises Unsupported if it has none."""
    try:
        return importlib.import_module("pytest")
    except ImportError:
        raise Unsupported("pytest is not installed for this interpreter") from None


def _run(path: Path, argv: list[str], plugin: object) -> tuple[int, str]:
    """Pytest's exit code and its error, or last line; all of its output goes to the worker's log."""
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
    """A plug-in that collects the tests with the fixture, as FILE::NAME."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        self.tests = [item.nodeid for item in items if "benchmark" in getattr(item, "fixturenames", ())]


class _Fixture:
    """The `benchmark` of a test, and what became of the test."""

    def __init__(self) -> None:
        self.found: Op | None = None
        self.skipped = self.failed = ""
        self.extra_info: dict[str, Any] = {}
        self.group = self.name = None
        self.disabled = self.enabled = False

    def plugin(self) -> types.ModuleType:
        """A module, because pytest finds no fixture on an object."""
        made = types.ModuleType("abprof_benchmark")
        made.__dict__["benchmark"] = _pytest().fixture(name="benchmark")(lambda: self)
        made.__dict__["pytest_runtest_logreport"] = self._report
        return made

    def _report(self, report: Any) -> None:
        if report.skipped:
            self.skipped = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        elif report.failed and self.found is None and not self.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed = " ".join(str(crash.message if crash else report.longrepr).split())[:300]

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Intercept the call, and end the test."""
        self.found = Op(as_now(lambda: function(*args, **kwargs)))
        raise Caught(self.found)

    def pedantic(
        self, target: Callable[..., Any], args: Any = (), kwargs: Any = None, setup: Any = None, **_rounds: Any
    ) -> Any:
        """The same; `setup`, which may make the arguments anew, runs untimed before every call."""
        given: dict[str, Any] = {"args": tuple(args), "kwargs": dict(kwargs or {})}

        def reset() -> None:
            made = setup()
            if made is not None:
                given.update(args=tuple(made[0]), kwargs=dict(made[1]))

        if setup is not None:
            reset()
        call = as_now(lambda: target(*given["args"], **given["kwargs"]))
        self.found = Op(call, reset if setup is not None else None)
        raise Caught(self.found)
