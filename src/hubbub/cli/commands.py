"""The modules behind the commands, each loaded when a command needs it."""

from typing import TYPE_CHECKING

from hubbub._util import lazily

if TYPE_CHECKING:
    from hubbub.cli import accounts, auditing, doctor, factorize, paillier, planning, runs, sweeping, training

__all__ = ["accounts", "auditing", "doctor", "factorize", "paillier", "planning", "runs", "sweeping", "training"]

__getattr__, __dir__ = lazily("hubbub.cli", dict.fromkeys(__all__, ()))
