"""The settings of a run: TOML to frozen dataclasses and back, and the tables of known names.

Layers: defaults, then the file, then ``--set`` flags; the later one wins. The sections are the schema: pydantic checks types
and ranges, and an unknown key is refused with the nearest known one. Nothing in a file is interpolated; a name
``"pkg.mod:Name"`` is only imported, and a command of ``[heads]`` only run, where the caller allows it.
"""

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_args, get_type_hints

import tomli_w
from pydantic import AfterValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic.dataclasses import dataclass

from hubbub._util import checks as _checks
from hubbub._util import files
from hubbub.accounting.composition import ACCOUNTANTS
from hubbub.accounting.events import RELATIONS
from hubbub.accounting.wording import UNITS
from hubbub.errors import ConfigError, RunFolderError
from hubbub.factorization import FAMILIES
from hubbub.mechanism.participation import PATTERN_WORDS, SAMPLING_WORDS
from hubbub.training.simulation import clients_at_once

__all__ = [
    "DATASETS",
    "MODELS",
    "SAMPLINGS",
    "Config",
    "absolute",
    "dump",
    "layer_of",
    "load",
    "merge",
    "of_run",
    "overrides",
    "replaced",
    "resolve",
    "strategy_name",
]

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
    "linear": "hubbub.models:Linear",
    "mlp": "hubbub.models:Mlp",
}
# Other names of strategies.
_ALIASES = {"toeplitz": "banded-toeplitz", "binary-tree": "tree", "independent": "identity"}
SAMPLINGS = (*SAMPLING_WORDS.values(), "pattern")
# The value of data.normalization with which a run releases means and variances of its own; any other one is a folder.
PRIVATELY = "private"
# The word that resets a setting; no setting has a value of this name.
_DEFAULT = "default"
_LARGEST_FILE = 1_000_000
_LARGEST_NUMBER = 10**300


def _rule(check: Callable[..., Any], *args: Any, **bounds: Any) -> AfterValidator:
    """A check of :mod:`hubbub._util.checks`, whose message names the setting as the file does."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        return check(f"{(info.config or {}).get('title')}.{info.field_name}", value, *args, **bounds)

    return AfterValidator(checked)


def _mode(name: str, value: str) -> str:
    if value == "dp-sgd":
        raise ValueError(f'{name} = \'dp-sgd\': say privacy.unit = "example" with mode = "dp-fedavg", which is DP-SGD')
    return _checks.one_of(name, value, ("none", "dp-fedavg", "dp-ftrl"))


def _noise_multiplier(name: str, value: float) -> float:
    if value == 0:
        raise ValueError(f'{name} = 0.0: hides nothing; for a run without privacy say mode = "none"')
    return _checks.scale(name, value)


def _plan(name: str, value: str) -> str:
    try:
        clients_at_once(value)
    except ConfigError as error:
        raise ValueError(f"{name.removesuffix('plan')}{error}") from error
    return value


def _release(name: str, value: str) -> str:
    if not value.strip():
        raise ValueError(
            f'{name} = {value!r}: must be "{PRIVATELY}", or the folder of a release, such as "runs/one/normalization"'
        )
    return value


def _named(name: str, value: str, known: Mapping[str, str]) -> str:
    if ":" in value:
        return value
    try:
        return _checks.one_of(name, value, known)
    except ValueError as error:
        raise ValueError(f"{error}, or code of your own, 'module:Name', with --allow-import") from None


def strategy_name(name: str, value: str) -> str:
    """The strategy's name as the tables have it, or ``"pkg.mod:Name"`` as it is."""
    if ":" in value:
        return value
    word = value.strip().lower().replace("_", "-")
    return _checks.one_of(name, _ALIASES.get(word, word), FAMILIES)


Texts = tuple[str, ...]
Count = Annotated[int, _rule(_checks.integer, at_least=1, at_most=10**7)]
Positive = Annotated[int, _rule(_checks.integer, at_least=1)]
Scale = Annotated[float, _rule(_checks.scale)]
ScaleOrZero = Annotated[float, _rule(_checks.number, lambda x: x == 0 or 1e-12 <= x <= 1e12, "be 0, or from 1e-12 to 1e12")]
BelowOne = Annotated[float, _rule(_checks.number, lambda x: 0 <= x < 1, "be at least 0 and below 1")]
Fraction = Annotated[float, _rule(_checks.number, lambda x: 0 <= x <= 1, "be from 0 to 1")]
PositiveFraction = Annotated[float, _rule(_checks.probability)]


