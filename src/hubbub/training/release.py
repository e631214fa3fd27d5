"""The one way from a sum to a release, whoever formed the sum: record the cost, add noise, persist.

::

    ticket  = path.begin(cohort, total, clip_norm)    the cost is on disk; from here on the round counts
    release = total.open(path.row(ticket))            the only place where noise and sum meet
    path.commit(ticket, release)                      the release is on disk, then its digest: now it may leave
    path.abort(ticket)                                 or never: the cost stays, and its row is gone

Where clients bring shares of the noise along, or share holders add all of it under encryption, nobody reads a sum without it:
the path makes no rows, and ``row`` answers ``None``.

A crash between two of these lines loses at most the round that was under way. Every start of a secure run draws from a key of
its own; rows that were spent before are drawn again from the key of their incarnation, so that the stream stays N·z.
"""

import math
import sys
from collections.abc import Hashable, Iterator, Sequence
from typing import NoReturn, SupportsIndex

import numpy as np
import torch

from hubbub._util.prf import derive, fresh_key, seed_key
from hubbub.errors import ConfigError, LedgerError, RunFolderError
from hubbub.ledger.ledger import Ledger, Ticket
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.strategies import OWN
from hubbub.mechanism.strategies.record import strategy_arrays
from hubbub.mechanism.strategies.strategy import memory_rows
from hubbub.mechanism.utility import largest_deviation, noising_matrix, require_inverse, require_no_look_ahead
from hubbub.noise import NoiseStream, SimulationSource, sampler
from hubbub.noise.lattice import Lattice
from hubbub.noise.sources import IncarnationSource
from hubbub.noise.steps import require_room
from hubbub.noise.stream import require_memory
from hubbub.training.aggregate import Sum
from hubbub.training.cohorts import CohortKeys
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import key_ahead, rounds_shown, unknown_releases

__all__ = ["ReleasePath"]

# Of a key; each of them may add a whole row to a sum.
_MOST_HOLDERS = 100


