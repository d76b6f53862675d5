"""An operator class in tritonbench's style: its inputs and its registered benchmark methods become axes.

tritonbench need not be installed: this module provides the names of `tritonbench.utils.triton_op` that an operator needs,
which mark instead of register. Anything else of tritonbench is the installed one's, or a stand-in.
"""

from __future__ import annotations

import argparse
import enum
import functools
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from abprof.worker.adapters.base import Wrapped, as_now, caller, seed, stand_in
from abprof.worker.api import Op

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

        def reset() -> None:
            for tensor in cleared:
                tensor.grad = None

        if made.mode is Mode.FWD:
            return Op(as_now(forward))
        if made.mode is Mode.FWD_NO_GRAD:
            with torch.no_grad():
                return Op(as_now(forward))
        backward = made.get_bwd_fn(forward)
        call = backward if made.mode is Mode.BWD else lambda: (forward(), backward())[0]
        return Op(call, reset if cleared else None)


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
        stand_in("tritonbench")
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
