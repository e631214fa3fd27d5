"""Training on sums that the server cannot read: what is released is, to the last step, what it would be in the clear."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from encrypted_runs import BITS, CLIP, DIM, ROUNDS, encrypted, plan, terms
from hubbub import Mechanism, RunStore, train
from hubbub.errors import ConfigError, NoiseExhaustedError, RunFolderError, SumNotOpenedError
from hubbub.ledger.chain import read_chain
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import BinaryTree, Identity, toeplitz
from hubbub.noise import NoiseStream, SecureSource
from hubbub.noise.lattice import Lattice
from hubbub.secagg.aggregator import Aggregator
from hubbub.training.encrypted import HolderNoise
from hubbub.training.encryption import Encryption
from small_runs import CLIENTS, linear, population, until

LATTICE = Lattice(CLIP, BITS - 2)
BANDED = toeplitz.square_root(ROUNDS, 3)


def in_the_clear(round_index: int = 0) -> torch.Tensor:
    """The sum of the clients' clipped updates in whole steps, added up one by one."""
    model = linear()
    return sum(  # type: ignore[return-value]
        (LATTICE.encode(update)[0] for _, update, _ in population().updates(range(CLIENTS), model, round_index)),
        torch.zeros(DIM, dtype=torch.int64),
    )


@pytest.mark.parametrize("how", [terms(), terms(holders=1, threshold=1), terms(min_contributions=5)])
def test_what_is_opened_is_the_sum_of_the_clipped_updates_and_the_servers_row(how: Encryption) -> None:
    clients = encrypted(plan(Identity(ROUNDS), how), how)
    row = torch.linspace(-3, 3, DIM, dtype=torch.float64)
    released = clients.collect(range(CLIENTS), linear(), CLIP, 0).open(row)
    expected = in_the_clear() + (row / LATTICE.step).round().to(torch.int64)
    assert torch.equal(released, expected * LATTICE.step)


def test_each_holders_row_is_in_the_sum_in_full() -> None:
    how = terms("holders")
    chosen = plan(BANDED, how)
    clients = encrypted(chosen, how, seeds=[5, 6, 7])
    assert clients.noise_in_sums
    for round_index in range(ROUNDS):
        opened = clients.collect(range(CLIENTS), linear(), CLIP, round_index).open(None)
        noise = (opened / LATTICE.step).to(torch.int64) - in_the_clear(round_index)
        streams = [NoiseStream(chosen.mechanism, DIM, seed=seed) for seed in (5, 6, 7)]  # type: ignore[arg-type]
        expected = torch.zeros(DIM, dtype=torch.int64)
        for stream in streams:
            stream.skip_to(round_index)
            expected += (stream.next_row() * CLIP / LATTICE.step).round().to(torch.int64)
        assert torch.equal(noise, expected)


@pytest.mark.slow
def test_shares_of_the_clients_have_the_stated_variance_together() -> None:
    how = terms("clients", holders=1, threshold=1)
    chosen = plan(Identity(ROUNDS), how)
    clients = encrypted(chosen, how)
    found = []
    for round_index in range(40):
        opened = clients.collect(range(CLIENTS), linear(), CLIP, round_index).open(None)
        found.append((opened / LATTICE.step - in_the_clear(round_index)).numpy())
    # 320 numbers: six deviations of their variance.
    ratio = float(np.mean(np.square(found))) / (0.7 * CLIP / LATTICE.step) ** 2
    assert abs(ratio - 1) < 6 * np.sqrt(2 / 320)


@pytest.mark.parametrize("noise_by", ["server", "holders", "clients"])
def test_a_run_that_stops_anywhere_goes_on_and_its_folder_holds(noise_by: str, tmp_path: Path) -> None:
    how = terms(noise_by)
    chosen = plan(Identity(ROUNDS) if noise_by == "clients" else BANDED, how)
    run, parts = RunStore(tmp_path / "run"), tmp_path / "parties"
    heads = [result.head for result in until(train(chosen, encrypted(chosen, how, folder=parts), linear(), run), 2)]
    # The holders come back with what they kept, and open no round twice.
    again = list(train(chosen, encrypted(chosen, how, folder=parts), linear(), run, head=heads[-1]))
    assert [result.round_index for result in again] == [2, 3, 4, 5]
    assert all(result.released for result in again)
    assert {"encrypt_seconds", "aggregate_seconds", "decrypt_seconds", "upload_bytes"} <= set(again[0].statistics)
    record = read_chain(run.folder / "ledger.jsonl").records[0]
    assert record["setting"] == how.setting()
    assert record.get("noise_by", "server") == ("holders" if noise_by == "holders" else "server")


def test_a_holder_that_answers_with_a_part_of_another_costs_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = terms(holders=2)
    chosen = plan(BANDED, how)
    clients = encrypted(chosen, how)
    one, other = clients._holders
    true = other.open
    monkeypatch.setattr(other, "open", lambda request: one.open(request) if request.round_index == 1 else true(request))
    results = list(train(chosen, clients, linear(), RunStore(tmp_path / "run")))
    assert [result.released for result in results] == [True, False, True, True, True, True]
    assert "partials of holders [1]: 1 are too few" in results[1].fault


