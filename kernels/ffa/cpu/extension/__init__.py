"""The torch C++ extension (transpose.cpp): built by torch.utils.cpp_extension, only with FFA_TORCH_EXTENSION=1.

Like the plain library it is published by rename under a name that carries its content key, and loaded by path.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch

from ..folder import build_folder

SOURCE = Path(__file__).parent / "transpose.cpp"
FLAGS = ["-O2", "-Wall"]


def build(*, verbose: bool) -> None:
    """Build the extension unless it is there. Raises RuntimeError when the compiler or ninja is missing or fails."""
    target = extension_path()
    if target.exists():
        print(f"ffa extension: up to date: {target}", flush=True)
        return
    from torch.utils import cpp_extension  # imports setuptools: only where it is needed

    _find_ninja()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="ffa_transpose-") as scratch:
        source = shutil.copy(SOURCE, scratch)
        # TORCH_CHECK writes the file's name into the object: the same name wherever it is built.
        flags = [*FLAGS, f"-ffile-prefix-map={scratch}=ffa"]
        name = target.name.split(".")[0]
        cpp_extension.load(
            name, [source], extra_cflags=flags, build_directory=scratch, verbose=verbose, with_cuda=False
        )
        (Path(scratch) / f"{name}.so").replace(target)
    print(f"ffa extension: built {target}", flush=True)


@lru_cache(maxsize=1)
def load() -> ModuleType:
    """The extension of exactly this source. Raises RuntimeError if it is missing and must not be built here."""
    target = extension_path()
    if not target.exists():
        if "ABPROF_BUILD_DIR" in os.environ:
            raise RuntimeError(f"{target} is missing: run ffa.build(verbose=True) with FFA_TORCH_EXTENSION=1 first")
        build(verbose=False)
    name = target.name.split(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, str(target))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def extension_path() -> Path:
    """Where the extension of this source, these flags, this torch and this Python belongs."""
    digest = hashlib.sha256(SOURCE.read_bytes())
    digest.update("\0".join([*FLAGS, torch.__version__, sysconfig.get_config_var("EXT_SUFFIX") or ""]).encode())
    key = digest.hexdigest()[:16]
    return build_folder(key) / f"ffa_transpose_{key}.so"


def _find_ninja() -> None:
    """Put the ninja of its Python package on PATH when the shell has none."""
    if shutil.which("ninja") is None and importlib.util.find_spec("ninja") is not None:
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
