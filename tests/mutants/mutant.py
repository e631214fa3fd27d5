"""One change of the source that a named test must notice."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A copy of the package with one change.

    Args:
        what: What is broken, in a few words: its name.
        file: Below ``src/hubbub``.
        old: Text that the file holds exactly once.
        new: What stands there instead.
        test: Who must notice: ``test_file.py::test_name``, with the parameters of the quickest case where it has many.
        shown_by: Texts of which the failure must say one, where a test may fail for more than one reason.
        slow: Whether it takes seconds, so that it is left out of the quick tests.
    """

    what: str
    file: str
    old: str
    new: str
    test: str
    shown_by: tuple[str, ...] = ()
    slow: bool = False

    def noticed(self, outcome: str, output: str) -> bool:
        """Whether a test that ended so has noticed it, for the right reason."""
        return outcome == "failed" and (not self.shown_by or any(text in output for text in self.shown_by))


Mutants = Sequence[Mutant]
