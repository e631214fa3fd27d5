"""What a run shows outside of its folder, and to all within it, is the same whatever one client's data are.

The model here learns nothing: its gradients are zero, so that each release is noise alone and all that follows from releases is
the same for any data. Whatever differs between two runs then tells of the data past all noise.
"""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from hubbub._util.prf import derive
from hubbub.cli.app import main
from hubbub.experiment import tracking
from hubbub.experiment.engine import flower_app
from hubbub.training import release
from hubbub.training.run_folder import store
from hubbub.training.run_folder.record import read_metrics

MODULE = """
import numpy as np
import torch
from pathlib import Path
from torch import nn
from hubbub.datasets import Dataset

USERS, EACH = 12, 6

def data(path):
    generator = torch.Generator().manual_seed(0)
    users = np.repeat(np.arange(USERS), EACH)
    x, y = torch.randn(len(users), 4, generator=generator), torch.from_numpy(users % 3)
    if Path("neighbour").exists():
        # Another client of that name, or another example: larger numbers, of another class; of a client's, half are gone.
        alone = Path("neighbour").read_text() == "example"
        mine = torch.from_numpy(np.arange(len(users)) == 31 if alone else users == 5)
        x[mine], y[mine] = 1e30 * torch.rand(int(mine.sum()), 4, generator=generator), 2
        kept = ~mine | (torch.arange(len(users)) % 2 == 0) | alone
        x, y, users = x[kept], y[kept], users[kept.numpy()]
    return Dataset(x, y, torch.randn(30, 4, generator=generator.manual_seed(1)), torch.arange(30) % 3, users=users)

class Deaf(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, 5))

    def forward(self, x):
        # Its loss hangs on the data, its gradient does not.
        return x[:, :3].clamp(-1e3, 1e3) + 0 * self.weight.sum()
"""
SETTINGS = """
data = { name = "deaf_model:data", partition = "user" }
model = { name = "deaf_model:Deaf" }
training = { rounds = 4, cohort_size = 6, evaluate_every = 2, seed = 1, fairness = true }
privacy = { noise_multiplier = 1.0, delta = 1e-3 }
"""
WAYS = {
    "Poisson": [],
    "fixed size, adaptive": ["privacy.sampling=fixed-size", "privacy.clipping=adaptive"],
    "correlated": [
        "privacy.mode=dp-ftrl",
        "participation.pattern=min-separation",
        "participation.min_separation=2",
        "participation.max_participations=2",
    ],
    "examples": ["privacy.unit=example", "data.partition=default", "training.fairness=false"],
    "validation": ["training.validation=0.2"],
    "Flower": ["training.engine=flower", "training.fairness=false"],
}
# How long it took is no part of this, nor is what is marked as the operator's.
UNSHOWN = re.compile(r"\d+ (?:client|example)s/s|Private, not for release: .*")
# For the operator's eyes, by docs/extending.md; all else in a run's folder shows its name and its length at least.
OPERATORS = {"metrics.jsonl", "report.html", "private-fairness.json", "report.png"}


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """All that a command shows: what it prints, and how it ends."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    shown = capsys.readouterr()
    return f"{ended.value.code}\n{UNSHOWN.sub('', shown.out)}\n{UNSHOWN.sub('', shown.err)}"


def told(folder: Path, way: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a run in a folder of its own shows to others, with the operating system's coins in their order."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    Path("deaf_model.py").write_text(MODULE)
    Path("run.toml").write_text(SETTINGS)
    flower_app._client_side.cache_clear()
    numbers = itertools.count(1)
    for module in (release, store):
        monkeypatch.setattr(module, "fresh_key", lambda: derive(bytes(32), next(numbers)))
    changes = [part for change in way for part in ("--set", change)]
    found: dict[str, Any] = {"train": command(capsys, "train", "run.toml", "--out", "run", "--allow-import", *changes)}
    run = Path("run")
    for name, arguments in {
        "verify": ("verify", "run"),
        "account": ("account", "run", "--statement"),
        "cite": ("cite", "run"),
        "ledger": ("ledger", "run"),
        "publish": ("publish", "run", "-o", "public"),
        "again": ("resume", "run", "--allow-import"),
    }.items():
        found[name] = command(capsys, *arguments)
    assert found["train"].startswith("0\n"), found["train"]
    found["files"] = {str(path): path.read_bytes() for path in sorted(Path("public").iterdir())}
    shown = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in (*OPERATORS, "metrics.prom")]
    found["run"] = {str(path): (path.stat().st_size, path.stat().st_mode) for path in shown}
    found |= {name: (run / name).read_bytes() for name in ("config.toml", "guarantee.json", "ledger.jsonl", "report.md")}
    found["gauges"] = re.sub("(?m)^hubbub_last_round_timestamp_seconds.*", "", (run / "metrics.prom").read_text())
    found["tracked"] = [tracking.scalars(row) for row in read_metrics(run / "metrics.jsonl")[0]]
    return found


@pytest.mark.parametrize("way", [*list(WAYS)[:1], *(pytest.param(way, marks=pytest.mark.slow) for way in list(WAYS)[1:])])
def test_what_a_run_shows_does_not_hang_on_one_clients_data_but_by_its_releases(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In one place, since paths are written down.
    shown = {}
    for neighbour in (False, True):
        folder = tmp_path / "here"
        folder.mkdir()
        if neighbour:
            (folder / "neighbour").write_text("example" if way in ("examples", "validation") else "client")
        shown[neighbour] = told(folder, WAYS[way], capsys, monkeypatch)
        folder.rename(tmp_path / f"was {neighbour}")
    for name, ours in shown[False].items():
        assert ours == shown[True][name], name
