"""Existing benchmarks as workloads: one line in a workload file (docs/ADOPT.md).

    from abprof.adapters import perf_report
    WORKLOAD = perf_report("benchmarks/bench_softmax.py:benchmark", kernel="mylib")

The benchmark's file comes from one place for all sides, as workloads do, and the package that it imports from each side.
The call that it would have timed is intercepted and timed by abprof. There is no reference: outputs are only compared
between the sides. triton, pytest and tritonbench are imported when a benchmark needs them.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import functools
import importlib
import importlib.util
import inspect
import io
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from abprof.worker.api import Op, Unsupported
from abprof.worker.wrapped import Caught, StandIns, Wrapped, as_now, caller, caught, importing, plain, seed

__all__ = ["perf_report", "pytest_benchmark", "tritonbench"]


def _cleared(tensors: Sequence[Any]) -> Callable[[], None] | None:
    """A reset() that clears these tensors' gradients; None without tensors."""

    def reset() -> None:
        for tensor in tensors:
            tensor.grad = None

    return reset if tensors else None


# ---------------------------------------------------------------- triton's perf_report

# The x and line values of a marked function become axes, its call of do_bench is timed.

_TIMERS = ("do_bench", "do_bench_cudagraph")
_PLOT = "plot"  # the axis of a function under several Benchmarks


def perf_report(where: str, *, kernel: str) -> Wrapped:
    """WORKLOAD = perf_report("benchmarks/bench_softmax.py:benchmark", kernel="mylib")."""
    return _Report(where, kernel, caller())


class _Report(Wrapped):
    @property
    def PRESETS(self) -> dict[str, Any]:  # noqa: N802 - the workload's contract
        """`default` and `full` are all of its points, `smoke` the first x of each line."""
        found = _benchmarks(self._mark(self.described()))
        every = _report_axes(found, first=False)
        return {"smoke": _report_axes(found, first=True), "default": every, "full": every}

    def operation(self, case: Mapping[str, Any], device: str) -> Op:  # noqa: ARG002
        """The first call that the function passes to `triton.testing.do_bench`."""
        mark = self._mark(self.module())
        arguments = _arguments(_benchmarks(mark), case)
        with _intercepted():
            return caught(lambda: mark.fn(**arguments), f"{self.name} did not call triton.testing.do_bench")

    def _mark(self, module: Any) -> Any:
        """The marked function. Raises ValueError for something else."""
        names = [self.name] if self.name else [n for n, v in vars(module).items() if hasattr(v, "benchmarks")]
        if len(names) != 1:
            raise ValueError(
                f"{self.file} has {len(names)} functions under perf_report: give the name, {self.file}:NAME"
            )
        mark = getattr(module, names[0], None)
        if not (hasattr(mark, "fn") and hasattr(mark, "benchmarks")):
            raise ValueError(f"{self.file} has no {names[0]} under triton.testing.perf_report")
        self.name = names[0]
        return mark


def _benchmarks(mark: Any) -> list[Any]:
    return list(mark.benchmarks) if isinstance(mark.benchmarks, list | tuple) else [mark.benchmarks]


def _points(benchmark: Any) -> list[tuple[Any, ...]]:
    """Its x values, as triton reads them: a single one stands for all of its names."""
    count = len(list(benchmark.x_names))
    return [tuple(x) if isinstance(x, list | tuple) else (x,) * count for x in benchmark.x_vals]


def _report_axes(benchmarks: Sequence[Any], *, first: bool) -> dict[Any, Any]:
    """A preset. Several Benchmarks make one axis more, zipped with theirs. Raises ValueError if their names differ."""
    if len(benchmarks) == 1:
        (one,) = benchmarks
        points = [tuple(map(plain, point)) for point in _points(one)[: 1 if first else None]]
        return {tuple(one.x_names): points, one.line_arg: [plain(line) for line in one.line_vals]}
    names = {(*one.x_names, one.line_arg) for one in benchmarks}
    if len(names) > 1:
        raise ValueError(f"its Benchmarks have different arguments: {' and '.join(map(str, sorted(names)))}")
    return {
        (_PLOT, *names.pop()): [
            (plain(one.plot_name), *map(plain, point), plain(line))
            for one in benchmarks
            for point in _points(one)[: 1 if first else None]
            for line in one.line_vals
        ]
    }


