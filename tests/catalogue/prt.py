"""Participation: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "PRT-1",
        "S1",
        "a client would come again before b rounds are over",
        "it is not selected; a cohort with it is refused before a cost is recorded, whoever chose it",
    ),
    Case(
        "PRT-2",
        "S1",
        "a client has taken part k times",
        "it is never selected again, and a cohort with it is refused",
    ),
    Case(
        "PRT-3",
        "S1",
        "the server starts again at any point",
        "counts and gaps hold over the restart: the ledger knows each client by the same secret name in every start",
    ),
    Case(
        "PRT-4",
        "S1",
        "a round is aborted",
        "those who were asked count as having taken part",
    ),
    Case(
        "PRT-5",
        "S1",
        "a client comes back under a new number",
        "it is known by its registered public key, not by the number of its node; with keys_enforced nodes without a key "
        "are not asked. That each person has one key is an assumption that the statement names",
    ),
    Case(
        "PRT-6",
        "S2",
        "too few clients may join",
        "in a federation a smaller cohort with the noise of the full one, or a refusal where nobody may join; in hubbub's "
        "own loop a refusal, before the first round where it can be foreseen. The pattern is never relaxed",
    ),
    Case(
        "PRT-7",
        "S1",
        "a run continues past the last round of its mechanism",
        "the round is refused, no cost is recorded, and the noise has no row for it; the cost of a further run adds to "
        "this one's",
    ),
    Case(
        "PRT-8",
        "S1",
        "the ledger holds a pattern that is worse than what was planned",
        "the cost is computed from the rounds that each client really joined; the larger of it and of the promise is "
        "stated, with a warning",
    ),
    Case(
        "PRT-9",
        "S1",
        "a client is listed twice, or under names that are equal as text",
        "refused before the first round, by name: it would be sampled twice as often as its cost counts",
    ),
    Case(
        "PRT-10",
        "S1",
        "the list of clients changes after a round or before the run is resumed, or a population strikes clients off "
        "its cohort",
        "refused where cohorts are random or a rotation; of other patterns the ledger knows each client by name, whoever else "
        "is listed. Who was asked took part, whatever a population makes of its list. In a federation nodes come and go: a "
        "client has one draw and one bin by its name, and patterns that count on a number are refused",
    ),
    Case(
        "PRT-11",
        "S1",
        "devices keep the pattern themselves, and one loses its record, is asked twice, or has an app without the mod",
        "without a record it counts each earlier round as one that it may have taken part in, and waits; a round is on its "
        "disk before its app trains; a reply that does not say so counts as nothing, and the ledger names nobody",
    ),
]
