"""Which mechanism has the least error for a population and a budget, in Python and on the command line."""

import json
import math
from pathlib import Path

import pytest

import refusals
from hubbub import accounting, build, config, utility
from hubbub.accounting.composition import ACCOUNTANTS
from hubbub.accounting.deployment import Budget, Deployment
from hubbub.accounting.recommend import Recommendation, recommend
from hubbub.cli.calibrating import settings_of
from hubbub.errors import BudgetError, ConfigError
from hubbub.families import Family
from hubbub.participation import CyclicPoissonSampling, MinSeparation, PoissonSampling
from hubbub.strategies import normalized_toeplitz
from hubbub.workloads import prefix_sum
from refusals import CALIBRATE, Refused, output

# Fixtures are found by their names here.
workplace, refused = refusals.workplace, refusals.refused

SMALL = Deployment(rounds=48, population=600, cohort_size=50)
BUDGET = Budget(epsilon=4.0, delta=1e-5)


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    return recommend(SMALL, BUDGET)


def test_every_option_meets_the_budget_under_one_relation(answer: Recommendation) -> None:
    assert len(answer.options) >= 10
    for option in answer.options:
        promised = accounting.guarantee(option.mechanism, BUDGET.delta, BUDGET.neighboring_relation)
        assert 4.0 * (1 - 1e-4) <= promised.epsilon <= 4.0
        assert promised.neighboring_relation == "zero-out"


def test_the_error_of_an_option_is_that_of_its_matrix(answer: Recommendation) -> None:
    """By definition: the root of the mean squared row norm of A·C⁻¹, times the deviation of z, over the cohort."""
    for option in answer.options:
        unit = utility.root_mean_squared_error(prefix_sum(48), option.mechanism.strategy)
        expected = unit * option.mechanism.stddev / 50
        if option.mechanism.sensitivity.exact or option.cohorts != "pattern":
            assert option.root_mean_squared_error == pytest.approx(expected, rel=1e-6)
        else:
            assert option.root_mean_squared_error >= expected * (1 - 1e-6)


def test_options_come_in_the_order_of_their_errors(answer: Recommendation) -> None:
    errors = [option.root_mean_squared_error for option in answer.options]
    assert errors == sorted(errors)
    assert {option.cohorts for option in answer.options} == {"pattern", "poisson", "fixed-size", "cyclic-poisson"}
    assert {option.family.name for option in answer.options} >= {"identity", "optimal-toeplitz", "blt", "banded", "tree-full"}


def test_the_pattern_is_what_population_and_cohort_leave_room_for(answer: Recommendation) -> None:
    patterns = {option.mechanism.participation for option in answer.options if option.cohorts == "pattern"}
    assert patterns == {MinSeparation(12, 4)}
    poisson = [option.mechanism.participation for option in answer.options if option.cohorts == "poisson"]
    assert poisson == [PoissonSampling(50 / 600)]


def test_no_other_band_count_of_cyclic_cohorts_is_much_better(answer: Recommendation) -> None:
    """All of them, one by one, against the few that were tried."""
    found = min(o.root_mean_squared_error for o in answer.options if o.cohorts == "cyclic-poisson")

    def error(bands: int) -> float:
        best = normalized_toeplitz.optimize(prefix_sum(48), bands=bands)
        mechanism = BUDGET.meets(best.strategy, CyclicPoissonSampling(bands * 50 / 600, bands))
        return best.root_squared_error * mechanism.stddev / 50

    assert found <= min(error(bands) for bands in range(2, 13)) * 1.02


@pytest.mark.parametrize("index", range(4))
def test_the_settings_that_are_shown_run_and_promise_what_was_recommended(answer: Recommendation, index: int) -> None:
    kinds = {option.cohorts: option for option in reversed(answer.options)}
    option = list(kinds.values())[index]
    tables = settings_of(option, SMALL, BUDGET)
    run = build.build(config.resolve(tables, {}))
    assert run.plan.mechanism is not None
    assert run.plan.mechanism.noise_multiplier == option.mechanism.noise_multiplier
    assert run.plan.mechanism.participation == option.mechanism.participation
    assert run.plan.expected_cohort_size == 50
    assert run.plan.promise().after(48, BUDGET.delta).epsilon <= 4.0


def test_amplification_is_for_small_budgets_and_correlation_for_large_ones() -> None:
    """As Choquette-Choo et al. 2023, Section 5, find: the smaller epsilon, the fewer bands, down to independent noise."""
    small, large = (recommend(Deployment(32, 1600, 100), Budget(epsilon, 1e-5)).options for epsilon in (0.5, 32.0))
    assert (small[0].family, small[0].cohorts) == (Family("identity"), "poisson")
    assert large[0].family.name != "identity"
    assert small[0].root_mean_squared_error > large[0].root_mean_squared_error


