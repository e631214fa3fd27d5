"""One search for where a condition changes, and its answer on the side that was asked for."""

import math

from hypothesis import given
from hypothesis import strategies as st

from hubbub._util.roots import bracket, pushed


@given(st.floats(-1e6, 1e6), st.floats(1e-9, 1e6), st.floats(1e-9, 1e6), st.booleans())
def test_a_bracket_ends_beside_the_change_with_no_number_between(change: float, left: float, right: float, above: bool) -> None:
    def holds(x: float) -> bool:
        return x >= change if above else x < change

    low, high = change - left, change + right
    fails, kept = bracket(holds, *((low, high) if above else (high, low)))
    assert holds(kept)
    assert not holds(fails)
    assert math.nextafter(fails, kept) == kept


def test_a_bracket_stops_where_it_is_near_enough_and_never_answers_what_was_not_seen() -> None:
    seen = {1.0, 2.0}

    def holds(x: float) -> bool:
        seen.add(x)
        return x * x >= 2

    fails, kept = bracket(holds, 1.0, 2.0, within=1e-3)
    assert {fails, kept} <= seen
    assert fails < math.sqrt(2) <= kept <= fails * (1 + 2e-3)
    assert len(seen) < 15
    # What compares as nothing does not hold: the answer stays on the safe side.
    assert bracket(lambda x: math.nan >= x, 1.0, 2.0)[1] == 2.0


def test_what_is_pushed_suffices_and_is_hardly_more() -> None:
    enough = 1 + 1e-12
    found = pushed(1.0, lambda x: x >= enough)
    assert enough <= found <= 1 + 3e-12
    assert pushed(2.0, lambda x: x >= enough) == 2.0
    assert pushed(1.0, lambda x: False, at_most=2.0) == math.inf
