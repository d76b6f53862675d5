"""The environment of builders and workers: the user's without secrets, or an allow-list, with private caches."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from abprof.records.errors import AbprofError

_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|AUTH|COOKIE|SIGNATURE|DSN$|^AWS_|^AZURE_|^GH_|^GITHUB_|^GITLAB_"
)
_SECRET_VALUE = re.compile(
    r"^(gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|eyJ[A-Za-z0-9_-]{10})|://[^/\s:]+:[^@\s]+@"
)
# What a compiler, CUDA, torch and Triton need to work at all. Not the user's HOME: code that is not trusted finds keys and
# tokens there, and a build that reads it is nobody else's build.
_ALLOWED = re.compile(
    r"^(PATH|LANG|LANGUAGE|LC_.*|TERM|TZ|TMPDIR|USER|LOGNAME|SHELL|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|C_INCLUDE_PATH|"
    r"CPLUS_INCLUDE_PATH|CC|CXX|CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|CUDA_.*|CUDNN_.*|NVIDIA_.*|NVCC_.*|TORCH_.*|PYTORCH_.*|"
    r"TRITON_.*|OMP_.*|GOMP_.*|KMP_.*|MKL_.*|OPENBLAS_.*|MAX_JOBS|VIRTUAL_ENV|CONDA_PREFIX|ABPROF_SIMULATED)$"
)
# Python's own hooks into what is imported: they would let another tree in.
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONSAFEPATH")
_GIT = re.compile(r"^GIT_")
# What Nsight Compute and Nsight Systems tell the processes that they look into (seen of version 2025.3).
_PROFILER = re.compile(
    r"^(NV_NSIGHT|NV_COMPUTE_PROFILER|NV_TPS|NV_CUDA_START_SUSPENDED|NVIDIA_PROCESS_INJECTION|NVIDIA-PROCESS-TRACKING|"
    r"NSYS|QUADD|CUDA_INJECTION|NVTX_INJECTION)"
)
# Lists to which they add parts of their own.
_ADDED = {
    "LD_PRELOAD": re.compile(r"TreeLauncher|[Ii]njection|ToolsInjection"),
    "LD_LIBRARY_PATH": re.compile(r"nsight[-_ ]?(compute|systems)", re.IGNORECASE),
}
# Every build has these to itself, under its own folder.
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
}


def clean(environ: Mapping[str, str], mode: str, allow: Iterable[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """(environment, names withheld). `mode` is "user" (all but what looks like a secret) or "clean" (an allow-list)."""
    let_through = set(allow)
    kept, withheld = {}, []
    for name, value in environ.items():
        secret = bool(_SECRET.search(name.upper()) or _SECRET_VALUE.search(value))
        wanted = name in let_through or (not secret and (mode == "user" or bool(_ALLOWED.match(name))))
        if name in _DROPPED or _GIT.match(name):
            continue
        if wanted:
            kept[name] = value
            continue
        profilers, own = parted(name, value)
        if profilers and not secret:
            kept[name] = profilers
        if own or not profilers or secret:
            withheld.append(name)
    return kept, tuple(sorted(withheld))


def parted(name: str, value: str) -> tuple[str, str]:
    """The value's part by which a profiler follows the processes that its program starts (they need it, and no build
    reads it), and the user's own."""
    if name not in _ADDED:
        return (value, "") if _PROFILER.match(name) else ("", value)
    parts = [part for part in re.split(r"[\s:]+" if name == "LD_PRELOAD" else ":", value) if part]
    profilers = [part for part in parts if _ADDED[name].search(part)]
    return ":".join(profilers), ":".join(part for part in parts if part not in profilers)


def mode(asked: Literal["", "user", "clean"], environ: Mapping[str, str]) -> Literal["user", "clean"]:
    """`--env`, or "clean" with CI set, or "user"."""
    return asked or ("clean" if environ.get("CI") else "user")


def worker(base: Mapping[str, str], caches: Path, device: str, extra: Mapping[str, str]) -> dict[str, str]:
    """What all workers have in common, private caches under `caches`, a HOME there where `base` has none, and what the
    configuration adds."""
    private = {name: str(caches / folder) for name, folder in _CACHES.items()}
    if "HOME" not in base:
        private["HOME"] = str(caches / "home")
    return {**shared(base, device), **private, **extra}


def shared(base: Mapping[str, str], device: str) -> dict[str, str]:
    """`base` with the leased device alone visible: what the workers of every build have in common."""
    env = {
        **{name: value for name, value in base.items() if name not in _CACHES},
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # a worktree stays as git wrote it
        "PYTHONHASHSEED": "0",
        "TRITON_DISABLE_LINE_INFO": "1",  # line info holds paths, which would make equal kernels hash differently
    }
    if device == "cpu" or device.startswith("simulated"):
        # An OpenMP pool spins for milliseconds after each parallel region and takes the cores of the other side's turn.
        env.setdefault("GOMP_SPINCOUNT", "3000")
        env.setdefault("KMP_BLOCKTIME", "0")
        env["CUDA_VISIBLE_DEVICES"] = ""  # a package that builds for what it sees builds for the CPU alone
    if device.startswith("cuda:"):
        env["CUDA_VISIBLE_DEVICES"] = device.removeprefix("cuda:")
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return env


def _filled(value: str, places: Mapping[str, str]) -> Iterator[str]:
    """Its parts. Raises KeyError and ValueError for anything in braces that is no place's name: no width, attribute or item."""
    for text, place, width, conversion in string.Formatter().parse(value):
        yield text
        if width or conversion:
            raise ValueError(value)
        if place is not None:
            yield places[place]


def fill(extra: Mapping[str, str], where: str, **places: str) -> dict[str, str]:
    """Configured values with {worktree}, {build_dir} and {side} filled in. Raises AbprofError for another name."""
    filled = {}
    for name, value in extra.items():
        try:
            filled[name] = "".join(_filled(value, places))
        except (KeyError, ValueError) as error:
            what = f"{name} = {value!r}: only {', '.join(f'{{{place}}}' for place in places)} are filled in"
            raise AbprofError(what, where=where, advice="{{ and }} stand for braces of its own") from error
    return filled
