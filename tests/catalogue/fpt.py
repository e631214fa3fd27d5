"""Floating point: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "FPT-1",
        "S1",
        "an adversary who knows all other clients asks of one release (d = 1000) whether the target took part",
        "no guess is certain; the likeliest is right as often as the noise allows, Φ(1/2z), within three standard errors",
    ),
    Case(
        "FPT-2",
        "S1",
        "outputs that some sums cannot give",
        "for each whole number of steps within eight deviations there are random words that release it, whatever the sum",
    ),
    Case(
        "FPT-3",
        "S1",
        "the order of the clients changes a sum in floating point",
        "sums are of whole numbers: the same bits for any order",
    ),
    Case(
        "FPT-4",
        "S1",
        "rounding makes a clipped update longer than the clip norm",
        "the squares of its whole steps add up to at most the radius squared, in exact integers",
    ),
    Case(
        "FPT-5",
        "S1",
        "noise is added to weights instead of to the sum",
        "noise meets the integer sum alone; a model is made of the one before and of the release, and of nothing else",
    ),
    Case(
        "FPT-6",
        "S1",
        "the sampler's tails end too early, or are too light or heavy",
        "the radius has 106 bits and reaches beyond 11 deviations; Kolmogorov and Smirnov, chi-square and tail counts on 20 "
        "million numbers, in the slow form on a billion",
    ),
    Case(
        "FPT-7",
        "S1",
        "the time that noise takes reveals the noise or the sum",
        "no rejection: operations, their shapes and the number of random words are the same for all noise and all sums",
    ),
]
