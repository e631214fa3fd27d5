"""The plan of a run, a value: everything that is decided before its first round.

A :class:`Plan` is what a user writes. For a number of clients it becomes a :class:`RunPlan`, which the loop reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from hubbub._util.checks import integer, lattice_bits, number, one_of, open_unit, plain_numbers, positive, probability, scale
from hubbub.accounting.events_of_mechanism import mechanism_events, stated_relation
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.statement import PrivacyGuarantee
from hubbub.accounting.wording import UNITS, Assumption
from hubbub.errors import ConfigError
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism, NoiseBy
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import Identity
from hubbub.mechanism.workloads import Workload, momentum
from hubbub.noise.steps import require_room, step_of
from hubbub.training.clipping import AdaptiveClipping, ClipNorms, Clipping

if TYPE_CHECKING:
    # A plan needs no tensors.
    import torch


NoiseKind = Literal["secure", "simulation"]
ServerName = Literal["fedavg", "fedavgm", "fedadam"]


@dataclass(frozen=True)
class ServerOptimizer:
    """The server's step with the mean update: one of a torch optimizer, whose gradient is minus the update.

    Args:
        name: ``"fedavg"`` (SGD), ``"fedavgm"`` (SGD with momentum) or ``"fedadam"`` (Adam).
        learning_rate: Above 0; 1 adds the mean update as it is.
        momentum: Of fedavgm, in [0, 1).
        cooldown: The fraction of the rounds, at the end, in which the learning rate falls linearly; 0 for none.
        cooldown_to: The learning rate of the last round, over that of the first.

    Example:
        >>> [round(ServerOptimizer(cooldown=0.5, cooldown_to=0.2).rate(t, rounds=4), 3) for t in range(4)]
        [1.0, 1.0, 0.6, 0.2]

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", https://arxiv.org/abs/2003.00295.
    """

    name: ServerName = "fedavg"
    learning_rate: float = 1.0
    momentum: float = 0.9
    # Recorded on its own, in the settings of the promise.
    cooldown: float = field(default=0.0, repr=False)
    cooldown_to: float = field(default=0.05, repr=False)

    def __post_init__(self) -> None:
        plain_numbers(self, cooldown_to=probability)
        one_of("server_optimizer", self.name, get_args(ServerName))
        positive("server_learning_rate", self.learning_rate)
        number("server_momentum", self.momentum, lambda x: 0 <= x < 1, "be at least 0 and below 1")
        number("cooldown", self.cooldown, lambda x: 0 <= x <= 1, "be from 0 to 1, a fraction of the rounds")

    def rate(self, round_index: int, rounds: int) -> float:
        """The learning rate of a round of a run, over that of the first."""
        # 0.07 * 100 is above 7.
        falling = math.ceil(round(self.cooldown * rounds, 9))
        passed = round_index + 1 - (rounds - falling)
        return 1.0 if passed <= 0 else 1 - (1 - self.cooldown_to) * min(passed / falling, 1.0)

    def workload(self, rounds: int) -> Workload:
        """The workload of the mean updates, up to the learning rate; for Adam, which is not linear, that of plain steps."""
        rates = tuple(self.rate(t, rounds) for t in range(rounds)) if self.cooldown else None
        return momentum(rounds, self.momentum if self.name == "fedavgm" else 0.0, rates)

    def build(self, vector: torch.Tensor) -> torch.optim.Optimizer:
        """The optimizer of one flat vector, ``(dim,)``."""
        import torch

        match self.name:
            case "fedavg":
                return torch.optim.SGD([vector], lr=self.learning_rate)
            case "fedavgm":
                return torch.optim.SGD([vector], lr=self.learning_rate, momentum=self.momentum)
            case "fedadam":
                return torch.optim.Adam([vector], lr=self.learning_rate, betas=(0.9, 0.99), eps=1e-3)


@dataclass(frozen=True)
class RunPlan:
    """Everything that is decided before a run's first round; :class:`Plan` makes it of a mechanism.

    Args:
        rounds: Number of rounds.
        participation: Which rounds a client may join; with a mechanism, the mechanism's.
        expected_cohort_size: The fixed number that sums are divided by; for a participation pattern, the size of each cohort.
        mechanism: The mechanism of the sums; ``None`` for no privacy.
        clip_norm: The largest L2 norm of one client's update, or adaptive clipping; required with a mechanism.
        delta: Of the guarantee.
        neighboring_relation: By default that of the participation.
        accountant: The accountant that computes epsilon.
        server: The server optimizer.
        seed: Of a simulation's cohorts and noise.
        noise: ``"secure"``: cohorts, shuffles, dropout and noise under secret keys; ``"simulation"``: under the seed, not for
            release.
        settings: Further settings (data, model, local training) as strict JSON values; a run is resumed with the same ones
            only.
        earlier: Runs over the same people whose costs count together with this one's.
        lattice_bits: Of the lattice of the sums, from 8 to 24; the same for the population and a mechanism's shares.
        noise_by: Who adds the noise, if the mechanism has no shares.
        setting: One line on who is trusted with what; empty for a server that sees each update.
        further: Assumptions in addition to the guarantee's own.
        not_covered: Releases that the guarantee does not cover, in addition to those that no guarantee covers.
        privacy_unit: ``"client"`` or ``"example"``: the unit whose contribution is clipped.
        evaluation: The private evaluations, which the guarantee counts.

    Raises:
        ConfigError: A mechanism for other rounds, another participation or another lattice, without a clip norm, or with more
            noise than can be added exactly; adaptive clipping without a mechanism or under correlated noise; or noise by
            holders that the promise refuses.
        ValueError: A number out of range.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> mechanism = Mechanism(Identity(8), MinSeparation(min_separation=4, max_participations=2), noise_multiplier=3.0)
        >>> plan = RunPlan(8, mechanism.participation, expected_cohort_size=50, mechanism=mechanism, clip_norm=1.0, delta=1e-6)
        >>> round(plan.promised.epsilon, 3), plan.promised.neighboring_relation
        (2.113, 'zero-out')
    """

    rounds: int
    participation: Participation
    expected_cohort_size: float
    mechanism: Mechanism | None = None
    clip_norm: Clipping | None = None
    delta: float = 1e-5
    neighboring_relation: str | None = None
    accountant: str = "tight"
    server: ServerOptimizer = field(default_factory=ServerOptimizer)
    seed: int = 0
    noise: NoiseKind = "secure"
    settings: Mapping[str, Any] = field(default_factory=dict)
    earlier: tuple[RunCharge, ...] = ()
    lattice_bits: int = 24
    noise_by: NoiseBy = "server"
    setting: str = ""
    further: tuple[Assumption, ...] = ()
    not_covered: tuple[str, ...] = ()
    privacy_unit: str = "client"
    evaluation: PrivateEvaluation | None = None

    def __post_init__(self) -> None:
        plain_numbers(self, lattice_bits=lattice_bits)
        integer("rounds", self.rounds, at_least=1)
        positive("expected_cohort_size", self.expected_cohort_size)
        one_of("privacy_unit", self.privacy_unit, UNITS)
        _require_terms(self)
        mechanism = self.mechanism
        if mechanism and mechanism.participation != self.participation:
            raise ConfigError(f"participation = {self.participation}: the mechanism promises {mechanism.participation}")
        if mechanism and self.rounds > mechanism.rounds:
            raise ConfigError(f"rounds = {self.rounds}: the mechanism has noise for {mechanism.rounds} rounds")
        if (shared := self.promise().lattice_bits) != self.lattice_bits:
            raise ConfigError(
                f"lattice_bits = {self.lattice_bits}: mechanism.shares is for {shared}; the cost of noise "
                "shares is in steps of the lattice that the sums lie on"
            )
        # Refuses a relation, an accountant or a pairing that no theorem covers before the first release.
        _ = self.promised

    @cached_property
    def promised(self) -> PrivacyGuarantee:
        """The guarantee of all rounds, computed once: what is stated before the first of them."""
        return self.promise().after(self.rounds, self.delta)

    @property
    def scheduled_rounds(self) -> int:
        """The rounds of the learning-rate schedule: all of the mechanism's, even if fewer are run."""
        return self.rounds if self.mechanism is None else self.mechanism.rounds

    @cached_property
    def clip_norms(self) -> ClipNorms:
        """The clip norm of each round; with adaptive clipping also the split of the noise."""
        noise_multiplier = None if self.mechanism is None else self.mechanism.noise_multiplier
        return ClipNorms(self.clip_norm, noise_multiplier, self.expected_cohort_size)

    def release_bytes(self, parameters: int) -> int:
        """The size of a release on disk: 4 bytes a number if its whole steps are expected to fit into 32 bits, else 8."""
        each, bound = 8, self.clip_norms.bound(self.clip_norms.first)
        if self.noise == "secure" and self.mechanism is not None and bound is not None:
            from hubbub.mechanism.utility import largest_deviation

            # Of a million numbers none is likely to be six standard deviations off.
            far = largest_deviation(self.mechanism) + self.expected_cohort_size / math.sqrt(parameters)
            each = 4 if 6 * far * bound / step_of(bound, self.lattice_bits) < 2**31 else each
        return each * (parameters + self.clip_norms.further)

    def promise(self, **found: Any) -> Promise:
        """The promise that the ledger records; ``found`` are facts about the clients and the model."""
        own = {
            "participation": repr(self.participation),
            "expected_cohort_size": self.expected_cohort_size,
            **self.clip_norms.record(),
            "server": repr(self.server),
            **({"cooldown": [self.server.cooldown, self.server.cooldown_to]} if self.server.cooldown else {}),
            "seed": self.seed,
            **({} if self.lattice_bits == 24 else {"lattice_bits": self.lattice_bits}),
            **({} if self.evaluation is None else {"evaluation": self.evaluation.record()}),
        }
        if known := sorted(self.settings.keys() & {*own, *found}):
            raise ConfigError(f"settings: {known[0]!r} is a term of the plan itself; name yours otherwise")
        # Every other field of the promise is one of the plan.
        same = {part.name: getattr(self, part.name) for part in fields(Promise) if part.name not in ("simulation", "settings")}
        return Promise(**same, simulation=self.noise == "simulation", settings={**own, **found, **self.settings})


