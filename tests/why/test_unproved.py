"""What may not be named: causes that the row's own evidence contradicts or does not reach."""

from __future__ import annotations

import msgspec
import pytest

from abprof.records import Census, Launch
from tests.why import cases

SIDES = cases.recorded()
SPILL = SIDES["spill"]["base"]


def unread(ns: float, name: str = "my_nvrtc_kernel") -> Launch:
    return Launch(name=name, count=1, ns=ns, grid=(4096, 1, 1), block=(128, 1, 1))


def scaled(seen: Census, factor: float) -> Census:
    launches = tuple(msgspec.structs.replace(one, ns=one.ns * factor) for one in seen.launches)
    return msgspec.structs.replace(seen, launches=launches)


@pytest.mark.parametrize("branch", ["spill", "block_size", "tuned_otherwise"])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_code_that_differs_is_no_cause_where_its_kernel_is_no_slower(branch: str, factor: float) -> None:
    """The row is 30 % slower, the one kernel that differs is not: something else is."""
    before, after = (SIDES[branch][name] for name in ("base", "target"))
    told = cases.census(before, 1e6), scaled(cases.census(after, 1e6), factor)
    assert cases.kinds(cases.judged(before, after, 30.0, censuses=told)) == []
    slower = cases.census(before, 1e6), scaled(cases.census(after, 1e6), 1.3)
    assert len(cases.kinds(cases.judged(before, after, 30.0, censuses=slower))) == 1


def test_code_that_nobody_read_is_not_the_same() -> None:
    one, two = Census(launches=(unread(1e6),)), Census(launches=(unread(1.3e6),))
    assert cases.kinds(cases.judged(SPILL, SPILL, 30.0, censuses=(one, two))) == []


def test_a_library_s_kernel_may_be_what_changed() -> None:
    """One kernel's code is the same; the other's is not known, and it took all of the change."""
    mine = cases.census(SPILL, 1e6)

    def beside(ns: float) -> Census:
        return msgspec.structs.replace(mine, launches=(*mine.launches, unread(ns, "void at::native::fill")))

    assert cases.kinds(cases.judged(SPILL, SPILL, 15.0, censuses=(beside(1e6), beside(1.3e6)))) == []
    row = cases.judged(SPILL, SPILL, 15.0, censuses=(beside(1e6), beside(1e6)))
    [cause] = row.causes or ()
    assert cause.kind == "same_code"
    assert "(the code of 1 of 2 kernels was read)" in cause.text
