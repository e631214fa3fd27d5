"""What every family knows: the run that is damaged, the commands that must refuse it, and what a case is."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hubbub.datasets import Dataset
from malformed.contents import canonical
from malformed.damages import Damage

# A word that the refusal must hold, or several of which one is enough.
Word = str | tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """Something that is said to a function of hubbub instead of to a command.

    Args:
        name: Of the function, for people.
        do: Must raise a ``ValueError``, a ``TypeError`` or an error of hubbub's own.
    """

    name: str
    do: Callable[[], object]


Command = tuple[str, ...] | Call

RESUME: tuple[str, ...] = ("resume", "run", "--allow-import")
VERIFY: tuple[str, ...] = ("verify", "run")
LEDGER: tuple[str, ...] = ("ledger", "run")
PLAN: tuple[str, ...] = ("plan", "plan.toml", "--allow-import")
CLOSE: tuple[str, ...] = ("close", "run", "--early")
EVERY = (VERIFY, RESUME, LEDGER)

ACCOUNT: tuple[str, ...] = ("account", "--rounds", "6", "--delta", "1e-5")
NOISY: tuple[str, ...] = (*ACCOUNT, "--noise-multiplier", "1")
CALIBRATE: tuple[str, ...] = ("calibrate", "--rounds", "6", "--delta", "1e-5", "--epsilon", "2")
GAUSSIAN: tuple[str, ...] = ("gaussian", "--epsilon", "2", "--delta", "1e-5")

CONFIG = """\
[training]
rounds = 12
cohort_size = 3

[privacy]
mode = "dp-ftrl"
noise_multiplier = 1.0

[participation]
min_separation = 3

[data]
name = "malformed:people"
clients = 12

[model]
name = "malformed:Line"
"""


class Accepted(BaseException):
    """A command went on to train with what it should have refused."""


class Line(nn.Sequential):
    """A model of eight numbers, which says so when somebody trains it who should not."""

    may_learn = False

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Linear(shape[0], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and not Line.may_learn:
            raise Accepted
        return super().forward(x)


def people(path: str | None = None) -> Dataset:
    """Two dozen examples of three numbers."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(36, 3, generator=generator), torch.arange(36) % 2
    return Dataset(inputs[:24], targets[:24], inputs[24:], targets[24:])


@dataclass(frozen=True)
class Run:
    """An interrupted run: its files by name, and the records of its ledger.

    It began twice: the first start ended in the middle of round 4, which aborted, the second after round 7 of 12. Its last
    checkpoint is that of round 6.
    """

    files: Mapping[str, bytes]

    @property
    def lines(self) -> list[bytes]:
        """Those of the ledger, each with its end."""
        return self.files["ledger.jsonl"].splitlines(keepends=True)

    @property
    def bodies(self) -> list[bytes]:
        """The records of the ledger as they are written."""
        return [canonical(record) for record in self.records()]

    def records(self) -> list[dict[str, Any]]:
        """Fresh copies of the records of the ledger."""
        return [json.loads(line)["body"] for line in self.lines]


@dataclass(frozen=True)
class Case:
    """One malformed file or value, and the commands or calls that must refuse it."""

    name: str
    commands: tuple[Command, ...]
    words: tuple[Word, ...]
    damage: Damage


def round_of(name: str) -> int | None:
    """Of a release, by the name of its file; any other file has none."""
    folder, _, file = name.rpartition("/")
    return int(file.partition(".")[0]) if folder == "state/releases" else None
