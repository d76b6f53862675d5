"""How fast the multiprocessors ran in a turn, from the device's own clocks.

A kernel of one thread a multiprocessor writes %clock64 (cycles) and %globaltimer (ns) to the place of its %smid. Two of
them give each one's mean clock in between; NVML's samples are 100 ms apart. The mean over all is taken: under a power
limit the clusters of an H200 run up to 0.5 % apart (docs/MEASUREMENT.md). It is PTX, loaded by the CUDA driver (PTX ISA,
special registers): no compiler is needed, and its machine code belongs to no side.
"""

from __future__ import annotations

import ctypes
from statistics import fmean
from typing import Any

import torch

_PTX = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry abprof_stamp(.param .u64 out, .param .u32 room, .param .u64 turn)
{
    .reg .pred %outside;
    .reg .b32 %sm, %room;
    .reg .b64 %at, %offset, %cycles, %ns, %turn;
    mov.u32 %sm, %smid;
    ld.param.u32 %room, [room];
    setp.ge.u32 %outside, %sm, %room;
    @%outside ret;
    ld.param.u64 %at, [out];
    ld.param.u64 %turn, [turn];
    cvta.to.global.u64 %at, %at;
    mul.wide.u32 %offset, %sm, 24;
    add.u64 %at, %at, %offset;
    mov.u64 %cycles, %clock64;
    mov.u64 %ns, %globaltimer;
    st.global.u64 [%at], %cycles;
    st.global.u64 [%at+8], %ns;
    st.global.u64 [%at+16], %turn;
    ret;
}
"""
_WORDS = 3  # of 8 bytes, that a multiprocessor's stamp has: cycles, ns, number of the turn


class Stamps:
    """A stamp at the begin and one at the end of a turn, in the current stream. Raises OSError or RuntimeError if the
    driver refuses the kernel."""

    def __init__(self, device: torch.device) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"abprof_stamp")
        self._blocks = torch.cuda.get_device_properties(device).multi_processor_count
        # Twice as many places: ids may have gaps.
        self._written = torch.zeros((2, 2 * self._blocks, _WORDS), dtype=torch.int64, device=device)
        self._turn = 0

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with CUDA error {code}")

    def begin(self) -> None:
        """Enqueue the first stamp."""
        self._turn += 1
        self._launch(0)

    def end(self) -> None:
        """Enqueue the second."""
        self._launch(1)

    def _launch(self, which: int) -> None:
        values = (
            ctypes.c_uint64(self._written[which].data_ptr()),
            ctypes.c_uint32(self._written.shape[1]),
            ctypes.c_uint64(self._turn),
        )
        arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        blocks, one, none = ctypes.c_uint(self._blocks), ctypes.c_uint(1), ctypes.c_uint(0)
        self._call("cuLaunchKernel", self._kernel, blocks, one, one, one, one, one, none, stream, arguments, None)

    def mhz(self) -> float:
        """Mean clock of the multiprocessors that have both stamps of the last turn, MHz; 0 if none has. The device must
        be idle."""
        begun, ended = self._written.tolist()
        clocks = [
            1e3 * (cycles - first_cycles) / (ns - first_ns)
            for (first_cycles, first_ns, first_turn), (cycles, ns, last_turn) in zip(begun, ended, strict=True)
            if first_turn == last_turn == self._turn and ns > first_ns and cycles > first_cycles
        ]
        return fmean(clocks or [0.0])
