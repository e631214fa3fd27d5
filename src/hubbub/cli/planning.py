"""``hubbub plan``: the privacy, noise and cost of a run before it starts, and its alternatives.

The privacy cost follows from the settings alone: no data or model is loaded, unless the clients are known from the data
only. The time of the run is measured with ``--measure``.
"""

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hubbub._util import files
from hubbub.accounting import PrivacyGuarantee, rounded_up
from hubbub.accounting.statement import no_less, zcdp_standing
from hubbub.accounting.wording import crude_delta
from hubbub.cli.factorize import require_output
from hubbub.cli.output import console, print_columns, print_json, print_table, printable, say
from hubbub.errors import ConfigError
from hubbub.experiment import config as configs
from hubbub.experiment import estimates
from hubbub.experiment.alternatives import Alternative, Alternatives, alternatives, recommended
from hubbub.experiment.alternatives import assignments as flags_of
from hubbub.experiment.config import Config
from hubbub.experiment.planner import parameters_of, planned, units_of, workload_of
from hubbub.experiment.settings import encryption_of
from hubbub.training.plan import RunPlan

if TYPE_CHECKING:
    from hubbub.experiment.build import Run

__all__ = ["Asked", "plan"]

# Clients, or examples, whose training is timed: as many as are trained at once.
_TRIED = 40
_TRIED_EXAMPLES = 512


@dataclass(frozen=True)
class Asked:
    """The flags of the command."""

    alternatives: bool
    thorough: bool
    plot: Path | None
    measure: bool
    allow_import: bool
    as_json: bool


@dataclass(frozen=True)
class _Planned:
    """A run before it starts.

    Args:
        config: Its settings.
        plan: Made from the settings.
        clients: The number of privacy units.
        cpu_seconds: Of planning.
        parameters: Of the model, if known.
        seconds: Of the whole run without encryption, if measured.
    """

    config: Config
    plan: RunPlan
    clients: int
    cpu_seconds: float
    parameters: int | None
    seconds: float | None = None

    @property
    def unit(self) -> str:
        """The privacy unit in a word."""
        return self.plan.privacy_unit


def plan(file: Path, assignments: list[str], asked: Asked) -> None:
    """Print privacy, noise and cost of the run that a config and ``--set`` flags describe, and its alternatives.

    Raises:
        ConfigError: Flags for alternatives with ``--no-alternatives``, or a picture that cannot be written.
    """
    for flag, given in (("--thorough", asked.thorough), ("--plot", asked.plot)):
        if given and not asked.alternatives:
            raise ConfigError(f"{flag} with --no-alternatives: concerns alternatives; leave one of them out")
    require_output("--plot", asked.plot, ".png")
    made = _planned(_settings(file, assignments, asked), allow_import=asked.allow_import, measure=asked.measure)
    promised = made.plan.promise().after(made.plan.rounds, made.plan.delta)
    costs = _costs(made)
    found = _found(made, asked) if asked.alternatives else None
    if found is not None and asked.plot is not None:
        _draw(asked.plot, file.stem, found, made.plan)
    if asked.as_json:
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
        _show(found, file, assignments)
    if not asked.measure:
        say(screen)
        say(screen, "With --measure: how long the run takes, from the data and the model.")


def _settings(file: Path, assignments: list[str], asked: Asked) -> Config:
    """The settings of the file and the flags; prints which budget or noise of the file a flag replaces."""
    layer, named = configs.load(file), configs.overrides(assignments)
    if line := configs.replaced(layer, named, str(file)):
        say(console(stderr=asked.as_json), line)
    return configs.resolve(layer, named)


def _planned(config: Config, *, allow_import: bool, measure: bool) -> _Planned:
    clients = units_of(config)
    if measure or clients is None:
        from hubbub.experiment.build import build

        started = time.process_time()
        run = build(config, allow_import=allow_import)
        planning = time.process_time() - started
        parameters, seconds = _measured(run) if measure else (parameters_of(config), None)
        return _Planned(config, run.plan, len(run.population.clients), planning, parameters, seconds)
    started = time.process_time()
    made = planned(config, clients, allow_import=allow_import)
    return _Planned(config, made, clients, time.process_time() - started, parameters_of(config))


