"""Sums that the server forms without reading them, as the training loop takes them; and clients in this process that send them.

The order of a round stays: the cost is recorded before anybody opens what came; then noise and sum meet, under encryption; what
the holders of the key open is the release.

Where holders of the key add the noise, each has a stream of its own, of which nobody else knows a row.

As C⁻¹ is linear, each holder can add the whole noise of the mechanism, correlated over rounds, under encryption. Nobody then
knows all noise in a sum, for √holders times the noise of one.

What a holder keeps is a folder of its own::

    noise.json       the first row of each start, the next round, and how keys become noise on this machine
    keys/epoch-N     32 secret bytes each
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hubbub._util import files, strict_json
from hubbub._util.checks import integer
from hubbub._util.files import refusing
from hubbub._util.prf import fresh_key
from hubbub.errors import NoiseExhaustedError, RunFolderError
from hubbub.mechanism import Mechanism
from hubbub.mechanism.discrete_gaussian import discrete_gaussian
from hubbub.noise import NoiseStream, SimulationSource, sampler
from hubbub.noise.lattice import Lattice, Row, whole_steps
from hubbub.noise.sources import IncarnationSource
from hubbub.noise.steps import share_stddev
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.key_holder import Holder, combined
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import ThresholdKey
from hubbub.training.aggregate import Adversary, Cohort, Population, lattice_of, statistics
from hubbub.training.clipping import CountSplit, bounded
from hubbub.training.run_folder.store import secret_key
from hubbub.training.simulation.simulate import SimulatedPopulation

_LARGEST = 2**26

Steps = npt.NDArray[np.int64]
# Forms what the holders open, ``(size,)`` whole steps.
Opening = Callable[[Aggregator], Steps]


def noise_steps(row: torch.Tensor, step: float) -> Steps:
    """A row of noise in whole steps, ``(dim,)``."""
    return whole_steps(row.detach().cpu(), step).to(torch.int64).numpy()


class EncryptedSum:
    """A sum under encryption; ``statistics`` are the operator's, and complete once it is open.

    Without a ``lattice`` numbers were cut off one by one, in runs that promise nothing.
    """

    def __init__(self, aggregator: Aggregator, lattice: Lattice | None, opening: Opening, private: Mapping[str, float]) -> None:
        self.lattice = lattice
        self._aggregator, self._opening = aggregator, opening
        # The operator's statistics.
        self.statistics = dict(private)

    def digest(self, key: bytes) -> str:
        """An HMAC of the encrypted sum."""
        return self._aggregator.digest(key)

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        """What the holders open after the server's row of noise was added, ``(dim,)`` float64."""
        started = time.perf_counter()
        step = self.lattice.step if self.lattice else self._aggregator.agreement.packing.step
        if isinstance(row, Row):
            row.meet(None, step)
        if row is not None:
            self._aggregator.add_own_noise(noise_steps(row, step))
        try:
            steps = self._opening(self._aggregator)
        finally:
            self.statistics["decrypt_seconds"] = time.perf_counter() - started
        return torch.from_numpy(steps).to(torch.float64) * step


class HolderNoise:
    """Rows of stddev·N·z, each for one round and given out once; a simulation's follow from its ``seed``.

    What a holder drew is in ``folder``; ``None`` keeps it in memory. What cannot be drawn again bit for bit here is refused,
    as is a folder that knows of fewer rounds than ``given``: later rows would not go with those that were given out.
    """

    def __init__(
        self, mechanism: Mechanism, dim: int, folder: Path | None = None, *, seed: int | None = None, given: int = 0
    ) -> None:
        self._folder, self._next, self._first_rows = folder, 0, list[int]()
        if seed is not None:
            self._stream = NoiseStream(mechanism, dim, source=SimulationSource(seed))
            return
        path = None if folder is None else folder / "noise.json"
        if path is not None and path.exists():
            with refusing(path, "cannot be read", then="restore this holder's folder from a copy"):
                told = strict_json.loads(files.read(path, at_most=_LARGEST))
                if told["sampler"] != sampler():
                    raise ValueError("its noise cannot be drawn again bit for bit with this processor, torch or hubbub")
                self._first_rows = [integer("first_rows", row, at_least=0) for row in told["first_rows"]]
                self._next = integer("next_round", told["next_round"], at_least=0)
        if self._next < given:
            raise RunFolderError(
                f"{path}: knows of {self._next} rounds, and this holder's noise was given for {given}: it was lost or rolled "
                "back; restore this holder's folder from a copy"
            )
        keys = Path(str(folder)) / "keys"
        epochs = [(first, secret_key(keys / f"epoch-{number}")) for number, first in enumerate(self._first_rows)]
        source = IncarnationSource(epochs)
        # Real noise of a round does not exist before it is asked for.
        self._stream = NoiseStream(mechanism, dim, source=source)
        self._stream.skip_to(self._next)
        key = fresh_key()
        source.start(self._stream.drawn, key)
        self._first_rows.append(self._stream.drawn)
        if folder is not None:
            files.make_folder(keys)
            files.write_atomic(keys / f"epoch-{len(epochs)}", key)
        self._remember()

    def row(self, round_index: int) -> torch.Tensor:
        """The row of a round, ``(dim,)`` float64 per unit of clip norm, now spent, on disk too, as those before it are."""
        if integer("round_index", round_index, at_least=0) < self._next:
            raise NoiseExhaustedError(
                f"round {round_index + 1}: its row of noise was given out already, and none meets two sums"
            )
        self._stream.skip_to(round_index)
        self._next = round_index + 1
        self._remember()
        return self._stream.next_row()

    def _remember(self) -> None:
        """Put on disk which rows were drawn, and from which start on."""
        if self._folder is None or not self._first_rows:
            return
        told = strict_json.canonical({"first_rows": self._first_rows, "next_round": self._next, "sampler": sampler()})
        files.write_atomic(self._folder / "noise.json", told)


