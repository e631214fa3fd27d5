"""A run as a value: everything that is decided before the first round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from hubbub._util.checks import finite, integer, lattice_bits, one_of, open_unit, positive, scale
from hubbub.accounting.events_of_mechanism import mechanism_events, stated_relation
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.wording import UNITS, Assumption
from hubbub.errors import ConfigError
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism, NoiseBy
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import Identity
from hubbub.mechanism.utility import largest_deviation
from hubbub.mechanism.workloads import Workload, momentum
from hubbub.noise.steps import require_room, step_of
from hubbub.training.clipping import AdaptiveClipping, ClipNorms, Clipping

if TYPE_CHECKING:
    # A plan needs no tensors.
    import torch

__all__ = ["NoiseKind", "Plan", "RunPlan", "ServerOptimizer"]

NoiseKind = Literal["secure", "simulation"]
ServerName = Literal["fedavg", "fedavgm", "fedadam"]


@dataclass(frozen=True)
class ServerOptimizer:
    """What the server does with the mean update: a step of a torch optimizer, the update negated as its gradient.

    Args:
        name: ``"fedavg"`` (SGD), ``"fedavgm"`` (SGD with momentum) or ``"fedadam"`` (Adam).
        learning_rate: Above 0; 1 applies the mean update as it is.
        momentum: Of fedavgm, in [0, 1).
        cooldown: The part of the rounds, the last ones, in which the learning rate falls in a straight line; 0 for none.
        cooldown_to: What part of it is left in the last round.

    Example:
        >>> [round(ServerOptimizer(cooldown=0.5, cooldown_to=0.2).rate(t, rounds=4), 3) for t in range(4)]
        [1.0, 1.0, 0.6, 0.2]

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", https://arxiv.org/abs/2003.00295.
    """

    name: ServerName = "fedavg"
    learning_rate: float = 1.0
    momentum: float = 0.9
    # Not in what is recorded of a server where there is none, so that a run from before there was one can resume.
    cooldown: float = field(default=0.0, repr=False)
    cooldown_to: float = field(default=0.05, repr=False)

    def __post_init__(self) -> None:
        one_of("server_optimizer", self.name, get_args(ServerName))
        positive("server_learning_rate", self.learning_rate)
        if not 0 <= finite("server_momentum", self.momentum) < 1:
            raise ValueError(f"server_momentum = {self.momentum!r}: must be at least 0 and below 1")
        if not 0 <= finite("cooldown", self.cooldown) <= 1:
            raise ValueError(f"cooldown = {self.cooldown!r}: must be from 0 to 1, the part of the rounds that it takes")
        if not 0 < finite("cooldown_to", self.cooldown_to) <= 1:
            raise ValueError(f"cooldown_to = {self.cooldown_to!r}: must be above 0 and at most 1")

    def rate(self, round_index: int, rounds: int) -> float:
        """The learning rate of a round of a run, over that of the first: a function of the round, whatever came before."""
        falling = math.ceil(self.cooldown * rounds)
        passed = round_index + 1 - (rounds - falling)
        return 1.0 if passed <= 0 else 1 - (1 - self.cooldown_to) * min(passed / falling, 1.0)

    def workload(self, rounds: int) -> Workload:
        """What the optimizer makes of the mean updates, up to the learning rate; of Adam, which is not linear, plain steps."""
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
    """What a run will do.

    Args:
        rounds: Number of rounds.
        participation: Who may contribute when; with a mechanism, the mechanism's.
        expected_cohort_size: The fixed number that sums are divided by; for a pattern, the size of each cohort.
        mechanism: How sums are hidden; ``None`` for no privacy.
        clip_norm: The largest L2 norm of one client's update, or the rule by which it moves; needed with a mechanism.
        delta: Of the guarantee.
        neighboring_relation: By default that of the participation.
        accountant: Who computes epsilon.
        server: What the server does with the mean.
        seed: Of shuffles; in a simulation also of cohorts and noise.
        noise: ``"secure"``: cohorts and noise under secret keys; ``"simulation"``: under the seed, not for release.
        settings: What else the run depends on (data, model, local training), as strict JSON values: a run is resumed with the
            same ones only.
        earlier: Runs over the same people whose costs count together with this one's.
        lattice_bits: Of the lattice that sums lie on, from 8 to 24: the population's, and that of a mechanism's shares.
        noise_by: Who adds the noise, where the mechanism has no shares.
        setting: One line of who is trusted with what; empty for a server that sees each update.
        further: What is assumed in addition to the guarantee's own assumptions.
        not_covered: What costs extra, or is not hidden at all, in addition to what no guarantee covers.
        privacy_unit: Whose contribution is clipped as one: ``"client"``, or ``"example"`` where each example is one by itself.
        evaluation: What is measured of the units under noise, which the guarantee counts.

    Raises:
        ConfigError: The mechanism was made for other rounds, another participation or another lattice, or has no clip norm, or
            has more noise than can be added exactly; or noise of holders that the promise refuses; or a clip norm that moves
            where nothing is hidden, or under correlated noise.
        ValueError: A number out of range.
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
        integer("rounds", self.rounds, at_least=1)
        positive("expected_cohort_size", self.expected_cohort_size)
        lattice_bits("lattice_bits", self.lattice_bits)
        one_of("privacy_unit", self.privacy_unit, UNITS)
        _require_terms(self)
        if self.mechanism is None:
            # What a promise refuses is refused here.
            self.promise()
            return
        if self.mechanism.participation != self.participation:
            raise ConfigError(f"participation = {self.participation}: the mechanism promises {self.mechanism.participation}")
        if self.rounds > self.mechanism.rounds:
            raise ConfigError(f"rounds = {self.rounds}: the mechanism has noise for {self.mechanism.rounds} rounds")
        promise = self.promise()
        if promise.lattice_bits != self.lattice_bits:
            raise ConfigError(
                f"lattice_bits = {self.lattice_bits}: mechanism.shares is for {promise.lattice_bits}; the cost of noise "
                "shares is in steps of the lattice that the sums lie on"
            )
        # A relation, an accountant or a pairing that no theorem covers is refused here, not after the first release.
        promise.after(self.rounds, self.delta)

    @property
    def scheduled_rounds(self) -> int:
        """The rounds over which the server's learning rate is planned: all that the noise is for, even if fewer are run."""
        return self.rounds if self.mechanism is None else self.mechanism.rounds

    @cached_property
    def clip_norms(self) -> ClipNorms:
        """The clip norm of each round, and how the noise is shared where it moves."""
        noise_multiplier = None if self.mechanism is None else self.mechanism.noise_multiplier
        return ClipNorms(self.clip_norm, noise_multiplier, self.expected_cohort_size)

    def release_bytes(self, parameters: int) -> int:
        """The size of a release on disk: 4 bytes a number if its whole steps are expected to fit into 32 bits, else 8."""
        each, bound = 8, self.clip_norms.bound(self.clip_norms.first)
        if self.noise == "secure" and self.mechanism is not None and bound is not None:
            # No number of a million is likely to be six standard deviations off, or as far above the mean square of its sum.
            far = largest_deviation(self.mechanism) + self.expected_cohort_size / math.sqrt(parameters)
            each = 4 if 6 * far * bound / step_of(bound, self.lattice_bits) < 2**31 else each
        return each * (parameters + self.clip_norms.further)

    def promise(self, **found: Any) -> Promise:
        """What the ledger holds the run to; ``found`` are facts about the clients and the model."""
        own = {
            "participation": repr(self.participation),
            "expected_cohort_size": self.expected_cohort_size,
            **self.clip_norms.record(),
            "server": repr(self.server),
            **({"cooldown": [self.server.cooldown, self.server.cooldown_to]} if self.server.cooldown else {}),
            "seed": self.seed,
            # Not of the finest lattice, so that a run from before there were others can resume.
            **({} if self.lattice_bits == 24 else {"lattice_bits": self.lattice_bits}),
            **({} if self.evaluation is None else {"evaluation": self.evaluation.record()}),
        }
        return Promise(
            rounds=self.rounds,
            mechanism=self.mechanism,
            neighboring_relation=self.neighboring_relation,
            privacy_unit=self.privacy_unit,
            accountant=self.accountant,
            delta=self.delta,
            simulation=self.noise == "simulation",
            settings={**own, **found, **self.settings},
            earlier=self.earlier,
            further=self.further,
            not_covered=self.not_covered,
            noise_by=self.noise_by,
            setting=self.setting,
        )


