"""What hubbub says of privacy: each sentence, the cases in which it is said, and the theorem or the test by which it is true.

The sentences are collected from the code. A row is a piece of one or several of them (``|`` between), the cases in which they
are said, and why they are true there: a theorem, a definition, or a test. A sentence without a row fails, as does a row without
a sentence or with a test that is not there. What is said of settings, sizes and times alone is left out by ``NO_CLAIM``.
"""

import ast
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub import accounting
from hubbub.accounting import PrivacyGuarantee, group_epsilon, group_events
from hubbub.accounting.events import RELATIONS, MixtureOfGaussians
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.statement import RunFacts, no_less
from hubbub.ledger.actual_cost import spent
from hubbub.ledger.multi_run import compose_runs
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism, NoiseShares
from hubbub.mechanism.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    RandomParticipation,
    SingleParticipation,
    TruncatedPoissonSampling,
)
from hubbub.mechanism.strategies import Identity
from recorded_runs import history_of, promise_of

ROOT = Path(__file__).parent.parent
LEAST_WORDS = 5
EVERY: list[Participation] = [
    SingleParticipation(),
    FixedEpochs(3, 2),
    MinSeparation(2, 3),
    PoissonSampling(0.1),
    FixedSizeSampling(3, 20),
    TruncatedPoissonSampling(0.1, 5, 20),
    CyclicPoissonSampling(0.3, 3),
    BallsInBinsSampling(3),
]

