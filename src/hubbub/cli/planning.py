"""``hubbub plan``: the privacy, noise and cost of a run before it starts, and its alternatives.

The privacy cost follows from the settings alone: no data or model is loaded, unless the clients are known from the data
only. The time of the run is measured with ``--measure``.
"""

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubbub._util import files
from hubbub.accounting import rounded_up
from hubbub.cli.accounts import guarantee_rows
from hubbub.cli.output import WIDE, console, grid, print_columns, print_json, print_table, printable, promised_words, say
from hubbub.errors import ConfigError
from hubbub.experiment import config as configs
from hubbub.experiment import estimates
from hubbub.experiment.alternatives import Alternative, Alternatives, alternatives
from hubbub.experiment.alternatives import assignments as flags_of
from hubbub.experiment.cohort_sizes import NEAR, CohortSize, cohort_sizes, proposed, round_counts
from hubbub.experiment.config import Config, Layer
from hubbub.experiment.planner import noise_for_earlier_runs, parameters_of, planned, units_of
from hubbub.experiment.settings import encryption_of
from hubbub.training.plan import RunPlan

if TYPE_CHECKING:
    from hubbub.experiment.build import Run

# Clients, or examples, whose training is timed: as many as are trained at once.
_TRIED = 40
_TRIED_EXAMPLES = 512
_LONGEST = 300
# Points of the curve of epsilon.
_PARTS = 24


@dataclass(frozen=True)
class _Planned:
    """A run before it starts: CPU seconds of planning, and the seconds of the whole run without encryption, if measured."""

    config: Config
    plan: RunPlan
    clients: int
    cpu_seconds: float
    parameters: int | None
    seconds: float | None = None


def plan(
    file: Path,
    assignments: Sequence[str],
    *,
    compare: bool,
    thorough: bool,
    plot: Path | None,
    measure: bool,
    allow_import: bool,
    as_json: bool,
) -> None:
    """Print privacy, noise and cost of the run that a config and ``--set`` flags describe, and its alternatives."""
    for flag, given in (("--thorough", thorough), ("--plot", plot)):
        if given and not compare:
            raise ConfigError(f"{flag} with --no-alternatives: concerns alternatives; leave one of them out")
    layer, named = configs.load(file), configs.overrides(assignments)
    say(console(stderr=as_json), *configs.replaced(layer, named, str(file)))
    made = _planned(configs.resolve(layer, named), allow_import=allow_import, measure=measure)
    say(console(stderr=as_json), *noise_for_earlier_runs(made.config, made.plan))
    made.plan.promise().require_delta(made.plan.delta, made.parameters)
    promised, costs = made.plan.promised, _costs(made)
    among = _found(made, plot, thorough=thorough) if compare else None
    sizes = cohort_sizes(made.config, made.clients, made.plan) if compare else ()
    counts = round_counts(made.config, made.clients, made.plan, sizes)
    command = partial(_command, file, assignments, allow_import=allow_import)
    if among is not None and plot is not None:
        _draw(plot, file.stem, among, made)
    if as_json:
        compared = {} if among is None else _compared_json(among, made, command) | _sizes_json(sizes, counts)
        print_json({**promised.as_json(), **costs, **compared})
        return
    screen = console()
    print_table("Privacy", guarantee_rows(promised))
    for words in promised_words(promised, made.clients):
        say(screen, "", words)
    say(screen, "")
    print_table("Noise", dict(_noise_rows(costs)))
    say(screen, "")
    print_table("Cost", dict(_cost_rows(costs, made.plan.privacy_unit)))
    if among is not None:
        _show(among, made, command)
    if sizes:
        _show_sizes(sizes, counts, made.plan.privacy_unit, command)
    if not measure:
        say(screen, "", "With --measure: how long the run takes, from the data and the model.")


def _planned(config: Config, *, allow_import: bool, measure: bool) -> _Planned:
    clients, started = units_of(config), time.process_time()
    if clients is not None and not measure:
        made = planned(config, clients, allow_import=allow_import)
        return _Planned(config, made, clients, time.process_time() - started, parameters_of(config))
    from hubbub.experiment.build import build

    run = build(config, allow_import=allow_import)
    planning = time.process_time() - started
    parameters, seconds = _measured(run) if measure else (parameters_of(config), None)
    return _Planned(config, run.plan, len(run.population.clients), planning, parameters, seconds)


