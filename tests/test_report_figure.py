"""The picture of a run: as many panels as there is something to show."""

import struct

import pytest

from hubbub.accounting import guarantee
from hubbub.accounting.guarantee import unprotected
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.strategies import Identity
from hubbub.report import draw

ROWS = [{"round_index": t, "accuracy": 0.5, "epsilon": 1.0 + t} for t in range(3)]
PROMISED = guarantee(Mechanism(Identity(3), MinSeparation(1, 3), 2.0), 1e-5)
BARE = unprotected(3, 1e-5, "client")


@pytest.mark.parametrize(
    ("promised", "more", "panels"),
    [(PROMISED, {}, 2), (BARE, {}, 1), (PROMISED, {"clip_norm": 0.3}, 3), (BARE, {"clip_norm": 0.3}, 2)],
    ids=["private", "bare", "private and adaptive", "bare and adaptive"],
)
def test_a_run_without_a_promise_has_no_panel_of_epsilon(promised: object, more: dict[str, float], panels: int) -> None:
    png = draw("a run", [row | more for row in ROWS], promised)  # type: ignore[arg-type]
    width, height = struct.unpack(">II", png[16:24])
    # Accuracy takes 4 inches, each other panel 2, at 150 dots an inch.
    assert (width, height) == (1200, 150 * (4 + 2 * (panels - 1)))
