"""The same work on parts of a list at once: in threads where it runs outside Python's lock, in processes where it does not.

A process is forked where that is safe, and then shares what its parent has computed; what it draws is its own, for it asks the
operating system. Elsewhere, and beside other threads, it is started anew and computes all it needs.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from typing import TypeVar

import gmpy2

__all__ = ["in_processes", "in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[list[Item]], list[Result]], items: list[Item], threads: int) -> list[Result]:
    """The results of all items in their order; GMP's longer calls run side by side."""
    parts = _parts(items, threads)
    if len(parts) < 2:
        return work(items)

    def released(part: list[Item]) -> list[Result]:
        # Of gmpy2, and each thread's own: without it only calls on whole lists let other threads run.
        with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
            return work(part)

    with ThreadPoolExecutor(len(parts)) as pool:
        return [result for part in pool.map(released, parts) for result in part]


def in_processes(work: Callable[[list[Item]], bytes], items: list[Item], processes: int) -> bytes:
    """The results of all items in their order, one after another; this process does its part of the work.

    Args:
        work: A module's function, or a ``partial`` of one: a process that is started anew gets a pickle of it.
        items: In memory only: a process that is started anew gets them through a pipe.
        processes: How many, this one included.

    Raises:
        RuntimeError: A process ended without a result.
    """
    parts = _parts(items, processes)
    if len(parts) < 2:
        return work(items)
    alone = sys.platform == "linux" and threading.active_count() == 1
    context: ForkContext | SpawnContext = get_context("fork") if alone else get_context("spawn")
    started = []
    try:
        for part in parts[1:]:
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_answer, args=(work, part, here, there), daemon=True)
            process.start()
            there.close()
            started.append((process, here))
        results = [work(parts[0])]
        for process, here in started:
            try:
                results.append(here.recv_bytes())
            except EOFError:
                process.join()
                raise RuntimeError(
                    f"a process for a part of the work ended with status {process.exitcode}; do it in one, with workers = 1 "
                    f"(a script that uses more must start under `if __name__ == '__main__'`)"
                ) from None
        return b"".join(results)
    finally:
        for process, here in started:
            here.close()
            # A copy has its parent's handlers, and might go on with its part when it is asked to end.
            process.kill()
            process.join()


def _answer(work: Callable[[list[Item]], bytes], part: list[Item], here: Connection, there: Connection) -> None:
    # A copy of the other end would keep this process waiting for a reader that is gone.
    here.close()
    there.send_bytes(work(part))
    there.close()


def _parts(items: list[Item], count: int) -> list[list[Item]]:
    """At most ``count`` parts of nearly one length."""
    most = min(count, len(items))
    cuts = [len(items) * i // most for i in range(most + 1)] if most else [0]
    return [items[a:b] for a, b in pairwise(cuts)]
