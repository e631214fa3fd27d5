"""The clients of an in-process run on a Flower grid, that encrypt what they send, and the holders that open the sums."""

import logging
from collections.abc import Hashable, Sequence

from torch import nn

from hubbub.errors import ConfigError
from hubbub.flower.messages import NOISE_STDDEV
from hubbub.flower.population import GridPopulation
from hubbub.flower.secagg_server import GridHolders, added, told_of
from hubbub.lattice import Lattice
from hubbub.mechanism import Mechanism
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.protocol import Agreement
from hubbub.steps import share_stddev
from hubbub.training.aggregate import Adversary, Population
from hubbub.training.clipping import CountSplit
from hubbub.training.encrypted import EncryptedSum

__all__ = ["EncryptedGridPopulation"]

_LOG = logging.getLogger("flwr")


class EncryptedGridPopulation(Population):
    """As :class:`.GridPopulation`, of clients whose app has ``mods=[encrypting_mod]``: nobody reads a single update.

    Args:
        population: The clients.
        agreement: What clients, server and holders agreed on.
        holders: Who open the sums.
        lattice_bits: Of the lattice on which clients round their updates.
        mechanism: Says whether the clients bring noise along.
    """

    def __init__(
        self,
        population: GridPopulation,
        agreement: Agreement,
        holders: GridHolders,
        *,
        lattice_bits: int,
        mechanism: Mechanism,
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
