"""``hubbub plan``: what a run would cost, before it starts.

What privacy costs follows from the settings alone, and neither data nor a model are loaded for it, unless only the data say who
the clients are. How long the run takes is measured where that is asked for.
"""

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubbub import config as configs
from hubbub import inventory, prospect
from hubbub.accounting import PrivacyGuarantee, rounded_up
from hubbub.accounting.statement import no_less, zcdp_standing
from hubbub.accounting.wording import crude_delta, unit_word
from hubbub.cli import nearby
from hubbub.cli.output import console, print_json, print_table, say
from hubbub.cli.setting import require_output
from hubbub.config import Config
from hubbub.errors import ConfigError
from hubbub.planned import planned, workload_of
from hubbub.settings import encryption_of
from hubbub.training.plan import RunPlan

if TYPE_CHECKING:
    from hubbub.build import Run

__all__ = ["plan", "wanted"]

# Clients that a time is measured on: as many as are trained at once.
_TRIED = 40
_TRIED_EXAMPLES = 512
# What is not known before the data and the model are there.
_UNKNOWN = "not known before the model is; with --measure it is"


@dataclass(frozen=True)
class _Measured:
    """What the model and the data make of a run.

    Args:
        parameters: Of the model.
        seconds: Of the whole run, but for what encryption takes.
    """

    parameters: int
    seconds: float


@dataclass(frozen=True)
class _Planned:
    """A run before it starts; ``cpu_seconds`` it took to plan."""

    config: Config
    plan: RunPlan
    clients: int
    cpu_seconds: float
    measured: _Measured | None

    @property
    def parameters(self) -> int | None:
        """Of the model, where they are known."""
        return inventory.parameters_of(self.config) if self.measured is None else self.measured.parameters

    @property
    def unit(self) -> str:
        """Whose contribution is hidden, in a word."""
        return unit_word(self.plan.privacy_unit)


def plan(
    file: Path, assignments: list[str], *, wanted: nearby.Wanted | None, allow_import: bool, measure: bool, as_json: bool
) -> None:
    """Print privacy, noise and cost of the run that a config describes, and what its neighbours would give.

    Args:
        file: The config.
        assignments: ``--set`` flags.
        wanted: Which neighbours; ``None`` for none.
        allow_import: Whether names of code may be imported.
        measure: Load data and model, and measure how long the run takes.
        as_json: Print one JSON object instead.
    """
    config = configs.resolve(configs.load(file), configs.overrides(assignments))
    made = _planned(config, allow_import=allow_import, measure=measure)
    promised = made.plan.promise().after(made.plan.rounds, made.plan.delta)
    costs = _costs(made)
    found = None if wanted is None else nearby.found(config, made.clients, made.plan, made.cpu_seconds, made.parameters, wanted)
    if found is not None and wanted is not None and wanted.plot is not None:
        nearby.draw(wanted.plot, file.stem, found, made.plan)
    if as_json:
        print_json({**promised.as_json(), **costs, **({} if found is None else found.as_json(file, assignments))})
        return
    print_table("Privacy", _privacy_rows(promised))
    screen = console()
    remarks = [promised.sentence()]
    if promised.private and (remark := crude_delta(made.plan.delta, made.clients, made.unit)):
        remarks.append(f"WARNING: {remark}")
    if promised.setting:
        remarks.append(f"Who is trusted with what: {promised.setting}")
    for remark in remarks:
        say(screen)
        say(screen, remark)
    say(screen)
    print_table("Noise", _noise_rows(costs))
    say(screen)
    print_table("Cost", _cost_rows(costs, made))
    if found is not None:
        nearby.show(found, file, assignments)
    if not measure:
        say(screen)
        say(screen, "With --measure: how long the run takes, from the data and the model.")


def wanted(*, neighbours: bool, thorough: bool, plot: Path | None) -> nearby.Wanted | None:
    """The neighbours that the flags ask for.

    Raises:
        ConfigError: Flags about neighbours that nobody asks for, or a picture that could not be written.
    """
    for flag, given in (("--thorough", thorough), ("--plot", plot)):
        if given and not neighbours:
            raise ConfigError(f"{flag} with --no-neighbours: is about neighbours; leave one of them out")
    require_output("--plot", plot, ".png")
    return nearby.Wanted(thorough, plot) if neighbours else None


