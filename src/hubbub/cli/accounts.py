"""``hubbub account`` and ``calibrate`` of a mechanism, and ``hubbub gaussian``, one release by every published calibration."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import typer

from hubbub import accounting
from hubbub._util import files
from hubbub._util.checks import open_unit, rounds_count, scale
from hubbub.accounting import PrivacyGuarantee
from hubbub.accounting.statement import RunFacts, zcdp_standing
from hubbub.cli.factorize import PATTERN_FLAGS, pattern_of
from hubbub.cli.flags import number, whole
from hubbub.cli.output import WIDE, console, grid, print_columns, print_json, print_table, require_output, say
from hubbub.errors import ConfigError
from hubbub.experiment.config import strategy_name
from hubbub.factorization import FAMILIES
from hubbub.factorization.families import Family, strategy_of
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism import gaussian as releases
from hubbub.mechanism.gaussian.closed_forms import Calibration, shown, why_not_proved
from hubbub.mechanism.participation import MinSeparation, Participation, RandomParticipation, SingleParticipation, every_round
from hubbub.mechanism.strategies import Columns, Strategy
from hubbub.mechanism.workloads import prefix_sum

# The flags that were given, by the names of their parameters.
Flags = Mapping[str, Any]

_OPTIONS: dict[str, Callable[[str], Any]] = {
    "bands": whole,
    "buffers": whole,
    "objective": str,
    "matrix": str,
    "column-norm-squared": number,
}
# The flags of each kind of random cohorts, which are its fields.
_COHORTS: dict[tuple[str, ...], Callable[..., RandomParticipation]] = {
    tuple(field.name for field in fields(kind)): kind for kind in get_args(RandomParticipation)
}
_COHORT_FLAGS = tuple(dict.fromkeys(name for names in _COHORTS for name in names))
_PARTS = ("strategy", "bands", "buffers", "column_norm_squared", "matrix")
_STATED = ("delta", "neighboring_relation", "accountant")


def account(flags: Flags, *, as_json: bool, in_full: bool = False) -> None:
    """Print the guarantee of a mechanism, with the noise of one of two multipliers, of the run, or the least for a budget."""
    run, promise, mechanism = _promise(flags)
    epsilon, relative, absolute = map(flags.get, ("epsilon", "noise_multiplier", "clip_noise_multiplier"))
    own_noise = relative is None and absolute is None and epsilon is None
    if (relative is not None and absolute is not None) or (run is None and own_noise):
        raise ConfigError("--noise-multiplier and --clip-noise-multiplier: give exactly one of them")
    if run and epsilon is not None and promise.rounds < mechanism.rounds:
        raise ConfigError(
            f"--mechanism {run}: has {promise.rounds} of its strategy's {mechanism.rounds} rounds; find noise for these: "
            f"'hubbub plan {run / 'config.toml'} --set privacy.epsilon={epsilon:g} --set training.rounds={promise.rounds}'"
        )
    if epsilon is not None:
        mechanism = accounting.calibrate(
            mechanism.strategy,
            mechanism.participation,
            epsilon=epsilon,
            delta=promise.delta,
            neighboring_relation=promise.neighboring_relation,
            accountant=promise.accountant,
            shares=mechanism.shares,
            prior=promise.earlier,
            privacy_unit=promise.privacy_unit,
            evaluation=promise.terms.evaluation,
        )
    elif absolute is not None:
        relative = scale("--clip-noise-multiplier", absolute) / mechanism.strategy.sensitivity(SingleParticipation()).value
    if relative is not None:
        mechanism = replace(mechanism, noise_multiplier=relative)
    promise = replace(promise, mechanism=mechanism)
    answer = promise.after(promise.rounds, promise.delta)
    named = _given(flags, *PATTERN_FLAGS, *_COHORT_FLAGS)
    of_run = run is not None and own_noise and not named
    if as_json:
        print_json(answer.as_json())
        return
    screen = console()
    if in_full:
        terms = promise.terms
        facts = RunFacts(terms.clip_norm, terms.expected_cohort_size, not promise.simulation, adaptive=terms.adaptive)
        screen.print(answer.statement(facts if of_run else None), end="")
        return
    say(screen, f"Participation: {answer.cohorts}{', since no flag names another' if run is None and not named else ''}")
    print_table("Guarantee", guarantee_rows(answer))
    say_guarantee(answer)
    if isinstance(mechanism.participation, MinSeparation) and (b := mechanism.participation.min_separation) > 1:
        say(
            screen,
            f"A separation of {b} means rounds r and r + {b}; Google's accounting notebook counts the {b - 1} rounds between.",
        )
    if run is not None:
        is_that = "is" if of_run and not _given(flags, *_STATED) else "is not"
        say(screen, f"That {is_that} what the run promised; hubbub account {run} says what it spent")


def say_guarantee(answer: PrivacyGuarantee) -> None:
    """Print a guarantee in a sentence, and for random cohorts its epsilon without amplification."""
    screen = console()
    say(screen, "", answer.sentence())
    if answer.amplified:
        worst = accounting.rounded_up(answer.unamplified_epsilon)
        say(screen, f"Assuming the cohorts as stated; in the worst case over them, without amplification, epsilon is {worst}.")


def guarantee_rows(answer: PrivacyGuarantee) -> dict[str, str]:
    """The guarantee as rows of a table, each number in full."""
    if not answer.private:
        return {"epsilon": "infinite: this run promises nothing"}
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


# From flags to the promise of a mechanism


def _given(flags: Flags, *names: str) -> dict[str, Any]:
    return {name: flags[name] for name in names if name in flags}


def _promise(flags: Flags) -> tuple[Path | None, Promise, Mechanism]:
    """The run that ``--mechanism`` names, if any; its promise, with what was given in its place; and its mechanism.

    Without a run, the promise of the mechanism that the flags describe, at noise multiplier 1.
    """
    stated, named, parts = _given(flags, *_STATED), flags.get("mechanism"), _given(flags, *_PARTS)
    if named is not None and parts:
        other = next(f"{_as_flags([name])} = {value!r}" for name, value in parts.items())
        raise ConfigError(f"--mechanism = {named!r} with {other}: give one; --mechanism takes its parts as options")
    if not named or _is_family(named) or not Path(named).is_dir():
        mechanism = _described(flags)
        return None, Promise(mechanism.rounds, mechanism, **stated), mechanism
    # Loads torch, which nothing else here needs.
    from hubbub.training.run_folder.record import read_run

    run = Path(named)
    promise = read_run(run).promise
    if promise.mechanism is None:
        raise ConfigError(f"--mechanism {run}: this run has no noise")
    if flags.get("rounds") not in (None, promise.rounds):
        raise ConfigError(f"--rounds {flags['rounds']}: the run of --mechanism has {promise.rounds}; leave it out")
    participation = _participation(flags, promise.rounds) or promise.mechanism.participation
    mechanism = replace(promise.mechanism, participation=participation)
    promise = replace(promise.restated(**stated), mechanism=mechanism)
    promise.require_delta(promise.delta, promise.terms.parameters)
    return run, promise, mechanism


def _described(flags: Flags) -> Mechanism:
    name, options = _family(flags)
    for flag in ("rounds", "delta"):
        if flag not in flags:
            other = "a run's folder by --mechanism RUN" if "epsilon" in flags else "the folders of runs"
            raise ConfigError(f"--{flag}: is missing; name --rounds and --delta of a mechanism, or {other}")
    norm = options.pop("column-norm-squared", None)
    if norm is not None and (name != "banded" or "bands" not in options):
        raise ConfigError("--column-norm-squared: is for banded with --bands: --mechanism banded:bands=N,column-norm-squared=X")
    rounds, family = rounds_count("rounds", flags["rounds"]), Family(name, **options)
    named = _participation(flags, rounds)
    participation = named or every_round(rounds)
    if norm is not None:
        strategy: Strategy = Columns(rounds, options["bands"], norm)
    else:
        try:
            strategy = strategy_of(family, prefix_sum(rounds), participation)
        except ValueError as error:
            if named is not None or (options.get("bands") or 0) > rounds:
                raise
            flags_of = {"MinSeparation": "--min-separation", "FixedEpochs": "--rounds-per-epoch"}
            ways = " or ".join([*(flags_of[kind] for kind in FAMILIES[name].repeats), "--max-participations 1"])
            raise ConfigError(f"{error}; by default each client may join every round: say {ways}") from error
    return Mechanism(strategy, participation, noise_multiplier=1.0)


def _family(flags: Flags) -> tuple[str, dict[str, Any]]:
    """The family and its options, from ``--mechanism NAME:KEY=VALUE,…``, from its file, or from the flags of its parts."""
    named, parts = flags.get("mechanism"), _given(flags, *_PARTS)
    if named is not None:
        if not _is_family(named) and (Path(named).is_file() or Path(named).suffix):
            return "file", {"matrix": named}
        name, _, listed = named.partition(":")
        options: dict[str, Any] = {}
        for part in filter(None, listed.split(",")):
            key, equals, value = part.partition("=")
            if not equals and key in _OPTIONS:
                raise ConfigError(f"--mechanism {named!r}: {key} has no value; write {key}=…")
            if key not in _OPTIONS:
                raise ConfigError(f"--mechanism {named!r}: {part!r} is no option; write {'=…, '.join(_OPTIONS)}=…")
            if key in options:
                raise ConfigError(f"--mechanism {named!r}: {key} comes twice; give it once")
            try:
                options[key] = _OPTIONS[key](value)
            except typer.BadParameter as error:
                raise ConfigError(f"--mechanism {named!r}: {key}: {error.message}") from error
        return strategy_name("--mechanism", name), options
    if ":" in parts.get("strategy", ""):
        raise ConfigError(f"--strategy {parts['strategy']!r}: for code of your own, use hubbub.accounting.guarantee in Python")
    name = strategy_name("--strategy", parts.pop("strategy", "file" if "matrix" in parts else "identity"))
    if "matrix" in parts and ("matrix" not in FAMILIES[name].options or len(parts) > 1):
        raise ConfigError("--matrix: the file describes its strategy; leave --strategy and its numbers out")
    return name, {key.replace("_", "-"): value for key, value in parts.items()}


def _is_family(named: str) -> bool:
    """Whether ``NAME:KEY=VALUE,…`` names a family, whatever files are here."""
    try:
        strategy_name("--mechanism", named.partition(":")[0])
    except ValueError:
        return False
    return True


def _participation(flags: Flags, rounds: int) -> Participation | None:
    pattern, random = _given(flags, *PATTERN_FLAGS), _given(flags, *_COHORT_FLAGS)
    if pattern and random:
        raise ConfigError(f"{_as_flags(pattern)} and {_as_flags(random)}: say one of them; they do not combine")
    if not random:
        return pattern_of(rounds, pattern) if pattern else None
    for names, kind in _COHORTS.items():
        if random.keys() == set(names):
            return kind(**random)
    if missing := [_as_flags(name for name in names if name not in random) for names in _COHORTS if random.keys() < set(names)]:
        raise ConfigError(f"{_as_flags(random)}: random cohorts need {' or '.join(missing)}, too")
    known = ", ".join(map(_as_flags, _COHORTS))
    raise ConfigError(f"{_as_flags(random)}: together name no kind of random cohorts; write {known}")


def _as_flags(names: Iterable[str]) -> str:
    return " with ".join(f"--{name.replace('_', '-')}" for name in names)


# One release

# Points of a curve.
_POINTS = 121


def gaussian(epsilon: float, delta: float, sensitivity: float, *, plot: Path | None, as_json: bool) -> None:
    """Print the table of all calibrations for a budget, and draw how loose each is over epsilon."""
    budget = scale("epsilon", epsilon), open_unit("delta", delta), scale("sensitivity", sensitivity)
    require_output("--plot", plot, ".png")
    least = releases.noise_multiplier(*budget)
    found = {name: _computed(name, *budget) for name in releases.NAMES}
    if plot is not None:
        _draw(plot, budget[0], budget[1], {name: refused is not None for name, (_, refused) in found.items()})
    if as_json:
        shared = dict(zip(("epsilon", "delta", "sensitivity"), budget, strict=True))
        calibrations = [
            {
                "name": name,
                **{key: getattr(answer, key, None) for key in ("noise_multiplier", "attained_delta", "holds", "source")},
                "relative_to_analytic": answer and answer.noise_multiplier / least,
                "refused": refused,
            }
            for name, (answer, refused) in found.items()
        ]
        print_json({**shared, "calibrations": calibrations, "plot": None if plot is None else str(plot)})
        return
    screen, wanted = console(), f"({budget[0]!r}, {budget[1]!r})-DP"
    say(screen, f"One Gaussian release of L2 sensitivity {budget[2]!r} that is to be {wanted}", "")
    # By their noise; what has no value comes last.
    rows = sorted(found.items(), key=lambda row: row[1][0].noise_multiplier if row[1][0] else math.inf)
    columns = ("calibration", "noise", "delta attained", "noise over analytic", "verdict")
    print_columns(grid(columns, [_cells(name, *row, least) for name, row in rows]), WIDE)
    if reasons := [f"  {refused}" for _, (_, refused) in rows if refused is not None]:
        say(screen, "", "Refused:", *reasons, indent=4)


def _computed(name: str, epsilon: float, delta: float, sensitivity: float) -> tuple[Calibration | None, str | None]:
    """A calibration, and why it is refused: it has no value, or one that its theorem does not cover."""
    try:
        answer = releases.computed(name, epsilon, delta, sensitivity)
    except ValueError as error:
        return None, str(error)
    return answer, None if answer.proved else why_not_proved(answer)


def _cells(name: str, answer: Calibration | None, refused: str | None, least: float) -> list[str]:
    if answer is None:
        return [name, "-", "-", "-", "refused"]
    verdict = "the least noise" if name == "analytic" else "holds" if answer.holds else "false"
    return [
        name,
        shown(answer.noise_multiplier, 6),
        shown(answer.attained_delta, 3),
        f"{answer.noise_multiplier / least:.4g}",
        verdict if refused is None else "refused",
    ]


def _draw(plot: Path, epsilon: float, delta: float, refused: Mapping[str, bool]) -> None:
    """Draw the noise of each calibration over that of the analytic one, for epsilons around the given one.

    All are drawn, in the order of their names, which decides their colours; one without a value is NaN.
    """
    # Drawing costs a second to import.
    from hubbub.report.pictures import draw_calibrations

    low, high = max(min(0.01, epsilon / 10), 1e-12), min(max(50.0, epsilon * 10), 1e12)
    epsilons = np.geomspace(low, high, _POINTS)
    least = np.array([releases.noise_multiplier(float(eps), delta) for eps in epsilons])
    curves = {}
    for name, is_refused in refused.items():
        if name == "analytic":
            continue
        found = [_computed(name, float(eps), delta, 1.0)[0] for eps in epsilons]
        noise = np.array([one.noise_multiplier if one else math.nan for one in found])
        proved = np.array([one is None or one.proved for one in found])
        curves[f"{name}, refused" if is_refused else name] = noise / least, proved
    files.write_atomic(plot, draw_calibrations(epsilon, delta, epsilons, curves), mode=0o644)
