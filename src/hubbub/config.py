"""A run's settings: TOML to frozen dataclasses and back, and the tables of known names.

Layers: defaults, then the file, then ``--set`` flags; the later one wins. The schema is closed: an unknown key is refused, with
the nearest known one. Nothing in a file is interpolated or executed; a name ``"pkg.mod:Name"`` is only imported where the
caller allows it.
"""

import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tomli_w

from hubbub import _checks
from hubbub.accounting.composition import ACCOUNTANTS
from hubbub.errors import ConfigError
from hubbub.families import DESCRIPTIONS
from hubbub.training.execution import clients_at_once

__all__ = [
    "DATASETS",
    "ENGINES",
    "MODELS",
    "MODES",
    "SAMPLINGS",
    "SCHEMES",
    "STRATEGIES",
    "Config",
    "dump",
    "load",
    "overrides",
    "resolve",
    "strategy_name",
]

MODES = ("none", "dp-fedavg", "dp-ftrl")
DATASETS = {
    "cifar10": "hubbub.datasets.cifar10:load",
    "digits": "hubbub.datasets.digits:load",
    "fashion-mnist": "hubbub.datasets.mnist:load_fashion",
    "mnist": "hubbub.datasets.mnist:load",
    "shakespeare": "hubbub.datasets.shakespeare:load",
}
MODELS = {
    "char-lstm": "hubbub.models:CharLstm",
    "char-transformer": "hubbub.models:CharTransformer",
    "cifar-cnn": "hubbub.models:CifarCnn",
    "cnn": "hubbub.models:Cnn",
    "mlp": "hubbub.models:Mlp",
}
STRATEGIES = tuple(DESCRIPTIONS)
# Names that people type for the same thing.
_ALIASES = {"toeplitz": "banded-toeplitz", "binary-tree": "tree", "independent": "identity"}
_PATTERNS = ("min-separation", "fixed-epochs", "single", "every-round")
ENGINES = ("process", "flower")
SCHEDULES = ("constant", "linear", "cosine")
SCHEMES = ("none", "paillier")
UNITS = ("client", "example")
SAMPLINGS = ("poisson", "truncated-poisson", "cyclic-poisson", "balls-in-bins", "fixed-size", "pattern")
# What takes a setting back; none has a value of this name.
_DEFAULT = "default"
# The only kind of list that a setting may be.
_TEXTS = tuple[str, ...]
_LARGEST_FILE = 1_000_000
_LARGEST_NUMBER = 10**300


@dataclass(frozen=True)
class TrainingConfig:
    """``[training]``: what is computed, by which ``engine``. ``seed`` decides partition, initialisation and shuffles.

    In the last part ``cooldown`` of the rounds the server's learning rate falls in a straight line, to ``cooldown_to`` of it.
    With ``privacy.unit = "example"`` there is no local training: ``cohort_size`` is the expected batch size, and
    ``learning_rate`` and ``momentum`` are those of SGD (or Adam, with ``server_optimizer = "fedadam"``).
    ``plan``, ``workers``, ``device`` and ``precision`` say how fast, and change nothing of what is promised.
    ``extends`` is the folder of a finished run: training goes on from its model, and it is one of ``privacy.earlier_runs``.
    """

    rounds: int = 50
    cohort_size: int | None = None
    local_epochs: int = 1
    batch_size: int = 10
    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    local_steps: int | None = None
    proximal: float = 0.0
    schedule: str = "constant"
    schedule_rounds: int | None = None
    final_learning_rate: float = 0.0
    server_optimizer: str = "fedavg"
    server_learning_rate: float = 1.0
    server_momentum: float = 0.9
    cooldown: float = 0.0
    cooldown_to: float = 0.05
    evaluate_every: int = 1
    validation: float = 0.0
    keep_releases: bool = True
    fairness: bool = False
    seed: int = 0
    engine: str = "process"
    plan: str = "auto"
    workers: int = 1
    device: str = "cpu"
    precision: str = "float32"
    extends: str | None = None


