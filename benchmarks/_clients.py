"""A grid in this process whose clients answer when their replies are pulled, each with another update."""

import itertools
import math
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from hubbub.flower import LocalGrid


class Clients(Grid):
    """So many clients of a model with one array, ``w``; ``making`` is the CPU seconds that their replies took.

    Args:
        count: Of clients.
        dim: Numbers in the model.
        norm: Of an update, about.
    """

    run = None

    def __init__(self, count: int, dim: int, norm: float) -> None:
        # Gives the process the identity of a server.
        LocalGrid(ClientApp(), num_nodes=1)
        torch.set_num_threads(1)
        self._count, self._dim, self._ids = count, dim, itertools.count(1)
        self._updates = np.random.default_rng(0).normal(scale=norm / math.sqrt(dim), size=dim + 64).astype(np.float32)
        self._waiting: dict[str, Message] = {}
        self.making = 0.0

    def _reply(self, message: Message) -> Message:
        begin = time.process_time()
        sent, at = message.content["arrays"]["w"].numpy(), message.metadata.dst_node_id % 64
        content = RecordDict({"arrays": ArrayRecord({"w": Array(sent + self._updates[at : at + self._dim])})})
        made = Message(content, reply_to=message)
        self.making += time.process_time() - begin
        return made

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Give each an id."""
        given = []
        for message in messages:
            given.append(f"{next(self._ids)}")
            message.metadata.__dict__["_message_id"] = given[-1]
            self._waiting[given[-1]] = message
        return given

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies, made now."""
        return [self._reply(self._waiting.pop(i)) for i in message_ids if i in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All at once."""
        return self.pull_messages(self.push_messages(messages))

    def get_nodes(self) -> list[Any]:
        """All of them."""
        return [SimpleNamespace(node_id=node, public_key=b"") for node in self.get_node_ids()]

    def get_node_ids(self) -> list[int]:
        """From 1."""
        return list(range(1, self._count + 1))

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        """Nobody asks for it."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        """There is none."""
