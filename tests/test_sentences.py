"""What hubbub says of privacy is true in each case in which it is said."""

import itertools
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub import accounting
from hubbub.accounting import RELATIONS, MixtureOfGaussians, PrivacyGuarantee, RunCharge, group_epsilon, group_events
from hubbub.accounting.statement import no_less
from hubbub.ledger.actual_cost import spent
from hubbub.ledger.multi_run import compose_runs
from hubbub.mechanism import Mechanism, NoiseShares
from hubbub.mechanism import participation as parts
from hubbub.mechanism.strategies import Identity
from recorded_runs import history_of, promise_of
from small_runs import PATTERNS, SAMPLED

EVERY = [*PATTERNS, *SAMPLED]


def of(participation: parts.Participation, relation: str | None = None, z: float = 1.5, **more: object) -> PrivacyGuarantee:
    return accounting.guarantee(Mechanism(Identity(6), participation, z), 1e-5, relation, **more)


CASES = [
    # By a sum over all places of two units in bins.
    pytest.param(cohorts, relation, marks=pytest.mark.slow if type(cohorts).__name__.startswith(("Balls", "Trunc")) else ())
    for cohorts in EVERY
    for relation in RELATIONS
    if isinstance(cohorts, parts.RandomParticipation) or relation != "add-or-remove-one"
]


@pytest.mark.parametrize(("cohorts", "relation"), CASES, ids=str)
def test_what_is_said_of_groups_is_true_for_each_participation(cohorts: parts.Participation, relation: str) -> None:
    ends = set()
    for unit, words in (("example", "k examples of one person"), ("client", "k clients that act as one")):
        answer = of(cohorts, relation, privacy_unit=unit)
        (sentence,) = [text for text in answer.not_covered if text.startswith("facts about")]
        assert words in sentence
        ends.add(sentence.partition(words)[2])
    if sentence.endswith("epsilon is that of k times the sensitivity"):
        twice = accounting.guarantee(Mechanism(Identity(6), cohorts, 0.75), 1e-5, relation)
        assert accounting.epsilon(group_events(answer.events, 2), 1e-5, relation) == pytest.approx(twice.epsilon, rel=1e-12)
    elif "group_events" in sentence:
        # The mixture over how many of the group are drawn.
        assert {type(event) for event, _ in group_events(answer.events, 2)} == {MixtureOfGaussians}
    else:
        assert "group_epsilon" in sentence
        assert group_epsilon(answer.at, 1e-3, 2) > answer.at(1e-3)
        counted = isinstance(cohorts, parts.FixedSizeSampling | parts.TruncatedPoissonSampling)
        assert ("k − 1 fewer in the population" in sentence) == (counted and relation == "add-or-remove-one")
    assert len(ends) == 1


def test_acc_8_two_clients_that_act_as_one_pay_more_than_a_statement_said() -> None:
    one = Mechanism(Identity(1), parts.PoissonSampling(0.01), 0.1)
    answer = accounting.guarantee(one, 0.015)
    assert not any("epsilon is that of k times" in text for text in answer.not_covered)
    assert accounting.guarantee(replace(one, noise_multiplier=0.05), 0.015).epsilon == 0
    assert accounting.epsilon(group_events(answer.events, 2), 0.015, "add-or-remove-one") == pytest.approx(38.2, abs=0.1)


@pytest.mark.parametrize("cohorts", EVERY, ids=str)
def test_a_run_that_ended_early_counts_on_why_it_did(cohorts: parts.Participation) -> None:
    """Rogers et al. 2016: an epsilon after t rounds does not hold where the releases chose t."""
    whole, part = of(cohorts), of(cohorts, rounds=4)
    assert not any("ended after" in a.text for a in whole.assumptions)
    assert "that the run ended after 4 rounds was decided by nothing that its data or its releases showed" in part.statement()
    charge = RunCharge("1" * 64, "2" * 64, 4, 6, part.events, part.neighboring_relation, part.relations, "client")
    together = of(cohorts, part.neighboring_relation, earlier=(charge,))
    assert any("ended after 4 rounds" in a.text for a in together.assumptions)


