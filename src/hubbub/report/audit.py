"""What an audit found: its files, its charts for a page, and whether it is of the run in whose report it stands."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hubbub._util import strict_json
from hubbub._util.checks import Array, open_unit, shown
from hubbub._util.files import make_folder, read, write_atomic
from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.errors import ConfigError, RunFolderError
from hubbub.report import drawing
from hubbub.report.drawing import INK, SERIES, canvas, figure, legible, png, styled
from hubbub.report.summary import RunSummary

__all__ = ["AUDIT", "audit_bounds", "audit_rows", "audit_scores", "read_audit", "with_audit", "write_audit"]

_Found = Mapping[str, Any]
# Where an audit lies in the folder of its run, if somebody put it there: hubbub audit RUN/config.toml --out RUN/audit.
AUDIT = Path("audit", "audit.json")
_LARGEST = 2**27
_MANY = 10**7
# What says how a run is computed, where things lie, or what is looked at: no adversary sees a difference.
_OF_NO_MATTER = {
    "training": {"plan", "workers", "evaluate_every", "keep_releases", "free_disk", "fairness"},
    "privacy": {"noise", "earlier_runs"},
    "data": {"path"},
    "secagg": {"keys"},
    "heads": {"command", "url", "key", "required"},
}
# Two machines add up differently in the last digits.
_ALIKE = 1e-6


def write_audit(folder: Path, name: str, found: _Found) -> None:
    """Write ``audit.json``, ``audit.png`` and ``audit.md`` into a folder."""
    make_folder(folder)
    write_atomic(folder / "audit.json", strict_json.canonical(found))
    write_atomic(folder / "audit.png", _picture(name, found))
    write_atomic(folder / "audit.md", _markdown(name, found).encode())


def audit_rows(found: _Found) -> list[tuple[str, str, str, str, str]]:
    """A row for each comparison: what it is, what is stated, the lower bounds at 95 % and at 1 − 10⁻⁶, and a verdict."""

    def down(bound: _Found) -> str:
        return f"{math.floor(bound['epsilon'] * 1e3) / 1e3:.3f}"

    return [
        (
            one["what"],
            "∞" if one["stated_epsilon"] is None else rounded_up(one["stated_epsilon"]),
            down(one["shown"]),
            down(one["certain"]),
            "holds" if one["holds"] else "BROKEN",
        )
        for one in found["comparisons"]
    ]


def _markdown(name: str, found: _Found) -> str:
    """The audit as Markdown: the verdict, each bound against what is stated, each test, and what all of it means."""
    stated = found["stated"]
    lines = [
        f"# Audit of {name}",
        "",
        f"**{found['sentence']}**",
        "",
        f"Audited: {stated['mechanism']}; ({rounded_up(stated['epsilon'])}, {no_less(stated['delta'])})-differential privacy "
        f"for each {stated['privacy_unit']} ({stated['neighboring_relation']} relation) over {stated['rounds']} rounds. "
        f"In each of {found['runs']} runs, with new keys, each of {found['canaries']} canaries was present with probability "
        "1/2.",
        "",
        "![lower bounds and the stated epsilon, and the scores of the canaries](audit.png)",
        "",
        "| epsilon, by | stated, at most | at least, with confidence 95 % | at least, with confidence 1 − 10⁻⁶ | |",
        "|---|---|---|---|---|",
        *("| " + " | ".join(row).replace("BROKEN", "**BROKEN**") + " |" for row in audit_rows(found)),
        "",
        "| test | measured | a right system | |",
        "|---|---|---|---|",
        *(_check(one) for one in found["checks"]),
        "",
        *(f"* {note}" for note in found["notes"]),
        *([""] if found["notes"] else []),
        "A lower bound at 1 − 10⁻⁶ above what is stated shows that the system or the accounting is wrong, but for a chance of "
        "10⁻⁶; in a right system one at 95 % is above once in twenty times at most. One below proves nothing: these canaries "
        "and these tests are some of all that could be tried. A test of the noise that fails shows that the system is not the "
        "one that is stated, whatever the bounds.",
        "",
        "## What the bounds assume",
        "",
        *(f"* {one['what']}: {one['certain']['statement']}" for one in found["comparisons"]),
        "",
    ]
    return "\n".join(lines)


def _check(one: _Found) -> str:
    low, high = one["low"], one["high"]
    allowed = f"{high:.4g}" if low == high else f"at most {high:.4g}" if not low else f"{low:.4g} to {high:.4g}"
    return f"| {one['name']} | {one['value']:.4g} | {allowed} | {'passed' if one['passed'] else '**FAILED**'} |"


@dataclass(frozen=True)
class _Look:
    """Colours, how many words of a legend stand in a row, and what a score is."""

    present: str
    absent: str
    stated: str
    columns: tuple[int, int]
    score: str


_PICTURE = _Look(
    "#b5542b", "#1b6ca8", "#333333", (3, 2), "score of a canary, its rounds known, in standard deviations of the noise"
)
_PAGE = _Look(SERIES[1], SERIES[0], INK, (1, 1), "score, in standard deviations of the noise")


def _picture(name: str, found: _Found) -> bytes:
    """A PNG: above, each lower bound and the epsilon that it must not pass; below, scores and the claimed laws."""
    made = canvas(8, 6.5)
    above, below = made.subplots(2, 1, height_ratios=(2, 3))
    _draw_bounds(above, found, _PICTURE)
    _draw_scores(below, found, _PICTURE)
    color = _PICTURE.stated if found["verdict"] == "holds" else "#b00020"
    title = f"Audit of {legible(name)}: {found['verdict']}"
    made.suptitle(title, x=0.01, ha="left", fontweight="bold", color=color)
    return png(made)


@styled
def audit_bounds(found: _Found) -> str:
    """An SVG for a page: each lower bound and the epsilon that it must not pass."""
    made, axes = figure()
    _draw_bounds(axes, found, _PAGE)
    said = "; ".join(f"{one['what']}: at least {one['shown']['epsilon']:.3g}" for one in found["comparisons"])
    return drawing.shown(made, f"What the audit showed of epsilon: {said}")


@styled
def audit_scores(found: _Found) -> str:
    """An SVG for a page: the scores of the canaries and the claimed laws."""
    made, axes = figure(3.2)
    _draw_scores(axes, found, _PAGE)
    return drawing.shown(made, "Scores of the canaries and the laws that are claimed")


def _draw_bounds(axes: Any, found: _Found, look: _Look) -> None:
    comparisons = found["comparisons"][::-1]
    values = [1e-9]
    for height, one in enumerate(comparisons):
        likely, certain, stated = one["shown"]["epsilon"], one["certain"]["epsilon"], one["stated_epsilon"]
        axes.barh(height, likely, height=0.5, color=look.absent, alpha=0.35, label="shown with confidence 95 %")
        axes.barh(height, certain, height=0.25, color=look.absent, label="shown with confidence 1 − 10⁻⁶")
        values += [likely, certain]
        if stated is not None:
            values.append(stated)
            axes.plot([stated] * 2, [height - 0.35, height + 0.35], color=look.stated, linewidth=2.5, label="stated")
            place = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(rounded_up(stated), (stated, height), color=look.stated, **place)
    words = [one["what"].replace(", ", ",\n").replace(": ", ":\n") for one in comparisons]
    axes.set_yticks(range(len(comparisons)), words)
    axes.set_ylim(-0.6, len(comparisons) - 0.4)
    axes.set_xlim(0, max(values) * 1.12)
    axes.set_xlabel(f"epsilon at delta = {found['stated']['delta']:g}")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    where = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "frameon": False}
    axes.legend(unique.values(), unique.keys(), ncols=look.columns[0], **where)


def _draw_scores(axes: Any, found: _Found, look: _Look) -> None:
    present, absent, means = (np.asarray(found["scores"][key], dtype=np.float64) for key in ("present", "absent", "means"))
    everything = np.concatenate([present, absent])
    # Of a broken system a few may be far out.
    low = min(float(everything.min()) - 0.5, -4.0)
    high = max(float(everything.max()) + 0.5, float(means.max()) + 4.0)
    bins = np.linspace(low, high, 41)
    for scores, color, label in ((absent, look.absent, "absent"), (present, look.present, "present")):
        axes.hist(scores, bins=bins, density=True, color=color, alpha=0.35, label=f"{len(scores):,} {label}")
    x = np.linspace(low, high, 500)
    axes.plot(x, _normal(x[:, None]).mean(axis=1), color=look.absent, label="claimed, if absent: N(0, 1)")
    law = "claimed, if present" + (f": N({means[0]:.3g}, 1)" if float(np.ptp(means)) < 1e-9 else ", by its rounds")
    axes.plot(x, _normal(x[:, None] - means[None, :]).mean(axis=1), color=look.present, label=law)
    axes.set_xlabel(look.score)
    axes.set_ylabel("density")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=look.columns[1], frameon=False)


def _normal(x: Array) -> Array:
    density: Array = np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)
    return density


_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Epsilon = Annotated[_Finite, Field(ge=0)]


class _Part(BaseModel):
    """A part of ``audit.json``: what a report reads of it, of the right types; more may stand there."""

    model_config = ConfigDict(strict=True)


class _Stated(_Part):
    epsilon: _Epsilon
    delta: float
    rounds: Annotated[int, Field(ge=1)]
    mechanism: str
    privacy_unit: str
    neighboring_relation: str


class _Bound(_Part):
    epsilon: _Epsilon


class _Comparison(_Part):
    what: str
    stated_epsilon: _Epsilon | None
    holds: bool
    shown: _Bound
    certain: _Bound


class _Checked(_Part):
    name: str
    value: _Finite
    passed: bool


_Scored = Annotated[list[_Finite], Field(min_length=1, max_length=_MANY)]


class _Scores(_Part):
    present: _Scored
    absent: _Scored
    means: _Scored


class _Audit(_Part):
    sentence: str
    verdict: str
    stated: _Stated
    settings: dict[str, dict[str, Any]]
    comparisons: list[_Comparison]
    checks: list[_Checked]
    notes: list[str]
    scores: _Scores


def read_audit(path: Path) -> _Found:
    """The findings of ``hubbub audit``, from ``audit.json`` or the folder in which it lies.

    Raises:
        ConfigError: The file is missing, or is no audit.
    """
    file = path / "audit.json" if path.is_dir() else path
    try:
        found: _Found = strict_json.loads(read(file, at_most=_LARGEST))
        open_unit("stated.delta", _Audit.model_validate(found).stated.delta)
    except OSError as error:
        raise ConfigError(
            f"--audit {file}: cannot be read ({error.strerror}); name the audit.json of 'hubbub audit'"
        ) from error
    except (ValueError, TypeError, OverflowError) as error:
        what = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ConfigError(f"--audit {file}: is no audit of this version ({what}); make it with 'hubbub audit'") from error
    return found


def with_audit(run: RunSummary, found: _Found) -> RunSummary:
    """The run with what an audit found.

    Raises:
        RunFolderError: The audit is of other settings; the first difference is named.
    """
    for what, of_run, of_audit in _differences(run, found):
        there, here = ("not set" if value is None else shown(value) for value in (of_audit, of_run))
        raise RunFolderError(
            f"{run.name}: the audit is of another run: {what} is {there} there and {here} here; audit this "
            "one with 'hubbub audit RUN/config.toml --out RUN/audit'"
        )
    return replace(run, audit=found)


def _differences(run: RunSummary, found: _Found) -> Iterator[tuple[str, Any, Any]]:
    """What is not the same: in which words, of the run, of the audit."""
    stated, rounds, promise = found["stated"], found["stated"]["rounds"], run.recorded.promise
    if promise.mechanism is None:
        yield "epsilon", "infinite", rounded_up(stated["epsilon"])
        return
    if rounds > promise.rounds:
        yield "rounds", promise.rounds, rounds
        return
    of_run = replace(promise, earlier=()).after(rounds, promise.delta)
    for name in ("delta", "privacy_unit", "neighboring_relation", "mechanism"):
        if stated[name] != getattr(of_run, name):
            yield name.replace("_", " "), getattr(of_run, name), stated[name]
    mine, theirs = run.settings, found["settings"]
    for section in sorted({*mine, *theirs}):
        here, there = mine.get(section, {}), theirs.get(section, {})
        for name in sorted({*here, *there} - _OF_NO_MATTER.get(section, set())):
            if here.get(name) != there.get(name):
                yield f"{section}.{name}", here.get(name), there.get(name)
    if not math.isclose(stated["epsilon"], of_run.epsilon, rel_tol=_ALIKE):
        yield f"the epsilon of {rounds} rounds", of_run.epsilon, stated["epsilon"]
