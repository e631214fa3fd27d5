"""The rounds of a server of Flower's legacy API, each as a round of a private strategy."""

import logging

from flwr.app import ConfigRecord
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from hubbub.accounting.guarantee import PrivacyGuarantee
from hubbub.errors import BudgetError, ConfigError
from hubbub.flower.arrays import Layout
from hubbub.flower.legacy_adapted import Adapted
from hubbub.flower.legacy_messages import Clients, instruction, named, positional, reply
from hubbub.flower.local_grid import identify
from hubbub.flower.messages import first_config
from hubbub.flower.private import PrivateStrategy
from hubbub.flower.terms import Evaluation

__all__ = ["LegacyPrivate"]

_LOG = logging.getLogger("flwr")


class LegacyPrivate(Strategy):
    """What both wrappers share: every call of the legacy API, as one of the private strategy's."""

    def __init__(self, strategy: Strategy, adapted: Adapted, private: PrivateStrategy, evaluation: Evaluation) -> None:
        super().__init__()
        self.strategy = strategy
        self.private = private
        self._adapted = adapted
        self._evaluation = evaluation
        self._layout: Layout | None = None
        self._group = ""

    def guarantee(self, delta: float | None = None, *, rounds: int | None = None) -> PrivacyGuarantee:
        """The guarantee of the rounds that were charged so far, or of so many rounds; see :meth:`.DPFedAvgFixed.guarantee`."""
        return self.private.guarantee(delta, rounds=rounds)

    @property
    def clip_norm(self) -> float:
        """Of the next round."""
        return self.private.clip_norm

    @property
    def noise_multiplier(self) -> float:
        """Of all that a round releases."""
        return self.private.mechanism.noise_multiplier

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """The initial model of the wrapped strategy; of a run that was begun before (``state``), the model that it had.

        Raises:
            ConfigError: The strategy has none, so that the server would take that of a client, which nothing hides.
        """
        parameters = self.strategy.initialize_parameters(client_manager)
        if parameters is None:
            raise ConfigError(
                "strategy: has no initial parameters, and the server would begin with those of a client, which nothing clips "
                "or hides; give it initial_parameters"
            )
        self._prepare(parameters)
        return positional(self.private.resumed(named(parameters), Clients(client_manager)))

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Draw the cohort, charge the round, and make what each client is sent; nothing where the budget is used up.

        Raises:
            ParticipationError: No connected client may join.
            ConfigError: The wrapped strategy cannot be asked for one instruction to all.
        """
        self._prepare(parameters)
        arrays, clients = named(parameters), Clients(client_manager)
        self._layout = Layout.of(arrays)
        try:
            messages = list(self.private.configure_train(server_round, arrays, ConfigRecord(), clients))
        except BudgetError as error:
            _LOG.warning("configure_fit: no client is asked any more: %s", error)
            return []
        self._group = messages[0].metadata.group_id if messages else ""
        asked = [(clients.proxies[m.metadata.dst_node_id], first_config(m.content)) for m in messages]
        return [(proxy, instruction(parameters, config)) for proxy, config in asked]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Sum the results, release the sum with noise, and let the wrapped strategy learn from the noised mean.

        Returns:
            The new model, or ``None`` where the round is discarded; and what may be told of the round.

        Raises:
            ConfigError: No round is under way.
        """
        if self._layout is None:
            raise ConfigError(f"aggregate_fit: round {server_round} was not configured; call configure_fit first")
        if failures:
            _LOG.info("aggregate_fit: %s clients failed, and count as missing", len(failures))
        replies = [reply(self._group, Clients.node_id(proxy), result, self._layout) for proxy, result in results]
        arrays, metrics = self.private.aggregate_train(server_round, replies)
        told: dict[str, Scalar] = {name: value for name, value in (metrics or {}).items() if not isinstance(value, list)}
        return None if arrays is None else positional(arrays), told

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Nothing, unless ``evaluation = "exact"``: what clients measure on their data is not hidden by any noise."""
        if self._evaluation == "off":
            return []
        return self.strategy.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Nothing, unless ``evaluation = "exact"``."""
        return (None, {}) if self._evaluation == "off" else self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """What the wrapped strategy measures at the server, of a model that is released anyway."""
        return self.strategy.evaluate(server_round, parameters)

    def _prepare(self, parameters: Parameters) -> None:
        self._adapted.parameters = parameters
        # Flower makes no message outside of the processes that it started itself, and a legacy server is such a one.
        identify()
