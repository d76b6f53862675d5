"""A run's head with what stands beside it in evidence.jsonl: of a run that was killed, run.json may know less. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from abprof.records import Kernel, Proof, Run, Told


def completed(run: Run, told: Sequence[Told]) -> Run:
    """The run with the proofs, kernels, touched files, devices and arms that were told and that it does not hold."""
    if not told:
        return run
    return msgspec.structs.replace(
        run,
        proofs=_proofs(run.proofs, (one.proof for one in told if one.proof is not None)),
        kernels=_kernels(run.kernels, (one.kernel for one in told if one.kernel is not None)),
        touched=tuple(dict.fromkeys((*run.touched, *(one.touched for one in told if one.touched is not None)))),
        machines=run.machines | {one.placed.device: one.placed.machine for one in told if one.placed is not None},
        arms=tuple(dict.fromkeys((*run.arms, *(one.arm for one in told if one.arm is not None)))),
    )


def merged(proofs: Iterable[Proof], more: Iterable[Proof]) -> list[Proof]:
    """A worker is asked before and after timing: the same answer twice is one record of two looks."""
    known = {_of(proof): proof for proof in proofs}
    for proof in more:
        key = _of(proof)
        looks = proof.looks + (known.pop(key).looks if key in known else 0)
        known[key] = msgspec.structs.replace(proof, looks=looks)
    return list(known.values())


def identity(kernel: Kernel) -> tuple[str, ...]:
    """What two records of the same kernel share."""
    return kernel.side, kernel.package, kernel.kind, kernel.key, kernel.sha256


def _of(proof: Proof) -> tuple[Any, ...]:
    return proof.epoch, proof.side, proof.kernel, proof.ok, proof.device, proof.shard


def _proofs(held: Sequence[Proof], told: Iterable[Proof]) -> tuple[Proof, ...]:
    """What was told counts, for it is all of it; run.json alone knows those of before it was kept."""
    fresh = {_of(proof): proof for proof in merged((), told)}
    return tuple(fresh.pop(_of(proof), proof) for proof in held) + tuple(fresh.values())


def _kernels(held: Sequence[Kernel], told: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """run.json's, which may have been read already, before those that were told."""
    known = {identity(kernel): kernel for kernel in told} | {identity(kernel): kernel for kernel in held}
    return tuple(known.values())
