"""The folder of a run: what is kept of it, who may read it, and what happens when it was rolled back or closed."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from hubbub import Mechanism, MinSeparation, PoissonSampling, verify
from hubbub.errors import LedgerError, ParticipationError, RunFolderError
from hubbub.ledger import Promise, read_chain
from hubbub.ledger.ledger import end_run
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.training import ReleasePath, RunStore, train
from refusals import contents
from release_paths import CLIENTS, CLIP, DIM, PROMISE, ROUNDS, locked, one_round, opened, plan, silent, some_rounds, total


def test_cra_7_cra_9_a_kept_head_tells_a_rolled_back_ledger(tmp_path: Path) -> None:
    path = opened(locked(tmp_path))
    kept = path.ledger.head
    one_round(path, 0)
    opened(RunStore(tmp_path), head=kept)
    with pytest.raises(LedgerError, match="rolled back"):
        opened(RunStore(tmp_path), head="f" * 64)
    with pytest.raises(LedgerError, match="64 hexadecimal digits"):
        opened(RunStore(tmp_path), head=kept[:12])


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("rounds", [2, 5, 6])
@pytest.mark.parametrize("keep", [True, False], ids=["all releases", "no old releases"])
def test_cra_9_a_ledger_that_was_rolled_back_by_any_number_of_records_does_not_come_back_to_life(
    tmp_path: Path, rounds: int, keep: bool, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.training.rounds.CHECKPOINT_EVERY", 2)
    planned = some_rounds(tmp_path / "run", rounds, keep_releases=keep)
    lines = (tmp_path / "run" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    left = tmp_path / "run" / "state" / "releases" / f"{rounds - 1}.safetensors"
    last = left.read_bytes() if left.exists() else b""
    for cut in range(1, len(lines) + 1):
        folder = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "run", folder)
        (folder / "ledger.jsonl").write_bytes(b"".join(lines[:-cut]) + (lines[-cut][:40] if torn else b""))
        before = contents(folder)
        try:
            next(train(planned, silent(), nn.Linear(3, 2), RunStore(folder, keep_releases=keep)), None)
        except (LedgerError, RunFolderError):
            # Refused, as it was found.
            assert contents(folder) == before
            continue
        # What comes back is the same run: a release that is whole is committed again, with the same content.
        ledger = {b.get("round"): b for b in read_chain(folder / "ledger.jsonl").records if b["kind"] == "commit"}
        assert cut == 1
        assert rounds - 1 in ledger
        assert ledger[rounds - 1]["release"] == hashlib.sha256(last).hexdigest()


def test_a_model_that_a_refused_try_left_begins_no_run(tmp_path: Path) -> None:
    model, store = nn.Linear(3, 2), RunStore(tmp_path)
    given = model.weight.detach().flatten().clone()
    with pytest.raises(LedgerError, match="among the 0 hashes"):
        next(train(plan(Identity(ROUNDS)), silent(), nn.Linear(3, 2), store, head="0" * 64))
    next(train(plan(Identity(ROUNDS)), silent(), model, store))
    assert torch.equal(load((tmp_path / "state/initial.safetensors").read_bytes())["model"][:6], given)


def test_prt_10_another_list_of_clients_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    def listed(clients: Sequence[str | int]) -> ReleasePath:
        return ReleasePath(PROMISE, DIM, clients=CLIENTS, store=locked(tmp_path), listed=clients)

    names = [f"client {number}" for number in range(CLIENTS)]
    first = listed(range(CLIENTS))
    first.start()
    first.begin([3], total(), CLIP)
    before = contents(tmp_path)
    for others in (names, range(1, CLIENTS + 1), [*range(1, CLIENTS), 0]):
        with pytest.raises(ParticipationError, match="began with other clients"):
            listed(others)
    assert contents(tmp_path) == before
    listed([str(number) for number in range(CLIENTS)]).start()


def test_cra_9_a_folder_without_its_ledger_stays_as_it_is(tmp_path: Path) -> None:
    some_rounds(tmp_path, 2)
    (tmp_path / "ledger.jsonl").unlink()
    before = contents(tmp_path)
    with pytest.raises(RunFolderError, match=r"ledger\.jsonl: is missing"):
        some_rounds(tmp_path, 4)
    assert contents(tmp_path) == before


def test_cra_8_two_paths_that_nobody_locked_leave_the_run_whole(tmp_path: Path) -> None:
    first, second = (ReleasePath(PROMISE, DIM, clients=CLIENTS, store=RunStore(tmp_path / "run")) for _ in range(2))
    first.start()
    with pytest.raises(LedgerError, match="changed by another process"):
        second.start()
    one_round(opened(RunStore(tmp_path / "run")), 0)


def test_a_ledger_by_which_a_client_took_part_too_often_is_refused(tmp_path: Path) -> None:
    store = locked(tmp_path)
    path = opened(store)
    path.ledger.promise = replace(PROMISE, mechanism=replace(PROMISE.mechanism, participation=MinSeparation(1, 6)))
    one_round(path, 0)
    one_round(path, 0)
    with pytest.raises(LedgerError, match=r"such as \w+ in rounds \[0, 1\]"):
        opened(RunStore(tmp_path))


def test_a_run_with_rounds_left_is_closed_only_early(tmp_path: Path) -> None:
    some_rounds(tmp_path, 2)
    with pytest.raises(LedgerError, match="2 of 6 rounds"):
        end_run(tmp_path / "ledger.jsonl")
    end_run(tmp_path / "ledger.jsonl", early=True)
    head = read_chain(tmp_path / "ledger.jsonl").head
    end_run(tmp_path / "ledger.jsonl")
    assert read_chain(tmp_path / "ledger.jsonl").head == head


def test_rng_10_no_file_beside_the_keys_holds_a_key(tmp_path: Path) -> None:
    some_rounds(tmp_path, 4)
    keys = [path.read_bytes() for path in (tmp_path / "state" / "keys").iterdir()]
    others = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "keys"]
    assert len(keys) == 2
    assert not any(key in content or key.hex().encode() in content for key in keys for content in others)


def test_fil_11_every_file_of_a_run_is_its_owners_alone(tmp_path: Path) -> None:
    some_rounds(tmp_path / "run", 4)
    for path in [tmp_path / "run", *(tmp_path / "run").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_fil_10_a_symbolic_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    some_rounds(tmp_path / "run", 2)
    (tmp_path / "run" / "state" / "releases").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "state" / "releases").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError):
        some_rounds(tmp_path / "run", 4)


def test_cra_7_rng_8_two_copies_of_a_run_draw_cohorts_of_their_own(tmp_path: Path) -> None:
    promise = Promise(ROUNDS, Mechanism(Identity(ROUNDS), PoissonSampling(0.5), 1.0))
    opened(locked(tmp_path / "run"), promise)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    keys = [opened(RunStore(tmp_path / name), promise).cohort_keys for name in ("run", "copy")]
    assert len({key.fresh for key in keys}) == 2
    assert len({key.lasting for key in keys}) == 1


def test_closing_settles_the_round_under_way_and_wipes_what_was_half_written(tmp_path: Path) -> None:
    path = opened(locked(tmp_path))
    ticket = path.begin([3], total(), CLIP)
    store = RunStore(tmp_path)
    content = store.save_release(0, total().open(path.row(ticket)))
    for name in (".noise.sealed.new", "noise-4.safetensors", ".noise-4.safetensors.new"):
        (tmp_path / "state" / name).write_bytes(b"secret rows" * 10**5)
    (tmp_path / "state" / "keys" / ".epoch-1.new").write_bytes(b"secret key")
    end_run(store.ledger_path, early=True, release=content)
    store.destroy_secrets()
    assert [record["kind"] for record in read_chain(store.ledger_path).records][-2:] == ["commit", "close"]
    assert not list((tmp_path / "state" / "keys").iterdir())
    assert not [path for path in (tmp_path / "state").iterdir() if "noise" in path.name]


def test_a_closed_run_stays_closed_and_holds_no_secret(tmp_path: Path) -> None:
    some_rounds(tmp_path, ROUNDS)
    store = RunStore(tmp_path)
    assert len(store.secret_files()) >= 3
    end_run(store.ledger_path)
    store.destroy_secrets()
    assert store.secret_files() == []
    with pytest.raises(RunFolderError, match="a closed run has none"):
        some_rounds(tmp_path, ROUNDS)


def test_a_file_with_another_name_elsewhere_is_not_written_over(tmp_path: Path) -> None:
    opened(locked(tmp_path / "run"))
    (tmp_path / "precious").write_bytes(b"precious")
    os.link(tmp_path / "precious", tmp_path / "run" / "state" / "keys" / "epoch-7")
    with pytest.raises(OSError, match="another name"):
        RunStore(tmp_path / "run").destroy_secrets()
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert not RunStore(tmp_path / "run").has_keys()


@pytest.mark.parametrize(("multiplier", "dtype"), [(1.0, torch.int32), (500.0, torch.int64)])
def test_a_release_is_kept_as_whole_steps(tmp_path: Path, multiplier: float, dtype: torch.dtype) -> None:
    store = locked(tmp_path)
    path = opened(store, replace(PROMISE, mechanism=replace(PROMISE.mechanism, noise_multiplier=multiplier)))
    released = [one_round(path, t, value=3) for t in range(3)]
    for t, release in enumerate(released):
        kept = load(store.release_content(t))
        assert {name: tensor.dtype for name, tensor in kept.items()} == {"steps": dtype, "step": torch.float64}
        assert torch.equal(store.parse_release(t, store.release_content(t)), release)


def test_releases_in_floating_point_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"a release is 'release', or 'steps' and 'step'"):
        RunStore(tmp_path).parse_release(0, save({"steps": torch.ones(2, dtype=torch.int32)}))
    with pytest.raises(RunFolderError, match=r"holds steps of torch\.float32"):
        RunStore(tmp_path).parse_release(0, save({"steps": torch.ones(2), "step": torch.tensor(1.0, dtype=torch.float64)}))
    planned = plan(Identity(ROUNDS), noise="simulation")
    list(train(planned, silent(), nn.Linear(3, 2), RunStore(tmp_path)))
    assert list(load(RunStore(tmp_path).release_content(0))) == ["release"]


@pytest.mark.parametrize("wrong", [0.3, 2.0**80, float("nan")])
def test_a_release_that_no_sum_and_noise_make_is_committed_neither_now_nor_at_a_restart(wrong: float, tmp_path: Path) -> None:
    store = locked(tmp_path)
    path, release = opened(store), torch.full((DIM,), wrong, dtype=torch.float64)
    ticket = path.begin((0,), total(), CLIP)
    path.row(ticket)
    with pytest.raises(LedgerError, match="off the lattice"):
        path.commit(ticket, release)
    # Nor is one that somebody put into the folder meanwhile.
    store.save_release(0, release)
    with pytest.raises(LedgerError, match="off the lattice"):
        opened(RunStore(tmp_path))
    assert read_chain(tmp_path / "ledger.jsonl").records[-1]["kind"] == "begin"
    store.discard_release(0)
    assert opened(RunStore(tmp_path)).ledger.rounds == ("aborted",)


def short_from(monkeypatch: pytest.MonkeyPatch, round_index: int) -> None:
    """A disk of which less than a half is free from the checkpoint after so many rounds on."""
    full = shutil.disk_usage("/")._replace(total=100)
    looked = iter(range(1, 100))
    free = lambda folder: full._replace(free=51 if next(looked) < round_index else 49)  # noqa: E731 # one line
    monkeypatch.setattr(shutil, "disk_usage", free)
    monkeypatch.setattr(RunStore, "require_room", lambda store, noise: None)
    monkeypatch.setattr("hubbub.training.rounds.CHECKPOINT_EVERY", 1)


def test_cra_20_releases_go_for_want_of_room_and_the_ledger_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_from(monkeypatch, 4)
    planned = plan(toeplitz.square_root(ROUNDS, 3))
    rounds = train(planned, silent(), nn.Linear(3, 2), RunStore(tmp_path / "run", free_share=0.5))
    assert [next(rounds).round_index for _ in range(3)] == [0, 1, 2]
    assert RunStore(tmp_path / "run").released() == [0, 1, 2]
    next(rounds)
    rounds.close()
    assert RunStore(tmp_path / "run").released() == []
    assert verify(tmp_path / "run").ok
    kinds = [body["kind"] for body in read_chain(tmp_path / "run/ledger.jsonl").records]
    assert kinds[-3:] == ["begin", "commit", "forget"]
    # A start that asks for all releases, or has room again, takes the ledger at its word.
    list(train(planned, silent(), nn.Linear(3, 2), RunStore(tmp_path / "run")))
    kinds = [body["kind"] for body in read_chain(tmp_path / "run/ledger.jsonl").records]
    assert kinds.count("forget") == 1
    assert kinds.count("commit") == ROUNDS
    assert RunStore(tmp_path / "run").released() == []
    assert verify(tmp_path / "run").ok


def test_cra_20_releases_that_went_without_a_record_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_from(monkeypatch, 3)
    list(train(plan(Identity(ROUNDS)), silent(), nn.Linear(3, 2), RunStore(tmp_path / "run", free_share=0.4)))
    (tmp_path / "run/state/releases/2.safetensors").unlink()
    assert [check.name for check in verify(tmp_path / "run").checks if not check.ok] == ["releases"]


def test_cra_20_no_ledger_forgets_twice_or_in_a_round(tmp_path: Path) -> None:
    path = opened(locked(tmp_path))
    path.ledger.forget()
    with pytest.raises(ValueError, match="forget follows"):
        path.ledger.forget()
    path = opened(promise=replace(PROMISE))
    path.begin((0,), total(), CLIP)
    with pytest.raises(ValueError, match="forget follows"):
        path.ledger.forget()