# Module: rows of "piece | piece :: cases :: by what".
TABLE = {
    "accounting/wording.py": """
metrics that are computed from | what the time :: every run :: definition: no release holds them
choosing settings, models or features :: every run :: test_charges_of_named_runs_are_in_epsilon_and_no_others
other runs and other releases :: every run :: test_charges_of_named_runs_are_in_epsilon_and_no_others
facts about groups | facts about people | epsilon is that of k times :: patterns, shares :: \
test_what_is_said_of_groups_is_true_for_each_participation
epsilon is not that of k times :: Poisson :: test_what_is_said_of_groups_is_true_for_each_participation
group_epsilon makes of it | k − 1 fewer :: other cohorts :: test_what_is_said_of_groups_is_true_for_each_participation
publishing all data of one :: delta of 1/units or more :: \
definition: one record drawn of n is (0, 1/n)-DP, zero-out and replace-one
sampled at random exactly :: random cohorts :: theorem: of each event's docstring
breaks the participation pattern :: patterns :: test_a_run_that_broke_its_pattern_is_not_said_to_have_kept_it
without a record counts every earlier :: patterns that devices keep :: \
test_prt_11_no_loss_of_the_record_breaks_the_pattern
each person has one device :: patterns that devices keep :: definition: of what no device can show of itself
was chosen by what another released :: several runs :: \
theorem: Zhu, Dong and Wang 2022, Theorem 10, of parameters fixed beforehand
adds the whole noise, from a key :: holders :: definition: of the noise of one holder
own assumptions hold :: several runs :: test_the_statement_of_several_runs_holds_each_in_a_line_and_all_that_they_assume
that the run ended after :: fewer rounds than planned :: test_a_run_that_ended_early_counts_on_why_it_did
enter one update | of that example alone :: clients, examples :: definition: the sensitivity is of one clipped vector
of every round that was begun is recorded :: every run :: test_every_round_that_was_begun_is_charged
one person is one client | one person has one example :: clients, examples :: definition: of the unit
readers see the released models :: every run :: definition: of what is released
added their share of noise | in shares of at least :: shares :: test_a_statistical_distance_costs_what_it_may
the classes of the data are public | every number of | whether … is there or not :: by relation :: \
test_no_statement_of_presence_calls_the_number_of_units_public
in at most one round | in at most … rounds | in a round with probability | drawn at random \
| cyclic Poisson sampling :: each participation :: \
test_the_words_of_a_pattern_are_true_of_what_it_allows
group is fixed permanently | bin is drawn once :: cyclic, balls in bins :: \
theorem: Choquette-Choo et al. 2023, Theorem 5; Chua et al. 2025
that may be missing is one of :: fixed size and truncated, add-or-remove-one :: definition: of q = B/n
that replaces another takes its name :: cyclic and balls in bins, replace-one :: \
definition: the two data sets have the same slots
""",
    "accounting/statement.py": """
Simulation, not for release | a simulation is among the runs :: simulations :: \
test_a_simulation_among_runs_is_named_and_never_called_the_whole
computed anew from | of the sensitivity under it | no theorem covers it | nothing is promised under :: each relation :: \
test_what_another_relation_assumes_stands_beside_its_epsilon
has no privacy guarantee :: without privacy :: test_num_2_what_promises_nothing_says_so_in_full
differential privacy for each :: every run :: test_delta_is_never_shown_below_what_it_is
standard deviation of the noise | in clip norms, at most :: cards :: test_rho_is_that_of_the_stated_sensitivity_and_noise
count as nothing | is there or is not | is replaced by another :: each relation :: definition: of the relation
hubbub's own, rounded up :: tight :: test_random_cohorts_are_computed_anew_under_each_relation
hubbub's Rényi accountant :: rdp, shares :: theorem: Canonne, Kamath and Steinke 2020, Proposition 12
with all of its data | one example, by itself :: clients, examples; with and without privacy :: \
test_a_run_that_is_hidden_is_not_said_to_be_bare_because_another_is
to be enforced by the | It assumes | It holds for a run :: with and without a run :: \
test_only_a_statement_of_a_run_says_who_sees_to_its_assumptions
central: | of some runs central | distributed noise | that of each run where it is named :: each setting :: \
test_a_run_that_is_hidden_is_not_said_to_be_bare_because_another_is
that of each run, named below :: several runs :: test_a_run_that_is_hidden_is_not_said_to_be_bare_because_another_is
the model after every round | clip norm of every round | Of each run also what :: bare, fixed and adaptive, several :: \
test_a_run_that_is_hidden_is_not_said_to_be_bare_because_another_is
other runs over the same people add :: without earlier runs :: test_charges_of_named_runs_are_in_epsilon_and_no_others
A simulation is among | noise anybody can remove | noise from a known seed :: simulations :: \
test_a_simulation_among_runs_is_named_and_never_called_the_whole
Assuming that cohorts were drawn as stated :: random cohorts :: test_the_worst_case_of_cohorts_is_over_what_the_draw_can_give
Epsilon counts on no random cohorts :: patterns :: theorem: van Erven and Harremoës 2014, Theorem 13
Numbers are rounded up :: every run :: test_no_number_of_a_statement_is_below_the_computed_one
statistical distance of :: shares :: test_a_statistical_distance_costs_what_it_may
epsilon is computed from every round | the ledgers say was begun | the ledger says was begun :: one run, several :: \
test_every_round_that_was_begun_is_charged
its cost is in epsilon only :: every run :: test_charges_of_named_runs_are_in_epsilon_and_no_others
no run: this is what :: without a run :: definition: there is no ledger
no lower bound is stated | show, with confidence 95 % :: with and without an audit :: \
test_a_bound_in_the_report_is_rounded_down_and_is_one_on_what_is_stated
norm of an update together | L2 sensitivity of :: fixed and adaptive :: test_rho_is_that_of_the_stated_sensitivity_and_noise
Under … epsilon is | Under … no epsilon :: each relation :: test_what_another_relation_assumes_stands_beside_its_epsilon
in the units of a sum | sums divided by the fixed number :: runs :: \
test_a_statement_of_a_run_names_its_scale_its_divisor_and_its_record
each share holder adds all :: holders :: definition: noise_rows
the run of ledger | the run of head :: earlier and several runs :: test_a_run_that_is_charged_beside_is_told_in_full
secret keys from the operating system :: secure noise :: theorem: the release rounds the real mechanism (hubbub.noise.lattice)
""",
    "accounting/guarantee.py": """
neither clipped nor noised :: without privacy :: test_num_2_what_promises_nothing_says_so_in_full
""",
    "ledger/actual_cost.py": """
as promised and not kept | worse than promised | were promised | was promised | nothing bounds what \
| the correlated noise has :: breaches :: \
test_a_run_that_broke_its_pattern_is_not_said_to_have_kept_it
the sum of the column norms | the most rounds of one :: breaches :: theorem: the triangle inequality; Pythagoras
of a simulation has a key | came from a known seed :: breaches :: definition: of a simulation
""",
    "ledger/multi_run.py": """
over the same people | that of each run, as its own :: several runs :: \
test_a_run_that_is_hidden_is_not_said_to_be_bare_because_another_is
""",
    "accounting/runs.py": """
the run of ledger | nothing bounds | Gaussian noise | tree aggregation | shares of at least \
| cyclic Poisson sampling :: charges :: \
test_a_run_that_is_charged_beside_is_told_in_full
""",
    "training/plan.py": """
is public and the same whoever takes part :: cohort sizes of the number of clients :: definition: of a fixed divisor
""",
    "experiment/engine/finished.py": """
bounds what those who see releases alone :: every run that is published :: test_the_card_says_whom_epsilon_is_against
metadata name the head :: every run that is published :: test_the_card_says_whom_epsilon_is_against
the record that binds these files :: every run that is published :: definition: of the record
Accuracy on public test data :: public test data :: test_the_card_says_whom_epsilon_is_against
""",
    "report/__init__.py": """
aborted: the privacy cost stays spent :: aborted rounds :: test_every_round_that_was_begun_is_charged
It assumes (in brackets :: every run :: test_only_a_statement_of_a_run_says_who_sees_to_its_assumptions
are of held-out | this report is for choosing :: held-out data :: definition: they are computed without noise
""",
    "report/page.py": """
noised count :: adaptive :: theorem: Andrew et al. 2021, Theorem 1
""",
    "report/charts.py": """
without noise: to choose :: held-out data :: definition: they are computed without noise
under noise that epsilon counts :: private evaluation :: test_a_budget_pays_for_training_and_evaluations_together
Spent after each round :: every run :: test_every_round_that_was_begun_is_charged
From public numbers :: every run :: definition: releases and the mechanism
noised count :: adaptive :: theorem: Andrew et al. 2021, Theorem 1
A narrow bar beyond the line | present and of absent canaries :: audits :: \
test_an_audit_that_lies_in_a_runs_folder_is_in_its_report
Column t holds | Row t makes :: correlated noise :: definition: of C
No client came again :: patterns, private :: definition: of what is on record
""",
    "report/audit.py": """
-differential privacy for each :: audits :: test_delta_is_never_shown_below_what_it_is
A lower bound at 1 − 10⁻⁶ above :: audits :: definition: of the two confidences
claimed distributions | at least, with confidence :: audits :: definition: of the picture and the table
""",
    "audit/verdict.py": """
BROKEN: … | epsilon is at least | did not disprove the stated epsilon | (1 − 10⁻⁶) :: audits :: \
theorem: the sum of the false alarms of all tests
""",
    "audit/runs.py": """
cohorts known: without amplification | excess over the stated | claim of a canary's cohorts \
| asked against the pattern :: audits :: \
theorem: each test's own
is the one-run bound :: fixed size, truncated :: theorem: Steinke, Nasr and Jagielski 2023, Theorem 5.2
may have had more noise :: shares, holders :: definition: at least so many answer
here that bound cannot fail :: few canaries :: theorem: Clopper and Pearson 1934
""",
    "audit/bounds.py": """
assumes that the trade-off curve is Gaussian | fails for every | Corollary 2.13 :: audits :: \
theorem: Dong, Roth and Su 2022, Corollary 2.13
Clopper and Pearson 1934 :: audits :: definition: of the source
""",
    "cli/accounts.py": """
in the worst case over them :: random cohorts :: test_the_worst_case_of_cohorts_is_over_what_the_draw_can_give
over clip norm × largest :: every run :: test_rho_is_that_of_the_stated_sensitivity_and_noise
, since no flag names another :: flags without participation :: test_the_first_line_says_which_participation_is_meant
That is what the run promised | That is not what the run promised | says what it spent :: a run of --mechanism :: \
test_a_run_s_mechanism_costs_what_the_run_promised
""",
    "cli/runs.py": """
in the worst case over them :: random cohorts :: test_the_worst_case_of_cohorts_is_over_what_the_draw_can_give
it may still do | worse than promised \
| so that nothing could be checked against it :: unfinished, broken and lone ledgers :: \
test_what_is_worse_than_promised_is_reported_by_every_command
private numbers stayed in :: published runs :: definition: of the files that are published
private: for choosing settings :: held-out data :: definition: they are computed without noise
its noise can never be drawn again | no secret is left :: closed runs :: definition: unless keys were copied
""",
    "cli/planning.py": """
on each parameter | signal to noise ≤ | of a mean over | of the model after :: every run with noise :: \
definition: updates are clipped, sums divided by the expected number
infinite: this run promises :: without privacy :: test_num_2_what_promises_nothing_says_so_in_full
over clip norm × largest :: every run :: test_rho_is_that_of_the_stated_sensitivity_and_noise
all calibrated to the same epsilon | standard deviation of the noise | nobody can check \
| the settings as they are :: alternatives :: \
definition: each is planned as every run is
""",
    "cli/factorize.py": """
No matrix C :: every strategy, one participation pattern :: test_what_compare_says_no_matrix_is_below_is_below_all_that_it_shows
one round of each client | rounds of each client :: every pattern :: definition: of the participation
and so is the error :: sensitivities that are bounds :: definition: the error is in units of the sensitivity
of the squared error :: strategies :: theorem: the lower bound that the answer names
""",
}
# Titles, settings, sizes and times.
TEMPLATE = {
    "no epsilon covers it": "definition: they are computed without noise",
    "Runs over the same people compose": "theorem: Zhu, Dong and Wang 2022, Theorem 10",
    "Simulation, not for release": "test_a_simulation_among_runs_is_named_and_never_called_the_whole",
    "Aborted, at full privacy cost": "test_every_round_that_was_begun_is_charged",
    "privacy unit, ": "definition: of the unit",
    "no guarantee": "test_num_2_what_promises_nothing_says_so_in_full",
    "by audit, with confidence 95 %": "test_a_bound_in_the_report_is_rounded_down_and_is_one_on_what_is_stated",
    "(enforced by the ": "test_only_a_statement_of_a_run_says_who_sees_to_its_assumptions",
    "A lower bound below the stated epsilon proves nothing": "definition: of a lower bound",
    "checks it": "definition: of the checks that it prints",
    "References, as BibTeX": "definition: of the sources",
    "Statement for publication": "definition: the same text",
    "Tests that passed": "definition: of the checks",
}
NO_CLAIM = re.compile(
    r"tags: |^!\[|charts?|## |\| `guarantee|\| `report|\| after round|who is trusted|Who is trusted|microsecond|"
    r"Seconds of each|^Share of|as a table|key holders$|"
    r"Noise against signal in|^How often clients|^Measured by clients under noise|rounds that one took|score|"
    r"each canary needs one|A separation of|"
    r"Time and traffic|not known before|rows of the model|next to that of the count|to encrypt|ciphertexts|seconds|"
    r"temporary key|With --measure|not computed for|noise multiplier of the updates|none: they are|--json has|CPU s|"
    r"yes, no zero|of CPU time|the workload, to|different from that|banded Toeplitz with|time-varying|copies of one|"
    r"held-out …|<finished run|restore the file|one after the other|add what is encrypted|open the sum|is missing; name|"
    r"One Gaussian release of|Ledger head, to tell"
)


