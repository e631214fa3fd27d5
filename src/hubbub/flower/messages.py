"""Who is asked in a round, by which messages, and what of the replies counts: of each client at most one, of this round."""

import hashlib
import logging
import math
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hubbub.errors import ConfigError, ParticipationError
from hubbub.mechanism.participation import Participation, RandomParticipation
from hubbub.training.cohorts import draw, eligible
from hubbub.training.release import ReleasePath

__all__ = [
    "CLIP_NORM",
    "COUNT_SCALE",
    "ENABLED",
    "ENCRYPTED",
    "FAILED_PRECONDITION",
    "LATTICE_BITS",
    "NOISE_STDDEV",
    "NORM_BIT",
    "ROUND_INDEX",
    "Asked",
    "Identity",
    "Node",
    "Template",
    "addressed",
    "clients_of",
    "cohort",
    "connected",
    "encrypted_vector",
    "is_training",
    "norm_bit",
    "records_of",
    "single_arrays",
    "stated_numbers",
    "unheard",
]

# Names of the published design (Flower's DPFedAvg wrappers and their clients).
CLIP_NORM = "dpfedavg_clip_norm"
NOISE_STDDEV = "dpfedavg_noise_stddev"
ENABLED = "dpfedavg_adaptive_clip_enabled"
NORM_BIT = "dpfedavg_norm_bit"
# How the indicator enters the vector, where the clients add the noise or encrypt.
COUNT_SCALE = "dpfedavg_count_scale"
# Of the lattice, where it is not the finest.
LATTICE_BITS = "dpfedavg_lattice_bits"
# Of secure aggregation: the round, from 0, and what a client sends.
ROUND_INDEX = "hubbub_round_index"
ENCRYPTED = "hubbub_encrypted"
# Flower's MOD_FAILED_PRECONDITION: of a mod that cannot keep its word, and of a holder that refuses.
FAILED_PRECONDITION = 6
_LONGEST_REASON = 200
# For each client that was asked.
_MOST_FAULTS = 4
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
# Of a strategy that does not say which part of the nodes it samples.
_LEAST_PART = 0.001
# How long a round waits for the nodes that the wrapped strategy wants to be there.
_PATIENCE = 600.0
_LOG = logging.getLogger("flwr")
_Record = TypeVar("_Record", ArrayRecord, ConfigRecord, MetricRecord)

# By what clients are known for a whole run: their keys, if the grid has any, else the numbers of their nodes.
Identity = Literal["key", "node"]


def is_training(message_type: str) -> bool:
    """Whether messages of a type ask for training: ``"train"`` or ``"train.<action>"``."""
    return message_type.partition(".")[0] == MessageType.TRAIN


@dataclass
class Asked:
    """Who was asked in a round, by messages of its own that no other round's reply can pass for.

    Args:
        messages: One a client.
        clients: The client behind each message.
        reasons: Whether faults repeat what clients say of theirs, which may be of their data.
    """

    messages: list[Message]
    clients: Sequence[str]
    reasons: bool = False
    faults: list[str] = field(default_factory=list)

    def contents(self, replies: Iterable[Message]) -> Iterator[tuple[str, RecordDict]]:
        """The content of the first reply of each client that was asked; what is missing, late or doubled is in ``faults``."""
        by_id, known = dict[str, int](), 0
        by_node = {m.metadata.dst_node_id: i for i, m in enumerate(self.messages)}
        group = self.messages[0].metadata.group_id if self.messages else ""
        seen: set[int] = set()
        for reply in replies:
            metadata = reply.metadata
            # A grid may give the ids one after another, while replies come.
            while known < len(self.messages) and (message_id := self.messages[known].metadata.message_id):
                by_id[message_id], known = known, known + 1
            answers = by_id.get(metadata.reply_to_message_id)
            index = by_node.get(metadata.src_node_id) if answers is None else answers
            if reply.has_error():
                self._fault(
                    index, f"failed (error {reply.error.code}): {reply.error.reason if self.reasons else 'see its log'}"
                )
            elif metadata.group_id != group or index is None or (answers is None and by_id and metadata.reply_to_message_id):
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
        """Note why a reply counts as nothing, without the names that the client gave to what it sent."""
        why = str(error) if self.reasons else _QUOTED.sub("'…'", str(error))
        self._fault(self.clients.index(client), f"{type(error).__name__}: {why}")

    def log_faults(self, where: str) -> None:
        """Log what counts as nothing."""
        for fault in self.faults:
            _LOG.info("%s: counted as nothing: %s", where, fault)

    def _fault(self, index: int | None, why: str) -> None:
        if len(self.faults) >= _MOST_FAULTS * max(1, len(self.messages)):
            # Whoever answers without end fills neither memory nor log.
            return
        who = "a node that was not asked" if index is None else f"node {self.messages[index].metadata.dst_node_id}"
        # What a client sends must not fill the log, nor write lines of its own into it.
        self.faults.append(f"{who}: {why.encode('ascii', 'backslashreplace').decode()[:_LONGEST_REASON]!r}")


