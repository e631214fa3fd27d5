"""From settings to a run: the strategy, the participation, the noise that meets a budget, the data and the model."""

import importlib
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.accounting.beside import calibrate_beside
from hubbub.accounting.calibrate import calibrate
from hubbub.accounting.promise import Promise
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.statement import rounded_up
from hubbub.accounting.together import final_charges
from hubbub.config import DATASETS, MODELS, Config, strategy_name
from hubbub.datasets import Dataset, by_user, dirichlet, iid
from hubbub.errors import BudgetError, ConfigError, HubbubError
from hubbub.families import Family, strategy_of
from hubbub.mechanism import Mechanism, NoiseShares
from hubbub.participation import Participation
from hubbub.settings import encryption_of, participation_of
from hubbub.strategies import Strategy
from hubbub.strategies.optimized import Objective
from hubbub.training import LocalTraining, RunPlan, ServerOptimizer, SimulatedPopulation
from hubbub.training.cohorts import require_feasible
from hubbub.training.encryption import Encryption
from hubbub.training.flat import FlatModel
from hubbub.training.record import read_run
from hubbub.workloads import Workload, momentum

__all__ = ["ClientSide", "Run", "build", "client_side", "make_strategy"]


@dataclass(frozen=True, eq=False)
class Run:
    """All that training needs, and the settings that describe it completely."""

    config: Config
    plan: RunPlan
    population: SimulatedPopulation
    model: nn.Module
    dataset: Dataset

    @property
    def encryption(self) -> Encryption | None:
        """How clients encrypt what they send, where they do."""
        return encryption_of(self.config, self.plan.expected_cohort_size)


@dataclass(frozen=True, eq=False)
class ClientSide:
    """The part of a run that its clients know: who has which data, and the model as it is before the first round."""

    dataset: Dataset
    population: SimulatedPopulation
    model: nn.Module


def build(config: Config, *, allow_import: bool = False, earlier: tuple[RunCharge, ...] | None = None) -> Run:
    """Make a run from its settings.

    Args:
        config: Checked settings.
        allow_import: Whether names ``"pkg.mod:Name"`` may be imported: that runs the code that they name.
        earlier: What runs over the same people cost before this one, as a ledger has it; by default read from the settings'
            folders.

    Raises:
        ConfigError: Settings that cannot be run together, or a name that may not or cannot be imported.
        ParticipationError: A pattern that the clients cannot keep.
        BudgetError: A budget that no noise meets, or that not even one round fits in.
        DataError: Missing or damaged data.
    """
    side = client_side(config, allow_import=allow_import)
    before = _earlier(config) if earlier is None else earlier
    plan = _plan(config, len(side.population.clients), before, allow_import)
    plan = replace(plan, settings=_settings(config, encryption_of(config, plan.expected_cohort_size)))
    return Run(config, plan, side.population, side.model, side.dataset)


def client_side(config: Config, *, allow_import: bool = False) -> ClientSide:
    """Make what clients train, and on what, from the settings of a run.

    Raises:
        ConfigError: Settings that cannot be run together, or a name that may not or cannot be imported.
        DataError: Missing or damaged data.
    """
    dataset = _made(config.data.name, DATASETS, "data.name", allow_import, config.data.path)
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"data.name = {config.data.name!r}: made a {type(dataset).__name__}, not a hubbub.datasets.Dataset")
    if config.training.validation:
        dataset = dataset.without_test(config.training.validation, config.training.seed)
    parts = _parts(config, dataset)
    examples = [(dataset.train_inputs[part], dataset.train_targets[part]) for part in parts]
    training = config.training
    local = LocalTraining(
        training.local_epochs, training.batch_size, training.learning_rate, training.momentum, training.weight_decay
    )
    torch.manual_seed(training.seed)
    model = _made(config.model.name, MODELS, "model.name", allow_import, dataset.shape, dataset.classes)
    _require_model(model, config.model.name, dataset)
    # In a simulation the seed gives all away; floating point is the faster way to it.
    lattice = config.privacy.noise == "secure"
    population = SimulatedPopulation(examples, F.cross_entropy, local, training.seed, lattice=lattice)
    return ClientSide(dataset, population, model)