@dataclass(frozen=True)
class Plan:
    """A private run in as few words as it takes: rounds, participation and cohort size follow from the mechanism.

    Args:
        mechanism: How sums are hidden, over how many rounds, and who may contribute when.
        clip_norm: The largest L2 norm of one client's update, or the rule by which it moves.
        delta: Of the guarantee.
        expected_cohort_size: The fixed number that sums are divided by; by default what the participation gives for the number
            of clients. That divisor is then public, and the statement says so.
        server: What the server does with the mean.
        neighboring_relation: By default that of the participation.
        seed: Of shuffles; in a simulation also of cohorts and noise.
        noise: ``"secure"`` or ``"simulation"``; as for :class:`RunPlan`.
        evaluation: What is measured of the clients under noise; give it to :func:`hubbub.calibrate`, too.

    Raises:
        TypeError: No mechanism.
        ConfigError: No clip norm, or one that moves under correlated noise, or more noise than can be added exactly; or random
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

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(f"mechanism: is a {type(self.mechanism).__name__}, must be a Mechanism, as hubbub.calibrate makes")
        if self.expected_cohort_size is not None:
            positive("expected_cohort_size", self.expected_cohort_size)
        stated_relation(self.mechanism.participation, self.neighboring_relation)
        # Cohorts and noise that no theorem covers together are refused by what charges them.
        mechanism_events(self.mechanism, rounds=0)
        _require_terms(self)

    def for_clients(self, clients: int) -> RunPlan:
        """The run of a number of clients, with everything that is decided before its first round.

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
        return RunPlan(
            rounds=rounds,
            participation=participation,
            expected_cohort_size=size,
            mechanism=self.mechanism,
            clip_norm=self.clip_norm,
            delta=self.delta,
            neighboring_relation=self.neighboring_relation,
            server=self.server,
            seed=self.seed,
            noise=self.noise,
            further=further,
            evaluation=self.evaluation,
        )


