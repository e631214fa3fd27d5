"""How evenly a model serves its clients: each by its own examples, as one client at a time would measure it."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import SimulatedPopulation, verify
from hubbub.errors import ConfigError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build
from hubbub.training.evaluation import QUANTILES, Spread, evaluate
from recorded_runs import invoke
from refusals import refused


@pytest.mark.parametrize("batch_size", [1, 3, 7, 1000])
def test_each_client_is_measured_as_if_it_were_alone(batch_size: int) -> None:
    torch.manual_seed(0)
    people = [(torch.randn(n, 5), torch.randint(0, 3, (n,))) for n in (1, 4, 9, 2, 30)]
    judge = nn.Sequential(nn.SELU(inplace=True), nn.Linear(5, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    found = [evaluate(judge, examples, F.cross_entropy, batch_size) for examples in people]
    assert judge.training
    judge.eval()
    for (inputs, targets), (loss, accuracy) in zip(people, found, strict=True):
        output = judge(inputs.clone()).detach()
        assert accuracy == float((output.argmax(dim=1) == targets).double().mean())
        assert loss == pytest.approx(float(F.cross_entropy(output, targets)), rel=1e-5)


class Counted(nn.Module):
    """Its output depends on what it was called with before, by a buffer, by its weights and by what it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5), persistent=False)
        self.linear, self.calls = nn.Linear(5, 3), 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean = self.mean + inputs.mean(0)
        with torch.no_grad():
            self.linear.weight.add_(inputs.mean())
        return self.calls * self.linear(inputs - self.mean)


def test_cli_15_nothing_of_one_clients_examples_reaches_another_or_the_model_by_a_measurement() -> None:
    judge, people = Counted(), [(torch.randn(4, 5), torch.tensor([0, 1, 2, 0])) for _ in range(6)]
    before = [p.clone() for p in judge.state_dict().values()]
    first, last = SimulatedPopulation(people, F.cross_entropy), SimulatedPopulation(people[::-1], F.cross_entropy)
    assert first.measure(range(6), judge) == last.measure(range(6), judge)[::-1]
    evaluate(judge, people[0], F.cross_entropy)
    assert (judge.calls, float(judge.mean.abs().sum())) == (0, 0.0)
    assert all(torch.equal(*pair) for pair in zip(before, judge.state_dict().values(), strict=True))


class Recalls(nn.Module):
    """A loss that depends on the losses before."""

    mean = 1.0

    def forward(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(output, targets)
        self.mean = 0.5 * self.mean + 0.5 * float(loss.detach())
        return loss / self.mean


def test_the_loss_of_what_is_no_classifier_is_measured_and_keeps_nothing_of_a_client() -> None:
    torch.manual_seed(0)
    people = [(torch.randn(4, 5), torch.randn(4)) for _ in range(3)]
    model = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))
    found = [SimulatedPopulation(some, Recalls()).measure(range(len(some)), model) for some in (people, people[2:])]
    assert found[0][2] == found[1][0]
    assert found[0][2]["loss"] == pytest.approx(Recalls()(model(people[2][0]), people[2][1]).item())


def test_the_worst_tenth_are_those_whom_the_model_serves_worst() -> None:
    values = np.random.default_rng(2).permutation(np.arange(1, 26) / 25)
    served = Spread.of(values, higher_is_better=True)
    assert served.mean == pytest.approx(13 / 25)
    assert served.worst_tenth == pytest.approx((1 + 2 + 3) / 3 / 25)
    assert served.best_tenth == pytest.approx((23 + 24 + 25) / 3 / 25)
    assert served.quantiles == pytest.approx({f"{p:g}": float(np.quantile(values, p)) for p in QUANTILES})
    lost = Spread.of(values, higher_is_better=False)
    assert (lost.worst_tenth, lost.best_tenth) == (served.best_tenth, served.worst_tenth)
    assert lost.quantiles == served.quantiles


def settings(**training: object) -> configs.Config:
    changes = {"training": {"rounds": 3, "cohort_size": 5, "fairness": True, **training}}
    return configs.resolve({"privacy": {"noise_multiplier": 1.0}, "data": {"clients": 20}}, changes)


def test_a_run_keeps_what_it_says_of_single_clients_apart_and_marks_it_private(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(configs.dump(settings()))
    done = invoke("train", tmp_path / "run.toml", "--out", tmp_path / "run")
    assert "Private, not for release: accuracy on each of 20 clients' own examples" in done
    kept = tmp_path / "run" / "private-fairness.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    told = json.loads(kept.read_text())
    assert told["private"].endswith("not for release")
    run = build(settings())
    with safe_open(tmp_path / "run" / "model.safetensors", "pt") as trained:
        run.model.load_state_dict({name: trained.get_tensor(name) for name in trained.keys()})  # noqa: SIM118 # no mapping
    next(run.model.children()).eval()
    modes = [part.training for part in run.model.modules()]
    alone = [evaluate(run.model, examples, F.cross_entropy)[1] for examples in run.examples]
    assert ([part.training for part in run.model.modules()], told["clients"]) == (modes, 20)
    assert told["accuracy"]["mean"] == pytest.approx(sum(alone) / 20)
    assert told["accuracy"]["worst_tenth"] == pytest.approx(sum(sorted(alone)[:2]) / 2)
    # Nothing of it is in what is given away.
    report = (tmp_path / "run" / "report.md").read_text()
    assert "worst" not in report.replace("worst case", "")
    assert "accuracy and loss by client (private-fairness.json), which are exact" in report
    assert "private-fairness.json" in json.dumps(json.loads((tmp_path / "run" / "guarantee.json").read_text())["not_covered"])
    assert verify(tmp_path / "run").ok


def test_a_server_of_a_federation_cannot_say_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.fairness = True with training\.engine"):
        settings(engine="flower")
    (tmp_path / "run.toml").write_text(configs.dump(settings()))
    refused(["train", tmp_path / "run.toml", "--out", tmp_path / "run", "--engine", "flower"], "training.fairness = True")
    assert not (tmp_path / "run").exists()
