"""Use an existing benchmark as a workload, by one line in a workload file (docs/ADOPT.md).

    from abprof.adapters import perf_report
    WORKLOAD = perf_report("benchmarks/bench_softmax.py:benchmark", kernel="mylib")

Every side runs the same copy of the benchmark's file, and imports its own kernel package. abprof intercepts and times
the call that the benchmark would time. There is no reference: outputs are compared between the sides. triton, pytest
and tritonbench are imported only when a benchmark needs them.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import functools
import importlib.machinery
import importlib.util
import inspect
import io
import itertools
import random
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any, NoReturn, cast

import torch

from abprof.records.messages import WRAPPED
from abprof.worker.api import Op, Unsupported
from abprof.worker.workload import namespace

__all__ = ["perf_report", "pytest_benchmark", "tritonbench"]
_NAMESPACE = f"abprof_workloads.{WRAPPED}"


class Caught(BaseException):
    """Raised to end a benchmark at the call that it would time. The exception's argument is this call, as an Op."""


class Wrapped:
    """A workload (docs/WRITING.md) made from a benchmark's file, which defines cases and calls, but no reference."""

    API = 1

    def __init__(self, where: str, *, kernel: str) -> None:
        """Wrap the benchmark `where` (FILE or FILE:NAME, relative to the repository's root). `kernel` is the import
        name of the package under test, as in abprof.toml."""
        self.file, _, self.name = where.partition(":")
        self.KERNEL, self.__doc__ = kernel, f"{where}, wrapped"
        frames = map(sys._getframe, itertools.count(1))
        self._workload = str(next(f.f_globals["__file__"] for f in frames if f.f_globals is not globals()))

    @property
    def path(self) -> Path:
        """Path of the benchmark's file or folder. Raises FileNotFoundError if the repository lacks the path."""
        folder = Path(self._workload).resolve().parent
        copied = folder / WRAPPED
        for place in [copied] if copied.is_dir() else [folder, *folder.parents]:
            if (place / self.file).exists():
                return place / self.file
        first = Path(self.file).parts[0]
        raise FileNotFoundError(f'no file {self.file}: add benchmarks = ["{first}"] to abprof.toml')

    def described(self) -> types.ModuleType:
        """Import and return the benchmark's module, with a stand-in for the package under test."""
        with self.without_package():
            return _load(self.path)

    @contextlib.contextmanager
    def without_package(self) -> Iterator[None]:
        """Replace the package under test by a stand-in within the block, unless the package is already imported. At the
        end, unload the modules of the package and of the benchmark that were imported in the block."""
        package, folder = self.KERNEL.partition(".")[0], str(self.path if self.path.is_dir() else self.path.parent)
        before, finder = set(sys.modules), _StandIns(package)
        if package not in sys.modules:
            sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
            for name in set(sys.modules) - before:
                source = getattr(sys.modules[name], "__file__", None) or ""
                if name.startswith((package, _NAMESPACE)) or source.startswith(folder):
                    sys.modules.pop(name, None)

    def inputs(self, case: Mapping[str, Any], device: object, number: int) -> dict[str, Any]:  # noqa: ARG002
        """Return only the seed (`number`) and the device, because a benchmark makes its own inputs."""
        return {"seed": number, "device": str(device)}

    def prepare(self, kernel: object, variant: str | None, case: Mapping[str, Any], inputs: Mapping[str, Any]) -> Op:  # noqa: ARG002
        """Return the operation that the benchmark times in this case. Raises ValueError if it times no call."""
        _seed(inputs["seed"])
        try:
            return self.operation(case, inputs["device"])
        except Caught as caught:
            return cast("Op", caught.args[0])

    def operation(self, case: Mapping[str, Any], device: str) -> Op:
        """Run the benchmark up to the call that it would time. Return this call, or raise Caught with it."""
        raise NotImplementedError


def _seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)


def _plain(value: object) -> Any:
    if isinstance(value, _StandIn):
        value.no_value()
    if isinstance(value, str | int | float | bool):
        return value
    return getattr(value, "__name__", None) or str(value).removeprefix("torch.")


def _as_now(call: Callable[[], Any]) -> Callable[[], Any]:
    """Make `call` run without gradients if gradients are disabled now."""
    return call if torch.is_grad_enabled() else torch.no_grad()(call)


def _cleared(tensors: Sequence[Any]) -> Callable[[], None] | None:
    def reset() -> None:
        for tensor in tensors:
            tensor.grad = None

    return reset if tensors else None


