"""What ``hubbub factorize`` and ``hubbub compare`` are asked for: a workload, and who may contribute when."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubbub import published
from hubbub._checks import Array, integer, rounds_count
from hubbub.errors import ConfigError
from hubbub.participation import FixedEpochs, MinSeparation, Participation, SingleParticipation, participation_record
from hubbub.strategies import Strategy
from hubbub.utility import squared_errors
from hubbub.workloads import Workload

__all__ = ["MOST_DENSE", "Setting", "SettingFlags", "require_output", "root_errors"]

_COOLDOWN = "cooldown"
# Beyond this the dense matrices behind a picture, or behind the error of a strategy that is not optimized, take minutes.
MOST_DENSE = 4096


@dataclass(frozen=True)
class Setting:
    """A workload, and what one client may join."""

    workload: Workload
    participation: Participation

    def words(self) -> dict[str, str]:
        """As rows of a table."""
        return {
            "rounds": f"{self.workload.rounds:,}",
            "workload": workload_words(self.workload),
            "participation": participation_words(self.participation),
        }

    def as_json(self) -> dict[str, Any]:
        """As entries of a JSON object."""
        rates = self.workload.learning_rates
        return {
            "rounds": self.workload.rounds,
            "momentum": self.workload.momentum,
            "learning_rates": None if rates is None else list(rates),
            "participation": participation_record(self.participation),
        }


@dataclass(frozen=True)
class SettingFlags:
    """The flags that describe a setting, as they were typed; none about participation means one round of each client."""

    rounds: int | None
    momentum: float | None
    learning_rates: str | None
    separation: tuple[int | None, int | None]
    rotation: tuple[int | None, int | None]

    @property
    def empty(self) -> bool:
        """Whether nothing was typed."""
        single = (self.rounds, self.momentum, self.learning_rates, *self.separation, *self.rotation)
        return all(value is None for value in single)

    def over(self, stated: Setting) -> Setting:
        """The setting that a file states, with what was typed in place of it.

        Raises:
            ConfigError: Fewer rounds than the learning rates that the file states.
        """
        rates, rounds = stated.workload.learning_rates, stated.workload.rounds
        wanted = rounds if self.rounds is None else self.rounds
        if rates is not None and self.learning_rates is None and wanted != rounds:
            raise ConfigError(f"--rounds {wanted}: the file states {rounds} learning rates; say --learning-rates, too")
        typed = self.setting(rounds)
        momentum = stated.workload.momentum if self.momentum is None else self.momentum
        if self.learning_rates is not None:
            rates = typed.workload.learning_rates
        chosen = any(value is not None for value in (*self.separation, *self.rotation))
        workload = Workload(typed.workload.rounds, momentum, rates)
        return Setting(workload, typed.participation if chosen else stated.participation)

    def setting(self, rounds: int | None = None) -> Setting:
        """The setting that the flags describe.

        Args:
            rounds: Where ``--rounds`` was not given.

        Raises:
            ConfigError: Flags are missing, or contradict each other.
        """
        if self.rounds is None and rounds is None:
            raise ConfigError("--rounds: is missing; say how many rounds the strategy is for")
        n = rounds_count(rounds if self.rounds is None else self.rounds)
        rates = None
        if self.learning_rates is not None:
            cooled = self.learning_rates == _COOLDOWN
            rates = published.cooldown(n) if cooled else published.learning_rates(self.learning_rates)
            if len(rates) != n:
                raise ConfigError(
                    f"--learning-rates {self.learning_rates}: has {len(rates)} entries: must have one for each of {n} rounds"
                )
        return Setting(Workload(n, self.momentum or 0.0, rates), _pattern(n, self.separation, self.rotation))


def _pattern(rounds: int, separation: tuple[int | None, int | None], rotation: tuple[int | None, int | None]) -> Participation:
    separated, rotated = (any(value is not None for value in flags) for flags in (separation, rotation))
    if separated and rotated:
        raise ConfigError("--min-separation/--max-participations and --epochs/--rounds-per-epoch: say one of them")
    if rotated:
        epochs, rounds_per_epoch = rotation
        if rounds_per_epoch is None:
            raise ConfigError("--epochs: needs --rounds-per-epoch, the rounds from one participation to the next")
        period = integer("rounds_per_epoch", rounds_per_epoch, at_least=1)
        return FixedEpochs(math.ceil(rounds / period) if epochs is None else epochs, period)
    if separated:
        least, most = separation
        b = 1 if least is None else integer("min_separation", least, at_least=1)
        return (
            SingleParticipation()
            if least is None and most == 1
            else MinSeparation(b, math.ceil(rounds / b) if most is None else most)
        )
    return SingleParticipation()


def workload_words(workload: Workload) -> str:
    """A workload as one reads it."""
    parts = [f"momentum {workload.momentum:g}"] if workload.momentum else []
    if workload.learning_rates is not None:
        parts.append(f"learning rates {min(workload.learning_rates):g} to {max(workload.learning_rates):g}")
    return "SGD with " + ", ".join(parts) if parts else "prefix sums"


def participation_words(participation: Participation) -> str:
    """A pattern as one reads it."""
    match participation:
        case SingleParticipation() | FixedEpochs(epochs=1) | MinSeparation(max_participations=1):
            return "one round of each client"
        case FixedEpochs(epochs, rounds_per_epoch):
            return f"up to {epochs:,} rounds of each client, whole multiples of {rounds_per_epoch:,} apart"
        case MinSeparation(min_separation, max_participations):
            return f"up to {max_participations:,} rounds of each client, at least {min_separation:,} apart"
        case other:
            return repr(other)


def root_errors(setting: Setting, strategy: Strategy, sensitivity: float) -> Array:
    """The error of each round as a standard deviation, ``(rounds,)``: of unit noise, times the sensitivity."""
    roots: Array = squared_errors(setting.workload, strategy) ** 0.5 * sensitivity
    return roots


def require_output(flag: str, path: Path | None, suffix: str) -> None:
    """Refuse a file that could not be written, before anything is computed for it."""
    if path is None:
        return
    if path.suffix != suffix:
        raise ConfigError(f"{flag} {path}: must end in {suffix}")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{flag} {path}: is a folder")
