"""Machine code of ffa's Hopper kernels without a GPU: python -m tests.kernels.machine_code LABEL ...

A process of its own, because it makes `OfflineDriver` Triton's driver. Prints one JSON object: label of
kernels/ffa/cuda/warmup.py -> instruction -> how often it is in sm_90a code, and "shared bytes".
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime import driver

from kernels.ffa.cuda.warmup import catalogue
from tests.kernels.offline_driver import OfflineDriver

NVDISASM = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", re.MULTILINE)


def main(wanted: list[str]) -> None:
    driver.set_active(OfflineDriver())
    jobs = {label: job for label, job in catalogue(torch.device("cpu")) if label in wanted}
    made = {label: job.kernel.warmup(*job.args, grid=(1,), **job.options) for label, job in jobs.items()}
    print(json.dumps({label: _instructions(kernel) for label, kernel in made.items()}))


def _instructions(kernel: Any) -> Counter[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run([NVDISASM, "-c", file.name], capture_output=True, text=True, check=True).stdout
    found = Counter(name.partition(".")[0] if "WARPGROUP" not in name else name for name in INSTRUCTION.findall(text))
    return found + Counter({"shared bytes": kernel.metadata.shared})


if __name__ == "__main__":
    main(sys.argv[1:])
