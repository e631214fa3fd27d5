"""What a run leaves for people to look at: ``report.html``, which is all of it on one page, ``report.md`` and ``report.png``.

The last two show loss and accuracy on public test data, and epsilon; what else they show is marked as private: accuracy on
held-out clients' data, and what encryption took. The page also shows the operator what was computed from clients' updates, and
marks it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubbub.accounting import PrivacyGuarantee
from hubbub.files import write_atomic
from hubbub.report.figure import draw
from hubbub.report.page import page
from hubbub.report.text import markdown
from hubbub.report.told import told

__all__ = ["RunSummary", "write"]


@dataclass(frozen=True)
class RunSummary:
    """A run as its report needs it.

    Args:
        name: The run's name.
        rows: Its metrics, one mapping a round.
        promised: The guarantee of all planned rounds.
        config: The resolved settings as TOML.
        public: Whether loss and accuracy are of public test data; of held-out clients' data otherwise.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    promised: PrivacyGuarantee
    config: str
    public: bool = True


def write(folder: Path, summary: RunSummary) -> None:
    """Write ``report.png``, ``report.md`` and ``report.html`` into the run's folder."""
    write_atomic(folder / "report.png", draw(summary.name, summary.rows, summary.promised, public=summary.public))
    text = markdown(summary.name, summary.rows, summary.promised, summary.config, public=summary.public)
    write_atomic(folder / "report.md", text.encode())
    write_atomic(folder / "report.html", page([told(folder)]).encode())
