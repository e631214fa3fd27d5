"""Resources: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "RES-1",
        "S3",
        "a dense matrix of a million rounds, a file of a billion entries, an archive that unpacks to far more than it should",
        "refused within 50 ms (archives: 100 ms) before anything is allocated; the message says what to use instead",
    ),
    Case(
        "RES-2",
        "S3",
        "the remembered noise is larger than the memory or the disk",
        "computed and refused before the first round; the message says what needs less",
    ),
    Case(
        "RES-3",
        "S2",
        "out of memory within a round",
        "the round is aborted, or its cost was never recorded; the run is resumed",
    ),
    Case("RES-4", "S3", "too many open files, a full folder for temporary files", "an error that names the file and the cause"),
    Case(
        "RES-5",
        "S3",
        "a ledger of a million records",
        "opens in seconds (20 at most), and its epsilon takes less than one",
    ),
    Case(
        "RES-6",
        "S3",
        "100,000 clients in one round",
        "updates are summed as they come: the memory does not grow with their number times the model",
    ),
]