def _planned(config: Config, *, allow_import: bool, measure: bool) -> _Planned:
    clients = inventory.units_of(config)
    if measure or clients is None:
        from hubbub.build import build

        started = time.process_time()
        run = build(config, allow_import=allow_import)
        seconds = time.process_time() - started
        return _Planned(config, run.plan, len(run.population.clients), seconds, _measured(run) if measure else None)
    started = time.process_time()
    made = planned(config, clients, allow_import=allow_import)
    return _Planned(config, made, clients, time.process_time() - started, None)


def _costs(made: _Planned) -> dict[str, Any]:
    """The cost by name, for programs; ``None`` stands for what is not known, or is not there."""
    plan, parameters, measured = made.plan, made.parameters, made.measured
    terms = encryption_of(made.config, plan.expected_cohort_size)
    loud = prospect.loudness(plan, workload_of(made.config), parameters, terms.noise_rows if terms else 0)
    numbers = None if parameters is None else parameters + plan.clip_norms.further
    rows = prospect.remembered_rows(plan)
    encryption = prospect.encryption_costs(plan, terms, parameters, made.clients) if terms and parameters else {}
    seconds = None
    if measured is not None:
        each = sum(encryption.get(key, 0.0) for key in ("add_seconds", "open_seconds"))
        each += encryption.get("encrypt_seconds", 0.0) * plan.expected_cohort_size
        seconds = measured.seconds + each * plan.rounds
    return {
        "rounds": plan.rounds,
        "clients": made.clients,
        "expected_cohort_size": plan.expected_cohort_size,
        "clip_norm": plan.clip_norms.first,
        "clip_norm_moves": bool(plan.clip_norms.further),
        "update_noise_multiplier": plan.clip_norms.split.update_multiplier if plan.clip_norms.split else None,
        "epsilon_after": prospect.epsilons(plan.promise(), plan.delta) if plan.mechanism else None,
        "noise_stddev_on_mean": loud.mean_stddev if loud else None,
        "noise": asdict(loud) if loud else None,
        "noise_rows": rows,
        "parameters": parameters,
        "noise_memory_bytes": None if numbers is None else prospect.remembered_bytes(rows, numbers),
        "releases_bytes": 8 * numbers * plan.rounds if numbers and made.config.training.keep_releases else None,
        "planning_cpu_seconds": made.cpu_seconds,
        "estimated_seconds": seconds,
        **encryption,
    }


def _privacy_rows(promised: PrivacyGuarantee) -> dict[str, str]:
    """What the run promises, for people: what privacy costs is rounded up."""
    if not promised.private:
        return {"epsilon": "infinite: this run promises nothing"}
    covered = "of the whole run" + (" and the earlier ones" if promised.earlier else "")
    of = f"of {promised.sensitivity_of}, {'exact' if promised.sensitivity_exact else 'a bound'}"
    numbers = (
        ("zCDP rho", promised.unamplified_zcdp_rho, rounded_up, f"{covered}{zcdp_standing(promised)}"),
        ("L2 sensitivity", promised.l2_sensitivity, rounded_up, of),
        ("noise multiplier", promised.noise_multiplier, "{:.6g}".format, "over clip norm × largest column norm"),
        ("clip noise multiplier", promised.clip_noise_multiplier, "{:.6g}".format, "over the clip norm"),
    )
    return {
        "epsilon": rounded_up(promised.epsilon),
        "delta": no_less(promised.delta),
        **{name: f"{shown(value)}, {what}" for name, value, shown, what in numbers if value is not None},
        "privacy unit": promised.privacy_unit,
        "neighboring relation": promised.neighboring_relation,
        "accountant": promised.accountant,
    }


