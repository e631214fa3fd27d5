"""An encrypted run by Flower is the encrypted run in process: the same model, and keys that stay with their holders."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from torch import nn

from conftest import raising
from hubbub.errors import ConfigError, RunFolderError, SumNotOpenedError
from hubbub.experiment import config
from hubbub.experiment.build import build
from hubbub.experiment.engine.flower_app import client_app, local_population, serve
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.experiment.engine.parties import parties
from hubbub.flower import LocalGrid
from hubbub.ledger.chain import read_chain
from hubbub.secagg import key_files, paillier
from hubbub.training import RunStore
from paillier_nodes import dealt, owner
from recorded_runs import model_of, require_ends

RUN = """
secagg = {secagg}
training = {{ rounds = 2, cohort_size = 3, seed = 3 }}
privacy = {{ mode = "{mode}", noise_multiplier = 1.0, delta = 1e-3, noise = "{noise}" }}
participation.pattern = "every-round"
data.clients = 3
model.name = "test_engine_paillier:Tiny"
"""


def keys(folder: Path, *, shared: bool) -> Path:
    """A folder as ``hubbub paillier`` leaves it."""
    folder.mkdir()
    key_files.write_public(folder / "public-key.json", dealt()[0] if shared else owner().public_key)
    if not shared:
        key_files.write_private(folder / "private-key.json", owner())
    for share in dealt()[1] if shared else ():
        key_files.write_share(folder / f"share-{share.holder}.json", share)
    return folder


class Tiny(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1).unflatten(1, (4, -1)).mean(dim=2))


def run_file(
    folder: Path, named: Path | None, *, noise: str = "simulation", mode: str = "dp-fedavg", **secagg: str | int
) -> Path:
    path = folder / "run.toml"
    told = {"scheme": "paillier", "key_bits": 2048, **({} if named is None else {"keys": str(named)}), **secagg}
    inline = ", ".join(f"{key} = {json.dumps(value)}" for key, value in told.items())
    path.write_text(RUN.format(secagg=f"{{{inline}}}", noise=noise, mode=mode))
    return path


def run_by(engine: str, file: Path, folder: Path) -> Path:
    require_ends("train", file, "--out", folder, "--engine", engine, "--allow-import")
    return folder


def record_of(folder: Path) -> list[dict[str, Any]]:
    """The ledger but for the digests of encrypted sums, which are never the same."""
    return [{k: v for k, v in record.items() if k != "sum"} for record in read_chain(folder / "ledger.jsonl").records]


def deployed(folder: Path, **more: object) -> Context:
    settings = {"round-timeout": 60.0, "wait-for-nodes": 0.0, "keys-enforced": False, "allow-import": True}
    return Context(1, 1, {}, RecordDict(), {**settings, "run-folder": str(folder), **more})


def federation(file: Path, holder: Path | None) -> LocalGrid:
    """Nodes of which the last has the key."""

    def configured(index: int) -> dict[str, Any]:
        held = {"paillier-share": str(holder)} if holder and index == 2 else {}
        return {"partition-id": index, **held}

    return LocalGrid(client_app(file), num_nodes=3, node_config=configured, run_config={"allow-import": True})


IN_ONE = "all parties simulated in one process, whose owner can read everything: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shared", "noise_by", "mode"), [(False, "server", "dp-fedavg"), (True, "holders", "dp-ftrl")], ids=["owner", "holders"]
)
def test_a_simulation_on_flower_releases_bit_for_bit_what_it_releases_in_process(
    tmp_path: Path, shared: bool, noise_by: str, mode: str
) -> None:
    holders = {"holders": 3, "threshold": 2} if shared else {}
    file = run_file(tmp_path, keys(tmp_path / "keys", shared=shared), mode=mode, noise_by=noise_by, **holders)
    process, flower = (run_by(engine, file, tmp_path / engine) for engine in ("process", "flower"))
    assert model_of(process) == model_of(flower)
    # Promises, cohorts, charges and releases too: of both it is said that one process sees everything.
    (promised, *done, bound), (other, *too, bound_too) = record_of(process), record_of(flower)
    assert (promised, done) == (other, too)
    # Of the files that the last record binds, each names its engine or its head.
    assert bound["kind"] == bound_too["kind"] == "files"
    assert promised["setting"].startswith(IN_ONE)
    require_ends("verify", flower)
    # Nothing secret goes with the app.
    assert not any("share" in path.name or "private" in path.name for path in (flower / "app").rglob("*"))


def test_where_clients_add_the_noise_they_do_so_on_flower_as_well(tmp_path: Path) -> None:
    file = run_file(tmp_path, keys(tmp_path / "keys", shared=False), noise="secure", noise_by="clients", min_survivors=2)
    flower = run_by("flower", file, tmp_path / "run")
    kinds = [record["kind"] for record in record_of(flower)]
    assert kinds.count("commit") == 2
    store = RunStore(flower)
    releases = [store.parse_release(t, store.release_content(t)) for t in store.released()]
    # Shares for two, of three that answer: √(3/2) clip norms, and up to 0.4 of the updates. Of 100 numbers the estimate is off
    # by so much with probability below 1e-5.
    assert 0.8 < float(torch.cat(releases).std()) < 1.8
    require_ends("verify", flower)
    assert "so that 2 shares are the whole" in json.loads((flower / "guarantee.json").read_text())["setting"]


@pytest.mark.slow
def test_unnamed_keys_are_made_once_and_only_their_owner_may_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(paillier, "generate", lambda bits: (made.append(bits), owner())[1])
    file = run_file(tmp_path, None)
    begun = RunInFolder.begun(build(config.resolve(config.load(file)), allow_import=True), tmp_path / "run")
    place = begun.folder / "state" / "holders"
    place.mkdir(parents=True)
    # Of a start that was killed while it wrote the keys.
    (place / "private-key.json").touch()
    with pytest.raises(KeyboardInterrupt):
        raising(KeyboardInterrupt)(next(begun.rounds(local_population(begun, allow_import=True))))
    kept = json.loads((begun.folder / "state" / "agreement.json").read_text())
    require_ends("resume", begun.folder, "--engine", "flower", "--allow-import")
    assert made == [2048]
    assert json.loads((begun.folder / "state" / "agreement.json").read_text()) == kept
    assert {path.name for path in place.iterdir()} == {"1", "private-key.json", "public-key.json"}
    assert stat.S_IMODE((place / "private-key.json").stat().st_mode) == 0o600
    assert json.loads(next(place.glob("1/holder-1-*/opened.json")).read_text())["next_round"] == 2
    # As one that was never interrupted.
    file.write_text(file.read_text().replace("key_bits", f'keys = "{keys(tmp_path / "keys", shared=False)}", key_bits'))
    assert model_of(run_by("process", file, tmp_path / "whole")) == model_of(begun.folder)


def test_a_deployed_server_needs_no_share_and_finds_the_holder_among_the_nodes(tmp_path: Path) -> None:
    named = keys(tmp_path / "keys", shared=False)
    file = run_file(tmp_path, None)
    public = {"paillier-public": str(named / "public-key.json")}
    with pytest.raises(ConfigError, match=r"paillier-public: is missing; .*--run-config"):
        serve(federation(file, named / "private-key.json"), deployed(tmp_path / "first"), file)
    with pytest.raises(SumNotOpenedError, match="no holder of the key"):
        serve(federation(file, None), deployed(tmp_path / "second", **public), file)
    assert not (tmp_path / "second" / "ledger.jsonl").exists()
    on = federation(file, None)
    (answer,) = on.send_and_receive([Message(RecordDict(), on.get_node_ids()[0], "evaluate")])
    assert "No evaluate function registered" in answer.error.reason
    for settings in (file, tmp_path / "third" / "config.toml"):
        serve(federation(file, named / "private-key.json"), deployed(tmp_path / "third", **public), settings)
    (promised, *_), (simulated, *_) = record_of(tmp_path / "third"), record_of(run_by("flower", file, tmp_path / "flower"))
    assert simulated["setting"] == IN_ONE + promised["setting"]
    assert {name for name in promised if promised[name] != simulated[name]} == {"setting", "further", "settings"}
    require_ends("verify", tmp_path / "third")
    # What is stated of where the parties are stays true.
    for place, is_deployed, where in (("third", False, "on a federation"), ("flower", True, "in one process")):
        with pytest.raises(RunFolderError, match=f"where its parties are, and it was begun {where}"):
            RunInFolder.resumed(tmp_path / place, allow_import=True, deployed=is_deployed)
    assert model_of(tmp_path / "third") == model_of(run_by("process", run_file(tmp_path, named), tmp_path / "process"))


def test_keys_of_other_holders_and_runs_that_cannot_go_on_are_refused(tmp_path: Path) -> None:
    named = keys(tmp_path / "keys", shared=True)
    public = {"paillier-public": str(named / "public-key.json")}
    for wrong, match in (
        ({}, r"secagg.holders = 1: the key in .* has 3"),
        ({"holders": 3, "threshold": 3}, r"secagg.threshold = 3: .* has 2"),
        ({"holders": 3, "threshold": 2, "key_bits": 3072}, r"secagg.key_bits = 3072: .* has 2048"),
        ({"holders": 3, "threshold": 2, "min_contributions": 1}, r"secagg.min_contributions = 1: .* at least 2"),
    ):
        file = run_file(tmp_path, None, **wrong)
        with pytest.raises(ConfigError, match=match):
            serve(federation(file, None), deployed(tmp_path / f"run-{len(match)}", **public), file)


@pytest.mark.slow
def test_noise_that_holders_drew_in_one_process_is_not_resumed_on_nodes(tmp_path: Path) -> None:
    named = keys(tmp_path / "keys", shared=True)
    file = run_file(tmp_path, named, noise="secure", noise_by="holders", holders=3, threshold=2)
    folder = run_by("process", file, tmp_path / "run")
    # The ledger knows the rounds.
    (folder / "metrics.jsonl").unlink()
    begun = RunInFolder.resumed(folder, allow_import=True)
    with pytest.raises(RunFolderError, match="resume with --engine process"):
        local_population(begun, allow_import=True)
    (folder / "state" / "holders" / "2" / "noise.json").unlink()
    with pytest.raises(RunFolderError, match="noise was given for 2"):
        parties(begun, begun.run.encryption).prepare(begun.run.model, 1)
