"""Of what clients may send, nothing but a clipped update counts: the rest is worth a reply that never came, bit for bit."""

import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg
from scipy.stats import norm

from flower_arms import Federation, Model, averaging, entries, record
from flower_defects import WatchedFedAdam, distance, logged
from hubbub.errors import ConfigError
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, MatrixFactorizationDP, clipping_mod, noising_mod
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.strategies import toeplitz
from hubbub.noise.lattice import Lattice

CLIENTS = 4
MODEL: Model = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "scale": np.array(2.5, np.float32)}


pytestmark = pytest.mark.usefixtures("quiet")


def fixed(clients: int = CLIENTS, **settings: Any) -> DPFedAvgFixed:
    settings = {"clip_norm": 1.0, "noise_multiplier": 1.0, "num_sampled_clients": clients, "simulation_seed": 3, **settings}
    return DPFedAvgFixed(averaging(clients), **settings)


def adaptive(clients: int = CLIENTS, **settings: Any) -> DPFedAvgAdaptive:
    settings = {"noise_multiplier": 1.0, "num_sampled_clients": clients, "simulation_seed": 3, **settings}
    return DPFedAvgAdaptive(averaging(clients), **settings)


def trained(model: dict[str, Any], index: int) -> Model:
    return {"w": model["w"] + np.float32(0.1 * index), "scale": model["scale"] - np.float32(0.2 * index)}


def outcome(strategy: DPFedAvgFixed | DPFedAvgAdaptive, alter: Callable[[list[Message]], Any]) -> tuple[bytes, float]:
    """The bits of the model after a round whose replies were altered on their way, and the next clip norm."""
    federation = Federation(CLIENTS, trained)
    arrays, _ = strategy.aggregate_train(1, alter(federation.ask(strategy, MODEL)))
    assert arrays is not None
    return b"".join(array.data for array in arrays.values()), strategy.clip_norm


# What a reply of client 2 may be turned into.


def with_arrays(change: Callable[[dict[str, Array]], dict[str, Array]]) -> Callable[[Message], None]:
    def altered(reply: Message) -> None:
        content = reply.content
        content["arrays"] = ArrayRecord(change(dict(content["arrays"])))  # type: ignore[arg-type]

    return altered


def with_entry(value: float) -> Callable[[Message], None]:
    def change(arrays: dict[str, Array]) -> dict[str, Array]:
        numbers = arrays["w"].numpy().copy()
        numbers[0, 0] = value
        return {**arrays, "w": Array(numbers)}

    return with_arrays(change)


def with_w(make: Callable[[np.ndarray], Array]) -> Callable[[Message], None]:
    return with_arrays(lambda arrays: {**arrays, "w": make(arrays["w"].numpy())})


def lying_header(numbers: np.ndarray) -> Array:
    """A header that promises more than is there."""
    stream = io.BytesIO()
    np.save(stream, np.zeros((2, 3), np.float32))
    return Array("float32", (2, 3), "numpy.ndarray", stream.getvalue().replace(b"(2, 3)", b"(9, 9)"))


def pickled(numbers: np.ndarray) -> Array:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object))
    return Array("float32", (2, 3), "numpy.ndarray", stream.getvalue())


def with_record(name: str, content: Any) -> Callable[[Message], None]:
    def altered(reply: Message) -> None:
        reply.content[name] = content

    return altered


def emptied(reply: Message) -> None:
    reply.content = RecordDict()


def in_another_round(reply: Message) -> None:
    reply.metadata.group_id = "of the round before"


def from_another_node(reply: Message) -> None:
    reply.metadata.__dict__["_src_node_id"] = 424242


def in_the_name_of_another(reply: Message) -> None:
    reply.metadata.__dict__["_src_node_id"] -= 1


