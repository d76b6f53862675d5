"""Where a run was measured: its machine, or its machines where it was spread over several devices."""

from __future__ import annotations

from collections import Counter

from abprof.records import Machine, Observation, Run
from abprof.report import words

_MOST = 16  # devices that are listed by themselves


def said(run: Run) -> str:
    """`NVIDIA H200`, `4 x NVIDIA H200`, `NVIDIA A100, 2 x NVIDIA H200`."""
    counted = Counter(machine.device for machine in run.machines.values()) or Counter([run.machine.device])
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items())


def models(run: Run) -> tuple[str, ...]:
    """Of the devices, where there are several kinds of them: times of two are two machines' times. () where there are not."""
    found = tuple(dict.fromkeys(machine.device for machine in run.machines.values()))
    return found if len(found) > 1 else ()


def model_of(run: Run, observation: Observation) -> str:
    """The model of the device that an arm of a cell was measured on; "" in a run on one, and where it was not measured."""
    machine = run.machines.get(observation.device)
    return machine.device if machine else ""


def facts(run: Run) -> list[tuple[str, str]]:
    """A line for each of several devices: what it is, where, and what was measured there."""
    cells = {observation.cell: observation.device for observation in run.observations if observation.device}
    controls = Counter(cells.get(control.cell, "") for control in run.controls)
    counted = Counter(cells.values())
    lines = []
    for lease, machine in list(run.machines.items())[:_MOST]:
        measured = f"{words.plural(counted[lease], 'cell')}, {words.plural(controls[lease], 'control')}"
        lines.append((words.clean(lease), f"{_of(machine)}: {measured}"))
    more = len(run.machines) - _MOST
    return [*lines, *([("more", words.plural(more, "device"))] if more > 0 else [])]


def _of(machine: Machine) -> str:
    best = machine.ceilings
    reached = [f"{words.rate(best.tflops)} TFLOP/s"] if best and best.tflops else []
    reached += [f"{words.rate(best.gbps)} GB/s"] if best and best.gbps else []
    host = f"{words.clean(machine.device)} on {words.clean(machine.host)}"
    return f"{host}, at its best {' and '.join(reached)}" if reached else host
