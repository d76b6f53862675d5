"""Planted differences of speed, noise and outcomes for whole-run tests, in scenarios of one short workload."""

from collections.abc import Callable

from tests.simulated.lab import Lab
from tests.simulated.scenario import Fault, Noise, Scenario, Time, Workload

SLOWER, FASTER, SLIGHT = 1.15, 1 / 1.15, 1.01
NOISE = Noise(turn=0.005, common=0.02, epoch=0.0005)  # like epochs on an H200: 0.05 %
LONG = 20e6  # ns of a call: 18 rounds a cell and epoch

NewLab = Callable[[Scenario], Lab]


def load(values: list[str], kernel: str = "k", **more: object) -> Workload:
    fields = {"kernel": kernel, "presets": {"default": {"case": values}}, **more}
    return Workload(**fields)  # type: ignore[arg-type]


def times(*rules: Time) -> list[Time]:
    return [Time(ns=LONG), *rules]


def planted(name: str, factor: float, side: str = "target") -> Time:
    return Time(factor=factor, cell=f"*case={name}", side=side)


def broken(do: str, name: str, side: str = "*", verb: str = "open", **more: object) -> Fault:
    """A fault while measuring (epoch 1 and on): at build time (epoch 0) all is well."""
    fields = {"do": do, "verb": verb, "side": side, "cell": f"*case={name}", **more}
    return Fault(**fields)  # type: ignore[arg-type]


SPEEDS = Scenario(
    workloads={"w": load(["slower", "faster", "same", "slight", "less"])},
    times=times(
        planted("slower", SLOWER), planted("faster", FASTER), planted("slight", SLIGHT), planted("less", 1 / SLIGHT)
    ),
)
EXPECTED = {
    "w/case=slower": "slower", "w/case=faster": "faster", "w/case=same": "same", "w/case=slight": "slight",
    "w/case=less": "slight",
}  # fmt: skip
