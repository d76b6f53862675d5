"""What a release asks for and an interpreter has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from abprof.sides import releases as dists

HAS = {"torch": "2.13.0+cpu", "Triton": "3.6.0", "odd": "no version"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("torch>=2.7", ""),
        ("torch==2.13.0", ""),
        ("triton", ""),
        ("torch>=2.14", "torch>=2.14 (2.13.0+cpu is there)"),
        ("numpy ==1.26.4", "numpy==1.26.4 (not there)"),
        ("Ein.Ops", "Ein.Ops (not there)"),
        ("odd>=1", ""),
        ("tomli; python_version < '3.11'", ""),
        ("tomli>=1; python_version >= '3.12'", "tomli>=1 (not there)"),
        ("pytest; extra == 'dev'", ""),
        ("not a (requirement", ""),
    ],
)
def test_one_requirement(tmp_path: Path, asked: str, says: str) -> None:
    assert dists.unmet(released(tmp_path, asked), "3.12.4", HAS) == ((says,) if says else ())


def test_all_of_them_and_where_nothing_is_known(tmp_path: Path) -> None:
    place = released(tmp_path, "einops", "torch>=3", "triton")
    assert dists.unmet(place, "3.12.4", HAS) == ("einops (not there)", "torch>=3 (2.13.0+cpu is there)")
    assert dists.unmet(place, "", {}) == (), "an interpreter that could not say what it has"
    assert dists.unmet(tmp_path / "nothing", "3.12.4", HAS) == ()


def released(place: Path, *asked: str) -> Path:
    """The files of a release with these requirements."""
    info = place / "k-1.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: k", "Version: 1.0", *(f"Requires-Dist: {one}" for one in asked)]
    (info / "METADATA").write_text("\n".join(lines) + "\n\nRequires-Dist: of the description\n")
    return place
