"""Slurm's words: what a job is asked for, and what the queue says of it. What submits jobs is in slurm.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.records.quantities import seconds
from abprof.system import processes as proc

WHERE = "--executor slurm"
ORDERLY = "COMPLETED"
OVER = {"BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
_ADVICE = "docs/EXECUTORS.md has every option"
_COLUMNS = {"JobArrayID": 40, "State": 24, "RestartCnt": 12, "NodeList": 64, "Reason": 64}
_PATIENCE = 60.0  # seconds that a controller may take for an answer


class Options(Record, frozen=True, kw_only=True):
    """What Slurm is asked for with each shard. Of "" and None nothing is said, and the site's defaults hold."""

    gres: str = "gpu:1"  # one whole GPU a shard; "" on machines without
    constraint: str = ""  # features of a node: "h200", "h100|h200"
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    nodelist: str = ""
    exclude: str = ""
    exclusive: bool = False  # nobody else on the node
    cpus: int | None = None
    memory: str = ""  # "64G"
    time: str = ""  # a job's limit, "2h"; "": its shard's budget and half an hour
    parallel: int = 8  # shards at once


@dataclass(frozen=True)
class Seen:
    """A job as the controller tells it."""

    state: str
    restarts: int
    node: str
    reason: str

    @property
    def over(self) -> str:
        """Why nothing more is to come of it, "" while something may be."""
        if self.restarts:
            return "queued a second time, after a preemption, a requeue or the loss of its node"
        if self.state == ORDERLY:
            return ORDERLY
        return f"{self.state} on {self.node or 'no node'}" if self.state in OVER else ""

    @property
    def living(self) -> bool:
        """Whether something of it waits, runs or ends."""
        return self.state not in {*OVER, ORDERLY}


def options(given: Mapping[str, Any], where: str) -> Options:
    """Options from the words of a command line or of abprof.toml. Raises AbprofError."""
    try:
        found = msgspec.convert(dict(given), Options, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(Options.__struct_fields__)
        what = str(error).replace("Object contains ", "")
        raise AbprofError(what, where=where, advice=f"Slurm has {known}") from None
    for name, value in msgspec.structs.asdict(found).items():
        # Each becomes a line of a batch script, which a shell reads too.
        if isinstance(value, str) and not re.fullmatch(r"[\x20-\x7e]*", value):
            raise AbprofError(f"{value!r} is no option of a job", where=f"{where}, {name}", advice=_ADVICE)
    if found.parallel < 1 or (found.cpus is not None and found.cpus < 1):
        raise AbprofError("parallel and cpus begin at 1", where=where)
    if found.time:
        seconds(found.time, f"{where}, time")
    return found


def parameters(options: Options, name: str, minutes: int, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The words of submitit for a job of one task, of at most so many minutes, with the variables of these names. What
    submitit has no word for is sbatch's own."""
    asked = {
        "gres": options.gres,
        "constraint": options.constraint,
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "nodelist": options.nodelist,
        "exclude": options.exclude,
        "cpus_per_task": options.cpus,
        "mem": options.memory,
        "exclusive": options.exclusive,
    }
    besides = {"chdir": str(folder), "export": ",".join(names) or "NIL", "ntasks": 1}
    besides |= {"reservation": options.reservation} if options.reservation else {}
    return {
        **{key: value for key, value in asked.items() if value},
        "job_name": name,
        "time": minutes,
        "array_parallelism": options.parallel,
        "wckey": None,  # submitit's own, which a site that checks them refuses
        "additional_parameters": besides,
        # No step in the job: since 22.05 srun does not pass its cpus on, and steps are sent a signal before the limit.
        "use_srun": False,
    }


def would_be_taken(words: Mapping[str, Any]) -> None:
    """Raises AbprofError where Slurm says at once that it would refuse a job with these parameters."""
    flags = {**words, **words["additional_parameters"]}
    own = {"additional_parameters", "array_parallelism", "use_srun"}
    said = {key.replace("_", "-"): value for key, value in flags.items() if key not in own and value is not None}
    asked = [f"--{key}" if value is True else f"--{key}={value}" for key, value in said.items()]
    taken, why = proc.tried(["sbatch", "--test-only", *asked, "--wrap=true"], timeout=_PATIENCE)
    if not taken:
        raise AbprofError(f"Slurm would take no such job: {why}", where=WHERE, advice=_ADVICE)


def listed(name: str) -> dict[str, Seen] | None:
    """The jobs of this name that the controller remembers, by id; None where it does not answer."""
    columns = ",".join(f"{column}:{width}" for column, width in _COLUMNS.items())
    asked = ["squeue", "--array", "--noheader", "--states=all", f"--name={name}", f"--Format={columns}"]
    said = proc.output(asked, timeout=_PATIENCE)
    return None if said is None else dict(_rows(said))


def cancel(ids: Sequence[str]) -> None:
    """End jobs, whatever they do; one that has ended is left as it is."""
    proc.tried(["scancel", *ids], timeout=_PATIENCE)


def _rows(said: str) -> Iterator[tuple[str, Seen]]:
    for line in said.splitlines():
        cells, place = [], 0
        for width in _COLUMNS.values():
            cells.append(line[place : place + width].strip())
            place += width
        id, state, restarts, node, reason = cells
        yield id, Seen(state, int(restarts) if restarts.isdigit() else 0, node, reason)
