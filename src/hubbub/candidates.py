"""Which settings are neighbours of a run's: other strategies and other cohorts, as changes of a few settings."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hubbub.config import Config, Layer, ParticipationConfig
from hubbub.families import Family, default_bands
from hubbub.noise_levels import MOST_ROUNDS
from hubbub.participation import FixedEpochs, Pattern, SingleParticipation
from hubbub.planned import default_strategy

__all__ = ["assignments", "changed", "cohorts_of", "cyclic_bands", "layer_of", "pattern_families"]

_MOST_BANDS = 512
# Rounds times bands of a search for the best Toeplitz coefficients that takes some tenths of a second, and some seconds.
_QUICK_TOEPLITZ, _SLOW_TOEPLITZ = 200_000, 5_000_000
# The same of families whose time depends on the rounds.
_QUICK = {"tree-full": 1024, "blt": 10_000, "banded-inverse": 1024, "banded": 128, "dense": 128}
_SLOW = {
    "tree-full": MOST_ROUNDS,
    "blt": 100_000,
    "banded-inverse": MOST_ROUNDS,
    "normalized-toeplitz": MOST_ROUNDS,
    "banded": 512,
    "dense": 512,
    "time-varying": 1024,
}
_WITH_OBJECTIVE = ("optimal-toeplitz", "banded", "banded-inverse", "blt", "time-varying", "dense")
# Of cyclic cohorts each band count has a price of its own: as many, four times as many, and so on.
_FIRST_BANDS, _RATIO = 2, 4


def layer_of(config: Config) -> Layer:
    """The settings as one layer that others are laid over; what is unset is left out."""
    return {
        section: {key: value for key, value in keys.items() if value is not None} for section, keys in asdict(config).items()
    }


def cohorts_of(sampling: str, **numbers: Any) -> Layer:
    """What makes cohorts of a kind, whatever the settings say about them now.

    Args:
        sampling: The kind, as ``privacy.sampling`` has it.
        numbers: Of ``[participation]``; all others are taken back.
    """
    none = dict.fromkeys(asdict(ParticipationConfig()))
    return {"privacy": {"sampling": sampling}, "participation": {**none, **numbers}}


def changed(config: Config, family: Family, cohorts: Layer, *, epsilon: float, relation: str) -> Layer:
    """What of a run's settings another strategy or other cohorts change; ``None`` takes a setting back to its default.

    Args:
        config: The run's settings.
        family: The other strategy.
        cohorts: As :func:`cohorts_of` says, or empty for the run's own.
        epsilon: The budget, where the settings give a noise multiplier in its place.
        relation: The neighboring relation, where other cohorts have another default.
    """
    random = cohorts.get("privacy", {}).get("sampling") in ("poisson", "fixed-size")
    own = not cohorts and family.name == "identity"
    mode = config.privacy.mode if own else "dp-fedavg" if random else "dp-ftrl"
    # Where the settings name none, and another mode has another default, it must be named.
    unnamed = config.privacy.strategy is None and family.name == default_strategy(mode)
    objective = config.privacy.objective if family.name in _WITH_OBJECTIVE else None
    wanted: Layer = {
        "training": dict(cohorts.get("training", {})),
        "privacy": {
            "mode": mode,
            "strategy": None if unnamed else family.name,
            "bands": family.bands,
            "buffers": family.buffers,
            "matrix": None,
            "objective": objective,
            **({} if config.privacy.epsilon is not None else {"epsilon": epsilon}),
            **({"neighboring_relation": relation} if cohorts else {}),
            **cohorts.get("privacy", {}),
        },
        "participation": dict(cohorts.get("participation", {})),
    }
    now = asdict(config)
    layer = {
        section: {key: value for key, value in keys.items() if value != now[section][key]} for section, keys in wanted.items()
    }
    return {section: keys for section, keys in layer.items() if keys}


def assignments(changes: Layer) -> list[str]:
    """The changes as ``--set`` takes them."""
    return [
        f"{section}.{key}={'default' if value is None else value}"
        for section, keys in changes.items()
        for key, value in keys.items()
    ]


def pattern_families(pattern: Pattern, rounds: int, *, thorough: bool) -> Iterator[Family]:
    """Families for a pattern that are optimized in a second or so together; with ``thorough`` in a minute."""
    top = min(default_bands(pattern, rounds), _MOST_BANDS)
    most = _SLOW_TOEPLITZ if thorough else _QUICK_TOEPLITZ
    for bands in sorted({top, top // 2, top // 4, top // 16} - {0, 1}, reverse=True):
        if rounds * bands <= most:
            yield Family("optimal-toeplitz", bands)
    longest = _SLOW if thorough else _QUICK
    fixed = isinstance(pattern, SingleParticipation | FixedEpochs)
    for name, length in longest.items():
        dense = name == "dense"
        if rounds > length or (dense and not fixed) or (name == "time-varying" and pattern != SingleParticipation()):
            continue
        if name == "blt" and thorough:
            yield Family("blt", buffers=2)
        yield Family(name)


def cyclic_bands(most: int) -> list[int]:
    """A few band counts up to the most that cyclic cohorts have groups for; empty for fewer than two."""
    counts = []
    bands = _FIRST_BANDS
    while bands < most:
        counts.append(bands)
        bands *= _RATIO
    return [*counts, most] if most >= _FIRST_BANDS else []
