"""The noise of two runs, one of them interrupted, as it can be seen once the sums are subtracted; and noise as it must not be.

C whitens N·z: U = C·(release − sum)/stddev has independent standard normal entries, but for the rounding to the lattice, which
moves each by less than 1e-6 and no law below by a thousandth of its threshold.
"""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import linalg, stats

from hubbub._util.prf import fresh_key
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import Dense, Identity, Strategy, toeplitz
from hubbub.noise import NoiseStream, sources
from hubbub.noise.lattice import Lattice
from hubbub.noise.sources import IncarnationSource, SecureSource, Segments
from hubbub.training import LatticeSum, ReleasePath, RunStore, release
from twins.twin import FALSE_ALARM, Array, System, Twin, apart, binomial, chi_square, instead, normal

ROUNDS, DIM, LAYERS, CLIP_NORM = 8, 10_000, 4, 0.55
# The second run is interrupted after so many rounds.
STOP = 4
MECHANISM = Mechanism(toeplitz.square_root(ROUNDS, 3), every_round(ROUNDS), 1.5)
# C, by the series of (1 − x)^(−1/2), in units of its largest column norm; written here a second time.
C = linalg.toeplitz(np.pad([1, 1 / 2, 3 / 8], (0, ROUNDS - 3)), np.zeros(ROUNDS)) / np.sqrt(1 + 1 / 4 + 9 / 64)
DEVIATIONS = np.array([3, 3.5, 4])


@dataclass(frozen=True)
class Seen:
    """Of two runs, ``(2, rounds, dim)``: the released noise in steps of the lattice, and white."""

    steps: Array
    white: Array


def run() -> Seen:
    """Two runs of the path from a sum to a release; the sums are public here."""
    with tempfile.TemporaryDirectory() as folder:
        released = np.stack([_released(None, (0, ROUNDS)), _released(Path(folder) / "run", (0, STOP), (STOP, ROUNDS))])
    steps = released / Lattice(CLIP_NORM).step
    return Seen(steps, C @ released / (1.5 * CLIP_NORM))


def _released(folder: Path | None, *starts: tuple[int, int]) -> Array:
    """The noise of a run that is started so often, each time for the rounds from the first up to the second."""
    totals = torch.randint(-(2**18), 2**18, (ROUNDS, DIM), generator=torch.Generator().manual_seed(0))
    lattice, rows = Lattice(CLIP_NORM), []
    for start in starts:
        store = RunStore(folder) if folder else None
        with store.locked() if store else nullcontext():
            path = ReleasePath(Promise(ROUNDS, MECHANISM), DIM, clients=1, store=store)
            path.start()
            for t in range(*start):
                total = LatticeSum(totals[t], lattice, {})
                ticket = path.begin([0], total, CLIP_NORM)
                opened = total.open(path.row(ticket))
                path.commit(ticket, opened)
                rows.append((opened - totals[t] * lattice.step).numpy())
    return np.stack(rows)


# Whether what was seen raises an alarm


def size(seen: Seen) -> bool:
    """The sum of all squares: chi-square of 160,000 degrees of freedom, exact."""
    return chi_square(np.array([(seen.white**2).sum()]), seen.white.size)


def mean(seen: Seen) -> bool:
    return normal(np.array([seen.white.mean() * np.sqrt(seen.white.size)]))


def each_round(seen: Seen) -> bool:
    """The squares of each round: sixteen chi-squares of 10,000 degrees of freedom, exact."""
    return chi_square((seen.white**2).sum(axis=2).reshape(-1), DIM)


