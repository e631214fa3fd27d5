"""What ``hubbub plan`` shows of other strategies, cohorts, cohort sizes and rounds is what a run with those settings has."""

import itertools
import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hubbub import CyclicPoissonSampling, FixedSizeSampling, PoissonSampling, calibrate, factorization
from hubbub.errors import ConfigError
from hubbub.experiment import alternatives as module
from hubbub.experiment import config as configs
from hubbub.experiment.alternatives import Alternatives, alternatives
from hubbub.experiment.build import build
from hubbub.experiment.cohort_sizes import CohortSize, cohort_sizes, proposed, round_counts
from hubbub.experiment.config import Config
from hubbub.experiment.planner import planned, strategy_word
from hubbub.experiment.settings import server_of
from hubbub.mechanism.strategies import Identity
from hubbub.mechanism.utility import squared_errors
from hubbub.mechanism.workloads import prefix_sum
from recorded_runs import invoke

Layer = configs.Layer

RUNS: dict[str, Layer] = {
    "pattern": {"privacy": {"mode": "dp-ftrl", "bands": 4, "epsilon": 6.0}},
    "fixed epochs": {
        "privacy": {"mode": "dp-ftrl", "strategy": "blt", "buffers": 2, "noise_multiplier": 1.5},
        "participation": {"pattern": "fixed-epochs", "epochs": 4, "rounds_per_epoch": 4},
    },
    "poisson": {"privacy": {"epsilon": 6.0}},
    "cyclic": {
        "privacy": {"mode": "dp-ftrl", "sampling": "cyclic-poisson", "bands": 2, "epsilon": 6.0},
        "participation": {"cycle_length": 4},
    },
    "poisson, zero-out": {"privacy": {"epsilon": 6.0, "neighboring_relation": "zero-out"}},
    "momentum": {"privacy": {"mode": "dp-ftrl", "epsilon": 2.0}, "training": {"server_optimizer": "fedavgm"}},
}


def settings(*layers: Layer) -> Config:
    return configs.resolve({"training": {"rounds": 16, "cohort_size": 20}, "data": {"clients": 80}}, *layers)


def around(config: Config, **options: Any) -> Alternatives:
    return alternatives(config, config.data.clients, planned(config, config.data.clients), **options)


# Of runs that differ by a relation or an optimizer alone the short form tries one.
LONG = {"fixed epochs", "poisson, zero-out", "momentum"}
MADE = [pytest.param(run, id=name, marks=pytest.mark.slow if name in LONG else ()) for name, run in RUNS.items()]


@pytest.fixture(scope="module", params=MADE)
def found(request: pytest.FixtureRequest) -> tuple[Config, Alternatives]:
    config = settings(request.param)
    return config, around(config, thorough=True)


def test_a_run_made_with_the_printed_flags_states_the_epsilon_of_the_table(found: tuple[Config, Alternatives]) -> None:
    config, among = found
    assert len(among.options) >= 3
    own = among.own
    budget = config.privacy.epsilon or own.epsilon
    for one in among.options:
        # As a person makes it: a file, and the flags that were printed.
        run = build(configs.resolve(configs.layer_of(config), configs.overrides(module.assignments(one.changes))))
        assert strategy_word(run.config) == one.strategy
        stated = run.plan.promise().after(run.plan.rounds, run.plan.delta)
        assert stated.epsilon == one.epsilon
        assert budget * (1 - 1e-3) <= one.epsilon <= budget
        assert stated.neighboring_relation == own.plan.promise().after(16, 1e-5).neighboring_relation
        assert run.plan.mechanism.noise_multiplier == one.mechanism.noise_multiplier
        assert run.plan.participation == one.plan.participation
        assert run.plan.expected_cohort_size == 20


def test_the_error_of_the_table_is_that_of_the_matrices(found: tuple[Config, Alternatives]) -> None:
    """By definition: the rows of A·C⁻¹, times the deviation of z, over the cohort."""
    config, among = found
    for one in among.options:
        mechanism = one.plan.mechanism
        squared = squared_errors(server_of(config).workload(config.training.rounds), mechanism.strategy)
        assert one.error == pytest.approx(math.sqrt(squared.mean()) * mechanism.stddev / 20, rel=1e-8)


def test_if_the_largest_error_is_minimized_strategies_are_compared_by_it() -> None:
    privacy = {"mode": "dp-ftrl", "strategy": "optimal-toeplitz", "objective": "max", "epsilon": 2.0}
    own = around(settings({"privacy": privacy})).own
    largest = squared_errors(prefix_sum(16), own.mechanism.strategy).max()
    assert own.error == pytest.approx(math.sqrt(largest) * own.mechanism.stddev / 20, rel=1e-8)


