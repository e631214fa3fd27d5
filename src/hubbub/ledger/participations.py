"""Who took part when: clients by number, and the file that keeps the cohorts of a run next to its ledger.

A ledger knows a client by its tag, 64 bits of a keyed hash of its name, and gives it the next number when it first takes
part. The file ``ledger.cohorts`` has one block a round, which the record of its ``begin`` binds by SHA-256. Little-endian::

    uint32 round, uint32 known, uint32 new
    uint32 × known    the numbers of clients that took part before, increasing
    uint64 × new      the tags of those that did not, increasing; they get the next numbers in this order

So a participation takes 4 bytes, a client's first 8. Two clients with one tag, of which there is a chance of 3 in a million
among ten million, would count as one that took part in the rounds of both: that can refuse a round, and never allow one.
"""

import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hubbub._util import files
from hubbub.errors import LedgerError
from hubbub.mechanism.participation import Participation

TAG_BYTES = 8
_LONGEST = 2**36
_HEADER = struct.Struct("<3I")
_Numbers = npt.NDArray[np.uint32]
_Tags = npt.NDArray[np.uint64]


def cohorts_path(ledger: Path) -> Path:
    """The file of the cohorts that goes with a ledger's."""
    return ledger.with_suffix(".cohorts")


def whole_block(content: bytes | memoryview, start: int) -> int | None:
    """Where the block that begins at ``start`` ends; ``None`` where the content ends before."""
    if start + _HEADER.size > len(content):
        return None
    _, known, new = _HEADER.unpack_from(content, start)
    end = start + _HEADER.size + 4 * known + TAG_BYTES * new
    return end if end <= len(content) else None


def read_cohorts(ledger: Path) -> bytes:
    """The content of the file of cohorts of a ledger's; empty where there is none."""
    path = cohorts_path(ledger)
    with files.refusing(path, "cannot be read", kind=LedgerError):
        return files.read(path, at_most=_LONGEST) if os.path.lexists(path) else b""


def blocks_behind(content: memoryview, start: int, round_index: int) -> int:
    """How many blocks, of this round and those after it, lie behind ``start``: 0, 1, or 2 for more than one."""
    count, end = 0, whole_block(content, start)
    while count < 2 and end is not None and _HEADER.unpack_from(content, start)[0] == round_index + count:
        count, start, end = count + 1, end, whole_block(content, end)
    return count


