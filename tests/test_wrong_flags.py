"""Flags that do not go together, or describe no mechanism, are refused in one line that names them, with exit code 2.

Each flag with values that it cannot have is tried in ``test_malformed.py``.
"""

import pytest

import refusals
from refusals import ACCOUNT, Refused

# Fixtures are found by their names here.
workplace, refused = refusals.workplace, refusals.refused


@pytest.mark.parametrize(
    "more",
    ["", "--sampling-probability 0.1", "--mechanism tree", "--strategy tree"],
    ids=["independent", "poisson", "tree", "named"],
)
def test_more_rounds_than_any_memory_holds_are_refused(refused: Refused, more: str) -> None:
    rounds = str(10**15)
    refused(["account", "--rounds", rounds, "--delta", "1e-5", "--noise-multiplier", "1", *more.split()], "rounds", rounds)


@pytest.mark.parametrize("more", [[], ["--sampling-probability", "0.1"]], ids=["gaussian", "poisson"])
@pytest.mark.parametrize("value", ["1e-200", "1e-160", "1e-100", "1e300"])
def test_noise_beyond_what_can_be_computed_is_refused_by_name(refused: Refused, value: str, more: list[str]) -> None:
    refused(["account", "--rounds", "5", "--delta", "1e-5", "--noise-multiplier", value, *more], "noise", repr(float(value)))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--strategy tree --bands 3", ["--bands = 3", "tree"]),
        ("--strategy banded-toeplitz --bands 6", ["--bands = 6", "5"]),
        ("--strategy banded --bands 2", ["bands = 2", "overlap"]),
        ("--strategy banded --bands 2 --column-norm-squared 1e308", ["column", "1e+308"]),
        ("--strategy dense", ["MinSeparation", "FixedEpochs", "banded"]),
        ("--strategy dense --matrix nowhere.npy", ["nowhere.npy", "No such file"]),
        ("--mechanism tree:bands=3", ["bands = 3", "tree"]),
        ("--mechanism identity:column-norm-squared=1", ["column-norm-squared", "banded"]),
        ("--sampling-probability 0.1 --min-separation 2", ["--sampling-probability", "--min-separation"]),
        ("--cohort-size 2", ["--cohort-size", "--population"]),
        ("--cohort-size 5 --population 4", ["--cohort-size = 5", "at most 4"]),
        ("--epochs 2 --rounds-per-epoch 5", ["epochs=2", "5 rounds"]),
        ("--strategy tree --sampling-probability 0.1", ["random cohorts", "independent noise"]),
        ("--strategy banded-toeplitz --cohort-size 2 --population 10", ["random cohorts", "independent noise"]),
        ("--neighboring-relation add-or-remove-one", ["'add-or-remove-one'", "zero-out"]),
        ("--bins 20000000", ["--bins = 20000000", "at most"]),
        ("--bins 3 --sampling-probability 0.1", ["--sampling-probability with --bins", "no kind of random cohorts"]),
        ("--bins 3 --min-separation 2", ["--min-separation", "--bins", "say one of them"]),
        ("--cycle-length 3", ["--cycle-length: ", "need --sampling-probability, too"]),
        ("--cycle-length 3 --sampling-probability 0.1 --max-cohort-size 2 --population 9", ["no kind of random cohorts"]),
        ("--max-cohort-size 3 --sampling-probability 0.1", ["--max-cohort-size", "need --population, too"]),
        ("--strategy banded-toeplitz --bands 3 --cycle-length 2 --sampling-probability 0.1", ["3 bands", "cycle_length = 2"]),
        ("--strategy tree --cycle-length 2 --sampling-probability 0.1", ["BinaryTree", "square and lower triangular"]),
        ("--strategy banded-toeplitz --bands 2 --bins 2", ["BandedToeplitz", "independent noise only"]),
    ],
)
def test_account_refuses_flags_that_describe_no_mechanism(refused: Refused, flags: str, words: list[str]) -> None:
    refused([*ACCOUNT, *flags.split()], *words)
