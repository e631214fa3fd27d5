"""One run on several ranks: their start on this machine, what rank 0 gives the others, and what these do.

Rank 0 reads settings and folder, records and prints; the others build their clients and the model from its settings, and share
its rounds.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, cast

import torch

from hubbub.cli.output import console, say
from hubbub.errors import ConfigError
from hubbub.experiment.build import client_side
from hubbub.experiment.config import Config
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.training import RunPlan, train
from hubbub.training.ranks import Ranks

__all__ = ["follow", "launch", "launched", "led", "ranks_of"]


def launched() -> bool:
    """Whether torchrun, the like of it, or :func:`launch` started this process as one of several.

    Raises:
        ConfigError: A starter of many tasks did, which makes no group of them.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return True
    for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if os.environ.get(name, "1") not in ("", "0", "1"):
            raise ConfigError(
                f"{name} = {os.environ[name]}: this command was started several times at once, and each would be a run of its "
                "own over the same people; start torchrun once on each machine (srun --ntasks-per-node=1 torchrun …)"
            )
    return False


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


def ranks_of(time_limit: float, shard: str) -> Ranks:
    """The ranks of this command; each ends with the process that started it."""
    ranks = Ranks.launched(time_limit=time_limit, shard_optimizer=shard == "optimizer")
    if ranks.size > 1:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    return ranks


def _end_with(parent: int) -> NoReturn:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def led(ranks: Ranks, make: Callable[[], RunInFolder]) -> RunInFolder:
    """Begin or resume a run on rank 0, and give the others its settings and its plan."""
    begun: list[RunInFolder] = []

    def lead() -> object:
        begun.append(make())
        return begun[0].run.config, begun[0].run.plan

    ranks.lead(lead)
    return begun[0]


def follow(ranks: Ranks, *, allow_import: bool) -> None:
    """Share the rounds of the run of rank 0.

    Raises:
        RankError: A rank failed or ended, or this one has other data or another model.
    """
    torch.set_num_threads(1)
    config, plan = cast("tuple[Config, RunPlan]", ranks.lead(lambda: None))
    side = client_side(config, allow_import=allow_import, ranks=ranks)
    for _ in train(plan, side.population, side.model):
        pass
