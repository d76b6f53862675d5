"""Causes from Nsight Compute's counters: only counters that changed and that the kernel waits for."""

from typing import Any

import pytest

from abprof.records import Comparison, KernelProfile, Profile
from abprof.records.ncu import (
    DRAM_BUSY,
    L2_BYTES,
    L2_HITS,
    LOAD_EFFICIENCY,
    STORE_EFFICIENCY,
    TIME,
)
from tests import blocks
from tests.why import cases

BASE = cases.recorded()["spill"]["base"]
CELL = blocks.head().cells[0].id
# A copy of 1 GB a call, as long as the rows of `cases` say.
PLAIN = {TIME: 1e6, "dram__bytes.sum": 1e9, "lts__t_bytes.sum": 1e9, DRAM_BUSY: 88.0, L2_HITS: 50.0,
         LOAD_EFFICIENCY: 100.0, STORE_EFFICIENCY: 100.0}  # fmt: skip


def profile(arm: str, /, *kernels: dict[str, float], **fields: Any) -> Profile:
    made = tuple(
        KernelProfile(
            name=f"copy_{i}", grid="1x1", block="32x1", kind="compute", launches=3, launches_a_call=1, metrics=of
        )
        for i, of in enumerate(kernels)
    )
    usual = {"cell": CELL, "arm": arm, "purpose": "profile", "warmup": 1, "runs": 2, "kernels": made}
    return Profile(**(usual | fields))


def judged(before: dict[str, float], after: dict[str, float], pct: float = 30.0, **fields: Any) -> Comparison:
    """The same code on both sides, and these counters of it."""
    profiles = profile("base", before), profile("target", after, **fields)
    return cases.judged(BASE, BASE, pct, profiles=profiles)


def test_more_bytes_of_a_kernel_that_waits_for_them() -> None:
    row = judged(PLAIN, PLAIN | {TIME: 1.3e6, "dram__bytes.sum": 1.32e9})
    assert cases.kinds(row) == ["dram_traffic", "same_code"]
    text = "more DRAM traffic: 1 GB -> 1.32 GB a call with DRAM 88 % busy in copy_0"
    assert (row.causes or ())[0].text == text


def test_a_lower_hit_rate_is_part_of_the_cause() -> None:
    row = judged(PLAIN, PLAIN | {TIME: 1.3e6, "dram__bytes.sum": 1.32e9, L2_HITS: 41.0})
    assert (row.causes or ())[0].text.endswith("88 % busy, L2 hit rate 50 -> 41 % in copy_0")


@pytest.mark.parametrize("name", [LOAD_EFFICIENCY, STORE_EFFICIENCY])
def test_accesses_that_are_coalesced_no_more(name: str) -> None:
    row = judged(PLAIN, PLAIN | {TIME: 1.3e6, name: 50.0, L2_BYTES[0]: 1.9e9, "dram__bytes.sum": 1.32e9})
    [cause] = [cause for cause in row.causes or () if "ncu" in cause.evidence]
    what = "load" if name == LOAD_EFFICIENCY else "store"
    assert cause.text == (
        f"global memory is accessed less coalesced: {what} efficiency 100 -> 50 %, L2 bytes a call 1 GB -> 1.9 GB in copy_0"
    )


MORE = {"dram__bytes.sum": 1.32e9}


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ({TIME: 1.3e6}, "the same bytes"),
        ({TIME: 1.3e6, DRAM_BUSY: 59.0} | MORE, "the kernel does not wait for DRAM"),
        ({TIME: 1.3e6, "dram__bytes.sum": 1.1e9}, "the bytes explain less than half"),
        ({TIME: 1.3e6, "dram__bytes.sum": 0.7e9}, "fewer bytes do not slow it down"),
        ({TIME: 1.0e6} | MORE, "under ncu the kernel takes no longer"),
        ({TIME: 0.7e6} | MORE, "under ncu it is faster"),
        ({TIME: 1.05e6, "dram__bytes.sum": 1.05e9}, "under ncu it changed by too little of the row's change"),
        ({TIME: 1.3e6, L2_BYTES[0]: 1.9e9}, "accesses are as coalesced as they were"),
        ({TIME: 1.3e6, LOAD_EFFICIENCY: 50.0}, "no more bytes are moved"),
        ({TIME: 1.3e6, LOAD_EFFICIENCY: 91.0, L2_BYTES[0]: 1.9e9}, "accesses at the edges"),
    ],
)
def test_counters_that_explain_nothing_are_no_cause(after: dict[str, float], why: str) -> None:
    assert cases.kinds(judged(PLAIN, PLAIN | after)) == ["same_code"], why
