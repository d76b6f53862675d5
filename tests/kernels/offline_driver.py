"""Compile the kernels of kernels/ffa/cuda for sm_90a on a machine without a GPU, and read the machine code.

    python -m tests.kernels.offline_driver [label ...]

A process of its own, because it makes `OfflineDriver` Triton's driver: nothing can be launched in it. Prints one JSON
object per kernel of warmup.catalogue, all of them or those whose label is given. `report` does the same for the kernels
of other packages.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


class OfflineDriver(DriverBase):
    """Answers what the compiler asks of a driver; there is nothing to launch on."""

    def __init__(self, capability: int = 90) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        raise RuntimeError("no GPU: nothing can be benchmarked")


@dataclass(frozen=True)
class MachineCode:
    """What the assembler made of a kernel: registers at entry, stack bytes, and how often each opcode stands in it."""

    name: str
    registers: int
    stack: int
    shared: int
    opcodes: dict[str, int] = field(repr=False)
    sass: str = field(repr=False)

    def count(self, prefix: str) -> int:
        return sum(n for opcode, n in self.opcodes.items() if opcode == prefix or opcode.startswith(prefix + "."))


def machine_code(kernel: Any) -> MachineCode:
    """Disassemble a compiled kernel with the tools that Triton brings along."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        usage = _run("cuobjdump", "--dump-resource-usage", cubin.name)
        sass = _run("nvdisasm", "-c", cubin.name)
    found = re.search(r"Function (\S+):\s+REG:(\d+) STACK:(\d+)", usage)
    if not found:
        raise ValueError(f"no resource usage in cuobjdump's output: {usage[:200]!r}")
    opcodes: dict[str, int] = {}
    for opcode in OPCODE.findall(sass):
        opcodes[opcode] = opcodes.get(opcode, 0) + 1
    return MachineCode(found[1], int(found[2]), int(found[3]), kernel.metadata.shared, opcodes, sass)


def _run(tool: str, *args: str) -> str:
    return subprocess.run([str(TOOLS / tool), *args], capture_output=True, text=True, check=True).stdout


def overlaps(sass: str) -> list[int]:
    """How many exponentials stand between each `wait until one wgmma group is left` and the wait for the last one."""
    found, since, waiting = [], 0, False
    for op, left in re.findall(r"(MUFU\.EX2)|WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)", sass):
        if op:
            since += 1
        else:
            if waiting and left == "0":
                found.append(since)
            since, waiting = 0, left == "1"
    return found


def report(catalogue: Callable[[torch.device], Iterable[tuple[str, Any]]], labels: list[str]) -> None:
    """Compile (label, launch) of the catalogue, all or those named, and print a line of JSON for each."""
    for label, job in catalogue(torch.device("cpu")):
        if labels and label not in labels:
            continue
        grid = job.grid if hasattr(job, "grid") else (job.programs,)
        code = machine_code(job.kernel.warmup(*job.args, grid=grid, **job.options))
        opcodes = (
            "HGMMA",
            "HMMA",
            "UTCHMMA",
            "WARPGROUP.DEPBAR",
            "UTMALDG",
            "UTMASTG",
            "UTMAREDG",
            "STL",
            "LDL",
            "LDGSTS",
            "LDGSTS.E.BYPASS",
            "LDG.E.128",
            "LDG.E.128.STRONG",
            "MUFU.RCP",
        )
        counts = {opcode: code.count(opcode) for opcode in opcodes}
        facts = {"label": label, "registers": code.registers, "stack": code.stack, "shared": code.shared}
        print(json.dumps(facts | counts | {"overlaps": overlaps(code.sass)}), flush=True)


def main(labels: list[str]) -> None:
    driver.set_active(OfflineDriver())
    from kernels.ffa.cuda import warmup

    report(warmup.catalogue, labels)


if __name__ == "__main__":
    main(sys.argv[1:])
