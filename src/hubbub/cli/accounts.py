"""``hubbub account`` and ``calibrate`` of a mechanism, and ``hubbub gaussian``, one release by every published calibration."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from hubbub import accounting
from hubbub._util import files
from hubbub._util.checks import open_unit, rounds_count, scale
from hubbub.accounting import PrivacyGuarantee
from hubbub.accounting.statement import RunFacts, zcdp_standing
from hubbub.cli.factorize import pattern_of, require_output
from hubbub.cli.flags import number, whole
from hubbub.cli.output import console, print_json, print_table, print_whole, say
from hubbub.errors import ConfigError
from hubbub.experiment.config import strategy_name
from hubbub.factorization.families import Family, strategy_of
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism import gaussian as releases
from hubbub.mechanism.gaussian.closed_forms import Calibration, shown, why_not_proved
from hubbub.mechanism.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    RandomParticipation,
    SingleParticipation,
    TruncatedPoissonSampling,
    every_round,
)
from hubbub.mechanism.strategies import Columns, Strategy
from hubbub.mechanism.workloads import prefix_sum
from hubbub.training.run_folder.record import read_run

if TYPE_CHECKING:
    from hubbub.report.pictures import Calibrated

__all__ = ["MechanismFlags", "account", "calibrate", "gaussian", "guarantee_rows"]

_OPTIONS: dict[str, Callable[[str], Any]] = {
    "bands": whole,
    "buffers": whole,
    "objective": str,
    "matrix": str,
    "column-norm-squared": number,
}
# Random cohorts by the flags that name them.
_COHORTS: dict[frozenset[str], Callable[..., RandomParticipation]] = {
    frozenset({"sampling_probability"}): PoissonSampling,
    frozenset({"sampling_probability", "max_cohort_size", "population"}): TruncatedPoissonSampling,
    frozenset({"sampling_probability", "cycle_length"}): CyclicPoissonSampling,
    frozenset({"bins"}): BallsInBinsSampling,
    frozenset({"cohort_size", "population"}): FixedSizeSampling,
}
_COHORT_FLAGS = ("sampling_probability", "cohort_size", "population", "max_cohort_size", "cycle_length", "bins")


@dataclass(frozen=True)
class MechanismFlags:
    """The flags that describe a mechanism without its noise; ``None`` takes the default, or the value of the run."""

    mechanism: str | None
    rounds: int | None
    delta: float | None
    neighboring_relation: str | None
    accountant: str | None
    min_separation: int | None
    max_participations: int | None
    epochs: int | None
    rounds_per_epoch: int | None
    sampling_probability: float | None
    cohort_size: int | None
    population: int | None
    max_cohort_size: int | None
    cycle_length: int | None
    bins: int | None
    strategy: str | None
    bands: int | None
    buffers: int | None
    column_norm_squared: float | None
    matrix: str | None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "MechanismFlags":
        """The flags among a command's parameters."""
        return cls(**{field.name: parameters[field.name] for field in fields(cls)})

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the named flags that were given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def stated(self) -> dict[str, Any]:
        """The terms of the guarantee that were given."""
        return self.given("delta", "neighboring_relation", "accountant")

    @property
    def run(self) -> Path | None:
        """The folder of a run, if ``--mechanism`` names one."""
        named = self.mechanism
        return Path(named) if named and not _is_family(named) and Path(named).is_dir() else None

    def participation(self, rounds: int) -> Participation | None:
        """The participation that the flags describe, if any."""
        random = self.given(*_COHORT_FLAGS)
        kinds = {
            "--min-separation/--max-participations": self.given("min_separation", "max_participations"),
            "--epochs/--rounds-per-epoch": self.given("epochs", "rounds_per_epoch"),
            _as_flags(random): random,
        }
        given = [words for words, flags in kinds.items() if flags]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)}: say one of them; random cohorts and patterns do not combine")
        if random:
            return _cohorts(random)
        if given:
            return pattern_of(rounds, (self.min_separation, self.max_participations), (self.epochs, self.rounds_per_epoch))
        return None

    def promise(self) -> Promise:
        """The promise of the run, with what was given in its place; or that of the flags, at noise multiplier 1.

        Raises:
            ConfigError: Flags are missing or contradict each other, or the run has no noise or other rounds.
        """
        self.require()
        if self.run is None:
            mechanism = self._described()
            promise = Promise(mechanism.rounds, mechanism)
        else:
            promise = read_run(self.run).promise
            if promise.mechanism is None:
                raise ConfigError(f"--mechanism {self.mechanism}: this run has no noise")
            if self.rounds not in (None, promise.rounds):
                raise ConfigError(f"--rounds {self.rounds}: the run of --mechanism has {promise.rounds}; leave it out")
            if participation := self.participation(promise.rounds):
                promise = replace(promise, mechanism=replace(promise.mechanism, participation=participation))
        return replace(promise, **self.stated)

    def require(self) -> None:
        """Refuse two mechanisms, an unknown family, and a mechanism without rounds or delta; a run states its own.

        Raises:
            ConfigError: One of these.
        """
        parts = self.given("strategy", "bands", "buffers", "column_norm_squared", "matrix")
        if self.mechanism is not None and parts:
            other = next(f"{_as_flags([name])} = {value!r}" for name, value in parts.items())
            raise ConfigError(
                f"--mechanism = {self.mechanism!r} with {other}: give one; --mechanism takes its parts as options"
            )
        if self.run is None:
            self._family()
            for flag, value in (("--rounds", self.rounds), ("--delta", self.delta)):
                if value is None:
                    raise ConfigError(f"{flag}: is missing; name --rounds and --delta of a mechanism, or the folders of runs")

    def _described(self) -> Mechanism:
        name, options = self._family()
        norm = options.pop("column-norm-squared", None)
        if norm is not None and (name != "banded" or "bands" not in options):
            raise ConfigError(
                "--column-norm-squared: describes --strategy banded with --bands; as one argument, "
                "--mechanism banded:bands=N,column-norm-squared=X"
            )
        rounds = rounds_count(self.rounds)
        participation = self.participation(rounds)
        family = Family(name, **options)
        if norm is not None:
            strategy: Strategy = Columns(rounds, options["bands"], norm)
        else:
            try:
                strategy = strategy_of(family, prefix_sum(rounds), participation or every_round(rounds))
            except ValueError as error:
                if participation is not None:
                    raise
                raise ConfigError(
                    f"{error}; without flags each client may join every round: say --min-separation and "
                    "--max-participations, or --epochs and --rounds-per-epoch"
                ) from error
        return Mechanism(strategy, participation or every_round(rounds), noise_multiplier=1.0)

    def _family(self) -> tuple[str, dict[str, Any]]:
        """The family and its options, from ``--mechanism`` or from the flags of its parts."""
        parts = self.given("strategy", "bands", "buffers", "column_norm_squared", "matrix")
        if self.mechanism is not None:
            return _parsed(self.mechanism)
        if ":" in parts.get("strategy", ""):
            raise ConfigError(f"--strategy {self.strategy!r}: for code of your own, use hubbub.accounting.guarantee in Python")
        name = strategy_name("--strategy", parts.pop("strategy", "identity" if self.matrix is None else "file"))
        if self.matrix is not None and (name not in ("dense", "file") or len(parts) > 1):
            raise ConfigError("--matrix: the file describes its strategy; leave --strategy and its numbers out")
        return name, {key.replace("_", "-"): value for key, value in parts.items()}


