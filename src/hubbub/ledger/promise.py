"""The promise of a run: fixed before the first round, and the first record of its ledger."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from hubbub._util import strict_json
from hubbub._util.checks import (
    Array,
    boolean,
    digest,
    integer,
    lattice_bits,
    one_of,
    open_unit,
    plain_numbers,
    positive,
    shown,
    table,
)
from hubbub._util.files import refusing
from hubbub.accounting import wording
from hubbub.accounting.composition import ACCOUNTANTS
from hubbub.accounting.events import RELATIONS
from hubbub.accounting.events_of_mechanism import default_relation
from hubbub.accounting.guarantee import guarantee, unprotected
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.statement import PrivacyGuarantee, RunFacts
from hubbub.errors import ConfigError, LedgerError
from hubbub.mechanism import Mechanism, NoiseBy, NoiseShares
from hubbub.mechanism.participation import MinSeparation, RandomParticipation, participation_of, participation_record
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import from_parts, strategy_arrays, strategy_numbers

# Smaller numbers were formats of versions before the first release, which none reads.
SCHEMA = 8
# What the settings of a run call its "statistics" if it releases these, and no model.
MOMENTS = "means and variances"
_MOST_RUNS = 1000
_NOT_FOR_RELEASE = "simulation, not for release"
# The probability of so long a radius of Box and Muller's that its 106 random bits leave gaps of a step of the finest lattice.
_UNRESOLVED = 2.0**-80
# What stands in a record as it is in the promise.
_AS_IT_IS = ("rounds", "privacy_unit", "accountant", "delta", "settings", "noise_by", "setting")


@dataclass(frozen=True)
class Extends:
    """The finished run whose model a run begins with (warm start), as the promise names it.

    Args:
        ledger: Hash of the first record of that run's ledger.
        head: Hash of its last record, when this run began.
        model: SHA-256 of the model that this run begins with.
        optimizer: SHA-256 of the optimizer's state; empty where it begins anew.
    """

    ledger: str
    head: str
    model: str
    optimizer: str = ""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "optimizer" or value != "":
                digest(f"extends.{name}", value)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Extends | None":
        """The warm start that the settings of a promise name; ``None`` without one."""
        stated = settings.get("extends")
        if stated is None:
            return None
        if not isinstance(stated, Mapping) or set(stated) != set(cls.__dataclass_fields__):
            raise ValueError(f"extends = {str(stated)[:80]!r}: must name {', '.join(cls.__dataclass_fields__)}")
        return cls(**stated)


@dataclass(frozen=True)
class Terms:
    """The settings of a promise that the library reads. The others are only compared when a run resumes.

    Args:
        expected_cohort_size: The divisor of sums.
        clip_norm: The fixed clip norm; ``None`` without clipping or with adaptive clipping.
        adaptive_clipping: The rule of adaptive clipping.
        lattice_bits: The bits of the lattice of sums.
        clients: The number of clients.
        parameters: The number of trainable parameters.
        initial_model: SHA-256 of the model before the first round.
        extends: The run of a warm start.
        keep_releases: Whether all releases stay in the folder, unless the ledger records that the disk was full.
        evaluation: The private evaluation, whose cost is part of the run's.
        pattern_kept_by: Who enforces the participation pattern: the ``"ledger"`` or the ``"devices"``.

    Example:
        >>> Terms.of({"clip_norm": 0.5, "expected_cohort_size": 100}).clip_norm
        0.5
    """

    expected_cohort_size: float | None = None
    clip_norm: float | None = None
    adaptive_clipping: Mapping[str, Any] | None = None
    lattice_bits: int = 24
    clients: int | None = None
    parameters: int | None = None
    initial_model: str | None = None
    extends: Extends | None = None
    keep_releases: bool = True
    evaluation: PrivateEvaluation | None = None
    pattern_kept_by: str = "ledger"

    def __post_init__(self) -> None:
        one_of("pattern_kept_by", self.pattern_kept_by, ("ledger", "devices"))
        count = partial(integer, at_least=0)
        plain_numbers(self, expected_cohort_size=positive, clip_norm=positive, clients=count, parameters=count)
        plain_numbers(self, lattice_bits=lattice_bits, initial_model=digest, keep_releases=boolean, adaptive_clipping=table)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Terms":
        """Those of the settings of a promise."""
        known = {name: settings[name] for name in cls.__dataclass_fields__ if name in settings}
        if known.get("evaluation") is not None:
            known["evaluation"] = PrivateEvaluation.from_record(known["evaluation"])
        return cls(**{**known, "extends": Extends.of(settings)})

    @property
    def adaptive(self) -> bool:
        """Whether clipping is adaptive."""
        return self.adaptive_clipping is not None


@dataclass(frozen=True)
class Promise:
    """The promise of a run, fixed before its first round.

    Args:
        rounds: The most rounds.
        mechanism: Its mechanism; ``None`` for a run without privacy.
        neighboring_relation: By default that of the mechanism's participation.
        privacy_unit: ``"client"`` or ``"example"``.
        accountant: ``"tight"`` or ``"rdp"``.
        delta: The delta of the recorded epsilon.
        simulation: Whether cohorts and noise come from a known seed, so that the run is an experiment, not a release.
        settings: Everything else that must be the same when the run resumes, as strict JSON values.
        earlier: Earlier runs over the same people, whose cost is counted.
        further: Assumptions in addition to the guarantee's own, such as the engine's.
        not_covered: What the guarantee does not cover, in addition to the usual list.
        noise_by: Who adds the noise, if the mechanism has no noise shares.
        setting: One line of who is trusted with what; empty for a server that sees each update.

    Raises:
        ValueError: A number out of range, or a text that is empty or not one line.
        TypeError: A value of another type.
        ConfigError: Noise of holders without a mechanism, together with shares of clients, or without a setting.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import Identity
        >>> promise = Promise(4, Mechanism(Identity(4), MinSeparation(2, 2), noise_multiplier=3.0))
        >>> again = Promise.from_record({"kind": "promise", **promise.record()}, arrays={})
        >>> again.record() == promise.record(), promise.after(2, 1e-5).epsilon < promise.after(4, 1e-5).epsilon
        (True, True)
    """

    rounds: int
    mechanism: Mechanism | None
    neighboring_relation: str | None = None
    privacy_unit: str = "client"
    accountant: str = "tight"
    delta: float = 1e-5
    simulation: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    earlier: tuple[RunCharge, ...] = ()
    further: tuple[wording.Assumption, ...] = ()
    not_covered: tuple[str, ...] = ()
    noise_by: NoiseBy = "server"
    setting: str = ""

    def __post_init__(self) -> None:
        plain_numbers(self, delta=open_unit)
        one_of("noise_by", self.noise_by, get_args(NoiseBy))
        if self.setting != "":
            wording.require_text("setting", self.setting)
        if self.noise_by == "holders":
            _require_holders(self.mechanism, self.setting)
        wording.require_words("further", self.further, wording.Assumption)
        wording.require_words("not_covered", self.not_covered, str)
        if len({run.first for run in self.earlier}) < len(self.earlier) or len(self.earlier) > _MOST_RUNS:
            raise ConfigError(
                f"earlier: has {len(self.earlier)} runs; name each once (run_charges gives those of several), at most "
                f"{_MOST_RUNS}"
            )
        if not _strict(self.settings):
            raise ConfigError(
                f"settings = {shown(self.settings)}: must be strict JSON values, which a ledger keeps as they are: lists in "
                "place of tuples, names that are texts, finite numbers"
            )
        if self.settings.get("evaluation") is not None and (self.mechanism is None or self.noise_in_sums or self.setting):
            raise ConfigError(
                "evaluation: the server reads what clients measure and adds the noise, as it does not without a mechanism, "
                "with encrypted sums or with noise of others; leave it out"
            )
        if self.settings.get("pattern_kept_by", "ledger") != "ledger" and not (
            self.mechanism and isinstance(self.mechanism.participation, MinSeparation) and self.privacy_unit == "client"
        ):
            raise ConfigError(
                "pattern_kept_by: devices keep MinSeparation alone, by which each is a client; promise that, or leave it out"
            )
        integer("rounds", self.rounds, at_least=1, at_most=None if self.mechanism is None else self.mechanism.rounds)

    @property
    def noise_in_sums(self) -> bool:
        """Whether noise is added before sums are decrypted: by clients or by key holders."""
        return self.noise_by == "holders" or (self.mechanism is not None and self.mechanism.shares is not None)

    @property
    def lists_clients(self) -> bool:
        """Whether the ledger lists the participants: the promise has a pattern, and devices do not keep it themselves."""
        random = self.mechanism is None or isinstance(self.mechanism.participation, RandomParticipation)
        return not random and self.terms.pattern_kept_by == "ledger"

    @property
    def lattice_bits(self) -> int:
        """The bits of the lattice of sums.

        Raises:
            ValueError: Invalid settings.
        """
        if self.mechanism is not None and self.mechanism.shares is not None:
            return self.mechanism.shares.lattice_bits
        return self.terms.lattice_bits

    @cached_property
    def terms(self) -> Terms:
        """Its settings, typed and checked.

        Raises:
            ValueError: A number out of range.
            TypeError: A value of another type.
        """
        return Terms.of(self.settings)

    def evaluations(self, rounds: int) -> tuple[Mechanism, int] | None:
        """The mechanism of its private evaluations, and their number in the first rounds; ``None`` without any."""
        measured = self.terms.evaluation
        if measured is None or self.mechanism is None:
            return None
        return measured.mechanism(max(1, measured.times(self.rounds))), measured.times(rounds)

    @property
    def assumed(self) -> tuple[wording.Assumption, ...]:
        """The assumptions in addition to the mechanism's own: those on key holders and devices, and further ones."""
        devices = wording.DEVICES_KEEP if self.terms.pattern_kept_by == "devices" else ()
        return (*((wording.HOLDERS_ADD,) if self.noise_by == "holders" else ()), *devices, *self.further)

    def after(self, rounds: int, delta: float) -> PrivacyGuarantee:
        """The guarantee of the first rounds, together with the earlier runs."""
        if self.mechanism is None:
            # Where nothing is promised, nothing is assumed.
            bare = unprotected(rounds, delta, self.privacy_unit)
            unhidden = (*bare.not_covered, *self.not_covered)
            return replace(bare, earlier=self.earlier, not_covered=unhidden, setting=self.setting)
        answer = guarantee(
            self.mechanism,
            delta,
            self.neighboring_relation,
            rounds=rounds,
            accountant=self.accountant,
            privacy_unit=self.privacy_unit,
            earlier=self.earlier,
            evaluation=self.evaluations(rounds),
            pattern_kept_by=self.terms.pattern_kept_by,
        )
        # Where zero-out is stated in place of add-or-remove-one, the divisor may tell how many clients there are.
        usual = default_relation(self.mechanism.participation)
        zeroed = self.neighboring_relation == "zero-out" and usual == "add-or-remove-one"
        return replace(
            answer,
            relations=tuple(r for r in answer.relations if not (zeroed and r == "add-or-remove-one")),
            simulation=self.simulation or answer.simulation,
            assumptions=tuple(dict.fromkeys((*answer.assumptions, *self.assumed))),
            not_covered=tuple(dict.fromkeys((*answer.not_covered, *self.not_covered))),
            noise_by=self.noise_by,
            setting=self.setting,
        )

    def restated(self, **terms: Any) -> "Promise":
        """The promise on other terms.

        Raises:
            ConfigError: Add-or-remove-one, of a run whose public divisor may tell how many clients there are.
        """
        wanted, unit = terms.get("neighboring_relation"), self.privacy_unit
        zeroed = self.mechanism and self.neighboring_relation == "zero-out"
        if zeroed and wanted == "add-or-remove-one" and wanted not in self.after(self.rounds, self.delta).relations:
            raise ConfigError(
                f"neighboring_relation = {wanted!r}: the run states 'zero-out', since its divisor may tell how many {unit}s "
                "there are; leave it out"
            )
        return replace(self, **terms)

    def require_delta(self, delta: float, numbers: int | None) -> None:
        """Refuse a delta that noise of finitely many bits does not hide in sums of so many numbers, where that is known."""
        least = self.rounds * (numbers or 0) * _UNRESOLVED
        if self.mechanism and self.mechanism.shares is None and not self.simulation and delta < least:
            raise ConfigError(
                f"delta = {delta:g}: the noise is made of finitely many bits, and hides nothing below {least:.3g} for "
                f"{self.rounds:,} rounds of {numbers:,} numbers; state a larger delta"
            )

    def facts(self, head: str, worse: tuple[str, ...] = ()) -> RunFacts:
        """What a statement says of the run in addition to the guarantee, and what was worse than promised, in words."""
        return RunFacts(
            clip_norm=self.terms.clip_norm,
            expected_cohort_size=self.terms.expected_cohort_size,
            secure_noise=not self.simulation,
            planned_rounds=self.rounds,
            heads=(head,),
            adaptive=self.terms.adaptive,
            statistics=MOMENTS if self.settings.get("statistics") == MOMENTS else "",
            normalized=self.settings.get("data.normalization") is not None,
            worse=worse,
        )

    def record(self) -> dict[str, Any]:
        """The promise as strict JSON, for the ledger's first line; the strategy's arrays stand in it by their SHA-256."""
        return {
            **{name: getattr(self, name) for name in _AS_IT_IS},
            "schema": SCHEMA,
            "earlier": [run.record() for run in self.earlier],
            "further": [asdict(assumption) for assumption in self.further],
            "not_covered": list(self.not_covered),
            "noise": _NOT_FOR_RELEASE if self.simulation else "secure",
            "mechanism": None if self.mechanism is None else self._mechanism_record(self.mechanism),
            "settings": dict(self.settings),
        }

    def _mechanism_record(self, mechanism: Mechanism) -> dict[str, Any]:
        """The mechanism as strict JSON values, with what follows from it: both are compared when a run resumes."""
        promised, named = self.after(self.rounds, self.delta), strategy_arrays(mechanism.strategy)
        arrays = {name: {"shape": list(array.shape), "sha256": _sha256(array)} for name, array in named.items()}
        return {
            "strategy": {**strategy_numbers(mechanism.strategy), **arrays},
            "participation": participation_record(mechanism.participation),
            "noise_multiplier": mechanism.noise_multiplier,
            "shares": None if mechanism.shares is None else asdict(mechanism.shares),
            "stddev": mechanism.stddev,
            "l2_sensitivity": mechanism.l2_sensitivity,
            "neighboring_relation": self.neighboring_relation or default_relation(mechanism.participation),
            "epsilon": promised.epsilon if promised.private else None,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], arrays: Mapping[str, Array]) -> "Promise":
        """The promise of a record. Nothing that the record names is imported, and users compute what it states again.

        Args:
            record: What :meth:`record` wrote.
            arrays: The strategy's, by name (see :func:`hubbub.mechanism.strategies.strategy_arrays`).

        Raises:
            LedgerError: The record is of another schema, is damaged, or its arrays are not those given.
        """
        if type(record.get("schema")) is not int or record["schema"] != SCHEMA:
            raise LedgerError(
                f"ledger.jsonl, line 1: schema = {str(record.get('schema'))[:80]!r}: this run was begun with another version "
                f"of hubbub, and this one reads schema {SCHEMA}; use the version that began it, or begin a new run"
            )
        with refusing(Path("ledger.jsonl, line 1"), "the promise cannot be read", kind=LedgerError):
            # Types and words: constructors check the numbers.
            one_of("kind", record["kind"], ("promise",))
            one_of("noise", record["noise"], ("secure", _NOT_FOR_RELEASE))
            one_of("accountant", record["accountant"], ACCOUNTANTS)
            one_of("privacy_unit", record["privacy_unit"], wording.UNITS)
            table("settings", record["settings"])
            stated = record["mechanism"]
            mechanism = None if stated is None else _mechanism(table("mechanism", stated), arrays)
            further, not_covered = wording.words_from_record(record)
            Terms.of(record["settings"])
            return cls(
                **{name: record[name] for name in _AS_IT_IS},
                mechanism=mechanism,
                neighboring_relation=None if stated is None else stated["neighboring_relation"],
                simulation=record["noise"] == _NOT_FOR_RELEASE,
                earlier=_earlier(record["earlier"]),
                further=further,
                not_covered=not_covered,
            )


