"""The server of secure aggregation on a grid: it adds encrypted replies and asks the holders of the key to open the sum.

All holders of shares are asked at once, so that any ``threshold`` true answers open a sum; who is silent or lies is named.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from safetensors.numpy import save
from torch import nn

from hubbub._util import files, strict_json
from hubbub.errors import ConfigError, RunFolderError, SumNotOpenedError
from hubbub.flower import holder_messages as messages
from hubbub.flower.holder_messages import AGREEMENT, FIRST, HELLO, NOISE, OPEN, ROUND, SERIES, claimed, said
from hubbub.flower.messages import (
    COUNT_SCALE,
    FAILED_PRECONDITION,
    LATTICE_BITS,
    ROUND_INDEX,
    RoundMessages,
    addressed,
    encrypted_vector,
)
from hubbub.flower.population import GridPopulation, layout_of
from hubbub.flower.summing import Summing
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.strategies import strategy_arrays
from hubbub.noise.lattice import Lattice
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.key_holder import Opened, combined
from hubbub.secagg.paillier import PublicKey
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import ThresholdKey
from hubbub.training.aggregate import Adversary, Cohort, Population
from hubbub.training.clipping import CountSplit
from hubbub.training.encrypted import EncryptedSum, Steps

# Seconds that all nodes, most of which hold nothing, have to answer a hello.
_HELLO_PATIENCE = 60.0
_LARGEST = 100_000
_LOG = logging.getLogger("flwr")
# What is read from an answer.
_Read = TypeVar("_Read")


class GridHolders:
    """The holders of the key, behind the nodes of a grid, who open the sums of a run."""

    def __init__(
        self,
        grid: Callable[[], Grid],
        agreement: Agreement,
        public: PublicKey | ThresholdKey,
        promise: Promise | None,
        timeout: float,
    ) -> None:
        if public.public_key != agreement.public_key:
            raise ValueError(f"public: is the key {public.public_key.key_id!r}, the agreement is on another")
        self.agreement = agreement
        self._grid, self._key = grid, public
        self._public = public if isinstance(public, ThresholdKey) else None
        self._timeout = timeout
        self._hello: dict[str, bytes] = {}
        if agreement.noising_holders:
            if promise is None or promise.mechanism is None:
                raise ValueError("promise: is missing or promises no privacy, and the holders are to add noise")
            arrays = strategy_arrays(promise.mechanism.strategy)
            contiguous = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
            self._hello = {
                messages.PROMISE: strict_json.canonical({**promise.record(), "kind": "promise"}),
                messages.ARRAYS: save(contiguous),
            }
        elif promise is not None and promise.noise_by == "holders":
            raise ValueError("promise: says that the holders add the noise, and by the agreement none of them does")
        self._nodes: dict[int, int] = {}
        # The grid on which enough holders were found: another start of a run has another one.
        self._reached: Grid | None = None

    def find(self) -> Mapping[int, int]:
        """The number of the share that each node proves to have, by its node, ascending; asks all connected nodes.

        Holders are sent what clients send, so that a claim alone would not do.
        """
        challenge, nodes = token_bytes(messages.CHALLENGE_BYTES), [int(node) for node in self._grid().get_node_ids()]
        hello = {**self._hello, messages.CHALLENGE: challenge}
        claims = self._ask(nodes, HELLO, hello, lambda node, content: claimed(content, self._key, challenge, node))
        self._nodes = {node: number for node, number in sorted(claims.items()) if number}
        return self._nodes

    def reach(self) -> None:
        """Ask all connected nodes what they hold, once a start, before anything is spent."""
        if self._reached is self._grid():
            return
        found, needed = set(self.find().values()), max(self._key.threshold, self.agreement.noising_holders)
        self._reached = self._grid() if len(found) >= needed else None
        if self._reached is None:
            there = f"the holders {', '.join(map(str, sorted(found)))}" if found else "no holder"
            raise SumNotOpenedError(
                f"secagg: {there} of the key {self._key.key_id!r} answered, and {needed} are needed; let the apps of "
                "holders be hold(app), and start their SuperNodes with --node-config 'paillier-share=\"…\"'"
            )

    def add_noise(self, aggregator: Aggregator, clip_norm: float) -> None:
        """Add the noise of every holder to a sum, if they add any."""
        rows = self.agreement.noising_holders
        if len(set(self._nodes.values())) < rows:
            self.find()
        claims = list(self._nodes.values())
        # If two nodes claim one share, it is unknown whose noise it is.
        number_of = {node: number for node, number in self._nodes.items() if number <= rows and claims.count(number) == 1}
        settings = {ROUND: aggregator.round_index, messages.CLIP_NORM: float(clip_norm)}

        def add(node: int, content: RecordDict) -> int:
            aggregator.add_noise(f"holder {number_of[node]}", said(content).get("noise"))
            return number_of[node]

        missing = set(range(1, rows + 1)).difference(self._ask(number_of, NOISE, settings, add).values())
        if missing:
            names = tuple(f"holder {number}" for number in sorted(missing))
            self._nodes = {}
            why = "is missing, or two nodes claim the same share; each sum takes that of every holder"
            raise aggregator.unopened(f"the noise of {', '.join(names)} {why}", names)

    def open(self, aggregator: Aggregator) -> Steps:
        """The opened sum in whole steps, ``(size,)``."""
        if len(set(self._nodes.values())) < self._key.threshold:
            self.find()
        asked, self._nodes = self._nodes, {}
        if self._public is None and len(asked) > 1:
            names = tuple(f"node {node}" for node in asked)
            raise aggregator.unopened(f"{' and '.join(names)} claim the whole key, which has one owner", names)

        def read(node: int, content: RecordDict) -> Opened | None:
            return messages.opened(content, asked[node], aggregator, self._public) if action == OPEN else None

        came: Mapping[int, Opened | None] = dict.fromkeys(asked)
        series = token_bytes(messages.CHALLENGE_BYTES)
        for action, first, records in messages.requests(aggregator.request()):
            # Who missed some of the contributions cannot form the sum.
            place: dict[str, float | bytes] = {ROUND: aggregator.round_index, FIRST: first, SERIES: series}
            came = self._ask(came, action, place, read, records)
        silent = tuple(f"holder {number}" for number in sorted(set(asked.values()) - {asked[node] for node in came}))
        try:
            steps, liars = combined(aggregator, self._public, [answer for answer in came.values() if answer is not None])
        except SumNotOpenedError as error:
            missing = f"; silent: {', '.join(silent)}" if silent else ""
            raise SumNotOpenedError(f"{error}{missing}", (*silent, *error.who)) from error
        for who, what in ((silent, "did not answer"), (liars, "answered falsely")):
            if who:
                _LOG.warning("round %s: opened without %s, who %s", aggregator.round_index + 1, ", ".join(who), what)
        # The others are found again when too few are left: no node that is silent is waited for in each round.
        self._nodes = {node: asked[node] for node in came if f"holder {asked[node]}" not in liars}
        return steps

    def _ask(
        self,
        nodes: Iterable[int],
        action: str,
        settings: Mapping[str, float | bytes],
        read: Callable[[int, RecordDict], _Read],
        records: Mapping[str, ConfigRecord] | None = None,
    ) -> dict[int, _Read]:
        names = {str(node): node for node in nodes}
        if not names:
            return {}
        agreed = strict_json.canonical(self.agreement.record())
        first = ConfigRecord({"action": action, AGREEMENT: agreed, **settings})
        patience = min(self._timeout, _HELLO_PATIENCE) if action == HELLO else self._timeout
        queries = addressed(RecordDict({messages.RECORD: first, **(records or {})}), messages.QUERY, names, patience)
        found: dict[int, _Read] = {}
        for name, answer in queries.contents(self._grid().send_and_receive(queries.messages, timeout=patience)):
            try:
                found[names[name]] = read(names[name], answer)
            except (TypeError, ValueError) as error:
                _LOG.warning("secagg, %s: what node %s answers is refused: %s", action, name, error)
        for fault in queries.faults:
            # Clients hold nothing: their refusals are no news.
            usual = action == HELLO and f"(error {FAILED_PRECONDITION})" not in fault
            _LOG.log(logging.DEBUG if usual else logging.WARNING, "secagg, %s: %s", action, fault)
        return found

    def summing(self, plain: Summing, round_index: int) -> "EncryptedSumming":
        """How the replies of a round are summed."""
        return EncryptedSumming(plain, Aggregator(self.agreement, round_index), self)


@dataclass(frozen=True)
class EncryptedSumming:
    """How the encrypted replies of one round are summed."""

    plain: Summing
    aggregator: Aggregator
    holders: GridHolders

    @property
    def lattice(self) -> Lattice:
        """The lattice of the sum."""
        return self.plain.lattice

    def config(self) -> dict[str, float | bool | str | bytes]:
        """The settings that clients get, to clip and to encrypt."""
        settings: dict[str, float | bool | str | bytes] = {
            **self.plain.config(),
            AGREEMENT: strict_json.canonical(self.aggregator.agreement.record()),
            ROUND_INDEX: self.aggregator.round_index,
            LATTICE_BITS: self.lattice.bits,
        }
        if self.plain.split:
            # The client itself encrypts its indicator.
            settings[COUNT_SCALE] = self.plain.split.count_scale(self.plain.clip_norm)
        return settings

    def of(
        self, messages: RoundMessages, replies: Iterable[Message], _: ArrayRecord | None = None
    ) -> tuple[EncryptedSum, int, int]:
        """The sum of a round; as :meth:`.Summing.of`. Clients are identified by their nodes' numbers."""
        pairs = zip(messages.clients, messages.messages, strict=True)
        nodes = {client: message.metadata.dst_node_id for client, message in pairs}
        came = 0
        for client, content in messages.contents(replies):
            came += 1
            try:
                self.aggregator.add(str(nodes[client]), encrypted_vector(content))
            except Exception as error:  # noqa: BLE001 # whatever one client sends, the round must not depend on it
                messages.refuse(client, error)

        def opened(aggregator: Aggregator) -> Steps:
            # A sum that will not be opened costs the holders no noise.
            aggregator.require_contributions()
            self.holders.add_noise(aggregator, self.lattice.clip_norm)
            return self.holders.open(aggregator)

        return EncryptedSum(self.aggregator, self.lattice, opened, {}), came, len(self.aggregator.senders)


