"""The ledger: the promise, the participants and the releases of a run, recorded in the order that keeps them safe.

The cost of a round is recorded before its noise meets the sum, and its release before anybody sees it::

    begin    the cohort is checked against the pattern; the cost is on disk (fsync) before any noise is added to the sum
    commit   the release is on disk, then its digest; only then may it leave
    abort    a round that was begun and did not commit: its cost stays spent, its row is used up, and its clients took part

Behind the last round it binds what was made of them, by SHA-256: ``files`` the model with its settings and its guarantee,
``publish`` what others were given.

On disk it is a :class:`~hubbub.ledger.chain.Chain`, and next to it the cohorts (:mod:`hubbub.ledger.participations`), a block
before each ``begin`` that binds it. It holds no bare hash of anything private: clients and sums stand in it by keyed hashes
under a secret of the run, so that separation is kept over restarts and nobody can test a guess.
"""

import hashlib
import hmac
import math
import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hubbub._util import files, strict_json
from hubbub._util.checks import integer, scale, shown
from hubbub._util.prf import Uncopied
from hubbub.accounting.statement import PrivacyGuarantee
from hubbub.accounting.wording import count
from hubbub.errors import LedgerError, ParticipationError
from hubbub.ledger.actual_cost import breaches
from hubbub.ledger.chain import Chain, read_chain
from hubbub.ledger.history import History
from hubbub.ledger.participations import TAG_BYTES, Participations, cohorts_path
from hubbub.ledger.promise import Promise
from hubbub.mechanism import participation as parts

_COMPUTED = ("key", "mechanism.epsilon", "mechanism.l2_sensitivity", "mechanism.stddev")
_MOST_NAMED = 4
# The logarithm of a chance by which no right run is refused.
_UNLIKELY = math.log(1e-15)
# Random cohorts whose epsilon depends on the rounds of one name, or on how many names there are.
_FOLLOWED = (parts.CyclicPoissonSampling, parts.BallsInBinsSampling, parts.TruncatedPoissonSampling)


@dataclass(frozen=True)
class Ticket:
    """A round whose cost is recorded, and which may get its noise now; ``clip_norm`` is the scale of its sum and noise."""

    round_index: int
    clip_norm: float | None = None


