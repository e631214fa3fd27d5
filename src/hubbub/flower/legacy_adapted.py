"""A legacy strategy of Flower in the form of the Message API, so that the code that makes any strategy private wraps it too."""

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import Code, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion
from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hubbub.errors import ConfigError
from hubbub.flower.legacy_messages import named, refuse
from hubbub.flower.messages import single_arrays

__all__ = ["Adapted"]

# Among the arrays that a strategy keeps: how many rounds it has learnt from.
_LEARNT = "learnt"
_Arrays = dict[str, npt.NDArray[Any]]


class Adapted(Strategy):
    """A legacy strategy as one of the Message API, which learns from one noised mean in each round.

    Args:
        strategy: One that averages.

    Attributes:
        parameters: The whole model that the next round sends, buffers among it; who configures a round sets it before.
        kept: The arrays that the strategy keeps from round to round, by attribute and position, and how many rounds it has
            learnt from; put back, it goes on where it was.
    """

    def __init__(self, strategy: LegacyStrategy) -> None:
        self._strategy = strategy
        self.parameters = Parameters([], "numpy.ndarray")
        self.kept: _Arrays = {}
        self.min_available_nodes: int = getattr(strategy, "min_available_clients", 1)
        self.min_train_nodes: int = getattr(strategy, "min_fit_clients", 1)

    def summary(self) -> None:
        """Nothing: a legacy strategy says nothing of itself."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """One message, which the strategy would send to each of its clients.

        Raises:
            ConfigError: It would send different ones, or another model.
        """
        manager = _StandIns(len(list(grid.get_node_ids())))
        asked = [ins for _, ins in self._strategy.configure_fit(server_round, self.parameters, manager)]
        if not asked:
            return []
        first = asked[0]
        if any(ins is not first and ins != first for ins in asked):
            refuse("sends different messages to different clients")
        if first.parameters is not self.parameters and first.parameters != self.parameters:
            refuse("sends another model than the one of the round")
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({**first.config, **config})})
        return [Message(content, 1, MessageType.TRAIN)]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The floating arrays that the strategy makes of the noised mean, as its only result."""
        self._put_back()
        (mean,) = (single_arrays(message.content) for message in replies)
        tensors = list(self.parameters.tensors)
        for name, array in mean.items():
            tensors[int(name)] = array.data
        result = FitRes(Status(Code.OK, ""), Parameters(tensors, "numpy.ndarray"), num_examples=1, metrics={})
        # The strategy's own count: a round that was discarded is none to it. Some begin their momentum in round 1.
        learnt = int(self.kept.get(_LEARNT, np.array(0))) + 1
        made, _ = self._strategy.aggregate_fit(learnt, [(_StandIn(), result)], [])
        self.kept = {**_arrays_of(self._strategy), _LEARNT: np.array(learnt)}
        if made is None:
            return None, None
        record = named(made)
        return ArrayRecord({name: record[name] for name in mean if name in record}), None

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Nothing: the legacy strategy is asked itself."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Nothing: the legacy strategy is asked itself."""

    def _put_back(self) -> None:
        """Give the strategy the arrays that it had; the same as it has, but after a restart."""
        found: dict[tuple[str, str], dict[int, npt.NDArray[Any]]] = {}
        for name, entries in self.kept.items():
            if name != _LEARNT:
                kind, attribute, position = name.split("/")
                found.setdefault((kind, attribute), {})[int(position)] = entries
        for (kind, attribute), parts in found.items():
            if attribute not in vars(self._strategy):
                raise ConfigError(f"strategy: {type(self._strategy).__name__} has no {attribute}; wrap the one of before")
            arrays = [parts[position] for position in sorted(parts)]
            setattr(self._strategy, attribute, arrays if kind == "list" else ndarrays_to_parameters(arrays))


def _arrays_of(strategy: LegacyStrategy) -> _Arrays:
    found: _Arrays = {}
    for attribute, value in vars(strategy).items():
        kind = "parameters" if isinstance(value, Parameters) else "list"
        arrays: list[Any] = parameters_to_ndarrays(value) if isinstance(value, Parameters) else value
        if isinstance(arrays, list) and all(isinstance(entries, np.ndarray | np.generic) for entries in arrays):
            found.update({f"{kind}/{attribute}/{position}": np.asarray(a) for position, a in enumerate(arrays)})
    return found


class _StandIn(ClientProxy):
    """A client that is none: what a strategy would send it is learnt, and it never answers."""

    def __init__(self) -> None:
        super().__init__("stand-in")

    def get_properties(self, ins: Any, timeout: float | None, group_id: int | None) -> NoReturn:
        refuse("asks clients for properties")

    def get_parameters(self, ins: Any, timeout: float | None, group_id: int | None) -> NoReturn:
        refuse("asks clients for parameters")

    def fit(self, ins: Any, timeout: float | None, group_id: int | None) -> NoReturn:
        refuse("lets clients train")

    def evaluate(self, ins: Any, timeout: float | None, group_id: int | None) -> NoReturn:
        refuse("lets clients evaluate")

    def reconnect(self, ins: Any, timeout: float | None, group_id: int | None) -> NoReturn:
        refuse("reconnects clients")


class _StandIns(ClientManager):
    """A manager of stand-ins, so that a strategy says what it would send and not to whom."""

    def __init__(self, count: int) -> None:
        self._clients = [_StandIn() for _ in range(count)]

    def num_available(self) -> int:
        return len(self._clients)

    def register(self, client: ClientProxy) -> bool:
        refuse("registers clients")

    def unregister(self, client: ClientProxy) -> None:
        refuse("dismisses clients")

    def all(self) -> dict[str, ClientProxy]:
        return {str(index): client for index, client in enumerate(self._clients)}

    def wait_for(self, num_clients: int, timeout: int = 0) -> bool:
        return num_clients <= len(self._clients)

    def sample(
        self, num_clients: int, min_num_clients: int | None = None, criterion: Criterion | None = None
    ) -> list[ClientProxy]:
        if criterion is not None:
            refuse("chooses clients by a criterion")
        return list(self._clients[:num_clients])