def said(module: str) -> Iterator[str]:
    """The texts of at least a few words in a module, but for docstrings and errors; ``…`` stands for what is filled in."""
    tree = ast.parse((ROOT / "src" / "hubbub" / module).read_text())
    silent: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Raise():
                silent |= {id(inner) for inner in ast.walk(node)}
            case ast.Expr(value=ast.Constant()):
                silent.add(id(node.value))
            case ast.JoinedStr(values=values):
                silent |= {id(value) for value in values}
    for node in ast.walk(tree):
        match node:
            case _ if id(node) in silent:
                continue
            case ast.JoinedStr(values=values):
                text = "".join(str(value.value) if isinstance(value, ast.Constant) else "…" for value in values)
            case ast.Constant(value=str(text)):
                pass
            case _:
                continue
        if len(re.findall("[a-z]{2,}", text)) >= LEAST_WORDS:
            yield text


def rows(module: str) -> Iterator[tuple[list[str], str, str]]:
    for row in TABLE[module].strip().splitlines():
        pieces, cases, by = row.split(" :: ")
        yield pieces.split(" | "), cases, by


@pytest.mark.parametrize("module", TABLE)
def test_every_sentence_has_a_row_that_says_why_it_is_true(module: str) -> None:
    sentences = [text for text in said(module) if not NO_CLAIM.search(text)]
    pieces = [piece for found, _, _ in rows(module) for piece in found]
    assert not [text for text in sentences if not any(piece in text for piece in pieces)], "a row of TABLE is missing"
    assert not [piece for piece in pieces if not any(piece in text for text in said(module))], "a row of TABLE is left over"


