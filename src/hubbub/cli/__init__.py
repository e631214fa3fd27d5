"""The command line. Every heavy import waits until a command needs it, so that ``hubbub --help`` answers at once."""

from typing import TYPE_CHECKING

from hubbub._util import lazily
from hubbub.cli.app import main

if TYPE_CHECKING:
    from hubbub.cli import accounts, auditing, doctor, factorize, paillier, planning, runs, sweeping, training

__all__ = ["accounts", "auditing", "doctor", "factorize", "main", "paillier", "planning", "runs", "sweeping", "training"]

__getattr__, __dir__ = lazily(__name__, {name: () for name in __all__ if name != "main"})
