"""The server's side of secure aggregation on a grid: what was agreed, how replies become a sum, who holds the key and opens it.

A holder that is silent or lies is named, and another one asked in its place as long as there are any.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from safetensors.numpy import save
from torch import nn

from hubbub._util import files, strict_json
from hubbub._util.checks import positive
from hubbub.errors import ConfigError, RunFolderError, SumNotOpenedError
from hubbub.flower.holders import ARRAYS, CLIP_NORM, NOISE, OPEN, PROMISE, ROUND, opened, request_records
from hubbub.flower.messages import (
    AGREEMENT,
    COUNT_SCALE,
    FAILED_PRECONDITION,
    HELLO,
    LATTICE_BITS,
    NOISE_STDDEV,
    QUERY,
    RECORD,
    ROUND_INDEX,
    Asked,
    Held,
    addressed,
    encrypted_vector,
    said,
)
from hubbub.flower.population import GridPopulation
from hubbub.flower.secagg import Paillier
from hubbub.flower.server_run import Summing
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.strategies.record import strategy_arrays
from hubbub.noise.lattice import Lattice
from hubbub.noise.steps import share_stddev
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.key_holder import Opened, combined
from hubbub.secagg.packing import Packing
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import ThresholdKey
from hubbub.training.aggregate import Adversary, Population
from hubbub.training.clipping import CountSplit
from hubbub.training.encrypted import EncryptedSum, Opening, Steps
from hubbub.training.encryption import Encryption

__all__ = [
    "EncryptedGridPopulation",
    "EncryptedRounds",
    "EncryptedSumming",
    "GridHolders",
    "added",
    "kept_agreement",
    "told_of",
]

# How long all nodes, most of which hold nothing, are waited for.
_HELLO_PATIENCE = 60.0
_LARGEST = 100_000
_LOG = logging.getLogger("flwr")


class GridHolders:
    """The holders of the key, behind the nodes of a grid."""

    def __init__(
        self,
        grid: Callable[[], Grid],
        agreement: Agreement,
        public: ThresholdKey | None,
        promise: Promise | None,
        timeout: float,
    ) -> None:
        if public is not None and public.public_key != agreement.public_key:
            raise ValueError(f"public: is the key {public.public_key.key_id!r}, the agreement is on another")
        self._grid, self._agreement, self._public = grid, agreement, public
        self._timeout = positive("timeout", timeout)
        self._key_id = agreement.public_key.key_id if public is None else public.key_id
        self._hello: dict[str, bytes] = {}
        if agreement.noising_holders:
            if promise is None or promise.mechanism is None:
                raise ValueError("promise: is missing or promises no privacy, and the holders are to add noise")
            arrays = strategy_arrays(promise.mechanism.strategy)
            contiguous = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
            self._hello = {PROMISE: strict_json.canonical({**promise.record(), "kind": "promise"}), ARRAYS: save(contiguous)}
        elif promise is not None and promise.noise_by == "holders":
            raise ValueError("promise: says that the holders add the noise, and by the agreement none of them does")
        self._nodes: dict[int, list[int]] = {}

    def find(self) -> Mapping[int, tuple[int, ...]]:
        """The nodes that say that they hold each share, by its number, ascending; all that are connected are asked."""
        nodes = {str(int(node)): int(node) for node in self._grid().get_node_ids()}
        found: dict[int, list[int]] = {}
        for node, content in self._ask(nodes, HELLO, {**self._hello}, {}):
            try:
                held = Held.of(content)
            except (TypeError, ValueError) as error:
                _LOG.warning("node %s: says nothing that can be read of what it holds: %s", node, error)
                continue
            if held.holder and held.key_id == self._key_id and held.holder <= (self._public.holders if self._public else 1):
                found.setdefault(held.holder, []).append(int(node))
        self._nodes = {number: sorted(found[number]) for number in sorted(found)}
        return {number: tuple(some) for number, some in self._nodes.items()}

    def require_there(self) -> None:
        """Ask all connected nodes what they hold, before anything is charged."""
        found, needed = self.find(), max(self._public.threshold if self._public else 1, self._agreement.noising_holders)
        if len(found) >= needed:
            return
        there = f"the holders {', '.join(map(str, found))}" if found else "no holder"
        raise SumNotOpenedError(
            f"secagg: {there} of the key {self._key_id!r} answered, and {needed} are needed; let the apps of "
            "holders be hold(app), and start their SuperNodes with --node-config 'paillier-share=\"…\"'"
        )

    def add_noise(self, aggregator: Aggregator, clip_norm: float) -> None:
        """Add the noise of every holder to a sum."""
        self._find_where_missing(self._agreement.noising_holders)
        numbers = range(1, self._agreement.noising_holders + 1)
        # Of two that claim one share nobody can tell whose noise it is.
        nodes = {str(n): self._nodes[n][0] for n in numbers if len(self._nodes.get(n, ())) == 1}
        told: dict[str, int | float] = {ROUND: aggregator.round_index, CLIP_NORM: float(clip_norm)}
        missing = set(numbers)
        for number, content in self._ask(nodes, NOISE, {**told}, {}):
            name = f"holder {number}"
            try:
                aggregator.add_noise(name, said(content).get("noise"))
                missing.discard(int(number))
            except (TypeError, ValueError) as error:
                _LOG.warning("%s: its noise is refused: %s", name, error)
        if missing:
            names = tuple(f"holder {number}" for number in sorted(missing))
            self._nodes = {}
            raise SumNotOpenedError(
                f"round {aggregator.round_index + 1}: the noise of {', '.join(names)} is missing, or two nodes claim the "
                "same share; each sum takes that of every holder",
                names,
            )

    def noised(self, aggregator: Aggregator, lattice: Lattice) -> Steps:
        """What a sum says, in whole steps, after the holders added their noise, where they do."""
        if self._agreement.noising_holders:
            self.add_noise(aggregator, lattice.clip_norm)
        return self.open(aggregator)

    def open(self, aggregator: Aggregator) -> Steps:
        """What a sum says, ``(size,)`` whole steps, from as many holders as it takes."""
        request, where = aggregator.request(), f"round {aggregator.round_index + 1}"
        needed = self._public.threshold if self._public else 1
        self._find_where_missing(needed)
        waiting = self._claims(where)
        answers: dict[int, Opened] = {}
        silent, liars = list[str](), list[str]()
        while True:
            batch = _next(waiting, needed - len(answers), set(answers))
            if not batch:
                self._nodes = {}
                what = "".join(f"; {what}: {', '.join(who)}" for what, who in (("silent", silent), ("false", liars)) if who)
                raise SumNotOpenedError(
                    f"{where}: {len(answers)} of {needed} holders that it takes opened the sum{what}", (*silent, *liars)
                )
            waiting = [one for one in waiting if one not in batch]
            came = self._opened(batch, aggregator, request_records(request))
            answers.update(came)
            silent += [f"holder {number}" for number, _ in batch if number not in came]
            if len(answers) < needed:
                continue
            try:
                steps, _ = combined(aggregator, self._public, answers.values())
            except SumNotOpenedError as error:
                false = [number for number in answers if f"holder {number}" in error.who]
                if not false:
                    raise
                liars += [f"holder {number}" for number in false]
                answers = {number: answer for number, answer in answers.items() if number not in false}
                continue
            for who, what in ((silent, "did not answer"), (liars, "answered falsely")):
                if who:
                    _LOG.warning("%s: opened without %s, who %s", where, ", ".join(who), what)
            # Whoever did not help is asked again when others are missing.
            self._nodes = {
                number: nodes for number, nodes in self._nodes.items() if f"holder {number}" not in {*silent, *liars}
            }
            return steps

    def _claims(self, where: str) -> list[tuple[int, int]]:
        """Each share and a node that says that it holds it."""
        claims = [(number, node) for number, nodes in self._nodes.items() for node in nodes]
        if self._public is None and len(claims) > 1:
            names = tuple(f"node {node}" for _, node in claims)
            self._nodes = {}
            raise SumNotOpenedError(f"{where}: {' and '.join(names)} claim the whole key, which has one owner", names)
        return claims

    def _opened(
        self, batch: Iterable[tuple[int, int]], aggregator: Aggregator, records: Mapping[str, ConfigRecord]
    ) -> dict[int, Opened]:
        """The answers of some holders that can be read."""
        nodes = {str(number): node for number, node in batch}
        found: dict[int, Opened] = {}
        for number, content in self._ask(nodes, OPEN, {ROUND: aggregator.round_index}, records):
            try:
                found[int(number)] = opened(content, int(number), aggregator, self._public)
            except (TypeError, ValueError) as error:
                _LOG.warning("holder %s: its answer is refused: %s", number, error)
        return found

    def _find_where_missing(self, needed: int) -> None:
        """Ask who is there, where fewer holders are known than are needed."""
        if len(self._nodes) < needed:
            self.find()

    def _ask(
        self,
        nodes: Mapping[str, int],
        action: str,
        told: Mapping[str, int | float | bytes],
        records: Mapping[str, ConfigRecord],
    ) -> list[tuple[str, RecordDict]]:
        """The answers of some nodes; what went wrong is logged."""
        if not nodes:
            return []
        agreed = strict_json.canonical(self._agreement.record())
        first = ConfigRecord({"action": action, AGREEMENT: agreed, **told})
        patience = min(self._timeout, _HELLO_PATIENCE) if action == HELLO else self._timeout
        asked = addressed(RecordDict({RECORD: first, **records}), QUERY, nodes, patience)
        answers = list(asked.contents(self._grid().send_and_receive(asked.messages, timeout=patience)))
        for fault in asked.faults:
            # That a client's app holds nothing is as it should be.
            usual = action == HELLO and f"(error {FAILED_PRECONDITION})" not in fault
            _LOG.log(logging.DEBUG if usual else logging.WARNING, "secagg, %s: %s", action, fault)
        return answers


@dataclass(frozen=True)
class EncryptedSumming:
    """How the encrypted replies of one round are summed."""

    plain: Summing
    aggregator: Aggregator
    opening: Opening

    @property
    def lattice(self) -> Lattice:
        """The lattice of the sum."""
        return self.plain.lattice

    def config(self) -> dict[str, float | bool | bytes]:
        """What clients are told: how to clip, and to encrypt."""
        told: dict[str, float | bool | bytes] = {**self.plain.config(), **told_of(self.aggregator, self.lattice)}
        if self.plain.split:
            # Nobody but the client can put its indicator into what it encrypts.
            told[COUNT_SCALE] = self.plain.split.count_scale(self.plain.clip_norm)
        return told

    def of(self, asked: Asked, replies: Iterable[Message], arrays: ArrayRecord) -> tuple[EncryptedSum, int, int]:
        """The sum of a round; as :meth:`.Summing.of`."""
        came, counted = added(self.aggregator, asked, replies)
        return EncryptedSum(self.aggregator, self.lattice, self.opening, {}), came, counted


class EncryptedRounds:
    """Secure aggregation over a run."""

    def __init__(
        self, secagg: Paillier, encryption: Encryption, packing: Packing, promise: Promise, dim: int, folder: Path | None
    ) -> None:
        self.agreement = kept_agreement(folder, lambda run: encryption.agreement(secagg.key, packing, dim, run))
        self._holders = GridHolders(self._reached, self.agreement, secagg.shared, promise, secagg.timeout)
        self._earlier: set[bytes] = set()
        self._grid: Grid | None = None
        self._met = False

    def reach(self, grid: Grid) -> None:
        """Speak to the holders through this grid; until enough were there once, they are asked who has what."""
        self._grid = grid
        if not self._met:
            self._holders.require_there()
        self._met = True

    def summing(self, plain: Summing, round_index: int) -> EncryptedSumming:
        """How the replies of a round are summed."""
        aggregator = Aggregator(self.agreement, round_index, self._earlier)
        return EncryptedSumming(plain, aggregator, lambda total: self._holders.noised(total, plain.lattice))

    def _reached(self) -> Grid:
        if self._grid is None:
            raise ConfigError("secagg: no round was configured yet, so that no holder can be reached")
        return self._grid


def told_of(aggregator: Aggregator, lattice: Lattice) -> dict[str, int | bytes]:
    """What clients are told of the sum that they encrypt for."""
    return {
        AGREEMENT: strict_json.canonical(aggregator.agreement.record()),
        ROUND_INDEX: aggregator.round_index,
        LATTICE_BITS: lattice.bits,
    }


def added(aggregator: Aggregator, asked: Asked, replies: Iterable[Message]) -> tuple[int, int]:
    """Add what came to a sum; returns how many replies came, and how many of them are in it.

    A client is known to the sum by the number of its node. What is refused is among ``asked.faults``, with the node.
    """
    nodes = {client: message.metadata.dst_node_id for client, message in zip(asked.clients, asked.messages, strict=True)}
    came = 0
    for client, content in asked.contents(replies):
        came += 1
        try:
            aggregator.add(str(nodes[client]), encrypted_vector(content))
        except Exception as error:  # noqa: BLE001 # whatever one client sends, the round must not hang on it
            asked.refuse(client, error)
    return came, len(aggregator.senders)


def kept_agreement(folder: Path | None, make: Callable[[str], Agreement]) -> Agreement:
    """The agreement of a run, under a name that no other run has; the same at every start."""
    path = None if folder is None else folder / "state" / "agreement.json"
    if path is None or not path.exists():
        agreement = make(token_hex(16))
        if path is not None:
            files.write_atomic(path, strict_json.canonical(agreement.record()))
        return agreement
    try:
        told = strict_json.loads(files.read(path, at_most=_LARGEST))
        agreement = make(told["run"])
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); restore it from a copy of the folder") from error
    if strict_json.loads(strict_json.canonical(agreement.record())) != told:
        raise RunFolderError(
            f"{path}: clients and holders agreed on other terms; restore it, or start a new run in a new folder"
        )
    return agreement


def _next(waiting: Iterable[tuple[int, int]], count: int, answered: set[int]) -> list[tuple[int, int]]:
    """The next holders to ask, each share once."""
    batch: dict[int, int] = {}
    for number, node in waiting:
        if len(batch) < count and number not in batch and number not in answered:
            batch[number] = node
    return list(batch.items())


_LOG = logging.getLogger("flwr")


class EncryptedGridPopulation(Population):
    """As :class:`.GridPopulation`, of clients whose app has ``mods=[encrypting_mod]``: nobody reads a single update."""

    def __init__(
        self, population: GridPopulation, agreement: Agreement, holders: GridHolders, *, lattice_bits: int, mechanism: Mechanism
    ) -> None:
        self._population, self._agreement, self._holders = population, agreement, holders
        self._lattice_bits, self._mechanism = lattice_bits, mechanism
        self._earlier: set[bytes] = set()

    @property
    def clients(self) -> Sequence[Hashable]:
        """Every client's id, in the order given."""
        return self._population.clients

    @property
    def noise_in_sums(self) -> bool:
        """Whether the sums hold their noise before the server adds any."""
        return bool(self._agreement.noising_holders) or self._mechanism.shares is not None

    def inject(self, client: Hashable, adversary: Adversary | None) -> None:
        """Let an adversary choose what a client encrypts; see :meth:`.Population.inject`."""
        self._population.inject(client, adversary)

    def collect(
        self,
        cohort: Sequence[Hashable],
        model: nn.Module,
        clip_norm: float | None,
        round_index: int,
        split: CountSplit | None = None,
    ) -> EncryptedSum:
        """The sum of the cohort's encrypted updates.

        Raises:
            ConfigError: There is no clip norm, or one that moves.
            SumNotOpenedError: No client sent anything that counts.
        """
        if clip_norm is None or split is not None:
            raise ConfigError(f"clip_norm = {clip_norm}: clients encrypt updates of one bounded norm for the whole run")
        lattice = Lattice(clip_norm, self._lattice_bits)
        aggregator = Aggregator(self._agreement, round_index, self._earlier)
        told: dict[str, int | float | bytes] = {**told_of(aggregator, lattice)}
        if shares := self._mechanism.shares:
            stddev = share_stddev(self._mechanism.noise_multiplier, clip_norm, shares.clients, lattice.bits)
            told[NOISE_STDDEV] = stddev * lattice.step
        asked, replies = self._population.ask(cohort, model, clip_norm, round_index, told)
        added(aggregator, asked, replies)
        for fault in asked.faults:
            _LOG.info("round %s: counted as nothing: %s", round_index + 1, fault)
        # Of nothing there is no sum, and no digest.
        _ = aggregator.total
        return EncryptedSum(aggregator, lattice, lambda total: self._holders.noised(total, lattice), {})
