"""Kill -9 at random moments and at named ones, on every path: no release is lost, no row of noise meets two sums, every charge
stands.

Each start trains on other data than the one before, so that a row of noise that is used again is used for another sum.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from killing import Job, Killer
from ways import WAYS

# Kills of each way, in the short form and in the full one, of over 1,000 kills in over 100 runs together.
SHORT_FORM, FULL_FORM, RUNS = 2, 56, 6


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with Killer() as found:
        yield found


# Of the ways that the short forms take, each goes by another code from the sum to the release.
SHORT = ("BandedToeplitz", "adaptive clipping", "examples, Poisson", "Flower, correlated")
SHORT_WAYS = (*SHORT, "Paillier, noise by holders")


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way in SHORT_WAYS else pytest.mark.slow) for way in WAYS])
@pytest.mark.parametrize("kills", [SHORT_FORM, pytest.param(FULL_FORM, marks=pytest.mark.slow)])
def test_cra_1_prt_3_flw_5_pai_17_a_run_that_is_killed_at_random_keeps_its_promises(
    way: str, kills: int, killer: Killer, tmp_path: Path
) -> None:
    full = kills == FULL_FORM
    rounds = 24 if full else 8
    if "Flower and Paillier" in way:
        # They take seconds a round, and have four rounds at most.
        kills, rounds = (20, 4) if full else (2, 3)
    found = killer.done(Job(way, rounds, str(tmp_path), kills, RUNS if full else 1))
    print(f"{way}: {found}")  # noqa: T201 # what was shown
    assert found.kills >= kills


RELEASE = "hubbub.training.release.ReleasePath"
STORE, LEDGER = "hubbub.training.run_folder.store.RunStore", "hubbub.ledger.ledger.Ledger"
# What becomes of the round in which a start dies there: it is charged, and aborted or released.
MOMENTS = {
    f"after {LEDGER}.begin": "aborted",
    f"after {RELEASE}.row": "aborted",
    f"before {STORE}.save_release": "aborted",
    f"after {STORE}.save_release": "released",
    f"before {LEDGER}.commit": "released",
    f"after {LEDGER}.commit": "released",
    f"after {RELEASE}.commit": "released",
}
HELD = {"after hubbub.secagg.key_holder.Holder.open": "aborted"}
NOISED = {
    "after hubbub.training.encrypted.HolderNoise.row": "aborted",
    "before hubbub.secagg.key_holder.Holder.open": "aborted",
    **HELD,
}


def moments() -> list[pytest.param]:
    found = []
    for way in WAYS:
        of_parties = (NOISED if "holders" in way else HELD) if "Paillier" in way else {}
        for moment, fate in {**MOMENTS, **of_parties}.items():
            short = way in SHORT or (way in SHORT_WAYS and moment in of_parties)
            named = f"{way}, {moment.replace('hubbub.', '')}"
            found.append(pytest.param(way, moment, fate, id=named, marks=() if short else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("way", "moment", "fate"), moments())
def test_cra_2_pai_17_a_round_in_which_a_start_dies_is_charged_and_aborted_or_released(
    way: str, moment: str, fate: str, killer: Killer, tmp_path: Path
) -> None:
    found = killer.done(Job(way, 4, str(tmp_path), kills=1, runs=1, moment=moment))
    assert (found.kills, found.aborted + found.committed, found.aborted) == (1, found.rounds, fate == "aborted")
    # What was committed and had not left is what the next start goes on with, byte for byte: so says the judge.
    assert found.unpublished == (fate == "released")
