"""Keys of 2048 bits, each made once, and nodes of a federation that hold them."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.clientapp import ClientApp

from hubbub.flower import LocalGrid, clipping_mod, encrypting_mod, hold
from hubbub.secagg import key_files, threshold
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.packing import Packing
from hubbub.secagg.paillier import PrivateKey, PublicKey
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import KeyShare, ThresholdKey
from small_keys import LONG_SAFE, VECTORS, number

# Of a lattice of 14 bits.
PACKING = Packing(bits=16, clip=1.0, max_clients=4, key_bits=2048, noise=2**24)
SIZE = 5


@cache
def owner() -> PrivateKey:
    case = next(case for case in VECTORS["raw"] if case["bits"] == 2048)
    return PrivateKey.from_primes(number(case["p"]), number(case["q"]))


@cache
def dealt(holders: int = 3) -> tuple[ThresholdKey, tuple[KeyShare, ...]]:
    """Two of three holders open sums of two or more, or of as many as there are."""
    return threshold.deal(*LONG_SAFE, holders=holders, threshold=2, min_contributions=2)


def agreed(key: PublicKey, **others: Any) -> Agreement:
    whole = key == owner().public_key
    terms = {"packing": PACKING, "size": SIZE, "run": "a run", "whole_key": whole, "server_noise": False}
    return Agreement(**{"public_key": key, **terms, **others})


def shares_in(folder: Path) -> list[Path]:
    """The files of the shares, each in a folder of its holder's own."""
    places = []
    for share in dealt()[1]:
        place = folder / f"holder-{share.holder}" / "share.json"
        place.parent.mkdir(exist_ok=True)
        if not place.exists():
            key_files.write_share(place, share)
        places.append(place)
    return places


def grid_of(configs: list[dict[str, Any]], nodes: int = 5) -> LocalGrid:
    """Nodes of which the first have these configurations; a new grid is a restart of all of them."""
    app = hold(ClientApp(mods=[encrypting_mod, clipping_mod]))
    return LocalGrid(app, num_nodes=nodes, node_config=lambda i: configs[i] if i < len(configs) else {})


def summed(agreement: Agreement, contributions: list[npt.NDArray[np.int64]], round_index: int = 0) -> Aggregator:
    aggregator = Aggregator(agreement, round_index)
    for i, steps in enumerate(contributions):
        aggregator.add(f"client {i}", agreement.contribution(f"client {i}", round_index, steps))
    return aggregator
