"""Inputs of timed calls under --untrusted (abprof/worker/drawn.py)."""

import torch

from abprof.worker import drawn


def test_inputs_without_a_mixture_stay_as_they_are() -> None:
    indexes = torch.arange(4)
    drawn.mixer([indexes], [None], torch.device("cpu"))(3)
    assert indexes.tolist() == [0, 1, 2, 3]
