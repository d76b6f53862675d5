"""What a device does at its best: rates that are plausible, in bounded time, and a reason where there are none."""

from __future__ import annotations

import time

import pytest
import torch

from abprof.worker import ceilings
from abprof.worker.api import Op
from abprof.worker.ceilings import Try, best
from abprof.worker.clocks import clock


def test_a_cpus_ceilings(monkeypatch):
    monkeypatch.setattr(ceilings, "SIZES", {"cpu": (512,)})
    found = ceilings.reach(clock("cpu"), 0.1)
    assert found.tflops is not None
    assert found.gbps is not None
    assert 1e-4 < found.tflops < 100
    assert 0.05 < found.gbps < 5000
    assert found.tflops_by.startswith("float32 matrix products of 512 x 512 x 512 on ")
    assert "MiB, bytes read and written on" in found.gbps_by


def test_products_are_of_the_declared_size():
    product = ceilings._product(clock("cpu"), torch.float32, 1024)
    assert product.work == 2 * 1024**3
    assert product.make().call().shape == (1024, 1024)


class Stopped:
    """A clock whose readings are given, and which counts the calls."""

    kind = "cpu"

    def __init__(self, ns: dict[object, float]) -> None:
        self.ns, self.asked = ns, list[object]()

    def wall(self, op: Op) -> float:
        return self.turn(op, 1, cold=False)

    def turn(self, op: Op, calls: int, *, cold: bool) -> float:
        self.asked.append(op.call())
        return self.ns[op.call()]


def tries(*works: float) -> list[Try]:
    return [Try(work, f"{work:g}", lambda work=work: Op(lambda: work)) for work in works]


def test_the_best_of_several_is_taken():
    found = best(Stopped({1.0: 1.0, 8.0: 2.0, 64.0: 32.0}), tries(1.0, 8.0, 64.0), seconds=60)
    assert (found.rate, found.text, found.readings) == (4.0, "8", 9)


def test_what_would_take_too_long_is_not_begun():
    still = Stopped({1.0: 1e9, 8.0: 8e9})
    assert best(still, tries(1.0, 8.0), seconds=5).text == "1"
    assert 8.0 not in still.asked


def test_what_memory_has_no_room_for_is_left_out():
    def full() -> Op:
        raise torch.OutOfMemoryError("no room")

    few = [*tries(1.0), Try(8.0, "too much", full), *tries(64.0)]
    assert best(Stopped({1.0: 1.0, 64.0: 1.0}), few, seconds=60).text == "1"
    assert best(Stopped({}), few[1:], seconds=60).rate == 0.0


@pytest.mark.gpu
@pytest.mark.alone
def test_a_gpus_ceilings():
    """Within what the devices' data sheets allow; the printed line is for whoever runs it."""
    device = clock("cuda")
    ceilings.reach(device, 0.1)  # loads the libraries
    began = time.monotonic()
    found = ceilings.reach(device, 0.6)
    took = time.monotonic() - began
    print(found, f"{took:.2f} s")
    assert took < 2.0
    assert found.tflops is not None
    assert found.gbps is not None
    if "H200" in torch.cuda.get_device_name():
        assert 500 < found.tflops < 990, "989 is the data sheet's, dense"
        assert 3500 < found.gbps < 4800, "4800 is the data sheet's"
