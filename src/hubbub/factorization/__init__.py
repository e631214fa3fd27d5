"""Strategies of least error with proved lower bounds: one family a file, each with ``optimize``; and the table of families."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hubbub._util import lazily

if TYPE_CHECKING:
    from hubbub.factorization import banded, banded_inverse, blt, dense, normalized_toeplitz, semiseparable, toeplitz
    from hubbub.factorization.bounds import lower_bound
    from hubbub.factorization.optimized import Objective, Optimized

__all__ = [
    "FAMILIES",
    "FamilyRecord",
    "Objective",
    "Optimized",
    "banded",
    "banded_inverse",
    "blt",
    "dense",
    "lower_bound",
    "normalized_toeplitz",
    "semiseparable",
    "toeplitz",
]


@dataclass(frozen=True)
class FamilyRecord:
    """A family's row in :data:`FAMILIES`.

    Args:
        description: One line for help and tables.
        optimizer: The module of this package whose ``optimize`` makes the strategy; ``None`` if ``closed_form`` makes it.
        options: Those of ``bands``, ``buffers``, ``objective`` and ``matrix`` that it has, and arguments that are the same
            always, with their values by default. ``bands`` of ``None`` is the separation of the participation.
        closed_form: ``"file.callable"`` of ``hubbub.mechanism.strategies``; it gets the rounds and the options.
        repeats: The patterns with several participations of one client that it is made for.
        most_rounds: The most rounds for which ``hubbub plan`` tries the family, in tenths of a second, and with ``--thorough``
            in seconds; 0 for never. An error that is computed from the matrix allows 4096.

    Example:
        >>> FAMILIES["blt"].options
        {'buffers': 4, 'objective': 'mean'}
    """

    description: str
    optimizer: str | None = None
    options: Mapping[str, int | str | None] = field(default_factory=dict)
    closed_form: str | None = None
    repeats: tuple[str, ...] = ("FixedEpochs", "MinSeparation")
    most_rounds: tuple[int, int] = (0, 0)


# All families by name. ``hubbub --help`` reads them, too, so that this file imports no mathematics.
FAMILIES: dict[str, FamilyRecord] = {
    "identity": FamilyRecord("independent noise: DP-SGD, DP-FedAvg", closed_form="identity.Identity"),
    "tree": FamilyRecord("tree aggregation, as first published", closed_form="tree.BinaryTree"),
    "tree-online": FamilyRecord(
        "tree aggregation with Honaker's estimates, in the same memory",
        closed_form="tree.BinaryTree",
        options={"decoder": "online"},
    ),
    "tree-full": FamilyRecord(
        "tree aggregation with the best decoder, in the same memory",
        closed_form="tree.BinaryTree",
        options={"decoder": "full"},
        most_rounds=(1024, 4096),
    ),
    "banded-toeplitz": FamilyRecord(
        "the square root of the prefix sum, cut to bands", options={"bands": None}, closed_form="toeplitz.square_root"
    ),
    # How long it takes depends on bands, too: hubbub plan tries several.
    "optimal-toeplitz": FamilyRecord("banded Toeplitz of least error", "toeplitz", {"bands": None, "objective": "mean"}),
    "normalized-toeplitz": FamilyRecord(
        "banded Toeplitz with columns of one norm", "normalized_toeplitz", {"bands": None}, most_rounds=(0, 4096)
    ),
    "banded": FamilyRecord("banded of least error", "banded", {"bands": None, "objective": "mean"}, most_rounds=(128, 512)),
    "banded-inverse": FamilyRecord(
        "banded inverse of least error: remembers few rows",
        "banded_inverse",
        {"bands": 16, "objective": "mean"},
        most_rounds=(1024, 4096),
    ),
    "blt": FamilyRecord(
        "buffered linear Toeplitz of least error: remembers a row a buffer",
        "blt",
        {"buffers": 4, "objective": "mean"},
        most_rounds=(10_000, 100_000),
    ),
    "time-varying": FamilyRecord(
        "buffers that change over rounds; for one participation",
        "semiseparable",
        {"buffers": 6, "objective": "mean"},
        repeats=(),
        most_rounds=(0, 1024),
    ),
    "dense": FamilyRecord(
        "least error of all, for one participation or fixed epochs; with a matrix, that matrix",
        "dense",
        {"objective": "mean", "matrix": None},
        repeats=("FixedEpochs",),
        most_rounds=(128, 512),
    ),
    "fourier": FamilyRecord("the Fourier mechanism with its best decoder", closed_form="fourier.Fourier"),
    "file": FamilyRecord("a matrix file, or what 'hubbub factorize' wrote", options={"matrix": None}),
}

# A strategy in closed form loads no optimizer.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "optimized": ("Objective", "Optimized"),
        "bounds": ("lower_bound",),
        **{record.optimizer: () for record in FAMILIES.values() if record.optimizer},
    },
)