def _measured(run: "Run") -> tuple[int, float]:
    """The model's parameters and the run's seconds, extrapolated from a few clients after a warm-up."""
    from hubbub.training.simulation.functional import FlatModel

    population, first = run.population, run.plan.clip_norms.first
    cohort = math.ceil(run.plan.expected_cohort_size)
    population.prepare(run.model, cohort)
    # More single examples, since many are processed at once.
    tried = _TRIED_EXAMPLES if run.plan.privacy_unit == "example" else _TRIED
    clients = list(population.clients)[: min(tried, cohort)]
    population.collect(clients, run.model, first, 0)
    started = time.perf_counter()
    population.collect(clients, run.model, first, 0)
    each = (time.perf_counter() - started) / len(clients)
    return FlatModel(run.model).dim, each * run.plan.expected_cohort_size * run.plan.rounds


def _costs(made: _Planned) -> dict[str, Any]:
    """The cost by JSON key; ``None`` is unknown or absent."""
    plan, parameters, seconds = made.plan, made.parameters, made.seconds
    terms = encryption_of(made.config, plan.expected_cohort_size)
    noise = estimates.noise_estimate(plan, parameters, terms.noise_rows if terms else 0)
    rows, nproc = estimates.remembered_rows(plan), made.config.training.nproc
    encryption = estimates.encryption_costs(plan, terms, parameters, made.clients) if terms and parameters else {}
    if seconds is not None and encryption:
        each = encryption["encrypt_seconds"] * plan.expected_cohort_size
        seconds += (each + encryption["add_seconds"] + encryption["open_seconds"]) * plan.rounds
    if seconds is not None:
        # What ranks exchange takes some hundredths of a round.
        seconds /= nproc
    kept = plan.rounds if made.config.training.keep_releases else 0
    return {
        "rounds": plan.rounds,
        "clients": made.clients,
        "expected_cohort_size": plan.expected_cohort_size,
        "clip_norm": plan.clip_norms.first,
        "clip_norm_moves": bool(plan.clip_norms.further),
        "update_noise_multiplier": plan.clip_norms.split.update_multiplier if plan.clip_norms.split else None,
        "epsilon_after": estimates.epsilons(plan.promise(), plan.delta) if plan.mechanism else None,
        "noise_stddev_on_mean": noise["mean_stddev"] if noise else None,
        "noise": noise,
        "noise_rows": rows,
        "parameters": parameters,
        "nproc": nproc,
        "noise_memory_bytes": estimates.remembered_bytes(rows, plan, parameters),
        "noise_memory_bytes_of_each": estimates.remembered_bytes(rows, plan, parameters, nproc),
        "releases_bytes": kept * plan.release_bytes(parameters) if kept and parameters else None,
        "planning_cpu_seconds": made.cpu_seconds,
        "estimated_seconds": seconds,
        **encryption,
    }


