import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path

FLAGS = ["-O3", "-g", "-march=x86-64-v3", "-fno-math-errno", "-std=c++17", "-shared", "-fPIC"]


def build(*, verbose):
    out = Path(os.environ["ABPROF_BUILD_DIR"])
    subprocess.run(["g++", *FLAGS, "-o", str(out / "partial.so"), "parts.cpp"], check=True, cwd=Path(__file__).parent)
    (out / "partial.so").replace(out / "parts.so")


@cache
def library():
    return ctypes.CDLL(str(Path(os.environ["ABPROF_BUILD_DIR"]) / "parts.so"))


def call(part, x, y, rows, columns):
    function = getattr(library(), part)
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    function(x.data_ptr(), y.data_ptr(), rows, columns)
    return y
