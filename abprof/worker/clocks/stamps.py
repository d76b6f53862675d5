"""Readings of the device's own clocks, between the kernels of a stream: how fast the multiprocessor ran in a turn.

A kernel of one thread writes %clock64 (cycles of its multiprocessor), %globaltimer (ns) and %smid. Two of them on the same
multiprocessor give its mean clock in between, which NVML's samples, 100 ms apart, cannot for turns of a millisecond.
PTX, loaded by the CUDA driver: neither a compiler nor Triton is needed for it, and its machine code is no side's own.
(Registers: PTX ISA, special registers.)
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_PTX = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry abprof_stamp(.param .u64 out)
{
    .reg .b32 %sm;
    .reg .b64 %at, %cycles, %ns;
    ld.param.u64 %at, [out];
    cvta.to.global.u64 %at, %at;
    mov.u64 %cycles, %clock64;
    mov.u64 %ns, %globaltimer;
    mov.u32 %sm, %smid;
    st.global.u64 [%at], %cycles;
    st.global.u64 [%at+8], %ns;
    st.global.u32 [%at+16], %sm;
    ret;
}
"""
_WORDS = 3  # of 8 bytes, that a stamp writes


class Stamps:
    """A begin and an end in the current stream. Raises OSError or RuntimeError where the driver does not take the kernel."""

    def __init__(self, device: torch.device) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"abprof_stamp")
        self._written = torch.zeros((2, _WORDS), dtype=torch.int64, device=device)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with CUDA error {code}")

    def begin(self) -> None:
        """Enqueue the first stamp."""
        self._launch(0)

    def end(self) -> None:
        """Enqueue the second."""
        self._launch(1)

    def _launch(self, which: int) -> None:
        out = ctypes.c_uint64(self._written[which].data_ptr())
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(out))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        self._call("cuLaunchKernel", self._kernel, one, one, one, one, one, one, none, stream, arguments, None)

    def mhz(self) -> float:
        """Mean clock between the two, MHz, on an idle device; 0 where they ran on different multiprocessors."""
        (cycles, ns, sm), (last_cycles, last_ns, last_sm) = self._written.tolist()
        if sm != last_sm or last_ns <= ns or last_cycles <= cycles:
            return 0.0
        return 1e3 * (last_cycles - cycles) / (last_ns - ns)
