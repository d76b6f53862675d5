import re

import pytest

from abprof.records import Cell
from abprof.records.names import safe_label, safe_labels, short_labels

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("label", "safe"),
    [
        ("main", "main"),
        ("optimize_ffa", "optimize_ffa"),
        ("feature/new loop", "feature-new-loop"),
        ("v1.2.0-rc_1", "v1.2.0-rc_1"),
        ("../../etc/passwd", "etc-passwd"),
        ("--force", "force"),
        (".hidden", "hidden"),
        ("a<b>\"c'|&;$(d)\0\n", "a-b-c-d"),
        ("\N{ROCKET}", COMMIT[:10]),
        ("..", COMMIT[:10]),
        ("", COMMIT[:10]),
        ("\u00fcber/\u00e9t\u00e9", "uber-ete"),
        ("x" * 250, "x" * 60),
        ("y" * 59 + "/z", "y" * 59),
    ],
)
def test_safe(label: str, safe: str) -> None:
    assert safe_label(label, set(), COMMIT) == safe
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,59}", safe)


@pytest.mark.parametrize(
    ("label", "taken", "safe"),
    [
        ("feature/x", {"feature-x"}, "feature-x-01234567"),
        ("Main", {"main"}, "Main-01234567"),
        ("main", {"main", "main-01234567"}, "main-01234567-2"),
        ("main", {"main", "main-01234567", "main-01234567-2"}, "main-01234567-3"),
        ("x" * 250, {"x" * 60}, "x" * 51 + "-01234567"),
    ],
)
def test_collisions_get_the_commit(label: str, taken: set[str], safe: str) -> None:
    before = set(taken)
    assert safe_label(label, taken, COMMIT) == safe
    assert len(safe) <= 60
    assert taken == before


def test_a_short_label_names_what_differs_within_the_workload() -> None:
    def cell(workload: str, **params: int | str) -> Cell:
        return Cell(id=f"{workload}/{params}", workload=workload, kernel="k", suite="s", params=dict(params))

    cells = [cell("dense", n=1, d=64), cell("dense", n=2, d=64), cell("sparse", n=1)]
    assert list(short_labels(cells).values()) == ["dense n=1", "dense n=2", "sparse"]


def test_no_two_labels_are_the_same() -> None:
    labels = safe_labels([("a/b", "1" * 40), ("a-b", "2" * 40), ("A B", "3" * 40)])
    assert labels == ["a-b", "a-b-22222222", "A-B-33333333"]