class Ledger(Uncopied):
    """The record of a run.

    Args:
        promise: What the run promises.
        secret: 32 bytes under which clients and sums are recorded.
        path: The file, created when missing; ``None`` keeps the ledger in memory. One that is there stays as it is until the
            first record, so that a caller who refuses the folder has not changed it.
        head: A head that somebody kept: a file that does not hold it was rolled back.

    Attributes:
        chain: Its records.
        history: Their content, read-only.

    Raises:
        LedgerError: The file is damaged, was written for another promise, or does not hold the head.

    Example:
        >>> from hubbub.mechanism import Mechanism
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import Identity
        >>> mechanism = Mechanism(Identity(4), MinSeparation(2, 2), noise_multiplier=3.0)
        >>> ledger = Ledger(Promise(4, mechanism, simulation=True), secret=bytes(32))
        >>> ledger.commit(ledger.begin(0, ["anna", "ben"], digest="sum", clip_norm=1.0), b"release")
        >>> ledger.may_join("anna", 1), ledger.may_join("anna", 2), ledger.rounds
        (False, True, ('committed',))
    """

    def __init__(self, promise: Promise, secret: bytes, path: Path | None = None, *, head: str | None = None) -> None:
        self.promise = promise
        self._secret = secret
        self.history = History()
        # The last list of clients that was looked through, the order of their tags, and the tags in that order.
        self._listed: tuple[Sequence[Hashable], npt.NDArray[np.int64], npt.NDArray[np.uint64]] | None = None
        # Who was in random cohorts since the ledger was opened; never on disk, where it would be secret.
        self._drawn = Participations(cohorts=False)
        # How many cohorts since then had each size.
        self._sizes = Counter[int]()
        # Whether memory and file are one state; and whether the file of cohorts may hold more than the records account for.
        self._sound, self._unrecorded = True, True
        if path is not None and path.is_symlink():
            raise LedgerError(f"{path}: is a symbolic link; a ledger is a file in the folder of its run")
        new = path is None or not path.exists()
        if path is not None and new and os.path.lexists(cohorts_path(path)):
            raise LedgerError(
                f"{cohorts_path(path)}: has the cohorts of a ledger that is gone; restore it, or take another folder"
            )
        self.chain = Chain(path) if path is None or new else read_chain(path)
        if head is not None:
            self.chain.require_head(head)
        if new:
            self.chain.append(self._first())
            return
        self._require_same_promise(self.chain.records[0])
        self.history = History.of_chain(self.chain)
        # A departure from the promise may cost more than the epsilon computed from it.
        for broken in breaches(promise, self.history).words:
            raise LedgerError(f"{path}: {broken}")
        if path is not None and self.history.unrecorded > 1:
            raise LedgerError(
                f"{path}: {cohorts_path(path).name} has cohorts of more rounds: it was rolled back; restore the ledger"
            )

    @property
    def head(self) -> str:
        """The hash of the last record: whoever keeps it can see whether the file was rolled back."""
        return self.chain.head

    @property
    def run(self) -> str:
        """The hash of the promise, which identifies the run."""
        return self.chain.hashes[0]

    @property
    def next_round(self) -> int:
        """The first round that was neither released nor aborted."""
        return self.history.next_round

    @property
    def rounds(self) -> tuple[str, ...]:
        """``"committed"``, ``"aborted"`` or ``"begun"`` for each round so far."""
        return tuple(entry.state for entry in self.history.rounds)

    def digest(self, name: str, content: bytes) -> str:
        """An HMAC under the run's secret: equal contents can be recognized, contents cannot be guessed."""
        return keyed_digest(self._secret, name, content)

    def may_join(self, client: Hashable, round_index: int) -> bool:
        """Whether the promised pattern lets this client join this round, given the rounds that it joined.

        Args:
            client: By the name under which it takes part.
            round_index: t, from 0.
        """
        return bool(self.standing([client], round_index)[0][0])

    def standing(self, clients: Sequence[Hashable], round_index: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.integer]]:
        """Of each client of a list whether it may join this round, as :meth:`may_join` says, and how many it joined before it.

        A list that is the one of the last call, or equal to it, is not hashed again.
        """
        held = clients if isinstance(clients, range | tuple) else tuple(clients)
        if self._listed is None or self._listed[0] != held:
            tags = self._tags(held)
            order = np.argsort(tags)
            self._listed = held, order, tags[order]
        _, order, tags = self._listed
        found, numbers = self.history.participations, np.empty(len(order), np.int64)
        numbers[order] = found.numbers(tags)
        known, counts, last = numbers >= 0, np.zeros(len(numbers), np.int32), np.zeros(len(numbers), np.int32)
        # A simulation repeats a round that was cut off, with those who were in it.
        joined, latest = found.before_last() if self.history.pending == round_index else (found.counts, found.last)
        counts[known], last[known] = joined[numbers[known]], latest[numbers[known]]
        return self._allowed(counts, last, round_index), counts

    def participations(self, client: Hashable) -> tuple[int, ...]:
        """The rounds that a client joined, aborted ones counted; of random cohorts no list is kept."""
        found = self.history.participations
        return found.rounds_of(int(found.numbers(self._tags([client]))[0]))

    def start_epoch(
        self, first_row: int, key: bytes | None, sampler: str, ranks: int = 1, clients: Sequence[Hashable] | None = None
    ) -> None:
        """Record an incarnation of the run, and that rows of z from ``first_row`` on come from a new key.

        Args:
            first_row: The first row of z that was never drawn.
            key: Of a secure run, on disk by now; ``None`` in a simulation, whose rows come from its seed.
            sampler: A fingerprint of how keys become noise on this machine.
            ranks: The number of processes that share the rounds from now on.
            clients: All clients in their order, where the promise counts on one list that stays.
        """
        digest, number = None if key is None else self.digest("key", key), len(self.history.epochs)
        body = {"kind": "epoch", "epoch": number, "first_row": first_row, "key": digest, "sampler": sampler}
        shared = {"ranks": ranks} if ranks > 1 else {}
        listed = {} if clients is None else {"listed": self._list_digest(clients)}
        self._append({**body, **shared, **listed})

    def require_same_clients(self, clients: Sequence[Hashable]) -> None:
        """Refuse a list of clients other than that of the incarnations before.

        Raises:
            ParticipationError: The clients or their order differ.
        """
        if self.history.epochs and self.history.epochs[-1].listed != self._list_digest(clients):
            raise ParticipationError(
                f"{self.chain.path}: the run began with other clients than the {len(clients)} that are listed now, or with the "
                "same in another order, and what it promises counts on one list that stays: resume with the clients of before, "
                "or start a new run"
            )

    def _list_digest(self, clients: Sequence[Hashable]) -> str:
        """The HMAC of the names of all clients, as texts, as cohorts have them; of numbers from 0 that of how many."""
        numbered = isinstance(clients, range) and clients == range(len(clients))
        names = [] if numbered else list(map(str, clients))
        numbered = numbered or all(name == str(place) for place, name in enumerate(names))
        return self.digest("clients", strict_json.canonical(len(clients) if numbered else names))

    def begin(self, round_index: int, cohort: Sequence[Hashable], digest: str, clip_norm: float | None = None) -> Ticket:
        """Record the cost of a round. When this returns, the record is on disk.

        A cohort that the promise cannot give is refused. Of a pattern the ledger knows who took part when, over all starts. Of
        random cohorts it knows no names on disk: it refuses more clients than a cohort of a fixed size, or a truncated one,
        has, and, as far as it saw since it was opened, a client in rounds of two groups or bins, more clients than the
        ``population`` of truncated cohorts, and Poisson cohorts most of which are of one size. The epsilon of other cohorts
        depends on neither names nor number: further clients of a fixed-size sample only lower the chance of each.

        Args:
            round_index: The next round.
            cohort: Its clients.
            digest: The HMAC of the sum; it is recorded under the run's secret once more, so that a bare hash does no harm.
            clip_norm: To which each of its updates was clipped.

        Raises:
            ParticipationError: A client would break the pattern, or comes twice, or cohorts are none that the promise gives.
            TypeError: A client is known by something else than a text or a whole number.
            LedgerError: Not the next round, past the last one, after the end, of another clip norm than promised, or a round of
                a simulation that is done again with another sum.
        """
        if isinstance(cohort, str | bytes):
            raise TypeError(f"cohort = {shown(cohort)}: must be a list of clients, such as [{shown(cohort)}]")
        round_index = integer("round_index", round_index, at_least=0)
        if self.next_round >= self.promise.rounds:
            raise LedgerError(f"round_index = {round_index}: all {self.promise.rounds} rounds are done, and none is left")
        if round_index != self.next_round:
            raise LedgerError(
                f"round_index = {round_index}: the next round is {self.next_round} of {self.promise.rounds}; "
                "a row of noise is used once, in order"
            )
        clip_norm, fixed = None if clip_norm is None else scale("clip_norm", clip_norm), self.promise.terms.clip_norm
        if fixed is not None and clip_norm != fixed:
            raise LedgerError(
                f"clip_norm = {clip_norm}: the run promised {fixed}; clip each update to that, or start a new run"
            )
        total = self.digest("sum", digest.encode())
        if self.history.pending is not None:
            self._require_repeatable(total)
            return Ticket(round_index, clip_norm)
        tags, epoch = self._admit(cohort, round_index), self.history.epoch
        listed = tags if self.promise.lists_clients else None
        block = b"" if listed is None else self.history.participations.block(round_index, listed)
        clients = None if listed is None else len(listed)
        bound = None if listed is None else hashlib.sha256(block).hexdigest()
        body = {"round": round_index, "epoch": epoch, "clients": clients, "cohort": bound, "sum": total, "clip_norm": clip_norm}
        self._append({"kind": "begin", **body}, block)
        if tags is not None and listed is None:
            self._drawn.add(round_index, self._drawn.block(round_index, tags))
        self._sizes[len(cohort)] += 1
        return Ticket(round_index, clip_norm)

    def commit(self, ticket: Ticket, release: bytes) -> None:
        """Record a release that is on disk; afterwards it may leave.

        Args:
            ticket: Of :meth:`begin`.
            release: The content of its file.

        Raises:
            LedgerError: Another round is pending, or the file of the ledger was changed by another process.
        """
        self.require_begun(ticket)
        self._append({"kind": "commit", "round": ticket.round_index, "release": hashlib.sha256(release).hexdigest()})

    def abort(self, ticket: Ticket) -> None:
        """Abort a begun round: its cost stays spent.

        Args:
            ticket: Of :meth:`begin`.

        Raises:
            LedgerError: Another round is pending, or the file of the ledger was changed by another process.
        """
        self.require_begun(ticket)
        self._append({"kind": "abort", "round": ticket.round_index})

    def pending(self) -> Ticket | None:
        """The round that was begun and neither committed nor aborted."""
        pending = self.history.pending
        return None if pending is None else Ticket(pending, self.history.rounds[pending].clip_norm)

    def require_begun(self, ticket: Ticket) -> None:
        """Refuse a ticket of another round than the one that is pending.

        Raises:
            LedgerError: It is.
        """
        if self.pending() != ticket:
            raise LedgerError(f"round {ticket.round_index} is not the one that was begun: {self.pending()}")

    def bind(self, files: Mapping[str, str]) -> None:
        """Record the SHA-256 of what was made of the rounds so far; what is recorded already is not recorded again.

        Raises:
            LedgerError: Other digests are on record, and no round since.
        """
        if self.history.files is not None and self.history.files != files:
            raise LedgerError(f"{', '.join(files)}: changed since the last round; restore what the ledger binds")
        if self.history.files is None:
            self._append({"kind": "files", "files": dict(files)})

    def forget(self) -> None:
        """Record, before the first of them goes, that from here on releases stay no longer than to the next checkpoint."""
        self._append({"kind": "forget"})

    def spent(self, delta: float) -> PrivacyGuarantee:
        """The guarantee of the rounds recorded so far, aborted ones among them, together with the earlier runs.

        Here it is the promise so far: whatever would cost more is refused, when the ledger is opened and at each begin. For the
        records of others see :func:`hubbub.ledger.actual_cost.spent`.

        It may be stated for the whole run if the run ends here for a reason that does not depend on the data; otherwise the
        promise for all rounds is the statement.
        """
        return self.promise.after(len(self.history.rounds), delta)

    def statement(self, delta: float | None = None) -> str:
        """The full privacy statement of the rounds recorded so far, to be published; by default at the promised delta."""
        return self.spent(self.promise.delta if delta is None else delta).statement(self.promise.facts(self.head))

    def _append(self, body: Mapping[str, Any], block: bytes = b"") -> None:
        """Write a record, and before it its block of the file of cohorts."""
        if self.history.closed:
            raise LedgerError(f"{self.chain.path or 'this ledger'}: was closed; no round can follow")
        if not self._sound:
            raise LedgerError(f"{self.chain.path or 'this ledger'}: could not be brought back after an error; open it again")
        self.chain.repair()
        size, undo, self._sound = self.history.cohorts_size, self.history.undo(), False
        try:
            self.history.apply(body, block)
            if block:
                self._keep(block, size)
            self.chain.append(body)
        except BaseException:
            self._unrecorded = True
            undo()
            self._sound = True
            raise
        self._sound = True

    def _keep(self, block: bytes, at: int) -> None:
        """Write a block durably, over an unrecorded one that an interrupted write left."""
        if self.chain.path is None:
            return
        path = cohorts_path(self.chain.path)
        # First, so that a block that another process has recorded is not written over.
        self.chain.require_unchanged()
        held = path.lstat().st_size if os.path.lexists(path) else 0
        if held < at or (held > at and not self._unrecorded):
            raise LedgerError(
                f"{path}: holds {held} bytes, not the {at} that were recorded; restore it, and open the ledger again"
            )
        if not at:
            files.write_atomic(path, block)
        else:
            if held > at:
                files.truncate(path, at)
            files.append(path, block, at=at)
        self._unrecorded = False

    def _require_repeatable(self, total: str) -> None:
        """A simulation that was interrupted in a round draws the very same round again; nothing else may."""
        if not self.promise.simulation and self.promise.mechanism is not None:
            raise LedgerError(f"round {self.next_round} was begun already; commit it or abort it")
        if self.history.rounds[-1].total != total:
            raise LedgerError(
                f"round {self.next_round} was begun with another sum: its row of noise must not meet two; resume without "
                "changing the data, or start a new run"
            )

    def _tags(self, clients: Sequence[Hashable]) -> npt.NDArray[np.uint64]:
        """The tag of each client, ``(clients,)``: 64 bits of keyed BLAKE2b (RFC 7693) of its name as text."""
        for kind in set(map(type, clients)) if not isinstance(clients, range) else ():
            if kind is bool or not issubclass(kind, str | int | np.integer):
                # Of other values two may be equal and have different texts, or the same one another text in the next start.
                client = next(client for client in clients if type(client) is kind)
                raise TypeError(f"client {client!r}: must be a text or a whole number, not {kind.__name__}")
        keyed, found = hashlib.blake2b(digest_size=TAG_BYTES, key=self._secret, person=b"client"), bytearray()
        for client in clients:
            tag = keyed.copy()
            tag.update(str(client).encode())
            found += tag.digest()
        return np.frombuffer(found, "<u8").astype(np.uint64)

    def _allowed(
        self, counts: npt.NDArray[np.integer], last: npt.NDArray[np.integer], round_index: int
    ) -> npt.NDArray[np.bool_]:
        """Whether clients may join a round, given how many they joined, and their last ones."""
        if self.promise.mechanism is None:
            return np.ones(len(counts), dtype=bool)
        return self.promise.mechanism.participation.may_follow(counts, last, round_index)

    def _admit(self, cohort: Sequence[Hashable], round_index: int) -> npt.NDArray[np.uint64] | None:
        """The tags of the clients, where a promise about them is checked by name; refused as a whole if one would break it."""
        if len(set(cohort)) != len(cohort):
            raise ParticipationError(f"round {round_index}: a client is in the cohort twice")
        tags = self._tags(cohort)
        if len(np.unique(tags)) != len(tags):
            raise ParticipationError(f"round {round_index}: two clients of the cohort have one name as text")
        mechanism, listed = self.promise.mechanism, self.promise.lists_clients
        if mechanism is None:
            return None
        promised, found = mechanism.participation, self.history.participations if listed else self._drawn
        if isinstance(promised, parts.FixedSizeSampling):
            self._require_count(round_index, len(cohort), promised.cohort_size, "in its cohort")
        if isinstance(promised, parts.TruncatedPoissonSampling):
            self._require_count(round_index, len(cohort), promised.max_cohort_size, "in its cohort")
        if isinstance(promised, parts.PoissonSampling | parts.CyclicPoissonSampling):
            self._require_drawn(round_index, len(cohort), promised.sampling_probability)
        if not listed and not isinstance(promised, _FOLLOWED):
            return None
        numbers = found.numbers(tags)
        if isinstance(promised, parts.TruncatedPoissonSampling):
            clients = found.clients + int((numbers < 0).sum())
            self._require_count(round_index, clients, promised.population, "in the rounds so far")
        known = np.flatnonzero(numbers >= 0)
        numbers = numbers[known]
        free = self._allowed(found.counts[numbers], found.last[numbers], round_index)
        if not free.all():
            place, number = int(known[np.argmin(free)]), int(numbers[np.argmin(free)])
            raise ParticipationError(
                f"client {cohort[place]!r} may not join round {round_index}: it took part in "
                + (f"rounds {list(found.rounds_of(number))}" if listed else f"round {found.last[number]}")
                + f" and the run promised {promised}"
            )
        return tags

    def _require_drawn(self, round_index: int, size: int, q: float) -> None:
        """Refuse cohorts most of which are of one size, as batches of a shuffled list are; drawn one by one, they are not.

        Whatever the number of clients in a round, its cohort is likeliest of that size if they are n = ⌊size / q⌋, and then
        with a probability of at most 1 / √(2π · size · (1 − size/n)), by Stirling. So the chance that m of the T cohorts
        before one have its size is at most C(T, m) times the power of that; a union over the rounds bounds that it is ever.
        """
        seen, among, clients = self._sizes[size], self._sizes.total(), size / q
        if not size:
            return
        rest = 1 - size / (math.floor(clients) if clients < 2**53 else clients)
        log_chance = -0.5 * math.log(2 * math.pi * size * rest) if rest else size * math.log(q)
        choices = math.lgamma(among + 1) - math.lgamma(seen + 1) - math.lgamma(among - seen + 1)
        if seen * log_chance + choices + math.log(self.promise.rounds) < _UNLIKELY:
            raise ParticipationError(
                f"round {round_index}: {seen} of {among} cohorts before it had {count(size, 'client')} each, as it has, and "
                f"where each client is drawn by itself with probability {q:g}, that happens in less than one of 10^15 runs; "
                "draw each by itself, or promise how batches are dealt out (FixedEpochs, MinSeparation)"
            )

    def _require_count(self, round_index: int, count: int, most: int, where: str) -> None:
        """Refuse more clients than the promise has."""
        if count > most:
            promised = self.promise.mechanism and self.promise.mechanism.participation
            raise ParticipationError(
                f"round {round_index}: there are {count} clients {where}, and the run promised {promised}, whose epsilon is of "
                f"{most} at most; draw cohorts as promised, or promise what will come"
            )

    def _first(self) -> dict[str, Any]:
        """The first record: the promise, and a digest of the key for clients and sums."""
        return {"kind": "promise", "key": self.digest("key", self._secret), **self.promise.record()}

    def _require_same_promise(self, stated: Mapping[str, Any]) -> None:
        """Refuse a file of another run, and name what differs."""
        expected, found = _flat(self._first()), _flat(stated)
        changed = sorted(key for key in expected | found if expected.get(key) != found.get(key))
        if changed == ["key"]:
            raise LedgerError(
                f"{self.chain.path or 'the ledger'}: was written under another key than state/keys/run; restore the one of "
                "the two that is another run's"
            )
        if changed:
            # Settings come first; computed values are named only if no setting differs.
            named = [key for key in changed if key not in _COMPUTED] or changed
            differences = [f"{key} was {shown(found.get(key))}, is {shown(expected.get(key))}" for key in named[:_MOST_NAMED]]
            more = f", and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
            where = f"{self.chain.path}: " if self.chain.path else ""
            raise LedgerError(
                f"{where}the ledger was written for another promise: {', '.join(differences)}{more}; resume with the settings "
                "of before, or start a new run in a folder of its own, whose privacy cost adds to that of this one"
            )