def _arguments(benchmarks: Sequence[Any], case: Mapping[str, Any]) -> dict[str, Any]:
    """The function's arguments in a case: the values themselves, found by their names."""
    one = next(each for each in benchmarks if _PLOT not in case or plain(each.plot_name) == case[_PLOT])
    known = {one.line_arg: {plain(line): line for line in one.line_vals}}
    for point in _points(one):
        for name, value in zip(one.x_names, point, strict=True):
            known.setdefault(name, {})[plain(value)] = value
    given = {name: values.get(case[name], case[name]) for name, values in known.items()}
    return {**given, **one.args}


@contextlib.contextmanager
def _intercepted() -> Iterator[None]:
    """While the block runs, do_bench raises Caught under every name it was imported as; triton's autotuner and torch's
    compiler, which time with it too, get the real one."""
    import triton.testing

    undo: list[tuple[dict[str, Any], str, Any]] = []
    timers = [getattr(triton.testing, name) for name in _TIMERS if hasattr(triton.testing, name)]
    catching = {id(real): _catching(real) for real in timers}
    for module in list(sys.modules.values()):
        space = getattr(module, "__dict__", {})
        for name, value in list(space.items()):
            if id(value) in catching:
                undo.append((space, name, value))
                space[name] = catching[id(value)]
    try:
        yield
    finally:
        for space, name, real in undo:
            space[name] = real


