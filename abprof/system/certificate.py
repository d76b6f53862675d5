"""Keep on disk which machines passed a selfcheck, and since which boot and driver: in CI only these may fail a run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from abprof.records import Machine
from abprof.system.files import put

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Certificate(msgspec.Struct):
    """The content of a certificate. `fault`: why the selfcheck failed; "": it passed."""

    boot: str
    driver: str
    fault: str = ""


def keep(state: Path, machine: Machine, fault: str) -> None:
    """Write the result of a selfcheck on the machine's device to the state folder. Raises AbprofError."""
    put(_file(state, machine), msgspec.json.encode(msgspec.structs.replace(_now(machine), fault=fault)))


def lacking(state: Path, machine: Machine) -> str:
    """Return why the machine's device has no valid certificate; "": it has one."""
    now = _now(machine)
    try:
        found = msgspec.json.decode(_file(state, machine).read_bytes(), type=_Certificate)
    except (OSError, msgspec.MsgspecError):
        return "this machine has passed no selfcheck"
    if (found.boot, found.driver) != (now.boot, now.driver):
        what = "its driver was changed" if found.boot == now.boot else "it was booted"
        return f"this machine has passed no selfcheck since {what}"
    return f"this machine failed its last selfcheck ({found.fault})" if found.fault else ""


def _now(machine: Machine) -> _Certificate:
    return _Certificate(_BOOT.read_text().strip() if _BOOT.exists() else "", machine.facts.get("driver", ""))


def _file(state: Path, machine: Machine) -> Path:
    device = machine.uuid or machine.device
    return state / "certificates" / f"{hashlib.sha256(device.encode()).hexdigest()[:16]}.json"