def _load(file: Path) -> types.ModuleType:
    folder = str(file.parent)
    package = f"{_NAMESPACE}.{re.sub(r'[^a-zA-Z0-9]', '_', folder)}"
    for name in (_NAMESPACE, package):  # relative imports find siblings, too
        namespace(name, folder)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(f"{package}.{file.stem}")
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


class _StandIns(MetaPathFinder, Loader):
    """Import hook by which a package and its submodules can be imported as stand-ins."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        mine = f"{fullname}.".startswith(f"{self.package}.")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if mine else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _StandIn(types.ModuleType):
    """A module in place of one that cannot be imported; its attributes are stand-ins too. Iteration, len() and truth
    tests raise TypeError, because a stand-in has no value."""

    def no_value(self, *_: object) -> NoReturn:
        package = self.__name__.partition(".")[0]
        what = f"cases depend on the package {package}, which cannot be imported while cases are listed"
        raise TypeError(f"{what}: write the values down, or read them inside the function that is timed")

    __iter__ = __contains__ = __len__ = __bool__ = no_value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getitem__(self, key: object) -> Any:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)


# ---------------------------------------------------------------- triton's perf_report


class perf_report(Wrapped):  # noqa: N801 - used like a function
    """Wrap a function decorated by triton: perf_report("benchmarks/bench_softmax.py:benchmark", kernel="mylib"). The x
    values and the line values become axes; the call that the function passes to do_bench is timed."""

    @property
    def PRESETS(self) -> dict[str, Any]:  # noqa: N802 - the workload's contract
        """Return the presets: `smoke` has the first x value, `default` and `full` all; each has all line values."""
        _, one = self._marked(self.described())
        points = [tuple(map(_plain, point)) for point in _points(one)]
        lines = {one.line_arg: [_plain(line) for line in one.line_vals]}
        every = {tuple(one.x_names): points, **lines}
        return {"smoke": {tuple(one.x_names): points[:1], **lines}, "default": every, "full": every}

    def operation(self, case: Mapping[str, Any], device: str) -> Op:  # noqa: ARG002
        function, one = self._marked(_load(self.path))
        known = {one.line_arg: {_plain(line): line for line in one.line_vals}}
        for point in _points(one):
            for name, value in zip(one.x_names, point, strict=True):
                known.setdefault(name, {})[_plain(value)] = value
        with _intercepted():
            function(**{name: values.get(case[name], case[name]) for name, values in known.items()}, **one.args)
        raise ValueError(f"{self.name} did not call triton.testing.do_bench")

    def _marked(self, module: Any) -> tuple[Callable[..., Any], Any]:
        mark = getattr(module, self.name, None) if self.name else None
        marks = getattr(mark, "benchmarks", ())
        marks = marks if isinstance(marks, list | tuple) else [marks]
        if mark is None or len(marks) != 1:
            what = f"{self.name or '(FILE:NAME without a name)'} has {len(marks)} Benchmarks"
            raise ValueError(f"{self.file}: function {what} in triton.testing.perf_report, but needs one")
        return mark.fn, marks[0]


def _points(benchmark: Any) -> list[tuple[Any, ...]]:
    count = len(list(benchmark.x_names))
    return [tuple(x) if isinstance(x, list | tuple) else (x,) * count for x in benchmark.x_vals]


@contextlib.contextmanager
def _intercepted() -> Iterator[None]:
    """Make triton's do_bench functions raise Caught within the block, except when triton or torch itself calls them."""
    import triton.testing

    def catching(real: Callable[..., Any]) -> Callable[..., Any]:
        def do_bench(fn: Callable[[], Any], *args: Any, **options: Any) -> Any:
            if str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] in {"triton", "torch"}:
                return real(fn, *args, **options)
            cleared = inspect.signature(real).bind(fn, *args, **options).arguments.get("grad_to_none") or ()
            raise Caught(Op(_as_now(fn), _cleared(list(cleared))))

        return do_bench

    timers = (triton.testing.do_bench, triton.testing.do_bench_cudagraph)
    catchers = {id(real): catching(real) for real in timers}
    with contextlib.ExitStack() as undo:
        for space in [vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")]:
            for name, real in [(name, value) for name, value in space.items() if id(value) in catchers]:
                space[name] = catchers[id(real)]
                undo.callback(space.__setitem__, name, real)
        yield


# ---------------------------------------------------------------- a pytest-benchmark suite

_AXIS = "test"
# Ignore pytest.ini, the cache and plug-ins that would write files or define the fixture `benchmark`.
_QUIET = [
    "-q", "-c/dev/null", "-pno:cacheprovider", "-pno:benchmark", "-pno:xdist", "-pno:abprof",
    "--import-mode=importlib",
]  # fmt: skip


class pytest_benchmark(Wrapped):  # noqa: N801 - used like a function
    """Wrap a file or folder of tests with pytest-benchmark: pytest_benchmark("tests/test_speed.py", kernel="mylib").

    Each test is a case. pytest runs the test in this process; the fixture `benchmark` records the callable and ends the
    test. The callable is timed afterwards, when pytest has already torn down the test's fixtures.
    """

    @property
    def PRESETS(self) -> dict[str, Any]:  # noqa: N802 - the workload's contract
        """Return presets, each with all tests that use the fixture `benchmark`. Raises ValueError if no test does."""
        tests = list[str]()

        def collected(items: list[Any]) -> None:
            tests.extend(item.nodeid for item in items if "benchmark" in getattr(item, "fixturenames", ()))

        with self.without_package():
            code, last = self._run(str(self.path), "--collect-only", pytest_collection_modifyitems=collected)
        if code not in (0, 5):  # 5: no test at all
            raise ValueError(f"pytest cannot collect {self.path.name}: {last}")
        if not tests:
            raise ValueError(f"{self.file} has no test that uses the fixture `benchmark`")
        return {preset: {_AXIS: tests} for preset in ("smoke", "default", "full")}

    def operation(self, case: Mapping[str, Any], device: str) -> Op:  # noqa: ARG002
        file, _, name = str(case[_AXIS]).partition("::")
        fixture, skipped = _Fixture(), list[str]()

        def report(report: Any) -> None:
            if report.skipped:
                skipped.append(str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr))

        made = _pytest().fixture(name="benchmark")(lambda: fixture)
        path = self.path / file if self.path.is_dir() else self.path
        code, last = self._run(f"{path}::{name}", benchmark=made, pytest_runtest_logreport=report)
        if fixture.found is not None:
            return fixture.found
        if skipped:
            raise Unsupported(skipped[0])
        why = f": {last}" if code else ""
        raise ValueError(f"{case[_AXIS]} did not call the fixture `benchmark`{why}")

    def _run(self, *argv: str, **hooks: object) -> tuple[int, str]:
        """Run pytest with `hooks` as a plug-in. Return the exit code, and the last error line that pytest printed
        (without errors, the last line)."""
        plugin = types.ModuleType("abprof_plugin")
        vars(plugin).update(hooks)
        out, root = io.StringIO(), self.path if self.path.is_dir() else self.path.parent
        with contextlib.redirect_stdout(out):
            code = int(_pytest().main([*_QUIET, f"--rootdir={root}", *argv], plugins=[plugin]))
        print(out.getvalue(), flush=True)
        lines = out.getvalue().splitlines()
        lines = [line for line in lines if line.startswith("E ")] or lines or [""]
        return code, lines[-1].removeprefix("E ").strip()


