"""One cluster for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import MISSING, Cluster, cluster


def installed() -> None:
    """Skips where no Slurm is, and fails where one should be: in CI."""
    if MISSING:
        what = f"no Slurm here: {', '.join(MISSING)} not found (Debian: slurmctld, slurmd, slurm-client; make slurm)"
        (pytest.fail if os.environ.get("SLURM_TESTS") == "required" else pytest.skip)(what)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes, n1 with the feature h200 and n2 with h100, each with one GPU."""
    installed()
    with cluster(tmp_path_factory.mktemp("slurm"), {"n1": "h200", "n2": "h100"}) as made:
        yield made
