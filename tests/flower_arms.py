"""Two libraries behind one interface, hubbub and Flower itself, and a federation in this process to try either on.

So that a check of what a private strategy must do can be run on both.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Before Flower is imported: nothing may leave this machine.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp import strategy as flower_strategies
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from hubbub import Mechanism, MinSeparation
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, LocalGrid, MatrixFactorizationDP, clipping_mod, noising_mod
from hubbub.mechanism.strategies import toeplitz

Model = Mapping[str, npt.ArrayLike]
Entries = dict[str, npt.NDArray[Any]]
# From what a client gets, and which one it is, to what it trained.
Training = Callable[[Entries, int], Model]
SEED = 7


def record(model: Model) -> ArrayRecord:
    """A model as Flower carries it."""
    return ArrayRecord({name: Array(np.asarray(entries)) for name, entries in model.items()})


def entries(arrays: ArrayRecord) -> Entries:
    return {name: array.numpy() for name, array in arrays.items()}


def averaging(clients: int) -> FedAvg:
    """Flower's own average over so many clients, all of them asked in each round."""
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)


def fixed(clients: int = 10, **settings: Any) -> DPFedAvgFixed:
    """Ours over so many clients, with a clip norm and noise of 1, but for these settings."""
    usual = {"clip_norm": 1.0, "noise_multiplier": 1.0, "num_sampled_clients": clients}
    return DPFedAvgFixed(averaging(clients), **{**usual, **settings})


def adaptive(clients: int = 10, **settings: Any) -> DPFedAvgAdaptive:
    usual = {"initial_clip_norm": 1.0, "noise_multiplier": 1.0, "num_sampled_clients": clients}
    return DPFedAvgAdaptive(averaging(clients), **{**usual, **settings})


def separated(state: Path | None = None, *, rounds: int = 12, **more: Any) -> MatrixFactorizationDP:
    """Three clients a round, each in every third round at most."""
    mechanism = Mechanism(toeplitz.square_root(rounds, bands=3), MinSeparation(3, 4), noise_multiplier=1.0)
    settings = {"clip_norm": 1.0, "num_sampled_clients": 3, "keys_enforced": True, "state": state, **more}
    return MatrixFactorizationDP(FedAvgM(server_momentum=0.9), mechanism=mechanism, **settings)


def training_app(
    training: Training, metrics: Callable[[int], Mapping[str, float]] = lambda index: {}, mods: Iterable[Any] = ()
) -> ClientApp:
    """An app whose clients train as they are told, each by its partition, and say these metrics."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        index = int(context.node_config.get("partition-id", 0))
        told = MetricRecord({"num-examples": 1, **metrics(index)})
        trained = record(training(entries(message.content["arrays"]), index))
        return Message(RecordDict({"arrays": trained, "metrics": told}), reply_to=message)

    return app


def returning(model: Model, **records: Any) -> Callable[[Message, Context], Message]:
    """What a client's app is at its end: it answers every message with this model and these records."""
    return lambda message, context: Message(RecordDict({"arrays": record(model), **records}), reply_to=message)


@dataclass
class Federation:
    """Clients that train as they are told, and a strategy that asks them.

    Args:
        clients: How many there are.
        training: What each does.
        metrics: What each says beside its arrays; ``num-examples`` is 1 where it says nothing else.
        silent: Indices of those that do not answer.
        mods: Of the ClientApp.
    """

    clients: int
    training: Training
    metrics: Callable[[int], Mapping[str, float]] = lambda index: {}
    silent: Iterable[int] = ()
    mods: Iterable[Any] = ()
    rounds: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.grid = LocalGrid(training_app(self.training, self.metrics, self.mods), self.clients)
        self.grid.offline(self.grid.get_node_ids()[index] for index in self.silent)

    def ask(self, strategy: Strategy, model: Model) -> list[Message]:
        self.rounds += 1
        return self.grid.send_and_receive(strategy.configure_train(self.rounds, record(model), ConfigRecord(), self.grid))

    def round(self, strategy: Strategy, model: Model) -> tuple[Entries, dict[str, Any]]:
        """The model and the metrics that a further round releases; the old model where none is released."""
        arrays, metrics = strategy.aggregate_train(self.rounds, self.ask(strategy, model))
        return entries(arrays or record(model)), dict(metrics or {})


class Told(LocalGrid):
    """A grid of which a test says which nodes there are, and by which keys."""

    told: Sequence[tuple[int, bytes]] = ()

    def get_nodes(self) -> Iterator[Any]:
        return (SimpleNamespace(node_id=number, public_key=key) for number, key in self.told)


def told(*nodes: tuple[int, bytes]) -> Told:
    """Twelve nodes that answer nothing, of which these are seen."""
    made = Told(ClientApp(), num_nodes=12)
    made.told = nodes
    return made


