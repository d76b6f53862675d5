"""What a worker loads while nobody asks anything of it yet (abprof/measure/prefork.py): seconds of a first call's that take no device."""

from __future__ import annotations

import contextlib
import importlib
import select


def unless_asked(source: int) -> None:
    """Load it, unless a request is there to be read already: who waits for the answer may never need it."""
    if select.select([source], [], [], 0)[0]:
        return
    with contextlib.suppress(Exception):
        # torch.autograd.grad imports it at its first call, and sympy with it: 2 s where no bytecode is kept.
        importlib.import_module("torch.fx.experimental.symbolic_shapes")
    with contextlib.suppress(Exception):
        # A hash of the whole of Triton, 0.4 s, which its first launch asks for; kept in the process.
        importlib.import_module("triton.runtime.cache").triton_key()