@dataclass(frozen=True)
class Plan:
    """The plan of a private run: rounds, participation and expected cohort size follow from the mechanism.

    Args:
        mechanism: Strategy, participation and noise multiplier.
        clip_norm: The largest L2 norm of one client's update, or adaptive clipping.
        delta: Of the guarantee.
        expected_cohort_size: The fixed number that sums are divided by; by default that of the participation for the number of
            clients. It is then public, and the statement says so.
        server: The server optimizer.
        neighboring_relation: By default that of the participation.
        seed: Of a simulation's cohorts and noise.
        noise: ``"secure"`` or ``"simulation"``; as for :class:`RunPlan`.
        evaluation: Private evaluations; give them to :func:`hubbub.calibrate`, too.
        earlier: Runs over the same people whose costs count together with this one's; give them to :func:`hubbub.calibrate` as
            ``prior``, too.

    Raises:
        TypeError: No mechanism.
        ConfigError: No clip norm, adaptive clipping under correlated noise, more noise than can be added exactly, or random
            cohorts with correlated noise that no theorem covers.
        ValueError: A number out of range, an unknown word, or a relation that no theorem covers.

    Example:
        >>> from hubbub.accounting import calibrate
        >>> from hubbub.mechanism.participation import PoissonSampling
        >>> mechanism = calibrate(rounds=100, participation=PoissonSampling(0.1), epsilon=4.0, delta=1e-5)
        >>> run = Plan(mechanism, clip_norm=1.0, delta=1e-5).for_clients(200)
        >>> run.rounds, run.expected_cohort_size
        (100, 20.0)
    """

    mechanism: Mechanism
    clip_norm: Clipping
    delta: float
    expected_cohort_size: float | None = None
    server: ServerOptimizer = field(default_factory=ServerOptimizer)
    neighboring_relation: str | None = None
    seed: int = 0
    noise: NoiseKind = "secure"
    evaluation: PrivateEvaluation | None = None
    earlier: tuple[RunCharge, ...] = ()

    def __post_init__(self) -> None:
        plain_numbers(self, expected_cohort_size=positive)
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(f"mechanism: is a {type(self.mechanism).__name__}, must be a Mechanism, as hubbub.calibrate makes")
        stated_relation(self.mechanism.participation, self.neighboring_relation)
        # Refuses cohorts and noise that no theorem covers together.
        mechanism_events(self.mechanism, rounds=0)
        _require_terms(self)

    def for_clients(self, clients: int, privacy_unit: str = "client") -> RunPlan:
        """The full plan for a number of clients, or of examples if these are the unit.

        Raises:
            ConfigError: So few clients that no cohort has one; or as for :class:`RunPlan`.
        """
        rounds, participation = self.mechanism.rounds, self.mechanism.participation
        size = self.expected_cohort_size
        further: tuple[Assumption, ...] = ()
        if size is None:
            size = participation.expected_cohort_size(clients, rounds)
            divisor = (
                f"the divisor of the sums, {size:g}, made of {clients:,} clients, is public and the same whoever takes part"
            )
            further = (Assumption(divisor, "operator"),)
            if size <= 0:
                raise ConfigError(
                    f"clients: there are {clients}, too few for {rounds} rounds of {participation}; take more clients or fewer "
                    "rounds, or say expected_cohort_size"
                )
        # Every field of this plan is one of the full plan.
        own = {part.name: getattr(self, part.name) for part in fields(Plan)} | {"expected_cohort_size": size}
        return RunPlan(rounds=rounds, participation=participation, further=further, privacy_unit=privacy_unit, **own)


