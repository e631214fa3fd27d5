"""A warm start: from the settings of a run to the model of the finished run that it starts from, and the settings to do so."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from hubbub._util import files
from hubbub.errors import ConfigError, RunFolderError
from hubbub.experiment import config as configs
from hubbub.experiment.config import Config
from hubbub.experiment.settings import clipping_of, server_of
from hubbub.ledger.multi_run import Recorded, final_charges
from hubbub.ledger.promise import Extends
from hubbub.training import RunPlan, RunStore
from hubbub.training.clipping import ClipNorms
from hubbub.training.run_folder.record import read_run
from hubbub.training.run_folder.state import parse
from hubbub.training.warm_start import handed_on, last_checkpoint, related, require_alike
from hubbub.verification import verify

__all__ = ["Start", "extension", "require_same", "start_from"]

# What says whose data are trained on, and what is trained.
_SAME = {
    "data": ("name", "clients", "partition", "alpha"),
    "model": ("name",),
    "training": ("seed", "validation"),
    "privacy": ("unit",),
}
# The same, as a ledger has it.
_RECORDED = ("data.", "model.", "training.validation")
_LARGEST_MODEL = 2**36


@dataclass(frozen=True, eq=False)
class Start:
    """What a run begins with that starts from a finished one.

    Args:
        folder: Of the finished run.
        extends: What the promise says of it.
        vector: Its model, ``(dim,)``.
        optimizer: The state that the server's optimizer takes up, by name.
    """

    folder: Path
    extends: Extends
    vector: torch.Tensor
    optimizer: Mapping[str, torch.Tensor]


def start_from(config: Config, following: RunPlan, module: nn.Module, clients: int) -> Start:
    """What the finished run hands on that settings name in ``training.extends``; ``module`` holds its model then.

    Args:
        config: Of the run that starts.
        following: Its plan.
        module: Its module as it is made.
        clients: How many there are.

    Raises:
        ConfigError: Settings of other data, of another model, or of another unit, relation or kind of noise.
        RunFolderError: The finished run does not verify, or its model is not made of its releases.
        LedgerError: It may still go on.
    """
    folder = Path(str(config.training.extends)).expanduser()
    recorded = read_run(folder)
    final_charges([recorded])
    before = _settings(folder)
    _require_recorded(recorded, following, config, folder)
    had = recorded.promise.terms.clients
    if clients != had:
        raise ConfigError(
            f"data: has {clients} {config.privacy.unit}s, and {folder} was trained on {had}; a run goes on with the people "
            "that it had"
        )
    for check in verify(folder).checks:
        if not check.ok:
            raise RunFolderError(f"{folder}: does not verify ({check.name}: {check.detail}); see hubbub verify {folder}")
    plan = _plan(before, recorded, following)
    require_alike(recorded, plan, following)
    model = "model.safetensors"
    bound = model in (recorded.history.files or {}) and os.path.lexists(folder / model)
    handed = handed_on(recorded, plan, module, bound=bound)
    _require_model(folder, recorded, module)
    extends, state = handed.to(plan, following)
    return Start(folder, extends, handed.vector, state)


def extension(folder: Path) -> configs.Layer:
    """The settings by which a run starts from a finished one, but for the number of its rounds.

    They are those of the finished run; numbers that only followed from its rounds are left to be computed anew. Its privacy
    cost is counted, and that of whatever else started from it. A clip norm that moved begins where it ended.

    Raises:
        RunFolderError: The folder is no run of ``hubbub train``, or something that went on from it is not there.
    """
    layer, before = configs.load(_own(folder)), _settings(folder)
    training, privacy = layer.setdefault("training", {}), layer.setdefault("privacy", {})
    participation = layer.setdefault("participation", {})
    rounds, pattern = before.training.rounds, before.participation
    for key, period in (("max_participations", pattern.min_separation), ("epochs", pattern.rounds_per_epoch)):
        if period and getattr(pattern, key) == math.ceil(rounds / period):
            participation.pop(key, None)
    runs = [str(folder.absolute()), *(str(run) for run in related(folder) if run != folder.resolve())]
    # What the finished run counted itself stands in its ledger.
    training["extends"], privacy["earlier_runs"] = runs[0], runs
    if (clip_norm := _last_clip_norm(before, read_run(folder))) is not None:
        privacy["clip_norm"] = clip_norm
    return layer


def _last_clip_norm(before: Config, recorded: Recorded) -> float | None:
    """That of the round that would have been next, where it moved: a function of the releases."""
    mechanism = recorded.promise.mechanism
    if before.privacy.clipping != "adaptive" or mechanism is None:
        return None
    norms = ClipNorms(clipping_of(before), mechanism.noise_multiplier, recorded.promise.settings["expected_cohort_size"])
    store, clip_norm, done = RunStore(Path(recorded.name)), norms.first, 0
    if checkpoint := last_checkpoint(recorded):
        clip_norm, done = checkpoint.clip_norm() or clip_norm, checkpoint.rounds
    for round_index, entry in enumerate(recorded.history.rounds):
        if entry.release is not None and round_index >= done:
            release = store.parse_release(round_index, store.release_content(round_index))
            clip_norm = norms.following(clip_norm, release)
    return clip_norm


def _own(folder: Path) -> Path:
    path = folder / "config.toml"
    if path.is_symlink() or not path.is_file():
        raise RunFolderError(
            f"{folder}: is no run of 'hubbub train' (config.toml not there); a run of train(...) goes on by "
            "hubbub.training.extended"
        )
    return path


def _settings(folder: Path) -> Config:
    return configs.resolve(configs.load(_own(folder)))


def require_same(config: Config) -> None:
    """Refuse settings of other data or of another model than those of the finished run that they go on from.

    Raises:
        ConfigError: One that differs.
        RunFolderError: The finished run has no settings.
    """
    folder = Path(str(config.training.extends)).expanduser()
    before = _settings(folder)
    for section, keys in _SAME.items():
        for key in keys:
            was, now = (getattr(getattr(settings, section), key) for settings in (before, config))
            if was != now:
                raise ConfigError(
                    f"{section}.{key} = {now!r}: {folder} had {was!r}, and a run goes on with the data, the people and the "
                    "model that it had; leave it as it was, or start a new run, whose epsilon counts that one "
                    "(privacy.earlier_runs)"
                )


def _require_recorded(recorded: Recorded, following: RunPlan, config: Config, folder: Path) -> None:
    """Refuse settings that were changed in the folder of the finished run: its ledger knows them."""
    stated = dict(recorded.promise.settings)
    now: dict[str, object] = {name: following.settings.get(name) for name in stated if name.startswith(_RECORDED)}
    if not recorded.promise.simulation:
        now["seed"] = config.training.seed
    for name, value in now.items():
        if value != stated.get(name):
            raise ConfigError(
                f"{name} = {value!r}: by its ledger {folder} had {stated.get(name)!r}, so that its config.toml was changed; "
                "restore it"
            )


def _plan(before: Config, recorded: Recorded, following: RunPlan) -> RunPlan:
    """What the finished run did, by its ledger, and by its settings where these say the same."""
    promise = recorded.promise
    return RunPlan(
        rounds=promise.rounds,
        participation=following.participation if promise.mechanism is None else promise.mechanism.participation,
        expected_cohort_size=promise.settings["expected_cohort_size"],
        mechanism=promise.mechanism,
        clip_norm=clipping_of(before),
        delta=promise.delta,
        neighboring_relation=promise.neighboring_relation,
        accountant=promise.accountant,
        server=server_of(before),
        noise="simulation" if promise.simulation else "secure",
        lattice_bits=promise.lattice_bits,
        noise_by=promise.noise_by,
        setting=promise.setting,
        privacy_unit=promise.privacy_unit,
    )


def _require_model(folder: Path, recorded: Recorded, module: nn.Module) -> None:
    """Refuse a model file that holds something else than what the releases make: somebody put it there."""
    path = folder / "model.safetensors"
    if not os.path.lexists(path):
        if recorded.history.closed:
            return
        raise RunFolderError(f"{path}: is not there; make it: hubbub resume {folder}")
    try:
        kept = parse(files.read(path, at_most=_LARGEST_MODEL))
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); make it anew: hubbub resume {folder}") from error
    except ValueError as error:
        raise RunFolderError(f"{path}: {error}; make it anew: hubbub resume {folder}") from error
    made = {name: parameter.detach().cpu() for name, parameter in module.named_parameters()}
    wrong = [name for name in sorted({*made, *kept}) if not _alike(made.get(name), kept.get(name))]
    if wrong:
        raise RunFolderError(
            f"{path}: its {wrong[0]!r} is not what the releases in the ledger make, so that nothing says what it was made of; "
            f"make it anew (hubbub resume {folder}), on the machine that trained it"
        )


def _alike(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two tensors are the same to the last bit."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8)) if one.ndim else bool(one == other)
