"""Make Triton's interpreter (TRITON_INTERPRET=1) run kernels that it does not run by itself, on a CPU, too.

Imported only in a process whose Triton interprets: no compiled kernel meets these changes. Each says why it is there,
and when it may go. faults.py explains what stays out of reach, such as inline assembly.
"""

from __future__ import annotations

import functools
import importlib
import os
import types
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

_BUILDER: Any = interpreter.InterpreterBuilder
np: Any = interpreter.np  # abprof does not depend on numpy
_EXTRA = "triton.language.extra"


@functools.cache
def install(device: str) -> None:
    """Change Triton's interpreter in this process; for the device "cpu", also what code finds in place of a GPU."""
    if device == "cpu":
        _patch_driver()
        _patch_torch()
    _patch(Autotuner, "_bench", _untimed)
    _patch(interpreter.InterpretedFunction, "warmup", _compiled)
    _patch(interpreter, "_implicit_cvt", _converted)
    _patch(interpreter.GridExecutor, "__call__", _launched)
    if triton.__version__.startswith("3.6."):
        _patch(interpreter, "_patch_lang_tensor", _indexed)
    _patch_builtins()
    _patch_libdevice()
    _patch_bfloat16()


def _patch(where: Any, name: str, new: Callable[..., Any]) -> None:
    original = getattr(where, name)
    setattr(where, name, functools.wraps(original)(lambda *args, **kwargs: new(original, *args, **kwargs)))


def _untimed(original: Any, *args: Any, **kwargs: Any) -> Any:
    """The autotuner times each configuration with the driver's clock. These times mean nothing here: with equal ones
    it takes the first. May go when Triton's autotuner does so (3.9 does not)."""
    return [0.0, 0.0, 0.0] if triton.knobs.runtime.interpret else original(*args, **kwargs)


def _compiled(_original: Any, kernel: Any, *_: Any, **known: Any) -> Any:
    """`kernel.warmup(...)` returns None, where code goes on with the compiled kernel, as Triton's tutorial on softmax
    does. May go when it returns a kernel (3.9 does not)."""

    def launch(grid: Any, *args: Any) -> None:
        kernel[grid](*args, **{name: known[name] for name in kernel.arg_names[len(args) :] if name in known})

    facts = {"n_regs": 32, "n_spills": 0, "metadata": types.SimpleNamespace(shared=1024, num_warps=4)}
    methods = {"_init_handles": lambda _self: None, "__getitem__": lambda _self, grid: functools.partial(launch, grid)}
    return type("Compiled", (), {**facts, **methods})()


def _converted(original: Any, arg: Any) -> Any:
    """A float argument stays a Python float, without `.to` and `.type`. May go when it becomes a tensor (3.9: not)."""
    if type(arg) is not float:
        return original(arg)
    return tl.tensor(interpreter.TensorHandle(np.array([arg], np.float32), tl.float32), tl.float32)


def _launched(original: Any, executor: Any, *args: Any, **kwargs: Any) -> Any:
    """A grid that is a list, as in Triton's tutorial on layer_norm, is refused. May go when it is not (3.9: is)."""
    grid = executor.grid
    executor.grid = (lambda known: tuple(grid(known))) if callable(grid) else tuple(grid)
    return original(executor, *args, **kwargs)


def _indexed(original: Any, tensor: Any, scope: Any) -> None:
    """Triton 3.6 calls int() on arrays of shape (1,), which NumPy 2.4 refuses: `range(0, n)` fails. May go with 3.6."""
    original(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _patch_builtins() -> None:
    """While a kernel runs, tl.exp is an interpreted function; a copy that a module made before (`exp = tl.exp`) is not.
    May go when it is (3.9: not). Kernels run one after another: a grid dependency (gdc_wait) has no meaning."""
    cuda, gdc, libdevice = (importlib.import_module(f"{_EXTRA}.cuda{part}") for part in ("", ".gdc", ".libdevice"))
    for module in (tl, tl.core, tl.math, cuda, libdevice):
        interpreter._patch_builtin(module, interpreter.interpreter_builder, interpreter._LangPatchScope())
    for name in ("gdc_wait", "gdc_launch_dependents"):
        vars(cuda)[name] = vars(gdc)[name] = lambda **_: None


_TORCH = """abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh ddiv_rn=div div_rn=div erf erfc erfinv exp
exp2 expm1 fabs=abs fdiv_rn=div fdivide=div finite=isfinite float2int_rn=round floor fmax fmin fmod hypot isfinite isinf
isnan ldexp lgamma llabs=abs llrint=round log log10 log1p log2 nearbyint=round nextafter pow powi=pow rint=round rsqrt
signbit sin sinh sqrt tan tanh trunc"""
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "exp10": lambda x: torch.pow(10.0, x),
    "fma": lambda x, y, z: x * y + z,
    "round": lambda x: x.trunc() + torch.sign(x) * ((x - x.trunc()).abs() >= 0.5),  # halves away from zero
    **{name: getattr(torch, of or name) for name, _, of in (word.partition("=") for word in _TORCH.split())},
}


def _patch_libdevice() -> None:
    """The functions of triton.language.extra.libdevice are empty, for a compiler to replace, and return None: take
    those for CUDA, and compute them with torch. May go when the interpreter has them (3.9 does not)."""
    cuda, empty = map(importlib.import_module, (f"{_EXTRA}.cuda.libdevice", f"{_EXTRA}.libdevice"))
    vars(empty).update({name: value for name, value in vars(cuda).items() if not name.startswith("_")})
    _BUILDER.create_extern_elementwise = _extern


