"""Who is connected, and who of them is asked in a round."""

import hashlib
import logging
import time

from flwr.serverapp import Grid

from hubbub.errors import ConfigError, ParticipationError
from hubbub.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    Participation,
    PoissonSampling,
    RandomParticipation,
)
from hubbub.training.cohorts import draw, eligible
from hubbub.training.release import ReleasePath

__all__ = ["average_cohort", "cohort", "connected"]

_LOG = logging.getLogger("flwr")
# How long a round waits for the nodes that the wrapped strategy wants to be there.
_PATIENCE = 600.0


def connected(grid: Grid, wanted: int, *, keys_enforced: bool) -> dict[str, int]:
    """The node of each client that is connected, in the order of the nodes; waits until as many are as are wanted.

    A client is known by its node's registered public key, so that a restart makes no new client of it, and by its node's number
    where the grid tells no keys. Of several nodes with one key only one can be asked.

    Raises:
        ParticipationError: Too few for ten minutes.
    """
    deadline = time.monotonic() + _PATIENCE
    while len(nodes := sorted(grid.get_nodes(), key=lambda node: int(node.node_id))) < max(1, wanted):
        if time.monotonic() > deadline:
            raise ParticipationError(
                f"min_available_nodes = {wanted}: {len(nodes)} nodes are connected after {_PATIENCE:g} seconds; start more "
                "SuperNodes, or let the wrapped strategy wait for fewer"
            )
        time.sleep(0.5)
    keyed = any(node.public_key for node in nodes)
    found: dict[str, int] = {}
    for node in nodes:
        if node.public_key:
            found["key " + hashlib.sha256(node.public_key).hexdigest()] = int(node.node_id)
        elif not (keyed and keys_enforced):
            found[f"node {node.node_id}"] = int(node.node_id)
    return found


def average_cohort(participation: Participation, clients: int) -> float:
    """How many of so many clients a round has on average, where coins decide.

    Raises:
        ConfigError: Nothing follows from the number of clients.
    """
    match participation:
        case PoissonSampling(sampling_probability):
            return sampling_probability * clients
        case CyclicPoissonSampling(sampling_probability, cycle_length):
            return sampling_probability * clients / cycle_length
        case BallsInBinsSampling(bins):
            return clients / bins
        case _:
            raise ConfigError(f"expected_cohort_size: is missing; say how many clients a round has with {participation}")


def cohort(
    participation: Participation, round_index: int, nodes: dict[str, int], size: float, path: ReleasePath
) -> dict[str, int]:
    """The clients that are asked, and the node of each: by coins that nobody filters, or ``size`` of those that may join.

    Raises:
        ParticipationError: No connected client may join.
    """
    if isinstance(participation, RandomParticipation):
        chosen = draw(participation, round_index, list(nodes), size, keys=path.cohort_keys, ledger=path.ledger)
        return {str(client): nodes[str(client)] for client in chosen}
    chosen = eligible(round_index, list(nodes), int(size), keys=path.cohort_keys, ledger=path.ledger)
    if not chosen:
        raise ParticipationError(
            f"round {round_index + 1}: none of {len(nodes)} connected clients may join, by {participation}; wait until others "
            "are connected, or ask fewer clients in a round"
        )
    if len(chosen) < size:
        _LOG.warning("configure_train: only %s of %s clients may join; the noise is that of the full cohort", len(chosen), size)
    return {str(client): nodes[str(client)] for client in chosen}
