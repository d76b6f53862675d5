"""Every smoke cell on the bundled kernels, through a real worker: right, and with phases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abprof.records import messages as wire
from tests.workloads.conftest import FOLDER, cases, load
from tests.workloads.worker import Side, side

KERNELS = FOLDER.parent / "kernels"
CELLS = [(name, one) for name in ("dense", "block_sparse") for one in cases(load(name), "smoke")]
IDS = [f"{name}-{one.get('mask_type', one.get('sparsity_ratio'))}-{one['direction']}" for name, one in CELLS]


@pytest.fixture(scope="module")
def ffa(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Side]:
    """The build folder outlives the test run: a library is found there by its content."""
    build = Path(request.config.cache.mkdir("ffa-build"))
    workloads = [FOLDER / "dense.py", FOLDER / "block_sparse.py"]
    with side(KERNELS, "ffa", workloads, tmp_path_factory.mktemp("ffa"), build) as worker:
        worker.ask(wire.Build())
        yield worker


@pytest.mark.parametrize(("name", "one"), CELLS, ids=IDS)
def test_smoke_cell_is_right(ffa: Side, name: str, one: dict[str, Any]) -> None:
    assert ffa.open(name, one).call_ns > 0
    checked = ffa.check(expected="_".join(map(str, one.values())))
    assert checked.ok, checked.reason
    assert checked.max_abs is not None
    assert 0 < checked.max_abs < 1e-4


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dense", {"mask_type": "varlen_full", "dtype": "bf16", "hd": 128, "nhk": 1}),
        ("dense", {"mask_type": "causal", "dtype": "bf16", "nhk": 2}),
        ("block_sparse", {"dtype": "bf16", "hd": 128, "q_block_size": 128, "kblockm": 128}),
        ("block_sparse", {"sparsity_ratio": 1.0, "nhk": 4}),
    ],
)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_other_axis_values_are_right(ffa: Side, name: str, changes: dict[str, Any], direction: str) -> None:
    one = {**cases(load(name), "smoke")[0], **changes, "direction": direction}
    assert ffa.open(name, one).call_ns > 0
    checked = ffa.check(expected="_".join(map(str, one.values())))
    assert checked.ok, checked.reason
