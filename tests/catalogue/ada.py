"""Adaptive clipping: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "ADA-1",
        "S2",
        "the clip norm begins a hundred times too low or too high",
        "it comes within 20 % of the quantile in 60 rounds",
    ),
    Case(
        "ADA-2",
        "S2",
        "the norms of all updates are zero, equal, huge or infinite",
        "the clip norm stays from 1e-10 to 1e10, and the run continues",
    ),
    Case(
        "ADA-3",
        "S3",
        "the noise on the count is beyond all measure",
        "the noisy fraction is held to 0 and 1 and the step is bounded, so that nothing overflows",
    ),
    Case(
        "ADA-4",
        "S1",
        "a client lies about whether its update was clipped",
        "an update that the server clips counts as clipped whatever is said of it, and of a shorter one any answer counts "
        "as 0 or 1: a liar moves the count by one indicator at most, and update and indicator together by no more than "
        "their joint norm",
    ),
    Case(
        "ADA-5",
        "S1",
        "the count of clipped updates costs something, too",
        "one noise hides update and count, so that the round costs what one with a fixed clip norm costs; a count that "
        "would leave no noise to the updates is refused",
    ),
    Case(
        "ADA-6",
        "S1",
        "the clip norm moves while noise is correlated over rounds",
        "refused, with the way round it: correlated noise cancels only while its scale stands still",
    ),
]
