"""A run on Flower: charged before it leaves, kept over restarts, and stopped where its promise ends."""

import json
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian
from safetensors.numpy import load_file, save

from conftest import raising
from flower_arms import Federation, separated
from hubbub import guarantee, verify
from hubbub.errors import BudgetError, ConfigError, LedgerError, ParticipationError, RunFolderError
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, LocalGrid, MatrixFactorizationDP, compat
from hubbub.flower.state import _digest
from hubbub.flower.strategies import PrivateStrategy
from hubbub.ledger.chain import read_chain
from hubbub.ledger.history import History
from hubbub.mechanism import Mechanism, gaussian
from hubbub.mechanism.participation import FixedSizeSampling, PoissonSampling, every_round
from hubbub.mechanism.strategies import Identity
from hubbub.training import HeadHook, charged_with
from hubbub.training.run_folder.state import metadata
from recorded_runs import require_noticed, unproved
from refusals import contents

DIM = 40
fixed = partial(DPFedAvgFixed, FedAvg(), clip_norm=1.0, noise_multiplier=1.0)
START = ArrayRecord({"w": Array(np.linspace(-1, 1, DIM - 1, dtype=np.float32)), "s": Array(np.array(2.0, np.float32))})


pytestmark = pytest.mark.usefixtures("quiet")


def grid(nodes: int = 12, step: float = 0.01) -> LocalGrid:
    """Clients that move every number by ``step``."""
    return Federation(nodes, lambda model, index: {name: values + np.float32(step) for name, values in model.items()}).grid


def numbers(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])


def one_round(strategy: PrivateStrategy, on: LocalGrid, arrays: ArrayRecord = START) -> tuple[list[int], ArrayRecord | None]:
    """The nodes that were asked, and the model after a round."""
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), on))
    made, _ = strategy.aggregate_train(1, on.send_and_receive(messages))
    return [message.metadata.dst_node_id for message in messages], made


def test_acc_7_a_guarantee_answers_before_during_and_after_a_run() -> None:
    strategy = fixed(noise_multiplier=1.1, num_sampled_clients=6)
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


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1000), (5.0, 1), (20.0, 300)])
def test_fixed_and_adaptive_clipping_cost_what_one_gaussian_costs_and_poisson_cohorts_less(z: float, rounds: int) -> None:
    expected = gaussian.epsilon(1e-5, z / rounds**0.5)
    for cohorts, most in (({"num_sampled_clients": 50}, expected), ({"sampling_probability": 0.01}, 0.9 * expected)):
        fixed = DPFedAvgFixed(FedAvg(), clip_norm=3.0, noise_multiplier=z, **cohorts).guarantee(1e-5, rounds=rounds)
        adaptive = DPFedAvgAdaptive(FedAdam(), noise_multiplier=z, **cohorts).guarantee(1e-5, rounds=rounds)
        assert fixed.epsilon == pytest.approx(adaptive.epsilon, rel=1e-9)
        assert fixed.epsilon <= most * (1 + 1e-9)
        participation = PoissonSampling(0.01) if "sampling_probability" in cohorts else every_round(rounds)
        mechanism = Mechanism(Identity(rounds), participation, z)
        assert fixed.epsilon == pytest.approx(guarantee(mechanism, 1e-5).epsilon, rel=1e-9)


def test_acc_9_a_run_whose_divisor_is_counted_covers_nobodys_presence_together_with_others_either(tmp_path: Path) -> None:
    mechanism = Mechanism(Identity(3), PoissonSampling(0.3), 2.0)
    for size, relations in ((None, {"zero-out", "replace-one"}), (4.0, {"zero-out", "replace-one", "add-or-remove-one"})):
        strategy = fixed(sampling_probability=0.3, expected_cohort_size=size, rounds=2, state=tmp_path / str(size))
        strategy.start(grid(), START, num_rounds=2)
        (charge,) = charged_with(tmp_path / str(size))
        assert {*strategy.guarantee(1e-5).relations} == {*charge.relations} == relations
        if size is None:
            with pytest.raises(ConfigError, match=r"'add-or-remove-one': no theorem covers the run .* state 'zero-out' or"):
                guarantee(mechanism, 1e-5, earlier=[charge])
        assert guarantee(mechanism, 1e-5, "zero-out", earlier=[charge]).epsilon > guarantee(mechanism, 1e-5, "zero-out").epsilon


def test_a_statement_has_the_facts_of_the_run(tmp_path: Path) -> None:
    strategy = separated(tmp_path)
    one_round(strategy, grid())
    text = strategy.statement(1e-6)
    assert strategy.ledger_head in text
    assert "training, 1 round of 12 that were planned" in text
    assert "divided by the fixed number 3" in text