def _require_terms(plan: RunPlan | Plan) -> None:
    """Refuse terms that no run may have."""
    open_unit("delta", plan.delta)
    integer("seed", plan.seed, at_least=0)
    one_of("noise", plan.noise, get_args(NoiseKind))
    mechanism = plan.mechanism
    if isinstance(plan.clip_norm, AdaptiveClipping):
        if mechanism is None:
            raise ConfigError(
                "clip_norm: adaptive clipping shares the noise between updates and their count, and a run without a mechanism "
                "has none; give a number, or a mechanism"
            )
        if type(mechanism.strategy) is not Identity:
            raise ConfigError(
                f"clipping = 'adaptive' with strategy = {type(mechanism.strategy).__name__}: correlated noise cancels over "
                "rounds only while the clip norm, its scale, stands still; adapt it in a short run with independent noise "
                "(mode = 'dp-fedavg'), name that run in privacy.earlier_runs so that its cost is counted, and fix clip_norm at "
                "what it found"
            )
    elif plan.clip_norm is not None:
        scale("clip_norm", plan.clip_norm)
    elif mechanism is not None:
        raise ConfigError("clip_norm: a run with a mechanism needs one; noise protects updates of a bounded norm only")
    if mechanism is not None and plan.noise == "secure":
        require_room(0, mechanism.stddev)