@pytest.mark.parametrize(("cohorts", "relation"), CASES, ids=str)
def test_no_statement_of_presence_calls_the_number_of_units_public(cohorts: parts.Participation, relation: str) -> None:
    texts = [a.text for a in of(cohorts, relation).assumptions]
    presence = relation == "add-or-remove-one"
    assert ("the number of clients and the classes of the data are public" in texts) != presence
    hidden = "every number of clients that is published are the same whether a client is there"
    assert any(hidden in text for text in texts) == presence


@pytest.mark.parametrize("cohorts", EVERY, ids=str)
def test_what_another_relation_assumes_stands_beside_its_epsilon(cohorts: parts.Participation) -> None:
    for other in of(cohorts, "zero-out").other_relations:
        if other.epsilon is None:
            assert "no theorem covers it" in other.why
            continue
        own = {a.text for a in of(cohorts, other.neighboring_relation).assumptions}
        for text in own - {a.text for a in of(cohorts, "zero-out").assumptions} - {"the classes of the data are public"}:
            assert text in other.why


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-300, 0.999))
def test_delta_is_never_shown_below_what_it_is(delta: float) -> None:
    assert delta <= float(no_less(delta)) <= delta * (1 + 2e-5)


def test_a_budget_at_one_over_the_clients_is_stated_at_no_smaller_delta() -> None:
    answer = accounting.guarantee(Mechanism(Identity(6), parts.PoissonSampling(0.1), 1.5), 1 / 3e5)
    for text in (answer.sentence(), answer.statement()):
        assert all(float(shown) >= answer.delta for shown in re.findall(r"3\.333\d*e-06", text))


def charge_of(answer: PrivacyGuarantee, number: int, **more: object) -> RunCharge:
    marks = f"{number:x}" * 64, f"{number + 1:x}" * 64
    return replace(RunCharge(*marks, 6, 6, answer.events, "zero-out", RELATIONS, "client"), **more)


@pytest.mark.parametrize("kinds", [*itertools.permutations((parts.SingleParticipation(), *SAMPLED), 2)], ids=str)
def test_runs_together_name_the_conditions_of_each_and_no_others(kinds: tuple[parts.Participation, ...]) -> None:
    each = [of(cohorts, "zero-out") for cohorts in kinds]
    both = compose_runs([charge_of(one, 2 * i, relations=one.relations) for i, one in enumerate(each)], 1e-5, "zero-out")
    for other, *alone in zip(both.other_relations, *(one.other_relations for one in each), strict=True):
        texts = {text for one in alone for text in one.why.split(", if ")[1:]}
        least = [a for a in texts if not any(a != b and b.startswith(a) for b in texts)]
        assert other.epsilon is None or sorted(other.why.split(", if ")[1:]) == sorted(least)


def test_a_simulation_among_runs_is_named_and_never_called_the_whole() -> None:
    simulated, real = charge_of(of(parts.PoissonSampling(0.1)), 1, simulation=True), charge_of(of(parts.MinSeparation(2, 3)), 3)
    promise = promise_of(Identity(6), parts.MinSeparation(2, 3), earlier=(simulated,))
    for answer in (compose_runs([simulated, real], 1e-5), promise.after(6, 1e-5)):
        assert answer.simulation
        assert "Not for release: a simulation is among the runs" in answer.sentence()
        assert "It was a simulation" not in answer.statement()
        assert "A simulation is among the runs" in answer.statement()
    alone = replace(promise, earlier=(), simulation=True).after(6, 1e-5)
    assert alone.sentence().endswith("Simulation, not for release: cohorts and noise come from a known seed.")
    assert "It was a simulation" in alone.statement()


def test_a_run_that_is_hidden_is_not_said_to_be_bare_because_another_is() -> None:
    unbounded = charge_of(of(parts.MinSeparation(2, 3)), 1, events=None)
    for answer in (of(parts.MinSeparation(2, 3), earlier=(unbounded,)), compose_runs([unbounded], 1e-5)):
        text = answer.statement()
        assert "epsilon is infinite" in text
        assert "bare sum" not in text
        assert "not clipped" not in text
        assert "Noise: none" not in text
    bare = accounting.unprotected(4, 1e-5).statement()
    for words in ("its update is not clipped", "bare sum", "nothing is hidden from anybody", "Noise: none"):
        assert words in bare
    shares = Mechanism(Identity(6), parts.MinSeparation(2, 3), 4.0, NoiseShares(4, 100))
    assert "that of hubbub.accounting.group_events" in accounting.guarantee(shares, 1e-5).not_covered[-1]
    mixed = of(parts.MinSeparation(2, 3), earlier=(charge_of(accounting.guarantee(shares, 1e-5), 5),)).statement()
    assert "of some runs central, of others with noise in shares" in mixed


