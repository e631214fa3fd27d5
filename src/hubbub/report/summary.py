"""A run as its report shows it: read from the folder, with every cost from the ledger."""

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hubbub._util import to_digits
from hubbub._util.checks import Array
from hubbub._util.files import read, refusing
from hubbub.accounting import PrivacyGuarantee
from hubbub.errors import RunFolderError
from hubbub.ledger.actual_cost import Recorded, Spent, spent
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, SingleParticipation
from hubbub.mechanism.strategies import Identity
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import read_metrics, read_run

# The norms of the noise of more rounds would take minutes.
_MOST_ROUNDS = 4000
_LARGEST_SETTINGS = 2**20
# The curve of epsilon has at most this many points.
_POINTS = 40


@dataclass(frozen=True, eq=False)
class Strength:
    """The releases on disk against their noise, from public numbers alone.

    Args:
        rounds: ``(releases,)``, from 1.
        released: ``(releases,)``, the L2 norm of the noisy sum.
        noise: ``(releases,)``, the expected norm of its noise.
    """

    rounds: Array
    released: Array
    noise: Array

    @property
    def signal(self) -> Array:
        """An estimate of the norm of the sum without noise, ``(releases,)``; NaN where noise dominates.

        The square root of the difference of squares, each a mean over neighboring rounds: one round alone is too rough.
        """
        width = max(1, len(self.rounds) // 10)
        near = np.minimum(len(self.rounds), np.arange(len(self.rounds)) + width + 1)
        first = np.maximum(0, np.arange(len(self.rounds)) - width)
        sums = np.concatenate([[0.0], np.cumsum(self.released**2 - self.noise**2)])
        squares = (sums[near] - sums[first]) / (near - first)
        estimate: Array = np.sqrt(np.where(squares > 0, squares, np.nan))
        return estimate


@dataclass(frozen=True, eq=False)
class RunSummary:
    """A run as its report needs it.

    Args:
        name: The folder's name, in printable letters.
        rows: Its metrics, one mapping a round; their epsilon is not used.
        config: The resolved settings as TOML; empty if there are none.
        settings: The same, by section.
        strength: Releases against noise; ``None`` without releases.
        public: Whether loss and accuracy are known to be of public test data.
        number: Place of the run on its page, from 0: gives it one look in all charts.
        audit: Findings of an audit of the same settings, as in its file; see :mod:`hubbub.report.audit`.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    recorded: Recorded
    cost: Spent
    config: str
    settings: Mapping[str, Mapping[str, Any]]
    strength: Strength | None
    public: bool
    number: int = 0
    audit: Mapping[str, Any] | None = None

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """The guarantee of the rounds as they happened."""
        return self.cost.guarantee

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism; ``None`` without privacy."""
        return self.recorded.promise.mechanism

    @property
    def aborted(self) -> list[int]:
        """The aborted rounds, from 1."""
        return [i + 1 for i, entry in enumerate(self.recorded.history.rounds) if entry.state == "aborted"]

    @property
    def evaluated(self) -> list[Mapping[str, Any]]:
        """The rows of metrics with an accuracy."""
        return [row for row in self.rows if row.get("accuracy") is not None]

    @property
    def counts(self) -> npt.NDArray[np.int32]:
        """How many rounds each client took part in, aborted ones included; empty if the ledger has no list of them. Private."""
        return self.recorded.history.participations.counts

    @property
    def most_participations(self) -> int | None:
        """How often a client may take part; ``None`` without a bound."""
        match self.mechanism and self.mechanism.participation:
            case MinSeparation(max_participations=most) | FixedEpochs(epochs=most):
                return most
            case SingleParticipation():
                return 1
            case _:
                return None

    def epsilon_after(self, rounds: int) -> float:
        """The cost of the first rounds by the ledger: the stated one for all begun rounds, the promised one for fewer.

        Of zero rounds it is the cost of the earlier runs. Of a run that was worse than promised it is the cost of all of it.
        """
        promise = self.recorded.promise
        if not rounds and not promise.earlier:
            return 0.0
        if self.cost.worse or rounds >= min(promise.rounds, len(self.recorded.history.rounds)):
            return self.guarantee.epsilon
        return promise.after(rounds, promise.delta).epsilon

    @cached_property
    def epsilons(self) -> list[tuple[int, float]]:
        """Rounds, from 0, and their cost by the ledger; some of many rounds, and nothing where epsilon is infinite."""
        begun = len(self.recorded.history.rounds)
        if not begun or not self.guarantee.private:
            return []
        points = [(count, self.epsilon_after(count)) for count in [0, *some(range(1, begun + 1), _POINTS)]]
        return [point for point in points if math.isfinite(point[1])]

    @property
    def audited_epsilon(self) -> float | None:
        """The audit's first lower bound at 95 % on the stated epsilon; ``None`` without one of rounds that were begun.

        The first: the largest of several would not have that confidence. Four digits, rounded down: less is proved, never more.
        """
        if self.audit is None or self.audit["stated"]["rounds"] > len(self.recorded.history.rounds):
            return None
        stated = self.audit["stated"]["epsilon"]
        bounds = (one["shown"]["epsilon"] for one in self.audit["comparisons"] if one["stated_epsilon"] == stated)
        return float(to_digits(next(bounds, 0.0), 4, "ROUND_FLOOR"))

    def statement(self) -> str:
        """The guarantee as a text for publication."""
        broken = () if self.audit is None or self.audit["verdict"] == "holds" else (f"the audit: {self.audit['sentence']}",)
        facts = self.recorded.promise.facts(self.recorded.chain.head, (*self.cost.public_warnings(), *broken))
        return self.guarantee.statement(replace(facts, audited_epsilon=self.audited_epsilon))


def summary(folder: Path) -> RunSummary:
    """The summary of a run's folder; nothing is written, and no code that the settings name is imported."""
    recorded = read_run(folder)
    config, settings = _config(folder / "config.toml")
    bound = {name: digest for name, digest in (recorded.history.files or {}).items() if config and name == "config.toml"}
    for change in RunStore(folder).changed(bound):
        raise RunFolderError(f"{folder}: {change}, and a report would show its settings; restore the file")
    rows, _ = read_metrics(folder / "metrics.jsonl")
    private = {name for row in rows for name in row.get("private", ())}
    # Without settings nobody knows whose examples these are.
    public = bool(settings) and not settings.get("training", {}).get("validation") and "accuracy" not in private
    cost = spent(recorded.promise, recorded.history)
    name = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in folder.resolve().name)
    return RunSummary(name, rows, recorded, cost, config, settings, _strength(folder, recorded), public)


