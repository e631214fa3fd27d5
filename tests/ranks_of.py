"""Ranks of a test: processes of one group on this machine, each of which runs the same function."""

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from functools import cache
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest
import torch

from hubbub.training.ranks import Ranks

# Forks of a server that has imported everything start in a moment.
_CONTEXT = multiprocessing.get_context("forkserver")
# Torch imports its compiler when the first optimizer is made, for seconds: no start is to be killed in that alone.
_CONTEXT.set_forkserver_preload(["hubbub.training.rounds", "hubbub.training.per_example", "test_ranks", "torch._dynamo"])
# Seconds in which all ranks must end.
LONGEST = 120.0


def _one(rank: int, size: int, port: int, limit: float, what: Callable[..., Any], args: tuple[Any, ...], told: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
    try:
        ranks = Ranks.launched(time_limit=limit) if size > 1 else Ranks()
        told.send("together")
        told.send(what(ranks, *args))
    except BaseException as error:  # noqa: BLE001 # the test is told
        told.send(error if isinstance(error, Exception) else RuntimeError(traceback.format_exc()))
    told.close()
    os._exit(0)


@cache
def _serve() -> None:
    """Start the server: it finds what it imports by the environment alone."""
    with pytest.MonkeyPatch.context() as around:
        around.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        ensure_running()


class Started:
    """Ranks at work on a function."""

    def __init__(self, size: int, what: Callable[..., Any], *args: Any, limit: float = 60.0) -> None:
        _serve()
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self.processes: list[ForkServerProcess] = []
        self._told = []
        for rank in range(size):
            mine, theirs = _CONTEXT.Pipe(duplex=False)
            self.processes.append(_CONTEXT.Process(target=_one, args=(rank, size, port, limit, what, args, theirs)))
            self._told.append(mine)
            self.processes[-1].start()
            theirs.close()
        for told in self._told:
            assert told.poll(LONGEST)
            assert told.recv() == "together"

    def ended(self) -> list[Any]:
        """What the function returned, or raised, on each rank; ``None`` of one that was killed."""
        found = []
        for told in self._told:
            if not told.poll(LONGEST):
                self.kill()
                raise AssertionError("a rank hangs")
            try:
                found.append(told.recv())
            except EOFError:
                found.append(None)
        for process in self.processes:
            process.join(LONGEST)
            assert not process.is_alive(), "a rank does not end"
        return found

    def kill(self, rank: int | None = None) -> None:
        for process in self.processes if rank is None else [self.processes[rank]]:
            process.kill()


def on_ranks(size: int, what: Callable[..., Any], *args: Any, limit: float = 60.0) -> list[Any]:
    """What a function returns, or raises, on each of ``size`` ranks."""
    return Started(size, what, *args, limit=limit).ended()


# The server imports this module by its name.
if str(Path(__file__).parent) not in sys.path:
    sys.path.append(str(Path(__file__).parent))
