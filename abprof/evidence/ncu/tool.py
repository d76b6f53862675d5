"""The doorway to ncu: where it is, how it records a program and prints a report, and in words why it could not."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.system import processes as proc

LIMIT = 1800.0  # seconds for one recording: every launch is replayed once for each group of counters
_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_TORN = ("==ERROR== Failed to profile", "==ERROR== An error occurred while trying to profile")
# Lines that say that something failed, and not what.
_HOLLOW = re.compile(r"The application |An error occurred while trying to profile")
_ADMINISTRATORS = Path("/proc/driver/nvidia/params")
_CAPABILITIES = Path("/proc/self/status")
_SYS_ADMIN = 1 << 21


class Refused(AbprofError):
    """No recording will succeed here until somebody mends something."""


@dataclass(frozen=True)
class Ncu:
    """An ncu that answers."""

    path: str
    version: str
    unknown: frozenset[str] = frozenset()  # metrics that it said it does not have here


@dataclass(frozen=True)
class Recorded:
    """How a recording went. `code`: ncu's exit code; `error`: why there is nothing to count, "" where there is.

    `failed`: what went wrong with ncu itself, and not with the program; "" where it says nothing of the kind.
    """

    code: int
    error: str
    failed: str
    ncu: Ncu  # with what it did not know


def find(env: Mapping[str, str]) -> Ncu:
    """The ncu on PATH, under $CUDA_HOME or $CUDA_PATH, or where its installers put it. Raises Refused."""
    under = [f"{env[name]}/bin/ncu" for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    fixed = [str(path) for place in _PLACES for path in sorted(Path("/").glob(place[1:]), reverse=True)]
    found = [shutil.which("ncu", path=env.get("PATH")), *map(shutil.which, [*under, *fixed])]
    for path in filter(None, found):
        said = proc.output([path, "--version"], timeout=60.0, env={**env, "LC_ALL": "C"})
        if said is not None and "Nsight Compute" in said:  # there are other tools of this name
            version = re.search(r"[Vv]ersion\s+(\S+)", said)
            return Ncu(path, version[1] if version else said.strip().splitlines()[-1][:80] if said.strip() else "?")
    looked = ", ".join(["PATH", *under, *_PLACES])
    what = "Nsight Compute's ncu does not answer" if any(found) else "there is no ncu (Nsight Compute)"
    advice = "it comes with the CUDA toolkit; else install the package nsight-compute, or set CUDA_HOME"
    raise Refused(f"{what}; looked on {looked}", advice=advice)


def record(
    ncu: Ncu,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    metrics: Sequence[str],
    to: Path,
    log: Path,
    nvtx: str = "",
) -> Recorded:
    """Run a program under ncu and keep its report in `to` (.ncu-rep). What both print goes to `log`.

    `nvtx`: only launches inside this start/end range. Metrics that ncu does not know here are left out of a second try.
    Raises Refused where counters may not be read, WorkerDied for an ncu that cannot be started or takes too long.
    """
    asked = [name for name in metrics if name not in ncu.unknown]
    filtered = ["--nvtx", "--nvtx-include", nvtx] if nvtx else []
    options = ["--target-processes", "all", "--clock-control", "none", *filtered, "--metrics", ",".join(asked)]
    options += ["--force-overwrite", "--export", str(to).replace("%", "%%")]  # a lone one is a macro
    began = log.stat().st_size if log.exists() else 0
    code = proc.logged([ncu.path, *options, *argv], env={**env, "LC_ALL": "C"}, cwd=cwd, log=log, timeout=LIMIT)
    said = _said(log, began)
    if any("ERR_NVGPUCTRPERM" in line for line in said):
        raise Refused("ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)" + _missing(), advice=_GRANT)
    unknown = {name for line in said if "metric" in line for name in asked if _names(line, name)}
    if unknown and not to.exists() and len(unknown) < len(asked):
        known = dataclasses.replace(ncu, unknown=ncu.unknown | unknown)
        return record(known, argv, env=env, cwd=cwd, metrics=metrics, to=to, log=log, nvtx=nvtx)
    failed = _failed(said)
    if to.exists():  # also where it failed midway
        torn = any(line.startswith(_TORN) for line in said)
        return Recorded(code, f"ncu failed midway: {failed}" if torn else "", failed, ncu)
    return Recorded(code, _why(said, failed, code), failed, ncu)


def raw_page(ncu: Ncu, report: Path, *, env: Mapping[str, str], to: Path) -> None:
    """Print a report's raw page, in base units and the locale C. Raises AbprofError."""
    argv = [ncu.path, "--import", str(report.absolute()), "--csv", "--page", "raw", "--print-units", "base"]
    to.unlink(missing_ok=True)
    try:
        code = proc.logged(argv, env={**env, "LC_ALL": "C"}, cwd=to.parent, log=to, timeout=LIMIT)
    except proc.WorkerDied as failed:
        raise AbprofError(f"ncu could not print its own report: {failed.reason}", where=str(report)) from failed
    if code:
        what = f"ncu could not print its own report (exit code {code})"
        raise AbprofError(what, where=str(report), advice=f"try {' '.join(argv)}")


_GRANT = (
    "run as root or with CAP_SYS_ADMIN (a container: --cap-add=SYS_ADMIN), or let everybody: the line `options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0` in a file of /etc/modprobe.d, then load the module again or restart"
)


def _missing() -> str:
    """What is missing here, as far as the system tells."""
    told = []
    if re.search(r"RmProfilingAdminOnly:\s*1", _text(_ADMINISTRATORS)):
        told.append("the driver leaves them to administrators (RmProfilingAdminOnly: 1)")
    capabilities = re.search(r"CapEff:\s*([0-9a-f]+)", _text(_CAPABILITIES))
    if capabilities and not int(capabilities[1], 16) & _SYS_ADMIN:
        told.append("this process lacks CAP_SYS_ADMIN")
    return f": {' and '.join(told)}" if told else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _said(log: Path, began: int) -> list[str]:
    """Ncu's own complaints, each once."""
    with log.open("rb") as file:
        file.seek(began)
        text = file.read().decode(errors="replace")
    return list(dict.fromkeys(re.findall(r"^==(?:ERROR|WARNING)== .*$", text, re.M)))


def _names(line: str, metric: str) -> bool:
    """Whether a complaint is about this metric, and not about a longer name; ncu shows it as a regular expression."""
    return re.search(rf"(?<!\w){re.escape(metric)}(?!\.?\w)", line.replace("\\", "")) is not None


def _failed(said: Sequence[str]) -> str:
    """In ncu's words what went wrong with ncu itself; "" where it says only how the program ended."""
    errors = _errors(said)
    told = [line for line in errors if not _HOLLOW.match(line)]
    own = told or [line for line in errors if not line.startswith("The application ")]
    return " ".join(own)[:300]


def _errors(said: Sequence[str]) -> list[str]:
    return [line.removeprefix("==ERROR== ") for line in said if line.startswith("==ERROR== ")]


def _why(said: Sequence[str], failed: str, code: int) -> str:
    """Why there is no report."""
    errors = _errors(said)
    if not errors and any("No kernels were profiled" in line for line in said):
        return "ncu saw no kernel in the calls"
    what = failed or " ".join(errors)[:300] or f"exit code {code}"
    return f"ncu made no report: {what}" if errors else f"ncu made no report ({what})"
