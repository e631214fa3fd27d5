"""What can go wrong, by what the reader should do about it.

::

    HubbubError
    ├── ConfigError          a setting that cannot be run (also a ValueError)
    ├── DataError            a data file that is missing or is not what it says
    ├── RunFolderError       a folder that is no run, or that does not fit the run asked of it
    ├── ParticipationError   a client would break the promised participation pattern
    ├── BudgetError          a release would exceed the privacy budget, or no noise can meet it
    ├── LedgerError          the record of releases is damaged or contradicts itself
    ├── NoiseExhaustedError  the strategy has no further row of noise
    ├── KeyFileError         a file of a key that cannot be read, or written, safely
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
    "RunFolderError",
    "SumNotOpenedError",
]


class HubbubError(Exception):
    """Base class of the package's own errors."""


class ConfigError(HubbubError, ValueError):
    """A setting that cannot be run; the message names the key and its value."""


class DataError(HubbubError):
    """A data file is missing, or is not what its name says."""


class RunFolderError(HubbubError):
    """A folder is no run, or does not fit the run that is asked of it."""


class ParticipationError(HubbubError):
    """A client would break the participation pattern that the run promised."""


class BudgetError(HubbubError):
    """A release would exceed the privacy budget, or no noise can meet it."""


class LedgerError(HubbubError):
    """The record of releases is damaged, or contradicts itself."""


class NoiseExhaustedError(HubbubError):
    """The strategy has no further row of noise."""


class KeyFileError(HubbubError):
    """A file of a key cannot be read or written safely; the message names the file, never a secret."""


class SumNotOpenedError(HubbubError):
    """An encrypted sum is not, or cannot be, decrypted: nothing of it was learnt.

    Args:
        why: What is wrong.
        who: The clients or holders whose doing it is, by name.
    """

    def __init__(self, why: str, who: tuple[str, ...] = ()) -> None:
        self.who = tuple(who)
        super().__init__(why)
