"""The twins of Flower's DP strategies: the same calls, and this package's privacy behind them."""

import inspect
import math
from dataclasses import dataclass

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

from flower_arms import Federation, averaging, record
from hubbub.errors import ConfigError
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, clipping_mod, compat

NAMES = compat.__all__
FIXED = [name for name in NAMES if "Fixed" in name]
ADAPTIVE = [name for name in NAMES if "Adaptive" in name]
DIM = 10


def model():
    return record({"w": np.zeros(DIM, np.float32)})


def federation(norms, mods=()):
    """One client for each norm, whose update has that norm in a direction of its own."""
    step = np.ones(DIM, np.float32) / np.float32(math.sqrt(DIM))
    return Federation(len(norms), lambda m, i: {"w": m["w"] + np.float32(norms[i] * (-1) ** i) * step}, mods=mods).grid


def vector(arrays):
    return arrays["w"].numpy().astype(np.float64)


def fixed(name, *, clipping_norm=1.0, noise=1.0, clients=4, **more):
    return getattr(compat, name)(averaging(1), noise, clipping_norm, clients, **more)


@dataclass
class Accountant:
    """An accountant with a budget and with what it has counted."""

    config: PrivacyConfig
    num_releases: int = 0


def config(max_epsilon=None, method=SamplingMethod.NO_AMPLIFICATION):
    return PrivacyConfig(1e-6, 1000, NeighboringRelation.ADD_OR_REMOVE_ONE, method, max_epsilon)


@pytest.mark.parametrize("name", sorted({*NAMES, *(n for n in flower.__all__ if n.startswith("DifferentialPrivacy"))}))
def test_a_twin_takes_the_arguments_of_flowers_class_in_its_order_and_all_others_by_name(name):
    theirs = list(inspect.signature(getattr(flower, name)).parameters.values())
    ours = list(inspect.signature(getattr(compat, name)).parameters.values())
    assert [(p.name, p.kind, p.default) for p in ours[: len(theirs)]] == [(p.name, p.kind, p.default) for p in theirs]
    assert {p.kind for p in ours[len(theirs) :]} <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_twin_releases_what_the_strategy_behind_it_releases(name):
    grid = federation([0.5, 0.2, 5.0, 0.1])
    twin = fixed(name, noise=0.7, simulation_seed=3)
    plain = DPFedAvgFixed(averaging(1), clip_norm=1.0, noise_multiplier=0.7, num_sampled_clients=4, simulation_seed=3)
    ours, theirs = (s.start(grid, model(), num_rounds=2).arrays for s in (twin, plain))
    np.testing.assert_array_equal(vector(ours), vector(theirs))
    assert twin.guarantee() == plain.guarantee()
    assert (twin.noise_multiplier, twin.clipping_norm) == (0.7, 1.0)
    assert isinstance(twin.strategy, FedAvg)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_an_adaptive_twins_target_is_the_part_that_is_clipped(name):
    grid = federation([0.5, 0.2, 5.0, 0.1])
    twin = getattr(compat, name)(averaging(1), 0.7, 4, 0.3, 0.25, 0.6, 2.0, simulation_seed=3)
    plain = DPFedAvgAdaptive(
        averaging(1), noise_multiplier=0.7, initial_clip_norm=0.3, target_quantile=0.75,
        clip_norm_learning_rate=0.6, clip_count_stddev=2.0, num_sampled_clients=4, simulation_seed=3,
    )  # fmt: skip
    ours, theirs = (s.start(grid, model(), num_rounds=3).arrays for s in (twin, plain))
    np.testing.assert_array_equal(vector(ours), vector(theirs))
    assert twin.clipping_norm == plain.clip_norm != 0.3


@pytest.mark.parametrize(
    ("name", "mod"), [(FIXED[0], fixedclipping_mod), (FIXED[0], clipping_mod), (ADAPTIVE[0], adaptiveclipping_mod)]
)
def test_with_flowers_mods_the_release_is_that_of_clients_without_any(name, mod):
    assert "ClientSide" in name
    norms = [0.5, 0.2, 5.0, 0.1, 1000.0]
    released = []
    for mods in ([], [mod]):
        arguments = (0.5, 1.0, 5) if name in FIXED else (0.5, 5, 1.0)
        twin = getattr(compat, name)(averaging(1), *arguments, simulation_seed=3)
        result = twin.start(federation(norms, mods), model(), num_rounds=3)
        released.append((vector(result.arrays), twin.clipping_norm))
    (plain, norm), (modded, modded_norm) = released
    # The clients' own clip rounds to float32.
    np.testing.assert_allclose(modded, plain, atol=1e-5)
    assert modded_norm == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("bit", [7, 1.5, [1], -(2**62), math.nan])
def test_no_bit_of_a_client_decides_whether_a_round_is_released(bit):
    def lie(reply):
        reply.content["metrics"] = MetricRecord({"num-examples": 1, "norm_bit": bit})
        return reply

    grid = federation([0.5, 0.2])
    grid.reply_filter = lie
    twin = compat.DifferentialPrivacyClientSideAdaptiveClipping(averaging(1), 0.5, 2, 1.0)
    result = twin.start(grid, model(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["released"] == 1


@pytest.mark.parametrize(("flowers", "ours", "grows"), [(1, None, True), (0, None, False), (1, 1, False), (0, 0, True)])
def test_flowers_bit_is_one_for_a_clipped_update_and_ours_for_one_that_was_not(flowers, ours, grows):
    def say(reply):
        bits = {"norm_bit": flowers} | ({} if ours is None else {"dpfedavg_norm_bit": ours})
        reply.content["metrics"] = MetricRecord(bits)
        return reply

    # Of norms that no server clips: only the bits say what the clients did.
    grid = federation([0.01] * 4)
    grid.reply_filter = say
    twin = compat.DifferentialPrivacyClientSideAdaptiveClipping(averaging(1), 1e-3, 4, 1.0, 0.5, 0.2, 0.01, simulation_seed=1)
    twin.start(grid, model(), num_rounds=1)
    # All were clipped, or none: half the learning rate, up or down. The count's noise is 0.25 % of the fraction.
    assert math.log(twin.clipping_norm) == pytest.approx(0.1 if grows else -0.1, abs=0.005)


def test_acc_10_the_budget_of_an_accountant_is_taken_over_and_the_ledger_counts():
    free = fixed(FIXED[0], clients=2, delta=1e-6)
    most = free.guarantee(rounds=3).epsilon
    twin = fixed(FIXED[0], clients=2, accountant=Accountant(config(max_epsilon=float(most))))
    assert twin.privacy_spent().epsilon == 0
    result = twin.start(federation([0.5, 0.2]), model(), num_rounds=5)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    spent = twin.privacy_spent()
    assert (spent.epsilon, spent.delta, spent.num_releases) == (most, 1e-6, 3)


@pytest.mark.parametrize(
    ("accountant", "more", "error", "message"),
    [
        (Accountant(config(), num_releases=2), {}, ConfigError, "has counted 2 releases"),
        (Accountant(config(5.0)), {"stop_epsilon": 3.0}, ConfigError, "stop_epsilon = 3.0.* max_epsilon = 5.0"),
        (Accountant(config(5.0)), {"delta": 1e-5}, ConfigError, "target_delta = 1e-06"),
        (Accountant(config(5.0, SamplingMethod.POISSON)), {}, ConfigError, "sampling_method = .*POISSON"),
    ],
)
def test_an_accountant_that_counts_otherwise_is_refused(accountant, more, error, message):
    with pytest.raises(error, match=message):
        fixed(FIXED[0], accountant=accountant, **more)