def _is_family(named: str) -> bool:
    """Whether ``NAME:KEY=VALUE,…`` names a family, whatever files are here."""
    try:
        strategy_name("--mechanism", named.partition(":")[0])
    except ValueError:
        return False
    return True


def _parsed(named: str) -> tuple[str, dict[str, Any]]:
    """The family of ``NAME:KEY=VALUE,…`` or of a file, and its options."""
    if not _is_family(named) and (Path(named).is_file() or Path(named).suffix):
        return "file", {"matrix": named}
    name, _, listed = named.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, listed.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in _OPTIONS:
            raise ConfigError(f"--mechanism {named!r}: {part!r} is no option; write {'=…, '.join(_OPTIONS)}=…")
        options[key] = _OPTIONS[key](value)
    return strategy_name("--mechanism", name), options


def _cohorts(given: Mapping[str, Any]) -> RandomParticipation:
    names = frozenset(given)
    if names in _COHORTS:
        return _COHORTS[names](**given)

    def ordered(kind: frozenset[str]) -> str:
        return _as_flags(name for name in _COHORT_FLAGS if name in kind)

    if missing := [ordered(kind - names) for kind in _COHORTS if names < kind]:
        raise ConfigError(f"{_as_flags(given)}: random cohorts need {' or '.join(missing)}, too")
    known = ", ".join(map(ordered, _COHORTS))
    raise ConfigError(f"{_as_flags(given)}: together name no kind of random cohorts; write {known}")


def _as_flags(names: Iterable[str]) -> str:
    return " with ".join(f"--{name.replace('_', '-')}" for name in names)


