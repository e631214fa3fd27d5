"""``hubbub account`` and ``calibrate`` of a mechanism, and ``hubbub gaussian``, one release by every published calibration."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
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

if TYPE_CHECKING:
    from hubbub.report.pictures import Calibrated

__all__ = ["CohortFlags", "Statement", "Wanted", "Who", "account", "calibrate", "gaussian", "guarantee_rows"]

_OPTIONS: dict[str, Callable[[str], Any]] = {
    "bands": whole,
    "buffers": whole,
    "objective": str,
    "matrix": str,
    "column-norm-squared": number,
}


@dataclass(frozen=True)
class Statement:
    """How an answer is to be stated; ``None`` takes what the run of ``--mechanism`` says, or the default."""

    delta: float | None
    neighboring_relation: str | None
    accountant: str | None
    as_json: bool
    in_full: bool = False

    @property
    def names_terms(self) -> bool:
        """Whether anything is typed in the place of what a run says."""
        return any(value is not None for value in (self.delta, self.neighboring_relation, self.accountant))


# By the flags that name them; no other combination is a kind of cohorts.
_COHORTS: dict[frozenset[str], Callable[..., RandomParticipation]] = {
    frozenset({"sampling_probability"}): PoissonSampling,
    frozenset({"sampling_probability", "max_cohort_size", "population"}): TruncatedPoissonSampling,
    frozenset({"sampling_probability", "cycle_length"}): CyclicPoissonSampling,
    frozenset({"bins"}): BallsInBinsSampling,
    frozenset({"cohort_size", "population"}): FixedSizeSampling,
}


@dataclass(frozen=True)
class CohortFlags:
    """The flags that name random cohorts."""

    sampling_probability: float | None = None
    cohort_size: int | None = None
    population: int | None = None
    max_cohort_size: int | None = None
    cycle_length: int | None = None
    bins: int | None = None

    def given(self) -> dict[str, float]:
        """Those that were given."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def participation(self) -> RandomParticipation:
        """The cohorts that they name together.

        Raises:
            ConfigError: Together they name none.
        """
        given = self.given()
        names = frozenset(given)
        if names in _COHORTS:
            return _COHORTS[names](**given)
        missing = [_as_typed(name for name in _NAMES if name in kind - names) for kind in _COHORTS if names < kind]
        if missing:
            raise ConfigError(f"{_as_typed(given)}: random cohorts need {' or '.join(missing)}, too")
        known = ", ".join(_as_typed(name for name in _NAMES if name in kind) for kind in _COHORTS)
        raise ConfigError(f"{_as_typed(given)}: name no kind of random cohorts together; there are {known}")


_NAMES = tuple(field.name for field in fields(CohortFlags))


def _as_typed(names: Iterable[str]) -> str:
    """Names as flags."""
    return " with ".join(f"--{name.replace('_', '-')}" for name in names)


@dataclass(frozen=True)
class Who:
    """The flags that name who takes part when: a separation, fixed epochs, or random cohorts."""

    separation: tuple[int | None, int | None]
    rotation: tuple[int | None, int | None]
    random: CohortFlags

    @property
    def empty(self) -> bool:
        """Whether nothing was typed."""
        return not self.random.given() and all(value is None for value in (*self.separation, *self.rotation))

    def participation(self, rounds: int) -> Participation:
        """The participation that they name; without any, each client may join each round."""
        patterns = {
            "--min-separation/--max-participations": self.separation,
            "--epochs/--rounds-per-epoch": self.rotation,
            _as_typed(self.random.given()): tuple(self.random.given().values()),
        }
        given = [flag for flag, values in patterns.items() if any(value is not None for value in values)]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)}: say one of them; random cohorts and patterns do not combine")
        if self.random.given():
            return self.random.participation()
        return every_round(rounds) if self.empty else pattern_of(rounds, self.separation, self.rotation)