def each_layer(seen: Seen) -> bool:
    """The squares of each of four layers over all rounds: chi-squares of 40,000 degrees of freedom, exact."""
    squares = (seen.white**2).reshape(2 * ROUNDS, LAYERS, -1).sum(axis=(0, 2))
    return chi_square(squares, seen.white.size // LAYERS)


def rounds_apart(seen: Seen) -> bool:
    """Inner products of two rounds of one run: 56 normal numbers, each exact."""
    pairs = list(itertools.combinations(range(ROUNDS), 2))
    first, second = (seen.white[:, [pair[side] for pair in pairs]].reshape(-1, DIM) for side in (0, 1))
    return normal(apart(first, second))


def layers_apart(seen: Seen) -> bool:
    """Inner products of two layers of one round: 96 normal numbers, each exact."""
    layers = seen.white.reshape(2 * ROUNDS, LAYERS, -1)
    return normal(np.concatenate([apart(layers[:, i], layers[:, j]) for i, j in itertools.combinations(range(LAYERS), 2)]))


def runs_apart(seen: Seen) -> bool:
    """Inner products of a round with the same of the other run: eight normal numbers, each exact."""
    return normal(apart(seen.white[0], seen.white[1]))


def law(seen: Seen) -> bool:
    """The distance of the empirical law from the normal one, by Kolmogorov and Smirnov's limit law, at 160,000 numbers."""
    return bool(stats.kstest(seen.white.reshape(-1), "norm", method="asymp").pvalue < FALSE_ALARM)


def tails(seen: Seen) -> bool:
    """How many numbers are beyond 3, 3.5 and 4 deviations, on each side: six binomial counts, exact."""
    z = seen.white.reshape(-1)
    counts = np.array([[float((side * z > far).sum()) for far in DEVIATIONS] for side in (1, -1)])
    return binomial(counts, z.size, stats.norm.sf(DEVIATIONS))


def last_bits(seen: Seen) -> bool:
    """The last eight bits of the noise in steps, even as its deviation is 2²³ steps: Pearson's chi-square, 255 degrees.

    As the least expected count is 625, its law is near; no variance can see this.
    """
    bits = np.rint(seen.steps).astype(np.int64).reshape(-1) & 255
    return bool(stats.chisquare(np.bincount(bits, minlength=256)).pvalue < FALSE_ALARM)


def support(seen: Seen) -> bool:
    """Whether a number is off the lattice. Never, of a right system."""
    return bool((np.rint(seen.steps) != seen.steps).any())


STATISTICS: dict[str, Callable[[Seen], bool]] = {
    each.__name__: each
    for each in (size, mean, each_round, each_layer, rounds_apart, layers_apart, runs_apart, law, tails, last_bits, support)
}


# What can be broken


def _scaled(factor: float) -> Callable[[pytest.MonkeyPatch], None]:
    """All noise times a factor."""
    return instead(Mechanism, "stddev", lambda right: property(lambda mechanism: factor * right.fget(mechanism)))


def _correlated_by(strategy: Strategy) -> Callable[[pytest.MonkeyPatch], None]:
    """The noise of another matrix, with z of the stated size."""

    def made(mechanism: Mechanism, *arguments: object, **settings: object) -> NoiseStream:
        other = replace(mechanism, strategy=strategy)
        other = replace(other, noise_multiplier=other.noise_multiplier * mechanism.stddev / other.stddev)
        return NoiseStream(other, *arguments, **settings)  # type: ignore[arg-type]

    return lambda patch: patch.setattr(release, "NoiseStream", made)


def _rows(change: Callable[[Callable[[int], torch.Tensor], int], torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """Rows of z that are made otherwise out of the right ones."""

    class Changed(SecureSource):
        def segments(self, index: int, first: int) -> Segments:
            right = super()

            def row(at: int) -> torch.Tensor:
                whole = torch.empty(DIM, dtype=torch.float64)
                right.segments(at, first)(whole)
                return whole

            def fill(out: torch.Tensor) -> None:
                out.copy_(change(row, index))

            return fill

    return lambda patch: patch.setattr(sources, "SecureSource", Changed)


def _released_rows(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """Rows of noise that are changed before they meet the sum."""
    return instead(NoiseStream, "next_row", lambda right: lambda stream: change(right(stream)))


def _layer(rows: torch.Tensor, factor: float) -> torch.Tensor:
    part = DIM // LAYERS
    return torch.cat([rows[:-part], rows[-part:] * factor])


def _uniform_of(z: torch.Tensor) -> Array:
    return stats.norm.cdf(z.numpy())


def _redrawn(patch: pytest.MonkeyPatch) -> None:
    """A start knows the rows of earlier ones by their numbers alone."""

    def made(source: IncarnationSource, incarnations: Sequence[tuple[int, bytes]]) -> None:
        source._incarnations = [(first, SecureSource(fresh_key())) for first, _ in incarnations]

    patch.setattr(IncarnationSource, "__init__", made)


def _float_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LatticeSum, "open", lambda total, row: total.total * total.lattice.step + row)
    # Else the path would refuse it.
    patch.setattr(Lattice, "holds", lambda lattice, opened: True)


def _coarse(patch: pytest.MonkeyPatch) -> None:
    right = Lattice.release

    def coarser(lattice: Lattice, total: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return right(lattice, total, (row / (16 * lattice.step)).round() * (16 * lattice.step))

    patch.setattr(Lattice, "release", coarser)


_N = np.linalg.inv(C)
# N without what was remembered at the restart: its lower left quarter is 0.
_FORGOTTEN = np.kron(np.eye(2), np.ones((STOP, STOP))) * _N

TWINS = [
    Twin("noise 2 % low", "size", _scaled(0.98)),
    Twin("a standard deviation that was squared", "size", _scaled(1.5)),
    Twin("noise for a mean on a sum", "size", _scaled(0.1)),
    Twin("a mean of 0.03", "mean", _rows(lambda row, t: row(t) + 0.03)),
    Twin("noise 10 % low in one round", "each_round", _rows(lambda row, t: row(t) * (0.9 if t == 2 else 1))),
    Twin("noise 7 % low in one layer", "each_layer", _rows(lambda row, t: _layer(row(t), 0.93))),
    Twin("one layer without noise", "each_layer", _released_rows(lambda row: _layer(row, 0.0))),
    Twin("independent noise where correlated was promised", "rounds_apart", _correlated_by(Identity(ROUNDS))),
    Twin("C z in the place of its inverse", "rounds_apart", _correlated_by(Dense(_N))),
    Twin("bands of the wrong sign", "rounds_apart", _correlated_by(Dense(2 * np.diag(np.diag(C)) - C))),
    Twin("memory lost at a restart", "rounds_apart", _correlated_by(Dense(np.linalg.inv(_FORGOTTEN)))),
    Twin("a row used twice", "rounds_apart", _rows(lambda row, t: row(2 if t == 3 else t))),
    Twin("one row for all rounds", "rounds_apart", _rows(lambda row, t: row(0))),
    Twin("z redrawn after a restart", "rounds_apart", _redrawn),
    Twin("the same noise in two layers", "layers_apart", _rows(lambda row, t: row(t)[: DIM // LAYERS].repeat(LAYERS))),
    Twin("a fixed seed", "runs_apart", lambda patch: patch.setattr(release, "fresh_key", lambda: bytes(32))),
    Twin(
        "Laplace noise of the same variance",
        "law",
        _rows(lambda row, t: torch.from_numpy(stats.laplace.ppf(_uniform_of(row(t))) / np.sqrt(2))),
    ),
    Twin(
        "uniform noise of the same variance",
        "law",
        _rows(lambda row, t: torch.from_numpy((_uniform_of(row(t)) - 0.5) * np.sqrt(12))),
    ),
    Twin("tails cut off at 3.4 deviations", "tails", _rows(lambda row, t: row(t).clamp(-3.4, 3.4))),
    Twin("tails folded back at 3 deviations", "tails", _rows(lambda row, t: torch.where(row(t).abs() > 3, row(t) / 2, row(t)))),
    Twin("float16 noise", "last_bits", _released_rows(lambda row: row.half().double())),
    Twin("float32 noise", "last_bits", _released_rows(lambda row: row.float().double())),
    Twin("noise on a coarser lattice than the sum", "last_bits", _coarse),
    Twin("noise that is added in floating point", "support", _float_sum),
]

SYSTEM = System(run, STATISTICS, TWINS)