_Section = TypeVar("_Section")


@dataclass_transform(frozen_default=True)
def _section(name: str) -> Callable[[type[_Section]], type[_Section]]:
    """A section of the file: nothing but what it lists, and no value turned into one of another type.

    Values are refused by their settings' names in place of pydantic's report.
    """

    def made(plain: type[_Section]) -> type[_Section]:
        config = ConfigDict(title=name, extra="forbid", strict=True)
        kind = cast("type[_Section]", dataclass(plain, frozen=True, config=config))
        checked: Callable[..., None] = kind.__init__

        @wraps(checked)
        def init(self: _Section, /, **keys: Any) -> None:
            keys = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
            try:
                checked(self, **keys)
            except ValidationError as error:
                raise _refusal(kind, name, keys, error.errors()[0]) from None

        kind.__init__ = init  # type: ignore[assignment,method-assign] # no longer that of object
        return kind

    return made


def _require_usual(section: str, made: Any, names: Iterable[str], without: str) -> None:
    """Refuse settings that do nothing without another one, unless they are at their defaults."""
    for name in names:
        if (value := getattr(made, name)) != getattr(type(made), name):
            raise ConfigError(f"{section}.{name} = {value!r}: does nothing without {without}; say that, or leave it out")


@_section("training")
class TrainingConfig:
    """``[training]``: what is computed, by which ``engine``.

    ``plan``, ``nproc``, ``device`` and ``precision`` say how fast, and change nothing of what is promised.
    """

    rounds: Count = 50
    cohort_size: Positive | None = None
    local_epochs: Count = 1
    batch_size: Count = 10
    learning_rate: Scale = 0.05
    momentum: BelowOne = 0.0
    weight_decay: ScaleOrZero = 0.0
    local_steps: Count | None = None
    proximal: ScaleOrZero = 0.0
    schedule: Annotated[str, _rule(_checks.one_of, ("constant", "linear", "cosine"))] = "constant"
    schedule_rounds: Count | None = None
    final_learning_rate: Fraction = 0.0
    server_optimizer: Annotated[str, _rule(_checks.one_of, ("fedavg", "fedavgm", "fedadam"))] = "fedavg"
    server_learning_rate: Scale = 1.0
    server_momentum: BelowOne = 0.9
    cooldown: Fraction = 0.0
    cooldown_to: PositiveFraction = 0.05
    evaluate_every: Count = 1
    validation: BelowOne = 0.0
    keep_releases: bool = True
    free_disk: BelowOne = 0.05
    fairness: bool = False
    seed: Annotated[int, _rule(_checks.integer, at_least=0, at_most=2**62)] = 0
    engine: Annotated[str, _rule(_checks.one_of, ("process", "flower"))] = "process"
    plan: Annotated[str, _rule(_plan)] = "auto"
    nproc: Count = 1
    rank_timeout: Scale = 1800.0
    shard: Annotated[str, _rule(_checks.one_of, ("none", "optimizer"))] = "none"
    device: Annotated[str, _rule(_checks.one_of, ("cpu", "cuda"))] = "cpu"
    precision: Annotated[str, _rule(_checks.one_of, ("float32", "bfloat16"))] = "float32"
    extends: str | None = None
    sweep: Count | None = None

    def __post_init__(self) -> None:
        if self.cooldown == 0:
            _require_usual("training", self, ("cooldown_to",), "training.cooldown, the part of the rounds that it takes")
        if not self.keep_releases:
            _require_usual("training", self, ("free_disk",), "training.keep_releases")
        if self.schedule == "constant":
            _require_usual("training", self, ("schedule_rounds", "final_learning_rate"), 'schedule = "linear" or "cosine"')
        if self.server_optimizer != "fedavgm":
            _require_usual("training", self, ("server_momentum",), 'server_optimizer = "fedavgm"')
        in_one_process = {"nproc": self.nproc > 1, "plan": self.plan.startswith("batched"), "fairness": self.fairness}
        for key, given in in_one_process.items():
            if given and self.engine == "flower":
                raise ConfigError(
                    f'training.{key} = {getattr(self, key)!r} with training.engine = "flower": each client is on its own; '
                    'leave it out, or say engine = "process"'
                )