def account(flags: MechanismFlags, multipliers: tuple[float | None, float | None], *, as_json: bool, in_full: bool) -> None:
    """Print the guarantee of a mechanism, with the noise of one of two multipliers or of the run."""
    flags.require()
    relative, absolute = multipliers
    if (relative is not None and absolute is not None) or (flags.run is None and relative is None and absolute is None):
        raise ConfigError("--noise-multiplier and --clip-noise-multiplier: give exactly one of them")
    promise = flags.promise()
    if promise.mechanism is not None and absolute is not None:
        column_norm = promise.mechanism.strategy.sensitivity(SingleParticipation()).value
        relative = scale("--clip-noise-multiplier", absolute) / column_norm
    if promise.mechanism is not None and relative is not None:
        promise = replace(promise, mechanism=replace(promise.mechanism, noise_multiplier=relative))
    _print_guarantee(promise, flags, as_json=as_json, in_full=in_full, own_noise=relative is None)


def calibrate(flags: MechanismFlags, epsilon: float, *, as_json: bool) -> None:
    """Print the guarantee of the least noise that meets a budget."""
    promise = flags.promise()
    if promise.mechanism is not None:
        mechanism = accounting.calibrate(
            promise.mechanism.strategy,
            promise.mechanism.participation,
            epsilon=epsilon,
            delta=promise.delta,
            neighboring_relation=promise.neighboring_relation,
            accountant=promise.accountant,
            shares=promise.mechanism.shares,
            prior=promise.earlier,
            privacy_unit=promise.privacy_unit,
        )
        promise = replace(promise, mechanism=mechanism)
    _print_guarantee(promise, flags, as_json=as_json)


def _print_guarantee(
    promise: Promise, flags: MechanismFlags, *, as_json: bool, in_full: bool = False, own_noise: bool = False
) -> None:
    """Print a guarantee as a table, as JSON, or as the full statement, and whether it is that of the run."""
    answer = promise.after(promise.rounds, promise.delta)
    is_run = flags.run is not None
    participation = flags.participation(promise.rounds)
    if as_json:
        print_json(answer.as_json())
        return
    if in_full:
        terms = promise.terms
        facts = RunFacts(terms.clip_norm, terms.expected_cohort_size, not promise.simulation, adaptive=terms.adaptive)
        console().print(answer.statement(facts if is_run and own_noise and participation is None else None), end="")
        return
    screen = console()
    unnamed = participation is None and not is_run
    say(screen, f"Participation: {answer.cohorts}{', since no flag names another' if unnamed else ''}")
    print_table("Guarantee", guarantee_rows(answer))
    say(screen)
    say(screen, answer.sentence())
    if answer.amplified:
        worst = accounting.rounded_up(answer.unamplified_epsilon)
        say(screen, f"Assuming the cohorts as stated; in the worst case over them, without amplification, epsilon is {worst}.")
    meant = None if promise.mechanism is None else promise.mechanism.participation
    if isinstance(meant, MinSeparation) and (b := meant.min_separation) > 1:
        say(
            screen,
            f"A separation of {b} means rounds r and r + {b}; Google's accounting notebook counts the {b - 1} rounds between.",
        )
    if is_run:
        same = own_noise and participation is None and not flags.stated
        whose = "That is what the run promised" if same else "That is not what the run promised"
        say(screen, f"{whose}; hubbub account {flags.mechanism} says what it spent")


def guarantee_rows(answer: PrivacyGuarantee) -> dict[str, str]:
    """The guarantee as rows of a table, each number in full."""
    covered = "of the whole run" + (" and the earlier ones" if answer.earlier else "")
    standing = "exact" if answer.sensitivity_exact else "a bound"
    return {
        "epsilon": f"{answer.epsilon!r}",
        "delta": f"{answer.delta!r}",
        "zCDP rho": f"{answer.unamplified_zcdp_rho!r} ({covered}{zcdp_standing(answer)})",
        "L2 sensitivity": f"{answer.l2_sensitivity!r} (of {answer.sensitivity_of}, {standing})",
        "noise multiplier": f"{answer.noise_multiplier!r} (over clip norm × largest column norm)",
        "clip noise multiplier": f"{answer.clip_noise_multiplier!r} (over the clip norm)",
        "privacy unit": answer.privacy_unit,
        "neighboring relation": answer.neighboring_relation,
        "accountant": answer.accountant,
    }


# Widths of the table and of the longest bar, and points of a curve.
_TABLE, _BAR, _POINTS = 110, 16, 121


@dataclass(frozen=True)
class _Row:
    """One calibration, or why it has no value."""

    name: str
    computed: Calibration | None
    refused: str | None