def test_a_statement_of_rounds_on_record_has_their_words_whatever_the_strategy_is_that_reads_them(tmp_path: Path) -> None:
    fixed(num_sampled_clients=3, simulation_seed=0, on_failure="abort", state=tmp_path).start(grid(), START, num_rounds=1)
    other = fixed(num_sampled_clients=3, keys_enforced=True, state=tmp_path)
    for words, there in (("simulation", True), ("reply is missing", True), ("registered keys only", False)):
        assert (words in other.statement()) is there, words
    with pytest.raises(RunFolderError):
        other.start(grid(), START, num_rounds=1)


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


@pytest.mark.parametrize("inner", [FedAvgM(server_momentum=0.9), FedAdam(eta=0.05)])
def test_an_unlearnt_release_is_learnt_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: FedAvg) -> None:
    def make(folder: str) -> PrivateStrategy:
        settings = {"clip_norm": 1.0, "noise_multiplier": 1.0, "num_sampled_clients": 3, "simulation_seed": 3}
        return DPFedAvgFixed(deepcopy(inner), state=tmp_path / folder, **settings)  # type: ignore[arg-type]

    expected = make("whole").start(grid(), START, num_rounds=2).arrays
    crashing = make("cut")
    _, arrays = one_round(crashing, grid())
    messages = list(crashing.configure_train(2, arrays, ConfigRecord(), on := grid()))
    monkeypatch.setattr(type(inner), "aggregate_train", raising(KeyboardInterrupt))
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
    assert min(later - sooner for rounds in history.participations.sets() for sooner, later in pairwise(rounds)) >= 3


def test_prt_6_exactly_as_many_are_asked_as_was_said_and_fewer_where_fewer_may() -> None:
    strategy = DPFedAvgFixed(FedAvg(fraction_train=0.1), clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=7)
    assert len(one_round(strategy, grid(12))[0]) == 7
    assert len(one_round(strategy, grid(5))[0]) == 5


def test_prt_7_a_mechanism_has_no_more_rounds_than_it_has() -> None:
    strategy = separated(rounds=4)
    result = strategy.start(grid(), START, num_rounds=9)
    assert strategy.rounds_charged == 4
    assert result.arrays
    with pytest.raises(BudgetError):
        one_round(strategy, grid())


