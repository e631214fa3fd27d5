"""One change of the source that a named test must notice."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A copy of the package with one change of its syntax tree, for which layout, comments and files do not matter.

    Args:
        what: What is broken, in a few words: its name.
        at: The function, class or module that is changed, by as much of the end of its qualified name as no other has.
        old: An expression, or statements that follow one another, found there exactly once.
        new: What stands there instead; nothing, where statements are left out.
        test: Who must notice: ``test_file.py::test_name``, with the parameters of the quickest case where it has many.
        shown_by: Texts of which the failure must say one, where a test may fail for more than one reason.
    """

    what: str
    at: str
    old: str
    new: str
    test: str
    shown_by: tuple[str, ...] = ()

    def noticed(self, outcome: str, output: str) -> bool:
        """Whether a test that ended so has noticed it, for the right reason."""
        return outcome == "failed" and (not self.shown_by or any(text in output for text in self.shown_by))


def parsed(text: str) -> list[Mutant]:
    """Mutants from blocks of lines, with an empty line between two.

    A block begins with ``what @ at``. ``-`` begins lines of the old code, ``+`` of the new, ``?`` the test and ``!`` what shows
    it. A block without a test has that of the block before.
    """
    return list(_mutants(text))


def _mutants(text: str) -> Iterator[Mutant]:
    test = ""
    for block in text.strip("\n").split("\n\n"):
        parts: dict[str, list[str]] = {mark: [] for mark in "-+?! "}
        for line in block.split("\n"):
            mark, known = line[0], line[0] in "-+?!" and line[1:2] in ("", " ")
            parts[mark if known else " "].append(line[2:] if known else line)
        what, _, at = " ".join(parts[" "]).partition(" @ ")
        test = "".join(parts["?"]) or test
        yield Mutant(what, at, "\n".join(parts["-"]), "\n".join(parts["+"]), test, tuple(parts["!"]))