def test_every_sentence_of_the_page_of_a_run_has_a_row() -> None:
    page = (ROOT / "src/hubbub/report/templates/report.html").read_text()
    for pattern, instead in ((r"{%.*?%}", ""), (r"{{.*?}}", "…"), (r"</?(?:span|b|code|small)\b.*?>", ""), (r"<.*?>", "\n")):
        page = re.sub(pattern, instead, page)
    sentences = [text for text in page.splitlines() if len(re.findall("[a-z]{2,}", text)) >= LEAST_WORDS]
    assert not [text for text in sentences if not any(piece in text for piece in TEMPLATE) and not NO_CLAIM.search(text)]
    assert not [piece for piece in TEMPLATE if piece not in page]


def test_every_test_that_the_table_names_is_there() -> None:
    there = {name for path in ROOT.glob("tests/test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)}
    reasons = [*TEMPLATE.values(), *(by for module in TABLE for _, _, by in rows(module))]
    assert not {by for by in reasons if by.startswith("test_")} - there
    assert all(re.match("test_|theorem: .|definition: .", by) for by in reasons)


def of(participation: Participation, relation: str | None = None, z: float = 1.5, **more: object) -> PrivacyGuarantee:
    return accounting.guarantee(Mechanism(Identity(6), participation, z), 1e-5, relation, **more)


CASES = [
    (cohorts, relation)
    for cohorts in EVERY
    for relation in RELATIONS
    if isinstance(cohorts, RandomParticipation) or relation != "add-or-remove-one"
]


@pytest.mark.parametrize(("cohorts", "relation"), CASES, ids=str)
def test_what_is_said_of_groups_is_true_for_each_participation(cohorts: Participation, relation: str) -> None:
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
        fewer = isinstance(cohorts, FixedSizeSampling | TruncatedPoissonSampling) and relation == "add-or-remove-one"
        assert ("k − 1 fewer in the population" in sentence) == fewer
    assert len(ends) == 1


def test_acc_8_two_clients_that_act_as_one_pay_more_than_a_statement_said() -> None:
    one = Mechanism(Identity(1), PoissonSampling(0.01), 0.1)
    answer = accounting.guarantee(one, 0.015)
    assert not any("epsilon is that of k times" in text for text in answer.not_covered)
    assert accounting.guarantee(replace(one, noise_multiplier=0.05), 0.015).epsilon == 0
    assert accounting.epsilon(group_events(answer.events, 2), 0.015, "add-or-remove-one") == pytest.approx(38.2, abs=0.1)


@pytest.mark.parametrize("cohorts", EVERY, ids=str)
def test_a_run_that_ended_early_counts_on_why_it_did(cohorts: Participation) -> None:
    """Rogers et al. 2016: an epsilon after t rounds does not hold where the releases chose t."""
    whole, part = of(cohorts), of(cohorts, rounds=4)
    assert not any("ended after" in a.text for a in whole.assumptions)
    assert "that the run ended after 4 rounds was decided by nothing that its data or its releases showed" in part.statement()
    charge = RunCharge("1" * 64, "2" * 64, 4, 6, part.events, part.neighboring_relation, part.relations, "client")
    together = of(cohorts, part.neighboring_relation, earlier=(charge,))
    assert any("ended after 4 rounds" in a.text for a in together.assumptions)


@pytest.mark.parametrize(("cohorts", "relation"), CASES, ids=str)
def test_no_statement_of_presence_calls_the_number_of_units_public(cohorts: Participation, relation: str) -> None:
    texts = [a.text for a in of(cohorts, relation).assumptions]
    presence = relation == "add-or-remove-one"
    assert ("the number of clients and the classes of the data are public" in texts) != presence
    assert (
        any("every number of clients that is published are the same whether a client is there" in t for t in texts) == presence
    )


@pytest.mark.parametrize("cohorts", EVERY, ids=str)
def test_what_another_relation_assumes_stands_beside_its_epsilon(cohorts: Participation) -> None:
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
    answer = accounting.guarantee(Mechanism(Identity(6), PoissonSampling(0.1), 1.5), 1 / 3e5)
    for text in (answer.sentence(), answer.statement()):
        assert all(float(shown) >= answer.delta for shown in re.findall(r"3\.333\d*e-06", text))


def charge_of(answer: PrivacyGuarantee, number: int, **more: object) -> RunCharge:
    marks = f"{number:x}" * 64, f"{number + 1:x}" * 64
    return replace(RunCharge(*marks, 6, 6, answer.events, "zero-out", RELATIONS, "client"), **more)


def test_a_simulation_among_runs_is_named_and_never_called_the_whole() -> None:
    simulated, real = charge_of(of(PoissonSampling(0.1)), 1, simulation=True), charge_of(of(MinSeparation(2, 3)), 3)
    promise = promise_of(Identity(6), MinSeparation(2, 3), earlier=(simulated,))
    for answer in (compose_runs([simulated, real], 1e-5), promise.after(6, 1e-5)):
        assert answer.simulation
        assert "Not for release: a simulation is among the runs" in answer.sentence()
        assert "It was a simulation" not in answer.statement()
        assert "A simulation is among the runs" in answer.statement()
    alone = replace(promise, earlier=(), simulation=True).after(6, 1e-5)
    assert alone.sentence().endswith("Simulation, not for release: cohorts and noise come from a known seed.")
    assert "It was a simulation" in alone.statement()


def test_a_run_that_is_hidden_is_not_said_to_be_bare_because_another_is() -> None:
    unbounded = charge_of(of(MinSeparation(2, 3)), 1, events=None)
    for answer in (of(MinSeparation(2, 3), earlier=(unbounded,)), compose_runs([unbounded], 1e-5)):
        text = answer.statement()
        assert "epsilon is infinite" in text
        assert "bare sum" not in text
        assert "not clipped" not in text
        assert "Noise: none" not in text
    bare = accounting.unprotected(4, 1e-5).statement()
    for words in ("its update is not clipped", "bare sum", "nothing is hidden from anybody", "Noise: none"):
        assert words in bare
    shares = Mechanism(Identity(6), MinSeparation(2, 3), 4.0, NoiseShares(4, 100))
    mixed = of(MinSeparation(2, 3), earlier=(charge_of(accounting.guarantee(shares, 1e-5), 5),)).statement()
    assert "of some runs central, of others with noise in shares" in mixed


def test_a_run_that_broke_its_pattern_is_not_said_to_have_kept_it() -> None:
    promise = promise_of(Identity(6), SingleParticipation())
    kept, broken = (spent(promise, history_of(cohorts)) for cohorts in ([{1}, {2}], [{1}, {1}]))
    assert "not kept" not in kept.guarantee.sentence()
    assert "each client in at most one round, as promised and not kept" in broken.guarantee.sentence()
    assert "or its own rounds are counted as they were" in broken.guarantee.statement()
    assert broken.guarantee.epsilon == pytest.approx(promise_of(Identity(6), MinSeparation(1, 2)).after(2, 1e-5).epsilon)


@pytest.mark.parametrize("cohorts", EVERY, ids=str)
def test_every_round_that_was_begun_is_charged(cohorts: Participation) -> None:
    """Of ``history_of`` every round is aborted."""
    answer = spent(promise_of(Identity(6), cohorts), history_of([set()] * 4)).guarantee
    assert answer.epsilon == of(cohorts, z=1.0, rounds=4).epsilon > 0


@pytest.mark.parametrize("cohorts", EVERY[3:], ids=str)
def test_the_worst_case_of_cohorts_is_over_what_the_draw_can_give(cohorts: Participation) -> None:
    """Not over any cohorts: groups and slots keep a client out of most rounds, and that is counted on."""
    answer = of(cohorts, "zero-out")
    assert "in the worst case over the cohorts that such a draw can give" in answer.statement()
    every = of(MinSeparation(1, 6)).epsilon
    slots = isinstance(cohorts, CyclicPoissonSampling | BallsInBinsSampling)
    assert (answer.unamplified_epsilon < every * (1 - 1e-9)) == slots


def test_charges_of_named_runs_are_in_epsilon_and_no_others() -> None:
    tried = charge_of(of(MinSeparation(2, 3)), 1)
    alone, both = of(MinSeparation(2, 3)), of(MinSeparation(2, 3), earlier=(tried,))
    assert both.gdp_mu == pytest.approx(alone.gdp_mu * math.sqrt(2))
    for answer in (alone, both):
        assert "its cost is in epsilon only as far as its runs are named here" in answer.statement()
    assert "other runs over the same people add to it" in alone.statement()
    assert f"the run of ledger {tried.first[:16]}" in both.statement()


@pytest.mark.parametrize("pattern", EVERY[:3], ids=str)
def test_the_words_of_a_pattern_are_true_of_what_it_allows(pattern: Participation) -> None:
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


def test_the_statement_of_several_runs_says_who_computes_it_again() -> None:
    text = compose_runs([charge_of(of(MinSeparation(2, 3)), n) for n in (1, 3)], 1e-5).statement(
        RunFacts(heads=("ab" * 32, "cd" * 32), runs=(of(MinSeparation(2, 3)),) * 2)
    )
    assert "'hubbub account' of all computes it again" in text


def test_a_promise_of_nothing_is_of_nothing() -> None:
    assert Promise(3, None).after(3, 1e-5).not_covered
    assert not any("facts about groups" in text for text in accounting.unprotected(3, 1e-5).not_covered)
