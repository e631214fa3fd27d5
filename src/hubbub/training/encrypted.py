"""Sums that the server forms without reading them, as the training loop takes them; and clients in this process that send them.

The order of a round stays: what came is charged before anybody opens it; then noise and sum meet, under encryption; what the
holders of the key open is the release.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hubbub.discrete_gaussian import discrete_gaussian
from hubbub.errors import SumNotOpenedError
from hubbub.lattice import Lattice
from hubbub.mechanism import Mechanism
from hubbub.randomness import fresh_key
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.key_holder import Holder, combined
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import ThresholdKey
from hubbub.steps import share_stddev
from hubbub.training.aggregate import Adversary, Population, statistics
from hubbub.training.clip_norms import CountSplit
from hubbub.training.clipping import bounded
from hubbub.training.holder_noise import HolderNoise
from hubbub.training.simulate import SimulatedPopulation

__all__ = ["EncryptedPopulation", "EncryptedSum", "noise_steps"]

Steps = npt.NDArray[np.int64]
# Forms what the holders open, ``(size,)`` whole steps.
Opening = Callable[[Aggregator], Steps]


def noise_steps(row: torch.Tensor, step: float) -> Steps:
    """A row of noise in whole steps, ``(dim,)``."""
    return (row.detach().cpu().to(torch.float64) / step).round().to(torch.int64).numpy()


class EncryptedSum:
    """A sum under encryption; ``statistics`` are the operator's, and complete once it is open.

    Args:
        aggregator: What came.
        lattice: On which clients rounded; ``None`` for numbers that were cut off one by one, in runs that promise nothing.
        opening: How it is opened.
        private: What is known of the clients.
    """

    def __init__(self, aggregator: Aggregator, lattice: Lattice | None, opening: Opening, private: Mapping[str, float]) -> None:
        self.lattice = lattice
        self._aggregator, self._opening = aggregator, opening
        self._statistics = dict(private)

    @property
    def statistics(self) -> Mapping[str, float]:
        """What the operator is told."""
        return self._statistics

    @property
    def step(self) -> float:
        """What one step is worth."""
        return self.lattice.step if self.lattice else self._aggregator.agreement.packing.step

    def digest(self, key: bytes) -> str:
        """An HMAC of the encrypted sum."""
        return self._aggregator.digest(key)

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        """What the holders open after the server's row of noise was added, ``(dim,)`` float64.

        Raises:
            SumNotOpenedError: They do not, or what they open is no sum of the contributions.
        """
        started = time.perf_counter()
        if row is not None:
            self._aggregator.add_own_noise(noise_steps(row, self.step))
        try:
            steps = self._opening(self._aggregator)
        finally:
            self._statistics["decrypt_seconds"] = time.perf_counter() - started
        return torch.from_numpy(steps).to(torch.float64) * self.step


class EncryptedPopulation(Population):
    """Clients in this process that encrypt what they send, and the holders that open the sums. It shows what it costs; whoever
    runs the process can read everything.

    Args:
        population: The clients.
        agreement: What was agreed.
        holders: Those who open sums, each with what it may do.
        public: The key that they share; ``None`` where one owns it whole.
        lattice_bits: Of the lattice on which clients round their updates.
        noise: Where the holders add noise, the stream of each.
        mechanism: Says whether the clients bring noise along; ``None`` for bare sums.
    """

    def __init__(
        self,
        population: SimulatedPopulation,
        agreement: Agreement,
        holders: Sequence[Holder],
        public: ThresholdKey | None,
        *,
        lattice_bits: int,
        noise: Sequence[HolderNoise] = (),
        mechanism: Mechanism | None = None,
    ) -> None:
        self._population, self._agreement = population, agreement
        self._holders, self._public = holders, public
        self._lattice_bits, self._noise, self._mechanism = lattice_bits, noise, mechanism
        self._earlier: set[bytes] = set()

    @property
    def clients(self) -> Sequence[int]:
        """Every client's number."""
        return self._population.clients

    @property
    def noise_in_sums(self) -> bool:
        """Whether the sums hold their noise before the server adds any."""
        return bool(self._noise) or (self._mechanism is not None and self._mechanism.shares is not None)

    takes_split = True

    def prepare(self, model: nn.Module, cohort: int) -> None:
        """Choose how clients are computed; see :meth:`.SimulatedPopulation.prepare`."""
        self._population.prepare(model, len(self.clients))

    def inject(self, client: int, adversary: Adversary | None) -> None:
        """Let an adversary choose what a client encrypts; without an answer there is no contribution."""
        self._population.inject(client, adversary)

    def collect(
        self,
        cohort: Sequence[Hashable],
        model: nn.Module,
        clip_norm: float | None,
        round_index: int,
        split: CountSplit | None = None,
    ) -> EncryptedSum:
        """The sum of the cohort's encrypted updates; with a ``split`` each client's indicator is one more number of it."""
        aggregator = Aggregator(self._agreement, round_index, self._earlier)
        lattice = None
        if clip_norm is not None:
            lattice = Lattice(split.joint_norm(clip_norm) if split else clip_norm, self._lattice_bits)
        clock = _Clock()
        clipped, losses = 0, []
        for client, update, loss in self._population.updates(cohort, model, round_index):
            with clock.of("encrypt_seconds"):
                steps, was_clipped = self._steps(update, clip_norm, lattice, split)
                noise = self._share(steps.size, lattice)
                data = self._agreement.contribution(str(client), round_index, steps, noise)
            with clock.of("aggregate_seconds"):
                aggregator.add(str(client), data)
            clipped += was_clipped
            losses.append(loss)
            clock.seconds["upload_bytes"] = float(len(data))
        private = {**statistics(len(cohort), clipped, losses), **clock.seconds, **self._population.failed()}
        return EncryptedSum(aggregator, lattice, lambda total: self._opened(total, lattice), private)

    def _steps(
        self, update: torch.Tensor, clip_norm: float | None, lattice: Lattice | None, split: CountSplit | None
    ) -> tuple[Steps, bool]:
        if lattice is None:
            point = self._agreement.packing.fixed_point
            values = np.nan_to_num(update.detach().cpu().to(torch.float64).numpy(), nan=0.0)
            return point.encode(values), bool(np.abs(values).max(initial=0.0) > point.clip)
        steps, was_clipped = bounded(update, clip_norm, lattice, split)
        return steps.cpu().numpy(), was_clipped

    def _share(self, size: int, lattice: Lattice | None) -> Steps | None:
        mechanism = self._mechanism
        if mechanism is None or mechanism.shares is None or lattice is None:
            return None
        stddev = share_stddev(mechanism.noise_multiplier, lattice.clip_norm, mechanism.shares.clients, lattice.bits)
        return discrete_gaussian(fresh_key(), stddev, size)

    def _opened(self, aggregator: Aggregator, lattice: Lattice | None) -> Steps:
        for holder, stream in zip(self._holders, self._noise, strict=False):
            if lattice is not None:
                row = noise_steps(stream.row(aggregator.round_index) * lattice.clip_norm, lattice.step)
                aggregator.add_noise(holder.name, holder.noise(aggregator.round_index, row))
        request = aggregator.request()
        needed = self._public.threshold if self._public else 1
        steps, liars = combined(aggregator, self._public, [holder.open(request) for holder in self._holders[:needed]])
        if liars:
            raise SumNotOpenedError(f"round {aggregator.round_index + 1}: {', '.join(liars)} answered falsely", liars)
        return steps


class _Clock:
    """Seconds of this process by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - started