def test_what_is_recommended_asks_for_no_coins_that_the_run_did_not_count_on(found: tuple[Config, Alternatives]) -> None:
    among = found[1]
    best, why = among.recommended
    own = among.own
    assert ("without random cohorts" in why) == any(own.cohorts == "pattern" != one.cohorts for one in among.options)
    assert best.error <= own.error
    if own.cohorts == "pattern":
        assert best.cohorts == "pattern"
    least = min(one.error for one in among.options if own.cohorts != "pattern" or one.cohorts == "pattern")
    assert best.error <= 1.02 * least


def test_patterns_of_random_runs_are_tried_under_a_relation_that_covers_both_and_else_left_out_with_the_reason() -> None:
    both = around(settings(RUNS["poisson, zero-out"]))
    assert {one.cohorts for one in both.options} == {"pattern", "poisson", "fixed-size", "cyclic-poisson"}
    random = around(settings(RUNS["poisson"]))
    assert all(one.cohorts != "pattern" for one in random.options)
    assert "follow a pattern" in random.left_out["independent noise, cohorts by a pattern"]


MOVING: Layer = {"privacy": {"clipping": "adaptive", "epsilon": 6.0, "neighboring_relation": "zero-out"}}
EVERYONE: Layer = {
    "privacy": {"mode": "dp-ftrl", "strategy": "identity", "epsilon": 6.0},
    "training": {"cohort_size": 80},
    "participation": {"pattern": "every-round"},
}


@pytest.mark.parametrize(
    ("layers", "left_out", "reason"),
    [
        ((RUNS["pattern"], {"secagg": {"scheme": "paillier"}}), "identity, poisson", "whoever opens the sums sees"),
        ((MOVING,), "correlated noise, cohorts by a pattern", "clip norm"),
        ((EVERYONE,), "random cohorts", "nothing to amplify"),
    ],
    ids=["encrypted", "adaptive clipping", "everybody in every round"],
)
def test_what_the_settings_rule_out_is_left_out_with_the_reason(layers: tuple[Layer, ...], left_out: str, reason: str) -> None:
    pytest.importorskip("gmpy2")
    among = around(settings(*layers))
    assert reason in among.left_out[left_out]
    if left_out.startswith("correlated"):
        assert {one.strategy for one in among.options} == {"identity"}
    else:
        assert {one.cohorts for one in among.options} == {"pattern"}


def test_the_word_default_takes_a_setting_back_and_nothing_at_all_is_still_refused() -> None:
    file: Layer = {"privacy": {"bands": 3, "delta": 1e-3, "mode": "dp-ftrl"}, "training": {"momentum": 0.5}}
    flags = configs.overrides(["privacy.bands=default", "privacy.delta= default", "training.momentum=default"])
    assert configs.resolve(file, flags) == configs.resolve({"privacy": {"mode": "dp-ftrl"}})
    with pytest.raises(ConfigError, match=r"privacy.band: is no setting"):
        configs.resolve(file, configs.overrides(["privacy.band=default"]))
    found = configs.resolve(file, configs.overrides(["privacy.epsilon=default", "privacy.noise_multiplier=1"])).privacy
    assert (found.epsilon, found.noise_multiplier) == (None, 1.0)
    own: Layer = {"privacy": {"epsilon": 2.0}}
    assert configs.resolve(own, configs.overrides(["privacy.noise_multiplier=default"])).privacy.epsilon == 2.0
    with pytest.raises(ConfigError, match=r"privacy.bands = '': must be a whole number"):
        configs.resolve(file, configs.overrides(["privacy.bands="]))


@pytest.mark.slow
def test_the_command_that_is_printed_runs_what_was_recommended(tmp_path: Path) -> None:
    toml = tmp_path / "my run.toml"
    toml.write_text(configs.dump(settings(RUNS["fixed epochs"])))
    typed = ["--set", "privacy.noise_multiplier=2.5", "--set", "training.rounds=14"]
    told = json.loads(invoke("plan", str(toml), *typed, "--json"))
    best = next(one for one in told["neighbours"] if one["recommended"])
    command = told["recommended"]["command"]
    allowed = json.loads(invoke("plan", str(toml), *typed, "--json", "--allow-import"))["recommended"]["command"]
    assert allowed == f"{command} --allow-import"
    assert command in invoke("plan", str(toml), *typed)
    words = shlex.split(command)
    assert words[:2] == ["hubbub", "train"]
    again = json.loads(invoke("plan", *words[2:], "--no-neighbours", "--json"))
    assert (again["epsilon"], again["noise_multiplier"]) == (best["epsilon"], best["noise_multiplier"])
    assert (again["rounds"], again["noise_memory_bytes"]) == (14, best["memory_bytes"])
    assert again["noise"]["model_rmse"] == pytest.approx(best["error"])
    assert "neighbours" not in again


