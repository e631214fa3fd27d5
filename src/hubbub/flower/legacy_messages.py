"""Flower's legacy API in the words of the Message API: clients as nodes, results as replies, arrays named by position."""

import hashlib
import time
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.common import FitIns, FitRes, Parameters, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid

from hubbub.errors import ConfigError
from hubbub.flower.arrays import Layout
from hubbub.flower.messages import NORM_BIT

__all__ = ["Clients", "instruction", "named", "positional", "refuse", "reply"]


def named(parameters: Parameters) -> ArrayRecord:
    """The arrays of a model under the names "0", "1", …: as the server has them, so that they are believed."""
    arrays = parameters_to_ndarrays(parameters)
    return ArrayRecord({str(position): Array(np.asarray(array)) for position, array in enumerate(arrays)})


def positional(arrays: ArrayRecord) -> Parameters:
    """The arrays of a model in their order."""
    return Parameters([array.data for array in arrays.values()], "numpy.ndarray")


def instruction(parameters: Parameters, config: ConfigRecord) -> FitIns:
    """What a client is asked in a round, for it alone: it may change its configuration."""
    return FitIns(parameters, {name: value for name, value in config.items() if not isinstance(value, list)})


def reply(group_id: str, node_id: int, result: FitRes, layout: Layout) -> Message:
    """What a client sent back, as the reply of its node: nothing of it is read here, and nothing of it can raise.

    Args:
        group_id: Of the round's messages.
        node_id: Of the client, by :class:`Clients`.
        result: What came.
        layout: Of the model; arrays that are not trained are left out.
    """
    try:
        content = _content(result, layout)
    except Exception:  # noqa: BLE001 # whatever one client sends, the round must not hang on it
        # A reply without arrays, which the sum refuses and counts as nothing.
        content = RecordDict()
    metadata = Metadata(0, "", node_id, 0, "", group_id, time.time(), 1.0, MessageType.TRAIN)
    message: Message = Message(content, metadata=metadata)  # type: ignore[call-overload]
    return message


def _content(result: FitRes, layout: Layout) -> RecordDict:
    parameters, skipped = result.parameters, set(layout.buffers)
    arrays = {
        str(position): Array(dtype="", shape=(), stype=parameters.tensor_type, data=tensor)
        for position, tensor in enumerate(parameters.tensors)
        if str(position) not in skipped
    }
    content = RecordDict({"arrays": ArrayRecord(arrays)})
    if NORM_BIT in result.metrics:
        value: Any = result.metrics[NORM_BIT]
        # Clients of the legacy API say it as a bool, which MetricRecords do not hold.
        content["metrics"] = MetricRecord({NORM_BIT: int(value) if isinstance(value, bool) else value})
    return content


class _Silent(Grid):
    """A grid over which nothing is sent: whoever has it may know the nodes, and no more."""

    def set_run(self, run: Any) -> None:
        return

    @property
    def run(self) -> NoReturn:
        refuse("asks for the run")

    def create_message(self, *_: object, **__: object) -> NoReturn:
        refuse("makes a message")

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        refuse("sends messages")

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:
        refuse("fetches messages")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> NoReturn:
        refuse("sends messages")


class Clients(_Silent):
    """The clients of a manager as nodes of a grid: a node's number follows from what its client calls itself (``cid``).

    Args:
        manager: Knows who is connected.
    """

    def __init__(self, manager: ClientManager) -> None:
        self._manager = manager
        self.proxies: dict[int, ClientProxy] = {}

    @staticmethod
    def node_id(proxy: ClientProxy) -> int:
        """The number of a client's node; of a client on a SuperNode the node's own."""
        known = getattr(proxy, "node_id", None)
        if isinstance(known, int):
            return known
        return int.from_bytes(hashlib.sha256(str(proxy.cid).encode()).digest()[:8], "big") >> 1

    def get_node_ids(self) -> Iterable[int]:
        """Those of the clients that are connected; ``proxies`` has the client behind each."""
        self.proxies = {self.node_id(proxy): proxy for proxy in list(self._manager.all().values())}
        return list(self.proxies)


def refuse(what: str) -> NoReturn:
    """Say what a wrapped strategy does that one that averages does not do."""
    raise ConfigError(f"strategy: {what}; wrap one that averages, such as FedAvg")
