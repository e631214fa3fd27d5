"""The moments of a privacy loss at any real order, by quadrature that keeps relative precision near 0.

For a law of the loss L under P, with a probability under Q of e^{−L} dP, the moment of order a is A_a = E_P[e^{(a−1)L}] =
E_Q[(1 + t)^a], t = dP/dQ − 1. As E_Q[t] = 0, A_a − 1 = E_Q[D_a(t)] with D_a(t) = (1 + t)^a − 1 − a·t, which is nowhere
negative. So A_a − 1 is summed, not A_a, in logarithms, and a sampling probability of 1e-9 loses no digits.

The densities are mixtures of Gaussians with unit variance (:mod:`hubbub.accounting.pairs`), so that the integrand is one
Gaussian around e·c_P + (1 − e)·c_Q, for the means c that dominate and a power e, until another mean dominates at a kink; its
branch points lie π/m above and below the kinks. On the whole line, the trapezoid rule errs by e^{s²y² − 2πy/h} for any y up to
the nearest of them, where h is the step and s²y² what the logarithm of the integrand grows by at x + iy (Trefethen and
Weideman 2014, Theorem 5.1, https://doi.org/10.1137/130932132): h makes that e^-40. On half a line, or where that takes too many
steps, panels of Gauss-Legendre follow the Gaussians and narrow geometrically towards the kinks.
"""

import math
from dataclasses import dataclass

import numpy as np

from hubbub._util.checks import Array
from hubbub.accounting.pairs import Law, LossLaw, Pair

# Standard deviations from the outermost Gaussian beyond which nothing counts: e^(-12²/2) < 1e-31.
_REACH = 12.0
_LOG_ERROR = 40.0
_MOST_STEPS = 4000
_LEAST_QUICK = 1.05
# Of panels that orders share: their width in standard deviations, their number, and the means with which e^(−m²/2) is a number.
_PANEL, _MOST_PANELS, _LARGEST_MEAN = 3.0, 200, 5.0
# For a·|L| below this the first terms of a series give D_a to all digits.
_SERIES = 0.1
_TERMS = 12
# Below it exponentials are subnormal, which is slow.
_LEAST_LOG = -700.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def log_expm1(y: Array) -> Array:
    """ln(e^y − 1) for y ≥ 0, without overflow."""
    with np.errstate(divide="ignore"):
        logs: Array = np.where(y > 30, y + np.log1p(-np.exp(-np.maximum(y, 1.0))), np.log(np.expm1(np.minimum(y, 30.0))))
    return logs


def log_excess(law: LossLaw, orders: Array) -> Array:
    """ln(A_a − 1) for each order a > 1, ``(orders,)``."""
    match law:
        case Law(Pair() as upper, Pair() as lower) if upper != lower:
            return np.logaddexp(_integrals(_Part.half(upper, True), orders), _integrals(_Part.half(lower, False), orders))
        case Law(Pair(1, a, b)):
            return log_expm1(orders * (orders - 1) * (a - b) ** 2 / 2)
        case Law(Pair() as pair):
            return _integrals(_Part(pair.q, *_means(pair)), orders)
        case _:
            raise TypeError(f"no moments of {type(law).__name__}: its loss is known on a mesh only")


def _means(pair: Pair) -> tuple[float, float]:
    return (pair.b, pair.a) if pair.reverse else (pair.a, pair.b)


