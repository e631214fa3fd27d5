"""The page that says which theorem stands behind what is complete, and says what the code does."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from conftest import oracle
from hubbub import Mechanism, accounting
from hubbub.accounting import events
from hubbub.errors import ConfigError
from hubbub.mechanism.participation import PARTICIPATIONS
from hubbub.mechanism.strategies import BinaryTree, Identity, toeplitz
from small_runs import PATTERNS, SAMPLED

EVENTS = {
    "Gaussian": events.Gaussian(1.0),
    "PoissonSampled": events.PoissonSampled(1.0, 0.2),
    "FixedSizeSampled": events.FixedSizeSampled(1.0, 2, 10),
    "TruncatedPoissonSampled": events.TruncatedPoissonSampled(1.0, 0.2, 3, 10),
    "BallsInBins": events.BallsInBins(1.0, 3, 6),
    "DiscreteGaussianShares": events.DiscreteGaussianShares(1.0, 4, 2**20, 1000),
    "MixtureOfGaussians": events.MixtureOfGaussians(1.0, (0, 0.5, 1), (0.5, 0.3, 0.2)),
    "TreeAggregation": events.TreeAggregation(1.0, 6),
}
COHORTS = {type(participation).__name__: participation for participation in (*PATTERNS, *SAMPLED)}


def rows(header: str) -> Iterator[list[str]]:
    """The cells of the table whose first column has this name."""
    lines = iter((Path(__file__).parent.parent / "docs" / "accounting.md").read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {header} |"):
            next(lines)
            for row in lines:
                if not row.startswith("|"):
                    return
                yield [cell.strip().strip("`") for cell in row.strip("|").split("|")]


def test_every_event_has_a_row_for_every_relation_with_its_source() -> None:
    named = [(row[0], row[1]) for row in rows("event")]
    assert len(named) == len(set(named))
    assert set(named) == {(kind.__name__, relation) for kind in get_args(events.Event) for relation in accounting.RELATIONS}
    assert set(EVENTS) == {kind.__name__ for kind in get_args(events.Event)} <= set(accounting.__all__)
    assert all(len(row) == 5 and all(row) for row in rows("event"))


def test_every_cohort_and_every_accountant_has_a_row() -> None:
    assert {row[0] for row in rows("cohorts")} == set(PARTICIPATIONS) == set(COHORTS)
    assert tuple(row[0] for row in rows("accountant")) == accounting.ACCOUNTANTS


@pytest.mark.parametrize("row", list(rows("event")), ids=lambda row: f"{row[0]}, {row[1]}")
def test_every_row_of_an_event_answers(row: list[str]) -> None:
    event, relation = EVENTS[row[0]], row[1]
    tight = accounting.epsilon([(event, 3)], 1e-5, relation)
    assert 0 < tight <= accounting.epsilon([(event, 3)], 1e-5, relation, accountant="rdp")
    assert 0 < accounting.delta([(event, 3)], tight / 2, relation) <= 1
    assert len(accounting.rdp(event, (1.5, 8), relation)) == 2
    if "exact, also composed" in row[3]:
        # Composing is not lossy: a third of a composition's moments is a round's.
        assert tight == pytest.approx(accounting.epsilon([(event, 1), (event, 2)], 1e-5, relation), abs=1e-9)


@pytest.mark.parametrize("row", list(rows("cohorts")), ids=lambda row: row[0])
def test_a_run_is_charged_as_its_row_says(row: list[str]) -> None:
    cohorts, noise, charged = row[0], row[1], row[2]
    participation = COHORTS[cohorts]
    said = re.search(r"`(\w+)`", charged)
    allowed = {"any strategy": 3, "independent": 1, "C lower triangular with at most as many bands as groups": 2}[noise]
    kinds = [Identity(12), toeplitz.square_root(12, bands=2), BinaryTree(12)]
    for number, strategy in enumerate(kinds):
        mechanism = Mechanism(strategy, participation, 1.0)
        if number >= allowed:
            with pytest.raises(ConfigError, match=cohorts):
                accounting.guarantee(mechanism, 1e-5)
            continue
        stated = accounting.guarantee(mechanism, 1e-5)
        if said:
            assert {type(event).__name__ for event, _ in stated.events} == {said[1]}


def test_the_numbers_of_the_page_are_true() -> None:
    event = events.FixedSizeSampled(1.0, 10, 1000)
    assert accounting.delta([(event, 1)], 0.985, "zero-out") == pytest.approx(1.74e-4, rel=5e-3)
    assert accounting.delta([(event, 1)], 0.985, "replace-one") == pytest.approx(2.81e-4, rel=5e-3)
    many = [(events.PoissonSampled(1.0, 0.01), 100_000)]
    assert accounting.epsilon(many, 1e-10, "add-or-remove-one") == pytest.approx(34.6170, abs=5e-4)
    gaussians = [(events.Gaussian(2000.0), 10**6)]
    assert accounting.epsilon(gaussians, 1e-12, "zero-out") == pytest.approx(3.4491, abs=1e-4)


def test_the_published_epsilons_stand_beside_ours() -> None:
    published = {row[1]: row for row in rows("published")}
    points = oracle("accounting")["published_gboard"]["points"]
    assert len(published) == len(points)
    for point in points:
        row = published[repr(point["rho"])]
        assert (float(row[2]), float(row[3])) == (point["delta"], point["published_eps"])
        event = [(events.Gaussian(point["sigma_total"]), 1)]
        assert float(row[4]) == pytest.approx(accounting.epsilon(event, point["delta"], "zero-out"), rel=1e-13)
        assert float(row[4]) == pytest.approx(float(point["exact_eps"]), rel=1e-15)
