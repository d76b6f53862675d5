"""The lead of turns with --untrusted on a GPU: how long the GPU waits so that the host stays ahead of it."""

import pytest

from abprof.measure.lead import Lead


def epoch(lead: Lead, calls: int, needs: float, rounds: int = 4) -> list[float]:
    """Return the leads of an epoch's rounds, in ms, for a host that needs `needs` ms."""
    lead.begin(calls)
    found = []
    for _ in range(rounds):
        found.append(lead.ns / 1e6)
        lead.note("base", 2 * lead.ns if 1e6 * needs > lead.ns else 1e6 * needs)
        lead.end_round()
    return found


def test_a_lead_is_twice_what_base_needed_and_the_same_for_all_of_a_later_epoch() -> None:
    lead = Lead()
    assert epoch(lead, 20, 2.0) == [6.0, 6.0, 4.0, 4.0]
    assert epoch(lead, 20, 2.0) == epoch(lead, 20, 2.5) == [4.0] * 4
    assert epoch(lead, 20, 2.5) == [5.0] * 4


def test_a_first_lead_that_is_too_short_is_doubled() -> None:
    lead = Lead()
    assert epoch(lead, 20, 17.0, 6) == [6.0, 6.0, 12.0, 24.0, 34.0, 34.0]
    assert epoch(lead, 20, 17.0) == [34.0] * 4


@pytest.mark.parametrize("needs", [40.0, 1e3])
def test_there_is_none_where_none_is_long_enough(needs: float) -> None:
    lead = Lead()
    assert epoch(lead, 20, needs, 6) == [6.0, 6.0, 12.0, 24.0, 48.0, 0.0]
    assert epoch(lead, 20, needs) == [0.0] * 4


def test_there_is_none_where_the_host_waits_for_the_gpu() -> None:
    lead, blocked = Lead(), 0.9
    lead.begin(20)
    for _ in range(4):
        lead.note("base", blocked * lead.ns)
        lead.end_round()
    assert lead.ns > 0
    assert [*epoch(lead, 20, 1.0), *epoch(lead, 20, 1.0)] == [0.0] * 8


def test_one_slow_turn_changes_nothing_later() -> None:
    lead = Lead()
    epoch(lead, 20, 2.0)
    lead.begin(20)
    for needed in (9e6, 2e6, 2e6, 2e6):
        lead.note("base", needed)
        lead.end_round()
    assert epoch(lead, 20, 2.0) == [4.0] * 4


def test_the_slowest_variant_of_base_counts_and_few_calls_have_none() -> None:
    lead = Lead()
    lead.begin(20)
    for _ in range(3):
        lead.note("base:a", 1e6)
        lead.note("base:b", 2e6)
        lead.end_round()
    assert lead.ns == 4e6
    assert epoch(lead, 3, 1.0) == [0.0] * 4
    assert epoch(lead, 20, 2.0) == [6.0, 6.0, 4.0, 4.0]