@contextmanager
def unheard() -> Iterator[None]:
    """Keep to itself what a wrapped strategy logs of synthetic nodes and of the one synthetic reply, which would mislead."""

    def worth_hearing(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    _LOG.addFilter(worth_hearing)
    try:
        yield
    finally:
        _LOG.removeFilter(worth_hearing)


class Template(Grid):
    """The message that a strategy would send to each of its clients, learnt by a round that it configures for synthetic nodes.

    So whatever it puts into its configuration is kept, and whom it would have sampled is not.
    """

    def __init__(self, grid: Grid, strategy: Strategy) -> None:
        self._grid = grid
        # So many that the part of them that the strategy samples has at least one, and that it waits for no more.
        wanted = [getattr(strategy, name, 1) for name in ("min_available_nodes", "min_train_nodes")]
        self._count = max(*wanted, math.ceil(1 / getattr(strategy, "fraction_train", _LEAST_PART)) + 1)

    def get_node_ids(self) -> Iterable[int]:
        """Stand-ins for nodes."""
        return range(1, self._count + 1)

    @classmethod
    def ask(
        cls, strategy: Strategy, server_round: int, floating: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """What the strategy sends to synthetic nodes in a round."""
        with unheard():
            return list(strategy.configure_train(server_round, floating, config, cls(grid, strategy)))

    @staticmethod
    def content(messages: Sequence[Message], floating: ArrayRecord, arrays: ArrayRecord) -> RecordDict:
        """What each client gets, with all arrays in the place of the floating ones."""
        first = messages[0].content
        if any(message.content is not first and message.content != first for message in messages[1:]):
            raise ConfigError("strategy: sends different messages to different clients; wrap one that averages, such as FedAvg")
        return RecordDict({name: arrays if record is floating else record for name, record in first.items()})

    def set_run(self, run: Any) -> None:
        """That of the grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """That of the grid."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """As the grid does."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """A strategy that talks to clients by itself would see what they send."""
        raise ConfigError("strategy: sends messages while it configures a round; wrap one that averages, such as FedAvg")

    push_messages = pull_messages = send_and_receive = _refuse


def addressed(content: RecordDict, message_type: str, nodes: Mapping[str, int], ttl: float | None) -> Asked:
    """One message to each client's node, under a group that was never used."""
    group = secrets.token_hex(16)
    messages = [Message(content, node, message_type, ttl=ttl, group_id=group) for node in nodes.values()]
    # Of training what a client says may be of its data; of anything else the operator needs it.
    return Asked(messages, list(nodes), reasons=not is_training(message_type))


def records_of(content: RecordDict, kind: type[_Record]) -> list[_Record]:
    """The records of one kind; Flower's own view of them keeps the whole content until Python looks for circles."""
    return [record for record in content.values() if isinstance(record, kind)]


def stated_numbers(asked: Asked, replies: Iterable[Message]) -> list[dict[str, float]]:
    """What each client that was asked says it measured, by name; one that sent no numbers says nothing."""
    return [
        {
            name: value
            for record in records_of(content, MetricRecord)
            for name, value in record.items()
            if not isinstance(value, list)
        }
        for _, content in asked.contents(replies)
    ]


def single_arrays(content: RecordDict) -> ArrayRecord:
    """The only array record of a reply.

    Raises:
        ValueError: No such record, or more than one.
    """
    records = records_of(content, ArrayRecord)
    if len(records) != 1:
        raise ValueError(f"has {len(records)} ArrayRecords, a reply has one")
    return records[0]


def encrypted_vector(content: RecordDict) -> bytes:
    """The encrypted vector of a reply, which has nothing else but how many examples it stands for.

    Raises:
        ValueError: It is missing, or there are arrays in the clear.
    """
    if records_of(content, ArrayRecord):
        raise ValueError("sent arrays in the clear; its app needs encrypting_mod, the first in the list of mods")
    found = [record[ENCRYPTED] for record in records_of(content, ConfigRecord) if ENCRYPTED in record]
    if len(found) != 1 or not isinstance(found[0], bytes):
        raise ValueError("sent no encrypted vector; its app needs encrypting_mod, the first in the list of mods")
    return found[0]


def norm_bit(content: RecordDict) -> int | None:
    """What the client says of its norm; ``None`` where it says nothing.

    Raises:
        ValueError: It is no whole number.
    """
    for record in records_of(content, MetricRecord):
        if NORM_BIT in record:
            value = record[NORM_BIT]
            if isinstance(value, bool) or not isinstance(value, int):
                # Its value may be the client's own, and stays out of the log.
                raise ValueError(f"{NORM_BIT} is {type(value).__name__}: must be a whole number")
            return value
    return None


class Node(NamedTuple):
    """A node that is connected; ``public_key`` is empty if the grid has none."""

    node_id: int
    public_key: bytes


def connected(grid: Grid, wanted: int) -> list[Node]:
    """The nodes that are connected, in order; waits until as many are as are wanted.

    Raises:
        ParticipationError: They did not come.
    """
    deadline = time.monotonic() + _PATIENCE
    while len(nodes := sorted(grid.get_nodes(), key=lambda node: int(node.node_id))) < max(1, wanted):
        if time.monotonic() > deadline:
            raise ParticipationError(
                f"min_available_nodes = {wanted}: {len(nodes)} nodes are connected after {_PATIENCE:g} seconds; start more "
                "SuperNodes, or let the wrapped strategy wait for fewer"
            )
        time.sleep(0.5)
    return [Node(int(node.node_id), bytes(node.public_key or b"")) for node in nodes]


def clients_of(nodes: Sequence[Node], identity: Identity, *, keys_enforced: bool) -> dict[str, int]:
    """The node of each client.

    A client is known by its node's registered public key, so that a restart makes no new client of it. A grid that names no
    keys may stand before a SuperLink that admits registered ones only, which gives a key the same number every time. Of
    several nodes with one key only one can be asked.

    Raises:
        ParticipationError: Keys are enforced, and no node has one.
    """
    if identity == "node":
        return {f"node {node.node_id}": node.node_id for node in nodes}
    found: dict[str, int] = {}
    for node in nodes:
        if node.public_key:
            found["key " + hashlib.sha256(node.public_key).hexdigest()] = node.node_id
        elif not keys_enforced:
            found[f"node {node.node_id}"] = node.node_id
    if not found:
        # Known by its number, a client that took part under its key would be another one.
        raise ParticipationError(
            f"keys_enforced = True: none of {len(nodes)} connected nodes has a public key; start the SuperLink with "
            "--enable-supernode-auth, or, where nothing is promised of who joins when, leave keys_enforced out"
        )
    return found


def cohort(
    participation: Participation, round_index: int, nodes: dict[str, int], size: float, path: ReleasePath
) -> dict[str, int]:
    """The clients that are asked, and the node of each: sampled and never filtered, or ``size`` of those that may join.

    Raises:
        ParticipationError: Nobody that is connected may join the round.
    """
    if isinstance(participation, RandomParticipation):
        chosen = draw(participation, round_index, list(nodes), size, keys=path.cohort_keys, ledger=path.ledger)
    elif not (chosen := eligible(round_index, list(nodes), int(size), keys=path.cohort_keys, ledger=path.ledger)):
        raise ParticipationError(
            f"round {round_index + 1}: none of {len(nodes)} connected clients may join, by {participation}; wait until others "
            "are connected"
        )
    elif len(chosen) < size:
        _LOG.warning("configure_train: only %s of %s clients may join; the noise is that of the full cohort", len(chosen), size)
    return {str(client): nodes[str(client)] for client in chosen}
