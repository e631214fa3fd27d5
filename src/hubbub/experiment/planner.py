"""The plan of a run from its settings: strategy, participation, and the noise that meets a budget. No data or model needed."""

import bisect
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubbub.accounting.calibrate import calibrate
from hubbub.accounting.events_of_mechanism import covered_relations, mechanism_events, stated_relation
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.statement import rounded_up
from hubbub.accounting.wording import count
from hubbub.errors import BudgetError, ConfigError, HubbubError, LedgerError, RunFolderError
from hubbub.experiment.config import PRIVATELY, Config, DataConfig, TrainingConfig
from hubbub.experiment.settings import (
    clipping_of,
    encryption_of,
    evaluation_of,
    participation_of,
    require_fitting_unit,
    server_of,
)
from hubbub.factorization.families import OPTIONS, Family, strategy_of
from hubbub.ledger.actual_cost import Recorded
from hubbub.ledger.multi_run import costs_of_ended_runs, deal, require_same_clients
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism, NoiseShares
from hubbub.mechanism.participation import Participation, PoissonSampling, RandomParticipation, SingleParticipation
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import Identity, Strategy
from hubbub.training.cohorts import require_feasible
from hubbub.training.plan import RunPlan

if TYPE_CHECKING:
    from hubbub.training.encryption import Encryption

# Noise is said to be large for the sake of earlier runs if it is more than this many times what it would be without them.
_MANY_TIMES = 3.0
# What no guarantee covers if the operator measures single clients.
_FAIRNESS_IS_EXACT = "accuracy and loss by client (private-fairness.json), which are exact"
_OF_SWEEP = (
    "a choice by what other runs showed: these settings are of a sweep of {} over the same people, and if this run was chosen "
    "by their results, the epsilon to state is that of all of them together ('hubbub account' of all, if it knows one)"
)
_HELD_OUT_IS_EXACT = "accuracy and loss on held-out training examples (training.validation), which are exact"


def planned(
    config: Config,
    clients: int,
    *,
    allow_import: bool = False,
    earlier: tuple[RunCharge, ...] | None = None,
    deployed: bool = False,
) -> RunPlan:
    """The plan of a run of ``clients`` units, with everything that a resumed run must have in common with it.

    Its rounds are those of the settings, or as many as ``privacy.stop_epsilon`` allows. The cost of ``earlier`` runs is as a
    ledger states it, by default read from the folders that the settings name.

    Example:
        >>> from hubbub.experiment.config import resolve
        >>> plan = planned(resolve({"privacy": {"epsilon": 8.0}, "training": {"rounds": 10}}), clients=100)
        >>> plan.rounds, plan.expected_cohort_size
        (10, 10.0)
    """
    training, privacy = config.training, config.privacy
    require_fitting_unit(config)
    if config.data.normalization == PRIVATELY and (
        config.secagg.scheme != "none" or training.engine != "process" or privacy.mode == "none"
    ):
        raise ConfigError(
            f'data.normalization = "{PRIVATELY}": means and variances are released by engine = "process", with privacy and '
            "without secagg; name the folder of a run that released them, or leave it out"
        )
    if training.nproc > 1 and config.secagg.scheme != "none":
        raise ConfigError(f"training.nproc = {training.nproc} with secagg: its sums are of one process; leave it out")
    size = training.cohort_size or max(1, clients // 10)
    if size > clients:
        raise ConfigError(
            f"training.cohort_size = {size}: is more than {count(clients, privacy.unit)}; ask for at most as many"
        )
    participation, expected = participation_of(config, clients, size)
    earlier = _earlier(config, participation) if earlier is None else earlier
    encryption = encryption_of(config, expected, deployed=deployed)
    shares = encryption.shares() if encryption else None
    evaluation = evaluation_of(config)
    mechanism = None
    if privacy.mode != "none":
        strategy = _strategy(config, participation, allow_import)
        mechanism = _mechanism(config, strategy, participation, earlier, shares, evaluation)
    hiding = encryption if mechanism else None
    plan = RunPlan(
        rounds=training.rounds,
        participation=participation,
        expected_cohort_size=expected,
        mechanism=mechanism,
        clip_norm=clipping_of(config),
        delta=privacy.delta,
        neighboring_relation=privacy.neighboring_relation,
        accountant=privacy.accountant,
        server=server_of(config),
        seed=training.seed,
        noise=privacy.noise,  # type: ignore[arg-type] # checked by the config
        settings=_settings(config, encryption, earlier),
        earlier=earlier,
        lattice_bits=hiding.lattice_bits if hiding else RunPlan.lattice_bits,
        noise_by="holders" if hiding and hiding.noise_rows else "server",
        setting=encryption.setting(hidden=mechanism is not None) if encryption else "",
        further=hiding.further() if hiding else (),
        not_covered=(
            *(hiding.not_covered() if hiding else ()),
            *([_FAIRNESS_IS_EXACT] if training.fairness else ()),
            *([_HELD_OUT_IS_EXACT] if training.validation else ()),
            *([_OF_SWEEP.format(count(training.sweep, "run"))] if training.sweep else ()),
        ),
        privacy_unit=privacy.unit,
        evaluation=evaluation,
    )
    if privacy.stop_epsilon is not None:
        if mechanism is None:
            raise ConfigError(f'privacy.stop_epsilon = {privacy.stop_epsilon} with privacy.mode = "none": leave it out')
        plan = replace(plan, rounds=_rounds_within(plan.promise(), privacy.stop_epsilon, plan.delta))
    require_feasible(participation, plan.rounds, clients, expected)
    return plan


def made(name: str, known: dict[str, str], setting: str, allow_import: bool, *arguments: Any) -> Any:
    """The object that a known name or ``"pkg.mod:Name"`` makes of the arguments.

    Example:
        >>> from hubbub.experiment.config import DATASETS
        >>> made("digits", DATASETS, "data.name", allow_import=False).classes
        10
        >>> made("mine:Data", DATASETS, "data.name", allow_import=False)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        hubbub.errors.ConfigError: data.name = 'mine:Data': names code of your own; pass ...
    """
    module, _, attribute = known.get(name, name).partition(":")
    own = name not in known
    if own and not allow_import:
        raise ConfigError(f"{setting} = {name!r}: names code of your own; pass --allow-import to run it")
    here = str(Path.cwd())
    if own and here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), attribute)(*arguments)
    except HubbubError:
        raise
    except (Exception, SystemExit) as error:
        # Any error of code that the setting names is an error of the setting.
        looked = own and isinstance(error, ModuleNotFoundError) and error.name == module
        where = f"; it was looked for in {here}, the folder of the command" if looked else ""
        raise ConfigError(f"{setting} = {name!r}: fails ({type(error).__name__}: {error}){where}") from error