@dataclass(frozen=True)
class _Part:
    """P and Q are (1−q)·N(0, 1) + q·N(p, 1) and (1−q)·N(0, 1) + q·N(r, 1), between low and high; elsewhere the loss is 0."""

    q: float
    p: float
    r: float
    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def half(cls, pair: Pair, positive: bool) -> "_Part":
        """The pair where its loss is positive, or where it is negative."""
        # ln P_a/P_b grows with x, as a > b, and is 0 half way between the means.
        middle = (pair.a + pair.b) / 2
        return cls(pair.q, *_means(pair), *((middle, math.inf) if positive != pair.reverse else (-math.inf, middle)))

    def centres(self, orders: Array) -> Array:
        """Where the Gaussians that make up the integrand lie: those of the powers 0, 1, 2 and a of dP/dQ, ``(orders, ·)``."""
        others = [0.0] if self.q < 1 else []
        tops, bottoms = {self.p, *others}, {self.r, *others}
        powers = [np.full_like(orders, power) for power in (0, 1, 2)] + [orders]
        return np.stack([c + power * (t - c) for t in sorted(tops) for c in sorted(bottoms) for power in powers], axis=1)

    def kinks(self) -> list[tuple[float, float]]:
        """Where the one mean of a mixture comes to dominate the other, and 1/m: the branch points are π/m above and below."""
        if self.q == 1:
            return []
        odds = math.log1p(-self.q) - math.log(self.q)
        return [(m / 2 + odds / m, 1 / abs(m)) for m in sorted({self.p, self.r}) if m]

    def losses(self, x: Array) -> tuple[Array, Array]:
        """ln dP/dQ, to its relative precision, and ln of Q's density."""
        top, bottom = self.p * (x - self.p / 2), self.r * (x - self.r / 2)
        log_p, log_r = self._mixed(top, self.p), self._mixed(bottom, self.r)
        near = np.maximum(np.abs(top), np.abs(bottom)) < 1
        with np.errstate(over="ignore", invalid="ignore"):
            small = (np.expm1(top) - np.expm1(bottom)) * np.exp(-log_r)
            t = self.q * np.where(near, small, np.exp(np.minimum(top - log_r, 700)) - np.exp(np.minimum(bottom - log_r, 700)))
        losses = np.where(np.abs(t) < 0.5, np.log1p(np.clip(t, -0.5, 0.5)), log_p - log_r)
        return losses, log_r - x * x / 2 - math.log(2 * math.pi) / 2

    def _mixed(self, exponent: Array, mean: float) -> Array:
        if mean == 0:
            return np.zeros_like(exponent)
        if self.q == 1:
            return exponent
        return np.asarray(np.logaddexp(math.log1p(-self.q), math.log(self.q) + exponent))