def _costs(made: _Planned) -> dict[str, Any]:
    """The cost by JSON key; ``None`` is unknown or absent."""
    plan, parameters, seconds = made.plan, made.parameters, made.seconds
    terms = encryption_of(made.config, plan.expected_cohort_size)
    noise = estimates.noise_estimate(plan, workload_of(made.config), parameters, terms.noise_rows if terms else 0)
    numbers = None if parameters is None else parameters + plan.clip_norms.further
    rows = estimates.remembered_rows(plan)
    encryption = estimates.encryption_costs(plan, terms, parameters, made.clients) if terms and parameters else {}
    if seconds is not None:
        each = sum(encryption.get(key, 0.0) for key in ("add_seconds", "open_seconds"))
        each += encryption.get("encrypt_seconds", 0.0) * plan.expected_cohort_size
        seconds += each * plan.rounds
    return {
        "rounds": plan.rounds,
        "clients": made.clients,
        "expected_cohort_size": plan.expected_cohort_size,
        "clip_norm": plan.clip_norms.first,
        "clip_norm_moves": bool(plan.clip_norms.further),
        "update_noise_multiplier": plan.clip_norms.split.update_multiplier if plan.clip_norms.split else None,
        "epsilon_after": estimates.epsilons(plan.promise(), plan.delta) if plan.mechanism else None,
        "noise_stddev_on_mean": noise.mean_stddev if noise else None,
        "noise": asdict(noise) if noise else None,
        "noise_rows": rows,
        "parameters": parameters,
        "noise_memory_bytes": None if numbers is None else estimates.remembered_bytes(rows, numbers),
        "releases_bytes": plan.release_bytes(parameters) * plan.rounds
        if parameters and made.config.training.keep_releases
        else None,
        "planning_cpu_seconds": made.cpu_seconds,
        "estimated_seconds": seconds,
        **encryption,
    }


def _privacy_rows(promised: PrivacyGuarantee) -> dict[str, str]:
    """Rows of the table of privacy; privacy costs are rounded up."""
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
        **{name: f"{shown(value)} ({what})" for name, value, shown, what in numbers if value is not None},
        "privacy unit": promised.privacy_unit,
        "neighboring relation": promised.neighboring_relation,
        "accountant": promised.accountant,
    }


def _noise_rows(costs: dict[str, Any]) -> dict[str, str]:
    """Rows of the table of noise."""
    noise, after = costs["noise"], costs["epsilon_after"]
    if after is None:
        return {"noise": "none"}
    rows = {"epsilon after rounds": ", ".join(f"{rounds:,}: {rounded_up(epsilon)}" for rounds, epsilon in after)}
    if noise is None:
        return {**rows, "noise in each round": "not computed for this many rounds of this strategy"}
    first = " (first round's)" if costs["clip_norm_moves"] else ""
    rows[f"clip norm{first}"] = f"{costs['clip_norm']:g}"
    if costs["clip_norm_moves"]:
        rows["noise multiplier of the updates"] = f"{costs['update_noise_multiplier']:.6g}, next to that of the count"
    rows["noise, standard deviation"] = f"{noise['sum_stddev']:.4g} on each parameter of a sum"
    rows["of a mean over the cohort"] = f"{noise['mean_stddev']:.4g} on each parameter{_ratio(noise, '')}"
    rows["of the model after all rounds"] = f"{noise['model_stddev']:.4g} on each parameter{_ratio(noise, 'final_')}"
    return rows


def _ratio(noise: dict[str, Any], when: str) -> str:
    """The norm of the noise and the signal-to-noise ratio, if the number of parameters is known."""
    norm, ratio = noise[f"{when}norm_over_clip"], noise[f"{when}signal_to_noise"]
    if norm is None:
        return ""
    return f"\nin norm {norm:.3g} clip norms; signal to noise ≤ {ratio:.3g}, for a cohort of the expected size"


def _cost_rows(costs: dict[str, Any], made: _Planned) -> dict[str, str]:
    """Rows of the table of cost."""
    words = {"rounds": f"{costs['rounds']:,} of {costs['expected_cohort_size']:g} of {costs['clients']:,} {made.unit}s"}
    rows, kept = costs["noise_rows"], costs["releases_bytes"]
    if made.parameters is None:
        words["parameters"] = "not known before the model is loaded (--measure)"
        words["memory of the noise"] = f"{rows:,} rows of the model's length"
    else:
        words["parameters"] = f"{made.parameters:,}"
        words["memory of the noise"] = (
            f"{_size(costs['noise_memory_bytes'])}: {rows:,} row{'' if rows == 1 else 's'}" if rows else "none"
        )
        words["disk for all releases"] = "none: they are not kept" if kept is None else _size(kept)
    words |= _encryption_rows(costs)
    if made.seconds is None:
        words["to optimize and calibrate"] = f"{costs['planning_cpu_seconds']:.2g} CPU seconds, measured"
    else:
        words["time without evaluation"] = f"about {_duration(costs['estimated_seconds'])}"
    return words


