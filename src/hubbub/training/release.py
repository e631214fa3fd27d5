"""The only way from a sum to a release, for every population: record the cost, add noise, persist.

::

    ticket  = path.begin(cohort, total, clip_norm)    the cost is on disk; from here on the round counts
    release = total.open(path.row(ticket))            the only place where noise and sum meet
    path.commit(ticket, release)                      the release is on disk, then its digest: now it may leave
    path.abort(ticket)                                or never: the cost stays, and the row of noise is spent

If clients add noise shares, or share holders add the noise under encryption, sums are never readable without it: the path draws
no rows, and ``row`` returns ``None``.

A crash between two of these lines loses at most the round in progress. Every start of a secure run (an *incarnation*) draws
from a key of its own; earlier rows are drawn again from the key of their incarnation, so that the stream stays N·z.
"""

import math
import os
import sys
import threading
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import torch

from hubbub._util import strict_json
from hubbub._util.prf import Uncopied, derive, fresh_key, seed_key
from hubbub.errors import ConfigError, LedgerError, ParticipationError, RankError, RunFolderError
from hubbub.ledger.ledger import Ledger, Ticket
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import OWN, strategy_arrays
from hubbub.mechanism.strategies.strategy import memory_rows
from hubbub.noise import NoiseStream, SimulationSource, sampler
from hubbub.noise.lattice import Lattice, Row
from hubbub.noise.sources import IncarnationSource
from hubbub.noise.steps import require_room
from hubbub.noise.stream import require_memory
from hubbub.training.aggregate import Cohort, LatticeSum, PlainSum, Sum, require_sum
from hubbub.training.cohorts import CohortKeys, draw
from hubbub.training.ranks import Ranks, fingerprint, segments
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import Traces

# The most share holders of a key; each may add a whole row to a sum.
_MOST_HOLDERS = 100
# So many numbers tell a row from none, and a release from the bare sum; the rest is looked at where they do not.
_FIRST = 64
# By how much the norm of a sum may be above its bound: on the lattice as it is computed here, in floating point as updates of
# 16 bits may be clipped.
_FINE, _COARSE = 1 + 2.0**-20, 1 + 2.0**-7


class _Unchanged:
    """A check that a strategy of a user's class still is the promised one."""

    def __init__(self, mechanism: Mechanism) -> None:
        from hubbub.mechanism.utility import noising_matrix

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
        """Refuse a matrix, or a row of the noising matrix up to this round, that has changed."""
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