def _integrals(part: _Part, orders: Array) -> Array:
    """ln ∫ D_a dQ over the part, for each order."""
    logs = np.empty(len(orders))
    # Orders of one size share their nodes; next to 1 the quick sum would cancel.
    size = np.where(orders < _LEAST_QUICK, 0, np.maximum(2 * np.ceil(np.log2(orders) / 2), 4))
    for group in np.unique(size):
        members = np.flatnonzero(size == group)
        nodes = _shared_nodes(part, orders[members]) if group else None
        if nodes:
            logs[members] = _quick_sums(part, orders[members], *nodes)
            continue
        x, weights = _panels(part, orders[members])
        for some in np.array_split(np.arange(len(members)), 1 + x.size // 10**6):
            losses, log_density = part.losses(x[some])
            with np.errstate(divide="ignore"):
                terms = _log_remainders(orders[members[some], None], losses) + log_density + np.log(weights[some])
                # Of the rarest sampling all terms are ln 0.
                top = np.maximum(terms.max(axis=1), np.finfo(np.float64).min)
                logs[members[some]] = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
    return logs


def _quick_sums(part: _Part, orders: Array, x: Array, weights: Array) -> Array:
    """ln Σ D_a dQ over nodes that the orders share: one exponential for each order and node."""
    losses, log_density = part.losses(x)
    logs = log_density + np.log(weights)
    t, beside = np.expm1(np.minimum(losses, 1.0)), np.exp(np.maximum(logs, _LEAST_LOG))
    exponents = np.multiply.outer(orders, losses) + logs
    shift = np.maximum(exponents.max(axis=1), logs.max())[:, None]
    small = np.multiply.outer(orders, np.abs(losses)) < _SERIES
    # e^{aL} − 1 − a·t, where the terms do not cancel, and Σ C(a, k)·t^k where they do.
    order = orders[:, None]
    whole = np.exp(np.maximum(exponents - shift, _LEAST_LOG))
    whole -= np.hstack([np.exp(-shift) * (1 - order), np.exp(-shift) * order]) @ np.vstack([beside, np.exp(losses + logs)])
    coefficients = np.cumprod((order - np.arange(_TERMS - 1)) / np.arange(1, _TERMS), axis=1)
    powers = np.cumprod(np.broadcast_to(t, (_TERMS - 1, len(t))), axis=0)
    series = (np.exp(-shift) * coefficients[:, 1:]) @ (powers[1:] * beside)
    with np.errstate(divide="ignore"):
        sums: Array = shift[:, 0] + np.log(np.where(small, series, whole).sum(axis=1))
    return sums


def _shared_nodes(part: _Part, orders: Array) -> tuple[Array, Array] | None:
    """Nodes and weights that serve all of these orders; ``None`` where they are too many."""
    centres = part.centres(orders)
    low = max(min(float(centres.min()), part.high) - _REACH, part.low)
    high = min(max(float(centres.max()), part.low) + _REACH, part.high)
    if math.isfinite(part.low) or math.isfinite(part.high):
        if not (high - low) / _PANEL < _MOST_PANELS or max(abs(part.p), abs(part.r)) > _LARGEST_MEAN:
            return None
        away = [_away_from_kink(scale, float(orders.max()), 0.0) for _, scale in part.kinks()]
        kinks = [kink + np.concatenate([-d[::-1], d]) for (kink, _), d in zip(part.kinks(), away, strict=True)]
        edges = np.concatenate([np.arange(low, high, _PANEL), [high], *(np.clip(kink, low, high) for kink in kinks)])
        x, weights = _gauss_legendre(np.unique(edges)[None])
        return x[0], weights[0]
    # |1 − q + q·e^(u + iv)| is at most its value at v = 0, and at least cos(v/2) ≥ e^(−0.16·v²) of it for |v| ≤ 2.
    growth, most = 0.5, 0.95 * math.pi / max(abs(part.p), abs(part.r))
    if part.r:
        growth, most = 0.5 + 0.16 * (float(orders.max()) - 1) * part.r**2, min(most, 2 / abs(part.r))
    y = min(math.sqrt(_LOG_ERROR / growth), most)
    step = 2 * math.pi * y / (_LOG_ERROR + growth * y * y)
    if not (high - low) / step < _MOST_STEPS:
        return None
    x = np.arange(low, high + step, step)
    return x, np.full_like(x, step)


def _panels(part: _Part, orders: Array) -> tuple[Array, Array]:
    """Nodes and weights of Gauss-Legendre panels for each order, ``(orders, nodes)``."""
    centres = part.centres(orders)
    low = np.maximum(np.minimum(centres.min(axis=1), part.high) - _REACH, part.low)[:, None]
    high = np.minimum(np.maximum(centres.max(axis=1), part.low) + _REACH, part.high)[:, None]
    offsets = np.arange(-_REACH, _REACH + 1, 2)
    edges = [low, high, *(np.clip(centre[:, None] + offsets, low, high) for centre in centres.T)]
    for kink, scale in part.kinks():
        # Beyond 45 of its scale a kink is felt by less than e^-45.
        away = _away_from_kink(scale, float(orders.max()), min(45 * scale, float((high - low).max())))
        edges.append(np.clip(kink + np.concatenate([-away[::-1], away]), low, high))
    ordered = np.sort(np.concatenate(edges, axis=1), axis=1)
    return _gauss_legendre(ordered[:, np.append(True, np.diff(ordered, axis=1).max(axis=0) > 0)])


def _away_from_kink(scale: float, order: float, reach: float) -> Array:
    """Distances of panels' ends from a kink: each as wide as all before it, up to 2, and to ``reach``.

    A peak at the kink is about scale/√a wide.
    """
    widths = [0.0, scale * min(1.0, 2 / math.sqrt(order))]
    while sum(widths) < reach if reach else widths[-1] < 2.0:
        widths.append(min(sum(widths), 2.0))
    return np.cumsum(widths)


def _gauss_legendre(edges: Array) -> tuple[Array, Array]:
    """Nodes and weights of the panels between edges ``(rows, edges)``."""
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, np.diff(edges, axis=1) / 2
    nodes = middle[:, :, None] + half[:, :, None] * _NODES
    return nodes.reshape(len(edges), -1), (half[:, :, None] * _WEIGHTS).reshape(len(edges), -1)


def _log_remainders(orders: Array, losses: Array) -> Array:
    """ln D_a(e^L − 1) for orders a ``(orders, 1)``."""
    order, loss = (array.ravel() for array in np.broadcast_arrays(orders, losses))
    shape = np.broadcast_shapes(orders.shape, losses.shape)
    logs = np.empty(len(order))
    small = order * np.abs(loss) < _SERIES
    above, below = (loss > 0) & ~small, (loss < 0) & ~small
    with np.errstate(divide="ignore"):
        # The series a(a−1)t²/2·(1 + (a−2)t/3·(1 + (a−3)t/4·(…))).
        a, t = order[small], np.expm1(loss[small])
        series = np.ones_like(t)
        for k in range(_TERMS - 1, 2, -1):
            series = 1 + (a - (k - 1)) * t / k * series
        logs[small] = np.log(a * (a - 1) / 2 * series) + 2 * np.log(np.abs(t))
        # e^{aL}·(1 − e^{−dL} − d·e^{−dL}(1 − e^{−L})) with d = a − 1.
        a, x = order[above], loss[above]
        d = a - 1
        logs[above] = a * x + np.log(-np.expm1(-d * x) + d * np.exp(-d * x) * np.expm1(-x))
        a, x = order[below], loss[below]
        logs[below] = np.log(np.exp(x) * np.expm1((a - 1) * x) - (a - 1) * np.expm1(x))
    return logs.reshape(shape)
