"""Runs of workloads that declare sections: a ladder over sequence lengths, a density sweep, autotuning, memory traffic."""

from abprof.records import Band, Cell, Observation, Run, Sweep, Value, Workload

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


def scripts() -> Run:
    """Workloads whose results older scripts wrote as JSON, with the axes those have."""
    ladder = runs.changed(FMHA, name="fmha_scaling", suite="fmha_scaling", axes=("seq_len", "batch"), scaled="seq_len")
    specialised = runs.changed(
        FMHA, name="hopper_ws", suite="hopper_ws", axes=("N_CTX",), variants=("ws", "ws_pp"), ladder=()
    )
    masked = runs.changed(MASKED, name="dynamic_mask", suite="dynamic_mask", axes=("pattern", "sparsity", "direction"))
    cells, seen = [], []
    for seqlen, times in TIMES.items():
        cells.append(_cell(ladder, {"seq_len": seqlen, "batch": 4, "n_heads": 32, "head_dim": 128}, _FLOPS * seqlen**2))
        configuration = "block_m=128 block_n=64 num_warps=8 num_stages=2 tma=True per_sm=2"
        seen += [_seen(cells[-1], f"{side}:{step}", ms, configuration=configuration)
                 for side in ("base", "target") for step, ms in zip(STEPS, times, strict=True)]  # fmt: skip
    cells.append(runs.changed(_cell(specialised, {"N_CTX": 128}, 2.684e8), bytes=4194304.0))
    seen += [_seen(cells[-1], f"base:{name}", ms) for name, ms in (("ws", 0.234), ("ws_pp", 0.2))]
    for direction in ("fwd", "bwd"):
        for pattern, sparsity, density, base, target in SWEPT:
            cells.append(_cell(masked, {"pattern": pattern, "sparsity": sparsity, "direction": direction}, None))
            seen += [_seen(cells[-1], arm, ms, density=density) for arm, ms in (("base", base), ("target", target))]
    seen[-1] = runs.changed(seen[-1], status="crash", reason="RuntimeError: no", metrics={}, facts={})
    plain = runs.run("20261120T021700Z-scripts")
    return runs.changed(plain, workloads=(ladder, specialised, masked), cells=tuple(cells), observations=tuple(seen),
                        comparisons=(), warnings=(), builds=())  # fmt: skip
