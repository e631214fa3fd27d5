"""The private strategies behind Flower's legacy API: the same rounds, told in the old words."""

import json
import math
from threading import Timer

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as MessageFedAvg

pytest.importorskip("flwr.server.strategy", reason="this version of Flower has no legacy API any more", exc_type=ImportError)

from flwr.client import NumPyClient
from flwr.common import Code, FitRes, GetParametersRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import DPFedAvgFixed as FlowersOwn
from flwr.server.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, QFedAvg

from hubbub.errors import ConfigError, LedgerError
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed
from hubbub.flower.legacy import LegacyDPFedAvgAdaptive, LegacyDPFedAvgFixed
from hubbub.flower.local_grid import LocalGrid
from hubbub.flower.numpy_client import DPNumPyClient

START = [np.zeros((2, 3), np.float32), np.zeros(4, np.float32), np.zeros((), np.float32)]
DIM = 11


def step(norm, index):
    """An update of that norm, in a direction of the client's own."""
    flat = norm / math.sqrt(DIM) * (-1.0) ** (np.arange(DIM) % (index + 2))
    return [flat[:6].reshape(2, 3), flat[6:10], flat[10].reshape(())]


class Training(NumPyClient):
    """A client whose update has a norm of its own; integer arrays stay."""

    def __init__(self, norm, index):
        self.norm, self.index, self.seen = norm, index, []

    def fit(self, parameters, config):
        self.seen.append(dict(config))
        moved = [p + s.astype(np.float32) for p, s in zip(parameters, step(self.norm, self.index), strict=False)]
        return moved + parameters[len(moved) :], 1000 * (self.index + 1), {"loss": 0.25}


class Proxy(ClientProxy):
    """A client in this process, as the legacy server sees it."""

    def __init__(self, cid, client):
        super().__init__(cid)
        self.client = client

    def fit(self, ins, timeout, group_id):
        arrays, examples, metrics = self.client.fit(parameters_to_ndarrays(ins.parameters), dict(ins.config))
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), examples, metrics)

    def get_parameters(self, ins, timeout, group_id):
        return GetParametersRes(Status(Code.OK, ""), ndarrays_to_parameters(START))

    def get_properties(self, ins, timeout, group_id):
        raise NotImplementedError

    def evaluate(self, ins, timeout, group_id):
        raise AssertionError("no client is asked to evaluate")

    def reconnect(self, ins, timeout, group_id):
        raise NotImplementedError


class Broken(NumPyClient):
    def fit(self, parameters, config):
        raise RuntimeError("no battery")


def manager(clients):
    found = SimpleClientManager()
    for index, client in enumerate(clients):
        found.register(Proxy(f"client {index}", client))
    return found


def averaging(kind=FedAvg, start=START, **more):
    return kind(initial_parameters=ndarrays_to_parameters(start), min_available_clients=1, **more)


def serve(strategy, clients, rounds):
    server = Server(client_manager=manager(clients), strategy=strategy)
    history, _ = server.fit(num_rounds=rounds, timeout=None)
    return flat(server.parameters), history


def flat(parameters):
    return np.concatenate([a.reshape(-1).astype(np.float64) for a in parameters_to_ndarrays(parameters)])


