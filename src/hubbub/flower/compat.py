"""Flower's four ``DifferentialPrivacy…`` strategies, by their names and arguments, with the privacy of this package.

::

    # from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
    from hubbub.flower import DifferentialPrivacyServerSideFixedClipping

Each is :class:`.DPFedAvgFixed` or :class:`.DPFedAvgAdaptive` under another name. So every round asks ``num_sampled_clients``
clients, whatever fraction ``strategy`` would sample. Noise is added to the sum before ``strategy`` and its optimizer see it.
All clients have the same weight, and one that does not answer counts as zero. Metrics and federated evaluation, which have no
noise, are off (``evaluation``). A model with buffers is refused, or keeps them (``buffers``). A run whose budget is spent makes
no further rounds. Arguments are refused under the names of the class behind.
"""

from collections.abc import Iterable
from typing import Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, PrivacyAccountant, PrivacySpent
from flwr.serverapp.strategy import Strategy

from hubbub.errors import ConfigError
from hubbub.flower.messages import NORM_BIT, first_config
from hubbub.flower.options import StrategyArguments, knowing
from hubbub.flower.strategies import DPFedAvgAdaptive, DPFedAvgFixed, PrivateStrategy

__all__ = [
    "DifferentialPrivacyClientSideAdaptiveClipping",
    "DifferentialPrivacyClientSideFixedClipping",
    "DifferentialPrivacyServerSideAdaptiveClipping",
    "DifferentialPrivacyServerSideFixedClipping",
]

# Flower's names: the clip norm, and a bit that is 1 if the update was clipped, while ours is 1 if it was not.
_FLOWER_CLIP_NORM, _FLOWER_NORM_BIT = "clipping_norm", "norm_bit"


class _FlowersNames(PrivateStrategy):
    @property
    def noise_multiplier(self) -> float:
        """The argument; with adaptive clipping it covers updates and count, Flower's the updates alone."""
        return self.mechanism.noise_multiplier

    @property
    def clipping_norm(self) -> float:
        """The clip norm of the next round."""
        return self.clip_norm


class DifferentialPrivacyServerSideFixedClipping(_FlowersNames, DPFedAvgFixed):
    """:class:`.DPFedAvgFixed` with the arguments of Flower's class of this name.

    Args:
        strategy: One that averages, such as ``FedAvg(...)``.
        noise_multiplier: Standard deviation of the noise on the sum, over the clipping norm.
        clipping_norm: The largest L2 norm of a client's update.
        num_sampled_clients: How many clients are asked in a round.
        accountant: Only its budget is used: ``config.max_epsilon`` as ``stop_epsilon``, ``config.target_delta`` as ``delta``.
            It does not count releases: :meth:`privacy_spent` reads this strategy's ledger.
        rounds: As of :class:`.DPFedAvgFixed`, and so all that are given by name.

    Raises:
        ConfigError: Settings that do not go together, or an accountant that counts otherwise or has counted before.
        ValueError: A number out of range.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 0.5, 10)
        >>> strategy.clipping_norm, strategy.guarantee().epsilon
        (0.5, 0.0)
    """

    @knowing
    def __init__(
        self,
        strategy: Strategy,
        noise_multiplier: float,
        clipping_norm: float,
        num_sampled_clients: int,
        *,
        accountant: PrivacyAccountant | None = None,
        rounds: int = 10_000,
        **options: Unpack[StrategyArguments],
    ) -> None:
        super().__init__(
            strategy,
            clip_norm=clipping_norm,
            noise_multiplier=noise_multiplier,
            num_sampled_clients=num_sampled_clients,
            rounds=rounds,
            **_with_budget(accountant, options),
        )

    def privacy_spent(self) -> PrivacySpent:
        """The spent budget by the ledger, with or without an ``accountant``; :meth:`guarantee` has the assumptions."""
        spent = self.guarantee()
        return PrivacySpent(float(spent.epsilon), spent.delta, self.rounds_charged, str(spent.accountant))


class _ClientsClip(PrivateStrategy):
    """A strategy that also sends the clip norm under the name of Flower's mods."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """The messages, with the clip norm also under the name of Flower's mods."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            first_config(message.content)[_FLOWER_CLIP_NORM] = self.clip_norm
        return messages


class DifferentialPrivacyClientSideFixedClipping(_ClientsClip, DifferentialPrivacyServerSideFixedClipping):
    """As :class:`DifferentialPrivacyServerSideFixedClipping`, for clients that clip; the server clips again all the same.

    The clients have ``clipping_mod``, or still Flower's own ``fixedclipping_mod``. The latter clips buffers too, and fails on
    arrays of whole numbers: with ``buffers="keep"`` use ``clipping_mod``. A client with neither is clipped here.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 0.5, num_sampled_clients=10)
        >>> strategy.noise_multiplier, strategy.clipping_norm
        (1.0, 0.5)
    """