@dataclass(frozen=True)
class PrivacyConfig:
    """``[privacy]``: what is promised. Give ``noise_multiplier``, or ``epsilon`` and the noise that meets it is computed.

    With ``clipping = "adaptive"`` the clip norm begins with ``clip_norm`` and follows a quantile of the updates' norms.
    ``earlier_runs`` are folders of runs over the same people: their charges are where this one starts, and are in its epsilon.
    """

    mode: str = "dp-fedavg"
    clip_norm: float = 1.0
    clipping: str = "fixed"
    target_quantile: float | None = None
    clip_norm_learning_rate: float | None = None
    clip_count_stddev: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    strategy: str | None = None
    matrix: str | None = None
    bands: int | None = None
    buffers: int | None = None
    objective: str | None = None
    sampling: str | None = None
    noise: str = "secure"
    unit: str = "client"
    neighboring_relation: str | None = None
    accountant: str = "tight"
    stop_epsilon: float | None = None
    earlier_runs: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ParticipationConfig:
    """``[participation]``: who may contribute when: a pattern and its numbers, or those of random cohorts."""

    pattern: str | None = None
    min_separation: int | None = None
    max_participations: int | None = None
    epochs: int | None = None
    rounds_per_epoch: int | None = None
    max_cohort_size: int | None = None
    cycle_length: int | None = None
    bins: int | None = None


@dataclass(frozen=True)
class DataConfig:
    """``[data]``: whose data, and how they are dealt to clients."""

    name: str = "digits"
    path: str | None = None
    clients: int = 100
    partition: str = "iid"
    alpha: float = 0.5


@dataclass(frozen=True)
class ModelConfig:
    """``[model]``: what is trained."""

    name: str = "mlp"


