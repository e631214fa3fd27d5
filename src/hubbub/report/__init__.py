"""What a run leaves for people to look at: ``report.html``, which is all of it on one page, ``report.md`` and ``report.png``.

The last two show loss and accuracy on public test data, and epsilon; what else they show is marked as private: accuracy on
held-out clients' data, and what encryption took. The page also shows the operator what was computed from clients' updates, and
marks it.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hubbub._util.files import write_atomic
from hubbub.accounting import PrivacyGuarantee, rounded_up
from hubbub.accounting.statement import no_less, zcdp_standing
from hubbub.report.charts import ENCRYPTION, encryption_seconds
from hubbub.report.drawing import QUIET, canvas, png
from hubbub.report.page import page, some
from hubbub.report.summary import summary, whose

__all__ = ["draw", "markdown", "write"]

_Rows = Sequence[Mapping[str, Any]]
_ACCURACY, _EPSILON = "#1b6ca8", "#b5542b"


def write(folder: Path, promised: PrivacyGuarantee) -> None:
    """Write ``report.png``, ``report.md`` and ``report.html`` into the folder of a run, of which so much was promised."""
    run = summary(folder)
    write_atomic(folder / "report.png", draw(run.name, run.rows, promised, public=run.public))
    write_atomic(folder / "report.md", markdown(run.name, run.rows, promised, run.config, public=run.public).encode())
    write_atomic(folder / "report.html", page([run]).encode())


def markdown(name: str, rows: _Rows, promised: PrivacyGuarantee, config: str, *, public: bool = True) -> str:
    """The run as Markdown: what is promised, under which assumptions, and how good the model is.

    Args:
        name: The run's name.
        rows: Its metrics, one mapping a round.
        promised: The guarantee of all planned rounds.
        config: The resolved settings as TOML.
        public: Whether loss and accuracy are of public test data; of held-out clients' data otherwise.
    """
    evaluated = [row for row in rows if row.get("accuracy") is not None]
    lines = [f"# {name}", "", f"**{promised.sentence()}**", ""]
    if not public:
        held_out = f"Accuracy and loss are of held-out {whose(promised)}, without noise"
        lines += [f"> {held_out}: this report is for choosing settings, not for release.", ""]
    if evaluated:
        lines += ["| after round | accuracy | loss | epsilon spent |", "|---|---|---|---|"]
        lines += [*(_row(row) for row in some(evaluated, 6)), ""]
    if aborted := [str(row["round_index"] + 1) for row in rows if row.get("released") is False]:
        what = f"Round {aborted[0]} was" if len(aborted) == 1 else f"Rounds {', '.join(aborted)} were"
        lines += [f"{what} aborted: the privacy cost stays spent, and the model stayed as it was.", ""]
    if norms := [row["clip_norm"] for row in rows if row.get("clip_norm") is not None]:
        followed = "The clip norm followed the updates' norms by a noised count in the same sum"
        lines += [f"{followed}: from {norms[0]:.4g} in the first round to {norms[-1]:.4g} in the last.", ""]
    lines += [f"![accuracy{' and epsilon' if promised.private else ''} over rounds](report.png)", ""]
    if promised.private:
        lines += _guarantee(promised)
    lines += _encrypted([row for row in rows if row.get("decrypt_seconds") is not None])
    return "\n".join([*lines, "## Settings", "", "```toml", config.strip(), "```", ""])


def _row(row: Mapping[str, Any]) -> str:
    epsilon = rounded_up(math.inf if row["epsilon"] is None else row["epsilon"])
    loss = row["loss"]
    shown = "not finite" if loss is None or not math.isfinite(loss) else f"{loss:.4f}"
    return f"| {row['round_index'] + 1} | {row['accuracy']:.2%} | {shown} | {epsilon} |"


def _encrypted(rows: _Rows) -> list[str]:
    """What encryption cost, where there was any."""
    if not rows:
        return []
    parts = {words: [seconds for _, seconds in encryption_seconds(rows, key)] for key, words in ENCRYPTION.items()}
    return [
        "## Secure aggregation (private)",
        "",
        "For the operator, not for release: the time of a round depends on how many took part.",
        "",
        "| seconds a round | median | largest |",
        "|---|---|---|",
        *(f"| {part} | {median(times):.3f} | {max(times):.3f} |" for part, times in parts.items() if times),
        "",
        *([f"One client sends {rows[-1]['upload_bytes'] / 1000:,.0f} kB a round.", ""] if "upload_bytes" in rows[-1] else []),
    ]


def _guarantee(promised: PrivacyGuarantee) -> list[str]:
    rho = promised.unamplified_zcdp_rho
    zcdp = "" if rho is None else f" It is {rounded_up(rho)}-zCDP{zcdp_standing(promised)}."
    standing = "exact" if promised.sensitivity_exact else "a bound from above"
    return [
        "## The guarantee",
        "",
        f"- Unit: one {promised.privacy_unit}; relation: {promised.neighboring_relation}.",
        *([f"- Who is trusted with what: {promised.setting}"] if promised.setting else []),
        f"- Noise multiplier {promised.noise_multiplier:.6g} (noise over clip norm: {promised.clip_noise_multiplier:.6g}); "
        f"sensitivity of {promised.sensitivity_of} {no_less(promised.l2_sensitivity or 0.0)} per unit of clip norm, "
        f"{standing}.{zcdp}",
        f"- Accountant: {promised.accountant}.",
        "",
        "It assumes this; in brackets stands who enforces it:",
        "",
        *(f"- {assumption}" for assumption in promised.assumptions),
        "",
        "It does not cover this:",
        "",
        *(f"- {what}" for what in promised.not_covered),
        "",
    ]


def draw(name: str, rows: _Rows, promised: PrivacyGuarantee, *, public: bool = True) -> bytes:
    """A PNG of panels over rounds: accuracy, epsilon spent and promised, and what else the rows hold; as :func:`markdown`."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    adapted, encrypted = ([row for row in rows if row.get(key) is not None] for key in ("clip_norm", "decrypt_seconds"))
    further = [
        part for part in ("epsilon" * promised.private, "clip norm" * bool(adapted), "seconds" * bool(encrypted)) if part
    ]
    figure = canvas(8, 4 + 2 * len(further))
    heights = (3, *(2 for _ in further))
    above, *panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    evaluated = [row for row in rows if row.get("accuracy") is not None]
    rounds = [row["round_index"] + 1 for row in evaluated]
    above.plot(rounds, [row["accuracy"] for row in evaluated], color=_ACCURACY, marker="o", markersize=3)
    held_out = "training examples" if promised.privacy_unit == "example" else "clients' data"
    above.set_ylabel("accuracy on test data" if public else f"accuracy on held-out {held_out} (private)")
    above.yaxis.set_major_formatter(PercentFormatter(1.0))
    above.set_title(name, loc="left", fontweight="bold")
    if evaluated:
        last = evaluated[-1]["accuracy"]
        place = {"xytext": (0, 6), "textcoords": "offset points", "ha": "right"}
        above.annotate(f"{last:.1%}", (rounds[-1], last), color=_ACCURACY, **place)
        # So that the number has room above the line.
        above.margins(y=0.15)
    for axes, part in zip(panels, further, strict=True):
        if part == "epsilon":
            _draw_epsilon(axes, rows, promised)
        elif part == "clip norm":
            _draw_clip_norms(axes, adapted)
        else:
            _draw_encryption(axes, encrypted)
    figure.axes[-1].set_xlabel("round")
    figure.axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in figure.axes:
        axes.grid(visible=True, color="#e5e5e5")
    return png(figure)


