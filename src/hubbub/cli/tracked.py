"""Where the command line sends the numbers of a run while it trains: no tracker that fails ends a run."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from hubbub.cli.output import say
from hubbub.errors import ConfigError
from hubbub.tracking import Write, log, mlflow, require, tensorboard, wandb

__all__ = ["Tracked"]


@dataclass(frozen=True)
class Tracked:
    """What the command line says of trackers.

    Args:
        tensorboard: A folder on this machine; it gets all numbers.
        mlflow: The address of a server or store.
        wandb: A project.
        private: Whether the last two get what no epsilon covers, too.
    """

    tensorboard: Path | None = None
    mlflow: str | None = None
    wandb: str | None = None
    private: bool = False

    def require(self) -> None:
        """See that what was asked for can be done, before a run begins.

        Raises:
            ConfigError: A package is missing, private numbers are for no tracker, or what is to be a folder is a file.
        """
        named = {"tensorboard": self.tensorboard, "mlflow": self.mlflow, "wandb": self.wandb}
        if self.private and self.mlflow is None and self.wandb is None:
            raise ConfigError(
                "--track-private: is about --mlflow and --wandb, and none is named; --tensorboard gets all numbers anyway"
            )
        for extra, wanted in named.items():
            if wanted is not None:
                if not str(wanted):
                    raise ConfigError(f"--{extra} = '': name where to")
                require(extra)
        if self.tensorboard is not None:
            place = next((at for at in (self.tensorboard, *self.tensorboard.parents) if os.path.lexists(at)), Path())
            if not place.is_dir():
                raise ConfigError(f"--tensorboard = {str(self.tensorboard)!r}: {place} is no folder; name another one")

    @contextmanager
    def opened(self, screen: Console, run_name: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """A function that is shown each row of metrics; a tracker that fails is given up, and the run goes on."""
        stack = ExitStack()
        try:
            writers = self._writers(stack, run_name)

            def show(row: Mapping[str, Any]) -> None:
                for name, (write, private) in list(writers.items()):
                    try:
                        log(row, write, private=private)
                    except Exception as error:  # noqa: BLE001 # whatever a tracker raises, rounds that are charged go on
                        del writers[name]
                        number = row["round_index"] + 1
                        say(screen, f"--{name}: stopped at round {number} ({error}); the run goes on without it")

            yield show
        finally:
            try:
                stack.__exit__(*sys.exc_info())
            except Exception as error:  # noqa: BLE001 # the report is still to be written
                say(screen, f"A tracker could not be closed ({error}); its last rounds may be missing there")

    def _writers(self, stack: ExitStack, run_name: str) -> dict[str, tuple[Write, bool]]:
        """Each tracker that was asked for, and whether it gets private numbers."""
        writers: dict[str, tuple[Write, bool]] = {}
        if self.tensorboard is not None:
            writers["tensorboard"] = stack.enter_context(tensorboard(self.tensorboard)), True
        if self.mlflow is not None:
            writers["mlflow"] = stack.enter_context(mlflow(self.mlflow, run_name)), self.private
        if self.wandb is not None:
            writers["wandb"] = stack.enter_context(wandb(self.wandb, run_name)), self.private
        return writers