def _pytest() -> Any:
    try:
        return importlib.import_module("pytest")
    except ImportError:
        raise Unsupported("pytest is not installed for this interpreter") from None


class _Fixture:
    """The fixture `benchmark`: records the callable that a test passes, and ends the test."""

    found: Op | None = None
    group = None

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.pedantic(function, args, kwargs)

    def pedantic(
        self, target: Callable[..., Any], args: Any = (), kwargs: Any = None, setup: Any = None, **_rounds: Any
    ) -> NoReturn:
        """Record the call, and raise Caught. `setup` runs before every call, and may return new (args, kwargs)."""
        given: list[Any] = [args, kwargs or {}]

        def reset() -> None:
            given[:] = setup() or given

        if setup is not None:
            reset()
        call = _as_now(lambda: target(*given[0], **given[1]))
        self.found = Op(call, None if setup is None else reset)
        raise Caught(self.found)


# ---------------------------------------------------------------- operators in tritonbench's style

# This module defines the names of `tritonbench.utils.triton_op` that operators need: tritonbench need not be installed.
# Other modules of tritonbench are the installed modules, or stand-ins.
_STYLE = "tritonbench.utils.triton_op"
_MARK = "_abprof_registered"
_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Mode(enum.Enum):
    """Which part of an operator is timed: forward, backward or both."""

    FWD = "fwd"
    BWD = "bwd"
    FWD_BWD = "fwd_bwd"


