"""The result of an optimizer: the strategy, its error, and a lower bound on the error of others."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from threadpoolctl import threadpool_limits

from hubbub._util import to_digits
from hubbub._util.checks import plain_numbers
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.strategies.strategy import Strategy
from hubbub.mechanism.workloads import Workload

Objective = Literal["mean", "max"]
# Relative to the error.
_ROUNDING = 1e-6
AnyStrategy = TypeVar("AnyStrategy", bound=Strategy, covariant=True)


@dataclass(frozen=True, eq=False)
class Optimized(Generic[AnyStrategy]):
    """A strategy of least error within its family, with a proof of how near that is.

    Args:
        strategy: C. Its scale is free: a mechanism's noise multiplier is relative to the largest column norm.
        workload: A.
        participation: Which rounds one client may join.
        objective: ``"mean"`` of the squared errors over rounds, their ``"max"``, or a ``"weighted mean"`` of them, without its
            weights.
        squared_error: The error of ``strategy``, at sensitivity 1 to ``participation`` and unit noise.
        lower_bound: A lower bound on the error of every strategy of ``bound_family``, proved by duality, less an allowance for
            rounding; at most ``squared_error``.
        bound_family: The strategies that the bound covers, in words: the searched family or a larger one.
        iterations: The number of steps or evaluations.

    Raises:
        ValueError: Error or bound is not finite, or the bound is above the error by more than rounding: one of them is false.

    Example:
        >>> from hubbub import factorization
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> found = factorization.banded.optimize(prefix_sum(rounds=16), bands=4)
        >>> type(found.strategy).__name__, round(found.root_squared_error, 3), found.relative_gap < 1e-6
        ('Banded', 1.903, True)
    """

    strategy: AnyStrategy
    workload: Workload
    participation: Participation
    objective: Objective | Literal["weighted mean"]
    squared_error: float
    lower_bound: float
    bound_family: str
    iterations: int

    def __post_init__(self) -> None:
        plain_numbers(self)
        if not (math.isfinite(self.squared_error) and math.isfinite(self.lower_bound)):
            raise ValueError(
                f"squared_error = {self.squared_error!r}, lower_bound = {self.lower_bound!r}: must be finite; the strategy's "
                "inverse is beyond float64: scale C, or use another matrix"
            )
        if self.lower_bound > self.squared_error * (1 + _ROUNDING):
            raise ValueError(
                f"lower_bound = {self.lower_bound!r}: is above squared_error = {self.squared_error!r}, so one of them is "
                "false; optimize again, and where learning rates are too uneven for float64, another family"
            )
        # A bound above the error of this strategy is not a bound.
        object.__setattr__(self, "lower_bound", min(self.lower_bound, self.squared_error))

    @property
    def relative_gap(self) -> float:
        """The part of the error by which another strategy of ``bound_family`` could be better, at most."""
        return (self.squared_error - self.lower_bound) / self.squared_error

    @property
    def root_squared_error(self) -> float:
        """The root of ``squared_error``: a standard deviation in units of the sensitivity."""
        return float(self.squared_error**0.5)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """For notebooks: the error and the bound instead of the strategy's thousands of numbers."""
        from hubbub._util.card import bundle

        sentence = (
            f"{type(self.strategy).__name__} of {self.workload.rounds:,} rounds: root {self.objective} squared error "
            f"{self.root_squared_error:.5g} at sensitivity 1."
        )
        rows = [
            ("participation", str(self.participation)),
            ("squared error", f"{self.squared_error:.7g}"),
            ("lower bound", f"{float(to_digits(self.lower_bound, 7, 'ROUND_FLOOR')):.7g}, for {self.bound_family}"),
            ("better by at most", f"{float(to_digits(self.relative_gap, 2, 'ROUND_CEILING')):g} of the squared error"),
        ]
        return bundle(sentence, rows)


_Function = TypeVar("_Function", bound=Callable[..., Any])
# A function with NumPy's and SciPy's linear algebra on one thread: on small blocks, more threads spend most of their time
# waiting for one another.
on_one_thread: Callable[[_Function], _Function] = threadpool_limits.wrap(limits=1, user_api="blas")
