"""Few threads for linear algebra on small blocks: more of them cost many times the work in waiting for one another."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

__all__ = ["at_most", "on_one_thread"]

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


@functools.cache
def _controller() -> ThreadpoolController:
    # Looking for the libraries takes milliseconds; those of NumPy and SciPy are loaded by now.
    return ThreadpoolController()


def at_most(threads: int) -> AbstractContextManager[Any]:
    """Inside, NumPy's and SciPy's linear algebra has so many threads, or the fewer that it had before."""
    found = (library.num_threads for library in _controller().lib_controllers if library.user_api == "blas")
    limited: AbstractContextManager[Any] = _controller().limit(limits=min((threads, *found)), user_api="blas")
    return limited


def on_one_thread(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """The function, with NumPy's and SciPy's linear algebra on one thread while it runs."""

    @functools.wraps(function)
    def limited(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        with at_most(1):
            return function(*args, **kwargs)

    return limited
