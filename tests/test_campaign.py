"""Some rounds of the campaign of random faults. All of them:
`python -m tests.benchmarks.fault_campaign 0 1000`, and from 1000 on those of two devices (docs/RELIABILITY.md)."""

from pathlib import Path

import pytest

from tests.simulated.campaign import SPREAD, drawn, play

# The first of each trouble, in the order of numbers.
FIRST = {drawn(number).end: number for number in reversed(range(200))}
SPREADS = {drawn(number).end: number for number in reversed(range(SPREAD, SPREAD + 60))}
ROUNDS = sorted((*FIRST.values(), *SPREADS.values()))
SHORT = set(ROUNDS[:: len(ROUNDS) // 3])


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.slow if n in SHORT else pytest.mark.nightly) for n in ROUNDS]
)
def test_a_round_keeps_every_promise(tmp_path: Path, number: int) -> None:
    assert play(drawn(number), tmp_path) == []