def _earlier(stated: object) -> tuple[RunCharge, ...]:
    """The earlier runs that the record of a promise names."""
    if not isinstance(stated, list):
        raise TypeError(f"earlier = {str(stated)[:80]!r}: must be a list of runs")
    return tuple(RunCharge.from_record(run) for run in stated)


def _strict(settings: Mapping[str, Any]) -> bool:
    """Whether settings are as their record will be."""
    try:
        return bool(strict_json.loads(strict_json.canonical(dict(settings))) == dict(settings))
    except (TypeError, ValueError):
        return False


def _require_holders(mechanism: Mechanism | None, setting: str) -> None:
    """Refuse noise by key holders without a mechanism, together with noise shares, or without a setting."""
    if mechanism is None:
        raise ConfigError("noise_by = 'holders': a run without a mechanism has no noise to add; leave it out")
    if mechanism.shares is not None:
        raise ConfigError(
            f"noise_by = 'holders' with mechanism.shares = {mechanism.shares}: the clients bring the noise along already; take "
            "one of the two"
        )
    if not setting:
        raise ConfigError("setting: is missing; where share holders add the noise, say in one line who is trusted with what")


def _mechanism(stated: Mapping[str, Any], arrays: Mapping[str, Array]) -> Mechanism:
    """The mechanism of a promise, with the arrays of its strategy where their digests stand."""
    one_of("neighboring_relation", stated["neighboring_relation"], RELATIONS)
    participation = participation_of(table("participation", stated["participation"]))
    described = dict(table("strategy", stated["strategy"]))
    for name, value in described.items():
        if isinstance(value, Mapping):
            if name not in arrays or _sha256(arrays[name]) != value["sha256"]:
                raise ValueError(f"strategy: its {name} is not the one that was promised")
            described[name] = arrays[name]
    shares = None if stated["shares"] is None else NoiseShares(**table("shares", stated["shares"]))
    return Mechanism(from_parts(described), participation, stated["noise_multiplier"], shares)


def _sha256(array: Array) -> str:
    """Of the entries and the shape."""
    content = np.ascontiguousarray(array, dtype="<f8").tobytes()
    return hashlib.sha256(strict_json.canonical(list(array.shape)) + content).hexdigest()
