"""A run as its report shows it: read from the folder, ledger first, so that nothing is shown that is not on record."""

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import numpy as np

from hubbub._util.checks import Array
from hubbub._util.files import read
from hubbub.accounting import PrivacyGuarantee
from hubbub.errors import RunFolderError
from hubbub.ledger.actual_cost import Spent, spent
from hubbub.ledger.multi_run import Recorded
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, SingleParticipation
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import read_metrics, read_run

__all__ = ["Participation", "RunSummary", "Strength", "summary", "whose"]

# A matrix of more rounds is not drawn: it would take minutes.
_MOST_ROUNDS = 4000
_LARGEST_SETTINGS = 2**20


@dataclass(frozen=True)
class Participation:
    """Who took part how often, if the ledger has a list: private, since it shows who they are.

    Args:
        counts: For each client that took part, in how many rounds, aborted ones counted.
        least_gap: The fewest rounds from one participation of a client to its next; ``None`` where nobody came twice.
        promised: The pattern in words.
        most: How often a client may take part at most; ``None`` where nothing bounds it.
    """

    counts: Sequence[int]
    least_gap: int | None
    promised: str
    most: int | None


@dataclass(frozen=True, eq=False)
class Strength:
    """What was released in each round that has a release on disk, made of public numbers alone.

    Args:
        rounds: ``(releases,)``, from 1.
        released: ``(releases,)``, the L2 norm of the noisy sum.
        noise: ``(releases,)``, what the noise alone has by expectation.
    """

    rounds: Array
    released: Array
    noise: Array

    @property
    def signal(self) -> Array:
        """An estimate of the norm of the sum without its noise, ``(releases,)``; not a number where the noise drowns it.

        The square root of the difference of squares, each a mean over neighboring rounds: of one round alone it is too rough.
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
        name: The folder's name, in letters that can be shown.
        rows: Its metrics, one mapping a round, as they were noted: what a round has cost is not taken from them.
        recorded: Promise and history.
        cost: What was promised and what happened, in epsilon.
        config: The resolved settings as TOML; empty if there are no settings.
        settings: The same, section by section.
        strength: Releases against noise; ``None`` without releases.
        public: Whether loss and accuracy are known to be of public test data.
        number: Of the run on its page, from 0: what it looks like in every chart.
        audit: What an audit of the same settings found, as its file has it; see :mod:`hubbub.report.audit`.
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
        """Of what happened."""
        return self.cost.guarantee

    @property
    def mechanism(self) -> Mechanism | None:
        """What adds the noise; ``None`` without privacy."""
        return self.recorded.promise.mechanism

    @property
    def state(self) -> str:
        """In one word."""
        if self.recorded.history.closed:
            return "closed"
        return "interrupted" if self.recorded.rounds_left else "finished"

    @property
    def participation(self) -> Participation | None:
        """Who took part how often, where the ledger lists it."""
        joined, mechanism = self.recorded.history.participations, self.mechanism
        if not joined.clients or mechanism is None:
            return None
        gaps, counts = joined.gaps(), tuple(joined.counts.tolist())
        match mechanism.participation:
            case MinSeparation(max_participations=most) | FixedEpochs(epochs=most):
                bound: int | None = most
            case SingleParticipation():
                bound = 1
            case _:
                bound = None
        return Participation(counts, int(gaps.min()) if len(gaps) else None, self.guarantee.cohorts, bound)

    def epsilon_after(self, rounds: int) -> float:
        """What the first rounds cost, by the ledger: of all that were begun what is stated, of fewer what was promised.

        Of zero rounds it is what the earlier runs cost.
        """
        promise = self.recorded.promise
        if not rounds and not promise.earlier:
            return 0.0
        if rounds >= min(promise.rounds, len(self.recorded.history.rounds)):
            return self.guarantee.epsilon
        return promise.after(rounds, promise.delta).epsilon

    @property
    def audited_epsilon(self) -> float | None:
        """The largest epsilon that the audit disproved at 95 %, of its bounds on what is stated; ``None`` without an audit.

        Four digits of it, rounded down: less is proved, never more.
        """
        if self.audit is None:
            return None
        stated = self.audit["stated"]["epsilon"]
        bounds = [one["shown"]["epsilon"] for one in self.audit["comparisons"] if one["stated_epsilon"] == stated]
        bound = Decimal(max(bounds, default=0.0))
        return float(bound.quantize(Decimal(1).scaleb(bound.adjusted() - 3), rounding=ROUND_FLOOR)) if bound else 0.0

    def statement(self) -> str:
        """The guarantee as a text for publication."""
        promise = self.recorded.promise
        facts = replace(self.cost.facts(promise, self.recorded.chain.head), audited_epsilon=self.audited_epsilon)
        return self.guarantee.statement(facts)


def summary(folder: Path) -> RunSummary:
    """What is in a run's folder; nothing is written, and no code that it names is imported.

    Raises:
        RunFolderError: The folder is no run, or a part of it cannot be read.
        LedgerError: The ledger is damaged, or does not account for all that lies in the folder.
    """
    recorded = read_run(folder)
    config, settings = _config(folder / "config.toml")
    rows, _ = read_metrics(folder / "metrics.jsonl")
    private = {name for row in rows for name in row.get("private", ())}
    # Where nothing says whose examples they are, they may be anybody's.
    public = bool(settings) and not settings.get("training", {}).get("validation") and "accuracy" not in private
    cost = spent(recorded.promise, recorded.history)
    name = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in folder.resolve().name)
    return RunSummary(name, rows, recorded, cost, config, settings, _strength(folder, recorded), public)


def _config(path: Path) -> tuple[str, Mapping[str, Mapping[str, Any]]]:
    """The settings as text and as sections; both empty if there are no settings."""
    if not os.path.lexists(path):
        return "", {}
    try:
        text = read(path, at_most=_LARGEST_SETTINGS).decode()
        sections = tomllib.loads(text)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); restore it") from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: is not TOML ({error}); restore it") from error
    if alone := [key for key, value in sections.items() if not isinstance(value, dict | str)]:
        raise RunFolderError(f"{path}: {alone[0]} = {sections[alone[0]]!r} stands outside a section; restore the file")
    return text, {key: value for key, value in sections.items() if isinstance(value, dict)}


def _strength(folder: Path, recorded: Recorded) -> Strength | None:
    """The norm of each release on disk and what its noise has by expectation."""
    mechanism, store = recorded.promise.mechanism, RunStore(folder)
    kept = [t for t in store.released() if t < len(recorded.history.rounds)]
    if mechanism is None or not kept or recorded.promise.noise_in_sums:
        return None
    rows = _row_norms(mechanism)
    if rows is None:
        return None
    released, noise, rounds = [], [], []
    for t in kept:
        entry = recorded.history.rounds[t]
        if entry.release is None or entry.clip_norm is None:
            continue
        try:
            release = store.parse_release(t, store.release_content(t))
        except RunFolderError:
            continue
        rounds.append(t + 1)
        released.append(float(release.to("cpu").double().norm()))
        noise.append(mechanism.stddev * entry.clip_norm * rows[t] * math.sqrt(len(release)))
    return Strength(np.array(rounds), np.array(released), np.array(noise)) if rounds else None


def _row_norms(mechanism: Mechanism) -> Array | None:
    """The L2 norm of each row of C⁻¹, ``(rounds,)``; ``None`` where it takes too long."""
    from hubbub.mechanism.strategies import Identity
    from hubbub.mechanism.utility import noising_matrix

    if isinstance(mechanism.strategy, Identity):
        return np.ones(mechanism.rounds)
    if mechanism.rounds > _MOST_ROUNDS:
        return None
    norms: Array = np.linalg.norm(noising_matrix(mechanism.strategy), axis=1)
    return norms


def whose(guarantee: PrivacyGuarantee) -> str:
    """Whose examples a validation holds out."""
    return "training examples" if guarantee.privacy_unit == "example" else "examples of the clients"
