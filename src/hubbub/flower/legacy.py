"""The private strategies for servers that still run Flower's legacy API (``configure_fit``, ``aggregate_fit``).

::

    from hubbub.flower.legacy import LegacyDPFedAvgFixed

    strategy = LegacyDPFedAvgFixed(FedAvg(initial_parameters=...), num_sampled_clients=50, clip_norm=1.0, noise_multiplier=1.1)
    start_server(strategy=strategy, ...)

An adapter and no more: a round here is a round of :class:`.DPFedAvgFixed` or :class:`.DPFedAvgAdaptive`, with its ledger, its
cohorts and its noise. Flower has announced to remove the legacy API, and then this module cannot be imported any more.
"""

from pathlib import Path

try:
    from flwr.server.strategy import Strategy
except ImportError as error:  # pragma: no cover # today's Flower has it
    raise ImportError(
        "hubbub.flower.legacy needs Flower's legacy API (flwr.server.strategy), which this version has not; use the strategies "
        "of hubbub.flower in a ServerApp"
    ) from error

from hubbub._checks import integer, scale
from hubbub.errors import ConfigError
from hubbub.flower.legacy_adapted import Adapted
from hubbub.flower.legacy_rounds import LegacyPrivate
from hubbub.flower.strategies import DPFedAvgAdaptive, DPFedAvgFixed
from hubbub.flower.terms import Buffers, Evaluation, NoiseAt, OnFailure

__all__ = ["LegacyDPFedAvgAdaptive", "LegacyDPFedAvgFixed"]

# Legacy strategies that do not average, or not arrays, by name, since some come and go between Flower's versions.
_NOT_AVERAGING = {
    "Bulyan",
    "FedAvgAndroid",
    "FedMedian",
    "FedTrimmedAvg",
    "FedXgbBagging",
    "FedXgbCyclic",
    "FedXgbNnAvg",
    "Krum",
    "QFedAvg",
}


class LegacyDPFedAvgFixed(LegacyPrivate):
    """Flower's legacy ``DPFedAvgFixed``, in the arguments; :class:`.DPFedAvgFixed` in what is done.

    Clients need no wrapper where the server adds the noise: it clips what it sees. A result that is missing, that came as one
    of the ``failures``, or that cannot be read counts as zero. Arrays have no names here: running statistics of batch norm
    look like weights, and are clipped and noised as such.

    Args:
        strategy: One of the legacy API that averages, with ``initial_parameters``.
        num_sampled_clients: How many clients are asked in a round, whatever ``strategy`` would sample.
        clip_norm: The largest L2 norm of a client's update.
        noise_multiplier: Standard deviation of the noise on the sum, over the clip norm. 0 hides nothing and is refused.
        server_side_noising: ``False``: each client adds a share, sized for ``min_survivors``, and the server none. The clients
            then need this package's ``DPNumPyClient``.
        min_survivors: With noise of clients: a round with fewer good results is discarded.
        buffers: What becomes of arrays of whole numbers: see :class:`.DPFedAvgFixed`, also for all that follow.
        on_failure: ``"zero"``; or ``"abort"``, as Flower's class has it: a round with a failure is discarded, and stays
            charged.

    Attributes:
        private: The private strategy behind the wrapper.

    Raises:
        ConfigError: Settings that do not go together, or a strategy that does not average.
        ValueError: A number out of range.
    """

    def __init__(
        self,
        strategy: Strategy,
        num_sampled_clients: int,
        clip_norm: float,
        noise_multiplier: float = 1,
        server_side_noising: bool = True,
        *,
        min_survivors: int | None = None,
        buffers: Buffers = "error",
        on_failure: OnFailure = "zero",
        stop_epsilon: float | None = None,
        delta: float = 1e-5,
        state: str | Path | None = None,
        expected_cohort_size: float | None = None,
        rounds: int = 10_000,
        evaluation: Evaluation = "off",
        simulation_seed: int | None = None,
        head: str | None = None,
    ) -> None:
        adapted = _adapted(strategy)
        private = DPFedAvgFixed(
            adapted,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            num_sampled_clients=integer("num_sampled_clients", num_sampled_clients, at_least=1),
            noise_at=_noise_at(server_side_noising),
            min_survivors=min_survivors,
            buffers=buffers,
            on_failure=on_failure,
            stop_epsilon=stop_epsilon,
            delta=delta,
            state=state,
            expected_cohort_size=expected_cohort_size,
            rounds=rounds,
            evaluation=evaluation,
            simulation_seed=simulation_seed,
            head=head,
        )
        super().__init__(strategy, adapted, private, evaluation)
        self.num_sampled_clients = num_sampled_clients


