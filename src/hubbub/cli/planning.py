"""``hubbub plan``: what a run would cost, before it starts."""

import math
import time
from dataclasses import asdict
from pathlib import Path

from hubbub import config as configs
from hubbub.build import Run, build
from hubbub.cli.accounts import guarantee_rows
from hubbub.cli.output import console, print_json, print_table
from hubbub.noise.blocks import progress
from hubbub.strategies.strategy import memory_rows
from hubbub.training.flat import FlatModel
from hubbub.training.simulate import SimulatedPopulation

__all__ = ["plan"]


def plan(file: Path, assignments: list[str], *, allow_import: bool, as_json: bool) -> None:
    """Print privacy, noise, memory and time of the run that a config describes."""
    run = build(configs.resolve(configs.load(file), configs.overrides(assignments)), allow_import=allow_import)
    promised = run.plan.promise().after(run.plan.rounds, run.plan.delta)
    dim = FlatModel(run.model).dim
    noise_rows = _noise_rows(run)
    noise = None
    if run.plan.mechanism and run.plan.clip_norm:
        noise = run.plan.mechanism.stddev * run.plan.clip_norm / run.plan.expected_cohort_size
        # Each holder adds the whole of it.
        noise *= math.sqrt(run.encryption.noise_rows or 1) if run.encryption else 1.0
    seconds = _seconds_per_client(run) * run.plan.expected_cohort_size * run.plan.rounds
    encryption = _encryption(run)
    if encryption:
        each = encryption["encrypt_seconds"] * run.plan.expected_cohort_size + encryption["open_seconds"]
        seconds += each * run.plan.rounds
    costs = {
        "rounds": run.plan.rounds,
        "clients": len(run.population.clients),
        "expected_cohort_size": run.plan.expected_cohort_size,
        "parameters": dim,
        "noise_stddev_on_mean": noise,
        "noise_memory_bytes": 8 * dim * noise_rows,
        "releases_bytes": 8 * dim * run.plan.rounds if run.config.training.keep_releases else None,
        "estimated_seconds": seconds,
        **encryption,
    }
    if as_json:
        print_json({**promised.as_json(), **costs})
        return
    rows = guarantee_rows(promised) if promised.private else {"epsilon": "infinite: this run promises nothing"}
    print_table("Privacy", rows)
    console().print(f"\n{promised.sentence()}\n")
    if promised.setting:
        console().print(f"Who is trusted with what: {promised.setting}\n")
    print_table(
        "Cost",
        {
            "rounds": f"{run.plan.rounds:,} of {run.plan.expected_cohort_size:g} of {len(run.population.clients):,} clients",
            "parameters": f"{dim:,}",
            "noise on each parameter of the mean": "none" if noise is None else f"{noise:.4g}",
            "memory of the noise": f"{8 * dim * noise_rows / 2**20:,.1f} MiB",
            "disk for all releases": f"{8 * dim * run.plan.rounds / 2**20:,.1f} MiB"
            if run.config.training.keep_releases
            else "none: they are not kept",
            **_encryption_rows(encryption),
            "time, evaluation aside": f"about {_duration(seconds)}",
        },
    )


def _encryption(run: Run) -> dict[str, float]:
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


def _noise_rows(run: Run) -> int:
    """The most rows that the stream remembers, as the strategy says, or found by its first steps."""
    if run.plan.mechanism is None:
        return 0
    strategy = run.plan.mechanism.strategy
    known = memory_rows(strategy)
    return progress(strategy, min(run.plan.rounds, 4096)).most_remembered if known is None else known


def _seconds_per_client(run: Run) -> float:
    """Measured on a few clients, the first not counted."""
    population: SimulatedPopulation = run.population
    clients = list(population.clients)[:4]
    population.collect(clients[:1], run.model, run.plan.clip_norm, 0)
    started = time.perf_counter()
    population.collect(clients, run.model, run.plan.clip_norm, 0)
    return (time.perf_counter() - started) / len(clients)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