class EncryptedPopulation(Population):
    """Clients in this process that encrypt what they send, and the holders that open the sums. It shows what it costs; whoever
    runs the process can read everything.

    ``public`` is the key that holders share, ``None`` if one owns it whole; ``noise`` opens the stream of each holder that adds
    noise, when a run has begun and keeps other processes out of its folder; the shares of ``mechanism`` say whether the clients
    bring noise along.
    """

    def __init__(
        self,
        population: SimulatedPopulation,
        agreement: Agreement,
        holders: Sequence[Holder],
        public: ThresholdKey | None,
        *,
        lattice_bits: int,
        noise: Callable[[], Sequence[HolderNoise]] | None = None,
        mechanism: Mechanism | None = None,
    ) -> None:
        self._population, self._agreement = population, agreement
        self._holders, self._public = holders, public
        self._lattice_bits, self._opens_noise, self._mechanism = lattice_bits, noise, mechanism
        self._noise: Sequence[HolderNoise] | None = None

    @property
    def clients(self) -> Sequence[int]:
        """Every client's number."""
        return self._population.clients

    @property
    def noise_in_sums(self) -> bool:
        """Whether the sums hold their noise before the server adds any."""
        return self._opens_noise is not None or (self._mechanism is not None and self._mechanism.shares is not None)

    takes_split = True

    def prepare(self, model: nn.Module, cohort: int) -> None:
        """Open the holders' noise, and choose how clients are computed; see :meth:`.SimulatedPopulation.prepare`."""
        self._noise = self._opens_noise() if self._opens_noise else ()
        self._population.prepare(model, len(self.clients))

    def draw_under(self, key: bytes) -> None:
        """Draw shuffles and dropout under this key from now on."""
        self._population.draw_under(key)

    def inject(self, client: int, adversary: Adversary | None) -> None:
        """Let an adversary choose what a client encrypts; without an answer there is no contribution."""
        self._population.inject(client, adversary)

    def collect(
        self, cohort: Cohort, model: nn.Module, clip_norm: float | None, round_index: int, split: CountSplit | None = None
    ) -> EncryptedSum:
        """The sum of the cohort's encrypted updates; with a ``split`` each client's indicator is one more number of it."""
        if self._noise is None:
            # Before the round costs anything.
            self.prepare(model, len(cohort))
        aggregator = Aggregator(self._agreement, round_index)
        lattice = None if clip_norm is None else lattice_of(clip_norm, split, self._lattice_bits)
        spent: dict[str, float] = defaultdict(float)
        clipped, losses = 0, []
        for client, update, loss in self._population.updates(cohort, model, round_index):
            started = time.perf_counter()
            if lattice is None:
                point = self._agreement.packing.fixed_point
                values = np.nan_to_num(update.detach().cpu().to(torch.float64).numpy(), nan=0.0)
                steps, was_clipped = point.encode(values), bool(np.abs(values).max(initial=0.0) > point.clip)
            else:
                rounded, was_clipped = bounded(update, clip_norm, lattice, split)
                steps = rounded.cpu().numpy()
            data = self._agreement.contribution(str(client), round_index, steps, self._share(steps.size, lattice))
            encrypted = time.perf_counter()
            aggregator.add(str(client), data)
            spent["encrypt_seconds"] += encrypted - started
            spent["aggregate_seconds"] += time.perf_counter() - encrypted
            spent["upload_bytes"] = float(len(data))
            clipped += was_clipped
            losses.append(loss)
        # Refuses a sum of nothing, which has no digest.
        _ = aggregator.total
        private = {**statistics(len(cohort), clipped, losses), **spent, **self._population.failed()}
        return EncryptedSum(aggregator, lattice, lambda total: self._opened(total, lattice), private)

    def _share(self, size: int, lattice: Lattice | None) -> Steps | None:
        """A client's share of the noise, ``(size,)``, where clients bring it along."""
        mechanism = self._mechanism
        if mechanism is None or mechanism.shares is None or lattice is None:
            return None
        stddev = share_stddev(mechanism.noise_multiplier, lattice.clip_norm, mechanism.shares.clients, lattice.bits)
        return discrete_gaussian(fresh_key(), stddev, size)

    def _opened(self, aggregator: Aggregator, lattice: Lattice | None) -> Steps:
        """What the holders open, each after it added its row of noise where holders do, ``(size,)``."""
        for holder, stream in zip(self._holders, self._noise or (), strict=False):
            if lattice is not None:
                row = noise_steps(stream.row(aggregator.round_index) * lattice.clip_norm, lattice.step)
                aggregator.add_noise(holder.name, holder.noise(aggregator.round_index, row))
        request = aggregator.request()
        asked = self._holders[: self._public.threshold if self._public else 1]
        steps, liars = combined(aggregator, self._public, [holder.open(request) for holder in asked])
        if liars:
            raise aggregator.unopened(f"{', '.join(liars)} answered falsely", liars)
        return steps