def _extern(_self: Any, _name: str, _path: str, symbol: str, args: list[Any], returned: Any, _pure: bool) -> Any:
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    if not (function := _FUNCTIONS.get(name) or _FUNCTIONS.get(name[:-1])):  # tanhf, isnand
        raise NotImplementedError(f"{symbol} not supported in interpreter mode")
    out = function(*(torch.from_numpy(np.array(arg.data)) for arg in args)).numpy()
    return interpreter.TensorHandle(out.astype(interpreter._get_np_dtype(returned.scalar)), returned.scalar)


def _patch_bfloat16() -> None:
    """The interpreter keeps bfloat16 as integers, computes with these (outputs are wrong, without an error), and cuts
    floats off instead of rounding them. May go when it computes with their values (3.9 does not)."""
    for name in ("unary_op", "binary_op", "ternary_op", "create_fma", "create_dot"):
        _patch(_BUILDER, name, _on_floats)
    narrows = lambda x, to: (x.dtype.scalar, to.scalar) == (tl.float32, tl.bfloat16)  # noqa: E731
    _patch(_BUILDER, "cast_impl", lambda cast, own, x, to: _narrowed(x) if narrows(x, to) else cast(own, x, to))
    _patch(interpreter.ReduceScanOpInterface, "apply", _reduced_floats)
    if not hasattr(_BUILDER, "get_bf16"):  # Triton 3.6
        _BUILDER.get_bf16 = lambda self, value: _narrowed(self.get_fp32(value))


def _is_bfloat16(value: Any) -> bool:
    return isinstance(value, interpreter.TensorHandle | tl.tensor) and value.dtype.scalar == tl.bfloat16


def _on_floats(original: Any, *args: Any) -> Any:
    if not any(map(_is_bfloat16, args)):
        return original(*args)
    out = original(*(_widened(arg) if _is_bfloat16(arg) else arg for arg in args))
    *_, last = (arg for arg in args if isinstance(arg, interpreter.TensorHandle))  # has the result's type
    return _narrowed(out) if _is_bfloat16(last) and out.data.dtype == np.float32 else out


def _widened(handle: Any) -> Any:
    return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _narrowed(handle: Any) -> Any:
    bits = torch.from_numpy(np.array(handle.data)).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return interpreter.TensorHandle(bits, tl.bfloat16)


def _reduced_floats(original: Any, operation: Any, value: Any) -> Any:
    if not isinstance(value, tuple):
        return original(operation, value)  # comes back here with a tuple
    outs = original(operation, tuple(one.to(tl.float32) if _is_bfloat16(one) else one for one in value))
    return tuple(out.to(tl.bfloat16) if _is_bfloat16(one) else out for one, out in zip(value, outs, strict=True))


_NAME, _CAPABILITY, _PROCESSORS = "Triton's interpreter", (8, 0), 4  # by which code chooses kernels and grids


def _patch_driver() -> None:
    """Without a GPU, Triton's driver raises "0 active drivers", also when code only asks it for the device or the
    number of processors. Stays: Triton has no driver for a CPU."""
    answers = {"get_active_torch_device": torch.device("cpu"), "get_device_interface": torch.cuda}
    answers |= {"get_current_target": GPUTarget("cuda", 80, 32), "get_device_capability": _CAPABILITY}
    driver = _answering(**answers, get_current_device=0, get_current_stream=0)
    facts = {"multiprocessor_count": _PROCESSORS, "max_shared_mem": 101376, "max_num_regs": 65536, "warpSize": 32}
    driver.utils = _answering(get_device_properties=facts)
    triton.runtime.driver.set_active(driver)


def _patch_torch() -> None:
    """`with torch.cuda.device(x.device)`, questions about the device, device="cuda" and `assert x.is_cuda` fail where x
    is on the CPU; torch.compile fails where torch.cuda.is_available() and no GPU is there, so functions stay as they
    are. Stays: torch.cuda is for GPUs."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    facts = {"name": _NAME, "multi_processor_count": _PROCESSORS, "warp_size": 32, "total_memory": 1 << 34}
    properties = types.SimpleNamespace(**facts, major=_CAPABILITY[0], minor=_CAPABILITY[1])
    answers = {"get_device_properties": properties, "get_device_capability": _CAPABILITY, "get_device_name": _NAME}
    vars(torch.cuda).update(
        vars(_answering(**answers, current_device=0, is_available=True, set_device=None, synchronize=None))
    )
    _patch(torch.cuda.device, "__init__", lambda original, self, _device: original(self, -1))  # does nothing
    vars(torch)["Generator"] = _Generator
    _patch(torch.autograd.function.BackwardCFunction, "apply", _backward)
    _OnCpu().__enter__()


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, _on_cpu(device))


def _backward(original: Any, *args: Any) -> Any:
    with _OnCpu():  # torch.autograd.grad leaves the mode
        return original(*args)


def _answering(**answers: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{name: lambda *_, one=one, **__: one for name, one in answers.items()})


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.is_cuda.__get__:
            return True
        if func == torch.Tensor.device.__get__:
            return torch.device("cuda", 0)  # code branches on its type; `_on_cpu` undoes it
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(_on_cpu, args), **{name: _on_cpu(value) for name, value in (kwargs or {}).items()})


def _on_cpu(value: Any) -> Any:
    return "cpu" if isinstance(value, str | torch.device) and str(value).startswith("cuda") else value