def _require_terms(plan: RunPlan | Plan) -> None:
    """Refuse what no run may have, however many clients there are."""
    open_unit("delta", plan.delta)
    integer("seed", plan.seed, at_least=0)
    one_of("noise", plan.noise, get_args(NoiseKind))
    if isinstance(plan.clip_norm, AdaptiveClipping):
        _require_adaptable(plan.mechanism)
    elif plan.clip_norm is not None:
        scale("clip_norm", plan.clip_norm)
    elif plan.mechanism is not None:
        raise ConfigError("clip_norm: a run with a mechanism needs one; noise hides updates of a bounded norm only")
    if plan.mechanism is not None and plan.noise == "secure":
        require_room(0, plan.mechanism.stddev)


def _require_adaptable(mechanism: Mechanism | None) -> None:
    """Refuse a clip norm that moves where there is no noise to share, or where noise must cancel over rounds."""
    if mechanism is None:
        raise ConfigError(
            "clip_norm: adaptive clipping shares the noise between updates and their count, and a run without a mechanism has "
            "none; give a number, or a mechanism"
        )
    if type(mechanism.strategy) is not Identity:
        raise ConfigError(
            f"clipping = 'adaptive' with strategy = {type(mechanism.strategy).__name__}: correlated noise cancels over rounds "
            "only while the clip norm, its scale, stands still; adapt it in a short run with independent noise "
            "(mode = 'dp-fedavg'), name that run in privacy.earlier_runs so that its cost is counted, and fix clip_norm at "
            "what it found"
        )