@pytest.mark.slow
def test_no_other_band_count_of_cyclic_cohorts_is_much_better() -> None:
    """All of them, one by one, against the few that were tried."""
    layer: Layer = {
        "training": {"rounds": 48, "cohort_size": 50},
        "data": {"clients": 600, "name": "people:Phones"},
        "privacy": {"mode": "dp-ftrl", "epsilon": 4.0, "delta": 1e-5, "neighboring_relation": "zero-out"},
    }
    found = around(configs.resolve(layer), thorough=True).options

    def error(bands: int) -> float:
        best = factorization.normalized_toeplitz.optimize(prefix_sum(48), bands=bands)
        cohorts = CyclicPoissonSampling(bands * 50 / 600, bands)
        mechanism = calibrate(best.strategy, cohorts, epsilon=4.0, delta=1e-5, neighboring_relation="zero-out")
        return best.root_squared_error * mechanism.stddev / 50

    least = min(one.error for one in found if one.cohorts == "cyclic-poisson")
    assert least <= min(error(bands) for bands in range(2, 13)) * 1.02


# Sizes of cohorts

UNITS = 2000
SIZED: Layer = {"training": {"rounds": 50, "cohort_size": 100}, "data": {"clients": UNITS, "name": "my:own"}}
CYCLIC: Layer = {
    "privacy": {"mode": "dp-ftrl", "sampling": "cyclic-poisson", "bands": 5, "epsilon": 3.0},
    "participation": {"cycle_length": 5},
}
SIZES: dict[str, Layer] = {
    "poisson": {"privacy": {"epsilon": 3.0, "clip_norm": 0.5}},
    "poisson, zero-out": {"privacy": {"epsilon": 3.0, "neighboring_relation": "zero-out"}},
    "poisson, given noise": {"privacy": {"noise_multiplier": 1.5}},
    "adaptive clipping": {"privacy": {"epsilon": 3.0, "clipping": "adaptive"}},
    "fixed-size": {"privacy": {"epsilon": 3.0, "sampling": "fixed-size"}},
    "cyclic": CYCLIC,
}


def sizes_of(*layers: Layer) -> tuple[CohortSize, ...]:
    config = configs.resolve(SIZED, *layers)
    return cohort_sizes(config, UNITS, planned(config, UNITS))


@pytest.mark.parametrize("layer", SIZES.values(), ids=SIZES)
def test_noise_in_the_mean_never_rises_with_the_size_and_the_proposed_size_is_the_smallest_near_the_least(layer: Layer) -> None:
    sizes = sizes_of(layer)
    noise = {one.size: one.mean_stddev for one in sizes}
    assert list(noise) == sorted(noise)
    assert list(noise.values()) == sorted(noise.values(), reverse=True)
    # The powers of two up to half of what a cohort is sampled from, without a gap, and the size of the settings.
    top = 128 if layer is CYCLIC else 512
    powers = sorted({*noise} - {100})
    assert powers == [top >> i for i in reversed(range(len(powers)))]
    assert noise[powers[0]] > 2 * noise[top] >= noise[powers[1]]
    near = [size for size, each in noise.items() if each <= 1.1 * noise[max(noise)]]
    assert proposed(sizes).size == near[0]
    assert all(one.processed == one.size * 50 for one in sizes)
    assert [one.size for one in sizes if not one.changes] == [100]


@pytest.mark.parametrize("kind", ["poisson", "fixed-size"])
def test_the_noise_multiplier_of_a_size_is_the_calibrated_one(kind: str) -> None:
    for one in sizes_of({"privacy": {"epsilon": 3.0, "clip_norm": 0.5, "sampling": kind}}):
        cohorts = FixedSizeSampling(one.size, UNITS) if kind == "fixed-size" else PoissonSampling(one.size / UNITS)
        z = calibrate(Identity(50), cohorts, epsilon=3.0, delta=1e-5).noise_multiplier
        assert one.noise_multiplier == z
        assert one.mean_stddev == pytest.approx(z * 0.5 / one.size)


# Rounds


def rounds_of(*layers: Layer) -> tuple[CohortSize, ...]:
    config = configs.resolve(SIZED, *layers)
    plan = planned(config, UNITS)
    return round_counts(config, UNITS, plan, cohort_sizes(config, UNITS, plan))


