"""Made-up fleets of cells over many nights, whose truth is known. Seeded: the same call gives the same nights."""

from typing import Any, Literal

import numpy as np

from abprof.extras.nightly.changes import Trend

Law = Literal["gauss", "t3", "spikes"]
Floats = np.ndarray[Any, np.dtype[np.float64]]


def fleet(
    cells: int,
    nights: int,
    noise: float,
    seed: int,
    *,
    law: Law = "gauss",
    step: tuple[int, float] | None = None,
    drift: tuple[int, float] | None = None,
    shift: tuple[int, float] | None = None,
) -> list[Trend]:
    """`cells` trends of a first night and `nights - 1` pairs. A cell's time scatters by `noise` from night to night, half of
    that variance shared by the night's two arms, so that its ratio scatters by `noise` as well.

    `step` and `drift`: (first night, its size, or its rise a night, as a fraction), of the code of every cell. `shift`: the
    same of the machine, which both arms show.
    """
    dice = np.random.default_rng(seed)
    number = np.arange(1, nights + 1)
    level = np.zeros(nights)
    if step:
        level = level + (number >= step[0]) * np.log1p(step[1])
    if drift:
        level = level + np.maximum(0, number - drift[0] + 1) * drift[1]
    machine = (number >= shift[0]) * np.log1p(shift[1]) if shift else np.zeros(nights)
    shared, own_base, own_head = (_scatter(dice, law, noise / np.sqrt(2), (cells, nights)) for _ in range(3))
    if law == "spikes":
        shared = shared + (dice.random((cells, nights)) < 0.05) * np.log(1.08)
    head = level + machine + shared + own_head
    base = np.concatenate([[np.nan], level[:-1]]) + machine + shared + own_base
    same = ("machine",) * nights
    return [
        Trend(f"cell{i}", tuple(number.tolist()), np.exp(base[i]) * 1e6, np.exp(head[i]) * 1e6, head[i] - base[i], same)
        for i in range(cells)
    ]


def _scatter(dice: np.random.Generator, law: Law, size: float, shape: tuple[int, int]) -> Floats:
    if law == "t3":
        return np.asarray(dice.standard_t(3, shape) / np.sqrt(3) * size)
    return dice.normal(0, size, shape)