class ReleasePath(Uncopied):
    """Ledger, noise and folder of a run, in the order in which they must be used.

    Args:
        promise: What the run promises.
        dim: Numbers in a sum.
        clients: The most clients of a cohort.
        seed: Of a simulation.
        store: The folder; ``with store.locked():`` around all work keeps other processes out. ``None`` keeps all in memory.
        head: A head of the ledger that somebody kept.
        noise_in_sums: The caller guarantees that sums contain the promised noise before anyone reads them: the clients' shares,
            a sum of too few of which is aborted, or the row of each share holder.
        ranks: The processes that share the run, each of which makes the path and calls its methods. Rank 0 has ledger, folder
            and cohort keys; each rank makes, and remembers, its part of each row.
        listed: All clients in their order, where the promise counts on one list that stays; the ledger binds it.

    Raises:
        ParticipationError: The clients are listed otherwise than before.
        LedgerError: The folder holds another run; or its record is damaged, rolled back or closed.
        RunFolderError: A key or a release is missing, or is not this run's; or the disk has no room for the noise.
        ConfigError: More clients or noise than the lattice has room for; or noise in sums is promised and not guaranteed, or
            the reverse; or a delta below what the bits of the noise can hide.
        ValueError: More numbers than the lattice has room for; or a user's strategy whose stream does not invert its matrix or
            draws noise ahead.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import Identity
        >>> from hubbub.training.aggregate import PlainSum
        >>> mechanism = Mechanism(Identity(4), MinSeparation(2, 2), noise_multiplier=3.0)
        >>> path = ReleasePath(Promise(4, mechanism, simulation=True), dim=2, clients=2)
        >>> path.start()
        >>> total = PlainSum(torch.tensor([0.5, 0.5], dtype=torch.float64), statistics={})
        >>> ticket = path.begin(["anna", "ben"], total, clip_norm=1.0)
        >>> release = total.open(path.row(ticket))
        >>> path.commit(ticket, release)
        >>> path.ledger.rounds, path.ledger.may_join("anna", 1)
        (('committed',), False)
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
        ranks: Ranks | None = None,
        listed: Sequence[Hashable] | None = None,
    ) -> None:
        _require_answered_for(promise, dim, noise_in_sums)
        mechanism, self._secure, self._in_sums = promise.mechanism, not promise.simulation, noise_in_sums
        self._dim, self._store, self._lattice_bits, self._rounds = dim, store, promise.lattice_bits, promise.rounds
        # Noise in sums is whole steps, in a simulation, too.
        self._on_lattice = mechanism is not None and (self._secure or noise_in_sums)
        here = None if noise_in_sums else mechanism
        self._ranks, self._draws, self._listed = ranks or Ranks(), here is not None, listed
        self._parts = segments(dim, self._ranks.size)
        first, stop = self._parts[self._ranks.rank]
        remembered = (memory_rows(here.strategy) or 0) if here else 0
        # All ranks of a machine share its memory.
        together = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if self._ranks.size > 1 else 1
        require_memory(remembered, together * (stop - first))
        if mechanism and self._on_lattice:
            Lattice(1.0, self._lattice_bits).require_dim(dim)
        stated = dim, clients, seed, noise_in_sums
        self._ranks.require_same(
            "promise, number of clients or seed", lambda: fingerprint(strict_json.canonical(promise.record()), *stated)
        )
        # Of rank 0: the record.
        self._ledger: Ledger | None = None
        self._cohort_keys: CohortKeys | None = None
        self._next, epochs = self._ranks.lead(lambda: self._open(promise, clients, seed, head, remembered))
        self._source = IncarnationSource(epochs) if self._secure else SimulationSource(seed)
        part = None if self._ranks.size == 1 else (first, stop)
        self._noise = NoiseStream(here, dim, source=self._source, part=part) if here and stop > first else None
        if self._noise and store and part is None and self._next < self._rounds:
            store.unseal_noise(self._secret, self.ledger.chain, self._noise)
        self._foreign = _Unchanged(mechanism) if mechanism and type(mechanism.strategy) not in OWN else None
        self._started = False
        # The round in progress, its sum and a copy of it as it is, and the ticket whose row was given out.
        self._begun: tuple[Ticket, Sum, torch.Tensor | None] | None = None
        self._given: Ticket | None = None
        # Whether the row that was given moves a sum by a step or more: the sum itself is no release then.
        self._moves = False
        # Two threads would find the same row not given out yet.
        self._one_at_a_time = threading.RLock()

    @property
    def ledger(self) -> Ledger:
        """The ledger, of rank 0 alone.

        Raises:
            LedgerError: On another rank.
        """
        if self._ledger is None:
            raise LedgerError("rank 0 alone has the ledger; ask it by ranks.lead(lambda: path.ledger.…), or if ranks.leads")
        return self._ledger

    @property
    def cohort_keys(self) -> CohortKeys:
        """The keys of random cohorts, of rank 0 alone.

        Raises:
            LedgerError: On another rank.
        """
        if self._cohort_keys is None:
            raise LedgerError("rank 0 alone has the keys of cohorts; draw by ranks.lead(lambda: … path.cohort_keys …)")
        return self._cohort_keys

    @property
    def next_round(self) -> int:
        """The round of the next ticket."""
        return self.ledger.next_round if self._ranks.leads else self._next

    # A round: its cohort, its cost, its noise, its release.

    def draw(self, clients: Sequence[Hashable], size: float | None = None) -> list[Hashable]:
        """The cohort of the next round, as it was promised, from keys that are secret in a real run; each rank calls it.

        Args:
            clients: All of them, in the same order in each round.
            size: Of cohorts that follow a pattern; by default the largest that leaves enough clients for all rounds.

        Raises:
            ParticipationError: A client is listed twice, or too few may join.
            LedgerError: A round is in progress, whose cohort it would be once more, or none is left.
        """

        def drawn() -> list[Hashable]:
            ledger, mechanism = self.ledger, self.ledger.promise.mechanism
            if self._begun is not None:
                raise LedgerError(f"round {ledger.next_round} is in progress: draw the next cohort after its commit or abort")
            if ledger.next_round >= self._rounds:
                raise LedgerError(f"all {self._rounds} rounds are done, and none is left to draw a cohort for")
            participation = every_round(self._rounds) if mechanism is None else mechanism.participation
            many = participation.expected_cohort_size(len(clients), self._rounds) if size is None else size
            return draw(participation, ledger.next_round, clients, many, keys=self.cohort_keys, ledger=ledger)

        with self._one_at_a_time:
            self._require_started()
            return self._ranks.lead(drawn)

    def prepare_row(self) -> None:
        """Begin to draw the row of the next round in a thread, while its sum is computed elsewhere, as on a GPU.

        The row is what it is without, and :meth:`row` alone gives it out, to that round alone: if the round never begins,
        nobody gets it. The steps of a strategy of your own are left to :meth:`row`.
        """
        with self._one_at_a_time:
            self._require_started()
            if self._noise and not self._foreign and self._noise.round_index == self._next < self._rounds:
                self._noise.prepare()

    def begin(self, cohort: Cohort, total: Sum, clip_norm: float | None) -> Ticket:
        """Record the cost of the next round. On return it is on disk and the row of noise is spent.

        A sum that is longer than clip norm × clients was not clipped, and is refused before anything is recorded. That cannot
        be seen of sums that are formed later, are encrypted, contain noise, or are of a class of your own that is neither a
        ``LatticeSum`` nor a ``PlainSum``.

        Raises:
            ParticipationError: A client would break the promised pattern or comes twice, the sum holds more clients or is too
                long for them, or the cohort is larger than promised.
            LedgerError: The run has no further round, or the sum is in floating point where the noise is secure.
            ConfigError: The strategy is no longer the promised one.
            TypeError: The sum is none.
        """
        require_sum(total, "total")
        with self._one_at_a_time:
            self._require_started()
            known, round_index = total.total if isinstance(total, LatticeSum | PlainSum) else None, self.next_round
            if foreign := self._foreign:
                self._ranks.exchange(lambda: foreign.require(round_index))
            # One row would hide two sums, whose releases show their difference.
            self._ranks.require_same(
                "round, cohort, clip norm or sum",
                lambda: fingerprint(
                    round_index, list(cohort), clip_norm, total.lattice, total.digest(bytes(32)) if known is None else known
                ),
            )
            ticket = self._ranks.lead(lambda: self._recorded(cohort, total, clip_norm))
            self._begun = ticket, total, known.clone() if known is not None and self._draws else None
            return ticket

    def _recorded(self, cohort: Cohort, total: Sum, clip_norm: float | None) -> Ticket:
        lattice = total.lattice
        if (units := getattr(total, "units", 0)) > len(cohort):
            raise ParticipationError(
                f"round {self.next_round}: its sum holds {units} units, and its cohort names {len(cohort)}; name each unit"
            )
        promise = self.ledger.promise
        if units and promise.mechanism and promise.privacy_unit != "example":
            raise ConfigError(
                f"privacy_unit = {promise.privacy_unit!r}: this sum is of single clipped examples, and the promise is to hide "
                "all data of a client; say Promise(privacy_unit='example'), or clip all data of a client as one vector"
            )
        if self._on_lattice and (clip_norm is None or lattice != Lattice(clip_norm, self._lattice_bits)):
            bits = "" if self._lattice_bits == 24 else f", bits={self._lattice_bits}"
            raise LedgerError(
                f"round {self.next_round}: its sum is {'in floating point' if lattice is None else f'on {lattice}'}, from "
                f"whose last bits one can see who took part; form it on Lattice({clip_norm}{bits})"
                + ("" if self._noise is None else ", or say noise = 'simulation'")
            )
        if self._draws:
            if clip_norm is None:
                raise LedgerError(f"round {self.next_round}: clip_norm = None, to which its noise is scaled; give it a number")
            _require_clipped(self.next_round, total, len(cohort), clip_norm)
        return self.ledger.begin(self.next_round, cohort, total.digest(self._digest_key), clip_norm)

    def row(self, ticket: Ticket) -> torch.Tensor | None:
        """The round's row of noise at the scale of the sum, ``(dim,)``, returned once, for the sum that the round began with.

        ``None`` if the sum contains the noise, or no noise is promised. A second sum does not open with the row, nor does one
        that was changed, is on another lattice, or is in a forked process, and it cannot be pickled or copied by :mod:`copy`.
        Of a round that begins with the promise of a sum, as over a network, it opens any one on the lattice.

        Raises:
            LedgerError: The row was already returned, or the round was not begun here.
            RankError: A rank is gone; the round is aborted.
        """
        with self._one_at_a_time:
            self._require_started()
            self._ranks.lead(lambda: self.ledger.require_begun(ticket))
            if self._begun is None or self._begun[0] != ticket:
                raise LedgerError(
                    f"round {ticket.round_index}: was not begun by begin of this path, which checks its sum; abort it"
                )
            if not self._draws:
                self._given = ticket
                return None
            noise, (_, total, begun) = self._noise, self._begun
            if (noise and noise.round_index != ticket.round_index) or ticket.clip_norm is None:
                raise LedgerError(f"round {ticket.round_index}: its row of noise was given out already; abort the round")
            try:
                row = self._ranks.gathered(lambda: noise.next_row() if noise else None, self._parts, torch.float64)
            except RankError:
                if self._ranks.leads:
                    self._settle()
                raise
            # From here on there is no other way to it, and what scales it is done once.
            self._given = ticket
            step = None if total.lattice is None else total.lattice.step
            row.mul_(ticket.clip_norm)
            self._moves = step is not None and any(bool((row[:some].abs() > step / 2).any()) for some in (_FIRST, self._dim))
            return Row.of(row, ticket.round_index, begun, step)

    def commit(self, ticket: Ticket, release: torch.Tensor) -> None:
        """Write the release to disk, then its digest to the ledger. On return it may leave.

        Raises:
            LedgerError: The round was not begun, its row was not taken or not added, or this is no release of this run; or a
                required hook did not take the head: the round is committed, and its release leaves at the next start.
        """
        with self._one_at_a_time:
            self._require_started()
            self._ranks.lead(lambda: self._committed(ticket, release))
            self._next, self._begun = ticket.round_index + 1, None

    def _committed(self, ticket: Ticket, release: torch.Tensor) -> None:
        self.ledger.require_begun(ticket)
        if self._given != ticket:
            raise LedgerError(f"round {ticket.round_index}: its row of noise was not taken, so that this would be the bare sum")
        if release.shape != (self._dim,):
            raise LedgerError(
                f"round {ticket.round_index}: the release has shape {tuple(release.shape)}, this run's ({self._dim},)"
            )
        lattice = self._lattice_of(ticket, release)
        bare = self._begun[2] if self._begun and self._moves else None
        if (
            lattice
            and bare is not None
            and all(
                torch.equal(release[:some].to(bare.device, torch.float64) / lattice.step, bare[:some].double())
                for some in (_FIRST, self._dim)
            )
        ):
            raise LedgerError(f"round {ticket.round_index}: this is the bare sum, to which its row of noise was not added")
        # A release of a round that another process has aborted is not written.
        self.ledger.chain.require_unchanged()
        store, step = self._store, lattice.step if lattice else None
        content = store.save_release(ticket.round_index, release, step) if store else release.cpu().numpy().tobytes()
        self.ledger.commit(ticket, content)
        self._give_heads()

    def _lattice_of(self, ticket: Ticket, release: torch.Tensor) -> Lattice | None:
        """The lattice of a round, on which its release lies; ``None`` for a release in floating point."""
        if not self._on_lattice or ticket.clip_norm is None:
            return None
        lattice = Lattice(ticket.clip_norm, self._lattice_bits)
        if not lattice.holds(release):
            raise LedgerError(
                f"round {ticket.round_index}: the release is off the lattice of clip norm {ticket.clip_norm}; abort it, or "
                "remove the file of the release and resume, which aborts it"
            )
        return lattice

    def abort(self, ticket: Ticket) -> None:
        """Abort a begun round: its cost, its row of noise and its participations stay spent.

        Raises:
            LedgerError: The round was not begun, or a required hook did not take the head.
        """
        with self._one_at_a_time:
            self._ranks.lead(lambda: self._aborted(ticket))
            self._next, self._begun = ticket.round_index + 1, None
            if self._noise and self._started:
                self._noise.skip_to(ticket.round_index + 1)
            self._ranks.lead(self._give_heads)

    def _aborted(self, ticket: Ticket) -> None:
        self.ledger.require_begun(ticket)
        if self._store:
            # Before the record, so that no release of an aborted round is left behind.
            self._store.discard_release(ticket.round_index)
        self.ledger.abort(ticket)

    def _give_heads(self) -> None:
        """Send the heads that the hook has not taken; if a required hook fails, this path has ended."""
        if self._store:
            started, self._started = self._started, False
            self._store.give_heads(self.ledger)
            self._started = started

    def _require_started(self) -> None:
        if not self._started:
            raise LedgerError("the path is not open: call start first, which gives this process noise of its own")

    # A start: the record is opened, the round in progress settled, and an incarnation begun.

    def _open(
        self, promise: Promise, clients: int, seed: int, head: str | None, remembered: int
    ) -> tuple[int, list[tuple[int, bytes]]]:
        """Open the record; returns the next round, and the first row and key of each incarnation."""
        mechanism, store, dim = promise.mechanism, self._store, self._dim
        if mechanism and self._on_lattice:
            new = not (store and store.ledger_path.exists())
            _require_exact(mechanism, clients, holders=promise.noise_by == "holders", new=new)
        if store:
            store.make_durable()
            if not store.ledger_path.exists():
                if Traces.of(store, digests=False).tell or store.epochs():
                    raise RunFolderError(f"{store.ledger_path}: is missing, and the folder is of a run; restore the ledger")
                store.require_room(8 * dim * remembered)
                # On disk before the ledger, which names its digest.
                store.save_strategy(strategy_arrays(mechanism.strategy) if mechanism else {})
        secret = store.secret() if store and self._secure else fresh_key() if self._secure else derive(seed_key(seed), "run")
        self._ledger = Ledger(promise, secret, store.ledger_path if store else None, head=head)
        if self._listed is not None:
            self.ledger.require_same_clients(self._listed)
        if store and self.ledger.history.forgets:
            store.keep_releases = False
        self._cohort_keys = CohortKeys(derive(secret, "cohorts"), derive(secret, "cohorts"))
        self._secret, self._digest_key = secret, derive(secret, "sums")
        self._require_folder_not_newer()
        return self.ledger.next_round, self._epoch_keys() if self._secure else []

    def _require_folder_not_newer(self) -> None:
        """Refuse a ledger that was rolled back: it lacks what is in the folder, or the last head that a hook took."""
        if not self._store:
            return
        history = self.ledger.history
        if taken := self._store.taken():
            self.ledger.chain.require_head(taken)
        # Releases are compared when they are used.
        for unknown in Traces.of(self._store, digests=False).unknown(self.ledger.promise, self.ledger.chain, history):
            raise RunFolderError(
                f"{self._store.folder}: its ledger holds {len(history.rounds)} rounds and {len(history.epochs)} incarnations, "
                f"but {unknown}: it was rolled back; restore the ledger"
            )

    def _epoch_keys(self) -> list[tuple[int, bytes]]:
        """The first row and the key of each incarnation so far; a wrong key is refused."""
        found = []
        for number, epoch in enumerate(self.ledger.history.epochs):
            if epoch.key is not None and not self.ledger.history.closed:
                key = self._store.noise_key(number) if self._store else b""
                if self.ledger.digest("key", key) != epoch.key:
                    raise RunFolderError(f"state/keys/epoch-{number}: is not the key that this run's noise was drawn from")
                found.append((epoch.first_row, key))
        return found

    def start(self) -> None:
        """Settle the round in progress of the last incarnation, and begin a new one with its own key.

        Raises:
            LedgerError: The run is closed, or a required hook did not take the heads of its rounds.
            RunFolderError: Noise that was drawn before cannot be drawn again bit for bit on this machine.
        """
        with self._one_at_a_time:
            self._ranks.exchange(self._require_none_prepared)
            self._next = self._ranks.lead(self._settled)
            self._started = True
            if self._next >= self._rounds:
                return
            drawn = 0
            if self._noise:
                self._noise.skip_to(self._next)
                drawn = self._noise.drawn
            key = self._ranks.lead(lambda: self._incarnated(drawn))
            if key and isinstance(self._source, IncarnationSource):
                self._source.start(drawn, key)

    def _require_none_prepared(self) -> None:
        if self._noise and self._noise.prepared:
            raise LedgerError(
                f"round {self._noise.round_index}: its row was prepared; make a path anew, which has noise of its own"
            )

    def _settled(self) -> int:
        """Settle the round in progress, and see to it that earlier noise can be drawn again; returns the next round."""
        if self.ledger.history.closed:
            raise LedgerError("this run was closed and its keys destroyed; start a new one, whose cost adds to this one's")
        self._settle()
        self.ledger.chain.repair()
        self._give_heads()
        done = self.ledger.next_round
        again = self._noise is not None and done < self._rounds and self._noise.draws_to(done)
        if again and any(epoch.sampler != sampler() for epoch in self.ledger.history.epochs):
            raise RunFolderError(
                "state/keys: the noise of earlier rounds cannot be drawn again bit for bit here, since this processor, torch "
                "or hubbub computes other last bits; resume with the versions that the run was started with, or start a new run"
            )
        return done

    def _settle(self) -> None:
        """Commit the round in progress if its release is on disk whole; abort it otherwise.

        A simulation without a release repeats the same round, unless others draw its noise or its sum was encrypted: that sum
        would be another one.
        """
        pending = self.ledger.pending()
        if pending is None:
            return
        if self._store and pending.round_index in self._store.released():
            content = self._store.release_content(pending.round_index)
            self._lattice_of(pending, self._store.parse_release(pending.round_index, content, self._dim))
            self.ledger.commit(pending, content)
        elif self._secure or self._in_sums or self.ledger.promise.setting:
            self._aborted(pending)

    def _incarnated(self, drawn: int) -> bytes | None:
        """Begin an incarnation on record; returns its key, from which the rows from ``drawn`` on are drawn."""
        key, mechanism = None, self.ledger.promise.mechanism
        if self._secure and mechanism:
            key = fresh_key()
            if self._store:
                # A key that another process has recorded is not written over.
                self.ledger.chain.require_unchanged()
                self._store.add_noise_key(len(self.ledger.history.epochs), key)
        self.ledger.start_epoch(drawn, key, sampler(), self._ranks.size, self._listed)
        if key and self._store:
            self._store.number_noise_key(len(self.ledger.history.epochs) - 1)
        if mechanism and key:
            self._cohort_keys = self.cohort_keys.renewed(mechanism.participation, key)
        return key

    # Between rounds.

    def released(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        """The committed releases from round ``start`` up to ``stop``, each compared with its digest."""
        for round_index, entry in enumerate(self.ledger.history.rounds[start:stop], start):
            if entry.release is not None and self._store:
                yield self._store.load_release(round_index, entry.release, self._dim)

    def keep_noise(self) -> None:
        """Save the rows that later rounds need, so that the next start does not draw them again, as several ranks do."""
        with self._one_at_a_time:
            # A row that is prepared has moved the noise on to a round that has not begun.
            if not self._store or not self._noise or self._ranks.size > 1 or self._noise.prepared:
                return
            if memory_rows(self._noise.mechanism.strategy) != 0:
                self._store.seal_noise(self._noise, self._secret, self.ledger.head)

    def make_room(self) -> None:
        """Keep releases only until the next checkpoint from now on, if the disk is short of room.

        Unless it was promised, this is on record before the first release is removed.
        """
        if self._store and self._store.short_of_room:
            self._store.keep_releases = False
        forgets = self._store is not None and not self._store.keep_releases
        if forgets and self.ledger.promise.terms.keep_releases and not self.ledger.history.forgets:
            self.ledger.forget()


def _require_clipped(round_index: int, total: Sum, clients: int, clip_norm: float) -> None:
    """Refuse a sum so long that an update in it was longer than the clip norm, by the triangle inequality."""
    if not isinstance(total, LatticeSum | PlainSum):
        return
    step, rounded = (1.0, _COARSE) if total.lattice is None else (total.lattice.step, _FINE)
    # Its own norm is private, and stays out of the message.
    if not float(total.total.to(torch.float64).norm()) * step <= clients * float(clip_norm) * rounded:
        raise ParticipationError(
            f"round {round_index}: its sum is longer than {clients} clients × clip_norm = {clip_norm}, or not finite, as that "
            "of clipped updates is not; clip each as one vector (Lattice.encode, or hubbub.training.clip in a simulation), and "
            "name each client in the cohort"
        )


def _require_answered_for(promise: Promise, dim: int, in_sums: bool) -> None:
    """Refuse promised noise that nobody adds, which would release bare sums, and noise in sums that is not promised."""
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
    promise.require_delta(promise.delta, dim)


def _require_exact(mechanism: Mechanism, clients: int, *, holders: bool, new: bool) -> None:
    """Refuse, before the first round, sums beyond the lattice, and a strategy whose stream does not invert its matrix."""
    if mechanism.shares is not None:
        # Each client adds a share sized for the fewest clients.
        require_room(clients, mechanism.stddev * math.sqrt(max(1.0, clients / mechanism.shares.clients)))
        return
    rows = _MOST_HOLDERS if holders else 1
    require_room(clients, rows * mechanism.stddev)
    from hubbub.mechanism.utility import largest_deviation, require_inverse, require_no_look_ahead

    if new:
        require_room(clients, min(rows * largest_deviation(mechanism), sys.float_info.max))
    if type(mechanism.strategy) not in OWN:
        require_inverse(mechanism.strategy)
        require_no_look_ahead(mechanism.strategy)