NOTHING: dict[str, Callable[[Message], None]] = {
    "NaN": with_entry(math.nan),
    "infinity": with_entry(-math.inf),
    "another shape": with_w(lambda w: Array(w.reshape(3, 2))),
    "a further axis": with_w(lambda w: Array(w[None])),
    "whole numbers": with_w(lambda w: Array(w.astype(np.int64))),
    "complex numbers": with_w(lambda w: Array(w.astype(np.complex64))),
    "text": with_w(lambda w: Array(w.astype("U8"))),
    "bytes that are no array": with_w(lambda w: Array("float32", (2, 3), "numpy.ndarray", b"nonsense")),
    "a header that lies": with_w(lying_header),
    "a pickled object": with_w(pickled),
    "another store": with_w(lambda w: Array("float32", (2, 3), "torch.tensor", Array(w).data)),
    "a name is missing": with_arrays(lambda arrays: {"w": arrays["w"]}),
    "a name too many": with_arrays(lambda arrays: {**arrays, "extra": arrays["w"]}),
    "names of another model": with_arrays(lambda arrays: {"v": arrays["w"], "scale": arrays["scale"]}),
    "two models": with_record("more", ArrayRecord({})),
    "no model": with_record("arrays", MetricRecord({})),
    "nothing at all": emptied,
    "late": in_another_round,
    "from a node that was not asked": from_another_node,
    "in the name of another": in_the_name_of_another,
}