def message_run(strategy, norms, rounds):
    """The same federation by the Message API."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        index = context.node_config["partition-id"]
        sent = next(iter(message.content.array_records.values()))
        client = Training(norms[index], index)
        moved, _, _ = client.fit([array.numpy() for array in sent.values()], {})
        record = ArrayRecord({str(i): Array(np.asarray(array)) for i, array in enumerate(moved)})
        return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    initial = ArrayRecord({str(i): Array(array) for i, array in enumerate(START)})
    arrays = strategy.start(LocalGrid(app, num_nodes=len(norms)), initial, num_rounds=rounds).arrays
    return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()]).astype(np.float64)


NORMS = [0.5, 0.2, 5.0, 0.1]


def clients(norms=NORMS, wrap=lambda client: client):
    return [wrap(Training(norm, index)) for index, norm in enumerate(norms)]


def test_flowers_own_server_runs_the_rounds_of_the_message_api():
    legacy = LegacyDPFedAvgFixed(averaging(), 4, 1.0, 0.7, simulation_seed=3)
    plain = DPFedAvgFixed(
        MessageFedAvg(min_available_nodes=1), clip_norm=1.0, noise_multiplier=0.7, num_sampled_clients=4, simulation_seed=3
    )
    released, history = serve(legacy, clients(), rounds=3)
    np.testing.assert_allclose(released, message_run(plain, NORMS, 3), atol=1e-6)
    assert legacy.guarantee() == plain.guarantee()
    assert [value for _, value in history.metrics_distributed_fit["released"]] == [1, 1, 1]
    # Nothing of what the clients measured.
    assert set(history.metrics_distributed_fit) == {"round", "released", "epsilon", "delta", "clip-norm"}


def test_adaptive_rounds_are_those_of_the_message_api():
    legacy = LegacyDPFedAvgAdaptive(averaging(), 4, 0.3, 0.7, True, 0.6, 0.75, 2.0, simulation_seed=3)
    plain = DPFedAvgAdaptive(
        MessageFedAvg(min_available_nodes=1), noise_multiplier=0.7, initial_clip_norm=0.3, target_quantile=0.75,
        clip_norm_learning_rate=0.6, clip_count_stddev=2.0, num_sampled_clients=4, simulation_seed=3,
    )  # fmt: skip
    released, _ = serve(legacy, clients(), rounds=3)
    np.testing.assert_allclose(released, message_run(plain, NORMS, 3), atol=1e-6)
    assert legacy.clip_norm == pytest.approx(plain.clip_norm) != 0.3


@pytest.mark.parametrize("own", [None, "flower", "hubbub"])
def test_clients_of_either_kind_are_told_the_clip_norm_and_count_once(own):
    from flwr.compat.client.dpfedavg_numpy_client import DPFedAvgNumPyClient

    wrap = {None: lambda client: client, "flower": DPFedAvgNumPyClient, "hubbub": DPNumPyClient}[own]
    trained = clients([0.5, 0.2, 5.0, 3.0])
    strategy = LegacyDPFedAvgAdaptive(averaging(), 4, 1.0, 1e-3, clip_count_stddev=0.01, simulation_seed=1)
    released, _ = serve(strategy, [wrap(client) for client in trained], rounds=1)
    expected = sum(
        np.concatenate([s.reshape(-1) for s in step(min(norm, 1.0), index)]) for index, norm in enumerate([0.5, 0.2, 5.0, 3.0])
    )
    # The noise of the mean has a standard deviation of 3e-4 or less.
    np.testing.assert_allclose(released, expected / 4, atol=2e-3)
    # Two of four were not clipped, as the target says: the clip norm stays but for noise of 0.25 % of the fraction.
    assert strategy.clip_norm == pytest.approx(1.0, abs=0.005)
    assert trained[0].seen[0]["dpfedavg_clip_norm"] == 1.0
    assert trained[0].seen[0]["dpfedavg_adaptive_clip_enabled"] is True
    assert "dpfedavg_noise_stddev" not in trained[0].seen[0]


def test_clients_that_add_the_noise_hide_the_sum_and_the_server_adds_none():
    # Two shares of 10/√2 each: the sum's standard deviation is 10, over a cohort of 2; 11 numbers and 8 rounds. A
    # chi-square of 88 degrees is beyond ±40 % in the standard deviation with a probability below 1e-6.
    strategy = LegacyDPFedAvgFixed(averaging(), 2, 1.0, 10.0, False, min_survivors=2)
    server = Server(client_manager=manager(clients([0.5, 0.2], DPNumPyClient)), strategy=strategy)
    server.parameters = strategy.initialize_parameters(server.client_manager())
    noise = []
    for server_round in range(1, 9):
        before = flat(server.parameters)
        server.parameters = server.fit_round(server_round, None)[0]
        noise.append(flat(server.parameters) - before)
    assert np.std(noise) == pytest.approx(5.0, rel=0.4)
    assert strategy.guarantee().epsilon > 0


def test_a_round_with_too_few_shares_of_noise_is_discarded_and_stays_charged():
    strategy = LegacyDPFedAvgFixed(averaging(), 2, 1.0, 1.0, False, min_survivors=2)
    released, history = serve(strategy, [DPNumPyClient(Training(0.5, 0)), Broken()], rounds=1)
    assert not released.any()
    assert history.metrics_distributed_fit["released"] == [(1, 0)]
    assert strategy.guarantee().epsilon > 0


@pytest.mark.parametrize(("on_failure", "released"), [("zero", 1), ("abort", 0)])
def test_a_failure_counts_as_missing(on_failure, released):
    strategy = LegacyDPFedAvgFixed(averaging(), 3, 1.0, 1e-6, on_failure=on_failure)
    model, history = serve(strategy, [*clients([0.6, 0.0]), Broken()], rounds=1)
    assert history.metrics_distributed_fit["released"] == [(1, released)]
    # One of three moved, over the cohort that was asked.
    assert np.linalg.norm(model) == pytest.approx(0.2 * released, abs=1e-4)
    assert strategy.private.rounds_charged == 1


class Lying(Proxy):
    """A client that sends back whatever it likes."""

    def __init__(self, cid, parameters, metrics):
        super().__init__(cid, None)
        self.lie = FitRes(Status(Code.OK, ""), parameters, -8, metrics)

    def fit(self, ins, timeout, group_id):
        return self.lie


@pytest.mark.parametrize(
    ("parameters", "metrics"),
    [
        (Parameters([], "numpy.ndarray"), {}),
        (Parameters([b"x", b"", b"\x93NUMPY"], "numpy.ndarray"), {}),
        (Parameters([b""], "torch"), {}),
        (ndarrays_to_parameters([np.full_like(a, np.nan) for a in START]), {}),
        (ndarrays_to_parameters([*START, np.ones(3)]), {}),
        (ndarrays_to_parameters(START[::-1]), {}),
        (Parameters(None, None), {}),
        (Parameters(["text"], 5), {}),
        (ndarrays_to_parameters(START), None),
        *((ndarrays_to_parameters(START), {"dpfedavg_norm_bit": bit}) for bit in ("1", 0.5, 2**62, 10**30, b"", None, [1])),
    ],
)
def test_whatever_one_client_sends_the_round_is_released_and_the_others_count(parameters, metrics):
    strategy = LegacyDPFedAvgAdaptive(averaging(), 2, 1.0, 1e-6, clip_count_stddev=1.0)
    clients = SimpleClientManager()
    clients.register(Proxy("honest", Training(0.5, 0)))
    clients.register(Lying("lying", parameters, metrics))
    server = Server(client_manager=clients, strategy=strategy)
    history, _ = server.fit(num_rounds=1, timeout=None)
    assert history.metrics_distributed_fit["released"] == [(1, 1)]
    assert np.linalg.norm(flat(server.parameters)) == pytest.approx(0.25, abs=1e-4)


def test_a_result_of_a_client_that_was_not_asked_and_a_second_one_count_as_nothing():
    strategy = LegacyDPFedAvgFixed(averaging(), 2, 1.0, 1e-6)
    known = manager(clients([0.5, 0.0]))
    start = strategy.initialize_parameters(known)
    asked = strategy.configure_fit(1, start, known)
    results = [(proxy, proxy.fit(ins, None, 1)) for proxy, ins in asked]
    stranger = Proxy("stranger", Training(0.9, 5))
    results += [*results, (stranger, stranger.fit(asked[0][1], None, 1))]
    model, _ = strategy.aggregate_fit(1, results, [])
    assert np.linalg.norm(flat(model)) == pytest.approx(0.25, abs=1e-4)


class Watched(FedAvg):
    """An averaging strategy that writes down what it is shown."""

    def aggregate_fit(self, server_round, results, failures):
        self.shown = [*getattr(self, "shown_before", []), (server_round, results, failures)]
        self.shown_before = self.shown
        return super().aggregate_fit(server_round, results, failures)


def test_the_wrapped_strategy_sees_one_result_of_the_noised_mean_alone():
    inner = averaging(Watched)
    strategy = LegacyDPFedAvgFixed(inner, 3, 1.0, 1.0, simulation_seed=2)
    released, _ = serve(strategy, [*clients(NORMS[:2]), Broken()], rounds=1)
    ((server_round, results, failures),) = inner.shown
    assert (server_round, failures) == (1, [])
    ((proxy, result),) = results
    assert (result.num_examples, result.metrics) == (1, {})
    assert proxy.cid == "stand-in"
    np.testing.assert_array_equal(flat(result.parameters), released)


@pytest.mark.parametrize("kind", [FedAdam, FedAvgM])
def test_a_server_optimizer_goes_on_over_a_restart_where_it_was(kind, tmp_path):
    more = {"server_momentum": 0.9, "server_learning_rate": 0.5} if kind is FedAvgM else {}

    def wrapped(folder):
        return LegacyDPFedAvgFixed(averaging(kind, **more), 4, 1.0, 0.5, simulation_seed=4, state=folder)

    whole, _ = serve(wrapped(tmp_path / "whole"), clients(), rounds=4)
    serve(wrapped(tmp_path / "parts"), clients(), rounds=2)
    again = wrapped(tmp_path / "parts")
    parts, _ = serve(again, clients(), rounds=2)
    np.testing.assert_array_equal(parts, whole)
    assert again.private.rounds_charged == 4


def test_the_first_round_may_be_discarded_with_a_momentum():
    strategy = LegacyDPFedAvgFixed(averaging(FedAvgM, server_momentum=0.9), 2, 1.0, 0.5, on_failure="abort")
    faulty = Broken()
    server = Server(client_manager=manager([Training(0.5, 0), faulty]), strategy=strategy)
    server.parameters = strategy.initialize_parameters(server.client_manager())
    assert server.fit_round(1, None)[0] is None
    faulty.fit = Training(0.2, 1).fit
    assert server.fit_round(2, None)[0] is not None


def test_another_run_is_not_taken_for_this_one(tmp_path):
    serve(LegacyDPFedAvgFixed(averaging(), 4, 1.0, 0.5, state=tmp_path / "run"), clients(), rounds=1)
    with pytest.raises(LedgerError):
        serve(LegacyDPFedAvgFixed(averaging(), 4, 2.0, 0.5, state=tmp_path / "run"), clients(), rounds=1)


def test_a_cohort_has_as_many_clients_as_are_to_be_asked_and_each_an_instruction_of_its_own():
    strategy = LegacyDPFedAvgFixed(averaging(FedProx, proximal_mu=0.25, fraction_fit=0.1), 3, 1, 1)
    known = manager(clients([0.1] * 8))
    asked = strategy.configure_fit(1, strategy.initialize_parameters(known), known)
    assert len({proxy.cid for proxy, _ in asked}) == 3
    assert all(ins.config == {"proximal_mu": 0.25, "dpfedavg_clip_norm": 1.0} for _, ins in asked)
    asked[0][1].config.clear()
    assert asked[1][1].config
    assert strategy.private.rounds_charged == 1


def test_a_round_waits_for_as_many_clients_as_the_wrapped_strategy_wants_to_be_there():
    strategy = LegacyDPFedAvgFixed(FedAvg(initial_parameters=ndarrays_to_parameters(START), min_available_clients=3), 3, 1.0)
    known = manager(clients(NORMS[:2]))
    start = strategy.initialize_parameters(known)
    late = Timer(0.3, lambda: known.register(Proxy("late", Training(0.1, 2))))
    late.start()
    assert {proxy.cid for proxy, _ in strategy.configure_fit(1, start, known)} == {"client 0", "client 1", "late"}
    late.join()


def test_acc_10_no_client_is_asked_once_the_budget_is_used_up():
    free = LegacyDPFedAvgFixed(averaging(), 4, 1.0, 1.0)
    strategy = LegacyDPFedAvgFixed(averaging(), 4, 1.0, 1.0, stop_epsilon=float(free.guarantee(rounds=2).epsilon))
    trained = clients()
    _, history = serve(strategy, trained, rounds=4)
    assert [r for r, _ in history.metrics_distributed_fit["released"]] == [1, 2]
    assert [len(client.seen) for client in trained] == [2] * 4
    assert strategy.guarantee() == free.guarantee(rounds=2)


def test_shp_2_arrays_of_whole_numbers_are_refused_or_stay():
    start = [*START, np.array([7, 8])]
    with pytest.raises(ConfigError, match="buffers='keep'"):
        serve(LegacyDPFedAvgFixed(averaging(start=start), 4, 1.0, 0.5), clients(), rounds=1)
    for wrap, more in ((lambda c: c, {}), (DPNumPyClient, {"server_side_noising": False, "min_survivors": 4})):
        strategy = LegacyDPFedAvgFixed(averaging(FedAdam, start), 4, 1.0, 0.5, buffers="keep", **more)
        server = Server(client_manager=manager(clients(wrap=wrap)), strategy=strategy)
        history, _ = server.fit(num_rounds=2, timeout=None)
        assert history.metrics_distributed_fit["released"] == [(1, 1), (2, 1)]
        arrays = parameters_to_ndarrays(server.parameters)
        assert [a.dtype for a in arrays] == [a.dtype for a in start]
        np.testing.assert_array_equal(arrays[-1], [7, 8])
        assert all(a.any() for a in arrays)


def test_evaluation_at_clients_is_off_unless_it_is_said_to_be_exact():
    known = manager(clients())
    off = LegacyDPFedAvgFixed(averaging(), 4, 1.0, 1.0)
    start = off.initialize_parameters(known)
    assert off.configure_evaluate(1, start, known) == []
    assert off.aggregate_evaluate(1, [], []) == (None, {})
    exact = LegacyDPFedAvgFixed(averaging(min_evaluate_clients=2), 4, 1.0, 1.0, evaluation="exact")
    assert len(exact.configure_evaluate(1, start, known)) == 4
    assert "evaluation" in exact.guarantee(rounds=1).sentence() + str(exact.guarantee(rounds=1))


def test_the_server_evaluates_what_is_released():
    seen = []
    strategy = LegacyDPFedAvgFixed(averaging(evaluate_fn=lambda r, arrays, _: seen.append(r) or (0.5, {})), 4, 1.0, 1.0)
    _, history = serve(strategy, clients(), rounds=2)
    assert (seen, history.losses_centralized) == ([0, 1, 2], [(0, 0.5), (1, 0.5), (2, 0.5)])


def test_a_client_is_known_by_its_name_over_restarts(tmp_path):
    def run():
        strategy = LegacyDPFedAvgFixed(averaging(), 4, 1.0, 0.5, state=tmp_path / "run")
        serve(strategy, clients(), rounds=1)

    run()
    run()
    records = [json.loads(line)["body"] for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    first, second = [set(record["clients"]) for record in records if record["kind"] == "begin"]
    assert first == second
    assert len(first) == 4


def test_legacy_clients_on_supernodes_take_part():
    app = ClientApp(client_fn=lambda context: DPNumPyClient(Training(0.5, context.node_config["partition-id"])).to_client())
    grid = LocalGrid(app, num_nodes=4)
    known = SimpleClientManager()
    for node in grid.get_node_ids():
        known.register(GridClientProxy(node, grid, grid.run.run_id))
    strategy = LegacyDPFedAvgAdaptive(averaging(), 4, 1.0, 0.02, False, min_survivors=3, clip_count_stddev=0.1)
    server = Server(client_manager=known, strategy=strategy)
    history, _ = server.fit(num_rounds=1, timeout=60)
    assert history.metrics_distributed_fit["released"] == [(1, 1)]
    expected = sum(np.concatenate([s.reshape(-1) for s in step(0.5, index)]) for index in range(4)) / 4
    # The noise of the mean has a standard deviation of 0.006; the noise on the fraction of 0.03, all of which were not clipped.
    np.testing.assert_allclose(flat(server.parameters), expected, atol=0.05)
    assert math.log(strategy.clip_norm) == pytest.approx(-0.2 * 0.5, abs=0.05)


def test_a_model_of_a_random_client_is_not_begun_with():
    strategy = LegacyDPFedAvgFixed(FedAvg(min_available_clients=1), 4, 1.0, 1.0)
    with pytest.raises(ConfigError, match="initial_parameters"):
        serve(strategy, clients(), rounds=1)


def test_a_round_that_was_not_configured_is_not_aggregated():
    with pytest.raises(ConfigError, match="configure_fit first"):
        LegacyDPFedAvgFixed(averaging(), 4, 1.0, 1.0).aggregate_fit(1, [], [])


class Choosy(FedAvg):
    """Sends each client another message."""

    def configure_fit(self, server_round, parameters, client_manager):
        asked = super().configure_fit(server_round, parameters, client_manager)
        return [(proxy, type(ins)(ins.parameters, {"number": i})) for i, (proxy, ins) in enumerate(asked)]


class Other(FedAvg):
    """Sends another model."""

    def configure_fit(self, server_round, parameters, client_manager):
        other = ndarrays_to_parameters([a + 1 for a in START])
        return super().configure_fit(server_round, other, client_manager)


class Asking(FedAvg):
    """Asks a client while it configures a round."""

    def configure_fit(self, server_round, parameters, client_manager):
        client_manager.sample(1)[0].get_parameters(None, None, None)


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Choosy, "different messages"), (Other, "another model"), (Asking, "asks clients for parameters")],
)
def test_a_strategy_that_does_more_than_average_is_refused_before_anything_is_charged(kind, message):
    strategy = LegacyDPFedAvgFixed(averaging(kind), 4, 1.0, 1.0)
    with pytest.raises(ConfigError, match=message):
        serve(strategy, clients(), rounds=1)
    assert strategy.private.rounds_charged == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MessageFedAvg(), TypeError, "must be one of flwr.server.strategy"),
        (lambda: averaging(FedMedian), ConfigError, "FedMedian: does not average"),
        (lambda: averaging(QFedAvg), ConfigError, "QFedAvg: does not average"),
        (lambda: FlowersOwn(averaging(), 4, 1.0), ConfigError, "is private itself"),
        (lambda: LegacyDPFedAvgFixed(averaging(), 4, 1.0), ConfigError, "is private itself"),
        (lambda: averaging(fit_metrics_aggregation_fn=lambda metrics: {}), ConfigError, "fit_metrics_aggregation_fn"),
    ],
)
def test_what_cannot_be_wrapped_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        LegacyDPFedAvgFixed(make(), 4, 1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ((4, 1.0, 0), {}, "noise_multiplier = 0"),
        ((0, 1.0), {}, "num_sampled_clients = 0"),
        ((4, -1.0), {}, "clip_norm = -1.0"),
        ((4, 1.0, 1.0, False), {}, "min_survivors: is missing"),
        ((4, 1.0, 1.0, True), {"min_survivors": 3}, "min_survivors = 3"),
    ],
)
def test_an_argument_that_is_out_of_range_is_named(arguments, more, message):
    with pytest.raises(ValueError, match=message):
        LegacyDPFedAvgFixed(averaging(), *arguments, **more)