def _noise_rows(costs: dict[str, Any]) -> dict[str, str]:
    """The noise beside the clip norm, in words."""
    noise, after = costs["noise"], costs["epsilon_after"]
    if after is None:
        return {"noise": "none"}
    told = {"epsilon after rounds": ", ".join(f"{rounds:,}: {rounded_up(epsilon)}" for rounds, epsilon in after)}
    if noise is None:
        return {**told, "noise in each round": "not computed for so many rounds of this strategy"}
    first = " (first round's)" if costs["clip_norm_moves"] else ""
    told[f"clip norm{first}"] = f"{costs['clip_norm']:g}"
    if costs["clip_norm_moves"]:
        told["noise multiplier of the updates"] = f"{costs['update_noise_multiplier']:.6g}, beside that of the count"
    told["noise, standard deviation"] = f"{noise['sum_stddev']:.4g} on each parameter of a sum"
    told["of a mean over the cohort"] = f"{noise['mean_stddev']:.4g} on each parameter{_ratio(noise, '')}"
    told["of the model after all rounds"] = f"{noise['model_stddev']:.4g} on each parameter{_ratio(noise, 'final_')}"
    return told


def _ratio(noise: dict[str, Any], when: str) -> str:
    """The norm of the noise beside the signal, where the number of parameters is known."""
    norm, ratio = noise[f"{when}norm_over_clip"], noise[f"{when}signal_to_noise"]
    if norm is None:
        return ""
    return f"\nin norm {norm:.3g} clip norms; signal to noise ≤ {ratio:.3g}, for cohorts of the expected size"


def _cost_rows(costs: dict[str, Any], made: _Planned) -> dict[str, str]:
    """What it takes, in words."""
    told = {"rounds": f"{costs['rounds']:,} of {costs['expected_cohort_size']:g} of {costs['clients']:,} {made.unit}s"}
    rows, kept = costs["noise_rows"], costs["releases_bytes"]
    if made.parameters is None:
        told["parameters"] = _UNKNOWN
        told["memory of the noise"] = f"{rows:,} rows as long as the model"
    else:
        told["parameters"] = f"{made.parameters:,}"
        told["memory of the noise"] = f"{nearby.size(costs['noise_memory_bytes'])}: {_counted(rows, 'row')}" if rows else "none"
        told["disk for all releases"] = "none: they are not kept" if kept is None else nearby.size(kept)
    told |= _encryption_rows(costs)
    if made.measured is None:
        told["to optimise and calibrate"] = f"{costs['planning_cpu_seconds']:.2g} CPU seconds, measured"
    else:
        told["time, evaluation aside"] = f"about {_duration(costs['estimated_seconds'])}"
    return told


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _encryption_rows(costs: dict[str, Any]) -> dict[str, str]:
    """What encryption takes, in words."""
    if "upload_bytes" not in costs:
        return {}
    return {
        "each client and round": f"sends {nearby.size(costs['upload_bytes'])} in {costs['ciphertexts']:,} ciphertexts,\ngets "
        f"{nearby.size(costs['download_bytes'])} (the model, 4 bytes a parameter)",
        "each holder and round": f"gets {nearby.size(costs['request_bytes'])}",
        "to encrypt, one client and round": f"{costs['encrypt_seconds']:.2g} seconds",
        "to add, one round": f"{costs['add_seconds']:.2g} seconds",
        "to open, one round": f"{costs['open_seconds']:.2g} seconds, noise and all holders in turn",
        "these seconds": "measured here just now, on 8 ciphertexts,\nunder a key that was thrown away",
    }


def _measured(run: "Run") -> _Measured:
    """What takes the data and the model: seconds are of a few clients, times as many as there will be."""
    from hubbub.training.functional import FlatModel

    seconds = _seconds_per_client(run) * run.plan.expected_cohort_size
    return _Measured(FlatModel(run.model).dim, seconds * run.plan.rounds)


def _tried(run: "Run") -> int:
    """Of single examples more, since they are taken many at once."""
    return _TRIED_EXAMPLES if run.plan.privacy_unit == "example" else _TRIED


def _seconds_per_client(run: "Run") -> float:
    """Measured on a few clients, after once around to warm up."""
    population, first = run.population, run.plan.clip_norms.first
    cohort = math.ceil(run.plan.expected_cohort_size)
    population.prepare(run.model, cohort)
    clients = list(population.clients)[: min(_tried(run), cohort)]
    population.collect(clients, run.model, first, 0)
    started = time.perf_counter()
    population.collect(clients, run.model, first, 0)
    return (time.perf_counter() - started) / len(clients)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