@pytest.mark.parametrize("make", [fixed, adaptive], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("altered", NOTHING.values(), ids=NOTHING)
def test_num_7_num_8_shp_5_shp_6_shp_9_what_is_no_update_counts_as_a_missing_reply(
    altered: Callable[[Message], None], make: Callable[[], Any]
) -> None:
    def spoilt(replies: list[Message]) -> list[Message]:
        altered(replies[2])
        return replies

    assert outcome(make(), spoilt) == outcome(make(), lambda replies: [*replies[:2], replies[3]])


@pytest.mark.parametrize("bit", [0.5, math.nan, [1, 0], [1]])
def test_a_bit_that_is_none_counts_as_a_missing_reply(bit: Any) -> None:
    def spoilt(replies: list[Message]) -> list[Message]:
        replies[2].content["metrics"] = MetricRecord({"dpfedavg_norm_bit": bit})
        return replies

    assert outcome(adaptive(), spoilt) == outcome(adaptive(), lambda replies: [*replies[:2], replies[3]])


def test_an_error_counts_as_a_missing_reply() -> None:
    def failed(replies: list[Message]) -> list[Message]:
        replies[2] = Message(Error(code=2, reason="out of memory"), reply_to=replies[2])
        return replies

    assert outcome(fixed(), failed) == outcome(fixed(), lambda replies: [*replies[:2], replies[3]])


@pytest.mark.parametrize("make", [fixed, adaptive], ids=["fixed", "adaptive"])
@pytest.mark.parametrize(
    "alter",
    [
        lambda replies: [*replies, *replies],
        lambda replies: replies[::-1],
        lambda replies: (reply for reply in replies),
        lambda replies: [with_arrays(lambda a: dict(reversed(a.items())))(r) or r for r in replies],
        lambda replies: [with_w(lambda w: Array(w.astype(np.float32, order="F")))(r) or r for r in replies],
        lambda replies: [with_w(lambda w: Array(w.astype(">f4")))(r) or r for r in replies],
        lambda replies: [
            with_record("metrics", MetricRecord({"num-examples": 10**12, "loss": math.nan}))(r) or r for r in replies
        ],
        lambda replies: [with_record("told", ConfigRecord({"dpfedavg_clip_norm": 1e9}))(r) or r for r in replies],
    ],
    ids=["doubled", "reversed", "a generator", "names reversed", "Fortran order", "big-endian", "metrics", "a further record"],
)
def test_shp_6_shp_7_order_number_and_form_of_replies_change_no_bit(
    alter: Callable[[list[Message]], Any], make: Callable[[], Any]
) -> None:
    assert outcome(make(), alter) == outcome(make(), lambda replies: replies)


def test_cli_3_of_two_answers_of_one_client_the_first_counts() -> None:
    def doubled(replies: list[Message]) -> list[Message]:
        second = Message(
            RecordDict({"arrays": record({"w": np.full((2, 3), 9.0, np.float32), "scale": np.float32(9)})}), reply_to=replies[2]
        )
        second.metadata.__dict__.update(replies[2].metadata.__dict__)
        return [*replies, second]

    assert outcome(fixed(), doubled) == outcome(fixed(), lambda replies: replies)


def test_cli_4_a_reply_to_the_round_before_counts_for_nothing() -> None:
    def second_round(also: bool) -> bytes:
        strategy, federation = fixed(), Federation(CLIENTS, trained)
        late = federation.ask(strategy, MODEL)
        strategy.aggregate_train(1, [])
        replies = federation.ask(strategy, MODEL)
        arrays, _ = strategy.aggregate_train(2, [*(late if also else []), *replies[:-1]])
        assert arrays is not None
        return arrays["w"].data

    assert second_round(also=True) == second_round(also=False)


CRAZY = {
    "huge": lambda model: {"w": np.full((2, 3), 3e38, np.float32), "scale": np.float32(-3e38)},
    "huge, in float64": lambda model: {"w": np.full((2, 3), 1e308), "scale": np.array(-1e308)},
    "only the number without axes": lambda model: {**model, "scale": np.float32(1e6)},
    "tiny": lambda model: {"w": np.nextafter(model["w"], np.float32(9)), "scale": model["scale"]},
    "just above": lambda model: {**model, "scale": model["scale"] + np.float32(1.0001)},
    "half precision": lambda model: {"w": np.full((2, 3), 6e4, np.float16), "scale": np.array(6e4, np.float16)},
}


@pytest.mark.parametrize("update", CRAZY.values(), ids=CRAZY)
@pytest.mark.parametrize("bit", [None, 0, 1, -5, 2**62])
def test_cli_1_no_client_moves_the_release_by_more_than_the_clip_norm(update: Callable[[Any], Model], bit: int | None) -> None:
    """Update and indicator as one vector: in steps of the lattice, exactly."""

    def total(strategy: DPFedAvgFixed | DPFedAvgAdaptive, silent: tuple[int, ...]) -> torch.Tensor:
        sums = []
        release = Lattice.release

        def spy(lattice: Lattice, steps: torch.Tensor, row: torch.Tensor | None) -> torch.Tensor:
            sums.append(steps)
            found = release(lattice, steps, row)
            assert lattice.holds(found)
            return found

        told = {} if bit is None else {"dpfedavg_norm_bit": bit}
        federation = Federation(
            CLIENTS, lambda m, i: update(m) if i == 0 else trained(m, i), lambda i: told if i == 0 else {}, silent=silent
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lattice, "release", spy)
            federation.round(strategy, MODEL)
        return sums[0]

    for make in (fixed, lambda: adaptive(initial_clip_norm=0.5)):
        moved = total(make(), ()) - total(make(), (0,))
        # Andrew et al. 2021, Theorem 1: the joint norm is z_Δ/z times the clip norm; with 1 on the count that is 1/√(1 - 1/4).
        joint = 1.0 if make is fixed else 0.5 / math.sqrt(1 - 0.25)
        assert int((moved**2).sum()) <= (joint / Lattice(joint).step) ** 2


def test_cli_10_what_is_told_of_a_round_does_not_hang_on_what_clients_sent() -> None:
    def told(size: float) -> tuple[dict[str, Any], list[str]]:
        federation = Federation(CLIENTS, lambda m, i: {**m, "scale": m["scale"] + np.float32(size)}, lambda i: {"loss": size})
        with logged() as lines:
            _, metrics = federation.round(fixed(simulation_seed=None), MODEL)
        return metrics, lines

    assert told(0.125) == told(77.75)


def test_two_neighbors_look_the_same_to_the_wrapped_strategy_but_for_one_clip_norm() -> None:
    views = []
    for silent in ((), (0,)):
        inner = WatchedFedAdam(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        strategy = DPFedAvgFixed(inner, clip_norm=0.5, noise_multiplier=2.0, num_sampled_clients=CLIENTS, simulation_seed=3)
        federation = Federation(CLIENTS, lambda m, i: {n: v + np.float32(9) for n, v in m.items()}, silent=silent)
        federation.round(strategy, MODEL)
        views.append(inner.seen)
    # The bound, but for the last bits of float32.
    assert distance(*views) == pytest.approx(0.5 / CLIENTS, rel=1e-4)


def test_shp_4_half_precision_hides_no_less() -> None:
    """Weights of 4 in float16 are 2⁻⁸ apart: noise of 0.0005 moves few of them, and what it hides is hidden before rounding.

    The release has the stated noise on every number; the model that follows from it is its rounding.
    """
    dim, released = 20_000, []
    release = Lattice.release

    def spy(lattice: Lattice, steps: torch.Tensor, row: torch.Tensor | None) -> torch.Tensor:
        released.append(release(lattice, steps, row))
        return released[-1]

    strategy = fixed(noise_multiplier=0.002)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lattice, "release", spy)
        model, _ = Federation(CLIENTS, lambda m, i: m).round(strategy, {"w": np.full(dim, 4, np.float16)})
    assert float(released[0].std()) == pytest.approx(0.002, rel=4 / math.sqrt(2 * dim))
    ideal = 4 + (released[0] / CLIENTS).numpy()
    assert model["w"].dtype == np.float16
    assert float(np.abs(model["w"] - ideal).max()) <= 2.0**-9 * 1.001
    # Below 4 the numbers are half as far apart as above: noise of 0.0005 reaches half of that, or does not. Four deviations.
    moved = norm.cdf(-(2.0**-10) / 0.0005) + norm.sf(2.0**-9 / 0.0005)
    assert np.mean(model["w"] != 4) == pytest.approx(moved, abs=4 * math.sqrt(moved / dim))


# Buffers.


def batch_norm() -> Model:
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    return {name: value.numpy() for name, value in layer.state_dict().items()}


@pytest.mark.parametrize(
    "model", [batch_norm(), {"w": np.zeros(2), "steps": np.arange(3)}], ids=["batch norm", "whole numbers"]
)
def test_shp_2_shp_3_buffers_are_refused_until_they_are_to_be_kept(model: Model) -> None:
    federation = Federation(CLIENTS, lambda m, i: {name: value + 1 for name, value in m.items()})
    with pytest.raises(ConfigError, match="buffers='keep'"):
        federation.ask(fixed(), model)
    released, _ = federation.round(fixed(buffers="keep"), model)
    assert list(released) == list(model)
    for name, before in model.items():
        assert released[name].dtype == np.asarray(before).dtype
        kept = np.array_equal(released[name], before)
        assert kept == (name == "steps" or "running" in name or "batches" in name)


# Noise of clients.


@pytest.mark.parametrize("answering", [3, 5])
def test_shares_of_the_fewest_survivors_make_the_stated_noise_and_more_survivors_more(answering: int) -> None:
    dim = 20_000
    strategy = DPFedAvgAdaptive(
        averaging(6),
        initial_clip_norm=2.0,
        noise_multiplier=1.5,
        num_sampled_clients=6,
        noise_at="clients",
        min_survivors=3,
    )
    federation = Federation(6, lambda m, i: m, silent=range(6 - answering), mods=[noising_mod, clipping_mod])
    released, metrics = federation.round(strategy, {"w": np.zeros(dim)})
    assert metrics["released"] == 1
    # The split of Andrew et al. 2021, with 1.5 on the count: z_Δ = z/√(1 - 1/4). Within six standard errors.
    stated = 1.5 / math.sqrt(0.75) * 2.0 * math.sqrt(answering / 3)
    assert float(released["w"].std()) * 6 == pytest.approx(stated, rel=6 / math.sqrt(2 * dim))


def test_a_round_of_too_few_shares_is_discarded_and_stays_charged() -> None:
    strategy = fixed(noise_at="clients", min_survivors=3, simulation_seed=None)
    federation = Federation(CLIENTS, lambda m, i: m, silent=(0, 1), mods=[noising_mod, clipping_mod])
    model, metrics = federation.round(strategy, MODEL)
    assert distance(model, entries(record(MODEL))) == 0
    assert (metrics["released"], strategy.rounds_charged) == (0, 1)
    assert strategy.guarantee().epsilon > 0


@pytest.mark.parametrize("steps", [-(2**63), 2**63 - 1, 2**50 + 1])
def test_numbers_too_large_to_be_summed_exactly_are_no_share(steps: int) -> None:
    strategy = fixed(noise_at="clients", min_survivors=CLIENTS, simulation_seed=None)
    federation = Federation(CLIENTS, lambda m, i: m, mods=[noising_mod, clipping_mod])
    replies = federation.ask(strategy, MODEL)
    with_w(lambda w: Array(np.full_like(w, steps)))(replies[0])
    assert strategy.aggregate_train(1, replies)[0] is None


def test_the_log_holds_no_number_that_a_client_sent() -> None:
    federation = Federation(CLIENTS, trained, lambda index: {"dpfedavg_norm_bit": 0.987654})
    with logged() as lines:
        federation.round(adaptive(), MODEL)
    assert any("dpfedavg_norm_bit" in line for line in lines)
    assert not any("0.98" in line for line in lines)


# What it costs, another way.


def exact_gaussian(mu: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8, https://arxiv.org/abs/1805.06530, solved by halving with 60 digits."""
    with mpmath.workdps(60):
        m = mpmath.mpf(mu)
        low, high = mpmath.mpf(0), m**2 / 2 + 20 * m
        for _ in range(100):
            e = (low + high) / 2
            missed = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
            low, high = (e, high) if missed > delta else (low, e)
        return float(high)


@pytest.mark.parametrize(("noise_multiplier", "rounds"), [(1.0, 10), (1.0, 1000), (5.0, 1), (20.0, 300)])
def test_fixed_and_adaptive_clipping_cost_what_one_gaussian_costs(noise_multiplier: float, rounds: int) -> None:
    expected = exact_gaussian(math.sqrt(rounds) / noise_multiplier, 1e-5)
    settings = {"noise_multiplier": noise_multiplier, "num_sampled_clients": 50}
    for strategy in (DPFedAvgFixed(FedAvg(), clip_norm=3.0, **settings), DPFedAvgAdaptive(FedAdam(), **settings)):  # type: ignore[arg-type]
        assert strategy.guarantee(1e-5, rounds=rounds).epsilon == pytest.approx(expected, rel=1e-9)


def test_poisson_cohorts_cost_what_googles_accountant_says() -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, sampling_probability=0.01)
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    found = strategy.guarantee(1e-5, rounds=100)
    relation = {
        "add-or-remove-one": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "zero-out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    }[found.neighboring_relation]
    accountant = dp_accounting.pld.PLDAccountant(relation)
    accountant.compose(event, 100)
    assert found.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_correlated_noise_costs_what_the_worst_client_costs() -> None:
    rounds, separation, most, z = 12, 4, 3, 2.0
    mechanism = Mechanism(toeplitz.square_root(rounds, bands=3), MinSeparation(separation, most), noise_multiplier=z)
    strategy = MatrixFactorizationDP(FedAvg(), mechanism=mechanism, clip_norm=1.0, num_sampled_clients=5, keys_enforced=True)
    # By definition: of all patterns that may be, the one whose columns of C add up to the longest vector.
    C = mechanism.strategy.matrix()
    patterns = [
        rows
        for mask in range(2**rounds)
        if len(rows := [t for t in range(rounds) if mask >> t & 1]) <= most
        and all(later - earlier >= separation for earlier, later in itertools.pairwise(rows))
    ]
    worst = max(float(np.linalg.norm(C[:, rows].sum(axis=1))) for rows in patterns if rows)
    mu = worst / (z * float(np.linalg.norm(C, axis=0).max()))
    assert strategy.guarantee(1e-5, rounds=rounds).epsilon == pytest.approx(exact_gaussian(mu, 1e-5), rel=1e-9)


def test_shares_cost_no_less_than_one_gaussian_and_no_more_than_its_concentrated_dp() -> None:
    rounds, delta = 20, 1e-5
    strategy = fixed(noise_at="clients", min_survivors=3, simulation_seed=None)
    # Bun and Steinke 2016, Proposition 1.3, https://arxiv.org/abs/1605.02065.
    rho = rounds / 2
    most = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert exact_gaussian(math.sqrt(rounds), delta) <= strategy.guarantee(delta, rounds=rounds).epsilon <= most