@_section("privacy")
class PrivacyConfig:
    """``[privacy]``: the guarantee. Give ``noise_multiplier``, or ``epsilon`` for the least noise that meets it."""

    mode: Annotated[str, _rule(_mode)] = "dp-fedavg"
    clip_norm: Scale = 1.0
    clipping: Annotated[str, _rule(_checks.one_of, ("fixed", "adaptive"))] = "fixed"
    target_quantile: Fraction | None = None
    clip_norm_learning_rate: Scale | None = None
    clip_count_stddev: Scale | None = None
    noise_multiplier: Annotated[float, _rule(_noise_multiplier)] | None = None
    epsilon: Scale | None = None
    delta: Annotated[float, _rule(_checks.open_unit)] = 1e-5
    strategy: Annotated[str, _rule(strategy_name)] | None = None
    matrix: str | None = None
    bands: Positive | None = None
    buffers: Positive | None = None
    objective: Annotated[str, _rule(_checks.one_of, ("mean", "max"))] | None = None
    sampling: Annotated[str, _rule(_checks.one_of, SAMPLINGS)] | None = None
    noise: Annotated[str, _rule(_checks.one_of, ("secure", "simulation"))] = "secure"
    unit: Annotated[str, _rule(_checks.one_of, UNITS)] = "client"
    neighboring_relation: Annotated[str, _rule(_checks.one_of, RELATIONS)] | None = None
    accountant: Annotated[str, _rule(_checks.one_of, ACCOUNTANTS)] = "tight"
    stop_epsilon: Scale | None = None
    earlier_runs: Texts | None = None


@_section("participation")
class ParticipationConfig:
    """``[participation]``: a participation pattern and its numbers, or the numbers of random cohorts."""

    pattern: Annotated[str, _rule(_checks.one_of, (*PATTERN_WORDS.values(), "every-round"))] | None = None
    min_separation: Positive | None = None
    max_participations: Positive | None = None
    epochs: Positive | None = None
    rounds_per_epoch: Positive | None = None
    max_cohort_size: Positive | None = None
    cycle_length: Positive | None = None
    bins: Positive | None = None


@_section("data")
class DataConfig:
    """``[data]``: the data set, and its partition into clients."""

    name: Annotated[str, _rule(_named, DATASETS)] = "digits"
    path: str | None = None
    features: Annotated[str, _rule(_checks.one_of, ("none", "scattering", "mirrored-scattering", "patches"))] = "none"
    normalization: Annotated[str, _rule(_release)] | None = None
    normalization_noise_multiplier: Scale = 8.0
    normalization_clip_norm: Scale | None = None
    clients: Annotated[int, _rule(_checks.integer, at_least=1, at_most=10**9)] = 100
    partition: Annotated[str, _rule(_checks.one_of, ("iid", "dirichlet", "user"))] = "iid"
    alpha: Scale = 0.5
    seed: Annotated[int, _rule(_checks.integer, at_least=0, at_most=2**63 - 1)] | None = None

    def __post_init__(self) -> None:
        if self.normalization != PRIVATELY:
            released = ("normalization_noise_multiplier", "normalization_clip_norm")
            _require_usual("data", self, released, f'normalization = "{PRIVATELY}", which releases means and variances')
        if self.partition != "dirichlet":
            _require_usual("data", self, ("alpha",), 'partition = "dirichlet"')


@_section("model")
class ModelConfig:
    """``[model]``: the module that is trained."""

    name: Annotated[str, _rule(_named, MODELS)] = "mlp"