def require_release(normalization: str, promise: Promise | None = None) -> Recorded:
    """The run that released means and variances, by the setting that names its folder; the one that a promise counts."""
    from hubbub.training.run_folder.record import read_run

    try:
        found = read_run(Path(normalization).expanduser())
    except HubbubError as error:
        step = "" if Path(normalization).expanduser().is_dir() else "; if it was moved, put it back"
        raise type(error)(f"data.normalization = {normalization!r}: {error}{step}") from error
    named = None if promise is None else promise.settings.get("data.normalization")
    heads = [] if promise is None else [run.head for run in promise.earlier if run.first == named]
    if promise and (found.chain.hashes[0] != named or not any(head in found.chain.hashes for head in heads)):
        raise RunFolderError(
            f"data.normalization = {normalization!r}: holds another run than the one whose means and variances this run was "
            "made with, and counts; put that back"
        )
    return found


def _released(normalization: str, earlier: tuple[RunCharge, ...]) -> str:
    """By what a ledger knows the run that released means and variances; one at another head than is counted is refused."""
    if normalization == PRIVATELY:
        return normalization
    hashes = require_release(normalization).chain.hashes
    for run in earlier:
        if run.first == hashes[0] and run.head not in hashes:
            raise LedgerError(f"{normalization}: does not hold head {run.head}, which this run counts; restore its ledger")
    return hashes[0]


def _settings(config: Config, encryption: "Encryption | None", earlier: tuple[RunCharge, ...]) -> dict[str, Any]:
    """The settings that decide a client's update; all others are in the plan, or change nothing."""
    settings = {
        "training.validation": config.training.validation,
        "data.name": config.data.name,
        "model.name": config.model.name,
        "keep_releases": config.training.keep_releases,
        **({} if config.data.features == "none" else {"data.features": config.data.features}),
        **({} if (released := config.data.normalization) is None else {"data.normalization": _released(released, earlier)}),
    }
    if config.privacy.unit == "example":
        return settings
    local = ("local_epochs", "batch_size", "learning_rate", "momentum", "weight_decay")
    # Recorded only if they are not at their defaults.
    later = ("local_steps", "proximal", "schedule", "schedule_rounds", "final_learning_rate")
    changed = [key for key in later if getattr(config.training, key) != getattr(TrainingConfig, key)]
    return {
        **settings,
        **{f"training.{key}": getattr(config.training, key) for key in (*local, *changed)},
        **{f"data.{key}": getattr(config.data, key) for key in ("clients", "partition", "alpha")},
        "data.seed": config.deal_seed,
        **({} if encryption is None else {f"secagg.{key}": value for key, value in asdict(encryption).items()}),
    }


