"""Where and how the workers and builders of a run are started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof import environment, wire
from abprof.model import Checkout, Package


@dataclass(frozen=True)
class Workshop:
    """Settled once per run; every worker gets its interpreter, environment, mount and log from here."""

    cache: Path
    logs: Path
    scratch: Path  # expected values and sampled outputs, shared by the run's workers
    workers: Mapping[str, Sequence[str]]  # side id -> argv
    env: Mapping[str, str]  # cleaned of secrets
    device: str
    forbidden: tuple[str, ...]  # folders from which nothing but a side's own may be loaded
    workloads: Mapping[str, str]  # name -> file
    toolchain: Mapping[str, Mapping[str, str]]  # side id -> what decides a build
    timeout: float  # seconds for one request
    build_timeout: float
    mode: str = "release"

    def argv(self, side: str) -> Sequence[str]:
        """The worker's command for this side; the control is base again."""
        return self.workers["base" if side == "control" else side]

    def mount(self, checkout: Checkout, package: Package, place: Path) -> wire.Mount:
        """How a worker sees the build at `place`."""
        src = place / "src"
        if package.module:
            # `path` names the package's folder: its root is as many levels up as the import name has parts.
            parts = package.module.split(".")
            folder = src / package.path if package.path else src.joinpath(*parts)
            root = folder.parents[len(parts) - 1]
        else:
            root = (src / package.path).parent if package.path else src / "kernels"
        return wire.Mount(
            name=package.name,
            root=str(root),
            module=package.module or f"abprof_side.{package.name}",
            build_dir=str(place / "out"),
            allowed=[str(place), checkout.path],
            forbidden=list(self.forbidden),
        )

    def worker_env(self, checkout: Checkout, package: Package, place: Path) -> dict[str, str]:
        """The environment of a builder or worker of the build at `place`."""
        places = {"worktree": str(place / "src"), "build_dir": str(place / "out"), "side": checkout.side.id}
        extra = environment.fill(package.env, f"abprof.toml [kernels.{package.name}.env]", **places)
        extra["ABPROF_BUILD_DIR"] = places["build_dir"]
        return environment.worker(self.env, place / "caches", self.device, extra)
