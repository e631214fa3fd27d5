"""The ways of a federation of Flower's, in this process: a population of nodes, and the private strategies."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from encrypted_ways import seeing_parties
from hubbub import Mechanism, flower
from hubbub._util import files
from hubbub.flower.population import GridPopulation
from hubbub.flower.strategies import PrivateStrategy
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import toeplitz
from hubbub.secagg import key_files
from hubbub.training.release import ReleasePath
from paillier_nodes import dealt, owner
from ways import CLIENTS, CLIP_NORM, COHORT, DIM, NOISE_MULTIPLIER, PATTERN, Way, looped, plan_of

if TYPE_CHECKING:
    from witness import Witness

START = ArrayRecord({"w": Array(np.zeros(DIM, np.float32))})
# Encryption takes its time: so many nodes, each in every round, and no more than so many rounds.
FEW, MOST_ROUNDS = 3, 4
# Makes a strategy that keeps its state in a folder.
Make = Callable[[Path | None], PrivateStrategy]


def client_app(seed: int, mods: Sequence[Any] = ()) -> ClientApp:
    """Clients that move each number at random: another seed is other data."""
    app = flower.hold(ClientApp(mods=list(mods)))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, told = message.content.array_records["arrays"], message.content.config_records["config"]
        drawn = np.random.default_rng([seed, int(context.node_config["partition-id"]), int(told.get("server-round", 0))])
        updates = {name: drawn.normal(scale=0.2, size=array.shape).astype(np.float32) for name, array in arrays.items()}
        moved = {name: Array(array.numpy() + updates[name]) for name, array in arrays.items()}
        reply = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(reply), reply_to=message)

    return app


def grid(rounds: int) -> Way:
    """The training loop on the nodes of a grid."""

    def population(seed: int, folder: Path) -> GridPopulation:
        on = flower.LocalGrid(client_app(seed), CLIENTS)
        return GridPopulation(on, on.get_node_ids())

    return looped(plan_of(toeplitz.square_root(rounds, 4)), population)


def nodes(seed: int, folder: Path) -> flower.LocalGrid:
    return flower.LocalGrid(client_app(seed), CLIENTS)


def encrypting(mods: Sequence[Any], whole: bool, seed: int, folder: Path) -> flower.LocalGrid:
    """Nodes that encrypt, of which one has the whole key, or each a share, in a folder beside the run's."""
    keys = [owner()] if whole else dealt()[1]
    places = [folder.with_name("parties") / f"holder-{i}" / "key.json" for i in range(len(keys))]
    for key, place in zip(keys, places, strict=True):
        files.make_folder(place.parent)
        if not place.exists():
            (key_files.write_private if whole else key_files.write_share)(place, key)

    def configured(index: int) -> dict[str, Any]:
        held = {"paillier-share": str(places[index])} if index < len(places) else {}
        return {"partition-id": index, **held}

    return flower.LocalGrid(client_app(seed, mods), FEW, configured)


def federated(
    make: Make, on: Callable[[int, Path], flower.LocalGrid], witness: "Witness", seed: int, rounds: int | None
) -> np.ndarray:
    """One start of a private strategy, as ``start`` makes its rounds."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    strategy, federation, begin = make(witness.folder), on(seed, witness.folder), ReleasePath.begin

    def beginning(path: ReleasePath, cohort: Sequence[Any], total: Any, clip_norm: float | None) -> Any:
        witness.begins(path.next_round, cohort)
        return begin(path, cohort, total, clip_norm)

    with pytest.MonkeyPatch.context() as patch, seeing_parties(witness):
        patch.setattr(ReleasePath, "begin", beginning)
        arrays = strategy.resumed(START, federation)
        try:
            left = strategy.mechanism.rounds - strategy.rounds_charged
            for _ in range(left if rounds is None else min(rounds, left)):
                messages = list(strategy.configure_train(1, arrays, ConfigRecord(), federation))
                round_index = strategy.rounds_charged - 1
                witness.asks(round_index, len(messages))
                made, _ = strategy.aggregate_train(1, federation.send_and_receive(messages))
                if made is not None:
                    arrays = made
                    witness.publishes(round_index, strategy.guarantee().epsilon)
        finally:
            strategy._run.state.close()  # type: ignore[union-attr]
    return np.asarray(arrays["w"].numpy())


def way(make: Make, on: Callable[[int, Path], flower.LocalGrid] = nodes, **more: Any) -> Way:
    bare = make(None)
    return Way(
        promise=bare._options.promise(bare.mechanism, {}),
        cohort=bare._options.expected_cohort_size or float(bare._options.num_sampled_clients or 0),
        go=lambda witness, seed, rounds, keep_releases: federated(make, on, witness, seed, rounds),
        clipping=bare._clipping,
        forgets=True,
        **more,
    )


def _of(kind: Callable[..., Any], clients: int, folder: Path | None, **more: Any) -> Any:
    return kind(FedAvg(), clip_norm=CLIP_NORM, num_sampled_clients=clients, state=folder, **more)


def _fixed(rounds: int, clients: int, **more: Any) -> Make:
    return partial(_of, flower.DPFedAvgFixed, clients, noise_multiplier=NOISE_MULTIPLIER, rounds=rounds, **more)


def _correlated(mechanism: Mechanism, clients: int) -> Make:
    return partial(_of, flower.MatrixFactorizationDP, clients, mechanism=mechanism, keys_enforced=True)


def _adaptive(rounds: int, folder: Path | None) -> flower.DPFedAvgAdaptive:
    noise = {"noise_multiplier": NOISE_MULTIPLIER, "initial_clip_norm": CLIP_NORM}
    cohorts = {"sampling_probability": COHORT / CLIENTS, "expected_cohort_size": float(COHORT)}
    return flower.DPFedAvgAdaptive(FedAvg(), rounds=rounds, state=folder, **noise, **cohorts)


def fixed(rounds: int) -> Way:
    return way(_fixed(rounds, COHORT))


def adaptive(rounds: int) -> Way:
    return way(partial(_adaptive, rounds))


def correlated(rounds: int) -> Way:
    return way(_correlated(Mechanism(toeplitz.square_root(rounds, bands=4), PATTERN, NOISE_MULTIPLIER), COHORT))


def _encrypted(make: Make, secagg: flower.Paillier, *mods: Any) -> Way:
    on = partial(encrypting, [flower.encrypting_mod, *mods, flower.clipping_mod], secagg.shared is None)
    return way(partial(make, secagg=secagg), on, noise_by=secagg.noise_by, lattice_bits=secagg.bits - 2)


def encrypted_server(rounds: int) -> Way:
    return _encrypted(_fixed(min(rounds, MOST_ROUNDS), FEW), flower.Paillier(owner().public_key))


def encrypted_holders(rounds: int) -> Way:
    rounds = min(rounds, MOST_ROUNDS)
    mechanism = Mechanism(toeplitz.square_root(rounds, bands=2), every_round(rounds), NOISE_MULTIPLIER)
    return _encrypted(_correlated(mechanism, FEW), flower.Paillier(dealt()[0], noise_by="holders"))


def encrypted_clients(rounds: int) -> Way:
    make = _fixed(min(rounds, MOST_ROUNDS), FEW, min_survivors=FEW)
    return _encrypted(make, flower.Paillier(dealt()[0], noise_by="clients"), flower.noising_mod)
