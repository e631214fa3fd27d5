"""Who is connected, and who of them is asked in a round."""

import hashlib
import logging
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

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

__all__ = ["Identity", "Node", "average_cohort", "clients_of", "cohort", "connected", "identity_of"]

_LOG = logging.getLogger("flwr")
# How long a round waits for the nodes that the wrapped strategy wants to be there.
_PATIENCE = 600.0

Identity = Literal["key", "node"]


class Node(NamedTuple):
    """A node that is connected; ``public_key`` is empty where the grid tells none."""

    node_id: int
    public_key: bytes


def connected(grid: Grid, wanted: int) -> list[Node]:
    """The nodes that are connected, in order; waits until as many are as are wanted.

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
    return [Node(int(node.node_id), bytes(node.public_key or b"")) for node in nodes]


def identity_of(nodes: Sequence[Node]) -> Identity:
    """By what clients are known for a whole run: their keys, where the grid tells any, else the numbers of their nodes."""
    return "key" if any(node.public_key for node in nodes) else "node"


def clients_of(nodes: Sequence[Node], identity: Identity, *, keys_enforced: bool) -> dict[str, int]:
    """The node of each client.

    A client is known by its node's registered public key, so that a restart makes no new client of it. A grid that tells no
    keys may stand before a SuperLink that admits registered ones only, which gives a key the same number every time. Of
    several nodes with one key only one can be asked.

    Raises:
        ParticipationError: Clients are known by keys that are enforced, and no node has one.
    """
    if identity == "node":
        return {f"node {node.node_id}": node.node_id for node in nodes}
    found: dict[str, int] = {}
    for node in nodes:
        if node.public_key:
            found["key " + hashlib.sha256(node.public_key).hexdigest()] = node.node_id
        elif not keys_enforced:
            found[f"node {node.node_id}"] = node.node_id
    if not found:
        # Known by its number, a client that took part under its key would be another one.
        raise ParticipationError(
            f"keys_enforced = True: none of {len(nodes)} connected nodes has a public key; start the SuperLink with "
            "--enable-supernode-auth, or, where nothing is promised of who joins when, leave keys_enforced out"
        )
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
            "are connected"
        )
    if len(chosen) < size:
        _LOG.warning("configure_train: only %s of %s clients may join; the noise is that of the full cohort", len(chosen), size)
    return {str(client): nodes[str(client)] for client in chosen}
