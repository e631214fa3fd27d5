"""The report of one or several runs as one page that opens anywhere: no other file, no network, light, dark and in print."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from hubbub.accounting import rounded_up
from hubbub.accounting.statement import library_versions, no_less, zcdp_standing
from hubbub.report import charts
from hubbub.report.citations import bibtex, cited
from hubbub.report.summary import RunSummary, whose

__all__ = ["Chart", "costs", "page", "rendered", "some"]

# The tables below a chart have at most this many rows.
_MOST_ROWS = 12


@dataclass(frozen=True)
class Chart:
    """A picture with what it shows.

    Args:
        title: In a few words.
        picture: An ``<svg>``.
        about: What to see in it.
        private: Whether it was computed from clients' data or shows who took part.
    """

    title: str
    picture: str
    about: str
    private: bool = False


def page(runs: Sequence[RunSummary], *, public: bool = False) -> str:
    """The page.

    Args:
        runs: One, or several that are laid over one another.
        public: Whether to leave out what was computed from clients' data.

    Returns:
        HTML in one piece.
    """
    names = [run.name for run in runs]
    # Runs in folders of the same name are distinguished by their numbers.
    runs = [
        replace(run, number=number, name=f"{run.name} ({number + 1})" if names.count(run.name) > 1 else run.name)
        for number, run in enumerate(runs)
    ]
    keys = list(dict.fromkeys(key for run in runs for key in cited(run)))
    return rendered(
        "report.html",
        title=" and ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs",
        runs=[_run(run, public=public) for run in runs],
        charts=[chart for chart in _charts(runs, public=public) if chart.picture and not (public and chart.private)],
        public=public,
        references=bibtex(keys),
    )


def rendered(template: str, **values: Any) -> str:
    """A template of the package with values in it; text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("hubbub.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(**values)


def some(rows: Sequence[Any], most: int) -> list[Any]:
    """At most a number of rows, the first and the last among them.

    Example:
        >>> some(range(100), most=4)
        [0, 33, 66, 99]
    """
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def _run(run: RunSummary, *, public: bool) -> dict[str, Any]:
    """What the template says of a run."""
    guarantee = run.guarantee
    last = next((row for row in reversed(run.rows) if row.get("accuracy") is not None), None)
    return {
        "name": run.name,
        "state": run.state,
        "begun": len(run.recorded.history.rounds),
        "planned": run.recorded.promise.rounds,
        "aborted": [i + 1 for i, entry in enumerate(run.recorded.history.rounds) if entry.state == "aborted"],
        "guarantee": guarantee,
        "epsilon": rounded_up(guarantee.epsilon) if guarantee.private else "∞",
        "delta": no_less(guarantee.delta),
        "warnings": run.cost.public_warnings() if public else run.cost.warnings(),
        "accuracy": last and last["accuracy"],
        "loss": last and last["loss"],
        "held_out": None if run.public else f"held-out {whose(guarantee)}",
        "facts": list(_facts(run)),
        "curve": [(no_less(delta), rounded_up(epsilon)) for delta, epsilon in guarantee.curve] if guarantee.private else [],
        "others": [
            (other.neighboring_relation, "–" if other.epsilon is None else rounded_up(other.epsilon), other.why)
            for other in guarantee.other_relations
        ]
        if guarantee.private
        else [],
        "statement": run.statement() if guarantee.private else "",
        "table": _table(run),
        "costs": list(costs(run)),
        "audit": _audit(run),
        "config": run.config.strip(),
        "head": run.recorded.chain.head,
        "versions": library_versions(),
    }


def _audit(run: RunSummary) -> dict[str, Any] | None:
    """What the template says of an audit."""
    found = run.audit
    if found is None:
        return None
    from hubbub.report.audit import audit_rows

    stated = found["stated"]
    return {
        "sentence": found["sentence"],
        "broken": found["verdict"] != "holds",
        "epsilon": f"{run.audited_epsilon:g}",
        "stated": rounded_up(stated["epsilon"]),
        "rounds": stated["rounds"],
        "bounds": audit_rows(found),
        "passed": [check["name"] for check in found["checks"] if check["passed"]],
        "failed": [check["name"] for check in found["checks"] if not check["passed"]],
        "notes": found["notes"],
    }


def _facts(run: RunSummary) -> Iterator[tuple[str, str]]:
    guarantee, settings = run.guarantee, run.recorded.promise.settings
    yield "unit", f"one {guarantee.privacy_unit}"
    if not guarantee.private:
        return
    yield "neighboring relation", guarantee.neighboring_relation
    yield "mechanism", guarantee.mechanism
    yield "accountant", guarantee.accountant
    if guarantee.noise_multiplier is not None:
        yield (
            "noise multiplier",
            f"{guarantee.noise_multiplier:.6g} (noise over clip norm {guarantee.clip_noise_multiplier:.6g})",
        )
    if guarantee.l2_sensitivity is not None:
        standing = "exact" if guarantee.sensitivity_exact else "a bound from above"
        yield f"sensitivity of {guarantee.sensitivity_of}", f"{no_less(guarantee.l2_sensitivity)} clip norms, {standing}"
    if "adaptive_clipping" in settings:
        yield "clip norm", "follows a quantile of the updates' norms, by a noised count in the same sum"
    elif isinstance(settings.get("clip_norm"), int | float):
        yield "clip norm", f"{settings['clip_norm']:g}"
    if isinstance(settings.get("expected_cohort_size"), int | float):
        yield "sums are divided by", f"{settings['expected_cohort_size']:g}"
    if guarantee.amplified:
        yield "without amplification", f"epsilon {rounded_up(guarantee.unamplified_epsilon)}"
    if (rho := guarantee.unamplified_zcdp_rho) is not None:
        yield "zero-concentrated DP", f"ρ = {rounded_up(rho)}{zcdp_standing(guarantee)}"
    if guarantee.setting:
        yield "who is trusted with what", guarantee.setting


def _table(run: RunSummary) -> list[tuple[int, str, str, str]]:
    """Rounds that were evaluated: number, accuracy, loss, epsilon."""
    rows = [row for row in run.rows if row.get("accuracy") is not None]
    return [
        (
            row["round_index"] + 1,
            f"{row['accuracy']:.2%}",
            "not finite" if row["loss"] is None else f"{row['loss']:.4f}",
            rounded_up(run.epsilon_after(row["round_index"] + 1)),
        )
        for row in some(rows, _MOST_ROWS)
    ]


def _charts(runs: Sequence[RunSummary], *, public: bool) -> Iterator[Chart]:
    evaluated = [run for run in runs if run.public] if public else runs
    held_out = [run.name for run in evaluated if not run.public]
    about = "On public test data."
    if held_out:
        whose = "" if len(held_out) == len(evaluated) else f"{', '.join(held_out)}: "
        about = f"{whose}on held-out training data, without noise: for choosing settings, not for release."
        about = about[0].upper() + about[1:] if not whose else f"On public test data; {about}"
    yield Chart("Accuracy", charts.over_rounds(evaluated, "accuracy", "accuracy", percent=True), about, private=bool(held_out))
    yield Chart("Loss", charts.over_rounds(evaluated, "loss", "loss"), about, private=bool(held_out))
    for name in charts.measured_names(runs):
        about = "What clients measured on their own data, under noise that epsilon counts: bars of two standard errors of it."
        yield Chart(f"Clients' {name}", charts.measured(runs, name), about)
    yield Chart("Epsilon", charts.epsilon(runs), "What the rounds have cost, each as it was begun.")
    yield Chart(
        "Noise against signal",
        charts.strength(runs),
        "Of public numbers alone: the released sums, and the noise that the mechanism adds to each. The sum without its noise "
        "is estimated from both; where it is far below the noise, only many rounds together teach the model anything.",
    )
    norms = charts.over_rounds(runs, "clip_norm", "clip norm")
    yield Chart("Clip norm", norms, "As it followed the noised count of updates that were not clipped.")
    clipped = charts.over_rounds(runs, "clipped_fraction", "updates clipped", percent=True)
    yield Chart("Clipped", clipped, "The part of each round's updates that were clipped.", private=True)
    for run in runs:
        of = f" of {run.name}" if len(runs) > 1 else ""
        yield Chart(
            f"The strategy{of}",
            charts.strategy_matrix(run),
            "C, by which the noise is correlated: column t is what one contribution in round t touches.",
        )
        yield Chart(
            f"The noise of rounds together{of}",
            charts.noise_matrix(run),
            "Row t of C⁻¹ makes the noise of round t: red adds fresh noise, blue takes away what earlier rounds added.",
        )
        found = run.participation
        if found is not None:
            gap = "" if found.least_gap in (None, 1) else f" Nobody came again before {found.least_gap} rounds were over."
            about = f"Promised: {found.promised}.{gap}"
            yield Chart(f"Participation{of}", charts.participations(run), about, private=True)
    seconds = charts.over_rounds(runs, "seconds", "seconds a round", zero=True)
    yield Chart("Time", seconds, "Seconds of each round, all of it.", private=True)
    mean = "A round, on average; what is shorter than a microsecond stands at its mark."
    yield Chart("Where the time went", charts.phases(runs), "In all rounds." if len(runs) == 1 else mean, private=True)
    for run in runs:
        of = f" of {run.name}" if len(runs) > 1 else ""
        about = "Seconds of each round that went into encryption, adding and opening."
        yield Chart(f"Encryption{of}", charts.encryption(run), about, private=True)
        if run.audit is not None:
            from hubbub.report.audit import audit_bounds, audit_scores

            bounds = "What canaries showed of epsilon: a narrow bar beyond the line of what is stated disproves the guarantee."
            yield Chart(f"Audit{of}", audit_bounds(run.audit), bounds)
            scores = "Canaries that were there and that were not, as an adversary scores them, and what is claimed."
            yield Chart(f"What an adversary sees{of}", audit_scores(run.audit), scores, private=True)


# What takes time in a round, by the key of a row of metrics.
_SECONDS = {
    "seconds": "a whole round",
    "encrypt_seconds": "encrypt, all clients one after the other",
    "aggregate_seconds": "add what is encrypted, server",
    "decrypt_seconds": "open the sum, holders of the key",
}


def costs(run: RunSummary) -> Iterator[tuple[str, str, str, str]]:
    """Rows of a table: what it is, the median of a round, the largest, and all rounds together; a dash where none is known."""
    for key, words in _SECONDS.items():
        values = [row[key] for row in run.rows if row.get(key) is not None]
        if values:
            yield words, _time(median(values)), _time(max(values)), _time(sum(values))
    phases: list[Mapping[str, float]] = [row["phases"] for row in run.rows if row.get("phases")]
    for name in charts.phase_seconds(run):
        values = [each.get(name, 0.0) for each in phases]
        yield f"– {charts.PHASES[name]}", _time(median(values)), _time(max(values)), _time(sum(values))
    rows = [row for row in run.rows if row.get("upload_bytes") is not None]
    if rows:
        sizes = [row["upload_bytes"] for row in rows]
        yield "one client sends", _size(median(sizes)), _size(max(sizes)), "–"
        together = [row["upload_bytes"] * (row["clients"] or 0) for row in rows]
        yield "all clients send", _size(median(together)), _size(max(together)), _size(sum(together))


def _time(seconds: float) -> str:
    if seconds >= 600:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds:,.3g} s" if seconds >= 0.1 else f"{1000 * seconds:,.3g} ms"


def _size(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e7 else f"{count / 1000:,.0f} kB"
