"""On a narrow terminal prose ends its lines between words, what one copies stays whole, and a pipe gets one line."""

import io
import itertools

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from hubbub.cli.output import say


def told(text: str, width: int, *, terminal: bool = True, indent: int | None = None) -> list[str]:
    """The lines that come out."""
    file = io.StringIO()
    screen = Console(file=file, force_terminal=terminal, width=width, highlight=False, soft_wrap=True, markup=False)
    say(screen, text, indent=indent)
    return file.getvalue().removesuffix("\n").split("\n")


# None is wider than half of the narrowest line, which is what an indent leaves: a word that has no room is never parted.
WORDS = st.text("abc,.é漢", min_size=1, max_size=9).filter(lambda word: cell_len(word) <= 10)


@given(st.lists(WORDS, min_size=1, max_size=40), st.integers(20, 90), st.integers(0, 12))
def test_lines_fit_and_hold_every_word_in_its_order(words: list[str], width: int, indent: int) -> None:
    lines = told(" ".join(words), width, indent=indent)
    assert " ".join(line.strip() for line in lines) == " ".join(words)
    hanging = " " * min(indent, width // 2)
    for line, following in itertools.pairwise(lines):
        # As many words as there is room for, and no more.
        assert cell_len(line) <= width
        assert cell_len(f"{line} {following.split()[0]}") > width
        assert following.startswith(hanging)
        assert not following.startswith(f"{hanging} ")
    assert told(" ".join(words), width, terminal=False, indent=indent) == [" ".join(words)]
