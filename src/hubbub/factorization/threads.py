"""Few threads for linear algebra on small blocks: more of them cost many times the work in waiting for one another."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

__all__ = ["on_one_thread"]

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


@functools.cache
def _controller() -> ThreadpoolController:
    # Looking for the libraries takes milliseconds; those of NumPy and SciPy are loaded by now.
    return ThreadpoolController()


def on_one_thread(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """The function, with NumPy's and SciPy's linear algebra on one thread while it runs.

    Example:
        >>> on_one_thread(sum)([1, 2])
        3
    """

    @functools.wraps(function)
    def limited(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