SAMPLED = Mechanism(Identity(5), FixedSizeSampling(3, 10), 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: separated(num_sampled_clients=None), "num_sampled_clients: is missing"),
        (lambda: separated(noise_at="clients", min_survivors=2), "noise"),
        (fixed, "give one of the two"),
        (lambda: fixed(num_sampled_clients=3, noise_at="clients"), "min_survivors: is missing"),
        (lambda: fixed(sampling_probability=0.1, noise_at="clients", min_survivors=2), "fixed size"),
        (lambda: DPFedAvgFixed(FedMedian(), clip_norm=1, noise_multiplier=1, num_sampled_clients=3), "one that averages"),
        (lambda: MatrixFactorizationDP(FedAvg(), mechanism=SAMPLED, clip_norm=1.0), "fixed number"),
        (lambda: DPFedAvgAdaptive(FedAvg(), noise_multiplier=1, num_sampled_clients=9, clip_count_stddev=0.5), "raise it to"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_once(make: Callable[[], PrivateStrategy], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("called", "named", "meant"),
    [
        (DPFedAvgFixed, {"clip_norm": 1.0, "clipnorm": 2.0}, "clip_norm"),
        (DPFedAvgAdaptive, {"on_failures": "zero"}, "on_failure"),
        (MatrixFactorizationDP, {"clip_norm": 1.0, "dleta": 1}, "delta"),
        # Before those that are missing.
        (DPFedAvgFixed, {"clipping_norm": 1.0}, "clip_norm"),
        (compat.DifferentialPrivacyClientSideFixedClipping, {"clipping_norm": 1.0, "clip_norm": 1.0}, "clipping_norm"),
        (compat.DifferentialPrivacyServerSideAdaptiveClipping, {"target_quantile": 0.5}, "target_clipped_quantile"),
    ],
)
def test_an_unknown_argument_is_refused_by_the_name_of_the_class_with_the_nearest_one(
    called: type[PrivateStrategy], named: dict[str, object], meant: str
) -> None:
    own = called is MatrixFactorizationDP
    z = {"mechanism": Mechanism(Identity(5), every_round(5), 1.0)} if own else {"noise_multiplier": 1.0}
    unknown, value = list(named.items())[-1]
    words = rf"{unknown} = {value!r}: is no argument of {called.__name__} \(did you mean '{meant}'\?\); known are strategy, "
    with pytest.raises(TypeError, match=words):
        called(FedAvg(), num_sampled_clients=3, **z, **named)


def test_an_epsilon_is_told_where_it_comes_from() -> None:
    with pytest.raises(TypeError, match=r"epsilon = 8: is no argument of DPFedAvgFixed; it follows from the noise, which"):
        DPFedAvgFixed(FedAvg(), epsilon=8)  # type: ignore[call-arg]


def test_a_strategy_that_does_not_tell_clients_to_add_noise_asks_nobody() -> None:
    class Own(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return super().configure_train(server_round, arrays, ConfigRecord({"lr": 0.1}), grid)

    own = partial(DPFedAvgFixed, Own(), clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=3)
    assert one_round(own(), grid())
    with pytest.raises(ConfigError, match="does not pass on the config"):
        one_round(strategy := own(noise_at="clients", min_survivors=2), grid())
    assert strategy.rounds_charged == 0


def test_a_round_that_cannot_be_released_for_want_of_clients_costs_nothing() -> None:
    strategy = fixed(num_sampled_clients=10, noise_at="clients", min_survivors=8)
    with pytest.raises(ParticipationError, match=r"7 clients are connected, and no sum of fewer than 8 .*nothing was spent"):
        one_round(strategy, grid(7))
    assert strategy.rounds_charged == 0
    assert one_round(strategy, grid(8))


def test_num_11_an_empty_cohort_releases_noise_all_the_same() -> None:
    strategy = fixed(sampling_probability=1e-6, expected_cohort_size=1)
    asked, arrays = one_round(strategy, grid())
    assert asked == []
    assert np.std(numbers(arrays) - numbers(START)) == pytest.approx(1.0, rel=0.5)


def test_another_model_or_another_promise_is_refused(tmp_path: Path) -> None:
    separated(tmp_path).start(grid(), START, num_rounds=1)
    other = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    with pytest.raises(LedgerError, match=r"settings\.arrays"):
        separated(tmp_path).start(grid(), other, num_rounds=1)
    for changed, named in (({"clip_norm": 2.0}, r"settings\.clip_norm was 1\.0, is 2\.0"), ({"delta": 1e-9}, "delta was")):
        with pytest.raises(LedgerError, match=named):
            separated(tmp_path, **changed).start(grid(), START, num_rounds=1)
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


def test_a_model_that_was_rolled_back_by_itself_is_refused_and_the_folder_stays_as_it_was(tmp_path: Path) -> None:
    first, path = separated(tmp_path), tmp_path / "state/server.safetensors"
    one_round(first, grid())
    early = path.read_bytes()
    one_round(first, grid())
    # A server that is killed binds no files.
    first._run.state.close()  # type: ignore[union-attr]
    path.write_bytes(early)
    before = contents(tmp_path)
    with pytest.raises(RunFolderError, match=r"releases/1\.safetensors: cannot be read"):
        separated(tmp_path).start(grid(), START, num_rounds=1)
    assert contents(tmp_path) == before


def test_the_strategy_of_before_is_refused_once_another_goes_on(tmp_path: Path) -> None:
    first = separated(tmp_path)
    one_round(first, grid())
    second = separated(tmp_path)
    one_round(second, grid())
    with pytest.raises(LedgerError, match="another strategy has resumed"):
        one_round(first, grid())
    assert first.guarantee(1e-5).epsilon == second.guarantee(1e-5).epsilon


def test_federated_evaluation_is_off_until_its_exactness_is_asked_for() -> None:
    off, exact = (fixed(num_sampled_clients=3, evaluation=how) for how in ("off", "exact"))
    assert list(off.configure_evaluate(1, START, ConfigRecord(), grid())) == []
    asked = list(exact.configure_evaluate(1, START, ConfigRecord(), grid(5)))
    assert len(asked) == 5
    stated = [{"accuracy": 0.5, "num-examples": 2}] * 4 + [{"num-examples": 2}]
    replies = [Message(RecordDict({"m": MetricRecord(m)}), reply_to=to) for m, to in zip(stated, asked, strict=True)]
    assert exact.aggregate_evaluate(1, replies[:4]) == MetricRecord({"accuracy": 0.5})
    # The first answer of each, and none of its metrics ends a run.
    again = Message(RecordDict({"m": MetricRecord({"accuracy": 1.0, "num-examples": 2})}), reply_to=asked[0])
    assert exact.aggregate_evaluate(1, [*replies[:4], again]) == MetricRecord({"accuracy": 0.5})
    for odd in ({"num-examples": 2}, {"accuracy": 0.5, "num-examples": -8}, {"accuracy": [0.5], "num-examples": 2}):
        reply = Message(RecordDict({"m": MetricRecord(odd)}), reply_to=asked[4])
        assert exact.aggregate_evaluate(1, [*replies[:4], reply]) is None
    assert "the metrics of federated evaluation, which are exact" in exact.guarantee().not_covered
