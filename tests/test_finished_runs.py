"""What is done with a run once it has trained: load it, evaluate it, publish what others may have."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file, save_file

import hubbub
from cohort_file import joined
from hubbub._util import files
from hubbub.errors import RunFolderError
from recorded_runs import SMALL, trained
from recorded_runs import hubbub as ran
from refusals import refused


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("finished")).parent


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def train(made: Path, folder: Path, *settings: str) -> Path:
    assert ran("train", made / "run.toml", "--out", folder, *(part for s in settings for part in ("--set", s))) == 0
    return folder


def test_a_loaded_run_is_the_model_and_the_guarantee_of_its_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = hubbub.load(run)
    parameters = sum(p.numel() for p in found.model.parameters())
    assert f"{type(found.model).__name__} of {parameters:,} parameters on " in repr(found)
    assert found.guarantee.sentence() in repr(found)
    assert len(repr(found).splitlines()) == 1
    kept = load_file(run / "model.safetensors")
    assert {name: p.tolist() for name, p in found.model.named_parameters()} == {n: t.tolist() for n, t in kept.items()}
    assert not found.model.training
    assert found.guarantee.epsilon == json.loads((run / "guarantee.json").read_text())["epsilon"]
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    assert found.evaluate() == (last["loss"], last["accuracy"])
    assert ran("evaluate", run, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["accuracy"], answer["held_out"]) == (last["accuracy"], False)


def test_what_is_published_holds_no_key_no_name_and_no_private_number(run: Path, tmp_path: Path) -> None:
    public = tmp_path / "public"
    assert ran("publish", run, "-o", public) == 0
    names = ["README.md", "guarantee.json", "model.safetensors", "published.json", "report.html"]
    assert sorted(path.name for path in public.rglob("*")) == names
    everything = b"".join(path.read_bytes() for path in sorted(public.iterdir()))
    for key in (run / "state" / "keys").iterdir():
        assert key.read_bytes() not in everything
        assert key.read_bytes().hex().encode() not in everything
    ledger = [json.loads(line)["body"] for line in (run / "ledger.jsonl").read_text().splitlines()]
    if (run / "ledger.cohorts").exists():
        assert not any(client.encode() in everything for client in joined(run / "ledger.jsonl"))
        assert (run / "ledger.cohorts").read_bytes()[12:20] not in everything
    for record in ledger:
        if record["kind"] == "begin":
            assert record["sum"].encode() not in everything
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        for name in row["private"]:
            # Short ones, such as 0.5, stand in any text.
            if isinstance(row.get(name), float) and len(repr(row[name])) > 8:
                assert repr(row[name])[:9].encode() not in everything, name
    assert (public / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    stated = json.loads((public / "guarantee.json").read_text())
    assert f"({stated['epsilon']:.4g}"[:4] in (public / "README.md").read_text()
    assert hubbub.load(run).guarantee.sentence() in (public / "README.md").read_text()


def test_held_out_numbers_are_not_published(made: Path, tmp_path: Path) -> None:
    folder = train(made, tmp_path / "held", "training.validation=0.2")
    assert ran("publish", folder, "-o", tmp_path / "public") == 0
    last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][-1]
    text = (tmp_path / "public" / "README.md").read_text() + (tmp_path / "public" / "report.html").read_text()
    assert f"{100 * last['accuracy']:.2f}" not in text
    assert "Accuracy" not in text.partition("<footer>")[0].replace("Accuracy and loss", "")


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ('noise_multiplier = 2.0, noise = "simulation"', "simulation, not for release"),
        ('mode = "none"', "no privacy guarantee"),
    ],
)
def test_what_is_not_private_is_not_published(tmp_path: Path, noise: str, words: str) -> None:
    run = trained(tmp_path, SMALL.replace("clip_norm = 0.5, noise_multiplier = 2.0", noise))
    refused(["publish", run, "-o", tmp_path / "public"], words)
    assert not (tmp_path / "public").exists()


def edited_guarantee(run: Path) -> None:
    text = (run / "guarantee.json").read_text()
    (run / "guarantee.json").write_text(text.replace('"delta":1e-05', '"delta":1e-06', 1))


@pytest.mark.parametrize(
    ("damage", "words"),
    [(edited_guarantee, "does not verify"), (lambda run: (run / "model.safetensors").unlink(), "model.safetensors")],
    ids=["guarantee", "no model"],
)
def test_a_damaged_run_is_not_published(run: Path, tmp_path: Path, damage: Any, words: str) -> None:
    damage(run)
    refused(["publish", run, "-o", tmp_path / "public"], words)
    assert not (tmp_path / "public").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.toml"])
def test_cra_18_a_run_with_one_bit_flipped_is_not_loaded(run: Path, name: str) -> None:
    content = bytearray((run / name).read_bytes())
    content[-2] ^= 1
    (run / name).write_bytes(content)
    with pytest.raises(RunFolderError, match=f"{name}.* that the ledger binds"):
        hubbub.load(run)


def test_a_simulation_without_secrets_is_closed_once(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated = train(made, tmp_path / "simulated", "privacy.noise=simulation", "training.rounds=1")
    for said in ("is closed; no secret is left in it", "was closed already; no secret is left in it"):
        capsys.readouterr()
        assert ran("close", simulated) == 0
        assert said in capsys.readouterr().out


def test_a_report_is_not_written_in_the_place_of_a_folder_or_another_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.html").mkdir()
    refused(["report", run, "-o", tmp_path / "a.html"], "is a folder; name a file in it")
    refused(["report", run, "-o", run / "ledger.jsonl"], "ledger.jsonl: must end in .html")


def test_the_card_says_whom_epsilon_is_against(run: Path, tmp_path: Path) -> None:
    """Epsilon without its delta bounds nothing, and binds nobody who sees more than releases."""
    # As of a run that was killed before it had measured its last model.
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(rows[:-1]))
    assert ran("publish", run, "-o", tmp_path / "public") == 0
    card, stated = ((tmp_path / "public" / name).read_text() for name in ("README.md", "guarantee.json"))
    delta = json.loads(stated)["delta"]
    assert f"at delta {delta:g} bounds what readers of the releases can learn" in card
    assert f", after {len(rows) - 1} rounds." in card
    assert "anybody can learn" not in card


def test_a_folder_that_became_read_only_is_to_be_made_writable(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "locked_folder", Mock(side_effect=PermissionError(13, "Permission denied", str(run))))
    refused(["close", run], "cannot be written", "make it writable")


def test_settings_behind_a_link_are_not_read(run: Path, tmp_path: Path) -> None:
    (run / "config.toml").rename(tmp_path / "elsewhere.toml")
    refused(["resume", run], "config.toml: is not there; restore it")
    (run / "model.safetensors").unlink()
    refused(["evaluate", run], "no command loads, evaluates, resumes or publishes it")
    (run / "config.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(RunFolderError, match="symbolic link"):
        hubbub.load(run)


def test_a_name_writes_nothing_into_the_card(run: Path, tmp_path: Path) -> None:
    evil = run.rename(tmp_path / "[safe](x)\n# (0.1, 1e-9)-DP <script>")
    assert ran("publish", evil, "-o", tmp_path / "public") == 0
    card = (tmp_path / "public" / "README.md").read_text()
    assert [line for line in card.splitlines() if "0.1, 1e-9" in line and line.startswith("# \\[safe\\]\\(x\\)")]
    assert "\n# (0.1" not in card
    assert "<script>" not in card.replace("\\<script\\>", "")


def test_a_model_of_fewer_rounds_than_the_ledger_has_is_not_loaded(run: Path) -> None:
    other = load_file(run / "model.safetensors")
    chain = [json.loads(line)["hash"] for line in (run / "ledger.jsonl").read_text().splitlines()]
    save_file(other, run / "model.safetensors", {"ledger_head": chain[3]})
    with pytest.raises(RunFolderError, match="has gone on"):
        hubbub.load(run)