def _config(path: Path) -> tuple[str, Mapping[str, Mapping[str, Any]]]:
    """The settings as text and by section; both empty if there is no file."""
    if not os.path.lexists(path):
        return "", {}
    with refusing(path, "is not TOML"):
        text = read(path, at_most=_LARGEST_SETTINGS).decode()
        sections = tomllib.loads(text)
    if alone := [key for key, value in sections.items() if not isinstance(value, dict | str)]:
        raise RunFolderError(f"{path}: {alone[0]} = {sections[alone[0]]!r} stands outside a section; restore the file")
    return text, {key: value for key, value in sections.items() if isinstance(value, dict)}


def _strength(folder: Path, recorded: Recorded) -> Strength | None:
    """The norm of each release on disk and the expected norm of its noise."""
    mechanism, store = recorded.promise.mechanism, RunStore(folder)
    kept = [t for t in store.released() if t < len(recorded.history.rounds)]
    if mechanism is None or not kept or recorded.promise.noise_in_sums:
        return None
    if isinstance(mechanism.strategy, Identity):
        row_norms: Array = np.ones(mechanism.rounds)
    elif mechanism.rounds > _MOST_ROUNDS:
        return None
    else:
        from hubbub.mechanism.utility import noising_matrix

        row_norms = np.linalg.norm(noising_matrix(mechanism.strategy), axis=1)
    found = []
    for t in kept:
        entry = recorded.history.rounds[t]
        if entry.release is None or entry.clip_norm is None:
            continue
        with suppress(RunFolderError):
            release = store.parse_release(t, store.release_content(t))
            noise = mechanism.stddev * entry.clip_norm * row_norms[t] * math.sqrt(len(release))
            found.append((t + 1, float(release.to("cpu").double().norm()), noise))
    return Strength(*np.array(found).T) if found else None


def escaped(name: str) -> str:
    """A name as text in Markdown, not as its markup."""
    return re.sub(r"([\\`*_{}\[\]<>()#!|&~])", r"\\\1", name)


def whose(guarantee: PrivacyGuarantee) -> str:
    """Whose examples a validation holds out, in words."""
    return "training examples" if guarantee.privacy_unit == "example" else "examples of the clients"


def some(rows: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` rows, the first and the last among them.

    Example:
        >>> some(range(100), most=4)
        [0, 33, 66, 99]
    """
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]
