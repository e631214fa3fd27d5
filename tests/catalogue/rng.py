"""Randomness: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "RNG-1",
        "S1",
        "a script seeds random, NumPy or torch",
        "noise and keys are the same as without: they read no global generator and move none",
    ),
    Case("RNG-2", "S1", "a process is forked after a run was opened", "the child is refused the rows of its parent"),
    Case("RNG-3", "S2", "a row or a release is asked for again", "the same numbers to the last bit"),
    Case(
        "RNG-4",
        "S1",
        "a row is asked for with other data",
        "refused: a row is given out once, for the round whose cost was recorded; a simulation repeats a round with "
        "the same sum only",
    ),
    Case(
        "RNG-5",
        "S1",
        "the same noise in two rounds, layers, parts or starts",
        "each row has a key derived from that of its start, each part of it words of its own: of ten million numbers none "
        "comes twice, and none are correlated",
    ),
    Case(
        "RNG-6",
        "S1",
        "keys with too little entropy, or from a seed",
        "256 bits of the operating system for every key; a seed makes noise in a simulation only, which the ledger and the "
        "statement call one",
    ),
    Case("RNG-7", "S1", "the operating system gives no random bits", "no run starts"),
    Case(
        "RNG-8",
        "S1",
        "an image of a machine or a folder is started twice",
        "each start draws keys of its own for noise and random cohorts; that a machine cloned while it runs is not covered is "
        "documented",
    ),
    Case(
        "RNG-9",
        "S1",
        "random cohorts from a generator that can be predicted",
        "draws are bits of AES-256 under a secret key; no global generator is read or moved",
    ),
    Case(
        "RNG-10",
        "S1",
        "keys in logs, reports, checkpoints, bundles or core dumps",
        "none, in any form; key files are their owner's alone; the command line leaves no core dump",
    ),
    Case(
        "RNG-11",
        "S1",
        "a strategy of somebody's own class changes after its sensitivity was computed, or remembers rounds in itself",
        "refused before the cost of the round is recorded: matrix and steps are compared with those of the promise in "
        "every round",
    ),
]
