"""Realistic runs for tests: every status and verdict, gaps, hostile labels. `python -m tests.runs FOLDER` writes one.

The numbers are made up but of the right size (an H200's), and hang together: a comparison's `pct` is what its
observations say, blocks scatter around their observation's value.
"""

import dataclasses
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from abprof.records import (
    SCHEMA,
    Advice,
    Arm,
    Artefact,
    Block,
    Build,
    Ceilings,
    Cell,
    CheckResult,
    Comparison,
    Failure,
    Header,
    Machine,
    MachineState,
    Metric,
    Observation,
    Options,
    Outcome,
    Phase,
    Proof,
    Run,
    Side,
    Status,
    Toolchain,
    Turn,
    Value,
    Verdict,
    Workload,
)
from abprof.store import runfolder

MAIN = Side(
    id="base", spec="main", kind="commit", commit="1a2b3c4d" * 5, tree="0f" * 20, label="main", subject="Tidy the tests"
)
TARGET = Side(
    id="target", spec="feature/optimize ffa", kind="commit", commit="9f2c4e7a" * 5, tree="1e" * 20,
    label="feature/optimize ffa", subject="Skip empty tiles",
)  # fmt: skip
HOSTILE = "x|y`z<script>alert(1)</script>\n../“é🔥”@torvalds #1 [a](b) --> *b* _i_ ~s~ \x1b[31m\u202e=1+1"