def gaussian(epsilon: float, delta: float, sensitivity: float, *, plot: Path | None, as_json: bool) -> None:
    """Print the table of all calibrations for a budget, and draw how loose each is over epsilon.

    Args:
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        sensitivity: L2, in the unit of the noise that is printed.
        plot: Where to draw.
        as_json: Print one JSON object instead.

    Raises:
        ValueError: A number out of range.
        ConfigError: A picture that cannot be written there.
    """
    budget = scale("epsilon", epsilon), open_unit("delta", delta), scale("sensitivity", sensitivity)
    require_output("--plot", plot, ".png")
    rows = [_row(name, *budget) for name in releases.NAMES]
    least = releases.noise_multiplier(*budget)
    if plot is not None:
        # Drawing costs a second to import.
        from hubbub.report.pictures import draw_calibrations

        files.write_atomic(plot, draw_calibrations(budget[0], budget[1], _curves(*budget[:2], rows)), mode=0o644)
    if as_json:
        shared = dict(zip(("epsilon", "delta", "sensitivity"), budget, strict=True))
        calibrations = [_facts(row, least) for row in rows]
        print_json({**shared, "calibrations": calibrations, "plot": None if plot is None else str(plot)})
    else:
        # Refused or not, by their noise; what has no value comes last.
        rows.sort(key=lambda row: math.inf if row.computed is None else row.computed.noise_multiplier)
        _print(budget, rows, least)


def _row(name: str, epsilon: float, delta: float, sensitivity: float) -> _Row:
    try:
        answer = releases.computed(name, epsilon, delta, sensitivity)
    except ValueError as error:
        return _Row(name, None, str(error))
    return _Row(name, answer, None if answer.proved else why_not_proved(answer))


def _facts(row: _Row, least: float) -> dict[str, Any]:
    answer = row.computed
    return {
        "name": row.name,
        "noise_multiplier": None if answer is None else answer.noise_multiplier,
        "attained_delta": None if answer is None else answer.attained_delta,
        "relative_to_analytic": None if answer is None else answer.noise_multiplier / least,
        "holds": None if answer is None else answer.holds,
        "refused": row.refused,
        "source": None if answer is None else answer.source,
    }


def _print(budget: tuple[float, float, float], rows: list[_Row], least: float) -> None:
    epsilon, delta, sensitivity = budget
    screen = console()
    say(screen, f"One Gaussian release of L2 sensitivity {sensitivity!r} that is to be ({epsilon!r}, {delta!r})-DP")
    say(screen)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("calibration", no_wrap=True)
    for column in ("noise", "delta attained", "noise over analytic"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    ratios = [row.computed.noise_multiplier / least for row in rows if row.computed is not None]
    for row in rows:
        answer = row.computed
        if answer is None:
            table.add_row(row.name, "-", "-", "-", "", "refused")
            continue
        ratio = answer.noise_multiplier / least
        verdict = "the least noise" if row.name == "analytic" else "holds" if answer.holds else "false"
        table.add_row(
            row.name,
            shown(answer.noise_multiplier, 6),
            shown(answer.attained_delta, 3),
            f"{ratio:.4g}",
            "█" * max(1, round(_BAR * ratio / max(ratios))),
            verdict if row.refused is None else "refused",
        )
    print_whole(table, _TABLE)
    refused = [row.refused for row in rows if row.refused is not None]
    if refused:
        say(screen)
        say(screen, "Refused:")
        for reason in refused:
            say(screen, f"  {reason}", indent=4)


def _curves(epsilon: float, delta: float, rows: list[_Row]) -> "list[Calibrated]":
    """Noise over that of the analytic calibration, of all but itself, over epsilons around the one asked for.

    Always all of them and in the order of their names, by which a picture gives them their looks; one that has no value is
    NaN, and has a name in the legend alone.
    """
    from hubbub.report.pictures import Calibrated

    low, high = max(min(0.01, epsilon / 10), 1e-12), min(max(50.0, epsilon * 10), 1e12)
    epsilons = np.geomspace(low, high, _POINTS)
    least = np.array([releases.noise_multiplier(float(eps), delta) for eps in epsilons])
    curves = []
    for row in rows:
        if row.name != "analytic":
            found = [_row(row.name, float(eps), delta, 1.0).computed for eps in epsilons]
            noise = np.array([math.nan if one is None else one.noise_multiplier for one in found])
            proved = np.array([one is None or one.proved for one in found])
            name = row.name if row.refused is None else f"{row.name}, refused"
            curves.append(Calibrated(name, epsilons, noise / least, proved))
    return curves
