"""Flower: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "FLW-1",
        "S1",
        "SuperLink and nodes speak without TLS",
        "Flower's SuperLink, the only server there is, does not start without certificates unless `--insecure` is given; "
        "every statement names as the operator's word that nobody reads single updates on their way",
    ),
    Case(
        "FLW-2",
        "S1",
        "any SuperNode may join",
        "a promise of who joins when is refused without the operator's word that keys are registered; nodes without a key are "
        "then never asked",
    ),
    Case(
        "FLW-3",
        "S2",
        "replies with an error, without arrays or metrics, or with further records",
        "what has no usable arrays counts as a reply that never came; what stands next to the arrays changes no bit",
    ),
    Case(
        "FLW-4",
        "S2",
        "an exception in aggregation",
        "no reply raises one; the wrapped strategy's own ends the start with the release on disk, and the next start learns "
        "it; where replies break off the round is aborted; the third encrypted sum in a row that is not opened ends the start",
    ),
    Case(
        "FLW-5",
        "S1",
        "the server starts again",
        "the run resumes at its next round, with model, ledger, clip norm and who took part when",
    ),
    Case(
        "FLW-6",
        "S1",
        "the SuperLink starts again, and nodes come back under new numbers",
        "a client is its key, whatever its number",
    ),
    Case(
        "FLW-7",
        "S1",
        "mods are missing or in the wrong order",
        "the server clips what it sees; where clients add the noise, a reply without it counts as nothing",
    ),
    Case(
        "FLW-8",
        "S2",
        "Flower's own privacy wrapper around our strategy, or within it",
        "within ours: refused; around ours: ours clips, records the cost and adds noise all the same",
    ),
    Case(
        "FLW-9",
        "S3",
        "some or all clients fail, or nodes never come",
        "messages end with the round's timeout; noise alone is released, or the round discarded, and its cost is "
        "recorded and logged; "
        "waiting for nodes ends after ten minutes with a message, and no cost is recorded",
    ),
    Case(
        "FLW-10",
        "S3",
        "Flower's interface changes",
        "every test runs on the least version that is asked for; the slow form runs the adapter's tests on the newest, too",
    ),
]