def _draw_epsilon(axes: Any, rows: _Rows, promised: PrivacyGuarantee) -> None:
    axes.plot([row["round_index"] + 1 for row in rows], [row["epsilon"] for row in rows], color=_EPSILON, label="spent")
    axes.axhline(promised.epsilon, color=QUIET, linestyle="--", label=f"promised: {rounded_up(promised.epsilon)}")
    # Of next to nothing, too.
    axes.set_ylim(0, max(promised.epsilon * 1.15, 1e-9))
    axes.set_ylabel(f"epsilon at delta = {no_less(promised.delta)}")
    axes.legend(loc="lower right", frameon=False)


def _draw_clip_norms(axes: Any, rows: _Rows) -> None:
    norms = [row["clip_norm"] for row in rows]
    axes.plot([row["round_index"] + 1 for row in rows], norms, color=_ACCURACY)
    # Its steps are geometric; within a power of ten plain numbers read better.
    if max(norms) > 10 * min(norms):
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("clip norm")


def _draw_encryption(axes: Any, rows: _Rows) -> None:
    for (key, label), color, marker in zip(ENCRYPTION.items(), (_ACCURACY, _EPSILON, QUIET), "os^", strict=True):
        if points := encryption_seconds(rows, key):
            axes.plot(*zip(*points, strict=True), color=color, marker=marker, markersize=3, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("seconds a round (private)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
