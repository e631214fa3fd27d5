"""Accounting: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "ACC-1",
        "S1",
        "more noise, fewer rounds, participations or clients sampled, a larger delta",
        "epsilon never rises, for all events and mechanisms, at 5,000 points",
    ),
    Case(
        "ACC-2",
        "S1",
        "epsilon at 5,000 random points, against closed forms, definitions and contour integrals",
        "never below what is exact, never above the bound by Rényi divergences",
    ),
    Case(
        "ACC-3",
        "S1",
        "noise that was calibrated, accounted for again",
        "costs at most its target: 500 targets",
    ),
    Case(
        "ACC-4",
        "S1",
        "the halves of a composition, in any order",
        "cost what the whole does, to 1e-9",
    ),
    Case(
        "ACC-5",
        "S1",
        "a matrix that is the identity; one participation",
        "cost what independent noise does, or one Gaussian, to 1e-9",
    ),
    Case(
        "ACC-6",
        "S1",
        "a matrix with negative entries, without bands, with columns of any length; a strategy that states too little",
        "exact, or a bound from above: brute force over every pattern up to 12 rounds; what a foreign "
        "strategy states is computed again",
    ),
    Case(
        "ACC-7",
        "S1",
        "epsilon is read twice, or in the middle of a run",
        "nothing changes: not the ledger, not the run, not the answer",
    ),
    Case(
        "ACC-8",
        "S1",
        "amplification without random cohorts, or under noise for which no theorem holds",
        "patterns are never amplified; the rest is refused",
    ),
    Case(
        "ACC-9",
        "S1",
        "relations that differ",
        "one relation is stated; to replace a unit moves a sum twice as far; what no theorem covers is refused",
    ),
    Case(
        "ACC-10",
        "S1",
        "the budget is used up",
        "no round is begun that would exceed it; the model is kept; the command exits with status 3",
    ),
    Case(
        "ACC-11",
        "S1",
        "an accountant that raises, hangs, or answers with what is no bound",
        "no run begins, and no further round: what is not known does not pass for little",
    ),
    Case(
        "ACC-12",
        "S1",
        "two runs over the same people",
        "`account` composes them from their ledgers, `earlier_runs` counts their cost in a new run; a statement "
        "names what it covers and that others add to it",
    ),
    Case(
        "ACC-13",
        "S2",
        "a statement",
        "made of the ledger alone",
    ),
]
