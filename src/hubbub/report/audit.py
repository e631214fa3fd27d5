"""What an audit found, in words and as a picture, from its numbers as strict JSON values."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hubbub import strict_json
from hubbub._checks import Array
from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.files import make_folder, write_atomic
from hubbub.report.svg import INK, SERIES, figure, legible, shown, styled

__all__ = ["audit_bounds", "audit_markdown", "audit_scores", "draw_audit", "write_audit"]

_Found = Mapping[str, Any]


@dataclass(frozen=True)
class _Look:
    """Colours, how many words of a legend stand beside one another, and what a score is."""

    present: str
    absent: str
    stated: str
    columns: tuple[int, int]
    score: str


_PICTURE = _Look(
    "#b5542b", "#1b6ca8", "#333333", (3, 2), "score of a canary, its rounds known, in standard deviations of the noise"
)
_PAGE = _Look(SERIES[1], SERIES[0], INK, (1, 1), "score, in standard deviations of the noise")


def write_audit(folder: Path, name: str, found: _Found) -> None:
    """Write ``audit.json``, ``audit.png`` and ``audit.md`` into a folder."""
    make_folder(folder)
    write_atomic(folder / "audit.json", strict_json.canonical(found))
    write_atomic(folder / "audit.png", draw_audit(name, found))
    write_atomic(folder / "audit.md", audit_markdown(name, found).encode())


def audit_markdown(name: str, found: _Found) -> str:
    """The audit as Markdown: the verdict, each bound beside what is stated, each test, and what all of it means."""
    stated = found["stated"]
    lines = [
        f"# Audit of {name}",
        "",
        f"**{found['sentence']}**",
        "",
        f"Audited: {stated['mechanism']}; ({rounded_up(stated['epsilon'])}, {no_less(stated['delta'])})-differential privacy "
        f"for each {stated['privacy_unit']} ({stated['neighboring_relation']} relation) over {stated['rounds']} rounds. "
        f"In each of {found['runs']} runs, with new keys, {found['canaries']} canaries were there or not by fair coins.",
        "",
        "![lower bounds beside the stated epsilon, and the scores of the canaries](audit.png)",
        "",
        "| epsilon, by | stated, at most | at least, with confidence 95 % | at least, with confidence 1 − 10⁻⁶ | |",
        "|---|---|---|---|---|",
        *(_comparison(one) for one in found["comparisons"]),
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


def _comparison(one: _Found) -> str:
    verdict = "holds" if one["holds"] else "**BROKEN**"
    stated = "∞" if one["stated_epsilon"] is None else rounded_up(one["stated_epsilon"])
    return f"| {one['what']} | {stated} | {_down(one['shown'])} | {_down(one['certain'])} | {verdict} |"


def _down(bound: _Found) -> str:
    return f"{math.floor(bound['epsilon'] * 1e3) / 1e3:.3f}"


def _check(one: _Found) -> str:
    low, high = one["low"], one["high"]
    if low == high:
        allowed = f"{high:.4g}"
    elif not low:
        allowed = f"at most {high:.4g}"
    else:
        allowed = f"{low:.4g} to {high:.4g}"
    return f"| {one['name']} | {one['value']:.4g} | {allowed} | {'passed' if one['passed'] else '**FAILED**'} |"


def draw_audit(name: str, found: _Found) -> bytes:
    """A PNG: above, each lower bound beside the epsilon that it must not pass; below, scores beside the claimed laws."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=(2, 3))
    _draw_bounds(above, found, _PICTURE)
    _draw_scores(below, found, _PICTURE)
    verdict = found["verdict"]
    color = _PICTURE.stated if verdict == "holds" else "#b00020"
    figure.suptitle(f"Audit of {legible(name)}: {verdict}", x=0.01, ha="left", fontweight="bold", color=color)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


@styled
def audit_bounds(found: _Found) -> str:
    """An SVG for a page: each lower bound beside the epsilon that it must not pass."""
    made, axes = figure()
    _draw_bounds(axes, found, _PAGE)
    said = "; ".join(f"{one['what']}: at least {one['shown']['epsilon']:.3g}" for one in found["comparisons"])
    return shown(made, f"What the audit showed of epsilon: {said}")


@styled
def audit_scores(found: _Found) -> str:
    """An SVG for a page: the scores of the canaries beside the claimed laws."""
    made, axes = figure(3.2)
    _draw_scores(axes, found, _PAGE)
    return shown(made, "Scores of the canaries beside the laws that are claimed")


def _draw_bounds(axes: Any, found: _Found, look: _Look) -> None:
    comparisons = found["comparisons"][::-1]
    finite = [one["stated_epsilon"] for one in comparisons if one["stated_epsilon"] is not None]
    shown = [one[kind]["epsilon"] for one in comparisons for kind in ("shown", "certain")]
    for height, one in enumerate(comparisons):
        axes.barh(
            height, one["shown"]["epsilon"], height=0.5, color=look.absent, alpha=0.35, label="shown with confidence 95 %"
        )
        axes.barh(height, one["certain"]["epsilon"], height=0.25, color=look.absent, label="shown with confidence 1 − 10⁻⁶")
        if one["stated_epsilon"] is not None:
            axes.plot(
                [one["stated_epsilon"]] * 2, [height - 0.35, height + 0.35], color=look.stated, linewidth=2.5, label="stated"
            )
            axes.annotate(
                rounded_up(one["stated_epsilon"]), (one["stated_epsilon"], height), xytext=(5, 0), textcoords="offset points",
                va="center", color=look.stated,
            )  # fmt: skip
    axes.set_yticks(range(len(comparisons)), [_wrapped(one["what"]) for one in comparisons])
    axes.set_ylim(-0.6, len(comparisons) - 0.4)
    axes.set_xlim(0, max([*finite, *shown, 1e-9]) * 1.12)
    axes.set_xlabel(f"epsilon at delta = {found['stated']['delta']:g}")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(
        unique.values(), unique.keys(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=look.columns[0], frameon=False
    )


def _draw_scores(axes: Any, found: _Found, look: _Look) -> None:
    present, absent, means = (np.asarray(found["scores"][key], dtype=np.float64) for key in ("present", "absent", "means"))
    everything = np.concatenate([present, absent])
    # Of a broken system a few may be far out.
    low, high = float(everything.min()) - 0.5, float(everything.max()) + 0.5
    low, high = min(low, -4.0), max(high, float(means.max()) + 4.0)
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


def _wrapped(what: str) -> str:
    return what.replace(", ", ",\n").replace(": ", ":\n")
