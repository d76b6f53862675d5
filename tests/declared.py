"""Runs of workloads that declare sections: a ladder over sequence lengths, a density sweep, autotuning, memory traffic."""

from __future__ import annotations

from abprof.model import Band, Cell, Observation, Run, Sweep, Value, Workload

from . import runs

STEPS = ("basic", "exp2", "approx")
FMHA = Workload(name="fmha", kernel="fmha", suite="fmha", axes=("seqlen",), judge="gpu", variants=STEPS, scaled="seqlen",
                ladder=STEPS, text="A ladder of steps.")  # fmt: skip
MASKED = Workload(
    name="masked",
    kernel="dmask",
    suite="masked",
    axes=("pattern", "sparsity"),
    judge="gpu",
    sweep=Sweep(
        axes=("pattern", "sparsity"),
        bands=(Band(density=(0.0, 0.2), speedup=(2.0, 4.0)), Band(density=(0.6, 1.0), speedup=(0.97, 1.5))),
    ),
)
_FLOPS = 4.0 * 32 * 128
# Milliseconds of base's steps by length; target's last step is 10 % faster.
TIMES = {1024: (0.10, 0.08, 0.05), 4096: (1.0, 0.9, 0.5), 16384: (20.0, 14.0, 7.0)}
# (pattern, sparsity, measured density, base's ms, target's ms)
SWEPT = (
    ("dense", 0.0, 1.0, 8.0, 8.0),
    ("random", 0.5, 0.7, 7.9, 4.0),
    ("band", 0.9, 0.1, 3.2, 9.0),
    ("none", 0.3, 0.4, 5.0, 5.0),
)


def _cell(workload: Workload, params: dict[str, Value], flops: float | None) -> Cell:
    name = ",".join(f"{axis}={value}" for axis, value in params.items())
    return Cell(id=f"{workload.name}/{name}", workload=workload.name, kernel=workload.kernel, suite=workload.suite,
                params=params, flops=flops)  # fmt: skip


def _seen(cell: Cell, arm: str, ms: float, **facts: Value) -> Observation:
    return runs.changed(runs.observed(cell, arm, ms), phases=None, facts=facts)


def run() -> Run:
    """Two sides of both workloads; one step of one length ran out of memory."""
    cells, seen, judged = [], [], []
    for seqlen, times in TIMES.items():
        cells.append(_cell(FMHA, {"seqlen": seqlen}, _FLOPS * seqlen**2))
        for step, ms in zip(STEPS, times, strict=True):
            last = step == STEPS[-1]
            config = f"BLOCK_M=128 num_warps={4 if seqlen < 4096 else 8}"
            least: dict[str, Value] = {"minimum_dram_bytes": 32768.0 * seqlen, "minimum_l2_bytes": 65536.0 * seqlen}
            seen.append(_seen(cells[-1], f"base:{step}", ms, autotuned=config, **least))
            seen.append(_seen(cells[-1], f"target:{step}", ms * (0.9 if last else 1.0),
                              autotuned=config.replace("128", "64") if last else config, **least))  # fmt: skip
            ends = {"from_": f"base:{step}", "to": f"target:{step}", "discovery": True}
            judged.append(runs.compared(cells[-1], "faster" if last else "same", -10.0 if last else 0.0, 0.1, **ends))
    lost = seen[2]
    seen[2] = runs.changed(lost, status="oom", reason="tried to allocate 96 GiB", metrics={}, facts={})
    for pattern, sparsity, density, base, target in SWEPT:
        cells.append(_cell(MASKED, {"pattern": pattern, "sparsity": sparsity}, None))
        seen += [_seen(cells[-1], "base", base, density=density), _seen(cells[-1], "target", target, density=density)]
        judged.append(runs.compared(cells[-1], "same", 0.0, 0.1))
    plain = runs.run("20261120T021700Z-declared")
    return runs.changed(plain, workloads=(FMHA, MASKED), cells=tuple(cells), observations=tuple(seen),
                        comparisons=tuple(judged), warnings=(), builds=())  # fmt: skip
