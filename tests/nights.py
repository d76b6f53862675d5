"""Run folders of many nights, as `abprof nightly` writes them, with the test's times and without measuring."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgspec

from abprof.records import (
    SCHEMA,
    Arm,
    Cell,
    Comparison,
    Header,
    Machine,
    Metric,
    Night,
    Observation,
    Options,
    Run,
    Side,
)
from abprof.store import runfolder

MACHINE = {"device": "NVIDIA H200", "uuid": "GPU-1", "driver": "580.1", "torch": "2.11"}
BEGAN = datetime(2026, 1, 1, 2, 17, tzinfo=UTC)


def commit(number: int) -> str:
    """Return the simulated hash of this night's head."""
    return hashlib.sha1(str(number).encode()).hexdigest()


@dataclass
class Nights:
    """Writes one run folder per call of `add`; `at` is the night's time, `number` its place."""

    runs_dir: Path
    series: str = "main"
    machine: Mapping[str, str] = field(default_factory=lambda: dict(MACHINE))
    number: int = 0
    at: datetime = BEGAN
    metric: str = "gpu_span"  # of the verdicts
    commits: Mapping[int, str] = field(default_factory=dict)  # of some nights a head that a repository has

    def add(
        self,
        times: Mapping[str, tuple[float | None, float]],
        *,
        pct: Mapping[str, float] | None = None,
        kind: str = "step",
        verdicts: Mapping[str, str] | None = None,
        asked: str = "matrix",
    ) -> Path:
        """A night with `times`: cell -> (ns of the base, ns of the head); the base's is None on a first night."""
        self.number += 1
        self.at += timedelta(days=1)
        alone = kind == "first"
        sides = [self._side("base", self.number - 1)] * (not alone)
        sides += [self._side("base" if alone else "target", self.number)]
        seen, rows = list[Observation](), list[Comparison]()
        for cell, (base, head) in times.items():
            if base is not None:
                seen.append(_seen(cell, "base", base, self.metric))
            seen.append(_seen(cell, sides[-1].id, head, self.metric))
            if base is not None:
                change = (pct or {}).get(cell, (head / base - 1) * 100)
                rows.append(
                    Comparison(cell=cell, from_="base", to="target", metric=self.metric, verdict=(verdicts or {}).get(cell, "same"),
                               pct=change, low_pct=change - 1, high_pct=change + 1)
                )  # fmt: skip
        night = Night(series=self.series, number=self.number, kind=kind, asked=asked, machine=dict(self.machine))
        run = Run(
            schema=SCHEMA, id=f"{self.at:%Y%m%dT%H%M%SZ}-{self.number}", status="complete", began=self.at.isoformat(),
            ended=self.at.isoformat(), options=Options(threshold=1.5, margin=0.5, arguments=("nightly",), timer="auto"),
            night=night, sides=tuple(sides), workloads=(), arms=tuple(Arm(id=side.id, side=side.id) for side in sides),
            cells=tuple(Cell(id=cell, workload="w", kernel="k", suite="w", params={"n": cell}) for cell in times),
            machine=Machine(host="h", device=self.machine.get("device", ""), kind="cuda"),
            header=Header(sentence=f"night {self.number}", counts={}, trusted=True),
            observations=tuple(seen), comparisons=tuple(rows),
        )  # fmt: skip
        folder = runfolder.create(self.runs_dir, run.id)
        folder.write_run(msgspec.structs.replace(run, id=folder.id))
        return folder.path

    def _side(self, id: str, number: int) -> Side:
        head = self.commits.get(number, commit(number))
        tree, subject = "0f" * 20, f"Commit {number}"
        return Side(id=id, spec=head, kind="commit", commit=head, tree=tree, label="main", subject=subject)

    def series_of(self, cell: str, times: Sequence[float]) -> None:
        """Make a first night, and one for each further time; base is the head of the night before."""
        self.add({cell: (None, times[0])}, kind="first")
        for before, after in pairwise(times):
            self.add({cell: (before, after)})


def _seen(cell: str, arm: str, ns: float, metric: str) -> Observation:
    metrics = {"wall": Metric(value=ns + 9000, unit="ns"), metric: Metric(value=ns, unit="ns")}
    return Observation(cell=cell, arm=arm, status="ok", metrics=metrics, epochs=4)
