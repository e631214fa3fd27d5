"""``hubbub plan``: what a run would cost, before it starts.

What privacy costs follows from the settings alone, and neither data nor a model are loaded for it, unless the data say who the
clients are. What depends on the model is measured where that is asked for.
"""

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubbub import config as configs
from hubbub.accounting.wording import crude_delta, unit_word
from hubbub.cli.accounts import guarantee_rows
from hubbub.cli.output import console, print_json, print_table
from hubbub.config import Config
from hubbub.planned import planned
from hubbub.settings import encryption_of
from hubbub.strategies.strategy import memory_rows
from hubbub.training.plan import RunPlan

if TYPE_CHECKING:
    from hubbub.build import Run

__all__ = ["plan"]

# Clients that a time is measured on: as many as are trained at once.
_TRIED = 16
_TRIED_EXAMPLES = 512


@dataclass(frozen=True)
class _Measured:
    """What the model and the data make of a run.

    Args:
        parameters: Of the model.
        seconds: Of the whole run.
        encryption: What encryption takes in a round, by name; empty where there is none.
    """

    parameters: int
    seconds: float
    encryption: dict[str, float]


def plan(file: Path, assignments: list[str], *, allow_import: bool, measure: bool, as_json: bool) -> None:
    """Print privacy and noise of the run that a config describes; with ``measure`` also its memory and its time."""
    config = configs.resolve(configs.load(file), configs.overrides(assignments))
    measured = None
    if measure or _told_by_data(config):
        from hubbub.build import build

        run = build(config, allow_import=allow_import)
        made, clients = run.plan, len(run.population.clients)
        measured = _measured(run) if measure else None
    else:
        made, clients = planned(config, config.data.clients, allow_import=allow_import), config.data.clients
    promised = made.promise().after(made.rounds, made.delta)
    costs = _costs(config, made, clients, measured)
    if as_json:
        print_json({**promised.as_json(), **costs})
        return
    rows = guarantee_rows(promised) if promised.private else {"epsilon": "infinite: this run promises nothing"}
    print_table("Privacy", rows)
    console().print(f"\n{promised.sentence()}\n")
    if promised.private and (remark := crude_delta(made.delta, clients, unit_word(made.privacy_unit))):
        console().print(f"WARNING: {remark}\n")
    if promised.setting:
        console().print(f"Who is trusted with what: {promised.setting}\n")
    print_table("Cost", _cost_rows(costs, measured, unit_word(made.privacy_unit)))
    if measured is None:
        console().print("\nWith --measure: parameters, memory, disk and time, from the data and the model.")


def _told_by_data(config: Config) -> bool:
    """Whether only the data know how many units of privacy there are."""
    return config.data.partition == "user" or config.privacy.unit != "client"


def _costs(config: Config, made: RunPlan, clients: int, measured: _Measured | None) -> dict[str, Any]:
    """The cost by name, for programs; ``None`` stands for what was not measured, or is not there."""
    rows, noise = _noise_rows(made), None
    if made.mechanism and made.clip_norms.first is not None:
        noise = made.mechanism.stddev * (made.clip_norms.bound(made.clip_norms.first) or 0.0) / made.expected_cohort_size
        encryption = encryption_of(config, made.expected_cohort_size)
        # Each holder adds the whole of it.
        noise *= math.sqrt(encryption.noise_rows or 1) if encryption else 1.0
    release = 8 * (measured.parameters + made.clip_norms.further) if measured else None
    return {
        "rounds": made.rounds,
        "clients": clients,
        "expected_cohort_size": made.expected_cohort_size,
        "noise_stddev_on_mean": noise,
        "clip_norm_moves": bool(made.clip_norms.further),
        "update_noise_multiplier": made.clip_norms.split.update_multiplier if made.clip_norms.split else None,
        "noise_rows": rows,
        "parameters": measured.parameters if measured else None,
        "noise_memory_bytes": release * rows if release else None,
        "releases_bytes": release * made.rounds if release and config.training.keep_releases else None,
        "estimated_seconds": measured.seconds if measured else None,
        **(measured.encryption if measured else {}),
    }


def _cost_rows(costs: dict[str, Any], measured: _Measured | None, unit: str) -> dict[str, str]:
    """The same in words."""
    noise, kept = costs["noise_stddev_on_mean"], costs["releases_bytes"]
    first = ", first round" if costs["clip_norm_moves"] else ""
    told = {
        "rounds": f"{costs['rounds']:,} of {costs['expected_cohort_size']:g} of {costs['clients']:,} {unit}s",
        f"noise on each parameter of the mean{first}": "none" if noise is None else f"{noise:.4g}",
    }
    if costs["clip_norm_moves"]:
        told["noise multiplier of the updates"] = f"{costs['update_noise_multiplier']:.6g}, beside that of the count"
    if measured is None:
        return {**told, "memory of the noise": f"{costs['noise_rows']:,} vectors as long as the model"}
    return {
        **told,
        "parameters": f"{measured.parameters:,}",
        "memory of the noise": f"{costs['noise_memory_bytes'] / 2**20:,.1f} MiB",
        "disk for all releases": "none: they are not kept" if kept is None else f"{kept / 2**20:,.1f} MiB",
        **_encryption_rows(measured.encryption),
        "time, evaluation aside": f"about {_duration(measured.seconds)}",
    }


def _measured(run: "Run") -> _Measured:
    """What takes the data and the model: seconds are of a few clients, times as many as there will be."""
    from hubbub.training.flat import FlatModel

    encryption = _encryption(run)
    seconds = _seconds_per_client(run) * run.plan.expected_cohort_size
    if encryption:
        seconds += encryption["encrypt_seconds"] * run.plan.expected_cohort_size + encryption["open_seconds"]
    return _Measured(FlatModel(run.model).dim, seconds * run.plan.rounds, encryption)


def _encryption(run: "Run") -> dict[str, float]:
    """What the encryption of a round takes, where there is any."""
    if run.encryption is None:
        return {}
    from hubbub.engine.parties import estimate

    return asdict(estimate(run, run.encryption))


def _encryption_rows(costs: dict[str, float]) -> dict[str, str]:
    """The same in words."""
    if not costs:
        return {}
    sent = f"{costs['upload_bytes'] / 1000:,.0f} kB sent"
    return {
        "encryption, one client and round": f"{costs['encrypt_seconds']:.2g} seconds, {sent}",
        "opening, one round": f"{costs['open_seconds']:.2g} seconds, one holder after another",
    }


def _noise_rows(made: RunPlan) -> int:
    """The most rows that the stream remembers, as the strategy says, or found by its first steps."""
    if made.mechanism is None:
        return 0
    strategy = made.mechanism.strategy
    known = memory_rows(strategy)
    if known is not None:
        return known
    from hubbub.noise.blocks import progress

    return progress(strategy, min(made.rounds, 4096)).most_remembered


def _tried(run: "Run") -> int:
    """Of single examples more, since they are taken many at once."""
    return _TRIED_EXAMPLES if run.plan.privacy_unit == "example" else _TRIED


def _seconds_per_client(run: "Run") -> float:
    """Measured on a few clients, after once around to warm up."""
    population, first = run.population, run.plan.clip_norms.first
    clients = list(population.clients)[: min(_tried(run), math.ceil(run.plan.expected_cohort_size))]
    population.collect(clients, run.model, first, 0)
    started = time.perf_counter()
    population.collect(clients, run.model, first, 0)
    return (time.perf_counter() - started) / len(clients)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
