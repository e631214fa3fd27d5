"""Extending a run by settings: the model of the run that ``training.extends`` names, and the settings of its extension."""

import math
import os
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from hubbub._util import files
from hubbub.errors import ConfigError, RunFolderError
from hubbub.experiment import config as configs
from hubbub.experiment.settings import clipping_of, server_of
from hubbub.ledger.actual_cost import Recorded
from hubbub.ledger.promise import Extends
from hubbub.training import RunPlan, RunStore
from hubbub.training.clipping import AdaptiveClipping, ClipNorms
from hubbub.training.run_folder.record import read_run
from hubbub.training.run_folder.state import Start, parse
from hubbub.training.warm_start import final_state, last_checkpoint, related, require_alike
from hubbub.verification import verify

# Settings of the data, the people and the model.
_SAME = {
    "data": ("name", "features", "normalization", "clients", "partition", "alpha", "seed"),
    "model": ("name",),
    "training": ("seed", "validation"),
    "privacy": ("unit",),
}
# The same, by the first part of their names in a ledger.
_RECORDED = ("data.", "model.", "training.validation")
_LARGEST_MODEL = 2**36


def start_from(config: configs.Config, following: RunPlan, module: nn.Module, clients: int) -> tuple[Extends, Start]:
    """The final state of the run that ``training.extends`` names; its model is written into ``module`` as well."""
    folder = Path(str(config.training.extends)).expanduser()
    recorded = read_run(folder)
    before = configs.resolve(configs.of_run(folder))
    _require_recorded(recorded, following, config, folder)
    had = recorded.promise.terms.clients
    if clients != had:
        raise ConfigError(f"data: has {clients} {config.privacy.unit}s, and {folder} had {had}; extend it with the same")
    for check in verify(folder).checks:
        if not check.ok:
            raise RunFolderError(f"{folder}: does not verify ({check.name}: {check.detail}); see hubbub verify {folder}")
    plan = _plan(before, recorded, following)
    require_alike(recorded, plan, following)
    extends, start, _ = final_state(recorded, plan, following, module)
    _require_model(folder, recorded, module)
    return extends, start


def extension(folder: Path) -> configs.Layer:
    """The settings of a run that extends a finished one; the caller adds the number of rounds.

    They are those of the finished run, without the numbers that followed from its rounds. Its privacy cost is counted, and that
    of each other run that extends it. An adaptive clip norm begins with its final value.
    """
    layer = configs.of_run(folder)
    before = configs.resolve(layer)
    training, privacy = layer.setdefault("training", {}), layer.setdefault("privacy", {})
    participation = layer.setdefault("participation", {})
    rounds, pattern = before.training.rounds, before.participation
    for key, period in (("max_participations", pattern.min_separation), ("epochs", pattern.rounds_per_epoch)):
        if period and getattr(pattern, key) == math.ceil(rounds / period):
            participation.pop(key, None)
    runs = [str(folder.absolute()), *(str(run) for run in related(folder) if run != folder.resolve())]
    # The runs that the finished run counted itself are in its ledger.
    training["extends"], privacy["earlier_runs"] = runs[0], runs
    recorded, clipping = read_run(folder), clipping_of(before)
    if isinstance(clipping, AdaptiveClipping) and (mechanism := recorded.promise.mechanism):
        of_run = mechanism.noise_multiplier, recorded.promise.settings["expected_cohort_size"]
        privacy["clip_norm"] = _last_clip_norm(ClipNorms(clipping, *of_run), recorded)
        if clipping.split(*of_run) == replace(clipping, clip_count_stddev=None).split(*of_run):
            # What followed from its noise follows from that of the new run.
            privacy.pop("clip_count_stddev", None)
    return layer


def _last_clip_norm(norms: ClipNorms, recorded: Recorded) -> float | None:
    """The adaptive clip norm after the last round, a function of the releases."""
    store, (checkpoint, later) = RunStore(Path(recorded.name)), last_checkpoint(recorded)
    clip_norm = (checkpoint and checkpoint.clip_norm) or norms.first
    for t in later:
        clip_norm = norms.following(clip_norm, store.parse_release(t, store.release_content(t)))
    return clip_norm


def require_same(config: configs.Config) -> None:
    """Refuse settings of other data or of another model than those of the run that they extend."""
    folder = Path(str(config.training.extends)).expanduser()
    before, config = configs.resolve(configs.of_run(folder)), configs.absolute(config, Path.cwd())
    for section, keys in _SAME.items():
        for key in keys:
            was, now = (getattr(getattr(settings, section), key) for settings in (before, config))
            if was != now:
                raise ConfigError(
                    f"{section}.{key} = {now!r}: {folder} had {was!r}; extend a run with its data, people and model, or start "
                    "a new one that counts its cost (privacy.earlier_runs)"
                )


def _require_recorded(recorded: Recorded, following: RunPlan, config: configs.Config, folder: Path) -> None:
    """Refuse a config.toml of the finished run that its ledger contradicts."""
    stated = dict(recorded.promise.settings)
    now: dict[str, object] = {name: following.settings.get(name) for name in stated if name.startswith(_RECORDED)}
    if not recorded.promise.simulation:
        now["seed"] = config.training.seed
    for name, value in now.items():
        if value != stated.get(name):
            raise ConfigError(f"{name} = {value!r}: by its ledger {folder} had {stated.get(name)!r}; restore its config.toml")


def _plan(before: configs.Config, recorded: Recorded, following: RunPlan) -> RunPlan:
    """The plan of the finished run, by its ledger; clipping and optimizer by its settings, which the ledger confirms."""
    promise = recorded.promise
    alike = "rounds", "mechanism", "delta", "neighboring_relation", "accountant", "lattice_bits", "noise_by", "setting"
    return RunPlan(
        **{name: getattr(promise, name) for name in (*alike, "privacy_unit")},
        participation=following.participation if promise.mechanism is None else promise.mechanism.participation,
        expected_cohort_size=promise.settings["expected_cohort_size"],
        clip_norm=clipping_of(before),
        server=server_of(before),
        noise="simulation" if promise.simulation else "secure",
    )


def _require_model(folder: Path, recorded: Recorded, module: nn.Module) -> None:
    """Refuse a model file that differs from the model that the releases make."""
    path = folder / "model.safetensors"
    if not os.path.lexists(path):
        if recorded.history.closed:
            return
        raise RunFolderError(f"{path}: is not there; make it: hubbub resume {folder}")
    with files.refusing(path, "is no model", f"make it anew: hubbub resume {folder}"):
        kept = parse(files.read(path, at_most=_LARGEST_MODEL))
    made = {name: parameter.detach().cpu() for name, parameter in module.named_parameters()}
    wrong = [name for name in sorted({*made, *kept}) if _bytes(made.get(name)) != _bytes(kept.get(name))]
    if wrong:
        raise RunFolderError(
            f"{path}: its {wrong[0]!r} is not what the releases in the ledger make, so that nothing says what it was made of; "
            f"make it anew (hubbub resume {folder}), on the machine that trained it"
        )


def _bytes(tensor: torch.Tensor | None) -> bytes:
    """Shape, type and every bit of a tensor; empty without one."""
    return b"" if tensor is None else save({"": tensor.contiguous()})