class LegacyDPFedAvgAdaptive(LegacyPrivate):
    """Flower's legacy ``DPFedAvgAdaptive``, in the arguments; :class:`.DPFedAvgAdaptive` in what is done.

    Args:
        strategy: As of :class:`LegacyDPFedAvgFixed`, and so all that is not named here.
        init_clip_norm: Of the first round.
        noise_multiplier: Of the updates and the count together.
        clip_norm_lr: Of the geometric step of the clip norm.
        clip_norm_target_quantile: The part of the updates that shall not be clipped.
        clip_count_stddev: Standard deviation of the noise on the count; by default a twentieth of the cohort, or the noise
            multiplier where that is more.

    Raises:
        ConfigError: Settings that do not go together, or a strategy that does not average.
        ValueError: A number out of range, or noise on the count that leaves none for the updates.
    """

    def __init__(
        self,
        strategy: Strategy,
        num_sampled_clients: int,
        init_clip_norm: float = 0.1,
        noise_multiplier: float = 1.0,
        server_side_noising: bool = True,
        clip_norm_lr: float = 0.2,
        clip_norm_target_quantile: float = 0.5,
        clip_count_stddev: float | None = None,
        *,
        min_survivors: int | None = None,
        buffers: Buffers = "error",
        on_failure: OnFailure = "zero",
        stop_epsilon: float | None = None,
        delta: float = 1e-5,
        state: str | Path | None = None,
        expected_cohort_size: float | None = None,
        rounds: int = 10_000,
        evaluation: Evaluation = "off",
        simulation_seed: int | None = None,
        head: str | None = None,
    ) -> None:
        adapted = _adapted(strategy)
        private = DPFedAvgAdaptive(
            adapted,
            noise_multiplier=noise_multiplier,
            initial_clip_norm=scale("init_clip_norm", init_clip_norm),
            target_quantile=clip_norm_target_quantile,
            clip_norm_learning_rate=clip_norm_lr,
            clip_count_stddev=clip_count_stddev,
            num_sampled_clients=integer("num_sampled_clients", num_sampled_clients, at_least=1),
            noise_at=_noise_at(server_side_noising),
            min_survivors=min_survivors,
            buffers=buffers,
            on_failure=on_failure,
            stop_epsilon=stop_epsilon,
            delta=delta,
            state=state,
            expected_cohort_size=expected_cohort_size,
            rounds=rounds,
            evaluation=evaluation,
            simulation_seed=simulation_seed,
            head=head,
        )
        super().__init__(strategy, adapted, private, evaluation)
        self.num_sampled_clients = num_sampled_clients


def _adapted(strategy: Strategy) -> Adapted:
    if not isinstance(strategy, Strategy):
        raise TypeError(
            f"strategy = {type(strategy).__name__}: must be one of flwr.server.strategy; those of flwr.serverapp.strategy go "
            "with hubbub.flower.DPFedAvgFixed"
        )
    names = {c.__name__ for c in type(strategy).__mro__}
    if isinstance(strategy, LegacyPrivate) or any(name.startswith(("DPFedAvg", "DifferentialPrivacy")) for name in names):
        raise ConfigError(f"strategy = {type(strategy).__name__}: is private itself; wrap the strategy within it")
    if names & _NOT_AVERAGING:
        raise ConfigError(
            f"strategy = {type(strategy).__name__}: does not average, and what it does is not covered by noise on a sum; wrap "
            "one that averages, such as FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi or FedProx"
        )
    if getattr(strategy, "fit_metrics_aggregation_fn", None) is not None:
        raise ConfigError(
            "strategy: has a fit_metrics_aggregation_fn, while what clients measure is not hidden by any noise and is not "
            "collected; leave it out"
        )
    return Adapted(strategy)


def _noise_at(server_side_noising: bool) -> NoiseAt:
    if not isinstance(server_side_noising, bool):
        raise TypeError(f"server_side_noising = {server_side_noising!r}: must be True or False")
    return "server" if server_side_noising else "clients"
