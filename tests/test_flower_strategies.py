"""A run on Flower: charged before it leaves, kept over restarts, and stopped where its promise ends."""

import json
import logging
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as TheirFixed
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian
from safetensors.numpy import load_file, save

from hubbub.accounting import guarantee
from hubbub.errors import BudgetError, ConfigError, LedgerError, ParticipationError, RunFolderError
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, LocalGrid, MatrixFactorizationDP
from hubbub.flower.state import _digest
from hubbub.flower.strategies import PrivateStrategy
from hubbub.ledger.chain import read_chain
from hubbub.ledger.history import History
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import (
    CyclicPoissonSampling,
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    PoissonSampling,
    SingleParticipation,
    every_round,
)
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.training import HeadHook
from hubbub.training.run_folder.state import metadata
from hubbub.verification import verify
from recorded_runs import require_noticed, unproved

DIM = 40
START = ArrayRecord({"w": Array(np.linspace(-1, 1, DIM - 1, dtype=np.float32)), "s": Array(np.array(2.0, np.float32))})


def client_app(step: float = 0.01) -> ClientApp:
    """Each client moves every number by ``step``."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        moved = {k: Array(np.asarray(a.numpy() + np.float32(step), np.float32)) for k, a in arrays.items()}
        reply = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 3, "train_loss": 30.864})}
        return Message(RecordDict(reply), reply_to=message)

    return app


pytestmark = pytest.mark.usefixtures("quiet")


def grid(nodes: int = 12, step: float = 0.01) -> LocalGrid:
    return LocalGrid(client_app(step), num_nodes=nodes)


def separated(state: Path | None = None, *, rounds: int = 12, **more: object) -> MatrixFactorizationDP:
    mechanism = Mechanism(toeplitz.square_root(rounds, bands=3), MinSeparation(3, 4), noise_multiplier=1.0)
    settings = {"clip_norm": 1.0, "num_sampled_clients": 3, "keys_enforced": True, "state": state, **more}
    return MatrixFactorizationDP(FedAvgM(server_momentum=0.9), mechanism=mechanism, **settings)  # type: ignore[arg-type]


def numbers(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])


def one_round(strategy: PrivateStrategy, on: LocalGrid, arrays: ArrayRecord = START) -> tuple[list[int], ArrayRecord | None]:
    """The nodes that were asked, and the model after a round."""
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), on))
    made, _ = strategy.aggregate_train(1, on.send_and_receive(messages))
    return [message.metadata.dst_node_id for message in messages], made


def test_acc_7_a_guarantee_answers_before_during_and_after_a_run() -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.1, num_sampled_clients=6)
    assert strategy.guarantee(1e-5).epsilon == 0
    epsilons = []
    for _ in range(3):
        one_round(strategy, grid())
        epsilons.append(strategy.guarantee(1e-5).epsilon)
    # The same as one exact Gaussian of sensitivity √t each time.
    expected = [guarantee(Mechanism(Identity(t), every_round(t), 1.1), 1e-5).epsilon for t in (1, 2, 3)]
    assert epsilons == pytest.approx(expected, rel=1e-12)
    assert strategy.guarantee(1e-5, rounds=100).epsilon > epsilons[-1]
    assert strategy.guarantee(1e-5).neighboring_relation == "zero-out"


@pytest.mark.filterwarnings("error:invalid value:RuntimeWarning")
def test_hardly_any_noise_is_told_what_it_costs() -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=0.01, sampling_probability=0.25, rounds=1000)
    assert guarantee(strategy.mechanism, 1e-5).epsilon > 1e6


def test_poisson_cohorts_amplify() -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, sampling_probability=0.01)
    expected = guarantee(Mechanism(Identity(1000), PoissonSampling(0.01), 1.0), 1e-5)
    assert strategy.guarantee(1e-5, rounds=1000).epsilon == pytest.approx(expected.epsilon, rel=1e-12)
    assert strategy.guarantee(1e-5, rounds=1000).epsilon < 2


def test_a_start_counts_from_one_again_and_the_guarantee_does_not(tmp_path: Path) -> None:
    whole = separated(tmp_path / "whole", simulation_seed=3)
    expected = whole.start(grid(), START, num_rounds=7).arrays
    first, second = separated(tmp_path / "parts", simulation_seed=3), separated(tmp_path / "parts", simulation_seed=3)
    first.start(grid(), START, num_rounds=4)
    assert second.rounds_charged == 4
    # The model is that of the folder, and so are momentum, noise and cohorts: what begins anew is not looked at.
    zeros = ArrayRecord({name: Array(np.zeros_like(array.numpy())) for name, array in START.items()})
    resumed = second.start(grid(), zeros, num_rounds=3).arrays
    assert second.rounds_charged == 7
    np.testing.assert_array_equal(numbers(resumed), numbers(expected))


def test_a_real_start_has_noise_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        separated(tmp_path).start(grid(), START, num_rounds=1)
    epochs = History.of_chain(read_chain(tmp_path / "ledger.jsonl")).epochs
    assert len({epoch.key for epoch in epochs}) == 2


def test_cra_18_the_ledger_binds_the_model_that_a_start_ends_with(tmp_path: Path) -> None:
    strategy = separated(tmp_path)
    strategy.start(grid(), START, num_rounds=2)
    assert require_noticed(tmp_path, bits=3) == ["metrics.jsonl", "metrics.prom", "state/lock"]
    one_round(strategy, grid(), strategy.resumed(START, grid()))
    assert verify(tmp_path).ok
    assert unproved(tmp_path) == ["guarantee.json", "metrics.jsonl", "metrics.prom", "state/lock", "state/server.safetensors"]
    separated(tmp_path).start(grid(), START, num_rounds=0)
    assert unproved(tmp_path) == ["metrics.jsonl", "metrics.prom", "state/lock"]
    # Another model, with a digest of its own that fits it.
    path = tmp_path / "state" / "server.safetensors"
    told, tensors = metadata(path.read_bytes()), load_file(path)
    tensors["model/w"][0] += 1
    path.write_bytes(save(tensors, told | {"sha256": _digest(tensors, told)}))
    assert not verify(tmp_path).ok
    with pytest.raises(RunFolderError, match=r"server\.safetensors: cannot be read"):
        separated(tmp_path).start(grid(), START, num_rounds=1)


def test_the_clip_norm_and_adams_moments_survive_a_restart(tmp_path: Path) -> None:
    def make(folder: str) -> DPFedAvgAdaptive:
        return DPFedAvgAdaptive(
            FedAdam(eta=0.05), noise_multiplier=1.0, num_sampled_clients=8, state=tmp_path / folder, simulation_seed=1
        )

    whole = make("whole")
    expected = whole.start(grid(), START, num_rounds=5).arrays
    make("parts").start(grid(), START, num_rounds=2)
    second = make("parts")
    resumed = second.start(grid(), START, num_rounds=3).arrays
    assert second.clip_norm == whole.clip_norm != 0.1
    np.testing.assert_array_equal(numbers(resumed), numbers(expected))


@pytest.mark.parametrize("inner", [FedAvgM(server_momentum=0.9), FedAdam(eta=0.05)])
def test_a_release_that_nobody_has_learnt_from_is_learnt_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: FedAvg
) -> None:
    def make(folder: str) -> PrivateStrategy:
        settings = {"clip_norm": 1.0, "noise_multiplier": 1.0, "num_sampled_clients": 3, "simulation_seed": 3}
        return DPFedAvgFixed(deepcopy(inner), state=tmp_path / folder, **settings)  # type: ignore[arg-type]

    expected = make("whole").start(grid(), START, num_rounds=2).arrays
    crashing = make("cut")
    _, arrays = one_round(crashing, grid())
    assert arrays is not None
    messages = list(crashing.configure_train(2, arrays, ConfigRecord(), on := grid()))

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(inner), "aggregate_train", crash)
    with pytest.raises(KeyboardInterrupt):
        crashing.aggregate_train(2, on.send_and_receive(messages))
    monkeypatch.undo()
    result = make("cut").start(grid(), START, num_rounds=0)
    np.testing.assert_array_equal(numbers(result.arrays), numbers(expected))


def test_prt_4_clients_count_as_having_taken_part_when_they_are_asked(tmp_path: Path) -> None:
    asked = [m.metadata.dst_node_id for m in separated(tmp_path).configure_train(1, START, ConfigRecord(), grid())]
    # The ServerApp dies here, and comes back.
    again = separated(tmp_path)
    for _ in range(2):
        others, _ = one_round(again, grid())
        assert not set(asked) & set(others)
    states = History.of_chain(read_chain(tmp_path / "ledger.jsonl")).rounds
    assert [entry.state for entry in states] == ["aborted", "committed", "committed"]
    assert again.guarantee(1e-5).rounds == 3


def test_prt_3_separation_is_kept_over_rounds_and_restarts(tmp_path: Path) -> None:
    for _ in range(4):
        strategy = separated(tmp_path)
        for _ in range(3):
            one_round(strategy, grid())
    history = History.of_chain(read_chain(tmp_path / "ledger.jsonl"))
    assert len(history.rounds) == 12
    assert history.participations.counts.max() <= 4
    assert min(history.participations.gaps()) >= 3


def test_prt_5_a_client_that_comes_back_under_another_number_is_the_same_client(tmp_path: Path) -> None:
    strategy = separated(tmp_path)
    strategy.configure_train(1, START, ConfigRecord(), told((1, b"a"), (2, b"b"), (3, b"c")))
    # The three of before, and nobody else: none may join again so soon, whatever numbers their nodes have.
    with pytest.raises(ParticipationError, match="none of 3 connected clients may join"):
        strategy.configure_train(2, START, ConfigRecord(), told((7, b"a"), (8, b"b"), (9, b"c")))
    assert strategy.rounds_charged == 1


class Told(LocalGrid):
    """A grid of which a test says which nodes there are, and by which keys."""

    told: Sequence[tuple[int, bytes]] = ()

    def get_nodes(self) -> Iterator[Any]:
        return (SimpleNamespace(node_id=number, public_key=key) for number, key in self.told)


def told(*nodes: tuple[int, bytes]) -> Told:
    made = Told(client_app(), num_nodes=12)
    made.told = nodes
    return made


def test_a_client_whose_key_vanishes_is_not_another_client(tmp_path: Path) -> None:
    strategy = separated(tmp_path)
    strategy.configure_train(1, START, ConfigRecord(), told((1, b"a"), (2, b"b"), (3, b"c")))
    with pytest.raises(ParticipationError, match="none of 3 connected nodes has a public key"):
        strategy.configure_train(2, START, ConfigRecord(), told((1, b""), (2, b""), (3, b"")))
    # Nor over a restart: a node without a key is not asked.
    with pytest.raises(ParticipationError, match="none of 1 connected clients may join"):
        separated(tmp_path).configure_train(2, START, ConfigRecord(), told((1, b"a"), (2, b"")))


def test_a_client_that_was_known_by_its_number_stays_so(tmp_path: Path) -> None:
    separated(tmp_path).configure_train(1, START, ConfigRecord(), told((1, b""), (2, b""), (3, b"")))
    with pytest.raises(ParticipationError, match="none of 3 connected clients may join"):
        separated(tmp_path).configure_train(2, START, ConfigRecord(), told((1, b"a"), (2, b"b"), (3, b"c")))


def test_of_two_nodes_with_one_key_one_is_asked() -> None:
    messages = list(separated().configure_train(1, START, ConfigRecord(), told((1, b"a"), (2, b"a"), (3, b"b"))))
    assert sorted(m.metadata.dst_node_id for m in messages) == [2, 3]


def test_prt_6_exactly_as_many_are_asked_as_was_said_and_fewer_where_fewer_may() -> None:
    strategy = DPFedAvgFixed(FedAvg(fraction_train=0.1), clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=7)
    assert len(one_round(strategy, grid(12))[0]) == 7
    assert len(one_round(strategy, grid(5))[0]) == 5


def test_cohorts_differ_from_run_to_run_whatever_the_global_generators_say() -> None:
    cohorts = set()
    for _ in range(4):
        random.seed(42)
        np.random.seed(42)  # noqa: NPY002 # the generator that applications seed
        strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=10)
        cohorts.add(tuple(one_round(strategy, grid(40))[0]))
    # Equal ones have a chance below 1e-8.
    assert len(cohorts) == 4


def test_acc_10_a_run_stops_where_its_epsilon_ends() -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=5, stop_epsilon=7.0)
    result = strategy.start(grid(), START, num_rounds=50)
    # 4.377, 6.573, 8.385 …: two rounds fit.
    assert strategy.rounds_charged == 2
    assert len(result.train_metrics_clientapp) == 2
    assert strategy.guarantee().epsilon <= 7
    with pytest.raises(BudgetError, match="round 3: would exceed what is promised"):
        strategy.configure_train(3, START, ConfigRecord(), grid())
    assert strategy.rounds_charged == 2


def test_prt_7_a_mechanism_has_no_more_rounds_than_it_has() -> None:
    strategy = separated(rounds=4)
    result = strategy.start(grid(), START, num_rounds=9)
    assert strategy.rounds_charged == 4
    assert result.arrays
    with pytest.raises(BudgetError):
        one_round(strategy, grid())


def test_a_missing_reply_discards_the_round_where_that_is_the_rule() -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=5, on_failure="abort")
    messages = list(strategy.configure_train(1, START, ConfigRecord(), on := grid()))
    arrays, told = strategy.aggregate_train(1, list(on.send_and_receive(messages))[1:])
    assert arrays is None
    assert told is not None
    assert (told["released"], strategy.rounds_charged) == (0, 1)
    assert strategy.guarantee().epsilon == pytest.approx(4.377, abs=1e-3)
    assert "reply is missing" in strategy.guarantee().statement()
    assert one_round(strategy, grid())[1] is not None


def test_a_reply_that_is_nonsense_discards_no_round() -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=5, on_failure="abort")
    messages = list(strategy.configure_train(1, START, ConfigRecord(), on := grid()))
    replies = list(on.send_and_receive(messages))
    replies[0].content = RecordDict()
    assert strategy.aggregate_train(1, replies)[0] is not None


def test_noise_comes_from_the_clients_or_the_round_is_discarded() -> None:
    from hubbub.flower import clipping_mod, noising_mod

    app = ClientApp(mods=[noising_mod, clipping_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        return Message(
            RecordDict({"arrays": ArrayRecord(dict(arrays)), "metrics": MetricRecord({"num-examples": 1})}), reply_to=message
        )

    big = ArrayRecord({"w": Array(np.zeros(20_000, np.float32))})
    settings = {"clip_norm": 2.0, "noise_multiplier": 1.5, "num_sampled_clients": 6, "noise_at": "clients", "min_survivors": 4}
    strategy = DPFedAvgFixed(FedAvg(), **settings)  # type: ignore[arg-type]
    messages = list(strategy.configure_train(1, big, ConfigRecord(), on := LocalGrid(app, num_nodes=8)))
    replies = list(on.send_and_receive(messages))
    arrays, _ = strategy.aggregate_train(1, replies[:4])
    assert arrays is not None
    # Four shares make the noise that is stated; its deviation over 20,000 numbers is within 4 of its standard errors.
    assert np.std(arrays["w"].numpy()) * 6 == pytest.approx(1.5 * 2.0, rel=4 / np.sqrt(2 * 20_000))
    messages = list(strategy.configure_train(2, big, ConfigRecord(), on))
    assert strategy.aggregate_train(2, list(on.send_and_receive(messages))[:3])[0] is None
    # The client without mods sends no noise: it is no survivor.
    messages = list(strategy.configure_train(3, big, ConfigRecord(), bare := LocalGrid(client_app(0.0), num_nodes=8)))
    assert strategy.aggregate_train(3, bare.send_and_receive(messages))[0] is None
    assert strategy.rounds_charged == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: separated(keys_enforced=False), "keys_enforced=True"),
        (lambda: separated(num_sampled_clients=None), "num_sampled_clients: is missing"),
        (lambda: separated(noise_at="clients", min_survivors=2), "noise"),
        (lambda: separated(min_survivors=2), "belongs to noise_at"),
        (lambda: DPFedAvgFixed(FedAvg(), clip_norm=1, noise_multiplier=1), "give one of the two"),
        (
            lambda: DPFedAvgFixed(FedAvg(), clip_norm=1, noise_multiplier=1, num_sampled_clients=3, sampling_probability=0.1),
            "give one of the two",
        ),
        (
            lambda: DPFedAvgFixed(FedAvg(), clip_norm=1, noise_multiplier=1, num_sampled_clients=3, noise_at="clients"),
            "min_survivors: is missing",
        ),
        (
            lambda: DPFedAvgFixed(
                FedAvg(), clip_norm=1, noise_multiplier=1, sampling_probability=0.1, noise_at="clients", min_survivors=2
            ),
            "fixed size",
        ),
        (lambda: DPFedAvgFixed(FedMedian(), clip_norm=1, noise_multiplier=1, num_sampled_clients=3), "one that averages"),
        (
            lambda: DPFedAvgFixed(FedAvg(fraction_train=0), clip_norm=1, noise_multiplier=1, num_sampled_clients=3),
            "fraction_train",
        ),
        (
            lambda: DPFedAvgFixed(TheirFixed(FedAvg(), 1.0, 1.0, 3), clip_norm=1, noise_multiplier=1, num_sampled_clients=3),
            "is private itself",
        ),
        (lambda: DPFedAvgFixed(separated(), clip_norm=1, noise_multiplier=1, num_sampled_clients=3), "is private itself"),
        (
            lambda: MatrixFactorizationDP(
                FedAvg(), mechanism=Mechanism(Identity(5), FixedSizeSampling(3, 10), 1.0), clip_norm=1.0
            ),
            "fixed number",
        ),
        (
            lambda: MatrixFactorizationDP(
                FedAvg(), mechanism=Mechanism(Identity(5), PoissonSampling(0.1), 1.0), clip_norm=1.0, num_sampled_clients=3
            ),
            "cohorts are sampled by",
        ),
        (lambda: DPFedAvgAdaptive(FedAvg(), noise_multiplier=1, num_sampled_clients=9, clip_count_stddev=0.5), "raise it to"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_once(make: Callable[[], PrivateStrategy], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0, True, "1"])
@pytest.mark.parametrize("name", ["clip_norm", "noise_multiplier", "stop_epsilon", "delta"])
def test_a_number_that_is_none_is_refused_by_name(name: str, value: object) -> None:
    settings: dict[str, object] = {"clip_norm": 1.0, "noise_multiplier": 1.0, "num_sampled_clients": 3, name: value}
    with pytest.raises((ValueError, TypeError), match=name):
        DPFedAvgFixed(FedAvg(), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", [SingleParticipation(), FixedEpochs(2, 4), MinSeparation(4, 3)])
def test_every_pattern_is_kept(pattern: SingleParticipation | FixedEpochs | MinSeparation) -> None:
    strategy = MatrixFactorizationDP(
        FedAvg(), mechanism=Mechanism(Identity(8), pattern, 1.0), clip_norm=1.0, num_sampled_clients=2, keys_enforced=True
    )
    joined: dict[int, list[int]] = {}
    for t in range(8):
        for node in one_round(strategy, grid(16))[0]:
            joined.setdefault(node, []).append(t)
    assert all(pattern.allows(rounds) for rounds in joined.values())


def test_groups_that_take_turns_are_asked_in_turn() -> None:
    mechanism = Mechanism(toeplitz.square_root(8, bands=4), CyclicPoissonSampling(0.9, 4), 1.0)
    strategy = MatrixFactorizationDP(FedAvg(), mechanism=mechanism, clip_norm=1.0, keys_enforced=True)
    joined: dict[int, set[int]] = {}
    for t in range(8):
        for node in one_round(strategy, grid(40))[0]:
            joined.setdefault(node, set()).add(t % 4)
    assert joined
    assert all(len(turns) == 1 for turns in joined.values())


def test_num_11_an_empty_cohort_releases_noise_all_the_same() -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, sampling_probability=1e-6, expected_cohort_size=1)
    asked, arrays = one_round(strategy, grid())
    assert asked == []
    assert arrays is not None
    assert np.std(numbers(arrays) - numbers(START)) == pytest.approx(1.0, rel=0.5)


def test_another_model_or_another_promise_is_refused(tmp_path: Path) -> None:
    separated(tmp_path).start(grid(), START, num_rounds=1)
    other = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    with pytest.raises(LedgerError, match=r"settings\.arrays"):
        separated(tmp_path).start(grid(), other, num_rounds=1)
    with pytest.raises(LedgerError, match=r"settings\.clip_norm was 1\.0, is 2\.0"):
        separated(tmp_path, clip_norm=2.0).start(grid(), START, num_rounds=1)
    strategy = separated(tmp_path)
    one_round(strategy, grid())
    with pytest.raises(ConfigError, match="another model's"):
        one_round(strategy, grid(), other)


def test_heads_are_given_outside_before_a_release_leaves_and_again_after_an_outage(tmp_path: Path) -> None:
    heads, fails = tmp_path / "heads", tmp_path / "fails"
    command = ["sh", "-c", f"test ! -e {fails} && cat >> {heads}"]
    settings = {"state": tmp_path / "run", "head_hook": HeadHook(command, required=True)}
    first = separated(**settings)
    result = first.start(grid(), START, num_rounds=2)
    fails.touch()
    with pytest.raises(LedgerError, match="the head after 3 rounds was not taken"):
        first.start(grid(), result.arrays, num_rounds=1)
    assert first.rounds_charged == 3
    fails.unlink()
    again = separated(**settings)
    held = again.resumed(START, grid())
    # The release that stayed is learnt from now.
    assert not np.array_equal(numbers(held), numbers(result.arrays))
    again.start(grid(), held, num_rounds=1)
    assert again.rounds_charged == 4
    assert [json.loads(line)["rounds"] for line in heads.read_text().splitlines()] == [0, 1, 2, 3, 4]
    assert verify(tmp_path / "run", heads=heads).ok


def test_a_head_hook_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match="head_hook: guards a folder"):
        separated(head_hook=HeadHook(["cat"]))
    with pytest.raises(TypeError, match="head_hook = str: must be a hubbub"):
        separated(head_hook="https://outside.example")


def test_a_folder_that_was_rolled_back_is_refused_where_that_can_be_seen(tmp_path: Path) -> None:
    first = separated(tmp_path)
    first.start(grid(), START, num_rounds=2)
    early = (tmp_path / "ledger.jsonl").read_bytes()
    first.start(grid(), START, num_rounds=2)
    head = first.ledger_head
    first._run.state.close()  # type: ignore[union-attr]
    whole = {path: path.read_bytes() for path in (tmp_path / "ledger.jsonl", tmp_path / "state" / "server.safetensors")}
    (tmp_path / "state" / "server.safetensors").unlink()
    with pytest.raises(RunFolderError, match=r"server\.safetensors, the model after them, is missing"):
        separated(tmp_path).start(grid(), START, num_rounds=1)
    (tmp_path / "ledger.jsonl").write_bytes(early)
    with pytest.raises(LedgerError, match=r"rolled back"):
        separated(tmp_path).start(grid(), START, num_rounds=1)
    with pytest.raises(LedgerError, match="head"):
        separated(tmp_path, head=head).start(grid(), START, num_rounds=1)
    for path, content in whole.items():
        path.write_bytes(content)
    separated(tmp_path, head=head).guarantee(1e-5)


def test_nothing_is_said_of_another_mechanisms_rounds(tmp_path: Path) -> None:
    DPFedAvgFixed(FedAvg(), clip_norm=1, noise_multiplier=0.5, num_sampled_clients=3, state=tmp_path).start(grid(), START, 1)
    with pytest.raises(LedgerError, match="holds a run of another mechanism"):
        DPFedAvgFixed(FedAvg(), clip_norm=1, noise_multiplier=50, num_sampled_clients=3, state=tmp_path).guarantee(1e-5)


@pytest.mark.parametrize("copied", [deepcopy, lambda strategy: pickle.loads(pickle.dumps(strategy))])  # noqa: S301 # our own
def test_an_open_run_is_not_copied(copied: Callable[[PrivateStrategy], PrivateStrategy]) -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1, noise_multiplier=1, num_sampled_clients=3)
    one_round(strategy, grid())
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copied(strategy)


def test_a_folder_stays_the_one_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    strategy = separated(Path("here"))
    one_round(strategy, grid())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    one_round(strategy, grid())
    assert strategy.rounds_charged == 2


def test_cli_12_the_log_repeats_nothing_that_clients_say(caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_id % 2:
            raise ValueError("patient 4711")
        arrays = ArrayRecord({"patient 4711": Array(np.zeros(3, np.float32))})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"patient 4711": 1})}), reply_to=message)

    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1, noise_multiplier=1, sampling_probability=0.9)
    with caplog.at_level(logging.INFO, logger="flwr"):
        messages = list(strategy.configure_train(1, START, ConfigRecord(), on := LocalGrid(app, num_nodes=12)))
        replies = on.send_and_receive(messages)
        caplog.clear()
        strategy.aggregate_train(1, replies)
    assert "counted as nothing" in caplog.text
    assert "which the model has not" in caplog.text
    assert "4711" not in caplog.text


def test_a_damaged_model_file_is_refused(tmp_path: Path) -> None:
    separated(tmp_path).start(grid(), START, num_rounds=1)
    path = tmp_path / "state" / "server.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match="SHA-256"):
        separated(tmp_path).start(grid(), START, num_rounds=1)


def test_the_strategy_of_before_is_refused_once_another_goes_on(tmp_path: Path) -> None:
    first = separated(tmp_path)
    one_round(first, grid())
    second = separated(tmp_path)
    one_round(second, grid())
    with pytest.raises(LedgerError, match="another strategy has resumed"):
        one_round(first, grid())
    assert first.guarantee(1e-5).epsilon == second.guarantee(1e-5).epsilon


def test_federated_evaluation_is_off_until_its_exactness_is_asked_for() -> None:
    settings = {"clip_norm": 1.0, "noise_multiplier": 1.0, "num_sampled_clients": 3}
    off = DPFedAvgFixed(FedAvg(), **settings)  # type: ignore[arg-type]
    exact = DPFedAvgFixed(FedAvg(), evaluation="exact", **settings)  # type: ignore[arg-type]
    assert list(off.configure_evaluate(1, START, ConfigRecord(), grid())) == []
    assert len(list(exact.configure_evaluate(1, START, ConfigRecord(), grid(5)))) == 5
    assert "the metrics of federated evaluation, which are exact" in exact.guarantee().not_covered


def test_what_is_told_of_a_round_is_public() -> None:
    strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=4)
    result = strategy.start(grid(), START, num_rounds=1)
    assert set(result.train_metrics_clientapp[1]) == {"round", "released", "epsilon", "delta", "clip-norm"}


def test_the_words_of_the_operator_stand_in_the_guarantee(tmp_path: Path) -> None:
    kept = separated(tmp_path).guarantee(1e-5).statement()
    assert "registered keys only" in kept
    assert "started again" not in kept
    assert "started again" in separated().guarantee(1e-5).statement()


def test_a_statement_has_the_facts_of_the_run(tmp_path: Path) -> None:
    strategy = separated(tmp_path)
    one_round(strategy, grid())
    text = strategy.statement(1e-6)
    assert strategy.ledger_head in text
    assert "training, 1 round of 12 that were planned" in text
    assert "divided by the fixed number 3" in text
