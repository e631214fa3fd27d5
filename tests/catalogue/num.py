"""Bad numbers: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "NUM-1",
        "S1",
        'a noise multiplier of nan, ±inf, −1 or "1e999", from settings, command line, ledger, Python or Flower',
        "refused by its name before any accountant is asked",
    ),
    Case(
        "NUM-2",
        "S1",
        'no noise: `mode = "none"`, or a noise multiplier of 0',
        'zero is refused, with how to say it; `mode = "none"` runs, and ledger, report and statement say '
        "epsilon is infinite and that there is no guarantee",
    ),
    Case(
        "NUM-3",
        "S1",
        'a clip norm of nan, ±inf, 0, −1 or "1e999", at every entry point, in a ledger, or as a server sends it to a client',
        "refused by its name; a client does not train",
    ),
    Case(
        "NUM-4",
        "S1",
        "a delta of nan, −1, 0, 1, 1.5; a delta of 1/N or more",
        "refused by its name; one of 1/N or more is warned of on the screen and in a federation's log",
    ),
    Case(
        "NUM-5",
        "S3",
        "noise so small that epsilon is above 1,000 (1e-3 over 100 rounds)",
        "answered within a second and 256 MiB: exact for Gaussians, otherwise a sound bound",
    ),
    Case(
        "NUM-6",
        "S1",
        "a budget of 0, −1, nan or ±inf, or one out of reach",
        "refused by its name; out of reach, with what the least costs or the range that is possible",
    ),
    Case(
        "NUM-7",
        "S1",
        "an update with a NaN",
        "it counts as zero and as clipped, in a federation as a reply that never came, noted in the log; the "
        "sum is finite, no bit of the others moves",
    ),
    Case(
        "NUM-8",
        "S1",
        "an update with ±infinity",
        "as for NaN",
    ),
    Case(
        "NUM-9",
        "S2",
        "an update of zero; a cohort of nothing else",
        "accepted; nothing is divided by its norm",
    ),
    Case(
        "NUM-10",
        "S1",
        "norms from 1e-300 to 1e300, beyond what squares of float32 hold",
        "clipped to whole steps whose squares add up to at most the clip norm's, exactly; neither lost nor infinite",
    ),
    Case(
        "NUM-11",
        "S1",
        "a cohort that nobody joined",
        "a round like any other: noise alone, released, and its cost recorded",
    ),
    Case(
        "NUM-12",
        "S1",
        "more clients or more noise than float64 sums exactly",
        "refused before the first round, and not a client sooner",
    ),
    Case(
        "NUM-13",
        "S3",
        "rounds, separations, participations, clients as 0, −1, 2.5, nan, True, text or 10¹²",
        "refused by their names; more participations than there are rounds are a promise in vain, and taken",
    ),
    Case(
        "NUM-14",
        "S2",
        "a learning rate by which the model becomes infinite after a release",
        "the run stops with the last good model; its rounds stay released, and their cost stays spent",
    ),
]