def test_a_holders_stream_goes_on_over_restarts_as_one_stream(tmp_path: Path) -> None:
    mechanism = Mechanism(BANDED, every_round(ROUNDS), 0.7)
    rows = []
    for start in range(ROUNDS):
        rows.append(HolderNoise(mechanism, 5, tmp_path).row(start))
    told = json.loads((tmp_path / "noise.json").read_text())
    keys = [SecureSource((tmp_path / "keys" / f"epoch-{i}").read_bytes()) for i in range(len(told["first_rows"]))]
    # Each start drew its own rows of z; C⁻¹ of all of them, by the matrix.
    owner = [max(i for i, first in enumerate(told["first_rows"]) if first <= t) for t in range(ROUNDS)]
    z = np.stack([keys[owner[t]].row(t, 5).numpy() for t in range(ROUNDS)])
    expected = mechanism.stddev * np.linalg.solve(BANDED.matrix(), z)
    assert np.abs(np.stack([row.numpy() for row in rows]) - expected).max() < 1e-12
    assert len(set(owner)) == ROUNDS


def test_a_row_is_given_out_once_even_if_the_holders_folder_is_rolled_back(tmp_path: Path) -> None:
    mechanism = Mechanism(Identity(ROUNDS), every_round(ROUNDS), 0.7)
    stream = HolderNoise(mechanism, 5, tmp_path)
    kept = (tmp_path / "noise.json").read_bytes()
    row = stream.row(0)
    with pytest.raises(NoiseExhaustedError, match="round 1: its row of noise was given out already"):
        stream.row(0)
    with pytest.raises(NoiseExhaustedError, match="round 1"):
        HolderNoise(mechanism, 5, tmp_path).row(0)
    (tmp_path / "noise.json").write_bytes(kept)
    assert not torch.equal(HolderNoise(mechanism, 5, tmp_path).row(0), row)


def test_no_stream_is_opened_before_its_run_keeps_other_processes_out(tmp_path: Path) -> None:
    how = terms("holders")
    clients = encrypted(chosen := plan(BANDED, how), how, folder=tmp_path)
    assert clients.noise_in_sums
    with RunStore(tmp_path / "run").locked(), pytest.raises(RunFolderError, match="is at work on this run"):
        next(train(chosen, clients, linear(), RunStore(tmp_path / "run")))
    assert not list(tmp_path.rglob("noise.json"))
    until(train(chosen, clients, linear(), RunStore(tmp_path / "run")), 2)
    assert len(list(tmp_path.rglob("noise.json"))) == how.holders


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"first_rows":[0],"next_round":1,"sampler":"another"}', b"\xff"])
def test_a_holders_damaged_folder_is_refused(damage: bytes, tmp_path: Path) -> None:
    mechanism = Mechanism(BinaryTree(ROUNDS), every_round(ROUNDS), 0.7)
    HolderNoise(mechanism, 5, tmp_path).row(0)
    (tmp_path / "noise.json").write_bytes(damage)
    with pytest.raises(RunFolderError, match=r"noise\.json: cannot be read"):
        HolderNoise(mechanism, 5, tmp_path)


def test_a_holder_opens_no_sum_without_its_own_noise() -> None:
    how = terms("holders")
    clients = encrypted(plan(BANDED, how), how, seeds=[1, 2, 3])
    aggregator = Aggregator(clients._agreement, 0)
    for client in range(2):
        steps = np.full(DIM, client, dtype=np.int64)
        aggregator.add(str(client), clients._agreement.contribution(str(client), 0, steps))
    with pytest.raises(SumNotOpenedError, match="the noise of 0 holders came; each of 3 adds its own"):
        aggregator.request()
    # A server that makes up the holders' noise: nothing is opened.
    for number in (1, 2, 3):
        fake = clients._agreement.noise(f"holder {number}", 0, np.zeros(DIM, dtype=np.int64))
        aggregator.add_noise(f"holder {number}", fake)
    with pytest.raises(SumNotOpenedError, match=r"holder 1 opens nothing: .*not this holder's own"):
        clients._holders[0].open(aggregator.request())


def test_words_say_against_whom() -> None:
    server, holders, clients = (terms(who).setting() for who in ("server", "holders", "clients"))
    assert "not against the server: it knows its noise" in server
    assert "as long as no holder works with it" in holders
    assert "against the server and 2 of the holders together" in terms("holders", threshold=3).setting()
    assert "a holder that is missing costs the round" in holders
    assert "fewer than 12 is not opened" in clients
    assert "any 2 of 3 holders of shares of the key open sums together" in server
    assert "2 holders together, with what clients send, could read every single update" in server
    assert "and fewer than 2 holders together, who use what they are handed only to open sums; not against the server" in server
    assert "against the server, as long as no holder works with it; clients who join them" in clients
    with pytest.raises(ConfigError, match=r"secagg.threshold = 2 of secagg.holders = 4: two groups .* take at least 3"):
        terms("holders", holders=4)
    with pytest.raises(ConfigError, match="who has the whole key and knows all noise sees every sum bare"):
        terms("holders", holders=1, threshold=1)
    assert "the owner of the key, who is not the server" in terms(holders=1, threshold=1).setting()


@pytest.mark.parametrize(("holders", "threshold"), [(3, 2), (3, 3), (5, 3), (5, 4), (5, 5), (4, 3), (1, 1)])
def test_so_many_holders_and_no_more_may_work_with_a_hostile_server(holders: int, threshold: int) -> None:
    # Every number of holders that work with it, and every way in which the honest ones can be asked for one of two sums.
    def two_sums(corrupt: int) -> bool:
        honest = holders - corrupt
        ways = ((first, second) for first in range(honest + 1) for second in range(honest - first + 1))
        return any(min(way) + corrupt >= threshold for way in ways)

    safe = [corrupt for corrupt in range(holders) if not two_sums(corrupt)]
    assert terms(holders=holders, threshold=threshold).tolerated == max(safe)
