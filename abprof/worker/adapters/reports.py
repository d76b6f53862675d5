"""A function under `triton.testing.perf_report`: its x and line values become axes, its call of do_bench is timed."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from abprof.worker.adapters.base import Caught, Wrapped, as_now, caller, caught, plain
from abprof.worker.api import Op

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
        every = _axes(found, first=False)
        return {"smoke": _axes(found, first=True), "default": every, "full": every}

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


def _axes(benchmarks: Sequence[Any], *, first: bool) -> dict[Any, Any]:
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

        def reset() -> None:
            for tensor in cleared:
                tensor.grad = None

        raise Caught(Op(as_now(fn), reset if cleared else None))

    return do_bench
