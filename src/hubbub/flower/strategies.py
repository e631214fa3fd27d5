"""The private strategies: wrappers around any strategy of Flower's that averages."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp.strategy import Strategy

from hubbub.flower.private import PrivateStrategy
from hubbub.flower.terms import Buffers, Evaluation, NoiseAt, OnFailure, Terms, independent_noise
from hubbub.mechanism import Mechanism
from hubbub.training.clipping import AdaptiveClipping

if TYPE_CHECKING:
    from hubbub.flower.secagg import Paillier

__all__ = ["DPFedAvgAdaptive", "DPFedAvgFixed", "MatrixFactorizationDP"]


class DPFedAvgFixed(PrivateStrategy):
    """Federated averaging with a fixed clip norm and independent noise.

    Each client's update, all floating arrays as one vector, is held to ``clip_norm``; the sum gets Gaussian noise of standard
    deviation ``noise_multiplier`` × ``clip_norm``; the result, over a fixed public number, is all that ``strategy`` ever sees,
    as one reply. A round is charged before its messages leave.

    Args:
        strategy: One of Flower's Message API that averages, such as ``FedAvg(...)`` or ``FedAdam(...)``.
        clip_norm: The largest L2 norm of a client's update, from 1e-12 to 1e12.
        noise_multiplier: Standard deviation of the noise on the sum, over the clip norm.
        num_sampled_clients: How many clients are asked in a round; fewer where fewer may join, at the same noise. The cost is
            that of a client that is in every round.
        sampling_probability: In its place: each connected client is asked by a coin of its own, which amplifies.
        noise_at: ``"server"``; or ``"clients"``: each adds a share, sized for ``min_survivors``, and the server adds none and
            cannot clip again. The clients need ``mods=[noising_mod, clipping_mod]``.
        min_survivors: With ``noise_at="clients"``: a round with fewer good replies is discarded.
        buffers: What becomes of arrays that are not trained (of whole numbers, or statistics of batch norm): ``"error"``
            refuses a model that has any, ``"keep"`` leaves them as they are.
        on_failure: ``"zero"``: a client that does not answer counts as an update of zero. ``"abort"``: its round is discarded,
            and stays charged.
        keys_enforced: Your word that the SuperLink admits registered keys only (``--enable-supernode-auth``).
        stop_epsilon: No round is begun that would take epsilon above it.
        delta: Of the epsilon that is logged, and of ``stop_epsilon``.
        state: The folder that keeps ledger, keys and model over restarts; ``None`` keeps them in memory.
        expected_cohort_size: The number that sums are divided by; by default ``num_sampled_clients``, or the sampling
            probability times the clients that are connected when the run begins, which is then stated under the zero-out
            relation rather than that of adding or removing a client.
        rounds: The most rounds of the run, all starts together.
        evaluation: ``"off"``; or ``"exact"``: clients are asked to evaluate, too, and what they measure is returned as it is,
            which the guarantee then says it does not cover.
        simulation_seed: Makes an experiment, not a release: cohorts and noise follow from it.
        head: A :attr:`ledger_head` that you kept elsewhere: a folder that was rolled back behind it is refused.
        secagg: A :class:`.Paillier`: clients encrypt, and the server adds what it cannot read. They need
            ``mods=[encrypting_mod, clipping_mod]``, and the holders of the key ``hold(app)``.

    Raises:
        ConfigError: Settings that do not go together, or a strategy that does not average.
        ValueError: A number out of range.

    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models",
    https://arxiv.org/abs/1710.06963.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        clip_norm: float,
        noise_multiplier: float,
        num_sampled_clients: int | None = None,
        sampling_probability: float | None = None,
        noise_at: NoiseAt = "server",
        min_survivors: int | None = None,
        buffers: Buffers = "error",
        on_failure: OnFailure = "zero",
        keys_enforced: bool = False,
        stop_epsilon: float | None = None,
        delta: float = 1e-5,
        state: str | Path | None = None,
        expected_cohort_size: float | None = None,
        rounds: int = 10_000,
        evaluation: Evaluation = "off",
        simulation_seed: int | None = None,
        head: str | None = None,
        secagg: "Paillier | None" = None,
    ) -> None:
        terms = Terms(
            num_sampled_clients=num_sampled_clients,
            sampling_probability=sampling_probability,
            noise_at=noise_at,
            min_survivors=min_survivors,
            buffers=buffers,
            on_failure=on_failure,
            keys_enforced=keys_enforced,
            stop_epsilon=stop_epsilon,
            delta=delta,
            state=state,
            expected_cohort_size=expected_cohort_size,
            evaluation=evaluation,
            simulation_seed=simulation_seed,
            head=head,
            secagg=secagg,
        )
        super().__init__(strategy, independent_noise(terms, noise_multiplier, rounds), clip_norm, terms)


