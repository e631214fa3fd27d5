"""Shares of noise that clients bring along, as their replies hold them; and shares as they must not be."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord

from hubbub.flower import mods
from hubbub.flower.mods import Request, Sent
from twins.twin import Array, System, Twin, apart, chi_square, normal

CLIENTS, SURVIVORS, DIM, CLIP_NORM, DEVIATION = 10, 5, 10_000, 0.55, 1.5
MODEL = ArrayRecord({"w": FlowerArray(np.zeros(DIM, np.float32))})


@dataclass(frozen=True)
class Seen:
    """What each client adds to an update of zero, ``(clients, dim)``, in units of the whole noise's stated deviation."""

    shares: Array


def run() -> Seen:
    """Ten clients' replies, of which five at least must make the stated noise."""
    request = Request(CLIP_NORM, False, DEVIATION * CLIP_NORM / math.sqrt(SURVIVORS), None)
    sent, whole = Sent(MODEL), DEVIATION * CLIP_NORM / request.lattice.step
    replies = [sent.hidden(MODEL, request, None)[0]["w"].numpy() for _ in range(CLIENTS)]
    return Seen(np.stack(replies) / whole)


def each_share(seen: Seen) -> bool:
    """The squares of each share: ten chi-squares.

    A step is a millionth of a deviation, so that the discrete Gaussian's law is that of the normal one to 1e-12.
    """
    return chi_square((seen.shares**2).sum(axis=1) * SURVIVORS, DIM)


def survivors_sum(seen: Seen) -> bool:
    """The squares of the sum of as many shares as must survive: chi-square."""
    return chi_square(np.array([(seen.shares[:SURVIVORS].sum(axis=0) ** 2).sum()]), DIM)


def shares_apart(seen: Seen) -> bool:
    """Inner products of two clients' shares: 45 normal numbers."""
    first, second = np.triu_indices(CLIENTS, 1)
    return normal(apart(seen.shares[first], seen.shares[second]))


def _asked(request: Request, factor: float) -> Request:
    return replace(request, noise_stddev=(request.noise_stddev or 0) * factor)


def _sized(factor: float) -> Callable[[pytest.MonkeyPatch], None]:
    def breaks(patch: pytest.MonkeyPatch) -> None:
        right = Sent.hidden
        patch.setattr(Sent, "hidden", lambda sent, reply, request, bit: right(sent, reply, _asked(request, factor), bit))

    return breaks


def _first_without(patch: pytest.MonkeyPatch) -> None:
    """One of the clients brings none."""
    right, calls = mods.discrete_gaussian, []

    def drawn(key: bytes, stddev: int, count: int) -> Array:
        calls.append(key)
        return right(key, stddev, count) * (len(calls) > 1)

    patch.setattr(mods, "discrete_gaussian", drawn)


STATISTICS = {each.__name__: each for each in (each_share, survivors_sum, shares_apart)}
TWINS = [
    Twin("shares for all that are asked", "survivors_sum", _sized(math.sqrt(SURVIVORS / CLIENTS))),
    Twin("variance taken for deviation", "each_share", _sized(1 / math.sqrt(SURVIVORS))),
    Twin("a share 5 % low", "each_share", _sized(0.95)),
    Twin("one client without a share", "each_share", _first_without),
    Twin("clients that share a seed", "shares_apart", lambda patch: patch.setattr(mods, "fresh_key", lambda: bytes(32))),
]

SYSTEM = System(run, STATISTICS, TWINS)