def test_a_stricter_separation_of_the_pattern_is_kept_and_a_wider_one_is_refused() -> None:
    options = recommend(Deployment(12, 60, 10, min_separation=3), BUDGET).options
    assert {o.mechanism.participation for o in options if o.cohorts == "pattern"} == {MinSeparation(3, 4)}
    with pytest.raises(ConfigError, match=r"min_separation = 7: 60 clients in cohorts of 10 are through after 6 rounds"):
        Deployment(12, 60, 10, min_separation=7)


def test_under_add_or_remove_one_patterns_are_left_out_with_the_reason() -> None:
    found = recommend(Deployment(12, 60, 10), Budget(4.0, 1e-5, "add-or-remove-one"))
    assert all(option.cohorts != "pattern" for option in found.options)
    assert "not offered for cohorts that follow a pattern" in found.left_out["blt, pattern"]


@pytest.mark.parametrize("deployment", [Deployment(1, 1, 1), Deployment(5, 7, 7), Deployment(3, 50_000, 2)], ids=str)
def test_the_smallest_and_the_widest_deployments_have_an_answer(deployment: Deployment) -> None:
    best = recommend(deployment, BUDGET).options[0]
    assert accounting.guarantee(best.mechanism, 1e-5, "zero-out").epsilon <= 4.0


def test_a_delta_that_is_met_without_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"delta = 1e-05: a client is in a round of 2 of 200000 .* well below 5e-06"):
        recommend(Deployment(3, 200_000, 2), BUDGET)


def test_num_4_a_delta_that_publishing_somebody_meets_is_remarked_upon(
    capsys: pytest.CaptureFixture[str], workplace: Path
) -> None:
    flags = "calibrate --epsilon 4 --rounds 4 --population 100 --cohort 10 --json".split()
    for delta, remarks in (("1e-2", 1), ("9e-3", 0)):
        told = json.loads(output(capsys, [*flags, "--delta", delta]))
        assert len(told["remarks"]) == remarks
        assert all("1/clients = 0.01" in remark for remark in told["remarks"])


