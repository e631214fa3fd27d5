"""The report in words."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hubbub.accounting import PrivacyGuarantee, rounded_up
from hubbub.accounting.statement import zcdp_standing

__all__ = ["markdown"]


def whose(promised: PrivacyGuarantee) -> str:
    """Whose examples a validation holds out."""
    return "training examples" if promised.privacy_unit == "example" else "examples of the clients"


def markdown(name: str, rows: Sequence[Mapping[str, Any]], promised: PrivacyGuarantee, config: str, *, public: bool) -> str:
    """The run as Markdown: what is promised, under which assumptions, and how good the model is."""
    evaluated = [row for row in rows if row.get("accuracy") is not None]
    lines = [f"# {name}", "", f"**{promised.sentence()}**", ""]
    if not public:
        lines += [
            f"> Accuracy and loss are of held-out {whose(promised)}, without noise: this report is for choosing settings, "
            "not for release.",
            "",
        ]
    if evaluated:
        lines += [
            "| after round | accuracy | loss | epsilon spent |",
            "|---|---|---|---|",
            *(_row(row) for row in _some(evaluated)),
            "",
        ]
    lines += _aborted(rows)
    lines += _adapted([row["clip_norm"] for row in rows if row.get("clip_norm") is not None])
    lines += [f"![accuracy{' and epsilon' if promised.private else ''} over rounds](report.png)", ""]
    if promised.private:
        lines += _guarantee(promised)
    lines += _encrypted([row for row in rows if row.get("decrypt_seconds") is not None])
    lines += ["## Settings", "", "```toml", config.strip(), "```", ""]
    return "\n".join(lines)


def _some(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most six rows, the first and the last among them."""
    if len(rows) <= 6:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / 5)] for i in range(6)]


def _row(row: Mapping[str, Any]) -> str:
    epsilon = rounded_up(math.inf if row["epsilon"] is None else row["epsilon"])
    loss = row["loss"]
    shown = "not finite" if loss is None or not math.isfinite(loss) else f"{loss:.4f}"
    return f"| {row['round_index'] + 1} | {row['accuracy']:.2%} | {shown} | {epsilon} |"


def _aborted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which rounds were charged for nothing, if any."""
    numbers = [str(row["round_index"] + 1) for row in rows if row.get("released") is False]
    if not numbers:
        return []
    what = f"Round {numbers[0]} was" if len(numbers) == 1 else f"Rounds {', '.join(numbers)} were"
    return [f"{what} charged and not released: the model stayed as it was.", ""]


def _adapted(clip_norms: Sequence[float]) -> list[str]:
    """How the clip norm moved, if it did."""
    if not clip_norms:
        return []
    return [
        f"The clip norm followed the updates' norms by a noised count in the same sum: from {clip_norms[0]:.4g} in the first "
        f"round to {clip_norms[-1]:.4g} in the last.",
        "",
    ]


def _encrypted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What encryption cost, where there was any."""
    if not rows:
        return []
    parts = {
        "encrypt, one client": [row["encrypt_seconds"] / max(1, row["clients"]) for row in rows if "encrypt_seconds" in row],
        "add all clients, server": [row["aggregate_seconds"] for row in rows if "aggregate_seconds" in row],
        "decrypt, holders together": [row["decrypt_seconds"] for row in rows],
    }
    sent = [f"One client sends {rows[-1]['upload_bytes'] / 1000:,.0f} kB a round.", ""] if "upload_bytes" in rows[-1] else []
    return [
        "## Secure aggregation (private)",
        "",
        "For the operator, not for release: what a round took tells how many took part.",
        "",
        "| seconds a round | median | largest |",
        "|---|---|---|",
        *(f"| {part} | {median(times):.3f} | {max(times):.3f} |" for part, times in parts.items() if times),
        "",
        *sent,
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
        f"sensitivity of {promised.sensitivity_of} {promised.l2_sensitivity:.6g} per unit of clip norm, {standing}.{zcdp}",
        f"- Accountant: {promised.accountant}.",
        "",
        "It assumes this; in brackets stands who sees to it:",
        "",
        *(f"- {assumption}" for assumption in promised.assumptions),
        "",
        "It does not cover this:",
        "",
        *(f"- {what}" for what in promised.not_covered),
        "",
    ]