@_section("secagg")
class SecaggConfig:
    """``[secagg]``: encrypted sums; short form ``secagg = "paillier"`` before all sections."""

    scheme: Annotated[str, _rule(_checks.one_of, ("none", "paillier"))] = "none"
    key_bits: Annotated[int, _rule(_checks.integer, at_least=2048, at_most=16_384)] = 3072
    bits: Annotated[int, _rule(_checks.integer, at_least=10, at_most=26)] = 16
    holders: Annotated[int, _rule(_checks.integer, at_least=1, at_most=100)] = 1
    threshold: Positive | None = None
    noise_by: Annotated[str, _rule(_checks.one_of, ("server", "holders", "clients"))] = "server"
    min_contributions: Annotated[int, _rule(_checks.integer, at_least=2)] = 2
    min_survivors: Positive | None = None
    clip: Scale = 1.0
    keys: str | None = None

    def __post_init__(self) -> None:
        if self.scheme == "none":
            _require_usual("secagg", self, asdict(self), 'scheme = "paillier"')


@_section("evaluation")
class EvaluationConfig:
    """``[evaluation]``: private evaluations of the clients; each number is between 0 and its bound, and epsilon counts them."""

    statistics: Texts | None = None
    every: Count = 10
    sampling_probability: PositiveFraction = 1.0
    share: Annotated[float, _rule(_checks.number, lambda x: 0 < x < 1, "be above 0 and below 1")] | None = None
    noise_multiplier: Scale | None = None
    loss_bound: Scale = 10.0

    def __post_init__(self) -> None:
        for name in self.statistics or ():
            _checks.one_of("evaluation.statistics", name, ("accuracy", "loss"))
        if self.statistics is None:
            _require_usual("evaluation", self, asdict(self), 'evaluation.statistics, such as ["accuracy", "loss"]')
        elif not self.statistics:
            raise ConfigError("evaluation.statistics = []: measures nothing; name accuracy or loss, or leave it out")
        elif "loss" not in self.statistics:
            _require_usual("evaluation", self, ("loss_bound",), 'the statistic "loss"')
        if self.share is not None and self.noise_multiplier is not None:
            raise ConfigError("evaluation.share with evaluation.noise_multiplier: give one; the other follows from it")


@_section("heads")
class HeadsConfig:
    """``[heads]``: a hook that gets the head of each round, so that a rollback of the folder is detected."""

    command: Texts | None = None
    url: str | None = None
    key: str | None = None
    required: bool = False

    def __post_init__(self) -> None:
        if self.command is not None and not (self.command and all(self.command)):
            raise ConfigError(f"heads.command = {list(self.command)}: must be the words of a command, or leave it out")
        if self.command is not None and self.url is not None:
            raise ConfigError(f"heads.url = {self.url!r} with heads.command: give one of the two")
        if self.command is None and self.url is None and (self.key is not None or self.required):
            raise ConfigError("heads: says of no command and no url how heads are given; give one of the two, or leave it out")


@_section("")
class Config:
    """All settings of a run, one field for each section of the TOML file; docs/settings.md describes each key."""

    training: TrainingConfig = TrainingConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    participation: ParticipationConfig = ParticipationConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    secagg: SecaggConfig = SecaggConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    heads: HeadsConfig = HeadsConfig()

    @property
    def deal_seed(self) -> int:
        """Of the draw by which examples are dealt to clients and held out."""
        return self.training.seed if self.data.seed is None else self.data.seed


Layer = dict[str, dict[str, Any]]


def load(path: str | Path) -> Layer:
    """The settings that a TOML file names, by section."""
    file = Path(path)
    try:
        content = tomllib.loads(files.read(Path(os.path.realpath(file)), at_most=_LARGEST_FILE).decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{file}: is missing; name a config file, or let 'hubbub new run.toml' write one") from error
    except OSError as error:
        step = f"name {own}" if (own := file / "config.toml").is_file() else "name a config file"
        step += ", or resume a run with 'hubbub resume RUN'"
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); {step}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is not TOML ({_one_line(error)}); text stands in quotes") from error
    if isinstance(content.get("secagg"), str):
        content["secagg"] = {"scheme": content["secagg"]}
    for section, keys in content.items():
        if not isinstance(keys, dict):
            raise ConfigError(f"{file}: {section} stands outside a section; write it once under [training], [privacy] …")
    return content