@pytest.mark.parametrize("layer", SIZES.values(), ids=SIZES)
def test_noise_over_the_run_falls_with_rounds_and_the_fewest_near_the_least_are_proposed(layer: Layer) -> None:
    counts = rounds_of(layer)
    size, noise = proposed(sizes_of(layer)).size, {one.rounds: one.run_stddev for one in counts}
    assert {one.size for one in counts} == {size}
    assert list(noise) == sorted(noise)
    assert list(noise.values()) == sorted(noise.values(), reverse=True)
    least = min(noise.values())
    assert proposed(counts).rounds == min(rounds for rounds, each in noise.items() if each <= 1.1 * least)
    # Powers of two without a gap, until twice as many take away less than 1 %, and the rounds of the settings.
    powers = [rounds for rounds in noise if rounds != 50]
    assert powers == [powers[0] << i for i in range(len(powers))]
    gains = [1 - noise[after] / noise[before] for before, after in itertools.pairwise(powers)]
    assert all(gain >= 0.01 for gain in gains[:-1])
    assert gains[-1] < 0.01 or powers[-1] == 4096


def test_noise_over_the_run_is_that_of_the_mean_of_all_releases() -> None:
    """By definition: a unit of z in each round, summed over the columns of the noising matrix."""
    for one in rounds_of(CYCLIC):
        mechanism = planned(configs.resolve(SIZED, CYCLIC, one.changes), UNITS).mechanism
        weights = np.linalg.solve(mechanism.strategy.matrix().T, np.full(one.rounds, 1 / one.rounds))
        assert one.run_stddev == pytest.approx(mechanism.stddev * np.linalg.norm(weights) / one.size)
        if one.rounds > 512:
            break


@pytest.mark.parametrize("kind", ["poisson", "fixed-size"])
def test_rounds_of_independent_noise_have_the_calibrated_noise_over_the_root_of_the_rounds(kind: str) -> None:
    layer: Layer = {"privacy": {"noise_multiplier": 1.5, "clip_norm": 0.5, "sampling": kind}}
    epsilon = planned(configs.resolve(SIZED, layer), UNITS).promised.epsilon
    for one in rounds_of(layer):
        cohorts = FixedSizeSampling(one.size, UNITS) if kind == "fixed-size" else PoissonSampling(one.size / UNITS)
        z = calibrate(Identity(one.rounds), cohorts, epsilon=epsilon, delta=1e-5).noise_multiplier
        assert one.run_stddev == pytest.approx(z * 0.5 / one.size / math.sqrt(one.rounds), rel=1e-3)
        run = planned(configs.resolve(SIZED, layer, one.changes), UNITS)
        assert (run.rounds, run.expected_cohort_size) == (one.rounds, one.size)


@pytest.mark.parametrize(
    ("table", "layer"),
    [
        (sizes_of, {"privacy": {"mode": "none"}}),
        *((table, {"privacy": {"mode": "dp-ftrl", "epsilon": 3.0}}) for table in (sizes_of, rounds_of)),
        (sizes_of, {"privacy": {"mode": "dp-ftrl", "strategy": "identity", "sampling": "balls-in-bins", "epsilon": 3.0}}),
        (sizes_of, {"privacy": {"noise_multiplier": 1.5, "stop_epsilon": 3.0}}),
        (rounds_of, {**CYCLIC, "privacy": {**CYCLIC["privacy"], "strategy": "banded"}}),
    ],
    ids=["no privacy", "pattern", "pattern, rounds", "balls in bins", "ended by a budget", "takes long to optimize"],
)
def test_runs_without_noise_or_without_alternatives_have_no_table(table: Callable[[Layer], object], layer: Layer) -> None:
    assert table(layer) == ()


@pytest.mark.slow
def test_the_command_with_the_proposed_rounds_makes_the_run_of_their_row(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("training = { rounds = 20, cohort_size = 4 }\nprivacy.epsilon = 2\ndata.clients = 500")
    given = ("plan", str(tmp_path / "run.toml"), "--set", "data.name=my:own")
    answer, shown = json.loads(invoke(*given, "--json")), invoke(*given)
    (row,) = [row for row in answer["round_counts"] if row["proposed"]]
    assert row["rounds"] != 20
    assert row["cohort_size"] == next(size["cohort_size"] for size in answer["cohort_sizes"] if size["proposed"]) != 4
    command = next(line for line in reversed(shown.splitlines()) if line.startswith("  hubbub train"))
    again = json.loads(invoke("plan", *shlex.split(command)[2:], "--json", "--no-alternatives"))
    found = again["rounds"], again["expected_cohort_size"], again["noise_multiplier"]
    assert found == (row["rounds"], row["cohort_size"], row["noise_multiplier"])
    assert f"Proposed rounds: {row['rounds']}; the fewest with noise over the run within 10 % of the least." in shown