class DPFedAvgAdaptive(PrivateStrategy):
    """Federated averaging whose clip norm follows a quantile of the updates' norms.

    One more coordinate of the very same noised sum counts the clients whose update was not clipped; ``noise_multiplier`` is
    that of updates and count together, so that a round costs what one with a fixed clip norm costs.

    Args:
        strategy: As of :class:`DPFedAvgFixed`, and so all that is not named here.
        noise_multiplier: Of the update and the count together.
        initial_clip_norm: Of the first round.
        target_quantile: The part of the updates that shall not be clipped.
        clip_norm_learning_rate: Of the geometric step of the clip norm.
        clip_count_stddev: Standard deviation of the noise on the count; by default a twentieth of the cohort, or the noise
            multiplier where that is more.

    Raises:
        ConfigError: Settings that do not go together, or a strategy that does not average.
        ValueError: A number out of range, or noise on the count that leaves none for the updates.

    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1 and Theorem 1,
    https://arxiv.org/abs/1905.03871.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        noise_multiplier: float,
        initial_clip_norm: float = 0.1,
        target_quantile: float = 0.5,
        clip_norm_learning_rate: float = 0.2,
        clip_count_stddev: float | None = None,
        num_sampled_clients: int | None = None,
        sampling_probability: float | None = None,
        noise_at: NoiseAt = "server",
        min_survivors: int | None = None,
        buffers: Buffers = "error",
        on_failure: OnFailure = "zero",
        keys_enforced: bool = False,
        stop_epsilon: float | None = None,
        delta: float = 1e-5,
        state: str | Path | None = None,
        expected_cohort_size: float | None = None,
        rounds: int = 10_000,
        evaluation: Evaluation = "off",
        simulation_seed: int | None = None,
        head: str | None = None,
        secagg: "Paillier | None" = None,
    ) -> None:
        terms = Terms(
            num_sampled_clients=num_sampled_clients,
            sampling_probability=sampling_probability,
            noise_at=noise_at,
            min_survivors=min_survivors,
            buffers=buffers,
            on_failure=on_failure,
            keys_enforced=keys_enforced,
            stop_epsilon=stop_epsilon,
            delta=delta,
            state=state,
            expected_cohort_size=expected_cohort_size,
            evaluation=evaluation,
            simulation_seed=simulation_seed,
            head=head,
            secagg=secagg,
        )
        clipping = AdaptiveClipping(initial_clip_norm, target_quantile, clip_norm_learning_rate, clip_count_stddev)
        super().__init__(strategy, independent_noise(terms, noise_multiplier, rounds), clipping, terms)


class MatrixFactorizationDP(PrivateStrategy):
    """Federated averaging with correlated noise, or with any other mechanism, and cohorts that keep its participation promise.

    A client that took part too recently or too often is not asked; it counts as having taken part when its round begins.
    Correlated noise cancels in the sums of the noised means, so ``strategy`` should be linear in them (FedAvg, FedAvgM).

    Args:
        strategy: As of :class:`DPFedAvgFixed`, and so all that is not named here.
        mechanism: Strategy, participation and noise multiplier; it has as many rounds as the run may have.
        clip_norm: The largest L2 norm of a client's update; fixed, since noise of rounds with different ones would not cancel.
        num_sampled_clients: How many clients are asked in a round, for a pattern; random cohorts draw themselves.
        sampling_probability: That of the mechanism's Poisson cohorts, if it is said at all.
        noise_at: ``"clients"`` goes with independent noise only, :class:`~hubbub.strategies.Identity`.

    Raises:
        ConfigError: Settings that do not go together, a promise that nobody enforces (``keys_enforced``), or a strategy that
            does not average.
        ValueError: A number out of range.

    Source: Kairouz et al. 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling",
    https://arxiv.org/abs/2103.00039; Choquette-Choo et al. 2023, https://arxiv.org/abs/2211.06530.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        mechanism: Mechanism,
        clip_norm: float,
        num_sampled_clients: int | None = None,
        sampling_probability: float | None = None,
        noise_at: NoiseAt = "server",
        min_survivors: int | None = None,
        buffers: Buffers = "error",
        on_failure: OnFailure = "zero",
        keys_enforced: bool = False,
        stop_epsilon: float | None = None,
        delta: float = 1e-5,
        state: str | Path | None = None,
        expected_cohort_size: float | None = None,
        evaluation: Evaluation = "off",
        simulation_seed: int | None = None,
        head: str | None = None,
        secagg: "Paillier | None" = None,
    ) -> None:
        if not isinstance(mechanism, Mechanism):
            raise TypeError(f"mechanism = {type(mechanism).__name__}: must be a hubbub.mechanism.Mechanism")
        terms = Terms(
            num_sampled_clients=num_sampled_clients,
            sampling_probability=sampling_probability,
            noise_at=noise_at,
            min_survivors=min_survivors,
            buffers=buffers,
            on_failure=on_failure,
            keys_enforced=keys_enforced,
            stop_epsilon=stop_epsilon,
            delta=delta,
            state=state,
            expected_cohort_size=expected_cohort_size,
            evaluation=evaluation,
            simulation_seed=simulation_seed,
            head=head,
            secagg=secagg,
        )
        super().__init__(strategy, replace(mechanism, shares=terms.shares()), clip_norm, terms)