def _earlier(config: Config, participation: Participation) -> tuple[RunCharge, ...]:
    """The cost of the earlier runs that the settings name, each counted once; an unfinished one is refused."""
    named, data = config.privacy.earlier_runs or (), config.data
    own = (_unreleased(config, participation),) if data.normalization == PRIVATELY else ()
    if not named and (own or data.normalization is None):
        return own
    # Loads torch, which nothing else here needs.
    from hubbub.training.run_folder.record import read_run

    folders = [Path(folder).expanduser() for folder in named]
    recorded = [read_run(folder) for folder in folders]
    releases = ""
    if data.normalization is not None and not own:
        released = require_release(data.normalization)
        releases, path = released.chain.hashes[0], released.promise.settings.get("data.path")
        # Of a data set that needs no path, or of one by HUBBUB_DATA, there is none on record.
        if path is not None and path != path_of(data):
            raise ConfigError(
                f"data.normalization = {data.normalization!r}: has data.path = {path!r}, and this run {path_of(data)!r}; name "
                f'a run of the same, or say "{PRIVATELY}"'
            )
        if Path(released.name).resolve() not in [folder.resolve() for folder in folders]:
            recorded.append(released)
    runs = costs_of_ended_runs(recorded)
    # One that is extended is compared with this run as a whole.
    own_deal = [] if config.training.extends else [("this run", deal_of(config))]
    require_same_clients([*((run.name, run.promise.settings) for run in recorded), *own_deal])
    for run in runs:
        if run.simulation and config.privacy.noise == "secure":
            if run.first == releases:
                raise ConfigError(
                    f"data.normalization = {data.normalization!r}: was released by a simulation, whose noise is known; say "
                    f'"{PRIVATELY}", or noise = "simulation"'
                )
            raise ConfigError(f"privacy.earlier_runs: the run of {run.first[:16]} is a simulation; leave it out")
    return (*runs, *own)


def deal_of(config: Config) -> dict[str, object]:
    """The settings that decide whose an example is: one client of other ones would be several of these."""
    if config.privacy.unit == "example":
        return {"data.name": config.data.name}
    settings = {f"data.{key}": getattr(config.data, key) for key in ("name", "partition", "clients", "alpha")}
    return deal({**settings, "data.seed": config.deal_seed, "training.validation": config.training.validation})


def path_of(data: DataConfig) -> str | None:
    """Where the settings say that the data are: a release of other data is not one of these people."""
    return None if data.path is None else os.path.realpath(Path(data.path).expanduser())


def everyone(participation: Participation) -> PoissonSampling | SingleParticipation:
    """All units in one round, as cohorts of a kind that composes exactly with those of a run."""
    return PoissonSampling(1.0) if isinstance(participation, RandomParticipation) else SingleParticipation()


def _unreleased(config: Config, participation: Participation) -> RunCharge:
    """What means and variances will have cost when they are released, before the first round."""
    once = Mechanism(Identity(1), everyone(participation), config.data.normalization_noise_multiplier)
    relations, unit, none = covered_relations(once.participation), config.privacy.unit, "0" * 64
    simulated = config.privacy.noise == "simulation"
    relation = stated_relation(once.participation, None)
    return RunCharge(none, none, 1, 1, mechanism_events(once, 1), relation, relations, unit, simulated)


def _mechanism(
    config: Config,
    strategy: Strategy,
    participation: Participation,
    earlier: tuple[RunCharge, ...],
    shares: NoiseShares | None,
    evaluation: PrivateEvaluation | None,
) -> Mechanism:
    privacy = config.privacy
    if privacy.noise_multiplier is not None:
        return Mechanism(strategy, participation, privacy.noise_multiplier, shares)
    if privacy.epsilon is None:
        raise ConfigError('privacy.noise_multiplier and privacy.epsilon: both are missing; give one, or say mode = "none"')
    if shares is not None and earlier:
        raise ConfigError(
            "privacy.epsilon with privacy.earlier_runs and secagg.noise_by = 'clients': give privacy.noise_multiplier instead"
        )
    return calibrate(
        strategy,
        participation,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        neighboring_relation=privacy.neighboring_relation,
        accountant=privacy.accountant,
        shares=shares,
        prior=earlier,
        privacy_unit=privacy.unit,
        evaluation=evaluation,
    )


def noise_for_earlier_runs(config: Config, plan: RunPlan) -> Iterator[str]:
    """A line for people if calibrated noise is many times what it would be without the earlier runs."""
    mechanism = plan.mechanism
    if mechanism is None or not plan.earlier or config.privacy.epsilon is None:
        return
    alone = _mechanism(config, mechanism.strategy, plan.participation, (), None, plan.evaluation).noise_multiplier
    if (times := mechanism.noise_multiplier / alone) > _MANY_TIMES:
        yield (
            f"Earlier runs have used up most of privacy.epsilon = {config.privacy.epsilon:g}: the noise multiplier, "
            f"{mechanism.noise_multiplier:.4g}, is {times:.3g} times what it would be without them ({alone:.4g})."
        )


