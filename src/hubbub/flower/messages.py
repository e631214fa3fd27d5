"""Messages to clients and their replies: settings by name, one reply a client, and the cohort of a round."""

import hashlib
import logging
import math
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NoReturn, TypeVar, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hubbub.errors import ConfigError, ParticipationError
from hubbub.flower.arrays import Layout
from hubbub.mechanism.participation import Participation, RandomParticipation
from hubbub.training.cohorts import draw, eligible
from hubbub.training.release import ReleasePath

# Names of the published design (Flower's DPFedAvg wrappers and their clients).
CLIP_NORM = "dpfedavg_clip_norm"
NOISE_STDDEV = "dpfedavg_noise_stddev"
ENABLED = "dpfedavg_adaptive_clip_enabled"
NORM_BIT = "dpfedavg_norm_bit"
# The scale of the indicator in the vector, if clients add the noise or encrypt.
COUNT_SCALE = "dpfedavg_count_scale"
# The lattice's bits, if it is not the finest.
LATTICE_BITS = "dpfedavg_lattice_bits"
# Of secure aggregation: the round, from 0, and what a client sends.
ROUND_INDEX = "hubbub_round_index"
ENCRYPTED = "hubbub_encrypted"
# Flower's error codes of an app that failed, and of a mod or a holder that refuses.
APP_RAISED, FAILED_PRECONDITION = 2, 6
_LONGEST_REASON = 200
# Faults that are kept, for each client of the cohort.
_MOST_FAULTS = 4
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
# The assumed fraction_train of a strategy that has none.
_LEAST_FRACTION = 0.001
# Seconds that a round waits for the wrapped strategy's min_available_nodes.
_PATIENCE = 600.0
_LOG = logging.getLogger("flwr")
_Record = TypeVar("_Record", ArrayRecord, ConfigRecord, MetricRecord)

# How clients are identified for a whole run: by their nodes' public keys, or by their nodes' numbers.
Identity = Literal["key", "node"]


def is_training(message_type: str) -> bool:
    """Whether messages of a type request training: ``"train"`` or ``"train.<action>"``."""
    return message_type.partition(".")[0] == MessageType.TRAIN


@dataclass
class RoundMessages:
    """The messages of one round, one a client, each with a secret group id, which neither another node nor another round has.

    ``reasons`` says whether faults repeat what clients say of theirs, which may be of their data.
    """

    messages: list[Message]
    clients: Sequence[str]
    reasons: bool = False
    faults: list[str] = field(default_factory=list)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {client: place for place, client in enumerate(self.clients)}

    def contents(self, replies: Iterable[Message]) -> Iterator[tuple[str, RecordDict]]:
        """The first good reply of each client; errors, strangers, and late or second replies go to ``faults``."""
        by_id, known = dict[str, int](), 0
        by_node = {m.metadata.dst_node_id: i for i, m in enumerate(self.messages)}
        seen: set[int] = set()
        for reply in replies:
            metadata = reply.metadata
            # A grid may assign the ids one after another, while replies arrive.
            while known < len(self.messages) and (message_id := self.messages[known].metadata.message_id):
                by_id[message_id], known = known, known + 1
            answers = by_id.get(metadata.reply_to_message_id)
            index = by_node.get(metadata.src_node_id) if answers is None else answers
            if reply.has_error():
                why = reply.error.reason if self.reasons else "see its log"
                self._fault(index, f"failed (error {reply.error.code}): {why}")
            elif index is None or metadata.group_id != self.messages[index].metadata.group_id or (answers is None and by_id):
                self._fault(index, "answers another round, or was not asked")
            elif metadata.src_node_id != self.messages[index].metadata.dst_node_id:
                self._fault(index, "came from another node than was asked")
            elif index in seen:
                self._fault(index, "answered twice; the first answer counts")
            elif not reply.has_content():
                self._fault(index, "sent nothing")
            else:
                seen.add(index)
                yield self.clients[index], reply.content

    def refuse(self, client: str, error: Exception) -> None:
        """Note why a reply is not counted, without the names that the client gave to what it sent."""
        why = str(error) if self.reasons else _QUOTED.sub("'…'", str(error))
        self._fault(self._places[client], f"{type(error).__name__}: {why}")

    def log_faults(self, where: str) -> None:
        """Log the replies that were not counted."""
        for fault in self.faults:
            _LOG.info("%s: counted as nothing: %s", where, fault)

    def _fault(self, index: int | None, why: str) -> None:
        if len(self.faults) >= _MOST_FAULTS * max(1, len(self.messages)):
            # A client that replies endlessly fills neither memory nor log.
            return
        who = "a node that was not asked" if index is None else f"node {self.messages[index].metadata.dst_node_id}"
        # Text of a client must not fill the log, nor write lines of its own into it.
        self.faults.append(f"{who}: {why.encode('ascii', 'backslashreplace').decode()[:_LONGEST_REASON]!r}")


