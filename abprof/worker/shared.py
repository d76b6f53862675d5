"""GPU memory of the judge's (--untrusted): a worker maps it by a descriptor, and copies outputs of timed calls into it."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_MOST = 2 << 30  # bytes for a worker, and at most a 64th of the GPU's memory
_PINNED, _DEVICE, _BY_DESCRIPTOR, _READ_AND_WRITE = 1, 1, 1, 3  # of cuda.h


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Bytes:
    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


def made(device: torch.device) -> tuple[torch.Tensor, int]:
    """Return new memory of the GPU, and a descriptor by which another process can map it. Raises RuntimeError, OSError."""
    where, grain = _Properties(_PINNED, _BY_DESCRIPTOR, _Location(_DEVICE, device.index)), ctypes.c_size_t()
    _call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(where), 0)
    most = min(_MOST, torch.cuda.get_device_properties(device).total_memory // 64)
    handle, size, descriptor = ctypes.c_uint64(), most // grain.value * grain.value, ctypes.c_int(-1)
    _call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(where), ctypes.c_uint64(0))
    _call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, _BY_DESCRIPTOR, ctypes.c_uint64(0))
    return _mapped(handle, size, device), descriptor.value


def opened(descriptor: int, size: int, device: torch.device) -> torch.Tensor:
    """Return the memory of `size` bytes that another process made. Raises RuntimeError, OSError."""
    handle = ctypes.c_uint64()
    _call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), _BY_DESCRIPTOR)
    return _mapped(handle, size, device)


def _mapped(handle: ctypes.c_uint64, size: int, device: torch.device) -> torch.Tensor:
    at, length, none = ctypes.c_uint64(), ctypes.c_size_t(size), ctypes.c_uint64(0)
    access = _Access(_Location(_DEVICE, device.index), _READ_AND_WRITE)
    _call("cuMemAddressReserve", ctypes.byref(at), length, ctypes.c_size_t(0), none, none)
    _call("cuMemMap", at, length, ctypes.c_size_t(0), handle, none)
    _call("cuMemSetAccess", at, length, ctypes.byref(access), ctypes.c_size_t(1))
    return torch.as_tensor(_Bytes(at.value, size), device=device)


def _call(name: str, *arguments: Any) -> None:
    if code := getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments):
        raise RuntimeError(f"{name} failed with CUDA error {code}")
