"""From settings to a run: its plan, the data and the model."""

import os
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub._util.files import cache_folder
from hubbub.accounting.runs import RunCharge
from hubbub.datasets import Dataset, by_user, dealt, dirichlet, iid
from hubbub.errors import ConfigError
from hubbub.experiment.config import DATASETS, MODELS, PRIVATELY, Config, DataConfig
from hubbub.experiment.planner import deal_of, everyone, made, path_of, planned, require_release
from hubbub.experiment.settings import encryption_of, require_fitting_unit
from hubbub.ledger.actual_cost import Recorded
from hubbub.ledger.promise import Extends
from hubbub.training import Execution, LocalTraining, RunPlan, RunStore, SimulatedPopulation
from hubbub.training.ranks import Ranks
from hubbub.training.run_folder.state import Start
from hubbub.training.simulation.functional import FlatModel

if TYPE_CHECKING:
    from hubbub.training import ExamplePopulation
    from hubbub.training.encryption import Encryption


@dataclass(frozen=True, eq=False)
class ClientSide:
    """The part of a run that its clients know: their data, and the model before the first round."""

    dataset: Dataset
    population: "SimulatedPopulation | ExamplePopulation"
    model: nn.Module
    examples: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(ClientSide):
    """All that training needs, and the settings that describe it completely; a ``start`` if it extends a finished run.

    A ``deployed`` run has its clients on machines of a federation.
    """

    config: Config
    plan: RunPlan
    start: Start | None = None
    deployed: bool = False

    @property
    def encryption(self) -> "Encryption | None":
        """The terms of encrypted sums; ``None`` if updates are not encrypted."""
        return encryption_of(self.config, self.plan.expected_cohort_size, deployed=self.deployed)


def build(
    config: Config,
    *,
    allow_import: bool = False,
    earlier: tuple[RunCharge, ...] | None = None,
    extends: Extends | None = None,
    ranks: Ranks | None = None,
    deployed: bool = False,
) -> Run:
    """A run as its settings describe it, ``deployed`` on machines of a federation or in this process.

    With ``allow_import`` the code that names ``"pkg.mod:Name"`` and ``heads.command`` name is run. The cost of ``earlier`` runs
    and the finished run that this one ``extends`` are as a ledger states them, by default read from the folders that the
    settings name.
    """
    require_allowed(config, allow_import=allow_import)
    if config.training.extends is not None and extends is None:
        from hubbub.experiment.extending import require_same

        require_same(config)
    side = client_side(config, allow_import=allow_import, ranks=ranks)
    plan = planned(config, len(side.population.clients), allow_import=allow_import, earlier=earlier, deployed=deployed)
    if ranks and ranks.size > 1 and (config.secagg.scheme != "none" or config.training.engine != "process"):
        raise ConfigError(
            f"nproc = {ranks.size}: several processes share a run begun with engine = 'process', without secagg; leave it out"
        )
    start = None
    if config.training.extends is not None and extends is None:
        from hubbub.experiment.extending import start_from

        extends, start = start_from(config, plan, side.model, len(side.population.clients))
    if extends is not None:
        from hubbub.training.warm_start import extending

        plan = extending(plan, extends)
    return Run(**vars(side), config=config, plan=plan, start=start, deployed=deployed)


def require_allowed(config: Config, *, allow_import: bool) -> None:
    """Refuse a program that gets the heads if none may be run."""
    if config.heads.command is not None and not allow_import:
        raise ConfigError(f"heads.command = {list(config.heads.command)}: names a program; pass --allow-import to run it")


def data_of(config: Config, *, allow_import: bool = False) -> Dataset:
    """The data set of a run, with the features that its settings name; those are kept in the cache."""
    data = config.data
    dataset = made(data.name, DATASETS, "data.name", allow_import, data.path)
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"data.name = {data.name!r}: made a {type(dataset).__name__}, not a hubbub.datasets.Dataset")
    if data.features != "none":
        from hubbub.datasets.patches import with_patches
        from hubbub.datasets.scattering import with_scattering

        folder = cache_folder() / "scattering"
        if data.features == "patches":
            dataset = with_patches(dataset, folder)
        else:
            dataset = with_scattering(dataset, folder, mirrored=data.features == "mirrored-scattering")
    if data.normalization not in (None, PRIVATELY):
        from hubbub.training.moments import read_moments

        require_release(data.normalization)
        moments = read_moments(Path(data.normalization).expanduser(), partial(_require_alike, config))
        train, test = (moments.normalized(inputs) for inputs in (dataset.train_inputs, dataset.test_inputs))
        dataset = replace(dataset, train_inputs=train, test_inputs=test)
    return dataset


def _require_alike(config: Config, recorded: Recorded) -> None:
    """Refuse means and variances of other inputs or of other units."""
    promise = recorded.promise
    found = {**promise.settings, "privacy.unit": promise.privacy_unit}
    for name, wanted in {"privacy.unit": config.privacy.unit, **_inputs(config)}.items():
        if found.get(name) != wanted:
            raise ConfigError(
                f"data.normalization = {config.data.normalization!r}: has {name} = {found.get(name)!r}, and this run "
                f'{wanted!r}; name a run of the same, or say "{PRIVATELY}"'
            )