class DifferentialPrivacyServerSideAdaptiveClipping(_FlowersNames, DPFedAvgAdaptive):
    """:class:`.DPFedAvgAdaptive` with the arguments of Flower's class of this name.

    Unlike in Flower's class, the clipping norm grows while more updates are clipped than ``target_clipped_quantile``, and
    shrinks while fewer are, so that it reaches the target from either side.

    Args:
        strategy: One that averages, such as ``FedAvg(...)``.
        noise_multiplier: Of updates and count together.
        num_sampled_clients: How many clients are asked in a round.
        initial_clipping_norm: Of the first round.
        target_clipped_quantile: The part of the updates that shall be clipped; :class:`.DPFedAvgAdaptive` takes the part that
            shall not be.
        clip_norm_lr: Of the geometric step of the clipping norm.
        clipped_count_stddev: Standard deviation of the noise on the count; by default as of :class:`.DPFedAvgAdaptive`.
        rounds: As of :class:`.DPFedAvgFixed`, and so all that are given by name.

    Raises:
        ConfigError: Settings that do not go together, or a strategy that does not average.
        ValueError: A number out of range, or noise on the count that leaves none for the updates.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 1.0, num_sampled_clients=30)
        >>> strategy.clipping_norm, strategy.guarantee().epsilon
        (0.1, 0.0)

    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1,
    https://arxiv.org/abs/1905.03871.
    """

    @knowing
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
        rounds: int = 10_000,
        **options: Unpack[StrategyArguments],
    ) -> None:
        super().__init__(
            strategy,
            noise_multiplier=noise_multiplier,
            num_sampled_clients=num_sampled_clients,
            initial_clip_norm=initial_clipping_norm,
            target_quantile=1 - target_clipped_quantile,
            clip_norm_learning_rate=clip_norm_lr,
            clip_count_stddev=clipped_count_stddev,
            rounds=rounds,
            **options,
        )


class DifferentialPrivacyClientSideAdaptiveClipping(_ClientsClip, DifferentialPrivacyServerSideAdaptiveClipping):
    """As :class:`DifferentialPrivacyServerSideAdaptiveClipping`, for clients that clip; the server clips again all the same.

    The clients have ``clipping_mod``, or still Flower's own ``adaptiveclipping_mod``: its ``norm_bit`` says that an update
    *was* clipped, and is read so. A client with neither is clipped and counted here. Nothing of the bits is released but their
    noised count.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), 1.0, num_sampled_clients=30)
        >>> strategy.clipping_norm
        0.1
    """

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model and public metrics, with the indicators of Flower's mod translated."""
        return super().aggregate_train(server_round, map(_with_our_bit, replies))


def _with_our_bit(reply: Message) -> Message:
    """A reply with Flower's bit (1 if clipped) translated into ours (1 if not clipped), unless it has ours."""
    if not reply.has_content() or any(NORM_BIT in record for record in reply.content.metric_records.values()):
        return reply
    for name, record in reply.content.metric_records.items():
        if _FLOWER_NORM_BIT in record:
            clipped = record[_FLOWER_NORM_BIT]
            # Another value stays as it is: the sum refuses the reply.
            bit = 1 - clipped if isinstance(clipped, int) else clipped
            reply.content = RecordDict({**reply.content, name: MetricRecord({**record, NORM_BIT: bit})})
            break
    return reply


def _with_budget(accountant: PrivacyAccountant | None, options: StrategyArguments) -> StrategyArguments:
    """The options, with the budget of an accountant of Flower's."""
    if accountant is None:
        return options
    config = accountant.config
    if accountant.num_releases:
        raise ConfigError(
            f"accountant: has counted {accountant.num_releases} releases already, which this run's ledger does not know of; "
            "give a fresh one with the budget that is left"
        )
    if config.sampling_method != "no-amplification":
        raise ConfigError(
            f"accountant: counts with sampling_method = {config.sampling_method}, while cohorts of a fixed size amplify "
            "nothing; give one with 'no-amplification', or use hubbub.flower.DPFedAvgFixed with sampling_probability"
        )
    stop, delta = options.get("stop_epsilon"), options.get("delta", config.target_delta)
    if None not in (stop, config.max_epsilon) or delta != config.target_delta:
        raise ConfigError(
            f"stop_epsilon = {stop}, delta = {delta}: the accountant has max_epsilon = {config.max_epsilon} and target_delta = "
            f"{config.target_delta}; say each in one place"
        )
    return {**options, "stop_epsilon": config.max_epsilon if stop is None else stop, "delta": delta}