def _encryption_rows(costs: dict[str, Any]) -> dict[str, str]:
    """Rows about encryption."""
    if "upload_bytes" not in costs:
        return {}
    return {
        "each client and round": f"sends {_size(costs['upload_bytes'])} in {costs['ciphertexts']:,} ciphertexts,\ngets "
        f"{_size(costs['download_bytes'])} (the model, 4 bytes a parameter)",
        "each holder and round": f"gets {_size(costs['request_bytes'])}",
        "to encrypt, one client and round": f"{costs['encrypt_seconds']:.2g} seconds",
        "to add, one round": f"{costs['add_seconds']:.2g} seconds",
        "to decrypt, one round": f"{costs['open_seconds']:.2g} seconds, with noise and all holders in turn",
        "these seconds": "measured now, on 8 ciphertexts,\nunder a temporary key",
    }


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


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


_TABLE, _LONGEST = 110, 300
WHAT = "standard deviation of the noise in a coordinate of the model, over rounds, in clip norms and for steps of size 1"
# Points of the curve of epsilon.
_PARTS = 24
# Bytes below which free memory is not checked.
_LARGE = 2**30


@dataclass(frozen=True, eq=False)
class Found:
    """A run's alternatives, the recommended one and why; ``instead`` is a better one with other cohorts."""

    among: Alternatives
    parameters: int | None
    best: Alternative | None
    why: str
    instead: Alternative | None

    def as_json(self, file: Path, assignments: Sequence[str]) -> dict[str, Any]:
        """Entries of a JSON object."""
        best = None
        if self.best is not None:
            best = {"set": flags_of(self.best.changes), "command": _command(self.best, file, assignments)}
        return {
            "neighbours": [self.facts(one) for one in self.among.options],
            "recommended": best,
            "why": self.why,
            "left_out": dict(self.among.left_out),
        }

    def facts(self, one: Alternative) -> dict[str, Any]:
        """The JSON object of one alternative."""
        rows = one.memory_rows
        return {
            "strategy": one.strategy,
            "name": one.name,
            "sampling": one.cohorts,
            "noise_multiplier": one.noise_multiplier,
            "epsilon": one.epsilon,
            "error": one.error,
            "relative_to_own": one.error / self.among.own.error if self.among.own else None,
            "memory_rows": rows,
            "memory_bytes": _bytes(one, self.parameters),
            "cpu_seconds": one.cpu_seconds,
            "set": flags_of(one.changes),
            "recommended": one is self.best,
        }


def _found(made: _Planned, asked: Asked) -> Found | None:
    """The alternatives of a run; ``None`` for a run without noise.

    Raises:
        ConfigError: ``--plot`` without alternatives.
    """
    if made.plan.mechanism is None:
        if asked.plot is not None:
            raise ConfigError(f"--plot {asked.plot}: there is nothing to draw; the run has no noise")
        return None
    with console(stderr=True).status("…") as status:
        try:
            among = alternatives(
                made.config,
                made.clients,
                made.plan,
                cpu_seconds=made.cpu_seconds,
                thorough=asked.thorough,
                progress=lambda name: status.update(f"{name} …"),
            )
        except ConfigError as refusal:
            if asked.plot is not None:
                raise
            among = Alternatives(None, (), {"all alternatives": str(refusal)})
    best, why = recommended(among, lambda one: _fits(one, made.parameters))
    others = [one for one in among.options if best is None or one.error < best.error / (1 + 0.02)]
    instead = next((one for one in others if _fits(one, made.parameters)), None)
    return Found(among, made.parameters, best, why, instead if best is not None and instead is not best else None)


def _command(one: Alternative, file: Path, assignments: Sequence[str]) -> str:
    """The command that trains with an alternative."""
    changes = flags_of(one.changes)
    keys = {flag.partition("=")[0] for flag in changes}
    if "privacy.epsilon" in keys:
        keys.add("privacy.noise_multiplier")
    kept = [flag for flag in assignments if flag.partition("=")[0].strip() not in keys]
    return " ".join(["hubbub train", shlex.quote(str(file)), *(f"--set {shlex.quote(flag)}" for flag in (*kept, *changes))])


