"""The rounds of a run whose clients encrypt: what was agreed, how replies become a sum, and who opens it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from hubbub import files, strict_json
from hubbub.accounting.promise import Promise
from hubbub.errors import ConfigError, RunFolderError, SumNotOpenedError
from hubbub.flower.messages import AGREEMENT, COUNT_SCALE, LATTICE_BITS, ROUND_INDEX, Asked, encrypted_vector
from hubbub.flower.opening import GridHolders
from hubbub.flower.secagg import Paillier
from hubbub.flower.summing import Summing
from hubbub.lattice import Lattice
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.packing import Packing
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import ThresholdKey
from hubbub.strategies.record import strategy_arrays
from hubbub.training.encrypted import EncryptedSum, Opening, Steps
from hubbub.training.encryption import Encryption

__all__ = ["EncryptedRounds", "EncryptedSumming", "added", "holders_of", "kept_agreement", "opened", "require_there"]

_LARGEST = 100_000


@dataclass(frozen=True)
class EncryptedSumming:
    """How the encrypted replies of one round are summed.

    Args:
        plain: How they would be summed if they could be read: the lattice, and what clients are told of it.
        aggregator: The sum, of which nothing came yet.
        opening: How it is opened.
    """

    plain: Summing
    aggregator: Aggregator
    opening: Opening

    @property
    def lattice(self) -> Lattice:
        """The lattice of the sum."""
        return self.plain.lattice

    def config(self) -> dict[str, float | bool | bytes]:
        """What clients are told: how to clip, and to encrypt."""
        told: dict[str, float | bool | bytes] = {
            **self.plain.config(),
            AGREEMENT: strict_json.canonical(self.aggregator.agreement.record()),
            ROUND_INDEX: self.aggregator.round_index,
            LATTICE_BITS: self.lattice.bits,
        }
        if self.plain.split:
            # Nobody but the client can put its indicator into what it encrypts.
            told[COUNT_SCALE] = self.plain.split.count_scale(self.plain.clip_norm)
        return told

    def of(self, asked: Asked, replies: Iterable[Message], arrays: ArrayRecord) -> tuple[EncryptedSum, int, int]:
        """The sum of a round; as :meth:`.Summing.of`."""
        came, counted = added(self.aggregator, asked, replies)
        return EncryptedSum(self.aggregator, self.lattice, self.opening, {}), came, counted


class EncryptedRounds:
    """Secure aggregation over a run.

    Args:
        secagg: As the strategy was told.
        encryption: All terms.
        packing: How numbers lie in plaintexts.
        promise: Of the run: holders who add noise add that of its mechanism.
        dim: Numbers in a sum.
        folder: Of the run; ``None`` keeps the agreement in memory.

    Raises:
        RunFolderError: The folder's agreement is another, or damaged.
    """

    def __init__(
        self, secagg: Paillier, encryption: Encryption, packing: Packing, promise: Promise, dim: int, folder: Path | None
    ) -> None:
        self.agreement = kept_agreement(folder, lambda run: encryption.agreement(secagg.key, packing, dim, run))
        self._holders = holders_of(self._reached, self.agreement, secagg.shared, promise, secagg.timeout)
        self._shared = secagg.shared
        self._earlier: set[bytes] = set()
        self._grid: Grid | None = None
        self._met = False

    def reach(self, grid: Grid) -> None:
        """Speak to the holders through this grid; until enough were there once, they are asked who has what.

        Raises:
            SumNotOpenedError: Too few of them are connected.
        """
        self._grid = grid
        if not self._met:
            require_there(self._holders, self.agreement, self._shared)
        self._met = True

    def summing(self, plain: Summing, round_index: int) -> EncryptedSumming:
        """How the replies of a round are summed."""
        aggregator = Aggregator(self.agreement, round_index, self._earlier)
        return EncryptedSumming(plain, aggregator, lambda total: opened(self._holders, total, plain.lattice))

    def _reached(self) -> Grid:
        if self._grid is None:
            raise ConfigError("secagg: no round was configured yet, so that no holder can be reached")
        return self._grid


def holders_of(
    grid: Callable[[], Grid], agreement: Agreement, shared: ThresholdKey | None, promise: Promise, timeout: float
) -> GridHolders:
    """The way to the holders of the key: those that add noise are told what the run promises."""
    mechanism = promise.mechanism
    told = (promise.record(), strategy_arrays(mechanism.strategy)) if agreement.noising_holders and mechanism else None
    return GridHolders(grid, agreement, shared, told, timeout)


def require_there(holders: GridHolders, agreement: Agreement, shared: ThresholdKey | None) -> None:
    """Ask all connected nodes what they hold, before anything is charged.

    Raises:
        SumNotOpenedError: Too few holders of the key to open a sum, or one that is to add noise is missing.
    """
    key_id = shared.key_id if shared else agreement.public_key.key_id
    found, needed = holders.find(), max(shared.threshold if shared else 1, agreement.noising_holders)
    if len(found) >= needed:
        return
    there = f"the holders {', '.join(map(str, found))}" if found else "no holder"
    raise SumNotOpenedError(
        f"secagg: {there} of the key {key_id!r} answered, and {needed} are needed; let the apps of "
        "holders be hold(app), and start their SuperNodes with --node-config 'paillier-share=\"…\"'"
    )


def opened(holders: GridHolders, aggregator: Aggregator, lattice: Lattice) -> Steps:
    """What a sum says, in whole steps, after the holders added their noise, where they do.

    Raises:
        SumNotOpenedError: Too few contributions, or too few holders that answer truly.
    """
    if aggregator.agreement.noising_holders:
        holders.add_noise(aggregator, lattice.clip_norm)
    return holders.open(aggregator)


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
    """The agreement of a run, under a name that no other run has; the same at every start.

    Args:
        folder: Of the run: it keeps the agreement in ``state/agreement.json``. ``None`` keeps nothing.
        make: The agreement of a run of this name.

    Raises:
        RunFolderError: The folder's agreement is another, or cannot be read.
    """
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
