"""Each statistical test is tried on broken twins of what it watches, and must catch them; on the right one it must be silent.

Seeds are fixed, so that nothing here fails by chance; what fails names its seed.
"""

import pytest

from twins import SYSTEMS, Twin

EACH = [(name, twin) for name, system in SYSTEMS.items() for twin in system.twins]
STATISTICS = [(name, statistic) for name, system in SYSTEMS.items() for statistic in system.statistics]
every_twin = pytest.mark.parametrize(("name", "twin"), EACH, ids=[f"{name}: {twin.what}" for name, twin in EACH])
every_system = pytest.mark.parametrize("name", SYSTEMS)


@pytest.mark.slow
@every_twin
def test_a_twin_is_caught_twenty_times_of_twenty(name: str, twin: Twin) -> None:
    assert [seed for seed in range(1000, 1020) if not SYSTEMS[name].caught(twin, seed)] == []


# Of one right run the chance of an alarm is at most 1e-6 for each statistic: of 500 runs of all of them below 1.3 %.


@pytest.mark.slow
@every_system
def test_five_hundred_right_runs_raise_no_alarm(name: str) -> None:
    assert [(seed, alarms) for seed in range(1000, 1500) if (alarms := SYSTEMS[name].alarms(seed))] == []


def test_each_statistic_has_a_twin_that_it_alone_must_catch() -> None:
    assert {(name, twin.caught_by) for name, twin in EACH} == set(STATISTICS)
    assert len({(name, twin.what) for name, twin in EACH}) == len(EACH)
    assert len(SYSTEMS["noise"].twins) >= 10
    assert len(SYSTEMS["canaries"].twins) >= 8
