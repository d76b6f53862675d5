"""Keep on disk which machines passed a selfcheck, and since which boot and driver: in CI only these may fail a run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from abprof.system.files import put

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Certificate(msgspec.Struct):
    """The content of a certificate. `fault`: why the selfcheck failed; "": it passed."""

    boot: str
    driver: str
    run: str
    fault: str


def keep(state: Path, device: str, driver: str, run: str, fault: str) -> None:
    """Write the result of the selfcheck `run` on `device` to the state folder. Raises AbprofError."""
    put(_file(state, device), msgspec.json.encode(_Certificate(_boot(), driver, run, fault)))


def lacking(state: Path, device: str, driver: str) -> str:
    """Return why `device` has no valid certificate; "": it has one. `driver`: the driver's version, "" for a CPU."""
    try:
        found = msgspec.json.decode(_file(state, device).read_bytes(), type=_Certificate)
    except (OSError, msgspec.MsgspecError):
        return "this machine has passed no selfcheck"
    if (found.boot, found.driver) != (_boot(), driver):
        what = "its driver was changed" if found.boot == _boot() else "it was booted"
        return f"this machine has passed no selfcheck since {what}"
    return f"this machine failed its last selfcheck ({found.fault})" if found.fault else ""


def _boot() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def _file(state: Path, device: str) -> Path:
    return state / "certificates" / f"{hashlib.sha256(device.encode()).hexdigest()[:16]}.json"
