"""Flower's four ``DifferentialPrivacy…`` strategies, with the same names and arguments and this package's privacy.

::

    # from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
    from hubbub.flower.twins import DifferentialPrivacyServerSideFixedClipping

What the calls mean stays; what is done is that of :class:`.DPFedAvgFixed` and :class:`.DPFedAvgAdaptive`, so that in a few
places a user meets a clear error, or a number, where Flower's classes go on: see each class.
"""

from collections.abc import Iterable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid, PrivacyAccountant, PrivacySpent
from flwr.serverapp.strategy import Strategy

from hubbub._checks import finite, integer, positive, scale
from hubbub.errors import ConfigError
from hubbub.flower.flower_mods import with_flowers_key, with_our_bit
from hubbub.flower.strategies import DPFedAvgAdaptive, DPFedAvgFixed
from hubbub.flower.terms import Buffers, Evaluation, OnFailure

__all__ = [
    "DifferentialPrivacyClientSideAdaptiveClipping",
    "DifferentialPrivacyClientSideFixedClipping",
    "DifferentialPrivacyServerSideAdaptiveClipping",
    "DifferentialPrivacyServerSideFixedClipping",
]

_DELTA = 1e-5


class DifferentialPrivacyServerSideFixedClipping(DPFedAvgFixed):
    """Flower's class of this name, in the arguments; :class:`.DPFedAvgFixed` in what is done.

    Where it differs from Flower's: every round asks ``num_sampled_clients`` clients, whatever fraction ``strategy`` would
    sample; noise is on the sum, before ``strategy`` and its optimizer see it; all clients weigh the same; a client that does
    not answer counts as zero; metrics and federated evaluation, which no noise hides, are off (``evaluation``); a model with
    buffers is refused, or keeps them (``buffers``); and a run that has used up its budget makes no further rounds.

    Args:
        strategy: One that averages, such as ``FedAvg(...)``.
        noise_multiplier: Standard deviation of the noise on the sum, over the clipping norm. 0 hides nothing and is refused.
        clipping_norm: The largest L2 norm of a client's update.
        num_sampled_clients: How many clients are asked in a round.
        accountant: Of it only the budget is taken over: ``config.max_epsilon`` as ``stop_epsilon``, ``config.target_delta`` as
            ``delta``. What is spent stands in this strategy's own ledger, which charges a round before its messages leave and
            survives a restart (``state``); the accountant is never told of a release. See :meth:`privacy_spent`.
        buffers: As of :class:`.DPFedAvgFixed`, and so all that follow.
        delta: By default the accountant's, or 1e-5.

    Raises:
        ConfigError: Settings that do not go together, or an accountant that counts otherwise or has counted before.
        ValueError: A number out of range.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 0.5, 10)
        >>> strategy.clipping_norm, strategy.guarantee().epsilon
        (0.5, 0.0)
    """

    def __init__(
        self,
        strategy: Strategy,
        noise_multiplier: float,
        clipping_norm: float,
        num_sampled_clients: int,
        *,
        accountant: PrivacyAccountant | None = None,
        buffers: Buffers = "error",
        on_failure: OnFailure = "zero",
        keys_enforced: bool = False,
        stop_epsilon: float | None = None,
        delta: float | None = None,
        state: str | Path | None = None,
        expected_cohort_size: float | None = None,
        rounds: int = 10_000,
        evaluation: Evaluation = "off",
        simulation_seed: int | None = None,
        head: str | None = None,
    ) -> None:
        stop_epsilon, delta = _budget(accountant, stop_epsilon, delta)
        super().__init__(
            strategy,
            clip_norm=scale("clipping_norm", clipping_norm),
            noise_multiplier=_noise_multiplier(noise_multiplier),
            num_sampled_clients=integer("num_sampled_clients", num_sampled_clients, at_least=1),
            buffers=buffers,
            on_failure=on_failure,
            keys_enforced=keys_enforced,
            stop_epsilon=stop_epsilon,
            delta=delta,
            state=state,
            expected_cohort_size=expected_cohort_size,
            rounds=rounds,
            evaluation=evaluation,
            simulation_seed=simulation_seed,
            head=head,
        )
        self.num_sampled_clients = num_sampled_clients

    @property
    def noise_multiplier(self) -> float:
        """As it was given."""
        return self.mechanism.noise_multiplier

    @property
    def clipping_norm(self) -> float:
        """As it was given."""
        return self.clip_norm

    def privacy_spent(self) -> PrivacySpent:
        """What the ledger holds, with or without an ``accountant``; :meth:`guarantee` says under which assumptions."""
        spent = self.guarantee()
        return PrivacySpent(float(spent.epsilon), spent.delta, self.rounds_charged, str(spent.accountant))