def _inputs(config: Config) -> dict[str, object]:
    """The settings that say what is normalized, and whose it is."""
    return {**deal_of(config), "data.features": config.data.features}


def with_moments(run: Run, store: RunStore, *, allow_import: bool = False, ranks: Ranks | None = None) -> Run:
    """A run on normalized inputs, whose means and variances it releases first, as a run in a folder of its own."""
    from hubbub.training.moments import private_moments

    config, privacy = run.config, run.config.privacy
    private_moments(
        run.dataset.train_inputs if privacy.unit == "example" else [inputs for inputs, _ in run.examples],
        store,
        noise_multiplier=config.data.normalization_noise_multiplier,
        clip_norm=config.data.normalization_clip_norm,
        participation=everyone(run.plan.participation),
        delta=privacy.delta,
        noise=privacy.noise,
        seed=config.training.seed,
        settings={**_inputs(config), **({} if (path := path_of(config.data)) is None else {"data.path": path})},
    )
    usual = {name: getattr(DataConfig, name) for name in ("normalization_noise_multiplier", "normalization_clip_norm")}
    data = replace(config.data, normalization=str(store.folder.absolute()), **usual)
    return build(replace(config, data=data), allow_import=allow_import, ranks=ranks)


def client_side(config: Config, *, allow_import: bool = False, ranks: Ranks | None = None) -> ClientSide:
    """Data, clients and model of a run, from its settings."""
    require_fitting_unit(config)
    dataset = data_of(config, allow_import=allow_import)
    if config.training.validation:
        dataset = dataset.without_test(config.training.validation, config.deal_seed)
    training = config.training
    examples: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    if config.privacy.unit == "client":
        dataset, examples = dealt(dataset, _parts(config, dataset))
    torch.manual_seed(training.seed)
    model = made(config.model.name, MODELS, "model.name", allow_import, dataset.shape, dataset.classes)
    _require_model(model, config.model.name, dataset)
    # The noise of a simulation follows from its seed, so that secure sums would protect nothing; floating point is faster.
    lattice = config.privacy.noise == "secure"
    try:
        execution = Execution(training.plan, training.device, training.precision)  # type: ignore[arg-type] # as checked
        alike = {part.name: getattr(training, part.name) for part in fields(LocalTraining) if hasattr(training, part.name)}
        local = LocalTraining(epochs=training.local_epochs, steps=training.local_steps, **alike)
    except ValueError as error:
        raise ConfigError(f"training.{error}") from error
    if execution.device == "cuda" and ranks and ranks.size > 1:
        # Of several GPUs of a machine each rank has its own.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", ranks.rank)) % torch.cuda.device_count())
    if config.privacy.unit == "example":
        from hubbub.training import ExamplePopulation

        everything = dataset.train_inputs.to(execution.device), dataset.train_targets.to(execution.device)
        examples_of = ExamplePopulation(*everything, F.cross_entropy, lattice=lattice, seed=training.seed, ranks=ranks)
        return ClientSide(dataset, examples_of, model)
    population = SimulatedPopulation(
        examples, F.cross_entropy, local, training.seed, lattice=lattice, execution=execution, ranks=ranks
    )
    return ClientSide(dataset, population, model, examples)


def _parts(config: Config, dataset: Dataset) -> list[Any]:
    examples, clients, seed = len(dataset.train_inputs), config.data.clients, config.deal_seed
    match config.data.partition:
        case "user":
            return by_user(dataset.users)
        case _ if clients > examples:
            raise ConfigError(f"data.clients = {clients}: there are {examples} training examples; ask for at most as many")
        case "dirichlet":
            return dirichlet(dataset.train_targets, clients, config.data.alpha, seed)
        case _:
            return iid(examples, clients, seed)


def _require_model(model: object, name: str, dataset: Dataset) -> None:
    """Refuse a model that cannot be trained on these data, before anything is written."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model.name = {name!r}: made a {type(model).__name__}, not a torch.nn.Module")
    FlatModel(model)
    inputs = dataset.train_inputs
    some = torch.arange(min(2, len(inputs)))
    if not inputs.is_floating_point():
        # An embedding that is too short for the largest number would fail in the middle of a run.
        some[-1] = inputs.reshape(len(inputs), -1).amax(dim=1).argmax()
    try:
        with torch.no_grad():
            # A copy: a module may write into itself, and these are people's examples.
            F.cross_entropy(deepcopy(model)(inputs[some]), dataset.train_targets[some])
    except Exception as error:
        step = "" if inputs.dtype == torch.float32 else "; make them float32, by .float()"
        step += "" if inputs.is_floating_point() else ", or give an embedding more rows than the largest number"
        raise ConfigError(
            f"model.name = {name!r}: does not fit inputs of shape {dataset.shape} and {inputs.dtype} ({error}){step}"
        ) from error
