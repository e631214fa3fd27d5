"""``hubbub calibrate``: the least noise that meets a budget, and which mechanism needs the least of it."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from hubbub import accounting
from hubbub.accounting.deployment import Budget, Deployment
from hubbub.accounting.recommend import Option, Recommendation, recommend
from hubbub.accounting.wording import crude_delta
from hubbub.cli.accounts import Statement, Wanted, print_guarantee
from hubbub.cli.output import console, print_json, print_whole, say
from hubbub.errors import ConfigError
from hubbub.participation import BallsInBinsSampling, CyclicPoissonSampling, MinSeparation, Participation
from hubbub.strategies.strategy import memory_rows

__all__ = ["calibrated", "recommended", "settings_of"]

# Nothing but the relation that all of them are covered under makes their epsilon compare.
_RELATION = "zero-out"
_TABLE = 100
_COHORTS = {
    "pattern": "nobody's coins: the server asks no client again before its separation has passed, nor more often than "
    "promised, and the ledger checks it",
    "poisson": "each client by a coin of its own in every round, which nobody sees or filters",
    "fixed-size": "the server draws every cohort at random, and nobody sees who is in it",
    "balls-in-bins": "each client draws a slot, once for the whole run, which nobody sees",
    "cyclic-poisson": "groups of clients, given for good by their names, take turns; in one, a coin of each that nobody sees",
}


def calibrated(wanted: Wanted, participation: Participation, *, epsilon: float, statement: Statement) -> None:
    """Print the mechanism that meets a budget."""
    mechanism = accounting.calibrate(
        wanted.strategy(participation),
        participation,
        epsilon=epsilon,
        delta=statement.delta,
        neighboring_relation=statement.neighboring_relation,
        accountant=statement.accountant,
    )
    print_guarantee(mechanism, statement)


def recommended(
    deployment: tuple[int, int | None, int, int | None], others: Mapping[str, object], *, epsilon: float, statement: Statement
) -> None:
    """Print the mechanisms that meet a budget, the one of least error first.

    Args:
        deployment: Rounds, population, cohort size and the least separation, as they were typed.
        others: Flags that name a mechanism, which nobody who asks for one types.
        epsilon: The budget.
        statement: How the answer is to be stated.

    Raises:
        ConfigError: Flags that are missing or contradict each other.
        BudgetError: No mechanism meets the budget.
    """
    rounds, population, cohort_size, min_separation = deployment
    typed = [flag for flag, value in others.items() if value is not None]
    if typed:
        raise ConfigError(f"--cohort {cohort_size}: asks which mechanism to take, {typed[0]} names one; leave one of them out")
    if population is None:
        raise ConfigError(f"--cohort {cohort_size}: needs --population, the clients that there are")
    relation = statement.neighboring_relation or _RELATION
    wanted = Deployment(rounds, population, cohort_size, min_separation)
    budget = Budget(epsilon, statement.delta, relation, statement.accountant)
    with console(stderr=True).status("…") as status:
        answer = recommend(wanted, budget, lambda name: status.update(f"{name} …"))
    best = answer.options[0]
    promised = accounting.guarantee(best.mechanism, statement.delta, relation, accountant=statement.accountant)
    if statement.as_json:
        facts = [_facts(option, best) for option in answer.options]
        settings = settings_of(best, wanted, budget)
        told = {"settings": settings, "guarantee": promised.as_json(), "remarks": _remarks(wanted, budget)}
        print_json({**told, "options": facts, "left_out": answer.left_out})
        return
    screen = console()
    _print_options(screen, answer, wanted)
    for remark in _remarks(wanted, budget):
        say(screen, remark)
    say(screen, f"Recommended: {promised.sentence()}")
    for name, values in settings_of(best, wanted, budget).items():
        say(screen, f"  [{name}]")
        for key, value in values.items():
            say(screen, f"  {key} = {_toml(value)}")


def _facts(option: Option, best: Option) -> dict[str, Any]:
    return {
        "strategy": option.family.name,
        "bands": option.family.bands,
        "sampling": option.cohorts,
        "noise_multiplier": option.mechanism.noise_multiplier,
        "clip_noise_multiplier": option.mechanism.stddev,
        "root_mean_squared_error": option.root_mean_squared_error,
        "relative_to_best": option.root_mean_squared_error / best.root_mean_squared_error,
        "memory_rows": memory_rows(option.mechanism.strategy),
    }


def settings_of(option: Option, deployment: Deployment, budget: Budget) -> dict[str, dict[str, Any]]:
    """The tables of a config that runs an option on as many clients, whoever they are."""
    privacy: dict[str, Any] = {
        "mode": "dp-fedavg" if option.family.name == "identity" else "dp-ftrl",
        "strategy": option.family.name,
        "sampling": option.cohorts,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "neighboring_relation": budget.neighboring_relation,
    }
    if option.family.bands is not None:
        privacy["bands"] = option.family.bands
    if budget.accountant != "tight":
        privacy["accountant"] = budget.accountant
    data = {"clients": deployment.population}
    tables: dict[str, dict[str, Any]] = {
        "training": {"rounds": deployment.rounds, "cohort_size": deployment.cohort_size},
        "data": data,
        "privacy": privacy,
    }
    match option.mechanism.participation:
        case MinSeparation(min_separation, max_participations):
            drawn = {"min_separation": min_separation, "max_participations": max_participations}
        case CyclicPoissonSampling(cycle_length=cycle_length):
            drawn = {"cycle_length": cycle_length}
        case BallsInBinsSampling(bins):
            drawn = {"bins": bins}
        case _:
            return tables
    return {**tables, "participation": drawn}


def _remarks(deployment: Deployment, budget: Budget) -> list[str]:
    return list(filter(None, [crude_delta(budget.delta, deployment.population)]))


def _print_options(screen: Console, answer: Recommendation, deployment: Deployment) -> None:
    best = answer.options[0]
    clients = f"cohorts of {deployment.cohort_size:,} of {deployment.population:,} clients"
    say(screen, f"{deployment.rounds:,} rounds, {clients}: what meets the budget, by the error of its sums")
    say(screen)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("strategy", "cohorts"):
        table.add_column(column, no_wrap=True)
    for column in ("bands", "noise multiplier", "RMSE", "over best", "rows kept"):
        table.add_column(column, justify="right", no_wrap=True)
    for option in answer.options:
        facts = _facts(option, best)
        table.add_row(
            option.family.name,
            option.cohorts,
            "-" if facts["bands"] is None else f"{facts['bands']:,}",
            f"{facts['noise_multiplier']:.6g}",
            f"{facts['root_mean_squared_error']:.4g}",
            _excess(facts["relative_to_best"]),
            "-" if facts["memory_rows"] is None else f"{facts['memory_rows']:,}",
        )
    print_whole(table, _TABLE)
    say(screen, "RMSE: of the noise in the sum of the updates so far, per client of a cohort, in units of the clip norm.")
    _say_all(screen, "Who decides about cohorts; of coins, nobody can check it afterwards:", _coins(answer.options))
    _say_all(screen, "Left out:", answer.left_out)
    say(screen)


def _coins(options: tuple[Option, ...]) -> dict[str, str]:
    return {option.cohorts: _COHORTS[option.cohorts] for option in options}


def _say_all(screen: Console, title: str, lines: Mapping[str, str]) -> None:
    if lines:
        say(screen)
        say(screen, title)
    for name, words in lines.items():
        say(screen, f"  {name}: {words}", indent=4)


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value!r}"


def _excess(ratio: float) -> str:
    return "best" if ratio == 1 else f"+{100 * (ratio - 1):.2f} %" if ratio < 2 else f"{ratio:.1f}×"