def kept_agreement(folder: Path | None, make: Callable[[str], Agreement], *, rounds: int = 0) -> Agreement:
    """The agreement of a run, under a unique name; the same at every start, or refused, as is a lost one after ``rounds``."""
    path = None if folder is None else folder / "state" / "agreement.json"
    if path is None or not path.exists():
        if rounds:
            raise RunFolderError(
                f"{path}: is missing, and clients and holders know the {rounds} rounds of the ledger by the name in it; "
                "restore it from a copy of the folder"
            )
        agreement = make(token_hex(16))
        if path is not None:
            files.write_atomic(path, strict_json.canonical(agreement.record()))
        return agreement
    with files.refusing(path, "cannot be read", "restore it from a copy of the folder"):
        stored = strict_json.loads(files.read(path, at_most=_LARGEST))
        agreement = make(stored["run"])
    if agreement.record() != stored:
        raise RunFolderError(
            f"{path}: clients and holders agreed on other terms; restore it, or start a new run in a new folder"
        )
    return agreement


class EncryptedGridPopulation(Population):
    """A :class:`.GridPopulation` of clients whose app has ``mods=[encrypting_mod]``: the server reads no single update."""

    def __init__(
        self, population: GridPopulation, holders: GridHolders, *, lattice_bits: int, mechanism: Mechanism | None
    ) -> None:
        self._population, self._holders = population, holders
        self._lattice_bits, self._mechanism = lattice_bits, mechanism

    @property
    def clients(self) -> Sequence[Hashable]:
        """Every client's id, in the order given."""
        return self._population.clients

    @property
    def noise_in_sums(self) -> bool:
        """Whether the sums contain their noise already, from holders or clients."""
        return bool(self._holders.agreement.noising_holders or (self._mechanism and self._mechanism.shares))

    def inject(self, client: Hashable, adversary: Adversary | None) -> None:
        """Let an adversary choose what a client encrypts; see :meth:`.Population.inject`."""
        self._population.inject(client, adversary)

    def collect(
        self, cohort: Cohort, model: nn.Module, clip_norm: float | None, round_index: int, split: CountSplit | None = None
    ) -> EncryptedSum:
        """The sum of the cohort's encrypted updates."""
        if clip_norm is None or split is not None:
            raise ConfigError(f"clip_norm = {clip_norm}: clients encrypt updates of one bounded norm for the whole run")
        plain = Summing(layout_of(model), clip_norm, None, self._mechanism, self._lattice_bits)
        summing = self._holders.summing(plain, round_index)
        sent, replies = self._population.ask(cohort, model, clip_norm, round_index, summing.config())
        total, _, _ = summing.of(sent, replies)
        sent.log_faults(f"round {round_index + 1}")
        # Refuses a sum of nothing, which has no digest.
        _ = summing.aggregator.total
        return total