def _settings(config: Config, encryption: Encryption | None) -> dict[str, Any]:
    """What a client contributes depends on these; the rest of the settings is in the plan, or changes nothing."""
    local = ("local_epochs", "batch_size", "learning_rate", "momentum", "weight_decay", "validation")
    return {
        **{f"training.{key}": getattr(config.training, key) for key in local},
        **{f"data.{key}": getattr(config.data, key) for key in ("name", "clients", "partition", "alpha")},
        "model.name": config.model.name,
        **({} if encryption is None else {f"secagg.{key}": value for key, value in asdict(encryption).items()}),
        "keep_releases": config.training.keep_releases,
    }


def make_strategy(
    family: Family | str, workload: Workload, participation: Participation, *, allow_import: bool = False
) -> Strategy:
    """A strategy of a known family, or made by code of your own, ``"pkg.mod:Name"``, which is called with the rounds.

    Raises:
        ConfigError: A setting is missing or does not belong to the strategy.
        ValueError: What the family refuses.
    """
    if isinstance(family, Family):
        return strategy_of(family, workload, participation)
    made = _made(family, {}, "strategy", allow_import, workload.rounds)
    if not all(hasattr(made, part) for part in ("rounds", "matrix", "sensitivity", "step")):
        raise ConfigError(f"strategy = {family!r}: made a {type(made).__name__}, not a strategy")
    strategy: Strategy = made
    return strategy


def _earlier(config: Config) -> tuple[RunCharge, ...]:
    """What the earlier runs that the settings name have cost, each counted once; one that may go on is refused."""
    folders = config.privacy.earlier_runs or ()
    runs = final_charges([read_run(Path(folder).expanduser()) for folder in folders])
    for run in runs:
        if run.simulation and config.privacy.noise == "secure":
            raise ConfigError(
                f"privacy.earlier_runs: the run of ledger {run.first[:16]} is a simulation, whose noise anybody can remove: it "
                "costs nothing if it was never released, and else no noise mends it; leave it out"
            )
    return runs