def _catching(real: Callable[..., Any]) -> Callable[..., Any]:
    def do_bench(fn: Callable[[], Any], *args: Any, **options: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if caller.partition(".")[0] in {"triton", "torch"}:
            return real(fn, *args, **options)
        cleared = list(inspect.signature(real).bind(fn, *args, **options).arguments.get("grad_to_none") or ())

        raise Caught(Op(as_now(fn), _cleared(cleared)))

    return do_bench


# ---------------------------------------------------------------- a pytest-benchmark suite

# Each test is a case, and what it passes to its `benchmark` fixture is timed. pytest runs one test in this process with a
# fixture of that name which intercepts the callable and ends the test. Fixtures are torn down before the callable is
# timed: what they close or undo is gone then.

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


# ---------------------------------------------------------------- operators in tritonbench's style

# An operator's inputs and its registered benchmark methods become axes.

# tritonbench need not be installed: this module provides the names of `tritonbench.utils.triton_op` that an operator
# needs, which mark instead of register. Anything else of tritonbench is the installed one's, or a stand-in.

_STYLE = "tritonbench.utils.triton_op"
_MARK = "_abprof_registered"
_INPUT, _X, _BACKEND = "input", "x", "backend"
_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def tritonbench(
    where: str, *, kernel: str, mode: str = "fwd", precision: str = "bypass", args: Sequence[str] = ()
) -> Wrapped:
    """WORKLOAD = tritonbench("operators/softmax/operator.py:Operator", kernel="mylib").

    `mode` is fwd, bwd, fwd_bwd or fwd_no_grad; `precision` and `args` are the operator's command-line options.
    """
    return _Operator(where, kernel, caller(), {"mode": Mode(mode).value, "precision": precision}, args)


class _Operator(Wrapped):
    def __init__(self, where: str, kernel: str, workload: str, options: Mapping[str, str], args: Sequence[str]) -> None:
        super().__init__(where, kernel, workload)
        self.name = self.name or "Operator"
        self._options, self._args = dict(options), list(args)
        _provide_style()

    @property
    def PRESETS(self) -> dict[str, Any]:  # noqa: N802 - the workload's contract
        """`default` and `full` are all inputs with all registered methods, `smoke` the first input."""
        every = functools.cache(self._axes)
        return {
            "smoke": lambda kind: {
                key: values[:1] if key != _BACKEND else values for key, values in every(kind).items()
            },
            "default": every,
            "full": every,
        }

    def _axes(self, kind: str) -> dict[Any, Any]:
        """Raises ValueError for a class without a registered method or without inputs."""
        made = self._made(self.described(), kind)
        # Methods in the order in which they are written, a base class's first.
        methods = {k: v for one in reversed(type(made).__mro__) for k, v in vars(one).items() if hasattr(v, _MARK)}
        names = [name for name, method in methods.items() if getattr(method, _MARK)]
        seed(0)
        inputs = []
        for number, given in enumerate(made.get_input_iter()):
            try:
                inputs.append((number, str(made.get_x_val(given))))
            except NotImplementedError:
                inputs.append((number, str(number)))
        if not names or not inputs:
            lacking = "method registered as a benchmark" if not names else "input from get_input_iter()"
            raise ValueError(f"{self.name} of {self.file} has no {lacking}")
        return {(_INPUT, _X): inputs, _BACKEND: names}

    def _made(self, module: types.ModuleType, device: str) -> Any:
        if not isinstance(getattr(module, self.name, None), type):
            raise ValueError(f"{self.file} has no class {self.name}")
        return getattr(module, self.name)(_Options(device=device, **self._options), list(self._args))

    def operation(self, case: Mapping[str, Any], device: str) -> Op:
        """The registered method's call on the input, in the operator's mode."""
        made = self._made(self.module(), device)
        inputs = _on(next(itertools.islice(made.get_input_iter(), int(case[_INPUT]), None)), device)
        method = getattr(made, str(case[_BACKEND]))
        forward = method(**inputs) if isinstance(inputs, dict) else method(*inputs)
        if not callable(forward):
            raise TypeError(f"{case[_BACKEND]} did not return a callable")
        cleared = list(made.get_grad_to_none(inputs) or ())

        if made.mode is Mode.FWD:
            return Op(as_now(forward))
        if made.mode is Mode.FWD_NO_GRAD:
            with torch.no_grad():
                return Op(as_now(forward))
        backward = made.get_bwd_fn(forward)
        call = backward if made.mode is Mode.BWD else lambda: (forward(), backward())[0]
        return Op(call, _cleared(cleared))


class _Options(argparse.Namespace):
    """tritonbench's own options: None unless given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _on(values: Any, device: str) -> Any:
    if isinstance(values, torch.Tensor):
        moved = values.to(device)
        return moved if moved is values else moved.detach().requires_grad_(values.requires_grad)
    if isinstance(values, dict):
        return {name: _on(value, device) for name, value in values.items()}
    return type(values)(_on(value, device) for value in values) if type(values) in {list, tuple} else values


# ---------------------------------------------------------------- the names that operators import


class Mode(enum.Enum):
    """What of an operator is timed."""

    FWD = "fwd"
    BWD = "bwd"
    FWD_BWD = "fwd_bwd"
    FWD_NO_GRAD = "fwd_no_grad"


class BenchmarkOperator:
    """The base class of operators: device, dtype and mode, and methods to override."""

    DEFAULT_PRECISION = "bypass"

    def __init__(self, tb_args: argparse.Namespace, extra_args: Sequence[str] | None = None) -> None:
        self.tb_args, self.extra_args = tb_args, list(extra_args or ())
        self.device, self.mode = tb_args.device, Mode(tb_args.mode)
        self.dtype = _DTYPES.get(self.DEFAULT_PRECISION if tb_args.precision == "bypass" else tb_args.precision)

    def get_input_iter(self) -> Iterator[Any]:
        raise NotImplementedError("the operator has no get_input_iter()")

    def get_bwd_fn(self, fwd_fn: Callable[[], Any]) -> Callable[[], Any]:
        raise NotImplementedError("the operator has no get_bwd_fn()")

    def get_grad_to_none(self, args: Any) -> Any:
        """Tensors whose gradients are cleared before each call."""

    def get_x_val(self, example_inputs: Any) -> Any:
        raise NotImplementedError


def register_benchmark(baseline: bool = False, enabled: bool = True, **_options: Any) -> Callable[[Any], Any]:
    """Marks a method of an operator."""
    del baseline

    def mark(method: Any) -> Any:
        setattr(method, _MARK, bool(enabled))
        return method

    return mark


def _unmarked(*args: Any, **options: Any) -> Any:
    """register_metric and register_x_val: the method as it is."""
    return args[0] if len(args) == 1 and callable(args[0]) and not options else lambda method: method


def _provide_style() -> None:
    """Make `tritonbench.utils.triton_op` importable as this module's names, and stand in for the rest if it is missing."""
    if _STYLE in sys.modules:
        return
    if importlib.util.find_spec("tritonbench") is None:
        sys.meta_path.append(StandIns("tritonbench"))
    style = types.ModuleType(_STYLE)
    style.__dict__.update(
        Mode=Mode,
        BenchmarkOperator=BenchmarkOperator,
        BenchmarkOperatorMetrics=argparse.Namespace,
        register_benchmark=register_benchmark,
        register_metric=_unmarked,
        register_x_val=_unmarked,
    )
    sys.modules[_STYLE] = style