def _show(found: Found, file: Path, assignments: Sequence[str]) -> None:
    """Print the alternatives as a table, the recommendation, and the command that follows it."""
    screen, own = console(), found.among.own
    if not found.among.options:
        _say_left_out(found)
        return
    epsilon = found.best.epsilon if found.best else max(one.epsilon for one in found.among.options)
    say(screen)
    say(screen, f"Alternatives, all calibrated to the same epsilon ({rounded_up(epsilon)}) and delta, by their error")
    narrow = screen.is_terminal and screen.width < _TABLE
    print_columns(_table(found, own, narrow=narrow))
    times = "--json has their epsilons and times" if narrow else "CPU s: to optimize the strategy and calibrate its noise"
    say(screen, f"error: {WHAT}. {times}. *: recommended.")
    _say_left_out(found)
    _recommend(found, file, assignments)


def _table(found: Found, own: Alternative | None, *, narrow: bool) -> Table:
    """One line for each alternative; a narrow terminal omits epsilon and time."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0) if narrow else (0, 1))
    table.add_column("strategy")
    table.add_column("cohorts", no_wrap=True)
    numbers = ["noise\nmultiplier", "error", "change", "memory"]
    if not narrow:
        numbers = ["noise multiplier", "epsilon", *numbers[1:], "CPU s"]
    for column in (*numbers, ""):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found.among.options:
        cells = [
            one.name,
            one.cohorts,
            f"{one.noise_multiplier:.5g}",
            f"{one.error:.4g}",
            "-" if own is None else "as it is" if one is own else f"{100 * (one.error / own.error - 1):+.1f} %",
            _memory(one, found.parameters),
        ]
        if not narrow:
            cells = [*cells[:3], rounded_up(one.epsilon), *cells[3:], f"{one.cpu_seconds:.2f}"]
        table.add_row(*cells, "*" if one is found.best else "")
    return table


def _say_left_out(found: Found) -> None:
    for name, reason in found.among.left_out.items():
        say(console(), f"Left out, {name}: {printable(reason, _LONGEST)}")


def _recommend(found: Found, file: Path, assignments: Sequence[str]) -> None:
    screen = console()
    say(screen)
    if found.best is None:
        say(screen, f"Recommended: none of these; {found.why}.")
        return
    if found.best is found.among.own:
        say(screen, f"Recommended: the settings as they are; {found.why}.")
    else:
        say(screen, f"Recommended: {found.best.name} ({found.best.cohorts}); {found.why}:")
        say(screen, f"  {_command(found.best, file, assignments)}")
    if found.instead is not None:
        less = 100 * (1 - found.instead.error / found.best.error)
        say(
            screen,
            f"With random cohorts that stay secret and that nobody can check afterwards ({found.instead.cohorts}), "
            f"{found.instead.name} has {less:.0f} % less error:",
        )
        say(screen, f"  {_command(found.instead, file, assignments)}")


def _draw(path: Path, name: str, found: Found, plan: RunPlan) -> None:
    """Draw the alternatives and epsilon over rounds."""
    # Drawing costs a second to import.
    from hubbub.report.pictures import Alternative as Bar
    from hubbub.report.pictures import draw_alternatives

    marks = [
        Bar(f"{one.name} ({one.cohorts})", one.error, _memory(one, found.parameters), one is found.among.own, one is found.best)
        for one in found.among.options
    ]
    spent = estimates.epsilons(plan.promise(), plan.delta, _PARTS)
    files.write_atomic(path, draw_alternatives(name, marks, spent), mode=0o644)


def _size(count: float) -> str:
    """Bytes with their unit."""
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count:,.0f} bytes"


def _bytes(one: Alternative, parameters: int | None) -> int | None:
    rows = one.memory_rows
    if rows is None or parameters is None:
        return None
    return estimates.remembered_bytes(rows, parameters + one.plan.clip_norms.further)


def _memory(one: Alternative, parameters: int | None) -> str:
    needed = _bytes(one, parameters)
    if needed is not None:
        return _size(needed) if needed else "none"
    return "unknown" if one.memory_rows is None else f"{one.memory_rows:,} rows"


def _fits(one: Alternative, parameters: int | None) -> bool:
    """Whether this machine has memory for the rows of noise that are kept."""
    needed = _bytes(one, parameters)
    if needed is None or needed < _LARGE or parameters is None:
        return True
    import torch

    from hubbub.noise.stream import require_memory

    try:
        require_memory(one.memory_rows or 0, parameters, torch.empty(0, dtype=torch.float64))
    except ConfigError:
        return False
    return True