def _strategy(config: Config, participation: Participation, allow_import: bool) -> Strategy:
    """The strategy of the family that the settings name, or of the user's code, which is called with the rounds alone."""
    privacy, rounds = config.privacy, config.training.rounds
    name = strategy_word(config)
    if privacy.mode == "dp-fedavg" and name != "identity":
        raise ConfigError(f'privacy.strategy = {name!r}: dp-fedavg has independent noise; say mode = "dp-ftrl"')
    if privacy.bands is not None and privacy.bands > rounds:
        raise ConfigError(f"privacy.bands = {privacy.bands}: must be at most training.rounds = {rounds}")
    given = {key: value for key in OPTIONS if (value := getattr(privacy, key)) is not None}
    if ":" not in name:
        return strategy_of(Family(name, **given), server_of(config).workload(rounds), participation)
    for key, value in given.items():
        raise ConfigError(f"privacy.{key} = {value!r}: code of your own, {name!r}, gets the rounds alone")
    strategy: Strategy = made(name, {}, "strategy", allow_import, rounds)
    if not all(hasattr(strategy, part) for part in ("rounds", "matrix", "sensitivity", "step")):
        raise ConfigError(f"strategy = {name!r}: made a {type(strategy).__name__}, not a strategy")
    return strategy


def strategy_word(config: Config) -> str:
    """The strategy's name, given or by default, or ``"pkg.mod:Name"`` as it is."""
    return config.privacy.strategy or ("identity" if config.privacy.mode == "dp-fedavg" else "banded-toeplitz")


def _rounds_within(promise: Promise, budget: float, delta: float) -> int:
    """The largest number of rounds whose epsilon is within the budget; it depends on no data, so it may be stated."""
    if promise.earlier and (before := promise.after(0, delta).epsilon) >= budget:
        raise BudgetError(f"privacy.stop_epsilon = {budget}: the earlier runs alone cost {rounded_up(before)}; raise it")
    fits = bisect.bisect_right(range(1, promise.rounds + 1), budget, key=lambda rounds: promise.after(rounds, delta).epsilon)
    if not fits:
        first = promise.after(1, delta).epsilon
        what = "the earlier runs and the first round cost" if promise.earlier else "the first round alone costs"
        raise BudgetError(f"privacy.stop_epsilon = {budget}: {what} {rounded_up(first)}; raise it, or noise_multiplier")
    return fits


# The numbers of training examples of the named data sets, and of the people whom they belong to, if known; a file of any
# other size is refused when it is loaded.
EXAMPLES = {"cifar10": 50_000, "digits": 1437, "fashion-mnist": 60_000, "mnist": 60_000, "shakespeare": 11_954}
USERS = {"shakespeare": 264}
# The number of parameters of each model, by the data sets that it fits.
PARAMETERS = {
    "char-lstm": {"shakespeare": 211_657},
    "char-transformer": {"shakespeare": 423_745},
    "cifar-cnn": {"cifar10": 550_570, "digits": 304_234, "fashion-mnist": 435_306, "mnist": 435_306},
    "cnn": {"cifar10": 31_340, "fashion-mnist": 21_840, "mnist": 21_840},
    "linear": {"cifar10": 30_730, "digits": 650, "fashion-mnist": 7850, "mnist": 7850},
    "mlp": {"cifar10": 197_322, "digits": 4810, "fashion-mnist": 50_890, "mnist": 50_890},
}


def parameters_of(config: Config) -> int | None:
    """The number of parameters of the model; ``None`` if it is known only once the model is built."""
    if config.data.features != "none":
        return None
    return PARAMETERS.get(config.model.name, {}).get(config.data.name)


def units_of(config: Config) -> int | None:
    """The number of units of privacy, clients or examples; ``None`` if only the data say.

    For data of the user's own code, the number of clients that the settings state.
    """
    examples, held = EXAMPLES.get(config.data.name), config.training.validation
    if examples is not None and held:
        # As Dataset.without_test takes them away.
        examples -= max(1, round(held * examples))
        if examples < 1:
            raise ConfigError(f"training.validation = {held}: leaves no example to train on; lower it")
    if config.privacy.unit == "example":
        return examples
    if config.data.partition == "user":
        # Only the data say whom the held-out examples belong to.
        return None if held else USERS.get(config.data.name)
    clients = config.data.clients
    if examples is not None and clients > examples:
        raise ConfigError(f"data.clients = {clients}: there are {examples} examples in {config.data.name!r}; ask for fewer")
    return clients