@dataclass(frozen=True)
class SecaggConfig:
    """``[secagg]``: whether the server may see single updates; ``secagg = "paillier"`` before all sections says it in short.

    ``holders`` open the sums, ``threshold`` of them together; 1 has the whole key. ``noise_by`` is who adds the noise: the
    server, the holders or the clients. ``clip`` bounds each number where there is no clip norm. ``keys`` is a folder of
    ``hubbub paillier``; without one, a run in one process makes keys that it throws away.
    """

    scheme: str = "none"
    key_bits: int = 3072
    bits: int = 16
    holders: int = 1
    threshold: int | None = None
    noise_by: str = "server"
    min_contributions: int = 2
    min_survivors: int | None = None
    clip: float = 1.0
    keys: str | None = None


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    training: TrainingConfig = field(default_factory=TrainingConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    participation: ParticipationConfig = field(default_factory=ParticipationConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    secagg: SecaggConfig = field(default_factory=SecaggConfig)


Layer = dict[str, dict[str, Any]]


def load(path: str | Path) -> Layer:
    """The settings that a TOML file names, by section.

    Raises:
        ConfigError: The file is missing, not TOML, or names an unknown section.
    """
    file = Path(path)
    try:
        if file.is_dir():
            raise ConfigError(f"{file}: is a folder; name a config file, or resume a run with 'hubbub resume {file}'")
        if not file.is_file():
            what = "is no regular file" if file.exists() else "is missing"
            raise ConfigError(f"{file}: {what}; name a config file, or let 'hubbub new run.toml' write one")
        if file.stat().st_size > _LARGEST_FILE:
            raise ConfigError(f"{file}: holds {file.stat().st_size} bytes; a config is text of at most {_LARGEST_FILE}")
        content = tomllib.loads(file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is not TOML ({_one_line(error)})") from error
    if isinstance(content.get("secagg"), str):
        content["secagg"] = {"scheme": content["secagg"]}
    _require_sections(file, content)
    return content


def _require_sections(file: Path, content: Mapping[str, Any]) -> None:
    for section, keys in content.items():
        if isinstance(keys, list):
            raise ConfigError(f"{file}: [[{section}]] is written as a list; write [{section}] once")
        if section == "secagg" and not isinstance(keys, dict):
            raise ConfigError(f'{file}: secagg = {_checks.shown(keys)}: write secagg = "paillier" above the first section')
        if not isinstance(keys, dict):
            raise ConfigError(f"{file}: {section} stands outside a section; write it under [training], [privacy] …")


def overrides(assignments: Sequence[str]) -> Layer:
    """The layer of ``--set section.key=value`` flags; a value is read as TOML, a bare word as text.

    The bare word ``default`` takes the setting back to its default, whatever an earlier layer says.

    Raises:
        ConfigError: Not of that form.
    """
    layer: Layer = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = "secagg.scheme" if name.strip() == "secagg" else name
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise ConfigError(f"--set {assignment!r}: write section.key=value, such as privacy.noise_multiplier=1.1")
        try:
            parsed = tomllib.loads(f"value = {text.strip()}")
        except tomllib.TOMLDecodeError:
            parsed = {"value": text.strip()}
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"--set {section}.{key}: cannot be read ({_one_line(error)})") from error
        if text.strip() == _DEFAULT:
            parsed = {"value": None}
        if list(parsed) != ["value"]:
            raise ConfigError(f"--set {section}.{key}: holds more than one value; repeat --set")
        value = parsed["value"]
        layer.setdefault(section, {})[key] = value
    return layer


def resolve(*layers: Layer) -> Config:
    """The settings of all layers, the later ones winning over defaults and earlier ones, checked.

    A layer that gives ``noise_multiplier`` drops an earlier layer's ``epsilon``, and the other way round.

    Raises:
        ConfigError: An unknown key, a value of the wrong type or out of range, or both of those two in one layer.
    """
    merged: Layer = {}
    for layer in layers:
        privacy = layer.get("privacy", {})
        if "noise_multiplier" in privacy and "epsilon" in privacy:
            raise ConfigError(
                f"privacy.noise_multiplier = {privacy['noise_multiplier']!r} and privacy.epsilon = {privacy['epsilon']!r}: "
                "give one; the other follows from it"
            )
        for section, keys in layer.items():
            target = merged.setdefault(section, {})
            if section == "privacy" and keys.keys() & {"noise_multiplier", "epsilon"}:
                target.pop("noise_multiplier", None)
                target.pop("epsilon", None)
            target.update(keys)
    config = Config()
    for section, keys in merged.items():
        known = [part.name for part in fields(Config)]
        if section not in known:
            raise ConfigError(f"[{section}]: is no section; there are {', '.join(known)}{_checks.nearest(section, known)}")
        config = replace(config, **{section: _section(section, type(getattr(config, section)), keys)})
    _check(config)
    return config


def dump(config: Config, header: str = "") -> str:
    """The settings as TOML that :func:`load` reads; what is unset is left out."""
    content = {
        section: {key: value for key, value in keys.items() if value is not None} for section, keys in asdict(config).items()
    }
    return header + tomli_w.dumps({section: keys for section, keys in content.items() if keys})


def _section(section: str, kind: type, keys: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    for key, value in keys.items():
        if key == "secagg":
            raise ConfigError(
                f'{section}.secagg: stands in [{section}]; write secagg = "paillier" above the first section, or [secagg]'
            )
        if key not in hints:
            raise ConfigError(f"{section}.{key}: is no setting{_checks.nearest(key, hints)}; known are {', '.join(hints)}")
        if value is not None and not _fits(value, hints[key]):
            raise ConfigError(f"{section}.{key} = {value!r}: must be {_words(hints[key])}, not {type(value).__name__}")
    # A later layer that has nothing takes a setting back to its default.
    keys = {key: value for key, value in keys.items() if value is not None}
    wants_float = {key for key, hint in hints.items() if float in (hint, *get_args(hint))}
    for key in wants_float & keys.keys():
        if isinstance(keys[key], int) and abs(keys[key]) > _LARGEST_NUMBER:
            raise ConfigError(f"{section}.{key} = {str(keys[key])[:20]}…: is too large, must be at most 1e300")
    plain = {key: float(value) if key in wants_float else value for key, value in keys.items()}
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()})


def _fits(value: Any, hint: Any) -> bool:
    options = list(get_args(hint) if isinstance(hint, types.UnionType) else (hint,))
    if isinstance(value, bool):
        return bool in options
    if isinstance(value, list):
        return _TEXTS in options and all(isinstance(item, str) for item in value)
    return isinstance(value, tuple(int | float if option is float else option for option in options if option != _TEXTS))


def _words(hint: Any) -> str:
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        _TEXTS: 'a list such as ["runs/one"]',
    }
    return " or ".join(names[option] for option in (get_args(hint) or (hint,)) if option in names)


def _check(config: Config) -> None:
    """Ranges, with the names that stand in the file. Rules that join several settings are checked when a run is built."""
    try:
        _check_training(config.training)
        _check_privacy(config.privacy)
        _check_rest(config)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error