def _plan(config: Config, clients: int, earlier: tuple[RunCharge, ...], allow_import: bool) -> RunPlan:
    training, privacy = config.training, config.privacy
    size = training.cohort_size or max(1, clients // 10)
    if size > clients:
        raise ConfigError(f"training.cohort_size = {size}: there are {clients} clients")
    participation, expected = participation_of(config, clients, size)
    encryption = encryption_of(config, expected)
    shares = encryption.shares() if encryption else None
    mechanism = None if privacy.mode == "none" else _mechanism(config, participation, earlier, allow_import, shares)
    encrypted: dict[str, Any] = {}
    if encryption:
        encrypted = {"setting": encryption.setting(hidden=mechanism is not None)}
    if encryption and mechanism:
        encrypted |= {
            "lattice_bits": encryption.lattice_bits,
            "noise_by": "holders" if encryption.noise_by == "holders" else "server",
            "further": encryption.further(),
            "not_covered": encryption.not_covered(),
        }
    plan = RunPlan(
        **encrypted,
        rounds=training.rounds,
        participation=participation,
        expected_cohort_size=expected,
        mechanism=mechanism,
        clip_norm=None if mechanism is None else privacy.clip_norm,
        delta=privacy.delta,
        neighboring_relation=privacy.neighboring_relation,
        accountant=privacy.accountant,
        server=ServerOptimizer(
            training.server_optimizer,  # type: ignore[arg-type] # checked by the config
            training.server_learning_rate,
            training.server_momentum,
        ),
        seed=training.seed,
        noise=privacy.noise,  # type: ignore[arg-type] # checked by the config
        earlier=earlier,
    )
    if privacy.stop_epsilon is not None:
        plan = replace(plan, rounds=_rounds_within(plan.promise(), privacy.stop_epsilon, plan.delta))
    require_feasible(participation, plan.rounds, clients, expected)
    return plan


def _mechanism(
    config: Config,
    participation: Participation,
    earlier: tuple[RunCharge, ...],
    allow_import: bool,
    shares: NoiseShares | None,
) -> Mechanism:
    privacy = config.privacy
    strategy = make_strategy(_family(config), _workload(config), participation, allow_import=allow_import)
    if privacy.noise_multiplier is not None:
        return Mechanism(strategy, participation, privacy.noise_multiplier, shares)
    if privacy.epsilon is None:
        raise ConfigError(
            'privacy.noise_multiplier and privacy.epsilon: both are missing; give one, or say mode = "none" for a run '
            "without privacy"
        )
    if shares is not None:
        if earlier:
            raise ConfigError(
                "privacy.epsilon with privacy.earlier_runs and secagg.noise_by = 'clients': give privacy.noise_multiplier; "
                "epsilon follows from it"
            )
        return calibrate(
            strategy,
            participation,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            neighboring_relation=privacy.neighboring_relation,
            accountant=privacy.accountant,
            shares=shares,
        )
    return calibrate_beside(
        earlier,
        strategy,
        participation,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        neighboring_relation=privacy.neighboring_relation,
        accountant=privacy.accountant,
    )


def _family(config: Config) -> Family | str:
    """The family that the settings name, or code of one's own as it is."""
    privacy, rounds = config.privacy, config.training.rounds
    name = strategy_name(
        "privacy.strategy", privacy.strategy or ("identity" if privacy.mode == "dp-fedavg" else "banded-toeplitz")
    )
    if privacy.mode == "dp-fedavg" and name != "identity":
        raise ConfigError(f'privacy.strategy = {name!r}: dp-fedavg has independent noise; say mode = "dp-ftrl"')
    if privacy.bands is not None and privacy.bands > rounds:
        raise ConfigError(f"privacy.bands = {privacy.bands}: must be at most training.rounds = {rounds}")
    objective: Objective | None = privacy.objective  # type: ignore[assignment] # checked by the config
    options = {"bands": privacy.bands, "buffers": privacy.buffers, "objective": objective, "matrix": privacy.matrix}
    if ":" in name:
        given = [key for key, value in options.items() if value is not None]
        if given:
            raise ConfigError(f"privacy.{given[0]} = {options[given[0]]!r}: code of your own, {name!r}, gets the rounds alone")
        return name
    return Family(name, privacy.bands, privacy.buffers, objective, privacy.matrix)


def _workload(config: Config) -> Workload:
    """What the server's optimizer makes of the releases; of Adam, which is not linear, the sums of plain steps."""
    training = config.training
    return momentum(training.rounds, training.server_momentum if training.server_optimizer == "fedavgm" else 0.0)


def _rounds_within(promise: Promise, budget: float, delta: float) -> int:
    """The largest number of rounds whose epsilon is within the budget: known before the first, so it may be stated."""
    if promise.earlier and (before := promise.after(0, delta).epsilon) >= budget:
        raise BudgetError(f"privacy.stop_epsilon = {budget}: the earlier runs alone cost {rounded_up(before)}; raise it")
    fits, exceeds = 0, promise.rounds + 1
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        if promise.after(middle, delta).epsilon <= budget:
            fits = middle
        else:
            exceeds = middle
    if not fits:
        raise BudgetError(
            f"privacy.stop_epsilon = {budget}: the first round alone costs {promise.after(1, delta).epsilon:.4g}; "
            "raise noise_multiplier"
        )
    return fits


def _parts(config: Config, dataset: Dataset) -> list[Any]:
    examples, clients, seed = len(dataset.train_inputs), config.data.clients, config.training.seed
    match config.data.partition:
        case "user":
            return by_user(dataset.users)
        case _ if clients > examples:
            raise ConfigError(f"data.clients = {clients}: there are {examples} training examples")
        case "dirichlet":
            return dirichlet(dataset.train_targets, clients, config.data.alpha, seed)
        case _:
            return iid(examples, clients, seed)


def _require_model(model: object, name: str, dataset: Dataset) -> None:
    """Refuse, before anything is written, a model that cannot be trained on these data."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model.name = {name!r}: made a {type(model).__name__}, not a torch.nn.Module")
    FlatModel(model)
    try:
        with torch.no_grad():
            F.cross_entropy(model(dataset.train_inputs[:2]), dataset.train_targets[:2])
    except Exception as error:
        raise ConfigError(f"model.name = {name!r}: does not fit inputs of shape {dataset.shape} ({error})") from error


def _made(name: str, known: dict[str, str], setting: str, allow_import: bool, *arguments: Any) -> Any:
    """What a table's name or ``"pkg.mod:Name"`` makes of the arguments."""
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
        # Whatever is wrong with code that we did not write, it is that setting's fault.
        raise ConfigError(f"{setting} = {name!r}: fails ({type(error).__name__}: {error})") from error