class _Unchanged:
    """That a strategy of somebody's own class still is what the promise was computed of.

    Args:
        mechanism: Has the strategy, whose every round is tried here once.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self._strategy = mechanism.strategy
        now = Mechanism(mechanism.strategy, mechanism.participation, mechanism.noise_multiplier)
        if (now.l2_sensitivity, now.stddev) != (mechanism.l2_sensitivity, mechanism.stddev):
            raise ConfigError(
                f"strategy = {type(self._strategy).__name__}: has a sensitivity of {now.l2_sensitivity} now, and "
                f"{mechanism.l2_sensitivity} was promised: its matrix was changed; make a mechanism of it as it is now"
            )
        self._matrix = np.array(self._strategy.matrix(), dtype=np.float64)
        self._rows, self._unit = noising_matrix(self._strategy), np.eye(len(self._matrix))
        self._memory: tuple[object, ...] = ()
        self._next = 0

    def require(self, round_index: int) -> None:
        """Refuse a matrix, or a row of noise up to that of this round, that is another one by now."""
        same, unit = np.array_equal(self._strategy.matrix(), self._matrix), self._unit
        while same and self._next <= round_index:
            row, self._memory = self._strategy.step(self._next, lambda i: unit[i], self._memory)
            same = np.array_equal(row, self._rows[self._next])
            self._next += 1
        if not same:
            raise ConfigError(
                f"strategy = {type(self._strategy).__name__}: round {round_index} is not that of the promise any more, so that "
                "its noise would not hide what it was computed to; a strategy stays as it is for the whole run, and what a "
                "step remembers goes through its memory alone"
            )


class ReleasePath:
    """Ledger, noise and folder of a run, in the order in which they must be used.

    Args:
        promise: What the run promises.
        dim: Numbers in a sum.
        clients: The most clients of a cohort.
        seed: Of a simulation.
        store: The folder; ``None`` keeps all in memory.
        head: A head of the ledger that somebody kept.
        noise_in_sums: Whoever forms the sums answers for it that they hold the noise before anybody reads them, where the
            promise is of such: the clients' shares, and that a sum of too few is aborted, or the row of each share holder.

    Raises:
        LedgerError: The folder holds another run, its record is damaged, was rolled back, or is closed.
        RunFolderError: A key or a release is missing, or is not this run's; or the disk has no room for the noise.
        ConfigError: More clients or more noise than the lattice has room for, or noise in sums that nobody answers for, or that
            is not promised.
        ValueError: More numbers than the lattice has room for, or a strategy that is not ours, whose stream does not invert its
            matrix or draws noise ahead.
    """

    def __init__(
        self,
        promise: Promise,
        dim: int,
        *,
        clients: int,
        seed: int = 0,
        store: RunStore | None = None,
        head: str | None = None,
        noise_in_sums: bool = False,
    ) -> None:
        _require_answered_for(promise, dim, noise_in_sums)
        mechanism, self._secure, self._in_sums = promise.mechanism, not promise.simulation, noise_in_sums
        self._dim, self._store, self._lattice_bits = dim, store, promise.lattice_bits
        # Noise that others add is whole steps, in an experiment as well.
        self._on_lattice = mechanism is not None and (self._secure or noise_in_sums)
        here = None if noise_in_sums else mechanism
        remembered = (memory_rows(here.strategy) or 0) if here else 0
        require_memory(remembered, dim, torch.empty(0, dtype=torch.float64))
        if mechanism and self._on_lattice:
            Lattice(1.0, self._lattice_bits).require_dim(dim)
            new = not (store and store.ledger_path.exists())
            _require_exact(mechanism, clients, holders=promise.noise_by == "holders", new=new)
        if store:
            store.make_durable()
            if not store.ledger_path.exists():
                store.require_room(8 * dim * remembered)
                # On disk before the ledger, which names its digest.
                store.save_strategy(strategy_arrays(mechanism.strategy) if mechanism else {})
        secret = store.secret() if store and self._secure else fresh_key() if self._secure else derive(seed_key(seed), "run")
        self.ledger = Ledger(promise, secret, store.ledger_path if store else None, head=head)
        if store and self.ledger.forgets:
            store.keep_releases = False
        self.cohort_keys = CohortKeys(derive(secret, "cohorts"), derive(secret, "cohorts"))
        self._digest_key, self._noise_key = derive(secret, "sums"), derive(secret, "noise")
        self._require_folder_not_newer()
        self._source = IncarnationSource(self._epoch_keys()) if self._secure else SimulationSource(seed)
        self.noise = NoiseStream(here, dim, source=self._source) if here else None
        self._foreign = _Unchanged(mechanism) if mechanism and type(mechanism.strategy) not in OWN else None
        self._started = False
        self._given: Ticket | None = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refused: each copy would record its rounds in a ledger of its own, and draw the same noise and cohorts."""
        raise TypeError("an open run cannot be copied or pickled: its rounds are recorded, and its noise drawn, in one place")

    def start(self) -> None:
        """Settle what the last incarnation left open, and begin one with a key of its own.

        Call it when the noise has been brought to where a checkpoint left it, or at once.

        Raises:
            LedgerError: The run is closed, or a required hook did not take the heads of its rounds.
            RunFolderError: Noise that was drawn before cannot be drawn again bit for bit on this machine.
        """
        if self.ledger.closed:
            raise LedgerError("this run was closed and its keys destroyed; start a new one, whose cost adds to this one's")
        self._settle()
        self._give_heads()
        self._started = True
        if self.ledger.next_round >= self.ledger.promise.rounds:
            return
        drawn = 0
        if self.noise:
            if self._store and not self.noise.round_index:
                self._store.unseal_noise(self.noise, self._noise_key, self.ledger)
            again = self.noise.round_index < self.ledger.next_round
            if again and any(epoch.sampler != sampler() for epoch in self.ledger.epochs):
                raise RunFolderError(
                    "state/keys: the noise of earlier rounds cannot be drawn again bit for bit here, since this processor, "
                    "torch or hubbub computes other last bits; resume with the versions that the run was started with, or "
                    "start a new run"
                )
            self.noise.skip_to(self.ledger.next_round)
            drawn = self.noise.drawn
        key, mechanism = None, self.ledger.promise.mechanism
        if self._secure and mechanism:
            key = fresh_key()
            if self._store:
                self._store.add_noise_key(len(self.ledger.epochs), key)
        self.ledger.start_epoch(drawn, key, sampler())
        if mechanism and key:
            if isinstance(self._source, IncarnationSource):
                self._source.start(drawn, key)
            self.cohort_keys = self.cohort_keys.renewed(mechanism.participation, key)

    def keep_noise(self) -> None:
        """Keep what later rounds need of the noise so far, so that the next start need not draw it again."""
        if self._store and self.noise and memory_rows(self.noise.mechanism.strategy) != 0:
            self._store.seal_noise(self.noise, self._noise_key, self.ledger.head)

    def make_room(self) -> None:
        """Keep releases no longer than to the next checkpoint, for good, where less of the disk is free than is to be.

        That it is so is on record before the first of them goes, unless it was promised.
        """
        if self._store and self._store.short_of_room:
            self._store.keep_releases = False
        forgets = self._store is not None and not self._store.keep_releases
        if forgets and self.ledger.promise.terms.keep_releases and not self.ledger.forgets:
            self.ledger.forget()

    @property
    def next_round(self) -> int:
        """The round that the next ticket is for."""
        return self.ledger.next_round

    def begin(self, cohort: Sequence[Hashable], total: Sum, clip_norm: float | None) -> Ticket:
        """Record the cost of the next round. When this returns, it is on disk and the row of noise is spent.

        Raises:
            ParticipationError: A client would break the promised pattern, or comes twice.
            LedgerError: The run has no further round, or the sum is in floating point where the noise is secure.
            ConfigError: The strategy is not the one that was promised any more.
        """
        if self._foreign:
            self._foreign.require(self.next_round)
        self._require_started()
        lattice = total.lattice
        if self._on_lattice and (clip_norm is None or lattice != Lattice(clip_norm, self._lattice_bits)):
            bits = "" if self._lattice_bits == 24 else f", bits={self._lattice_bits}"
            raise LedgerError(
                f"round {self.next_round}: its sum is {'in floating point' if lattice is None else f'on {lattice}'}, from "
                f"whose last bits one can see who took part; form it on Lattice({clip_norm}{bits})"
                + ("" if self.noise is None else ", or say noise = 'simulation'")
            )
        return self.ledger.begin(self.next_round, cohort, total.digest(self._digest_key), clip_norm)

    def row(self, ticket: Ticket) -> torch.Tensor | None:
        """The round's row of noise at the scale of the sum, ``(dim,)``; given out once.

        ``None`` where the sum holds the noise, or where nothing is promised.

        Raises:
            LedgerError: The ticket's row was given out already, or the round was not begun.
        """
        self._require_started()
        self.ledger.require_begun(ticket)
        self._given = ticket
        if self.noise is None:
            return None
        if self.noise.round_index != ticket.round_index or ticket.clip_norm is None:
            raise LedgerError(f"round {ticket.round_index}: its row of noise was given out already; abort the round")
        return self.noise.next_row() * ticket.clip_norm

    def commit(self, ticket: Ticket, release: torch.Tensor) -> None:
        """Put the release on disk, then its digest in the ledger. When this returns, it may leave.

        Raises:
            LedgerError: The round was not begun, its row was not taken, or what comes is no release of this run; or a
                required hook did not take the head: the round is committed, and its release leaves at the next start.
        """
        self._require_started()
        self.ledger.require_begun(ticket)
        if self._given != ticket:
            raise LedgerError(f"round {ticket.round_index}: its row of noise was not taken, so that this would be the bare sum")
        if release.shape != (self._dim,):
            raise LedgerError(
                f"round {ticket.round_index}: the release has shape {tuple(release.shape)}, this run's ({self._dim},)"
            )
        lattice = None if ticket.clip_norm is None else Lattice(ticket.clip_norm, self._lattice_bits)
        if self._on_lattice and lattice and not lattice.holds(release):
            raise LedgerError(
                f"round {ticket.round_index}: the release is off the lattice of clip norm {ticket.clip_norm}; abort it"
            )
        store, step = self._store, lattice.step if self._on_lattice and lattice else None
        content = store.save_release(ticket.round_index, release, step) if store else release.cpu().numpy().tobytes()
        self.ledger.commit(ticket, content)
        self._give_heads()

    def abort(self, ticket: Ticket) -> None:
        """Give a begun round up: its cost stays, and its row of noise and its participations are spent.

        Raises:
            LedgerError: The round was not begun, or a required hook did not take the head.
        """
        self.ledger.require_begun(ticket)
        if self._store:
            # First, so that no release of an aborted round is left behind.
            self._store.discard_release(ticket.round_index)
        self.ledger.abort(ticket)
        if self.noise and self._started:
            self.noise.skip_to(ticket.round_index + 1)
        self._give_heads()

    def released(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        """The committed releases from round ``start`` up to ``stop``, each compared with its digest."""
        for round_index in range(start, stop):
            digest = self.ledger.release_digest(round_index)
            if digest is not None and self._store:
                yield self._store.load_release(round_index, digest, self._dim)

    def _give_heads(self) -> None:
        """Give the heads that the hook has not taken; where a required one fails, this path has ended."""
        if self._store:
            started, self._started = self._started, False
            self._store.give_heads(self.ledger)
            self._started = started

    def _require_started(self) -> None:
        """Refuse what comes before the noise of this start."""
        if not self._started:
            raise LedgerError("the path is not open: call start first, which gives this process noise of its own")

    def _settle(self) -> None:
        """Commit the round that was under way if its release is on disk whole; abort it otherwise.

        A simulation without a release draws the very same round again, unless others draw its noise, or its sum was encrypted
        and would be another one.
        """
        pending = self.ledger.pending()
        if pending is None:
            return
        if self._store and pending.round_index in self._store.released():
            content = self._store.release_content(pending.round_index)
            self._store.parse_release(pending.round_index, content, self._dim)
            self.ledger.commit(pending, content)
        elif self._secure or self._in_sums or self.ledger.promise.setting:
            self.abort(pending)

    def _require_folder_not_newer(self) -> None:
        """Refuse a ledger that was rolled back: the folder holds releases, keys or metrics of which it does not know."""
        if not self._store:
            return
        begun, shown = len(self.ledger.rounds), rounds_shown(self._store.folder)
        late = unknown_releases(self._store.released(), self.ledger.rounds)
        if what := (
            f"{shown} rounds in metrics.jsonl"
            if shown > begun
            else f"a release of round {late[0]}"
            if late
            else key_ahead(self._store.epochs(), len(self.ledger.epochs))
        ):
            raise RunFolderError(
                f"{self._store.folder}: holds {what}, of which its ledger of {begun} rounds and {len(self.ledger.epochs)} "
                "incarnations does not know: it was rolled back; restore the ledger"
            )

    def _epoch_keys(self) -> list[tuple[int, bytes]]:
        """The first row and the key of each incarnation so far; a key that is not the one that was used is refused."""
        found = []
        for number, epoch in enumerate(self.ledger.epochs):
            if epoch.key is not None and not self.ledger.closed:
                key = self._store.noise_key(number) if self._store else b""
                if self.ledger.digest("key", key) != epoch.key:
                    raise RunFolderError(f"state/keys/epoch-{number}: is not the key that this run's noise was drawn from")
                found.append((epoch.first_row, key))
        return found


def _require_answered_for(promise: Promise, dim: int, in_sums: bool) -> None:
    """Refuse noise that nobody adds, so that the path would release bare sums; and noise in sums that no promise names."""
    shares = None if promise.mechanism is None else promise.mechanism.shares
    if promise.noise_in_sums and not in_sums:
        found = "noise_by = 'holders': no share holder" if shares is None else f"mechanism.shares = {shares}: no client"
        raise ConfigError(
            f"{found} adds noise here, so that bare sums would be released; let the server add the noise, or, where the sums "
            "hold it, say ReleasePath(noise_in_sums=True)"
        )
    if in_sums and not promise.noise_in_sums:
        raise ConfigError(
            "noise_in_sums = True: by its promise this run has no noise but the server's, which would be left out; promise "
            "shares of the clients (mechanism.shares) or noise_by = 'holders', or leave it out"
        )
    if shares is not None and dim > shares.dim:
        raise ConfigError(f"dim = {dim}: the mechanism's shares of noise are for sums of at most {shares.dim} numbers")


def _require_exact(mechanism: Mechanism, clients: int, *, holders: bool, new: bool) -> None:
    """Refuse, before the first round, what the lattice has no room for, or a strategy whose stream is not its matrix."""
    if mechanism.shares is not None:
        # Whoever answers adds a share, as large as if no more than the fewest did.
        require_room(clients, mechanism.stddev * math.sqrt(max(1.0, clients / mechanism.shares.clients)))
        return
    rows = _MOST_HOLDERS if holders else 1
    require_room(clients, rows * mechanism.stddev)
    if new:
        require_room(clients, min(rows * largest_deviation(mechanism), sys.float_info.max))
    if type(mechanism.strategy) not in OWN:
        require_inverse(mechanism.strategy)
        require_no_look_ahead(mechanism.strategy)