@dataclass(frozen=True)
class Wanted:
    """The mechanism that flags name, its noise aside: ``--mechanism`` as it was typed, ``--rounds``, and who takes part."""

    mechanism: str
    rounds: int | None
    who: Who

    @property
    def is_run(self) -> bool:
        """Whether a run's folder is named."""
        return bool(self.mechanism) and not self._is_name and Path(self.mechanism).is_dir()

    def require(self, statement: Statement) -> None:
        """Refuse what names nothing, and a mechanism without its rounds or its delta; a run has its own.

        Raises:
            ConfigError: One of these.
        """
        if self.is_run:
            return
        self._named()
        for flag, value in (("--rounds", self.rounds), ("--delta", statement.delta)):
            if value is None:
                raise ConfigError(f"{flag}: is missing; name --rounds and --delta of a mechanism, or the folders of runs")

    def promise(self, statement: Statement) -> tuple[Promise, Mechanism]:
        """What is promised and its mechanism: a run's, with what was typed in its place; or one of noise multiplier 1.

        Raises:
            ConfigError: The run adds no noise, or had other rounds than those that were typed; or flags do not go together.
        """
        found, mechanism = self._of_run() if self.is_run else self._of_flags()
        asked = {
            "neighboring_relation": statement.neighboring_relation,
            "accountant": statement.accountant,
            "delta": statement.delta,
        }
        typed = {name: value for name, value in asked.items() if value is not None}
        return replace(found, mechanism=mechanism, **typed), mechanism  # type: ignore[arg-type] # of the types that they have

    def _of_run(self) -> tuple[Promise, Mechanism]:
        """The promise of a run, and its mechanism with the participation that was typed."""
        from hubbub.training.run_folder.record import read_run

        promise = read_run(Path(self.mechanism)).promise
        found = promise.mechanism
        if found is None:
            raise ConfigError(f"--mechanism {self.mechanism}: this run has no noise")
        if self.rounds not in (None, found.rounds):
            raise ConfigError(f"--rounds {self.rounds}: the run of --mechanism has {found.rounds}; leave it out")
        if self.who.empty:
            return promise, found
        return promise, replace(found, participation=self.who.participation(found.rounds))

    def _of_flags(self) -> tuple[Promise, Mechanism]:
        mechanism = Mechanism(*self._strategy(), noise_multiplier=1.0)
        return Promise(mechanism.rounds, mechanism), mechanism

    def _strategy(self) -> tuple[Strategy, Participation]:
        """The strategy of a name or a file for prefix sums, and the participation."""
        name, options = self._named()
        rounds = rounds_count(self.rounds)
        participation = self.who.participation(rounds)
        norm = options.pop("column-norm-squared", None)
        family = Family(name, **options)
        if norm is not None:
            if name != "banded" or family.bands is None:
                raise ConfigError("--mechanism: column-norm-squared belongs to banded:bands=N,column-norm-squared=X")
            return Columns(rounds, family.bands, norm), participation
        try:
            return strategy_of(family, prefix_sum(rounds), participation), participation
        except ValueError as error:
            if participation != every_round(rounds):
                raise
            raise ConfigError(
                f"{error}; without flags each client may join every round: say --min-separation and --max-participations, "
                "or --epochs and --rounds-per-epoch"
            ) from error

    @property
    def _is_name(self) -> bool:
        """Whether a family is named, whatever files are here."""
        try:
            strategy_name("--mechanism", self.mechanism.partition(":")[0])
        except ValueError:
            return False
        return True

    def _named(self) -> tuple[str, dict[str, Any]]:
        """The family of ``NAME:KEY=VALUE,…`` or of a file, and its options."""
        if not self._is_name and (Path(self.mechanism).is_file() or Path(self.mechanism).suffix):
            return "file", {"matrix": self.mechanism}
        name, _, listed = self.mechanism.partition(":")
        options: dict[str, Any] = {}
        for part in filter(None, listed.split(",")):
            key, equals, value = part.partition("=")
            if not equals or key not in _OPTIONS:
                raise ConfigError(f"--mechanism {self.mechanism!r}: {part!r} is no option; write {'=…, '.join(_OPTIONS)}=…")
            options[key] = _OPTIONS[key](value)
        return strategy_name("--mechanism", name), options


