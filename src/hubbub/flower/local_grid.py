"""A Flower federation in this process: the real ClientApp with its mods, the real ServerApp, and the messages between them.

Records are serialised on their way as on a network, so that neither side can change the other's. There are no further
processes, no ports, no waiting, and no Ray.
"""

import copy
import hashlib
import logging
from collections.abc import Callable, Iterable
from functools import partial, reduce
from itertools import count
from types import SimpleNamespace
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

# Not public, but without it Flower makes no message outside of the processes that it started itself.
from flwr.supercore.task_identity import TaskIdentity

from hubbub._util import checks as _checks
from hubbub.errors import ConfigError
from hubbub.flower.messages import APP_RAISED, is_training
from hubbub.flower.mods import App

# Flower's node id of the SuperLink, for which a ServerApp sends; also the id of this process's run and task.
_SERVER = 1
# Far from the indices of nodes and partitions, so that a mix-up of both finds no data.
_FIRST_NODE = 1001
# Further error codes of Flower; the last is of a ClientApp that ended without a reply that can be sent.
_NODE_UNAVAILABLE, _APP_CRASHED = 5, 8
_log = logging.getLogger("flwr")

# One message, several, or none.
Reply = Message | list[Message] | None


class LocalGrid(Grid):
    """A federation of ``num_nodes`` connected nodes, which answer one after another, in the order of the messages.

    The nodes have the same ids and keys in every grid. Each keeps its own ``Context`` as long as the grid exists: a new grid is
    a new run. ``timeout`` and the time to live of a message have no effect.

    Clients draw from the process's global generators (Python, NumPy, torch) as the server does: seeding those repeats a run.

    Flower's ``Message()`` needs an identity of the process; a grid sets one if there is none.

    Args:
        client_app: What runs on every node.
        num_nodes: At least 1.
        node_config: From a node's index, from 0, to its ``context.node_config``; by default ``partition-id`` and
            ``num-partitions``, as in Flower's simulation.
        run_config: ``context.run_config`` of every node and of the ServerApp.
        keys: Whether nodes have public keys: 32 bytes each, since nothing is signed here.

    Attributes:
        reply_filter: For tests: called with every reply, returns what arrives in its place: nothing, one or several messages.

    Example:
        >>> from flwr.app import ConfigRecord
        >>> app = ClientApp()
        >>> @app.query()
        ... def greet(message, context):
        ...     about = ConfigRecord({"partition": context.node_config["partition-id"]})
        ...     return Message(RecordDict({"about": about}), reply_to=message)
        >>> grid = LocalGrid(app, num_nodes=2)
        >>> replies = grid.send_and_receive(Message(RecordDict(), node, "query") for node in grid.get_node_ids())
        >>> [reply.content["about"]["partition"] for reply in replies]
        [0, 1]
    """

    # Nobody need wait for more nodes.
    all_connected = True

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int = 100,
        node_config: Callable[[int], UserConfig] | None = None,
        run_config: UserConfig | None = None,
        keys: bool = True,
    ) -> None:
        if not isinstance(client_app, ClientApp):
            raise TypeError(f"client_app = {_checks.shown(client_app)}: must be a flwr.clientapp.ClientApp")
        nodes = _checks.integer("num_nodes", num_nodes, at_least=1)
        for name in ("run_id", "node_id", "task_id"):
            try:
                getattr(TaskIdentity, name)
            except RuntimeError:
                setattr(TaskIdentity, name, _SERVER)
        self._offline: frozenset[int] = frozenset()
        self.reply_filter: Callable[[Message], Reply] | None = None
        self._client_app = client_app
        self._node_ids = range(_FIRST_NODE, _FIRST_NODE + nodes)
        self._node_config = node_config or (lambda index: {"partition-id": index, "num-partitions": nodes})
        self._run_config = dict(run_config or {})
        self._keys = keys
        self._run: Any = SimpleNamespace(run_id=TaskIdentity.run_id, override_config=self._run_config)
        self._contexts: dict[int, Context] = {}
        self._replies: dict[str, list[Message]] = {}
        self._crafted: dict[int, App] = {}
        self._message_ids = map(str, count(1))

    def run_app(self, server_app: ServerApp, run_config: UserConfig | None = None) -> Context:
        """Run a ServerApp to its end, as ``flwr run`` does.

        Args:
            server_app: Its ``main`` gets this grid.
            run_config: What the ServerApp sees in place of the grid's.

        Returns:
            The context of ``main``, whose ``state`` may hold results.
        """
        if not isinstance(server_app, ServerApp):
            raise TypeError(f"server_app = {_checks.shown(server_app)}: must be a flwr.serverapp.ServerApp")
        config = dict(self._run_config if run_config is None else run_config)
        context = Context(TaskIdentity.run_id, _SERVER, {}, RecordDict(), config)
        server_app(self, context)
        return context

    def offline(self, node_ids: Iterable[int]) -> None:
        """Let these nodes, and no others, never answer.

        Raises:
            ValueError: The grid has no such node.
        """
        silent = frozenset(node_ids)
        self._require_nodes("node_ids", silent)
        self._offline = silent

    def craft(self, node_id: int, answer: App | None) -> None:
        """Replace the app's training function on one node by ``answer``, within the app's mods.

        The mods of ``ClientApp(mods=[...])`` clip, noise or encrypt its reply as the app's; mods of a single function are
        replaced with that function. ``None`` restores the app.

        Raises:
            ValueError: The grid has no such node.
            ConfigError: This version of Flower does not show an app's mods.
        """
        self._require_nodes("node_id", {node_id})
        mods = getattr(self._client_app, "_mods", None)
        if not isinstance(mods, list):
            raise ConfigError("craft: this version of Flower does not show the mods of a ClientApp, within which to answer")
        self._crafted.pop(node_id, None)
        if answer is not None:
            self._crafted[node_id] = reduce(lambda inner, mod: partial(mod, call_next=inner), reversed(mods), answer)

    def _require_nodes(self, name: str, node_ids: Iterable[int]) -> None:
        if unknown := sorted(set(node_ids).difference(self._node_ids)):
            nodes = f"{self._node_ids[0]} to {self._node_ids[-1]}"
            raise ValueError(f"{name} = {unknown[0]!r}: not in this grid, whose nodes are {nodes}")

    @property
    def run(self) -> Any:
        """The run: ``run_id`` and ``override_config``, or the argument of :meth:`set_run`."""
        return self._run

    def set_run(self, run: Any) -> None:
        """Replace :attr:`run`; messages keep the run id of the process."""
        self._run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node; Flower has deprecated this method."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The ids of all nodes, ascending: the node at index i has partition i."""
        return list(self._node_ids)

    def get_nodes(self) -> list[Any]:
        """Flower's ``NodeInfo`` of all nodes, by ascending id: ``node_id``, and ``public_key`` as bytes, empty without keys."""
        nodes = list(super().get_nodes())
        for index, node in enumerate(nodes):
            node.status = "online"
            if self._keys:
                node.public_key = hashlib.sha256(f"LocalGrid node {index}".encode()).digest()
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send the messages to their nodes, which answer at once, in order.

        Returns:
            The ids by which :meth:`pull_messages` finds the replies.

        Raises:
            ValueError, TypeError: A message is none, is a reply, or cannot be serialised; no node has run yet.
        """
        messages = list(messages)
        for message in messages:
            if not isinstance(message, Message):
                raise TypeError(f"messages: {_checks.shown(message)} is not a flwr.app.Message")
            if not message.has_content() or message.metadata.reply_to_message_id:
                to = message.metadata.dst_node_id
                raise ValueError(f"messages: the one to node {to} is a reply; only the nodes reply here")
        # Messages share their records: these are serialised once, before any node runs.
        arrived = {key: received(content) for key, content in {id(m.content): m.content for m in messages}.items()}
        message_ids = []
        for message in messages:
            message_ids.append(_stamp(message, next(self._message_ids)))
            if message.metadata.dst_node_id not in self._offline:
                self._replies[message_ids[-1]] = self._ask(message, arrived[id(message.content)])
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages that were not pulled yet, in order; none from a node that does not answer."""
        return [reply for message_id in message_ids for reply in self._replies.pop(message_id, ())]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push the messages and pull the replies, in the order of the messages."""
        return self.pull_messages(self.push_messages(messages))

    def _ask(self, message: Message, content: RecordDict) -> list[Message]:
        if message.metadata.dst_node_id in self._node_ids:
            reply = self._answer(message, content)
        else:
            reply = Message(Error(_NODE_UNAVAILABLE, "the grid has no such node"), reply_to=message)
            # The SuperLink answers in the place of a missing node.
            reply.metadata.__dict__["_src_node_id"] = _SERVER
        if reply is None:
            return []
        _stamp(reply, next(self._message_ids))
        arriving = reply if self.reply_filter is None else self.reply_filter(reply)
        return arriving if isinstance(arriving, list) else [arriving] if arriving else []

    def _answer(self, message: Message, content: RecordDict) -> Message | None:
        """The ClientApp's reply, or the error that a SuperNode makes of its exception."""
        node_id = message.metadata.dst_node_id
        if node_id not in self._contexts:
            config = dict(self._node_config(node_id - _FIRST_NODE))
            self._contexts[node_id] = Context(TaskIdentity.run_id, node_id, config, RecordDict(), dict(self._run_config))
        crafted = self._crafted.get(node_id) if is_training(message.metadata.message_type) else None
        try:
            # A copy of its own, which the app may change in place.
            arrived = Message(copy.deepcopy(content), node_id, message.metadata.message_type)
            arrived.metadata.__dict__.update(message.metadata.__dict__)
            answer: object = (crafted or self._client_app)(arrived, self._contexts[node_id])
        except Exception as error:  # noqa: BLE001 # whatever a ClientApp raises is an error reply, as on a SuperNode
            _log.error("ClientApp raised an exception", exc_info=error)
            return Message(Error(APP_RAISED, f"{type(error)}:<'{error}'>"), reply_to=message)
        return _returned(answer, message)