def test_a_run_that_broke_its_pattern_is_not_said_to_have_kept_it() -> None:
    promise = promise_of(Identity(6), parts.SingleParticipation())
    kept, broken = (spent(promise, history_of(cohorts)) for cohorts in ([{1}, {2}], [{1}, {1}]))
    assert "not kept" not in kept.guarantee.sentence()
    assert "each client in at most one round, as promised and not kept" in broken.guarantee.sentence()
    assert "or its own rounds are counted as they were" in broken.guarantee.statement()
    assert broken.guarantee.epsilon == pytest.approx(promise_of(Identity(6), parts.MinSeparation(1, 2)).after(2, 1e-5).epsilon)


@pytest.mark.parametrize("cohorts", EVERY, ids=str)
def test_every_round_that_was_begun_is_charged(cohorts: parts.Participation) -> None:
    """Of ``history_of`` every round is aborted."""
    answer = spent(promise_of(Identity(6), cohorts), history_of([set()] * 4)).guarantee
    assert answer.epsilon == of(cohorts, z=1.0, rounds=4).epsilon > 0


@pytest.mark.parametrize("cohorts", SAMPLED, ids=str)
def test_the_worst_case_of_cohorts_is_over_what_the_draw_can_give(cohorts: parts.Participation) -> None:
    """Not over any cohorts: groups and slots keep a client out of most rounds, and that is counted on."""
    answer = of(cohorts, "zero-out")
    assert "in the worst case over the cohorts that such a draw can give" in answer.statement()
    every = of(parts.MinSeparation(1, 6)).epsilon
    slots = isinstance(cohorts, parts.CyclicPoissonSampling | parts.BallsInBinsSampling)
    assert (answer.unamplified_epsilon < every * (1 - 1e-9)) == slots


def test_charges_of_named_runs_are_in_epsilon_and_no_others() -> None:
    tried = charge_of(of(parts.MinSeparation(2, 3)), 1)
    alone, both = of(parts.MinSeparation(2, 3)), of(parts.MinSeparation(2, 3), earlier=(tried,))
    assert both.gdp_mu == pytest.approx(alone.gdp_mu * math.sqrt(2))
    for answer in (alone, both):
        assert "its cost is in epsilon only as far as its runs are named here" in answer.statement()
    assert "other runs over the same people add to it" in alone.statement()
    assert f"the run of ledger {tried.first[:16]}" in both.statement()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (parts.FixedEpochs(1, 2), "each client in at most one of the first 2 rounds"),
        (parts.FixedEpochs(2, 2), "each client in at most 2 of the first 4 rounds, whole multiples of 2 apart"),
        (parts.FixedEpochs(1, 6), "each client in at most one round"),
        (parts.FixedEpochs(2, 3), "each client in at most 2 rounds, whole multiples of 3 apart"),
    ],
)
def test_epochs_that_end_before_the_run_are_said_with_their_end(pattern: parts.Participation, words: str) -> None:
    """Rounds after them may cost more: C = diag(1, 1, 1, 1, 10, 10) does, and one epoch of two rounds ends before."""
    answer = of(pattern)
    assert answer.cohorts == words
    assert f", {words}" in answer.statement()
    assert pattern.allows([5]) == ("first" not in words)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_the_words_of_a_pattern_are_true_of_what_it_allows(pattern: parts.Participation) -> None:
    """A client that skips an epoch comes back two epochs later, not exactly one."""
    words = of(pattern).cohorts
    numbers = [int(number) for number in re.findall(r"\d+", words)] or [1]
    for bits in range(2**6):
        joined = [t for t in range(6) if bits >> t & 1]
        gaps = [b - a for a, b in itertools.pairwise(joined)]
        true = len(joined) <= numbers[0]
        apart = {"exactly": lambda gap: gap == numbers[-1], "multiples": lambda gap: gap % numbers[-1] == 0}
        fits = next((fits for word, fits in apart.items() if word in words), lambda gap: gap >= numbers[-1])
        true &= all(map(fits, gaps))
        assert pattern.allows(joined) <= true