class tritonbench(Wrapped):  # noqa: N801 - used like a function
    """Wrap an operator of tritonbench: tritonbench("operators/softmax/operator.py:Operator", kernel="mylib"). The
    operator's inputs and its registered methods become axes. `mode` is the part to time: fwd, bwd or fwd_bwd."""

    def __init__(self, where: str, *, kernel: str, mode: str = "fwd") -> None:
        super().__init__(where, kernel=kernel)
        self.name, self._mode = self.name or "Operator", Mode(mode)
        _provide_triton_op()

    @property
    def PRESETS(self) -> dict[str, Any]:  # noqa: N802 - the workload's contract
        """Return the presets: `smoke` has the first input, `default` and `full` all; each has all methods."""
        every = functools.cache(self._axes)
        return {"smoke": functools.partial(self._axes, first=True), "default": every, "full": every}

    def _axes(self, kind: str, *, first: bool = False) -> dict[Any, Any]:
        made = self._made(self.described(), kind)
        # Methods in source order, those of base classes first.
        methods = {k: v for one in reversed(type(made).__mro__) for k, v in vars(one).items() if hasattr(v, _MARK)}
        names = [name for name, method in methods.items() if getattr(method, _MARK)]
        _seed(0)
        inputs = [(number, str(made.get_x_val(given))) for number, given in enumerate(made.get_input_iter())]
        if not names or not inputs:
            raise ValueError(f"{self.name} of {self.file} has no inputs, or no method with @register_benchmark")
        return {("input", "x"): inputs[:1] if first else inputs, "backend": names}

    def _made(self, module: types.ModuleType, device: str) -> Any:
        kind = getattr(module, self.name, None)
        if not isinstance(kind, type):
            raise ValueError(f"{self.file} has no class {self.name}")
        return kind(_Options(device=device, mode=self._mode.value), [])

    def operation(self, case: Mapping[str, Any], device: str) -> Op:
        made = self._made(_load(self.path), device)
        inputs = next(itertools.islice(made.get_input_iter(), int(case["input"]), None))
        method = getattr(made, str(case["backend"]))
        forward = method(**inputs) if isinstance(inputs, dict) else method(*inputs)
        if not callable(forward):
            raise TypeError(f"{case['backend']} did not return a callable")
        if self._mode is Mode.FWD:
            return Op(_as_now(forward))
        backward = made.get_bwd_fn(forward)
        call = backward if self._mode is Mode.BWD else lambda: (forward(), backward())[0]
        return Op(call, _cleared(list(made.get_grad_to_none(inputs) or ())))


class _Options(argparse.Namespace):
    """Command-line options in the form that tritonbench's operators expect: an option that was not given is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class BenchmarkOperator:
    """Base class for operators, in place of tritonbench's class of this name."""

    DEFAULT_PRECISION = "bypass"

    def __init__(self, tb_args: argparse.Namespace, extra_args: Sequence[str] | None = None) -> None:
        self.tb_args, self.extra_args = tb_args, list(extra_args or ())
        self.device, self.mode = tb_args.device, Mode(tb_args.mode)
        self.dtype = _DTYPES.get(self.DEFAULT_PRECISION)

    def get_x_val(self, inputs: Any) -> Any:
        return [list(one.shape) for one in inputs if isinstance(one, torch.Tensor)]

    def get_grad_to_none(self, args: Any) -> Any:
        """Return the tensors whose gradients are cleared before each call; by default None."""


def _register_benchmark(enabled: bool = True, **_options: Any) -> Callable[[Any], Any]:

    def mark(method: Any) -> Any:
        setattr(method, _MARK, enabled)
        return method

    return mark


def _provide_triton_op() -> None:
    """Make `tritonbench.utils.triton_op` importable, with this module's classes and functions."""
    if _STYLE in sys.modules:
        return
    if importlib.util.find_spec("tritonbench") is None:
        sys.meta_path.append(_StandIns("tritonbench"))
    style = sys.modules[_STYLE] = types.ModuleType(_STYLE)
    unmarked = lambda **_: lambda method: method  # noqa: E731 - the method as it is
    style.__dict__.update(Mode=Mode, BenchmarkOperator=BenchmarkOperator, BenchmarkOperatorMetrics=argparse.Namespace)
    style.__dict__.update(register_benchmark=_register_benchmark, register_metric=unmarked, register_x_val=unmarked)