def of_run(folder: Path) -> Layer:
    """The settings in the folder of a run of ``hubbub train``."""
    path = folder / "config.toml"
    if path.is_symlink() or not path.is_file():
        why = "a symbolic link" if path.is_symlink() else "not there"
        raise RunFolderError(
            f"{path}: is {why}; restore it if 'hubbub train' made this run. One of a loop in Python or of a Flower strategy "
            "has none, and no command loads, evaluates, resumes or publishes it: its own program keeps the model and resumes "
            "it, and 'hubbub account RUN --statement' prints its statement"
        )
    layer = load(path)
    released = layer.get("data", {}).get("normalization")
    if isinstance(released, str) and released and (own := folder / Path(released).name).is_dir():
        # In this run's own folder, wherever that is now.
        layer["data"]["normalization"] = str(own.absolute())
    return layer


def settings_of_key(key: str) -> list[str]:
    """The settings of this key, each with its section.

    Example:
        >>> settings_of_key("noise_multiplier")
        ['privacy.noise_multiplier', 'evaluation.noise_multiplier']
    """
    return [f"{part.name}.{key}" for part in fields(Config) if key in asdict(getattr(Config, part.name))]


def overrides(assignments: Sequence[str]) -> Layer:
    """The layer of ``--set section.key=value`` flags; a value is read as TOML, a bare word as text.

    The bare word ``default`` resets the setting, whatever an earlier layer says.

    Example:
        >>> overrides(["privacy.epsilon=8", "training.engine=flower", "data.path=default"])
        {'privacy': {'epsilon': 8}, 'training': {'engine': 'flower'}, 'data': {'path': None}}
    """
    layer: Layer = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = "secagg.scheme" if name.strip() == "secagg" else name
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            meant = [f"{whole}={text}" for whole in settings_of_key(name.strip())] if text else []
            example = " or ".join(meant) or "privacy.noise_multiplier=1.1"
            raise ConfigError(f"--set {assignment!r}: write section.key=value, such as {example}")
        try:
            parsed = tomllib.loads(f"value = {text.strip()}")
        except tomllib.TOMLDecodeError:
            parsed = {"value": text.strip()}
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"--set {section}.{key}: cannot be read ({_one_line(error)})") from error
        if list(parsed) != ["value"]:
            raise ConfigError(f"--set {section}.{key}: holds more than one value; repeat --set")
        layer.setdefault(section, {})[key] = None if text.strip() == _DEFAULT else parsed["value"]
    return layer


def merge(*layers: Layer) -> Layer:
    """All layers as one, later ones over earlier ones; noise given as ``noise_multiplier`` drops an ``epsilon`` and vice versa.

    Example:
        >>> merge({"privacy": {"epsilon": 8.0, "delta": 1e-6}}, {"privacy": {"noise_multiplier": 1.1}})
        {'privacy': {'delta': 1e-06, 'noise_multiplier': 1.1}}
    """
    merged: Layer = {}
    for layer in layers:
        for section, keys in layer.items():
            if not isinstance(keys, Mapping):
                raise ConfigError(f"{section} = {_checks.shown(keys)}: must be a section, settings by their names")
        privacy = layer.get("privacy", {})
        if privacy.get("noise_multiplier") is not None and privacy.get("epsilon") is not None:
            raise ConfigError(
                f"privacy.noise_multiplier = {privacy['noise_multiplier']!r} and privacy.epsilon = {privacy['epsilon']!r}: "
                "give one; the other follows from it"
            )
        for section, keys in layer.items():
            target = merged.setdefault(section, {})
            if section == "privacy" and any(keys.get(key) is not None for key in ("noise_multiplier", "epsilon")):
                target.pop("noise_multiplier", None)
                target.pop("epsilon", None)
            target.update(keys)
    return merged


def replaced(layer: Layer, over: Layer, name: str) -> list[str]:
    """Which of the two settings of noise :func:`merge` drops from a layer called ``name`` for the other one: a line, or none.

    Example:
        >>> replaced({"privacy": {"epsilon": 8.0}}, {"privacy": {"noise_multiplier": 1}}, "run.toml")
        ['privacy.epsilon = 8.0 of run.toml is replaced by privacy.noise_multiplier = 1']
        >>> replaced({"privacy": {"epsilon": 8.0}}, {"privacy": {"epsilon": 4.0}}, "run.toml")
        []
    """
    before, after = layer.get("privacy", {}), over.get("privacy", {})
    for dropped, kept in (("epsilon", "noise_multiplier"), ("noise_multiplier", "epsilon")):
        if before.get(dropped) is not None and kept in after:
            value = _DEFAULT if after[kept] is None else repr(after[kept])
            return [f"privacy.{dropped} = {before[dropped]!r} of {name} is replaced by privacy.{kept} = {value}"]
    return []


