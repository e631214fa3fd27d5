"""Promises that say what is not so, under hashes that are right."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from malformed.base import EVERY, RESUME, VERIFY, Case, Run, Word
from malformed.contents import canonical, changed
from malformed.damages import forged

Change = tuple[tuple[str, ...], Any]
PATTERN, STRATEGY = ("mechanism", "participation"), ("mechanism", "strategy")
PARTICIPATIONS: tuple[dict[str, Any], ...] = (
    {"name": "SingleParticipation"},
    {"name": "PoissonSampling", "sampling_probability": 0.01},
    {"name": "FixedSizeSampling", "cohort_size": 1, "population": 1000},
    {"name": "TruncatedPoissonSampling", "sampling_probability": 0.01, "max_cohort_size": 3, "population": 1000},
    {"name": "CyclicPoissonSampling", "sampling_probability": 0.01, "cycle_length": 12},
    {"name": "BallsInBinsSampling", "bins": 12},
    {"name": "BallsInBinsSampling", "bins": 10**7},
    {"name": "FixedEpochs", "epochs": 1, "rounds_per_epoch": 12},
    {"name": "FixedEpochs", "epochs": 10**9, "rounds_per_epoch": 10**9},
    {"name": "MinSeparation"},
    {"name": "MinSeparation", "min_separation": 3, "max_participations": 4, "more": 1},
    {"name": "Nobody"},
    {"name": "malformed:people"},
    {},
)
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"name": "Identity", "rounds": 12},
    {"name": "Identity", "rounds": 11},
    {"name": "Identity", "rounds": 10**18},
    {"name": "BinaryTree", "rounds": 12},
    {"name": "BinaryTree", "rounds": 10**7},
    {"name": "BinaryTree", "rounds": 10**18},
    {"name": "Columns", "rounds": 12, "bands": 1, "squared_norm": 1e-12},
    {"name": "Dense"},
    {"name": "Described", "class": "malformed.Line", "rounds": 12},
    {"name": "Nothing", "rounds": 12},
    {"name": "malformed:people", "rounds": 12},
    {},
)


def _false_mechanisms(stated: Mapping[str, Any]) -> Iterator[tuple[str, Word, tuple[Change, ...]]]:
    """What a promise may say of its mechanism that is not so; and what the refusal names."""
    for name in ("noise_multiplier", "stddev", "l2_sensitivity", "epsilon"):
        for factor in (0.0, 1e-300, 0.5, 0.999999, 1.000001, 2.0, 1e6, -1.0):
            words = (name, "stddev", "noise_multiplier")
            yield f"{name} times {factor}", words, ((("mechanism", name), stated[name] * factor),)
    for b, k in ((1, 4), (2, 4), (4, 4), (12, 4), (10**9, 4), (3, 1), (3, 2), (3, 3), (0, 4), (-3, 4), (3, 0), (3, -1)):
        changes = (((*PATTERN, "min_separation"), b), ((*PATTERN, "max_participations"), k))
        yield f"separation {b}, participations {k}", ("participation", "l2_sensitivity", "separation"), changes
    for other in PARTICIPATIONS:
        words = ("participation", "cohorts", "Participation", "Sampling", "Epochs", "MinSeparation", "name")
        yield f"participation {other}", words, ((PATTERN, other),)
    for other in STRATEGIES:
        words = ("strategy", "stddev", "l2_sensitivity", "rounds", "name", "Dense", "Described")
        yield f"strategy {other}", words, ((STRATEGY, other),)
    for relation in ("", "none", "add-or-remove-one", "replace-one", "\x1b[31m"):
        changes = ((("mechanism", "neighboring_relation"), relation),)
        yield f"relation {relation!r}", ("relation", "epsilon"), changes
    yield "no mechanism", ("epsilon", "mechanism"), ((("mechanism",), None),)


def _false_promises() -> Iterator[tuple[str, Word, tuple[Change, ...]]]:
    """What else a promise may say that is not so."""
    for rounds in (0, 7, 11, 10**18):
        of_C = ((*STRATEGY, "rounds"), rounds)
        yield f"{rounds} rounds", "rounds", ((("rounds",), rounds),)
        yield f"{rounds} rounds of C", ("rounds", "sensitivity"), (of_C,)
        yield f"{rounds} rounds of both", ("rounds", "sensitivity", "epsilon"), (of_C, (("rounds",), rounds))
    for schema in (0, 1, 3, 6, 8, 99, "7", None, [7]):
        yield f"schema {schema!r}", "schema", ((("schema",), schema),)
    for delta in (0.0, 1.0, -1e-5, 1e-300, 0.5):
        yield f"delta {delta}", ("delta", "epsilon"), ((("delta",), delta),)
    for accountant in ("", "loose", "TIGHT", "\x1b[31m"):
        yield f"accountant {accountant!r}", "accountant", ((("accountant",), accountant),)
    for noise in ("", "none", "Secure", "\x1b[31m"):
        yield f"noise {noise!r}", ("noise", "simulation"), ((("noise",), noise),)


def forged_promises(run: Run) -> Iterator[Case]:
    """A promise whose numbers do not fit each other, its strategy or what happened: verify says so, resume refuses it."""
    turns = itertools.cycle([(VERIFY, RESUME), (VERIFY,), (VERIFY,)])
    for name, words, changes in (*_false_mechanisms(run.records()[0]["mechanism"]), *_false_promises()):
        record = run.records()[0]
        for path, value in changes:
            record = json.loads(changed(record, path, value))
        commands = EVERY if "schema" in name else next(turns)
        yield Case(name, commands, (("ledger", "promise"), words), forged([canonical(record), *run.bodies[1:]]))
    for key, value in run.records()[0]["settings"].items():
        other = value + 1 if isinstance(value, int | float) else value + "x"
        damage = forged([changed(run.records()[0], ("settings", key), other), *run.bodies[1:]])
        yield Case(f"settings.{key}", (RESUME,), ("ledger", key), damage)
