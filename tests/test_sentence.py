"""The header: counts that add up, the exit code, and a sentence that says first whether to act."""

from collections.abc import Mapping
from typing import Any

import pytest

from abprof.records import Block, Run
from abprof.verdict import judge
from tests.blocks import block, epochs, head

KINDS: dict[str, list[float]] = {
    "slower": [1.05] * 4, "faster": [0.95] * 4, "slight": [1.01] * 4, "same": [1.0] * 4,
    "undecided": [1.0, 1.03, 0.97, 1.0],
}  # fmt: skip
STATUSES: dict[str, Mapping[str, Any]] = {
    "broken": {"target": "crash"},
    "base_crash": {"base": "crash"},
    "base_wrong": {"base": "wrong"},
    "unsupported": {"base": "unsupported", "target": "unsupported"},
    "missing": {"base": "missing", "target": "missing"},
}


def made(*kinds: str, **fields: Any) -> Run:
    """A run with one cell of each kind named."""
    run = head(len(kinds), **fields)
    blocks: list[Block] = []
    for cell, kind in zip(run.cells, kinds, strict=True):
        if kind in KINDS:
            blocks += epochs(KINDS[kind], cell=cell.id)
        elif kind in STATUSES:
            arms = {arm: 1.0 for arm in ("base", "target") if arm not in STATUSES[kind]}
            blocks += [block(i, arms, cell=cell.id, status=STATUSES[kind]) for i in range(4)]
        elif kind != "nothing":
            blocks += epochs([float(kind)], cell=cell.id, quick=True)
    return judge(run, blocks)


def fail_on(*kinds: str) -> dict[str, Any]:
    return {"fail_on": kinds}


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["same", "faster", "slight"], 0),
        (["same", "slower"], 1),
        (["same", "broken"], 1),
        (["same", "base_crash"], 0),  # a row and a warning
        (["base_crash", "base_crash"], 2),  # unless every cell is
        (["base_wrong"], 0),
        (["same", "unsupported", "missing"], 0),
        (["unsupported", "missing"], 2),  # nothing measured
        ([], 2),
        (["nothing"], 2),
        (["undecided"], 4),
        (["same"] * 9 + ["undecided"], 0),  # a tenth, not more
        (["same"] * 8 + ["undecided"], 4),
        (["same"] * 8 + ["undecided", "unsupported"], 4),  # the unsupported are not among those judged
        (["same"] * 8 + ["undecided", "base_crash"], 0),
        (["slower", "undecided"], 1),  # a certain slow-down before doubt
        (["broken", "undecided"], 1),
        (["broken"], 1),
        (["1.2", "1.0"], 4),  # quick: worth confirming
        (["1.0", "1.01"], 0),  # quick: nothing large seen
    ],
)
def test_exit_codes(kinds: list[str], code: int) -> None:
    assert made(*kinds).header.exit_code == code


@pytest.mark.parametrize(
    ("only", "kinds", "code"),
    [
        (["never"], ["slower", "broken", "undecided"], 0),
        (["never"], ["undecided"], 0),
        (["never"], ["unsupported"], 2),  # still nothing measured
        (["unclear"], ["1.0"], 4),  # quick: no doubt of its own, but no verdict either
        (["slower"], ["broken"], 0),
        (["slower"], ["slower"], 1),
        (["broken"], ["slower"], 0),
        (["broken"], ["slower", "undecided"], 4),
        (["slower", "broken", "unclear"], ["same"] * 19 + ["undecided"], 4),
        (["slower", "broken"], ["same"] * 19 + ["undecided"], 0),
        (["unclear"], ["same"] * 19 + ["base_crash"], 4),
        (["unclear"], ["same"] * 19 + ["base_wrong"], 0),
        (["unclear"], ["same"] * 19 + ["unsupported"], 0),
    ],
)
def test_fail_on(only: list[str], kinds: list[str], code: int) -> None:
    assert made(*kinds, settings=fail_on(*only)).header.exit_code == code


def test_counts_add_up_whatever_happens() -> None:
    kinds = [*KINDS, *STATUSES, "nothing", "slower", "same"]
    counts = made(*kinds).header.counts
    parts = ("slower", "faster", "slight", "same", "unclear", "broken", "fixed", "unsupported", "missing")
    assert {part: counts[part] for part in parts} == {
        "slower": 2, "faster": 1, "slight": 1, "same": 2, "unclear": 3, "broken": 1, "fixed": 1, "unsupported": 1, "missing": 1,
    }  # fmt: skip
    assert sum(counts[part] for part in parts) == counts["comparisons"] == counts["cells"] == len(kinds)
    assert (counts["undecided"], counts["base_not_ok"]) == (2, 1)


@pytest.mark.parametrize(
    ("kinds", "sentence"),
    [
        (["slower", "slower", "faster", "same"], "2 slower, 1 faster, 1 unchanged (4 cells)."),
        (["broken", "slower", "slight"], "1 broken, 1 slower, 1 slight (3 cells)."),
        (["same", "slight"], "1 slight, 1 unchanged (2 cells)."),
        (["undecided", "same"], "No answer yet: 1 unchanged, 1 undecided (2 cells)."),
        (["same", "base_crash"], "1 unchanged, 1 not ok on the base (2 cells)."),
        (["same", "base_wrong"], "1 fixed, 1 unchanged (2 cells)."),
        (["base_wrong"], "1 fixed (1 cell)."),
        (["same", "unsupported", "missing"], "1 unchanged, 1 unsupported, 1 missing on both sides (3 cells)."),
        (["unsupported"], "Nothing was measured: 1 unsupported."),
        ([], "Nothing was measured: no cell ran."),
        (["1.2", "1.0"], "1 worth confirming, 1 with nothing large seen (2 cells, one epoch, nothing is certain)."),
    ],
)
def test_the_sentence_counts_cells(kinds: list[str], sentence: str) -> None:
    assert made(*kinds).header.sentence == sentence


def test_one_warning_a_kind_with_all_its_cells() -> None:
    kinds = ["undecided", "broken", "base_crash", "undecided", "broken"]
    warnings = made(*kinds).warnings
    assert [(w.kind, w.cells) for w in warnings] == [
        ("broken", ("dense/n=1", "dense/n=4")),
        ("base_not_ok", ("dense/n=2",)),
        ("undecided", ("dense/n=0", "dense/n=3")),
    ]
    assert all(w.text and w.advice for w in warnings)