def addressed(content: RecordDict, message_type: str, nodes: Mapping[str, int], wait: float | None) -> RoundMessages:
    """One message to each client's node, whose group id begins with that of the round; ``wait`` is in seconds."""
    # Replies that came in time can still be read when the wait is over.
    ttl = None if wait is None else 2 * wait
    # A SuperLink does not compare a reply with the node that pushes it, and all else in a message can be guessed, its id too.
    group, new = secrets.token_hex(16), secrets.token_hex
    messages = [Message(content, node, message_type, ttl=ttl, group_id=f"{group}-{new(16)}") for node in nodes.values()]
    # What a client says of its training may be of its data; of anything else the operator needs it.
    return RoundMessages(messages, list(nodes), reasons=not is_training(message_type))


class ForwardingGrid:
    """A grid that passes everything to another one but what a subclass replaces."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


# What the wrapped strategy sends to its clients.


class _SyntheticNodes(ForwardingGrid):
    """Nodes that do not exist, for a strategy to configure a round on: enough of them that it samples at least one."""

    def __init__(self, grid: Grid, strategy: Strategy) -> None:
        super().__init__(grid)
        wanted = [getattr(strategy, name, 1) for name in ("min_available_nodes", "min_train_nodes")]
        self._count = max(*wanted, math.ceil(1 / getattr(strategy, "fraction_train", _LEAST_FRACTION)) + 1)

    def get_node_ids(self) -> Iterable[int]:
        """The numbers of the synthetic nodes."""
        return range(1, self._count + 1)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """A strategy that talks to clients by itself would see what they send."""
        raise ConfigError("strategy: sends messages while it configures a round; wrap one that averages, such as FedAvg")

    push_messages = pull_messages = send_and_receive = _refuse


@contextmanager
def quiet_strategy(strategy: Strategy) -> Iterator[None]:
    """Drop what a wrapped strategy logs below a warning: it speaks of synthetic nodes and of the single synthetic reply.

    That reply has no metrics of clients, so that a function of the strategy's user for them is not called.
    """
    function = "train_metrics_aggr_fn"
    before = getattr(strategy, function, None)
    _LOG.addFilter(at_least_warning := lambda record: record.levelno >= logging.WARNING)
    setattr(strategy, function, lambda *_: MetricRecord())
    try:
        yield
    finally:
        setattr(strategy, function, before)
        _LOG.removeFilter(at_least_warning)


def configured(
    strategy: Strategy, server_round: int, floating: ArrayRecord, config: ConfigRecord, grid: Grid
) -> tuple[RecordDict, str] | None:
    """What a strategy sends to each client in a round, and the type of its messages; ``None`` if it asks no client.

    Found on synthetic nodes: its configuration is kept, and its sampling is not.
    """
    with quiet_strategy(strategy):
        messages = list(strategy.configure_train(server_round, floating, config, cast("Grid", _SyntheticNodes(grid, strategy))))
    if not messages:
        return None
    first, kind = messages[0].content, messages[0].metadata.message_type
    if not is_training(kind) or any(message.metadata.message_type != kind for message in messages):
        raise ConfigError(f"strategy: sends messages of type {kind!r}; all must be of one type, 'train' or 'train.<action>'")
    if any(message.content is not first and message.content != first for message in messages[1:]):
        raise ConfigError("strategy: sends different messages to different clients; wrap one that averages, such as FedAvg")
    return first, kind


# What a reply holds.


def records_of(content: RecordDict, kind: type[_Record]) -> list[_Record]:
    """The records of one kind. Flower's own view of them keeps the whole content alive until Python's garbage collection."""
    return [record for record in content.values() if isinstance(record, kind)]


def first_config(content: RecordDict) -> ConfigRecord:
    """The configuration in a message to a client, its first ConfigRecord; an empty one if it has none."""
    return next(iter(records_of(content, ConfigRecord)), ConfigRecord())


def stated_numbers(messages: RoundMessages, replies: Iterable[Message]) -> list[dict[str, float]]:
    """The numbers that each client states in its metrics, by name."""
    found = list[dict[str, float]]()
    for _, content in messages.contents(replies):
        found.append({})
        for record in records_of(content, MetricRecord):
            found[-1].update({name: value for name, value in record.items() if not isinstance(value, list)})
    return found


def single_arrays(content: RecordDict) -> ArrayRecord:
    """The only array record of a message."""
    records = records_of(content, ArrayRecord)
    if len(records) != 1:
        raise ValueError(f"has {len(records)} ArrayRecords, there must be one, the model's")
    return records[0]


def encrypted_vector(content: RecordDict) -> bytes:
    """The encrypted vector of a reply without any arrays in the clear."""
    if records_of(content, ArrayRecord):
        raise ValueError("sent arrays in the clear; its app needs encrypting_mod, the first in the list of mods")
    found = [record[ENCRYPTED] for record in records_of(content, ConfigRecord) if ENCRYPTED in record]
    if len(found) != 1 or not isinstance(found[0], bytes):
        raise ValueError("sent no encrypted vector; its app needs encrypting_mod, the first in the list of mods")
    return found[0]


def norm_bit(content: RecordDict) -> int | None:
    """The indicator that a client states; ``None`` if it states none."""
    for record in records_of(content, MetricRecord):
        if NORM_BIT in record:
            value = record[NORM_BIT]
            if isinstance(value, bool) or not isinstance(value, int):
                # Its value may be the client's own, and stays out of the log.
                raise ValueError(f"{NORM_BIT} is {type(value).__name__}: must be a whole number")
            return value
    return None


def noised_steps(layout: Layout, content: RecordDict, *, counted: bool, mods: str) -> torch.Tensor:
    """The noised steps of a reply, ``(dim,)`` int64, the indicator last if the client is counted."""
    bit = norm_bit(content) if counted else None
    try:
        steps = layout.whole(single_arrays(content))
    except ValueError as error:
        raise ValueError(f"sent no noised numbers; its app needs mods={mods} ({error})") from error
    if counted and bit is None:
        raise ValueError(f"its noised indicator is missing; its app needs mods={mods}")
    return steps if bit is None else torch.cat([steps, torch.tensor([bit], dtype=torch.int64, device="cpu")])


# Who is in a round.


def connected(grid: Grid, wanted: int, setting: str = "min_available_nodes") -> dict[int, bytes]:
    """The connected nodes' public keys, each empty if the grid has none, by ascending number; waits for ``wanted`` nodes.

    Raises:
        ParticipationError: Too few came in time, or the grid says that no other will come; the wrapped strategy's ``setting``
            wants them.
    """
    deadline, said = time.monotonic() + _PATIENCE, -1
    while (count := len(nodes := sorted(grid.get_nodes(), key=lambda node: int(node.node_id)))) < max(1, wanted):
        waits = f"let the wrapped strategy wait for fewer: FedAvg({setting}={count})"
        if getattr(grid, "all_connected", None) is True:
            raise ParticipationError(
                f"{setting} = {wanted}: this grid has {count} nodes, and no other will come; add some, or {waits}"
            )
        if time.monotonic() > deadline:
            raise ParticipationError(
                f"{setting} = {wanted}: {count} nodes are connected after {_PATIENCE:g} seconds; start more, or {waits}"
            )
        if count != said:
            _LOG.info("waiting for %s nodes, at most %g seconds: %s connected", wanted, _PATIENCE, count)
        said = count
        time.sleep(0.5)
    return {int(node.node_id): bytes(node.public_key or b"") for node in nodes}


def clients_of(nodes: Mapping[int, bytes], identity: Identity, *, keys_enforced: bool) -> dict[str, int]:
    """The node of each client.

    A client is identified by its node's registered public key, so that a restart makes no new client of it. Of several nodes
    with one key only one is a client. A grid without keys may belong to a SuperLink that admits registered keys only and gives
    a key the same node number every time.
    """
    if identity == "node":
        return {f"node {node}": node for node in nodes}
    found: dict[str, int] = {}
    for node, key in nodes.items():
        if key:
            found["key " + hashlib.sha256(key).hexdigest()] = node
        elif not keys_enforced:
            found[f"node {node}"] = node
    if not found:
        # Identified by its number, a client that took part under its key would count as another one.
        raise ParticipationError(
            f"keys_enforced = True: none of {len(nodes)} connected nodes has a public key; start the SuperLink with "
            "--enable-supernode-auth, or, if nothing is promised of who joins when, leave keys_enforced out"
        )
    return found


def cohort(
    participation: Participation, round_index: int, nodes: dict[str, int], size: float, path: ReleasePath
) -> dict[str, int]:
    """The cohort of a round with the node of each client: sampled and never filtered, or ``size`` of those that may join."""
    if isinstance(participation, RandomParticipation):
        sampled = draw(participation, round_index, list(nodes), size, keys=path.cohort_keys, ledger=path.ledger)
    elif not (sampled := eligible(round_index, list(nodes), int(size), keys=path.cohort_keys, ledger=path.ledger)):
        raise ParticipationError(
            f"round {round_index + 1}: none of {len(nodes)} connected clients may join, by {participation}; wait until others "
            "are connected"
        )
    elif len(sampled) < size:
        _LOG.warning(
            "configure_train: only %s of %s clients may join; the noise is that of the full cohort", len(sampled), size
        )
    return {str(client): nodes[str(client)] for client in sampled}
