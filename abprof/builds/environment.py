"""Choose the environment variables of builders and workers: the user's without secrets, or only those on an allow-list.

Code under test could also read secrets from abprof's own process, in /proc/PID/environ (the variables at its start) or
/proc/PID/mem (its memory). So `scrub_secrets` overwrites the secrets in /proc/PID/environ, and makes the memory
unreadable for other processes, except root's. Nothing protects the shell that started abprof.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|AUTH|COOKIE|SIGNATURE|DSN$|^AWS_|^AZURE_|^GH_|^GITHUB_|^GITLAB_"
)
_SECRET_VALUE = re.compile(
    r"^(gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|eyJ[A-Za-z0-9_-]{10})|://[^/\s:]+:[^@\s]+@"
)
# Variables that compilers, CUDA, torch and Triton need. Not HOME: untrusted code finds keys there, and builds that
# read the home folder are not reproducible.
_ALLOWED = re.compile(
    r"^(PATH|LANG|LANGUAGE|LC_.*|TERM|TZ|TMPDIR|USER|LOGNAME|SHELL|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|C_INCLUDE_PATH|"
    r"CPLUS_INCLUDE_PATH|CC|CXX|CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|CUDA_.*|CUDNN_.*|NVIDIA_.*|NVCC_.*|TORCH_.*|PYTORCH_.*|"
    r"TRITON_.*|OMP_.*|GOMP_.*|KMP_.*|MKL_.*|OPENBLAS_.*|MAX_JOBS|VIRTUAL_ENV|CONDA_PREFIX|ABPROF_SIMULATED)$"
)
_PATH = re.compile(r"(?:^|[\s:;,=]|-[ILB])(/[^\s:;,]+)")  # -I/FOLDER, --sysroot=/FOLDER
# Python's variables that change imports: they could import files of another tree.
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONSAFEPATH")
# Variables that Nsight Compute and Nsight Systems (2025.3) set for profiled processes, and entries that they add to
# LD_PRELOAD and LD_LIBRARY_PATH: child processes need these settings, and no build reads them.
_PROFILER = re.compile(
    r"(NV_NSIGHT|NV_COMPUTE_PROFILER|NV_TPS|NV_CUDA_START_SUSPENDED|NVIDIA_PROCESS_INJECTION|NVIDIA-PROCESS-TRACKING|"
    r"NSYS|QUADD|CUDA_INJECTION|NVTX_INJECTION)"
)
_INJECTED = re.compile(r"[^:\s]*(TreeLauncher|[Ii]njection|[Nn][Ss]ight[-_]?([Cc]ompute|[Ss]ystems))[^:\s]*[:\s]?")
# Cache folders of each build: variable -> subfolder of the build's caches/.
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
    "HOME": "home",  # only without HOME in the worker's environment
}


def clean(environ: Mapping[str, str], mode: str, allow: Iterable[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables of `environ` that workers receive, and the names of the others. `mode`: "user" withholds
    variables that look like secrets, "clean" all but an allow-list. Variables named in `allow` are never withheld."""
    let_through = set(allow)
    kept, withheld = {}, []
    for name, value in environ.items():
        if name in _DROPPED or name.startswith("GIT_"):
            continue
        secret = bool(_SECRET.search(name.upper()) or _SECRET_VALUE.search(value))
        profiled = without_profilers(name, value) != value
        if name in let_through or (not secret and (mode == "user" or profiled or _ALLOWED.match(name))):
            kept[name] = value
        else:
            withheld.append(name)
    return kept, tuple(sorted(withheld))


def places(env: Mapping[str, str], names: Collection[str] = ()) -> list[str]:
    """Return the absolute paths in the values of variables for compilers, CUDA, torch and Triton, and of `names`."""
    values = [value for name, value in env.items() if _ALLOWED.match(name) or name in {"PYTHONPATH", *names}]
    found = (place for value in values for place in (*value.split(os.pathsep), *_PATH.findall(value)))
    return [place for place in dict.fromkeys(found) if place.startswith("/")]


def without_profilers(name: str, value: str) -> str:
    """Return the value of variable `name` without the parts that a profiler set; "" if nothing is left."""
    if name in {"LD_PRELOAD", "LD_LIBRARY_PATH"}:
        return _INJECTED.sub("", value).strip(": ")
    return "" if _PROFILER.match(name) else value


def mode(asked: Literal["", "user", "clean"]) -> Literal["user", "clean"]:
    """Return `asked`, the value of `--env`. If it is "" (not given), return "clean" if $CI is set, else "user"."""
    return asked or ("clean" if os.environ.get("CI") else "user")


def worker(base: Mapping[str, str], caches: Path, device: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return a worker's environment: `shared(base, device)`, variables that place caches in `caches`, and `extra`."""
    private = {name: str(caches / folder) for name, folder in _CACHES.items() if name != "HOME" or name not in base}
    return {**shared(base, device), **private, **extra}


def shared(base: Mapping[str, str], device: str) -> dict[str, str]:
    """Return the variables that all workers share: `base` without paths of caches, and CUDA limited to `device`."""
    env = {
        **{name: value for name, value in base.items() if name not in _CACHES or name == "HOME"},
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # a worktree stays as git wrote it
        "PYTHONHASHSEED": "0",
    }
    if device == "cpu" or device.startswith("simulated"):
        # Threads of OpenMP and OpenBLAS spin for milliseconds after their work, and take the cores of the other side's turn.
        env.setdefault("GOMP_SPINCOUNT", "3000")
        env.setdefault("KMP_BLOCKTIME", "0")
        env.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # the shortest: 2**4 cycles
        env["CUDA_VISIBLE_DEVICES"] = ""  # a package that builds for the visible GPUs builds for the CPU only
    if device.startswith("cuda:"):
        env["CUDA_VISIBLE_DEVICES"] = device.removeprefix("cuda:")
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return env


def scrub_secrets(allow: Iterable[str] = ()) -> None:
    """Overwrite secrets in this process's /proc/PID/environ, except variables in `allow`. os.environ is unchanged."""
    known = {os.fsencode(name) for name in clean(os.environ, "user", allow)[1]}
    with contextlib.suppress(OSError, AttributeError, ValueError, IndexError):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        place, end = int(fields[47]), int(fields[48])  # env_start, env_end: fields 50 and 51 of proc_pid_stat(5)
        for entry in ctypes.string_at(place, end - place).split(b"\0") if 0 < place < end else ():
            name, _, value = entry.partition(b"=")
            if value and name in known:
                ctypes.memset(place + len(name) + 1, 0, len(value))
            place += len(entry) + 1
