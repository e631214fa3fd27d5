"""The options of the private strategies (cohorts, who adds the noise, failures), and the assumptions that follow from them."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypedDict, get_args

from flwr.serverapp.strategy import FedAvg, Strategy

from hubbub._util.checks import boolean, integer, nearest, one_of, open_unit, plain_numbers, positive, probability, scale, shown
from hubbub.accounting.guarantee import guarantee
from hubbub.accounting.wording import Assumption
from hubbub.errors import ConfigError
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism, NoiseShares
from hubbub.mechanism import participation as patterns
from hubbub.mechanism.participation import MinSeparation, Participation, PoissonSampling, RandomParticipation
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import Identity
from hubbub.training.head_hook import HeadHook

if TYPE_CHECKING:
    from hubbub.flower.secagg import Paillier
    from hubbub.training.encryption import Encryption

P = ParamSpec("P")
NoiseAt = Literal["server", "clients"]
Buffers = Literal["error", "keep"]
OnFailure = Literal["zero", "abort"]
Evaluation = Literal["off", "exact", "private"]
KeptBy = Literal["ledger", "devices"]
_EPSILON = "; it follows from the noise, which hubbub.calibrate finds for an epsilon, and stop_epsilon ends a run"
# The share of the run's ρ that evaluation="private" spends.
_SHARE = 0.05
# Strategies of Flower that do not average, by name, since some come and go between its versions.
_NOT_AVERAGING = ("Bulyan", "FedMedian", "FedTrimmedAvg", "FedXgbBagging", "FedXgbCyclic", "Krum", "MultiKrum", "QFedAvg")


class StrategyArguments(TypedDict, total=False):
    """The options as keyword arguments, all but ``num_sampled_clients``, for type checkers."""

    sampling_probability: float | None
    noise_at: NoiseAt
    min_survivors: int | None
    buffers: Buffers
    on_failure: OnFailure
    deadline: float | None
    report_goal: int | None
    keys_enforced: bool
    pattern_kept_by: KeptBy
    stop_epsilon: float | None
    delta: float
    state: str | Path | None
    expected_cohort_size: float | None
    evaluation: Evaluation | PrivateEvaluation
    simulation_seed: int | None
    head: str | None
    head_hook: HeadHook | None
    secagg: "Paillier | None"


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "num_sampled_clients": partial(integer, at_least=1),
    "report_goal": partial(integer, at_least=1),
    "simulation_seed": partial(integer, at_least=0),
    "sampling_probability": probability,
    "stop_epsilon": scale,
    "expected_cohort_size": scale,
    "deadline": positive,
    "delta": open_unit,
    "keys_enforced": boolean,
}


@dataclass(frozen=True)
class Options:
    """The options that all private strategies share; :class:`.DPFedAvgFixed` documents each."""

    num_sampled_clients: int | None = None
    sampling_probability: float | None = None
    noise_at: NoiseAt = "server"
    min_survivors: int | None = None
    buffers: Buffers = "error"
    on_failure: OnFailure = "zero"
    deadline: float | None = None
    report_goal: int | None = None
    keys_enforced: bool = False
    pattern_kept_by: KeptBy = "ledger"
    stop_epsilon: float | None = None
    delta: float = 1e-5
    state: str | Path | None = None
    expected_cohort_size: float | None = None
    evaluation: Evaluation | PrivateEvaluation = "off"
    simulation_seed: int | None = None
    head: str | None = None
    head_hook: HeadHook | None = None
    secagg: "Paillier | None" = None

    def __post_init__(self) -> None:
        plain_numbers(self, **_CHECKS)
        worded = {"noise_at": NoiseAt, "buffers": Buffers, "on_failure": OnFailure, "pattern_kept_by": KeptBy}
        if not isinstance(self.evaluation, PrivateEvaluation):
            worded["evaluation"] = Evaluation
        for name, words in worded.items():
            one_of(name, getattr(self, name), get_args(words))
        self._check_folder()
        if self.secagg is not None:
            self._check_secagg(self.secagg)
        self._check_noise()
        self._check_failures()

    def _check_folder(self) -> None:
        if self.head is not None and not isinstance(self.head, str):
            raise TypeError(f"head = {self.head!r}: must be the text of ledger_head")
        if self.head_hook is not None and not isinstance(self.head_hook, HeadHook):
            raise TypeError(f"head_hook = {type(self.head_hook).__name__}: must be a hubbub.training.HeadHook, or None")
        if self.state is not None:
            if not isinstance(self.state, str | Path):
                raise TypeError(f"state = {self.state!r}: must name a folder")
            folder = Path(self.state).expanduser()
            if not str(self.state).strip() or folder.resolve() in (Path.cwd(), Path.home(), Path("/")):
                # The folder becomes its owner's alone, and is filled.
                raise ValueError(f"state = {str(self.state)!r}: must name a folder of the run's own, such as 'state'")
            # Absolute, so that a change of the working folder does not matter.
            object.__setattr__(self, "state", folder.absolute())
        elif self.head_hook is not None:
            raise ConfigError("head_hook: protects a folder, and this run has none; give state=, or leave head_hook out")

    def _check_secagg(self, secagg: "Paillier") -> None:
        from hubbub.flower.secagg import Paillier

        if not isinstance(secagg, Paillier):
            raise TypeError(f"secagg = {type(secagg).__name__}: must be a hubbub.flower.Paillier, or None")
        if self.pattern_kept_by == "devices":
            raise ConfigError(
                "pattern_kept_by = 'devices' with secagg: is not offered, since holders check who was asked; leave one out"
            )
        if self.noise_at == "clients" and secagg.noise_by != "clients":
            raise ConfigError(
                f"noise_at = 'clients' with secagg.noise_by = {secagg.noise_by!r}: say secagg=Paillier(…, noise_by='clients')"
            )
        if secagg.noise_by == "clients":
            object.__setattr__(self, "noise_at", "clients")
        secagg.require_cohort(self.num_sampled_clients)

    def _check_noise(self) -> None:
        if self.noise_at == "server":
            if self.min_survivors is not None:
                raise ConfigError(f"min_survivors = {self.min_survivors!r}: belongs to noise_at = 'clients'; leave it out")
            return
        if self.sampling_probability is not None or self.num_sampled_clients is None:
            raise ConfigError(
                "noise_at = 'clients': needs cohorts of a fixed size; give num_sampled_clients, or add the noise at the server"
            )
        if self.min_survivors is None:
            raise ConfigError(
                "min_survivors: is missing; with noise_at = 'clients' each noise share is sized for that many survivors, and a "
                "round with fewer is discarded"
            )
        integer("min_survivors", self.min_survivors, at_least=1, at_most=self.num_sampled_clients)

    def _check_failures(self) -> None:
        if self.on_failure == "abort" and self.num_sampled_clients is None:
            raise ConfigError(
                "on_failure = 'abort': of random cohorts the rounds that are discarded would reveal who is in them, and with a "
                "client that never answers that it exists; say on_failure='zero', or give num_sampled_clients"
            )
        if self.report_goal is None:
            return
        if self.on_failure != "abort":
            raise ConfigError(
                f"report_goal = {self.report_goal}: does nothing with on_failure = 'zero', which discards no round; say "
                "on_failure='abort', or leave report_goal out"
            )
        integer("report_goal", self.report_goal, at_least=1, at_most=self.num_sampled_clients)

    @property
    def folder(self) -> Path | None:
        """The run's folder; ``None`` in memory."""
        return None if self.state is None else Path(self.state)

    def shares(self) -> NoiseShares | None:
        """The noise shares of clients; ``None`` if they add none."""
        if self.min_survivors is None:
            return None
        return self.encryption.shares() if self.encryption else NoiseShares(self.min_survivors)

    @property
    def encryption(self) -> "Encryption | None":
        """The terms of encryption; ``None`` without ``secagg``."""
        return None if self.secagg is None else self.secagg.encryption(self.min_survivors)

    def require_fitting(self, mechanism: Mechanism) -> None:
        """Refuse a mechanism whose cohorts cannot be drawn, or whose participation pattern is not enforced."""
        pattern, stated = mechanism.participation, getattr(mechanism.participation, "sampling_probability", None)
        if self.sampling_probability not in (None, stated):
            raise ConfigError(f"sampling_probability = {self.sampling_probability}: the mechanism has {pattern}; leave it out")
        match pattern:
            case patterns.FixedSizeSampling() | patterns.TruncatedPoissonSampling():
                raise ConfigError(
                    f"participation = {pattern}: counts on a population of a fixed number, while nodes come "
                    "and go; use PoissonSampling, which amplifies as well, or a pattern"
                )
            case PoissonSampling() | patterns.CyclicPoissonSampling() | patterns.BallsInBinsSampling():
                if self.num_sampled_clients is not None:
                    raise ConfigError(
                        f"num_sampled_clients = {self.num_sampled_clients}: cohorts are sampled by {pattern}; "
                        "leave it out, and say expected_cohort_size where the number of clients is known"
                    )
            case patterns.SingleParticipation() | patterns.FixedEpochs() | MinSeparation():
                if self.num_sampled_clients is None:
                    raise ConfigError("num_sampled_clients: is missing; say how many clients are asked in a round")
        promised = promises(pattern, mechanism.rounds)
        if self.pattern_kept_by == "devices":
            if not isinstance(pattern, MinSeparation) or not promised:
                raise ConfigError(
                    f"pattern_kept_by = 'devices': a device has nothing to enforce of {pattern}; say MinSeparation, or leave "
                    "it out"
                )
        elif promised and not self.keys_enforced:
            raise ConfigError(
                f"keys_enforced = False: the run promises {pattern}, which a client breaks by returning under a new name; let "
                "the SuperLink admit registered keys only (--enable-supernode-auth) and say keys_enforced=True, or let each "
                "device enforce it (pattern_kept_by='devices')"
            )

    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of this run, in addition to those of every guarantee."""
        keys = (
            "by the operator's word (keys_enforced) the SuperLink admits registered keys only, and each person has one"
            if self.keys_enforced
            else "each person runs one node at a time; nodes are known by what they say of themselves"
        )
        stated = [] if self.pattern_kept_by == "devices" else [keys]
        stated.append("which answers are read before a round closes does not depend on the data of other clients")
        stated.append("more nodes are connected than a round waits for, so that no single one decides whether it begins")
        if self.on_failure == "abort":
            stated.append("whether a client's reply is missing does not depend on the data")
        if self.state is None:
            stated.append("the run is not started again: its ledger is in memory, and a further start is a further run")
        further = self.encryption.further() if self.encryption else ()
        return (*(Assumption(text, "operator") for text in stated), *further)

    def measured(self, mechanism: Mechanism) -> PrivateEvaluation | None:
        """The private evaluation, if any; by default the accuracy of all clients at a twentieth of the run's ρ."""
        if self.evaluation in ("off", "exact"):
            return None
        if self.secagg or self.noise_at == "clients":
            raise ConfigError(
                "evaluation: the server reads what clients measure and adds the noise, as it does not with encrypted sums or "
                "noise by clients; leave it out"
            )
        if isinstance(self.evaluation, PrivateEvaluation):
            return self.evaluation
        whole, every = guarantee(mechanism, self.delta).epsilon, min(10, mechanism.rounds)
        return PrivateEvaluation.at_share(_SHARE, rounds=mechanism.rounds, epsilon=whole, delta=self.delta, every=every)

    def not_covered(self) -> tuple[str, ...]:
        """Releases that the guarantee does not cover."""
        exact = () if self.evaluation != "exact" else ("the metrics of federated evaluation, which are exact",)
        return (*exact, *(self.encryption.not_covered() if self.encryption else ()))

    def promise(self, mechanism: Mechanism, settings: Mapping[str, object]) -> Promise:
        """The promise that the ledger records."""
        encryption = self.encryption
        if self.secagg and encryption:
            settings = {**settings, "lattice_bits": encryption.lattice_bits, "secagg": self.secagg.settings()}
        if self.pattern_kept_by == "devices":
            settings = {**settings, "pattern_kept_by": "devices"}
        if measured := self.measured(mechanism):
            settings = {**settings, "evaluation": measured.record()}
        # A divisor that is counted depends on the number of clients: neighbors then have the same number.
        counted = self.expected_cohort_size is None and isinstance(mechanism.participation, RandomParticipation)
        return Promise(
            rounds=mechanism.rounds,
            mechanism=mechanism,
            neighboring_relation="zero-out" if counted else None,
            delta=self.delta,
            simulation=self.simulation_seed is not None,
            settings=settings,
            further=self.assumptions(),
            not_covered=self.not_covered(),
            noise_by="holders" if encryption and encryption.noise_by == "holders" else "server",
            setting=encryption.setting() if encryption else "",
        )


