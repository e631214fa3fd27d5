"""One run on several ranks: their start on this machine, and what those other than rank 0 do.

Rank 0 reads settings and folder, records and prints; the others build their clients and the model from its settings, and share
its rounds.
"""

import logging
import os
import signal
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


def launch(nproc: int, arguments: Sequence[str]) -> NoReturn:
    """Run a command of hubbub in several processes of this machine, under torch's launcher, and exit.

    The exit status is that of rank 0, or 1 if a process was killed.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What they exchange stays on this machine.
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Each rank says itself what is wrong.
    logging.disable(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "hubbub", *arguments)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        own = error.failures.get(0)
        if first.exitcode < 0:
            name = signal.Signals(-first.exitcode).name
            say(console(stderr=True), f"hubbub: rank {rank}: was ended by {name}")
        codes = [failure.exitcode for failure in (own, first) if failure is not None and failure.exitcode > 0]
        sys.exit(codes[0] if codes else 1)
    except (KeyboardInterrupt, SignalException):
        sys.exit(130)
    sys.exit(0)


def end_with_starter() -> None:
    """Let this rank end with the process that started it, and let SIGTERM interrupt it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


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
