import numpy as np
import pytest
import torch

from hubbub._util.prf import bits, derive
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.strategies import Identity
from hubbub.noise import NoiseStream, SecureSource


def mechanism(strategy: Identity) -> Mechanism:
    return Mechanism(strategy, MinSeparation(3, 2), 1.3)


def test_rng_6_two_real_streams_have_nothing_in_common() -> None:
    rows = [NoiseStream(mechanism(Identity(2)), dim=1000).next_row() for _ in range(2)]
    assert not torch.isclose(rows[0], rows[1], atol=1e-9).any()


def test_rng_1_a_global_seed_does_not_reach_the_noise() -> None:
    rows = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 # what users do at the start of a script
        rows.append(NoiseStream(mechanism(Identity(2)), dim=100).next_row())
    assert not torch.equal(rows[0], rows[1])


def test_fpt_6_the_secure_radius_reaches_beyond_what_53_bits_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.noise.sources.word_stream", lambda key, start: lambda count: np.zeros(count, dtype=np.int64))
    # With the smallest uniform number of 53 bits the radius would end at 8.6.
    assert SecureSource(bytes(32)).row(0, 2)[0] > 11


def test_cra_17_known_rows_stay_what_they_are() -> None:
    # A change here makes every run that is under way unable to continue its noise.
    row = SecureSource(bytes(32)).row(0, 4).tolist()
    assert row == pytest.approx([-0.5227651607771238, 0.3607379426343679, 0.9866531811351936, -0.2646511181813312], rel=1e-12)


def test_rng_3_named_keys_differ_and_a_key_always_gives_the_same_bits() -> None:
    keys = {derive(bytes(32), *name) for name in (("a",), ("a", 1), ("a", "1"), ("a1",), (1,), ("1",))}
    assert len(keys) == 6
    assert (bits(bytes(32), 10) == bits(bytes(32), 20)[:10]).all()
