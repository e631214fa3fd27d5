"""The package's own errors, by what the reader should do about them.

::

    HubbubError
    ├── ConfigError          a setting that cannot be run (also a ValueError)
    ├── DataError            a data file that is missing or invalid
    ├── RunFolderError       a folder that is not a run, or does not fit the requested run
    ├── ParticipationError   a client would break the participation pattern
    ├── BudgetError          a release would exceed the privacy budget, or no noise can meet it
    ├── LedgerError          the record of releases is damaged or contradicts itself
    ├── NoiseExhaustedError  the strategy has no further row of noise
    ├── RankError            a process that shares the run failed, ended, or does not answer
    ├── KeyFileError         a key file that cannot be read or written safely
    └── SumNotOpenedError    an encrypted sum that is not, or cannot be, decrypted

Arguments of the wrong type or range raise ``TypeError`` and ``ValueError``, as everywhere in Python.
"""

__all__ = [
    "BudgetError",
    "ConfigError",
    "DataError",
    "HubbubError",
    "KeyFileError",
    "LedgerError",
    "NoiseExhaustedError",
    "ParticipationError",
    "RankError",
    "RunFolderError",
    "SumNotOpenedError",
]


class HubbubError(Exception):
    """Base class of the package's own errors.

    Example:
        >>> import hubbub
        >>> try:
        ...     hubbub.load("runs/none-yet")
        ... except HubbubError as error:
        ...     print(f"{type(error).__name__}: {error}")
        RunFolderError: runs/none-yet: is no run (ledger.jsonl not there); name the folder that 'hubbub train' made
    """


class ConfigError(HubbubError, ValueError):
    """A setting that cannot be run; the message names the key and its value."""


class DataError(HubbubError):
    """A data file is missing or invalid."""


class RunFolderError(HubbubError):
    """A folder is not a run, or does not fit the requested run."""


class ParticipationError(HubbubError):
    """A client would break the participation pattern of the run."""


class BudgetError(HubbubError):
    """A release would exceed the privacy budget, or no noise can meet it."""


class LedgerError(HubbubError):
    """The record of releases is damaged, or contradicts itself."""


class NoiseExhaustedError(HubbubError):
    """The strategy has no further row of noise."""


class RankError(HubbubError):
    """A rank, one of the processes that share a run, failed, ended, is out of step, or does not answer.

    Args:
        why: The reason; it names the rank.
        rank: Its number; ``None`` if it cannot be known which one it was.
        gone: Whether it did not say so itself.
    """

    def __init__(self, why: str, rank: int | None = None, gone: bool = False) -> None:  # made again by pickle
        self.rank, self.gone = rank, gone
        super().__init__(why, rank, gone)

    def __str__(self) -> str:
        """The reason."""
        return str(self.args[0])


class KeyFileError(HubbubError):
    """A key file cannot be read or written safely; the message names the file, never a secret."""


class SumNotOpenedError(HubbubError):
    """A sum is not opened: encrypted, it cannot be decrypted, or too few replies count. Its content stays secret.

    Args:
        why: The reason.
        who: The names of the clients or key holders that caused it.
    """

    def __init__(self, why: str, who: tuple[str, ...] = ()) -> None:
        self.who = tuple(who)
        super().__init__(why)
