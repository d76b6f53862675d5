"""What a workload imports: the comparison that most of them judge by."""

from __future__ import annotations

import pytest
import torch

from abprof.worker.api import compare

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("out", "ref", "reason"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0, 2.5], [1.0, 2.0], "output 0: largest error 0.5, allowed 0.02"),
        ([1.0, NAN], [1.0, 2.0], "output 0: 1 of 2 values are NaN"),
        ([1.0, NAN], [1.0, NAN], "output 0: 1 of 2 values are NaN"),
        ([2.0, -INF], [2.0, -INF], ""),  # the log-sum-exp of a row that is masked whole
        ([INF, -INF], [INF, -INF], ""),
        ([3.0, INF], [2.0, INF], "output 0: largest error 1, allowed 0.02"),  # an infinite scale would allow anything
        ([2.0, INF], [2.0, -INF], "output 0: 1 of 2 values are infinite where the other's are not"),
        ([2.0, 1.0], [2.0, INF], "output 0: 1 of 2 values are infinite where the other's are not"),
        ([INF, 2.0], [2.0, 2.0], "output 0: 1 of 2 values are infinite where the other's are not"),
        ([INF, NAN], [INF, 2.0], "output 0: 1 of 2 values are NaN"),
    ],
)
def test_every_element_must_agree_and_infinities_in_place_and_sign(
    out: list[float], ref: list[float], reason: str
) -> None:
    checked = compare(torch.tensor(out), torch.tensor(ref), rtol=0.01, atol=0.0)
    assert (checked.ok, checked.reason) == (not reason, reason)


def test_the_errors_told_are_those_of_finite_elements() -> None:
    checked = compare(torch.tensor([3.0, INF]), torch.tensor([4.0, INF]), rtol=1.0, atol=0.0)
    assert (checked.ok, checked.max_abs, checked.max_rel) == (True, 1.0, 0.25)