class DifferentialPrivacyClientSideFixedClipping(DifferentialPrivacyServerSideFixedClipping):
    """As :class:`DifferentialPrivacyServerSideFixedClipping`, for clients that clip; the server clips again all the same.

    The clients have ``clipping_mod``, or still Flower's own ``fixedclipping_mod``, which finds its ``clipping_norm`` in the
    configuration. The latter clips buffers too, and fails on arrays of whole numbers: with ``buffers="keep"`` use
    ``clipping_mod``. A client with neither is clipped here.
    """

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """As ever, with the clip norm under Flower's name as well."""
        return with_flowers_key(super().configure_train(server_round, arrays, config, grid))


class DifferentialPrivacyServerSideAdaptiveClipping(DPFedAvgAdaptive):
    """Flower's class of this name, in the arguments; :class:`.DPFedAvgAdaptive` in what is done.

    It differs from Flower's in all that :class:`DifferentialPrivacyServerSideFixedClipping` names, and in its step: here the
    clipping norm grows while more updates are clipped than ``target_clipped_quantile`` says, and shrinks while fewer are, so
    that it reaches the target from either side.

    Args:
        strategy: One that averages, such as ``FedAvg(...)``.
        noise_multiplier: Of updates and count together. 0 hides nothing and is refused.
        num_sampled_clients: How many clients are asked in a round.
        initial_clipping_norm: Of the first round.
        target_clipped_quantile: The part of the updates that shall be clipped; :class:`.DPFedAvgAdaptive` takes the part that
            shall not be.
        clip_norm_lr: Of the geometric step of the clipping norm.
        clipped_count_stddev: Standard deviation of the noise on the count; by default a twentieth of the cohort, or the noise
            multiplier where that is more.
        buffers: As of :class:`.DPFedAvgFixed`, and so all that follow.

    Raises:
        ConfigError: Settings that do not go together, or a strategy that does not average.
        ValueError: A number out of range, or noise on the count that leaves none for the updates.

    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1,
    https://arxiv.org/abs/1905.03871.
    """

    def __init__(
        self,
        strategy: Strategy,
        noise_multiplier: float,
        num_sampled_clients: int,
        initial_clipping_norm: float = 0.1,
        target_clipped_quantile: float = 0.5,
        clip_norm_lr: float = 0.2,
        clipped_count_stddev: float | None = None,
        *,
        buffers: Buffers = "error",
        on_failure: OnFailure = "zero",
        keys_enforced: bool = False,
        stop_epsilon: float | None = None,
        delta: float = _DELTA,
        state: str | Path | None = None,
        expected_cohort_size: float | None = None,
        rounds: int = 10_000,
        evaluation: Evaluation = "off",
        simulation_seed: int | None = None,
        head: str | None = None,
    ) -> None:
        if not 0 <= finite("target_clipped_quantile", target_clipped_quantile) <= 1:
            raise ValueError(f"target_clipped_quantile = {target_clipped_quantile!r}: must be from 0 to 1")
        super().__init__(
            strategy,
            noise_multiplier=_noise_multiplier(noise_multiplier),
            initial_clip_norm=scale("initial_clipping_norm", initial_clipping_norm),
            target_quantile=1 - target_clipped_quantile,
            clip_norm_learning_rate=positive("clip_norm_lr", clip_norm_lr),
            clip_count_stddev=None if clipped_count_stddev is None else scale("clipped_count_stddev", clipped_count_stddev),
            num_sampled_clients=integer("num_sampled_clients", num_sampled_clients, at_least=1),
            buffers=buffers,
            on_failure=on_failure,
            keys_enforced=keys_enforced,
            stop_epsilon=stop_epsilon,
            delta=delta,
            state=state,
            expected_cohort_size=expected_cohort_size,
            rounds=rounds,
            evaluation=evaluation,
            simulation_seed=simulation_seed,
            head=head,
        )
        self.num_sampled_clients = num_sampled_clients
        self.target_clipped_quantile = target_clipped_quantile
        self.clip_norm_lr = clip_norm_lr

    @property
    def noise_multiplier(self) -> float:
        """As it was given: of updates and count together. Flower's class has here that of the updates alone, which is more."""
        return self.mechanism.noise_multiplier

    @property
    def clipping_norm(self) -> float:
        """Of the next round."""
        return self.clip_norm