def _check_training(training: TrainingConfig) -> None:
    for key in ("rounds", "local_epochs", "batch_size", "evaluate_every", "workers"):
        _checks.integer(f"training.{key}", getattr(training, key), at_least=1, at_most=10**7)
    _check_plan(training.plan)
    _checks.one_of("training.device", training.device, ("cpu", "cuda"))
    _checks.one_of("training.precision", training.precision, ("float32", "bfloat16"))
    _checks.integer("training.seed", training.seed, at_least=0, at_most=2**62)
    if training.cohort_size is not None:
        _checks.integer("training.cohort_size", training.cohort_size, at_least=1)
    for key in ("learning_rate", "server_learning_rate"):
        _checks.scale(f"training.{key}", getattr(training, key))
    for key in ("weight_decay", "proximal"):
        if _checks.non_negative(f"training.{key}", getattr(training, key)):
            _checks.scale(f"training.{key}", getattr(training, key))
    for key in ("momentum", "server_momentum", "validation"):
        if not 0 <= _checks.finite(f"training.{key}", getattr(training, key)) < 1:
            raise ConfigError(f"training.{key} = {getattr(training, key)!r}: must be at least 0 and below 1")
    _checks.one_of("training.server_optimizer", training.server_optimizer, ("fedavg", "fedavgm", "fedadam"))
    _check_schedule(training)
    _check_cooldown(training)
    _check_engine(training)


def _check_schedule(training: TrainingConfig) -> None:
    _checks.one_of("training.schedule", training.schedule, SCHEDULES)
    for key in ("local_steps", "schedule_rounds"):
        if getattr(training, key) is not None:
            _checks.integer(f"training.{key}", getattr(training, key), at_least=1, at_most=10**7)
    if not 0 <= _checks.finite("training.final_learning_rate", training.final_learning_rate) <= 1:
        raise ConfigError(f"training.final_learning_rate = {training.final_learning_rate!r}: must be from 0 to 1")


def _check_cooldown(training: TrainingConfig) -> None:
    if not 0 <= _checks.finite("training.cooldown", training.cooldown) <= 1:
        raise ConfigError(f"training.cooldown = {training.cooldown!r}: must be from 0 to 1, the part of the rounds it takes")
    if not 0 < _checks.finite("training.cooldown_to", training.cooldown_to) <= 1:
        raise ConfigError(f"training.cooldown_to = {training.cooldown_to!r}: must be above 0 and at most 1")
    if training.cooldown == 0 and training.cooldown_to != TrainingConfig.cooldown_to:
        raise ConfigError(
            f"training.cooldown_to = {training.cooldown_to!r}: does nothing without training.cooldown, the part of the rounds "
            "that it takes; say that, or leave it out"
        )


def _check_engine(training: TrainingConfig) -> None:
    """Refuse what a server that has no clients' data cannot do."""
    _checks.one_of("training.engine", training.engine, ENGINES)
    if training.engine != "flower":
        return
    if training.workers > 1 or training.plan.startswith("batched"):
        key, value = ("workers", training.workers) if training.workers > 1 else ("plan", training.plan)
        raise ConfigError(
            f'training.{key} = {value!r} with training.engine = "flower": there each client trains on its own; leave it out, '
            'or say engine = "process"'
        )
    if training.fairness:
        raise ConfigError(
            'training.fairness = true with training.engine = "flower": a server has none of its clients\' examples to measure '
            'the model on; leave it out, or say engine = "process"'
        )


def _check_plan(plan: str) -> None:
    try:
        clients_at_once(plan)
    except ConfigError as error:
        raise ConfigError(f"training.{error}") from error


def _check_privacy(privacy: PrivacyConfig) -> None:
    _checks.one_of("privacy.mode", privacy.mode, MODES)
    _checks.scale("privacy.clip_norm", privacy.clip_norm)
    _checks.one_of("privacy.clipping", privacy.clipping, ("fixed", "adaptive"))
    if privacy.target_quantile is not None and not 0 <= _checks.finite("privacy.target_quantile", privacy.target_quantile) <= 1:
        raise ConfigError(f"privacy.target_quantile = {privacy.target_quantile!r}: must be from 0 to 1")
    for key in ("clip_norm_learning_rate", "clip_count_stddev"):
        if getattr(privacy, key) is not None:
            _checks.scale(f"privacy.{key}", getattr(privacy, key))
    if privacy.noise_multiplier is not None:
        if privacy.noise_multiplier == 0:
            raise ConfigError('privacy.noise_multiplier = 0.0: hides nothing; for a run without privacy say mode = "none"')
        _checks.scale("privacy.noise_multiplier", privacy.noise_multiplier)
    for key in ("epsilon", "stop_epsilon"):
        if getattr(privacy, key) is not None:
            _checks.scale(f"privacy.{key}", getattr(privacy, key))
    _checks.open_unit("privacy.delta", privacy.delta)
    if privacy.sampling is not None:
        _checks.one_of("privacy.sampling", privacy.sampling, SAMPLINGS)
    _checks.one_of("privacy.noise", privacy.noise, ("secure", "simulation"))
    _checks.one_of("privacy.unit", privacy.unit, UNITS)
    _checks.one_of("privacy.accountant", privacy.accountant, ACCOUNTANTS)
    if privacy.neighboring_relation is not None:
        relations = ("zero-out", "add-or-remove-one", "replace-one")
        _checks.one_of("privacy.neighboring_relation", privacy.neighboring_relation, relations)
    _check_strategy(privacy)