def keyed_digest(secret: bytes, name: str, content: bytes) -> str:
    """The HMAC under a run's secret by which its ledger knows a content of this name."""
    # hmac.digest takes no 2 GiB.
    tag = hmac.new(secret, name.encode() + b"\0", "sha256")
    tag.update(content)
    return tag.hexdigest()


def end_run(path: Path, *, early: bool = False, release: bytes | None = None) -> None:
    """Record that a run has ended permanently, so that no round can follow. Needs no key.

    A round under way is committed if its ``release``, the content of a file, is given, and aborted otherwise. Rounds are left
    undone only if ``early`` is said.
    """
    chain = read_chain(path)
    history = History.of_chain(chain)
    if history.closed:
        return
    with files.refusing(Path(f"{path}, line 1"), "is no promise", kind=LedgerError):
        planned = integer("rounds", chain.records[0]["rounds"], at_least=1)
    done = history.next_round + (history.pending is not None and release is not None)
    if done < planned and not early:
        raise LedgerError(
            f"{path}: {done} of {planned} rounds are done; finish the run ('hubbub resume', or its ServerApp), or end it here "
            "permanently with --early"
        )
    chain.repair()
    if history.pending is not None:
        released = {} if release is None else {"release": hashlib.sha256(release).hexdigest()}
        chain.append({"kind": "commit" if released else "abort", "round": history.pending, **released})
    chain.append({"kind": "close"})


def add_record(path: Path, body: Mapping[str, Any]) -> Chain:
    """Add a record that needs no key to the ledger of a run that is not at work; call it with the folder locked."""
    chain = read_chain(path)
    History.of_chain(chain, body)
    chain.repair()
    chain.append(body)
    return chain


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested records by dotted names, so that a message can name what differs."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