class DifferentialPrivacyClientSideAdaptiveClipping(DifferentialPrivacyServerSideAdaptiveClipping):
    """As :class:`DifferentialPrivacyServerSideAdaptiveClipping`, for clients that clip; the server clips again all the same.

    The clients have ``clipping_mod``, or still Flower's own ``adaptiveclipping_mod``: its ``norm_bit`` says that an update
    *was* clipped, and is read so. A client with neither is clipped and counted here. Nothing of the bits is released but their
    noised count.
    """

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """As ever, with the clip norm under Flower's name as well."""
        return with_flowers_key(super().configure_train(server_round, arrays, config, grid))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As ever, with what Flower's mod says of the norm in this package's words."""
        return super().aggregate_train(server_round, map(with_our_bit, replies))


def _noise_multiplier(value: float) -> float:
    if finite("noise_multiplier", value) == 0:
        raise ValueError(
            "noise_multiplier = 0: would hide nothing, and no guarantee could be given; for clipping without privacy use "
            "Flower's own class"
        )
    return scale("noise_multiplier", value)


def _budget(accountant: object, stop_epsilon: float | None, delta: float | None) -> tuple[float | None, float]:
    """Where a run stops, and the delta of that, from an accountant of Flower's or from what stands in its place."""
    if accountant is None:
        return stop_epsilon, _DELTA if delta is None else delta
    try:
        config, releases = accountant.config, accountant.num_releases  # type: ignore[attr-defined] # that is what is tried
        most, target, method = config.max_epsilon, config.target_delta, config.sampling_method
    except AttributeError as error:
        raise TypeError(f"accountant = {type(accountant).__name__}: must be a PrivacyAccountant of Flower ({error})") from error
    if releases:
        raise ConfigError(
            f"accountant: has counted {releases} releases already, which this run's ledger does not know of; give a fresh one "
            "with the budget that is left"
        )
    if getattr(method, "value", method) != "no-amplification":
        raise ConfigError(
            f"accountant: counts with sampling_method = {getattr(method, 'value', method)!r}, while cohorts of a fixed size "
            "amplify nothing; give one with 'no-amplification', or use hubbub.flower.DPFedAvgFixed with sampling_probability"
        )
    if stop_epsilon is not None and most is not None:
        raise ConfigError(f"stop_epsilon = {stop_epsilon}: the accountant has max_epsilon = {most}; give one of the two")
    if delta is not None and delta != target:
        raise ConfigError(f"delta = {delta}: the accountant has target_delta = {target}; leave one of the two out")
    return most if stop_epsilon is None else stop_epsilon, target