def _check_strategy(privacy: PrivacyConfig) -> None:
    if privacy.strategy is not None:
        strategy_name("privacy.strategy", privacy.strategy)
    for key in ("bands", "buffers"):
        if getattr(privacy, key) is not None:
            _checks.integer(f"privacy.{key}", getattr(privacy, key), at_least=1)
    if privacy.objective is not None:
        _checks.one_of("privacy.objective", privacy.objective, ("mean", "max"))


def _check_rest(config: Config) -> None:
    participation = config.participation
    if participation.pattern is not None:
        _checks.one_of("participation.pattern", participation.pattern, _PATTERNS)
    for key, value in asdict(participation).items():
        if key != "pattern" and value is not None:
            _checks.integer(f"participation.{key}", value, at_least=1)
    _checks.integer("data.clients", config.data.clients, at_least=1, at_most=10**9)
    _checks.one_of("data.partition", config.data.partition, ("iid", "dirichlet", "user"))
    _checks.scale("data.alpha", config.data.alpha)
    if ":" not in config.data.name:
        _checks.one_of("data.name", config.data.name, DATASETS)
    if ":" not in config.model.name:
        _checks.one_of("model.name", config.model.name, MODELS)
    if config.training.fairness and config.privacy.unit != "client":
        raise ConfigError(
            f"training.fairness = true with privacy.unit = {config.privacy.unit!r}: nobody is a client there; leave it out"
        )
    _check_secagg(config.secagg)
    _check_extends(config)


def _check_extends(config: Config) -> None:
    """Refuse to go on from a run that is not charged."""
    extends = config.training.extends
    if extends is None:
        return
    charged = [Path(run).expanduser().absolute() for run in config.privacy.earlier_runs or ()]
    if Path(extends).expanduser().absolute() not in charged:
        raise ConfigError(
            f"training.extends = {extends!r}: what goes on from a run's model is charged with it; name it in "
            f"privacy.earlier_runs as well, or say 'hubbub extend {extends}'"
        )


def _check_secagg(secagg: SecaggConfig) -> None:
    _checks.one_of("secagg.scheme", secagg.scheme, SCHEMES)
    _checks.integer("secagg.key_bits", secagg.key_bits, at_least=2048, at_most=16_384)
    _checks.integer("secagg.bits", secagg.bits, at_least=10, at_most=26)
    _checks.integer("secagg.holders", secagg.holders, at_least=1, at_most=100)
    if secagg.threshold is not None:
        _checks.integer("secagg.threshold", secagg.threshold, at_least=1, at_most=secagg.holders)
    _checks.one_of("secagg.noise_by", secagg.noise_by, ("server", "holders", "clients"))
    _checks.integer("secagg.min_contributions", secagg.min_contributions, at_least=2)
    if secagg.min_survivors is not None:
        _checks.integer("secagg.min_survivors", secagg.min_survivors, at_least=1)
    _checks.scale("secagg.clip", secagg.clip)
    if secagg.scheme == "none" and secagg != SecaggConfig():
        changed = next(field.name for field in fields(secagg) if getattr(secagg, field.name) != field.default)
        raise ConfigError(
            f'secagg.{changed} = {getattr(secagg, changed)!r}: belongs to scheme = "paillier"; say that, or leave it out'
        )


def strategy_name(name: str, value: str, known: Sequence[str] = STRATEGIES) -> str:
    """The strategy's name as the tables have it, or ``"pkg.mod:Name"`` as it is.

    Raises:
        ValueError: No such strategy.
    """
    if ":" in value:
        return value
    word = value.strip().lower().replace("_", "-")
    return _checks.one_of(name, _ALIASES.get(word, word), known)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
