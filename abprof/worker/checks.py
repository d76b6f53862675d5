"""Whether an arm's outputs are right: against the reference, the base's outputs, or those handed over to a judge."""

from __future__ import annotations

import dataclasses
import gc
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from abprof.records import messages as wire
from abprof.worker import declared, outputs
from abprof.worker.arms import Arms
from abprof.worker.clocks import Clock
from abprof.worker.faults import judging
from abprof.worker.returned import refuse_incomparable, returned

OVERWRITTEN = "the kernel overwrote its inputs, and the workload has no reset()"


class Checks:
    """What is asked of the open arms' outputs. `scratch` is the folder that a run's workers share."""

    def __init__(self, clock: Clock, arms: Arms, workload: Callable[[str], types.ModuleType], scratch: Path) -> None:
        self._clock, self._arms, self._workload, self._scratch = clock, arms, workload, scratch

    def check(self, request: wire.Check) -> wire.Checked:
        """The first call on fresh inputs, against the reference of inputs no kernel saw, and the base's sampled outputs.

        The fresh arm takes the open one's place: its memory is given up first, so that there are never two of it. A
        kernel that changes its inputs while the operation has no reset() fails: its later calls are of other values.
        """
        taken = self._arms.taken(request.arm)
        wall, opened = taken.wall, taken.request
        del taken
        gc.collect()
        module = self._workload(opened.workload)
        case = types.MappingProxyType(opened.case)
        alone = not hasattr(
            module, "reference"
        )  # then the first that comes here, base, says what the others are to agree with
        expected = None
        if not alone:
            expected = outputs.expected(
                self._scratch / request.expected, lambda: _reference(module, case, self._arms.inputs(opened))
            )
        arm = self._arms.make(opened, opened.placement)
        before = None if arm.op.reset else outputs.input_digests(arm.inputs)
        if arm.op.reset:
            arm.op.reset()
        results = arm.op.call()
        self._clock.sync()
        found = returned(results)
        if alone:
            refuse_incomparable(results)
            results = found.tensors
            expected = outputs.agreed(self._scratch / request.expected, lambda: outputs.on_host(results))
        with judging(module, "check"):
            verdict = declared.check(module, case, results, expected)
        if verdict.ok and before is not None and before != outputs.input_digests(arm.inputs):
            verdict = dataclasses.replace(verdict, ok=False, reason=OVERWRITTEN)
        digest, base_max_abs = outputs.sample(
            found.tensors,
            self._scratch / request.sample,
            self._scratch / request.against if request.against else None,
        )
        arm.wall = wall if wall >= wire.LONG_CALL else self._clock.wall(arm.op)
        self._arms[request.arm] = arm
        return wire.Checked(
            bool(verdict.ok),
            verdict.reason,
            outputs.finite(verdict.max_abs),
            outputs.finite(verdict.max_rel),
            "" if found.beside else digest,  # of what is seen in part nobody knows that it is the same bytes
            base_max_abs,
            declared.facts(module, case, arm.inputs, arm.op)
            | ({"checked": found.line} if alone and found.line else {}),
            compared=bool(found.tensors) or not alone,
        )

    def hand(self, request: wire.Hand) -> wire.Handed:
        """Outputs on inputs of other seeds, kept for a judge; then the arm is opened as it was before."""
        taken = self._arms.taken(request.arm)
        wall, opened = taken.wall, taken.request
        del taken
        gc.collect()
        arm = self._arms.make(dataclasses.replace(opened, seed=request.seed), opened.placement)
        if request.again is not None:
            arm.op.call()
            outputs.overwrite(arm.inputs, self._arms.inputs(dataclasses.replace(opened, seed=request.again)))
        if request.anew:
            arm.op = self._arms.prepared(opened, arm.inputs)
        if arm.op.reset:
            arm.op.reset()
        outputs.keep(arm.op.call(), self._scratch / request.outputs)
        del arm
        gc.collect()
        self._arms.reopened(opened, wall)
        return wire.Handed()

    def examine(self, request: wire.Examine) -> wire.Checked:
        """What another worker handed over, against the reference of inputs made here."""
        asked = wire.Open(request.workload, request.case, "", seed=request.seed)
        inputs = self._arms.inputs(asked)
        if request.again is not None:
            outputs.overwrite(inputs, self._arms.inputs(dataclasses.replace(asked, seed=request.again)))
        module, case = self._workload(request.workload), types.MappingProxyType(request.case)
        results = outputs.handed(self._scratch / request.outputs, self._clock.device)
        expected = _reference(module, case, inputs)
        with judging(module, "check"):
            verdict = declared.check(module, case, results, expected)
        return wire.Checked(
            bool(verdict.ok), verdict.reason, outputs.finite(verdict.max_abs), outputs.finite(verdict.max_rel)
        )


def _reference(module: types.ModuleType, case: Mapping[str, Any], inputs: Any) -> Any:
    with judging(module, "reference"):
        return module.reference(case, inputs)