def _noise_rows(costs: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of the table of noise; privacy costs are rounded up."""
    noise, after = costs["noise"], costs["epsilon_after"]
    if after is None:
        yield "noise", "none"
        return
    yield "epsilon after rounds", ", ".join(f"{rounds:,}: {rounded_up(epsilon)}" for rounds, epsilon in after)
    if noise is None:
        yield "noise in each round", "not computed for this many rounds of this strategy"
        return
    yield "first clip norm" if costs["clip_norm_moves"] else "clip norm", f"{costs['clip_norm']:g}"
    yield "noise, standard deviation", f"{noise['sum_stddev']:.4g} on each parameter of a sum"
    for name, key, prefix in (
        ("of a mean over the cohort", "mean_stddev", ""),
        ("of the model after all rounds", "model_stddev", "final_"),
    ):
        ratio = noise[f"{prefix}signal_to_noise"]
        signal = "" if ratio is None else f"; signal to noise ≤ {ratio:.3g}"
        yield name, f"{noise[key]:.4g} on each parameter{signal}"


def _cost_rows(costs: dict[str, Any], unit: str) -> Iterator[tuple[str, str]]:
    """Rows of the table of cost."""
    yield "rounds", f"{costs['rounds']:,}, each of about {costs['expected_cohort_size']:g} of {costs['clients']:,} {unit}s"
    if costs["parameters"] is None:
        yield "parameters", "not known before the model is loaded (--measure)"
    else:
        yield "parameters", f"{costs['parameters']:,}"
    memory, nproc = costs["noise_memory_bytes"], costs["nproc"]
    shared = f"; {_size(costs['noise_memory_bytes_of_each'])} in each of {nproc} processes" if memory and nproc > 1 else ""
    yield "memory of the noise", _memory(costs["noise_rows"], memory) + shared
    if costs["releases_bytes"] is not None:
        yield "disk for all releases", _size(costs["releases_bytes"])
    if "upload_bytes" in costs:
        yield "each client and round", f"sends {_size(costs['upload_bytes'])} in {costs['ciphertexts']:,} ciphertexts"
        yield "each holder and round", f"gets {_size(costs['request_bytes'])}"
        measured = "seconds, measured now on a few ciphertexts"
        yield "to encrypt, one client and round", f"{costs['encrypt_seconds']:.2g} {measured}"
        yield "to add, one round", f"{costs['add_seconds']:.2g} {measured}"
        yield "to decrypt, one round", f"{costs['open_seconds']:.2g} {measured}"
    if costs["estimated_seconds"] is None:
        yield "to optimize and calibrate", f"{costs['planning_cpu_seconds']:.2g} CPU seconds, measured"
    else:
        best = " at best" if nproc > 1 else ""
        yield "time without evaluation", f"about {costs['estimated_seconds']:,.0f} seconds{best}"


def _size(count: float) -> str:
    """Bytes with their unit."""
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count:,.0f} bytes"


def _memory(rows: int | None, needed: int | None) -> str:
    if rows is None:
        return "unknown"
    if needed is None:
        return f"{rows:,} row{'' if rows == 1 else 's'}"
    return _size(needed) if needed else "none"


# Alternatives


def _found(made: _Planned, plot: Path | None, *, thorough: bool) -> Alternatives | None:
    """The alternatives of a run; ``None`` for a run without noise."""
    if made.plan.mechanism is None and plot is None:
        return None
    with console(stderr=True).status("alternatives …"):
        try:
            return alternatives(made.config, made.clients, made.plan, cpu_seconds=made.cpu_seconds, thorough=thorough)
        except ConfigError as refusal:
            if plot is not None:
                raise
            return Alternatives(None, (), {"all alternatives": str(refusal)})


def _bytes(one: Alternative, parameters: int | None) -> int | None:
    return estimates.remembered_bytes(one.memory_rows, one.plan, parameters)


def _compared_json(among: Alternatives, made: _Planned, command: Callable[[Layer], str]) -> dict[str, Any]:
    """Entries of the JSON object."""
    own, (best, why) = among.own, among.recommended
    facts = [
        {
            "strategy": one.strategy,
            "name": one.name,
            "sampling": one.cohorts,
            "noise_multiplier": one.mechanism.noise_multiplier,
            "epsilon": one.epsilon,
            "error": one.error,
            "relative_to_own": one.error / own.error if own else None,
            "memory_rows": one.memory_rows,
            "memory_bytes": _bytes(one, made.parameters),
            "cpu_seconds": one.cpu_seconds,
            "set": flags_of(one.changes),
            "recommended": one is best,
        }
        for one in among.options
    ]
    return {
        "neighbours": facts,
        "recommended": best and {"set": flags_of(best.changes), "command": command(best.changes)},
        "why": why,
        "left_out": dict(among.left_out),
    }


def _command(file: Path, assignments: Sequence[str], changed: Layer, *, allow_import: bool) -> str:
    """The command that trains with changed settings."""
    changes = flags_of(changed)
    keys = {flag.partition("=")[0] for flag in changes}
    if "privacy.epsilon" in keys:
        keys.add("privacy.noise_multiplier")
    kept = [flag for flag in assignments if flag.partition("=")[0].strip() not in keys]
    flags = [f"--set {shlex.quote(flag)}" for flag in (*kept, *changes)] + ["--allow-import"] * allow_import
    return " ".join(["hubbub train", shlex.quote(str(file)), *flags])


def _show(among: Alternatives, made: _Planned, command: Callable[[Layer], str]) -> None:
    """Print the alternatives as a table, the recommendation, and the command that follows it."""
    screen, own, (best, why) = console(), among.own, among.recommended
    if among.options:
        epsilon = best.epsilon if best else max(one.epsilon for one in among.options)
        rows = [
            (
                one.name,
                one.cohorts,
                f"{one.mechanism.noise_multiplier:.5g}",
                f"{one.error:.4g}",
                "-" if own is None else "as it is" if one is own else f"{100 * (one.error / own.error - 1):+.1f} %",
                _memory(one.memory_rows, _bytes(one, made.parameters)),
                "*" if one is best else "",
            )
            for one in among.options
        ]
        say(screen, "", f"Alternatives, all calibrated to the same epsilon ({rounded_up(epsilon)}) and delta, by their error")
        print_columns(grid(("strategy", "cohorts", "noise\nmultiplier", "error", "change", "memory", ""), rows, left=2), WIDE)
        say(
            screen,
            "error: standard deviation of the noise in a coordinate of the model, over rounds, in clip norms and for steps of "
            "size 1. *: recommended.",
        )
    say(screen, *(f"Left out, {name}: {printable(reason, _LONGEST)}" for name, reason in among.left_out.items()))
    if not among.options:
        return
    if best is None:
        say(screen, "", f"Recommended: none of these; {why}.")
    elif best is own:
        say(screen, "", f"Recommended: the settings as they are; {why}.")
    else:
        say(screen, "", f"Recommended: {best.name} ({best.cohorts}); {why}:", f"  {command(best.changes)}")


def _sizes_json(sizes: Sequence[CohortSize], counts: Sequence[CohortSize]) -> dict[str, Any]:
    """Entries of the JSON object for cohort sizes and rounds."""
    return {
        name: [
            {
                "cohort_size": one.size,
                "rounds": one.rounds,
                "noise_multiplier": one.noise_multiplier,
                "noise_stddev_on_mean": one.mean_stddev,
                "noise_stddev_over_run": one.run_stddev,
                "processed": one.processed,
                "processed_relative_to_own": one.processed / _own(sizes).processed,
                "set": flags_of(one.changes),
                "proposed": one is proposed(choices),
            }
            for one in choices
        ]
        for name, choices in (("cohort_sizes", sizes), ("round_counts", counts))
    }


def _own(sizes: Sequence[CohortSize]) -> CohortSize:
    """The size and rounds of the settings as they are."""
    return next(one for one in sizes if not one.changes)


def _show_sizes(sizes: Sequence[CohortSize], counts: Sequence[CohortSize], unit: str, command: Callable[[Layer], str]) -> None:
    """Print the cohort sizes and then the rounds as tables, each with the command that takes what is proposed."""
    screen, own, size = console(), _own(sizes), proposed(sizes).size
    for name, title, rule, choices in (
        (
            "cohort size",
            "Cohort sizes, all calibrated to the same epsilon, delta and rounds",
            f"the smallest with noise in the mean within {100 * NEAR:.0f} % of the least",
            sizes,
        ),
        (
            "rounds",
            f"Rounds with cohorts of {size:,}, all calibrated to the same epsilon and delta",
            f"the fewest with noise over the run within {100 * NEAR:.0f} % of the least. A model that needs more without noise "
            "needs them here, too",
            counts,
        ),
    ):
        if not choices:
            continue
        number, best = attrgetter("size" if choices is sizes else "rounds"), proposed(choices)
        rows = [
            (
                f"{number(one):,}",
                f"{one.noise_multiplier:.5g}",
                f"{one.mean_stddev:.4g}",
                f"{one.run_stddev:.4g}",
                f"{one.processed:,}",
                "as it is" if one is own else f"{one.processed / own.processed:.3g} ×",
                "*" if one is best else "",
            )
            for one in choices
        ]
        head = (name.replace(" ", "\n"), "noise\nmultiplier", "noise in\nthe mean", "over\nthe run", f"{unit}s\nprocessed")
        say(screen, "", title)
        print_columns(grid((*head, "change", ""), rows, left=0), WIDE)
        say(
            screen,
            "noise in the mean: standard deviation of the noise in a coordinate of a round's mean update; over the run: in the "
            "mean of those of all rounds. *: proposed.",
        )
        if best is own:
            say(screen, "", f"Proposed {name}: {number(best):,}, as it is; {rule}.")
        else:
            say(screen, "", f"Proposed {name}: {number(best):,}; {rule}:", f"  {command(best.changes)}")


def _draw(path: Path, name: str, among: Alternatives, made: _Planned) -> None:
    """Draw the alternatives and epsilon over rounds."""
    # Drawing costs a second to import.
    from hubbub.report.pictures import draw_alternatives

    own, (best, _) = among.own, among.recommended
    marks = [
        (
            f"{one.name} ({one.cohorts})",
            one.error,
            _memory(one.memory_rows, _bytes(one, made.parameters)),
            one is own,
            one is best,
        )
        for one in among.options
    ]
    spent = estimates.epsilons(made.plan.promise(), made.plan.delta, _PARTS)
    files.write_atomic(path, draw_alternatives(name, marks, spent), mode=0o644)