def test_a_budget_that_nothing_meets_is_refused() -> None:
    with pytest.raises(BudgetError, match="no mechanism meets it; identity, poisson"):
        recommend(Deployment(3, 10, 10), Budget(1e-12, 1e-200))


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((0, 10, 1), "rounds"),
        ((1.5, 10, 1), "rounds"),
        ((10**12, 10, 1), "rounds"),
        ((5, 0, 1), "population"),
        ((5, math.nan, 1), "population"),
        ((5, 10, 11), "cohort_size"),
        ((5, 10, True), "cohort_size"),
        ((5, 10, 2, 0), "min_separation"),
    ],
)
def test_a_deployment_that_is_none_is_refused_by_name(values: tuple, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        Deployment(*values)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((math.nan, 1e-5), "epsilon"),
        ((0.0, 1e-5), "epsilon"),
        ((1.0, 1.0), "delta"),
        ((1.0, "1e-5"), "delta"),
        ((1.0, 1e-5, "zero"), "neighboring_relation"),
        ((1.0, 1e-5, "zero-out", "loose"), "accountant"),
    ],
)
def test_a_budget_that_is_none_is_refused_by_name(values: tuple, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        Budget(*values)


# On the command line


@pytest.mark.parametrize(
    "flags",
    [
        "--epsilon 4 --rounds 60 --population 200 --cohort 40 --delta 1e-4",
        "--epsilon 0.5 --rounds 20 --population 300 --cohort 20 --delta 1e-5",
        "--epsilon 1 --rounds 12 --population 60 --cohort 20 --delta 1e-3 --neighboring-relation replace-one",
    ],
)
def test_a_config_of_the_printed_lines_has_exactly_the_noise_that_was_recommended(
    capsys: pytest.CaptureFixture[str], workplace: Path, flags: str
) -> None:
    command = ["calibrate", *flags.split()]
    best = json.loads(output(capsys, [*command, "--json"]))["options"][0]
    printed = output(capsys, command)
    (workplace / "pasted.toml").write_text(printed[printed.index("  [training]") :])
    planned = json.loads(output(capsys, ["plan", "pasted.toml", "--json"]))
    assert planned["noise_multiplier"] == best["noise_multiplier"]
    assert planned["clip_noise_multiplier"] == best["clip_noise_multiplier"]


def test_the_printed_lines_name_the_accountant_that_calibrated(answer: Recommendation) -> None:
    other = Budget(4.0, 1e-5, accountant="rdp")
    assert settings_of(answer.options[0], SMALL, other)["privacy"]["accountant"] == "rdp"


@pytest.mark.parametrize("command", ["account", "calibrate"])
def test_the_help_names_every_accountant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, workplace: Path, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (line,) = [line for line in output(capsys, [command, "--help"]).splitlines() if "--accountant" in line]
    assert all(f"{name} (" in line for name in ACCOUNTANTS)


ASKED = ["calibrate", "--epsilon", "4", "--delta", "1e-5", "--rounds", "48", "--population", "600", "--cohort", "50"]


def test_the_command_prints_what_the_library_recommends(
    capsys: pytest.CaptureFixture[str], answer: Recommendation, workplace: Path
) -> None:
    told = json.loads(output(capsys, [*ASKED, "--json"]))
    assert [one["root_mean_squared_error"] for one in told["options"]] == [o.root_mean_squared_error for o in answer.options]
    assert told["options"][0]["relative_to_best"] == 1
    assert told["guarantee"]["epsilon"] <= 4.0
    assert told["settings"] == settings_of(answer.options[0], SMALL, BUDGET)
    assert told["left_out"] == answer.left_out


def test_the_table_has_a_line_for_each_option_and_says_who_draws(
    capsys: pytest.CaptureFixture[str], answer: Recommendation, workplace: Path
) -> None:
    text = output(capsys, ASKED)
    lines = text.splitlines()
    for option in answer.options:
        digits = f"{option.mechanism.noise_multiplier:.6g}"
        assert [line for line in lines if line.startswith(option.family.name) and option.cohorts in line and digits in line]
    assert "the server asks no client again before its separation has passed" in text
    assert "Recommended: (4, 1e-05)-differential privacy" in text or "Recommended: (3.99" in text
    assert f'strategy = "{answer.options[0].family.name}"' in text


@pytest.mark.parametrize(("text", "same"), [("6e2", "600"), ("6.0E+2", "600"), ("0.6e3", "600")])
def test_a_whole_number_may_be_written_with_an_exponent(
    capsys: pytest.CaptureFixture[str], text: str, same: str, workplace: Path
) -> None:
    flags = [*CALIBRATE, "--cohort-size", "5", "--json", "--population"]
    assert output(capsys, [*flags, text]) == output(capsys, [*flags, same])


@pytest.mark.parametrize("text", ["1.5e0", "1e-3", "6e999", "1e100", "1.0", "2.5", "e3", "1e", "1_0e2", "٣e2"])
def test_a_number_that_is_not_whole_is_none_with_an_exponent_either(refused: Refused, text: str) -> None:
    refused([*CALIBRATE, "--cohort-size", "5", "--population", text], "--population", "is not a whole number")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--cohort 5", ["--cohort 5", "--population"]),
        ("--cohort 0 --population 10", ["cohort_size = 0", "at least 1"]),
        ("--cohort -1 --population 10", ["cohort_size = -1", "at least 1"]),
        ("--cohort 11 --population 10", ["cohort_size = 11", "at most 10"]),
        ("--cohort 2.5 --population 10", ["--cohort", "2.5"]),
        ("--cohort many --population 10", ["--cohort", "many"]),
        ("--cohort 5 --population 0", ["population = 0", "at least 1"]),
        ("--cohort 5 --population 10 --min-separation 3", ["min_separation = 3", "lower it to 2"]),
        ("--cohort 5 --population 10 --min-separation 0", ["min_separation = 0", "at least 1"]),
        ("--cohort 5 --population 10 --strategy tree", ["--cohort 5", "--strategy"]),
        ("--cohort 5 --population 10 --strategy=", ["--cohort 5", "--strategy"]),
        ("--cohort 5 --population 10 --bands 2", ["--cohort 5", "--bands"]),
        ("--cohort 5 --population 10 --buffers 2", ["--cohort 5", "--buffers"]),
        ("--cohort 5 --population 10 --matrix c.npy", ["--cohort 5", "--matrix"]),
        ("--cohort 5 --population 10 --cohort-size 5", ["--cohort 5", "--cohort-size"]),
        ("--cohort 5 --population 10 --max-participations 2", ["--cohort 5", "--max-participations"]),
        ("--cohort 5 --population 10 --rounds-per-epoch 2", ["--cohort 5", "--rounds-per-epoch"]),
        ("--cohort 5 --population 10 --sampling-probability 0.1", ["--cohort 5", "--sampling-probability"]),
        ("--cohort 5 --population 10 --cycle-length 2", ["--cohort 5", "--cycle-length"]),
        ("--cohort 5 --population 10 --bins 2", ["--cohort 5", "--bins"]),
        ("--cohort 5 --population 10 --neighboring-relation zero", ["neighboring_relation = 'zero'", "did you mean"]),
        ("--cohort 5 --population 10 --accountant loose", ["accountant = 'loose'", "tight"]),
        ("--cohort 5 --population 10 --epsilon 0", ["epsilon = 0.0"]),
        ("--cohort 5 --population 10 --delta 1", ["delta = 1.0"]),
        ("--cohort 5 --population 10 --rounds 1e12", ["rounds = 1000000000000"]),
    ],
)
def test_flags_that_ask_for_no_recommendation_are_refused(refused: Refused, flags: str, words: list[str]) -> None:
    refused([*CALIBRATE, *flags.split()], *words)
