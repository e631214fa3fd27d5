"""The ways of sums that the server cannot read: clients, server and the holders of the key in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import encrypted_runs
import hubbub.flower.mods
import hubbub.training.encrypted
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.secagg.aggregator import Request
from hubbub.secagg.key_holder import Holder, Opened
from hubbub.secagg.protocol import Agreement
from hubbub.training.encrypted import EncryptedPopulation, EncryptedSum
from hubbub.training.encryption import Encryption
from small_runs import population
from ways import Way, loop, looped

if TYPE_CHECKING:
    from witness import Witness


@contextmanager
def seeing_parties(witness: "Witness") -> Iterator[None]:
    """See what clients and holders encrypt, and what is opened."""
    opened, contribution, noise, opens = EncryptedSum.open, Agreement.contribution, Agreement.noise, Holder.open

    def opening(total: EncryptedSum, row: torch.Tensor | None) -> torch.Tensor:
        release = opened(total, row)
        assert total.lattice
        witness.meets(torch.from_numpy(np.sum(witness.sent, axis=0)), release, total.lattice.clip_norm, total.lattice.bits)
        return release

    def contributing(agreed: Agreement, sender: str, round_index: int, steps: np.ndarray, share: Any = None) -> bytes:
        witness.sent.append(steps if share is None else steps + np.asarray(share, dtype=np.int64))
        return contribution(agreed, sender, round_index, steps, share)

    def giving(agreed: Agreement, sender: str, round_index: int, steps: np.ndarray) -> bytes:
        # The server's own noise is no holder's.
        if sender.startswith("holder"):
            witness.gives(round_index, sender, steps)
        return noise(agreed, sender, round_index, steps)

    def answering(holder: Holder, request: Request, **how: Any) -> Opened:
        answer = opens(holder, request, **how)
        witness.opens(request.round_index, holder.name, request.digest)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncryptedSum, "open", opening)
        patch.setattr(Agreement, "contribution", contributing)
        patch.setattr(Agreement, "noise", giving)
        patch.setattr(Holder, "open", answering)
        for module in (hubbub.flower.mods, hubbub.training.encrypted):
            patch.setattr(module, "discrete_gaussian", witness.shares(module.discrete_gaussian))
        yield


def _in_process(how: Encryption, strategy: Any) -> Way:
    plan = encrypted_runs.plan(strategy, how)

    def clients(seed: int, folder: Path) -> EncryptedPopulation:
        made = encrypted_runs.encrypted(plan, how, folder=folder.with_name("parties"))
        made._population = population(seed)
        return made

    way = looped(plan, clients, how.noise_by)

    def watched(witness: "Witness", *rest: Any) -> np.ndarray:
        with seeing_parties(witness):
            return loop(plan, clients, witness, *rest)

    return Way(way.promise, way.cohort, watched, way.clipping, way.noise_by, way.lattice_bits)


def server(rounds: int) -> Way:
    return _in_process(encrypted_runs.terms(), toeplitz.square_root(encrypted_runs.ROUNDS, 3))


def server_and_owner(rounds: int) -> Way:
    return _in_process(encrypted_runs.terms(holders=1, threshold=1), toeplitz.square_root(encrypted_runs.ROUNDS, 3))


def holders(rounds: int) -> Way:
    return _in_process(encrypted_runs.terms("holders"), toeplitz.square_root(encrypted_runs.ROUNDS, 3))


def clients(rounds: int) -> Way:
    return _in_process(encrypted_runs.terms("clients"), Identity(encrypted_runs.ROUNDS))