def account(wanted: Wanted, multipliers: tuple[float | None, float | None], statement: Statement) -> None:
    """Print what a mechanism guarantees, with the noise of one of two multipliers; that of a run has its own, too."""
    relative, absolute = multipliers
    wanted.require(statement)
    if (relative is not None and absolute is not None) or (not wanted.is_run and relative is None and absolute is None):
        raise ConfigError("--noise-multiplier and --clip-noise-multiplier: give exactly one of them")
    promise, mechanism = wanted.promise(statement)
    if absolute is not None:
        relative = scale("--clip-noise-multiplier", absolute) / mechanism.strategy.sensitivity(SingleParticipation()).value
    if relative is not None:
        promise = replace(promise, mechanism=replace(mechanism, noise_multiplier=relative))
    _print_guarantee(promise, wanted, statement, same_mechanism=relative is None and wanted.who.empty)


def calibrate(wanted: Wanted, epsilon: float, statement: Statement) -> None:
    """Print the guarantee of the least noise that meets a budget."""
    wanted.require(statement)
    promise, ours = wanted.promise(statement)
    mechanism = accounting.calibrate(
        ours.strategy,
        ours.participation,
        epsilon=epsilon,
        delta=promise.delta,
        neighboring_relation=promise.neighboring_relation,
        accountant=promise.accountant,
        shares=ours.shares,
        prior=promise.earlier,
        privacy_unit=promise.privacy_unit,
    )
    _print_guarantee(replace(promise, mechanism=mechanism), wanted, statement, same_mechanism=False)


def _print_guarantee(promise: Promise, wanted: Wanted, statement: Statement, *, same_mechanism: bool) -> None:
    """Print what is promised, as a table, as JSON, or as the full statement; of a run whether it is what that promised."""
    answer = promise.after(promise.rounds, promise.delta)
    if statement.as_json:
        print_json(answer.as_json())
        return
    if statement.in_full:
        terms = promise.terms
        facts = RunFacts(terms.clip_norm, terms.expected_cohort_size, not promise.simulation, adaptive=terms.adaptive)
        console().print(answer.statement(facts if wanted.is_run and same_mechanism else None), end="")
        return
    screen = console()
    unnamed = wanted.who.empty and not wanted.is_run
    say(screen, f"Participation: {answer.cohorts}{', since no flag names another' if unnamed else ''}")
    print_table("Guarantee", guarantee_rows(answer))
    say(screen)
    say(screen, answer.sentence())
    if answer.amplified:
        worst = accounting.rounded_up(answer.unamplified_epsilon)
        say(screen, f"Assuming the cohorts as stated; in the worst case over them, without amplification, epsilon is {worst}.")
    participation = None if promise.mechanism is None else promise.mechanism.participation
    if isinstance(participation, MinSeparation) and participation.min_separation > 1:
        b = participation.min_separation
        say(
            screen,
            f"A separation of {b} means rounds r and r + {b}; Google's accounting notebook counts the {b - 1} rounds between.",
        )
    if wanted.is_run:
        kept = same_mechanism and not statement.names_terms
        whose = "That is what the run promised" if kept else "That is not what the run promised"
        say(screen, f"{whose}; hubbub account {wanted.mechanism} says what it spent")


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


_TABLE = 110
_BAR = 16
_POINTS = 121


@dataclass(frozen=True)
class Row:
    """One calibration: what it computes, or why it has no value."""

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


def _row(name: str, epsilon: float, delta: float, sensitivity: float) -> Row:
    try:
        answer = releases.computed(name, epsilon, delta, sensitivity)
    except ValueError as error:
        return Row(name, None, str(error))
    return Row(name, answer, None if answer.proved else why_not_proved(answer))


def _facts(row: Row, least: float) -> dict[str, Any]:
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


def _print(budget: tuple[float, float, float], rows: list[Row], least: float) -> None:
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


def _curves(epsilon: float, delta: float, rows: list[Row]) -> "list[Calibrated]":
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