def knowing(init: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """A constructor that tells a keyword that is no option, by the name of the class that was called, before a missing one."""
    named = [name for name, one in inspect.signature(init).parameters.items() if one.kind is not one.VAR_KEYWORD]
    known = [*named[1:], *StrategyArguments.__annotations__]

    @functools.wraps(init)
    def checked(self: Any, *args: P.args, **given: P.kwargs) -> None:
        for name, value in given.items():
            if name not in known:
                meant = _EPSILON if name == "epsilon" else nearest(name, known)
                listed = ", ".join(known)
                raise TypeError(f"{name} = {shown(value)}: is no argument of {type(self).__name__}{meant}; known are {listed}")
        init(self, *args, **given)

    return checked  # type: ignore[return-value] # the first argument has a name


def independent_noise(options: Options, noise_multiplier: float, rounds: int) -> Mechanism:
    """The mechanism of DP-FedAvg: fresh noise in each of at most ``rounds`` rounds, which any client may join."""
    size, sampling = options.num_sampled_clients, options.sampling_probability
    if (size is None) == (sampling is None):
        raise ConfigError(
            f"num_sampled_clients = {size!r} and sampling_probability = {sampling!r}: give one of the two, a number of clients "
            "or the probability of Poisson sampling"
        )
    pattern = patterns.every_round(integer("rounds", rounds, at_least=1))
    participation: Participation = pattern if sampling is None else PoissonSampling(sampling)
    return Mechanism(Identity(rounds), participation, noise_multiplier, shares=options.shares())


def require_averaging(strategy: object) -> Strategy:
    """The strategy, if it is one that averages."""
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        raise TypeError(f"strategy = {strategy.__name__}: is a class; make one of it, {strategy.__name__}()")
    if not isinstance(strategy, Strategy):
        raise TypeError(
            f"strategy = {type(strategy).__name__}: must be a strategy of flwr.serverapp.strategy, such as FedAvg(); those of "
            "flwr.server.strategy, the legacy API, are not wrapped"
        )
    kinds = {kind.__name__ for kind in type(strategy).__mro__}
    if "PrivateStrategy" in kinds or any("DifferentialPrivacy" in name for name in kinds):
        raise ConfigError(f"strategy = {type(strategy).__name__}: is private itself; wrap the strategy within it")
    if not kinds.isdisjoint(_NOT_AVERAGING):
        raise ConfigError(
            f"strategy = {type(strategy).__name__}: uses single updates, which noise on their sum does not protect; "
            "wrap one that averages, such as FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi or FedProx"
        )
    if isinstance(strategy, FedAvg) and strategy.fraction_train == 0:
        raise ConfigError("strategy: has fraction_train = 0, so that no round would train; leave that out")
    return strategy


def promises(participation: Participation, rounds: int) -> bool:
    """Whether a client could break the participation pattern by returning under another name."""
    match participation:
        case PoissonSampling():
            return False
        case MinSeparation(1, most):
            return most < rounds
        case _:
            return True
