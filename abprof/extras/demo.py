"""`abprof demo`: create a small repository whose branch has a speed-up and a slow-down, and compare both branches."""

from __future__ import annotations

import shutil
from pathlib import Path

from abprof import devices, session
from abprof.records import Run
from abprof.records.options import Options
from abprof.sides import NewRepository
from abprof.system.console import View
from abprof.system.paths import bundled

EDITED = "kernels/ffa/autograd.py"

# main computes the row statistics of block-sparse attention in a second pass; the branch gets output and statistics in one pass.
FUSED = "            out, lse = backend_for(q.device).forward(q, k, v, schedule, scale)\n"
SPLIT = """\
            out, lse = backend_for(q.device).forward(q, k, v, schedule, scale)
            if isinstance(schedule, Blocks):  # the statistics, in a pass of their own
                _, lse = backend_for(q.device).forward(q, k, v, schedule, scale)
"""

# To save memory, the branch also recomputes the output in the backward pass: every backward gets slower.
SAVED = "        dq, dk, dv = backend_for(q.device).backward(grads[0], q, k, v, out, lse, ctx.schedule, ctx.scale)\n"
RECOMPUTED = """\
        out, lse = backend_for(q.device).forward(q, k, v, ctx.schedule, ctx.scale)
        dq, dk, dv = backend_for(q.device).backward(grads[0], q, k, v, out, lse, ctx.schedule, ctx.scale)
"""


def run(folder: str, device: tuple[str, ...], view: View) -> tuple[Run, Path]:
    """Create the repository in `folder` and compare its branches. Return the run and its folder."""
    devices.several(device)  # raises before any file is written
    path = make(Path(folder or "abprof-demo"))
    view.say(f"created {path}: branch main, and branch optimize_ffa with two more commits")
    return session.run(config(path, device), view)


def config(path: Path, device: tuple[str, ...]) -> Options:
    """Return the options of the demo's comparison. On a CPU it uses smaller workloads."""
    on_cpu = devices.choose(device).kind == "cpu"
    return Options(
        specs=("main", "optimize_ffa"),
        repo=str(path),
        preset="smoke" if on_cpu else "default",
        only=(f"block_sparse/*ratio={0.2 if on_cpu else 0.1},*", "dense/*mask_type=full*", "dense/*mask_type=causal*"),
        device=device,
        budget=60.0 if on_cpu else 90.0,
        no_peers=True,
        arguments=("demo",),
    )


def make(path: Path) -> Path:
    """Create the demo's repository in `path` and return `path`. Raises AbprofError if the folder is not empty."""
    repository = NewRepository(path, "main")
    for kind in ("kernels", "workloads"):
        shutil.copytree(bundled(kind), path / kind, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    source = (path / EDITED).read_text()
    first = {EDITED: source.replace(FUSED, SPLIT), ".gitignore": "runs/\n"}
    repository.commit("Attention kernels and the workloads that judge them", first)
    repository.branch("optimize_ffa")
    repository.commit("Block-sparse forward: take output and statistics from one pass", {EDITED: source})
    slipped = source.replace(SAVED, RECOMPUTED)
    repository.commit("Backward: compute the output again rather than keep it", {EDITED: slipped})
    repository.switch("main")
    return path
