"""What `dist:NAME==VERSION` may be."""

from __future__ import annotations

import pytest

from abprof.records.errors import AbprofError
from abprof.sides.releases.wanted import is_one, parse


@pytest.mark.parametrize(
    ("spec", "requirement"),
    [
        ("dist:liger-kernel==0.5.2", "liger-kernel==0.5.2"),
        ("dist: Liger_Kernel == 0.5.2", "Liger_Kernel==0.5.2"),
        ("dist:fla[conv1d, test]==0.4.0", "fla==0.4.0"),
        ("dist:a==1!2.0rc1.post2.dev3+cu129.torch2.8", "a==1!2.0rc1.post2.dev3+cu129.torch2.8"),
        ("dist:a===2024-odd", "a==2024-odd"),
    ],
)
def test_one_version_of_one_distribution(spec: str, requirement: str) -> None:
    assert is_one(spec)
    assert parse(spec).requirement == requirement


@pytest.mark.parametrize(
    "spec",
    [
        "dist:",
        "dist:liger-kernel",
        "dist:liger-kernel==",
        "dist:liger-kernel>=0.5",
        "dist:liger-kernel==0.5.*",
        "dist:liger-kernel==0.5,!=0.5.1",
        "dist:liger-kernel==0.5; python_version > '3'",
        "dist:--pre==1",
        "dist:a==1...main",
        "dist:a @ https://example.org/a-1.0-py3-none-any.whl",
        "dist:a==1\n-r /etc/passwd",
    ],
)
def test_anything_else_is_refused_in_one_line(spec: str) -> None:
    with pytest.raises(AbprofError, match=r"not one version of one distribution \(dist:NAME==VERSION\)"):
        parse(spec)


def test_a_branch_is_no_release() -> None:
    assert not is_one("dist")
    assert not is_one("feature/dist")