MS = 1e6  # ns
_FORWARD = ("range_merge", "sparse_load_preprocess", "prepare", "run", "postprocess", "cast")
_BACKWARD = ("range_merge", "prepare", "preprocess", "run", "postprocess", "cast")
_PHASES = tuple(
    Phase(name=f"{way}_{part}", range=f"ffa_{way}_{part}", text=f"{part} of the {way}")
    for way, parts in (("fwd", _FORWARD), ("bwd", _BACKWARD))
    for part in parts
)
DENSE = Workload(
    name="dense",
    kernel="ffa",
    suite="dense",
    axes=("seqlen", "mask_type", "nhq", "nhk", "hd", "dtype", "direction"),
    judge="gpu",
    phases=_PHASES,
    seed_columns=("seqlen", "mask_type", "direction"),
    peers=("sdpa",),
    text="Attention over ranges, dense and variable-length masks.",
    sha256="ab" * 32,
)
SPARSE = Workload(
    name="block_sparse",
    kernel="ffa",
    suite="block_sparse",
    axes=("seqlen", "sparsity_ratio", "q_block_size", "k_block_size", "swap_ab", "pack_gqa", "sparse_load",
          "kblockm", "kblockn", "direction"),
    judge="gpu",
    phases=_PHASES,
    seed_columns=("seqlen", "sparsity_ratio", "q_block_size", "k_block_size", "swap_ab", "pack_gqa", "sparse_load",
                  "kblockm", "kblockn", "direction"),
    sha256="cd" * 32,
)  # fmt: skip
LADDER = Workload(
    name="ladder", kernel="wsattn", suite="ladder", axes=("n",), judge="gpu", variants=("ws", "ws_pp"), sha256="ef" * 32
)
_AREA = {"full": 8192 * 8192, "causal": 8192 * 8193 // 2, "varlen_full": 16299902, "varlen_causal": 8523401}


def dense_cell(mask: str, direction: str) -> Cell:
    flops = 4.0 * _AREA[mask] * 64 * 128 * (2.5 if direction == "bwd" else 1.0)
    params: dict[str, Value] = {"seqlen": 8192, "mask_type": mask, "nhq": 64, "nhk": 64, "hd": 128, "dtype": "bf16",
                                "direction": direction}  # fmt: skip
    return _cell(DENSE, params, flops, "area-exact" if direction == "fwd" else "area-exact-bwd2.5")


def sparse_cell(ratio: float, block: int, direction: str) -> Cell:
    flops = 4.0 * 64 * 49152**2 * 128 * ratio * (2.5 if direction == "bwd" else 1.0)
    params: dict[str, Value] = {"seqlen": 49152, "sparsity_ratio": ratio, "q_block_size": block, "k_block_size": block,
                                "swap_ab": False, "pack_gqa": False, "sparse_load": False, "kblockm": block,
                                "kblockn": block, "direction": direction}  # fmt: skip
    return _cell(SPARSE, params, flops, "block-nominal")


def _cell(workload: Workload, params: dict[str, Value], flops: float | None, convention: str) -> Cell:
    name = ",".join(f"{k}={v}" for k, v in params.items())
    return Cell(id=f"{workload.name}/{name}", workload=workload.name, kernel=workload.kernel, suite=workload.suite,
                params=params, flops=flops, bytes=5.4e8 if flops else None, convention=convention)  # fmt: skip


def observed(cell: Cell, arm: str, ms: float | None, status: Status = "ok", **more: object) -> Observation:
    """An observation with an interval of 0.1 % when `ms` is given, and phases of a profile pass."""
    metrics = {}
    if ms is not None:
        low, high = ms * MS * 0.999, ms * MS * 1.001
        metrics = {
            "gpu_span": Metric(value=ms * MS, unit="ns", low=low, high=high, protocol="abprof"),
            "wall": Metric(value=ms * MS + 9000, unit="ns", protocol="abprof"),
            "peak_mem_bytes": Metric(value=805306368.0, unit="bytes"),
        }
        if cell.flops:
            metrics["tflops"] = Metric(value=cell.flops / ms / MS / 1e3, unit="TFLOP/s", better="higher")
    phases = None
    if ms is not None and "direction" in cell.params:
        way, total = cell.params["direction"], ms * MS * 1.02
        parts = {"prepare": 0.0153 * MS, "run": ms * MS * 0.955, "cast": 0.0032 * MS}
        phases = {phase.name: None for phase in _PHASES} | {f"{way}_{name}": ns for name, ns in parts.items()}
        phases |= {"total": total, "residual": total - sum(parts.values())}
    check = CheckResult(ok=status != "wrong", max_abs=0.0039, max_rel=0.0021, digest="d1") if ms is not None else None
    fields = {"metrics": metrics, "phases": phases, "check": check, "epochs": 6 if ms is not None else 0, **more}
    return Observation(cell=cell.id, arm=arm, status=status, **fields)


def compared(cell: Cell, verdict: Verdict, pct: float | None = None, half: float = 0.3, **more: object) -> Comparison:
    """base against target; `half` is half the interval's width in per cent."""
    bounds = {} if pct is None else {"pct": pct, "low_pct": pct - half, "high_pct": pct + half, "p": 0.01}
    fields = {"from_": "base", "to": "target", "metric": "gpu_span", "epochs": 6, "look": 2, **bounds, **more}
    return Comparison(cell=cell.id, verdict=verdict, **fields)


def pair(cell: Cell, ms: float, pct: float) -> list[Observation]:
    return [observed(cell, "base", ms), observed(cell, "target", ms * (1 + pct / 100))]


def _results() -> tuple[list[Cell], list[Observation], list[Comparison]]:
    """Cells with every verdict and every status an arm can have."""
    full_f, full_b = dense_cell("full", "fwd"), dense_cell("full", "bwd")
    causal_f, causal_b = dense_cell("causal", "fwd"), dense_cell("causal", "bwd")
    varlen_f, varlen_b = dense_cell("varlen_full", "fwd"), dense_cell("varlen_causal", "bwd")
    seen = [
        *pair(full_f, 3.5861, -6.2),
        *pair(full_b, 10.0102, 2.1),
        *pair(causal_f, 1.9, 0.7),
        *pair(causal_b, 5.2, 0.02),
    ]
    judged = [compared(full_f, "faster", -6.2, discovery=True), compared(full_b, "slower", 2.1, discovery=True),
              compared(causal_f, "slight", 0.7), compared(causal_b, "same", 0.02, 0.1)]  # fmt: skip
    seen += [
        *pair(varlen_f, 1.02, 0.9),
        observed(varlen_b, "base", 1.5, "identical"),
        observed(varlen_b, "target", None, "identical"),
    ]
    judged += [compared(varlen_f, "unclear", 0.9, 1.4, reasons=("budget",), certifiable_pct=2.3),
               compared(varlen_b, "same", reasons=("identical_code",))]  # fmt: skip
    cells = [full_f, full_b, causal_f, causal_b, varlen_f, varlen_b]
    more = _failures()
    return cells + more[0], seen + more[1], judged + more[2]


def _failures() -> tuple[list[Cell], list[Observation], list[Comparison]]:
    """Block-sparse cells whose arms did not all run, one for each way of not running."""
    plan: list[tuple[float, int, Status, Status, Verdict, str, str]] = [
        (0.05, 64, "ok", "wrong", "broken", "wrong", "output 0: largest error 0.41, allowed 0.02"),
        (0.1, 64, "ok", "crash", "broken", "crash", "RuntimeError: invalid argument | grid (0, 1, 1)"),
        (0.2, 64, "ok", "oom", "broken", "oom", "tried to allocate 96.00 GiB"),
        (0.5, 64, "ok", "timeout", "broken", "timeout", "no answer for 120 s"),
        (1.0, 64, "ok", "build_failed", "broken", "build_failed", "error: no member named 'tile' in 'Params'"),
        (0.05, 128, "missing", "ok", "unclear", "base_missing", "AttributeError: no block_sparse_bwd"),
        (0.1, 128, "unsupported", "unsupported", "unclear", "unsupported", "block 128 needs compute capability 9.0"),
        (0.5, 128, "ok", "missing", "broken", "missing", "AttributeError: no block_sparse_fwd"),
        (0.2, 128, "crash", "crash", "broken", "both", "Segmentation fault"),
    ]
    cells, seen, judged = [], [], []
    for ratio, block, base, target, verdict, code, why in plan:
        cell = sparse_cell(ratio, block, "fwd")
        cells.append(cell)
        for arm, status in (("base", base), ("target", target)):
            reason = "" if status == "ok" else why
            log = "logs/target-ffa.log" if status in ("crash", "build_failed") else ""
            seen.append(observed(cell, arm, 20.0 * ratio if status == "ok" else None, status, reason=reason, log=log))
        judged.append(compared(cell, verdict, reasons=(code,)))
    return cells, seen, judged


def _ladder() -> tuple[list[Cell], list[Observation], list[Comparison]]:
    """Variants and a peer; no FLOPs are declared, and no seed columns."""
    cell = _cell(LADDER, {"n": 4096}, None, "")
    seen, judged = [], []
    for variant, ms in (("ws", 0.0412), ("ws_pp", 0.0389)):
        seen += [observed(cell, f"base:{variant}", ms), observed(cell, f"target:{variant}", ms * 1.001)]
        judged.append(compared(cell, "same", 0.1, 0.2, from_=f"base:{variant}", to=f"target:{variant}"))
    seen.append(observed(cell, "peer:sdpa", 0.0501))
    return [cell], seen, judged


_ARMS = (
    Arm(id="base", side="base"),
    Arm(id="target", side="target"),
    Arm(id="base:ws", side="base", variant="ws"),
    Arm(id="target:ws", side="target", variant="ws"),
    Arm(id="base:ws_pp", side="base", variant="ws_pp"),
    Arm(id="target:ws_pp", side="target", variant="ws_pp"),
    Arm(id="peer:sdpa", side="base", peer="sdpa"),
    Arm(id="control", side="control"),
)


def run(run_id: str = "20261120T021700Z-main-optimize_ffa", *, target: Side = TARGET) -> Run:
    """Two sides, three workloads, every status and verdict, six controls, two warnings."""
    first, last = _results(), _ladder()
    cells, seen, judged = first[0] + last[0], first[1] + last[1], first[2] + last[2]
    counts: dict[str, int] = dict(Counter(comparison.verdict for comparison in judged))
    counts |= {"unclear": counts["unclear"] - 1, "unsupported": 1, "undecided": 1, "cells": len(cells)}
    counts |= {"controls": 6, "controls_inside": 6, "controls_outside": 0, "controls_second_build": 6}
    controls = tuple(
        Comparison(
            cell=cell.id,
            from_="base",
            to="control",
            metric="gpu_span",
            verdict="same",
            pct=0.01 * i,
            low_pct=0.01 * i - 0.1,
            high_pct=0.01 * i + 0.1,
            epochs=6,
        )
        for i, cell in enumerate(cells[:6])
    )
    return Run(
        schema=SCHEMA,
        id=run_id,
        status="complete",
        began="2026-11-20T02:17:00Z",
        ended="2026-11-20T02:24:31Z",
        options=Options(
            threshold=1.5,
            margin=0.5,
            budget=600.0,
            judge="gpu",
            timer="auto",
            all=True,
            arguments=("main", target.spec),
        ),
        sides=(MAIN, target),
        workloads=(DENSE, SPARSE, LADDER),
        workloads_from="workloads sha256:77aa",
        arms=_ARMS,
        cells=tuple(cells),
        builds=_builds(),
        machine=Machine(
            host="node7",
            device="NVIDIA H200",
            kind="cuda",
            uuid="GPU-5d0e",
            cpus=16,
            memory_bytes=137438953472,
            facts={"driver": "570.86", "power_limit_w": "700"},
        ),
        versions={"abprof": "0.1.0", "torch": "2.13.0", "triton": "3.6.0", "cuda": "12.8", "python": "3.12.3"},
        toolchains={"base": _toolchain("12.8"), "target": _toolchain("12.9", einops="0.8.1")},
        ceilings=Ceilings(
            tflops=750.3,
            tflops_by="bfloat16 matrix products of 8192 x 8192 x 8192, the best of 9 readings",
            gbps=4102.7,
            gbps_by="copies of 1024 MiB, bytes read and written, the best of 3 readings",
        ),
        environment={"OMP_NUM_THREADS": "2"},
        withheld=("GITHUB_TOKEN",),
        notes=("main has moved on by 3 commits since the merge base; 1 of them touches the kernels",),
        header=Header(
            sentence=f"{counts['slower']} slower, {counts['faster']} faster, {counts['broken']} broken of {len(cells)}",
            counts=counts,
            trusted=True,
            false_alarm_bound=0.39,
            exit_code=1,
        ),
        observations=tuple(seen),
        comparisons=tuple(judged),
        controls=controls,
        proofs=_proofs(),
        warnings=(
            Advice(
                kind="power",
                text="2 cells ran at the power limit",
                advice="rerun them with --protocol sustained",
                cells=(cells[0].id,),
            ),
            Advice(kind="base_missing", text="1 cell exists on the target only"),
        ),
    )


def _toolchain(cuda: str, **more: str) -> Toolchain:
    return Toolchain(versions={"torch": "2.13.0", "nvcc": f"nvcc {cuda}"}, packages={"numpy": "2.3.1", **more})


def _builds() -> tuple[Build, ...]:
    failure = Failure(
        status="build_failed", reason="error: no member named 'tile' in 'Params'", log="logs/target-ffa.log"
    )
    return (
        Build(side="base", kernel="ffa", key="k1" * 8, path="/cache/b/k1", seconds=31.2, log="logs/base-ffa.log",
              facts={"compiler": "nvcc 12.8", "registers": "168"}),
        Build(side="target", kernel="ffa", key="k2" * 8, path="/cache/b/k2", cached=True, log="logs/target-ffa.log"),
        Build(side="target", kernel="wsattn", key="k3" * 8, log="logs/target-ffa.log", failure=failure),
    )  # fmt: skip


def _proofs() -> tuple[Proof, ...]:
    def proof(side: str, digit: str) -> Proof:
        artefact = Artefact(kind="object", name="ffa_cuda", path=f"/cache/b/{digit}/ffa.so", sha256=digit * 64)
        return Proof(epoch=1, side=side, kernel="ffa", ok=True, artefacts=(artefact,), looks=2)

    return proof("base", "a"), proof("target", "b")


def hostile(text: str = HOSTILE) -> Run:
    """A run whose every foreign text is an attack on the page that shows it."""
    target = Side(id="target", spec=text, kind="worktree", commit="9f2c4e7a" * 5, tree="1e" * 20, label=text,
                  subject=text)  # fmt: skip
    plain = run(target=target)
    seen = tuple(
        observation if observation.status == "ok" else changed(observation, reason=text, log=text)
        for observation in plain.observations
    )
    sides = ("base", "target")
    return changed(
        plain,
        observations=seen,
        header=changed(plain.header, sentence=f"1 slower on {text}"),
        warnings=(Advice(kind=text, text=text, advice=text),),
        notes=(text,),
        environment={text: text},
        versions={text: text},
        toolchains={side: Toolchain(versions={text: text + side}, packages={side + text: text}) for side in sides},
        ceilings=Ceilings(tflops=1.0, tflops_by=text, why_not=text),
        machine=changed(plain.machine, host=text, device=text, facts={text: text}),
        builds=tuple(changed(build, log=text, facts={text: text}) for build in plain.builds),
        withheld=(text,),
        arguments=(text,),
        workloads_from=text,
    )


def single() -> Run:
    """`abprof run main`: one branch alone."""
    both = run("20261120T030000Z-main")
    arms = tuple(arm for arm in both.arms if arm.side == "base")
    kept = {arm.id for arm in arms}
    return changed(
        both,
        arguments=("run", "main"),
        sides=(MAIN,),
        arms=arms,
        observations=tuple(o for o in both.observations if o.arm in kept),
        comparisons=(),
        controls=(),
        builds=both.builds[:1],
        proofs=both.proofs[:1],
        header=Header(sentence="main alone: 10 cells measured", counts={}, trusted=True),
        warnings=(),
    )


def two_targets() -> Run:
    """A second target that nothing is known of yet: the run was interrupted before its turn."""
    other = Side(id="target2", spec="other", kind="commit", commit="77" * 20, tree="88" * 20, label="other")
    plain = run()
    arms = (*plain.arms, Arm(id="target2", side="target2"))
    return changed(plain, sides=(*plain.sides, other), arms=arms, status="interrupted")


def three_targets() -> Run:
    """A second target that was judged against the same base in every cell, and a third that was not measured yet."""
    both = two_targets()
    third = Side(id="target3", spec="late", kind="commit", commit="99" * 20, tree="aa" * 20, label="late")
    turned: dict[str, Any] = {"slower": "faster", "faster": "slower"}
    judged = tuple(
        changed(one, to=one.to.replace("target", "target2"), verdict=turned.get(one.verdict, one.verdict),
                pct=None if one.pct is None else -one.pct,
                low_pct=None if one.high_pct is None else -one.high_pct,
                high_pct=None if one.low_pct is None else -one.low_pct)
        for one in both.comparisons if one.from_.partition(":")[0] == "base"
    )  # fmt: skip
    seen = tuple(
        changed(one, arm=one.arm.replace("target", "target2"))
        for one in both.observations
        if one.arm.startswith("target")
    )
    return changed(both, sides=(*both.sides, third), comparisons=(*both.comparisons, *judged),
                   observations=(*both.observations, *seen))  # fmt: skip


def unchanged() -> Run:
    """Every cell `same` or `slight`."""
    plain = run()
    fine = tuple(c for c in plain.comparisons if c.verdict in ("same", "slight"))
    cells = tuple(c for c in plain.cells if c.id in {f.cell for f in fine})
    names = {cell.id for cell in cells}
    return changed(
        plain,
        cells=cells,
        comparisons=fine,
        observations=tuple(o for o in plain.observations if o.cell in names),
        header=Header(
            sentence="nothing changed", counts={"same": 4, "slight": 1}, trusted=True, false_alarm_bound=0.39
        ),
        warnings=(),
    )


def blocks(of: Run, epochs: int = 2, rounds: int = 4, chance: random.Random | None = None) -> list[Block]:
    """Blocks that scatter by 0.1 % around the run's observations."""
    chance = chance or random.Random(7)
    return [_block(of, cell, epoch, rounds, chance) for epoch in range(1, epochs + 1) for cell in of.cells]


def _block(of: Run, cell: Cell, epoch: int, rounds: int, chance: random.Random) -> Block:
    seen = [o for o in of.observations if o.cell == cell.id]
    times = {o.arm: o.metrics["gpu_span"].value for o in seen if "gpu_span" in o.metrics}
    arms = tuple(times)
    played, clock = [], 0
    for _ in range(rounds):
        turns = []
        for arm in chance.sample(range(len(arms)), len(arms)):
            value = times[arms[arm]] * chance.gauss(1.0, 0.001)
            turns.append(Turn(arm, clock, clock + int(value), value, value + 9000.0))
            clock += int(value) + 50000
        played.append(tuple(turns))
    return Block(
        epoch=epoch,
        cell=cell.id,
        metric="gpu_span",
        timer="cuda_event",
        calls=1 if cell.workload != "ladder" else 8,
        rule="a call takes 0.3 ms or more" if cell.workload != "ladder" else "a call takes less than 0.3 ms",
        arms=arms,
        began=1795140000.0 + epoch,
        seconds=1.5,
        rounds=tuple(played),
        rejected=(1,) if epoch == 2 else (),
        rejected_why="power brake" if epoch == 2 else "",
        outcomes={o.arm: Outcome(status=o.status, reason=o.reason, check=o.check, log=o.log) for o in seen},
        state=MachineState(sm_clock_mhz=1980.0 - 15 * epoch, power_w=640.0, temperature_c=51.0, load1=1.2),
        start_order=("base", "target") if epoch % 2 else ("target", "base"),
    )


def changed(record: Any, **changes: object) -> Any:
    """The record with some fields changed; of a run also `arguments`, which stand in its options."""
    if isinstance(record, Run) and (own := {name: changes.pop(name) for name in ("arguments",) if name in changes}):
        changes["options"] = msgspec.structs.replace(record.options, **own)
    replace = dataclasses.replace if dataclasses.is_dataclass(record) else msgspec.structs.replace
    return replace(record, **changes)


def write(folder: Path, of: Run) -> Path:
    """A run folder with this run and its blocks, made the way abprof makes it."""
    made = runfolder.create(folder, of.id)
    made.write_run(of)
    for block in blocks(of):
        made.append_block(block)
    return made.path


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), run()))