def received(content: RecordDict) -> RecordDict:
    """Records after serialisation, as the other side gets them."""
    found: dict[str, Any] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            # The constructor refuses fields that cannot be sent; they may have been changed since.
            arrays = {key: Array(a.dtype, tuple(a.shape), a.stype, a.data) for key, a in record.items()}
            found[name] = ArrayRecord(arrays)
        else:
            found[name] = type(record).inflate(record.deflate())
    return RecordDict(found)


def _returned(answer: object, message: Message) -> Message | None:
    """A ClientApp's answer as the server gets it; none if it is in another node's name, as at a SuperLink."""
    if not isinstance(answer, Message):
        reason = f"the ClientApp returned {type(answer).__name__}, not a Message"
        return Message(Error(_APP_CRASHED, reason), reply_to=message)
    own, query = answer.metadata, message.metadata
    # A SuperLink checks these two ids.
    if (own.reply_to_message_id, own.src_node_id) != (query.message_id, query.dst_node_id):
        return None
    try:
        sent = Error(answer.error.code, answer.error.reason) if answer.has_error() else received(answer.content)
        reply = Message(sent, reply_to=message)
        # A SuperLink does not check these.
        reply.metadata.group_id = own.group_id
        reply.metadata.message_type = own.message_type
    except (TypeError, ValueError) as error:
        return Message(Error(_APP_CRASHED, f"the ClientApp's reply cannot be sent: {error}"), reply_to=message)
    return reply


def _stamp(message: Message, message_id: str) -> str:
    message.metadata.__dict__["_message_id"] = message_id
    return message_id