class Hubbub:
    """Ours. The two arms answer alike; a seed makes the noise of a strategy the same each time it is made."""

    name = "hubbub"
    # What its documentation says a client that clips needs.
    clipping_mod = staticmethod(clipping_mod)

    def fixed(self, strategy: Strategy, *, clients: int, seed: int | None = None, **more: Any) -> DPFedAvgFixed:
        return DPFedAvgFixed(strategy, num_sampled_clients=clients, simulation_seed=seed, **more)

    # Fixed clipping that the clients are asked to do.
    trusting = fixed

    def adaptive(self, strategy: Strategy, *, clients: int, seed: int | None = None, **more: float) -> DPFedAvgAdaptive:
        """Adaptive clipping at the server; ``more``: noise_multiplier, start, quantile, rate."""
        names = {"start": "initial_clip_norm", "quantile": "target_quantile", "rate": "clip_norm_learning_rate"}
        options: dict[str, Any] = {names.get(name, name): value for name, value in more.items()}
        return DPFedAvgAdaptive(strategy, num_sampled_clients=clients, simulation_seed=seed, **options)

    # Adaptive clipping where the clients say whether they clipped.
    counting = adaptive

    def clip_norm(self, strategy: Any) -> float:
        return float(strategy.clip_norm)

    def said(self, *, clipped: bool) -> dict[str, int]:
        return {"dpfedavg_norm_bit": int(not clipped)}

    def shared_noise(self, dim: int, clients: int, clip_norm: float, noise_multiplier: float) -> npt.NDArray[np.float64]:
        noise = {"noise_multiplier": noise_multiplier, "noise_at": "clients", "min_survivors": clients}
        strategy = self.fixed(averaging(clients), clip_norm=clip_norm, clients=clients, **noise)
        federation = Federation(clients, lambda model, index: model, mods=[noising_mod, clipping_mod])
        return federation.round(strategy, {"w": np.zeros(dim)})[0]["w"] * clients

    def local(self, dim: int, clip_norm: float, epsilon: float, delta: float) -> tuple[float, npt.NDArray[np.float64]]:
        # The epsilon is what is promised: the noise is looked for.
        low, high = 1e-3, 1e3
        while high / low > 1.0001:
            middle = (low * high) ** 0.5
            promise = fixed(1, noise_multiplier=middle)
            low, high = (low, middle) if promise.guarantee(delta, rounds=1).epsilon <= epsilon else (middle, high)
        return epsilon, self.shared_noise(dim, 1, clip_norm, high)


class Flower:
    name = "Flower's own"
    clipping_mod = staticmethod(fixedclipping_mod)

    def fixed(
        self, strategy: Strategy, *, clip_norm: float, noise_multiplier: float, clients: int, seed: int | None = None, **_: Any
    ) -> Strategy:
        self._seed(seed)
        return flower_strategies.DifferentialPrivacyServerSideFixedClipping(strategy, noise_multiplier, clip_norm, clients)

    def _seed(self, seed: int | None) -> None:
        """Its noise comes from NumPy's global generator."""
        if seed is not None:
            np.random.seed(seed)  # noqa: NPY002 # as it is

    def trusting(self, strategy: Strategy, *, clip_norm: float, noise_multiplier: float, clients: int) -> Strategy:
        return flower_strategies.DifferentialPrivacyClientSideFixedClipping(strategy, noise_multiplier, clip_norm, clients)

    def adaptive(
        self, strategy: Strategy, *, noise_multiplier: float, clients: int, seed: int | None = None, **more: float
    ) -> Strategy:
        start, rate = more.get("start", 0.1), more.get("rate", 0.2)
        # Its quantile is that of the updates that shall be clipped.
        clipped = 1 - more.get("quantile", 0.5)
        self._seed(seed)
        wrap = flower_strategies.DifferentialPrivacyServerSideAdaptiveClipping
        return wrap(strategy, noise_multiplier, clients, start, clipped, rate)

    def counting(self, strategy: Strategy, *, noise_multiplier: float, clients: int) -> Strategy:
        return flower_strategies.DifferentialPrivacyClientSideAdaptiveClipping(strategy, noise_multiplier, clients)

    def clip_norm(self, strategy: Any) -> float:
        return float(strategy.clipping_norm)

    def said(self, *, clipped: bool) -> dict[str, int]:
        return {"norm_bit": int(clipped)}

    def shared_noise(self, dim: int, clients: int, clip_norm: float, noise_multiplier: float) -> npt.NDArray[np.float64]:
        # Of its legacy API, the only one of its strategies whose clients add noise.
        from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
        from flwr.compat.client.dpfedavg_numpy_client import DPFedAvgNumPyClient
        from flwr.server.strategy import DPFedAvgFixed as LegacyFixed
        from flwr.server.strategy import FedAvg as LegacyFedAvg

        class Client(DPFedAvgNumPyClient):
            """Trains next to nothing: an update of exactly zero would crash it."""

            def __init__(self) -> None:
                self.client = self

            def fit(self, parameters: Any, config: Any) -> Any:
                return [p + 1e-9 for p in parameters], 1, {}

        strategy = LegacyFixed(LegacyFedAvg(), clients, clip_norm, noise_multiplier, server_side_noising=False)
        config = {"dpfedavg_clip_norm": clip_norm, "dpfedavg_noise_stddev": strategy._calc_client_noise_stddev()}
        results = []
        for _ in range(clients):
            trained = DPFedAvgNumPyClient.fit(Client(), [np.zeros(dim)], config)[0]
            results.append((None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(trained), 1, {})))
        mean = parameters_to_ndarrays(strategy.aggregate_fit(1, results, [])[0])[0]  # type: ignore[arg-type]
        return mean * clients

    def local(self, dim: int, clip_norm: float, epsilon: float, delta: float) -> tuple[float, npt.NDArray[np.float64]]:
        mod = LocalDpMod(clip_norm, clip_norm, epsilon, delta)
        federation = Federation(1, lambda model, index: {"w": model["w"] + 1e-9}, mods=[mod])
        return epsilon, federation.round(averaging(1), {"w": np.zeros(dim)})[0]["w"]


Arm = Hubbub | Flower
OURS, FLOWERS = Hubbub(), Flower()