class Participations:
    """The rounds that each client joined, aborted ones counted; of random cohorts no list is kept.

    Clients are numbered from 0 in the order in which they first took part. Without ``cohorts`` only how often each took
    part, and its last round, are known: no cohort but the last is held.

    Example:
        >>> found = Participations()
        >>> tags = np.array([70, 50], dtype=np.uint64)
        >>> found.add(0, found.block(0, tags))
        >>> found.add(1, found.block(1, tags[:1]))
        >>> found.clients, found.rounds_of(found.numbers(tags)[0]), found.rounds_of(found.numbers(tags)[1])
        (2, (0, 1), (0,))
        >>> counted = Participations(cohorts=False)
        >>> for t in range(2):
        ...     counted.add(t, counted.block(t, tags))
        >>> counted.counts.tolist(), counted.last.tolist(), counted.rounds_of(0)
        ([2, 2], [1, 1], (1,))
    """

    def __init__(self, *, cohorts: bool = True) -> None:
        self.clients, self._every = 0, cohorts
        self._tags: _Tags = np.empty(0, np.uint64)
        self._counts: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._last: npt.NDArray[np.int32] = np.empty(0, np.int32)
        # The last rounds before the last one, of its cohort; and the cohort of each round that has one.
        self._before: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._cohorts: dict[int, _Numbers] = {}
        # Tags in order, and the number of each; made when somebody asks.
        self._index: tuple[_Tags, _Numbers] | None = None

    @property
    def counts(self) -> npt.NDArray[np.int32]:
        """``(clients,)``, read-only: in how many rounds each took part."""
        return np.broadcast_to(self._counts[: self.clients], self.clients)

    @property
    def last(self) -> npt.NDArray[np.int32]:
        """``(clients,)``, read-only: the last round of each."""
        return np.broadcast_to(self._last[: self.clients], self.clients)

    def tag(self, number: int) -> str:
        """By what the ledger knows a client, as 16 hexadecimal digits."""
        return f"{int(self._tags[number]):016x}"

    def numbers(self, tags: _Tags) -> npt.NDArray[np.int64]:
        """``(clients,)``: the number of each client of these tags, −1 where it never took part."""
        known, numbers = self._sorted()
        if not len(known):
            return np.full(len(tags), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(known, tags), len(known) - 1)
        return np.where(known[places] == tags, numbers[places].astype(np.int64), -1)

    def block(self, round_index: int, tags: _Tags) -> bytes:
        """What the file gets for a round of the clients with these tags, each once."""
        numbers = self.numbers(tags)
        known, new = np.sort(numbers[numbers >= 0]).astype("<u4"), np.sort(tags[numbers < 0]).astype("<u8")
        return _HEADER.pack(round_index, len(known), len(new)) + known.tobytes() + new.tobytes()

    def add(self, round_index: int, block: bytes | memoryview) -> None:
        """Take a round's block into account."""
        if whole_block(block, 0) != len(block):
            raise ValueError("the cohort is no whole block")
        stated, known, new = _HEADER.unpack_from(block)
        numbers = np.frombuffer(block, "<u4", known, _HEADER.size)
        tags = np.frombuffer(block, "<u8", new, _HEADER.size + 4 * known).astype(np.uint64, copy=False)
        sound = stated == round_index and _increasing(numbers) and _increasing(tags)
        if not sound or (known and numbers[-1] >= self.clients):
            raise ValueError(f"the cohort is not one of round {round_index}, with each client once and none that is not known")
        first, clients = self.clients, self.clients + new
        fresh = np.arange(first, clients, dtype=np.uint32)
        cohort = np.concatenate([numbers, fresh]).astype(np.uint32, copy=False)
        index = self._index
        if index is not None:
            places = np.searchsorted(index[0], tags)
            index = np.insert(index[0], places, tags), np.insert(index[1], places, fresh)
        if clients > len(self._tags):
            room = max(2 * len(self._tags), clients, 64)
            self._tags, self._counts, self._last = (
                np.concatenate([held, np.zeros(room - len(held), held.dtype)])
                for held in (self._tags, self._counts, self._last)
            )
        # From here on nothing fails half way.
        if not self._every:
            self._cohorts.clear()
        self._before = self._last[cohort]
        self._tags[first:clients] = tags
        self._counts[cohort] += 1
        self._last[cohort] = round_index
        self._cohorts[round_index], self.clients, self._index = cohort, clients, index

    def remove(self, round_index: int) -> None:
        """Take the cohort that was added last back, where it is this round's."""
        cohort = self._cohorts.pop(round_index, None)
        if cohort is not None:
            self._counts[cohort] -= 1
            self._last[cohort] = self._before
            self.clients, self._index = int((self._counts > 0).sum()), None

    def before_last(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """``counts`` and ``last`` as they were before the round that was added last; a client that was new then has 0 and 0."""
        counts, last = self.counts.copy(), self.last.copy()
        for cohort in list(self._cohorts.values())[-1:]:
            counts[cohort] -= 1
            last[cohort] = self._before
        return counts, last

    @property
    def distinct(self) -> bool:
        """Whether no client has two numbers, by which it would have taken part less often than it did."""
        return _increasing(self._sorted()[0])

    def cohort(self, round_index: int) -> _Numbers:
        """The numbers of the clients of a round; none of a round of a random cohort."""
        return self._cohorts.get(round_index, np.empty(0, np.uint32))

    def rounds_of(self, number: int) -> tuple[int, ...]:
        """The rounds that a client joined, in order."""
        if number < 0:
            return ()
        return tuple(t for t, cohort in self._cohorts.items() if (cohort == number).any())

    def breaking(self, participation: Participation) -> list[int]:
        """The numbers of the clients whose rounds a pattern does not allow."""
        broken = np.zeros(self.clients, dtype=bool)
        counts, last = np.zeros(self.clients, np.int32), np.zeros(self.clients, np.int32)
        for round_index, cohort in self._cohorts.items():
            broken[cohort] |= ~participation.may_follow(counts[cohort], last[cohort], round_index)
            counts[cohort] += 1
            last[cohort] = round_index
        return np.flatnonzero(broken).tolist()

    def sets(self) -> list[tuple[int, ...]]:
        """The sets of rounds that clients joined, each once, in order."""
        joined: list[list[int]] = [[] for _ in range(self.clients)]
        for round_index, cohort in self._cohorts.items():
            for number in cohort.tolist():
                joined[number].append(round_index)
        return sorted({tuple(rounds) for rounds in joined})

    @property
    def total(self) -> int:
        """All participations of all clients."""
        return sum(map(len, self._cohorts.values()))

    def _sorted(self) -> tuple[_Tags, _Numbers]:
        """The tags in order, and the number of each."""
        if self._index is None:
            order = np.argsort(self._tags[: self.clients])
            self._index = self._tags[order], order.astype(np.uint32)
        return self._index


def _increasing(values: npt.NDArray[np.unsignedinteger]) -> bool:
    """Whether each is larger than the one before."""
    return bool((values[1:] > values[:-1]).all())