def resolve(*layers: Layer) -> Config:
    """The checked settings: all layers, merged as by :func:`merge`, over the defaults."""
    config = Config()
    for section, keys in merge(*layers).items():
        known = [part.name for part in fields(Config)]
        if section not in known:
            raise ConfigError(f"[{section}]: is no section; there are {', '.join(known)}{_checks.nearest(section, known)}")
        kind = type(getattr(config, section))
        # ``None`` in a later layer resets a setting, which must be one.
        given = {key: value for key, value in keys.items() if value is not None or not hasattr(kind, key)}
        config = replace(config, **{section: kind(**given)})
    # Other contradictions of several sections are found when a run is planned.
    extends = config.training.extends
    counted = [Path(run).expanduser().absolute() for run in config.privacy.earlier_runs or ()]
    if extends is not None and Path(extends).expanduser().absolute() not in counted:
        raise ConfigError(
            f"training.extends = {extends!r}: the cost of what starts from a run's model counts that run; name it in "
            f"privacy.earlier_runs as well, or say 'hubbub extend {extends}'"
        )
    return config


# The settings that name files or folders.
_PATHS = {
    "training": ["extends"],
    "privacy": ["matrix", "earlier_runs"],
    "data": ["path", "normalization"],
    "secagg": ["keys"],
    "heads": ["key"],
}
# A word in place of a path.
_NO_PATHS = {"normalization": (PRIVATELY,)}


def absolute(config: Config, here: Path) -> Config:
    """The settings with absolute paths in place of those that begin ``here``, so that they mean the same in any folder."""

    def whole(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(whole, value))
        return str(here / Path(value).expanduser()) if value else value

    for section, keys in _PATHS.items():
        part = getattr(config, section)
        paths = {key: whole(getattr(part, key)) for key in keys if getattr(part, key) not in _NO_PATHS.get(key, ())}
        config = replace(config, **{section: replace(part, **paths)})
    # A program without a folder is looked for in PATH.
    if "/" in (command := config.heads.command or ("",))[0]:
        config = replace(config, heads=replace(config.heads, command=(whole(command[0]), *command[1:])))
    return config


def layer_of(config: Config) -> Layer:
    """The settings as one layer; unset ones are left out."""
    return {
        section: {key: value for key, value in keys.items() if value is not None} for section, keys in asdict(config).items()
    }


def dump(config: Config, header: str = "") -> str:
    """The settings as TOML that :func:`load` reads; unset ones are left out."""
    return header + tomli_w.dumps({section: keys for section, keys in layer_of(config).items() if keys})


def _refusal(kind: type, section: str, keys: Mapping[str, Any], first: Mapping[str, Any]) -> ConfigError:
    """The first fault that pydantic found in the values of a section, or in the sections of a config."""
    if first["type"] == "value_error":
        return ConfigError(str(first["ctx"]["error"]))
    hints, (key, *places) = get_type_hints(kind), first["loc"]
    name = f"{section}.{key}" if section else key
    if key not in hints:
        return ConfigError(f"{name}: is no setting{_checks.nearest(key, hints)}; known are {', '.join(hints)}")
    value = list(keys[key]) if isinstance(keys[key], tuple) else keys[key]
    if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
        return ConfigError(f"{name} = {_checks.shown(value)}: is too large, must be at most 1e300")
    kind_given = list if isinstance(first["input"], tuple) else type(first["input"])
    found = f"not {'of ' if places else ''}{kind_given.__name__}"
    return ConfigError(f"{name} = {_checks.shown(value)}: must be {_words(hints[key])}, {found}")


def _words(hint: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Texts: 'a list of texts, ["…"]'}
    options = (hint,) if hint in names or isinstance(hint, type) else get_args(hint)
    return " or ".join(names.get(option, f"a {option.__name__}") for option in options if option is not type(None))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
