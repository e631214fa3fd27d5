"""One run on several ranks: their start on this machine, and what those other than rank 0 do.

Rank 0 reads settings and folder, records and prints; the others build their clients and the model from its settings, and share
its rounds.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, cast

import torch

from hubbub.cli.output import console, say
from hubbub.experiment.build import client_side
from hubbub.experiment.config import Config
from hubbub.training import RunPlan, train
from hubbub.training.ranks import Ranks

__all__ = ["end_with_starter", "follow", "launch"]

_HERE = "127.0.0.1"
# The number of the process that started this rank: it may have ended before this one could ask.
_STARTER = "HUBBUB_STARTER"


def launch(nproc: int, arguments: Sequence[str]) -> NoReturn:
    """Run a command of hubbub in several processes of this machine, under torch's launcher, and exit.

    The exit status is that of rank 0, or 1 if a process was killed.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # it is public, and in no __all__
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes

    # What they exchange stays on this machine.
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # By a port of its own choice torch would listen on all interfaces.
    listening = socket.create_server((_HERE, 0))
    port = listening.getsockname()[1]
    store = TCPStore(_HERE, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    # Each rank says itself what is wrong.
    logging.disable(logging.CRITICAL)
    all_of_them = {
        "WORLD_SIZE": nproc,
        "MASTER_ADDR": _HERE,
        "MASTER_PORT": port,
        # The store is here, and not on rank 0.
        "TORCHELASTIC_USE_AGENT_STORE": True,
        _STARTER: os.getpid(),
    }
    environments = {
        rank: {name: str(value) for name, value in {**all_of_them, "RANK": rank, "LOCAL_RANK": rank}.items()}
        for rank in range(nproc)
    }
    command = dict.fromkeys(range(nproc), ("-m", "hubbub", *arguments))
    try:
        ranks = start_processes("hubbub", sys.executable, command, environments, DefaultLogsSpecs(os.devnull))
        try:
            failures = ranks.wait(period=0.1).failures  # type: ignore[union-attr] # it waits without a limit
        finally:
            # A second signal would leave torch's threads behind, for which this process would wait without end.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_IGN)
            ranks.close()
            del store
    except (KeyboardInterrupt, SignalException):
        sys.exit(130)
    if not failures:
        sys.exit(0)
    rank, first = min(failures.items(), key=lambda failure: failure[1].timestamp)
    if first.exitcode < 0:
        say(console(stderr=True), f"hubbub: rank {rank}: was ended by {signal.Signals(-first.exitcode).name}")
    own = failures.get(0, first)
    sys.exit(next((failure.exitcode for failure in (own, first) if failure.exitcode > 0), 1))


def end_with_starter() -> None:
    """Let this rank end with the process that started it, and let SIGTERM interrupt it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    starter = int(os.environ.get(_STARTER, os.getppid()))
    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()


def _end_with(parent: int) -> NoReturn:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def follow(ranks: Ranks, *, allow_import: bool) -> None:
    """Share the rounds of the run of rank 0."""
    torch.set_num_threads(1)
    config, plan = cast("tuple[Config, RunPlan]", ranks.lead(lambda: None))
    side = client_side(config, allow_import=allow_import, ranks=ranks)
    for _ in train(plan, side.population, side.model):
        pass
