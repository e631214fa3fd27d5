"""What runs on a GPU, where there is one: clients, examples, noise and whole runs give there what they give on a processor."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import local_jobs
from hubbub import Mechanism, MinSeparation, SingleParticipation, factorization, verify
from hubbub.experiment import config as configs
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.mechanism.workloads import prefix_sum
from hubbub.models import CifarCnn, Cnn, Mlp
from hubbub.noise import NoiseStream
from hubbub.noise.lattice import Lattice
from hubbub.training import ExamplePopulation, Execution, LocalTraining, Ranks, SimulatedPopulation, private_gradients
from hubbub.training.per_example import Chosen, ExampleGradients
from hubbub.training.simulation.local import OneByOne
from hubbub.training.simulation.stacked_module import NotStackableError
from hubbub.training.simulation.stacks import Stacks
from local_jobs import IMAGES, SENTENCES, Lstm, jobs
from ranks_of import on_ranks
from recorded_runs import interrupted_at, invoke

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
CUDA = torch.device("cuda", 0)


class Unused(Mlp):
    """Has a parameter of which nothing hangs."""

    def __init__(self) -> None:
        super().__init__(IMAGES, 10)
        self.nowhere = nn.Parameter(torch.ones(3))


MODELS = local_jobs.MODELS | {
    "unused": (Unused, jobs(IMAGES)),
    "lstm": (lambda: Lstm(layers=2, bidirectional=True), jobs(SENTENCES, sequences=True)),
}

ALL = LocalTraining(epochs=2, batch_size=8, momentum=0.9, weight_decay=0.01, proximal=0.3, schedule="cosine")
# It adds in another order.
TOLERANCE = 1e-4


def trained(made: OneByOne | Stacks, model: nn.Module, clients: list[Any]) -> dict[int, torch.Tensor]:
    found = {trained.client: trained.update for trained in made.train(model, clients)}
    assert {update.device for update in found.values()} == {CUDA}
    return {client: update.cpu() for client, update in found.items()}


@pytest.mark.filterwarnings("ignore:RNN module weights")
@pytest.mark.parametrize("local", [LocalTraining(), ALL], ids=["plain", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_clients_train_as_on_a_processor(name: str, local: LocalTraining) -> None:
    torch.manual_seed(0)
    model, clients = MODELS[name][0](), MODELS[name][1]
    if name == "layers":
        # A GPU drops other numbers.
        model.features, model.single = nn.Identity(), nn.Identity()
    expected = {t.client: t.update for t in OneByOne(model, F.cross_entropy, local, Execution()).train(model, clients)}
    for plan, maker in {
        "one by one": OneByOne(model, F.cross_entropy, local, Execution(device="cuda")),
        "stacked": Stacks(model, F.cross_entropy, local, Execution(device="cuda"), clients=3),
    }.items():
        if name == "lstm" and plan == "stacked":
            # cuDNN's recurrent layers do not run under vmap: "auto" trains such clients one by one.
            with pytest.raises(NotStackableError):
                trained(maker, model, clients)
            continue
        for client, update in trained(maker, model, clients).items():
            assert float((update - expected[client]).norm()) <= TOLERANCE * float(expected[client].norm()), (plan, client)


def test_examples_are_clipped_each_by_itself() -> None:
    torch.manual_seed(0)
    model, (job, *_) = Cnn((1, 28, 28), 10), jobs((1, 28, 28))
    here = private_gradients(model, F.cross_entropy, job.inputs, job.targets, 0.1)
    there = private_gradients(model.to("cuda"), F.cross_entropy, job.inputs.to("cuda"), job.targets.to("cuda"), 0.1)
    assert there.total.device == CUDA
    torch.testing.assert_close(there.open(None).cpu(), here.open(None), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("make", "shape"), [(Cnn, (1, 28, 28)), (CifarCnn, (3, 32, 32))])
@pytest.mark.parametrize("batch", [16, 64, 256, 1024])
def test_examples_have_the_same_bits_in_a_batch(make: Any, shape: tuple[int, ...], batch: int) -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(9, *shape, device=CUDA), torch.arange(9, device=CUDA)
    gradients = ExampleGradients(make(shape, 10).to(CUDA), F.cross_entropy, batch=batch)
    assert gradients.batched(Chosen(inputs, targets, range(9), int))


@pytest.mark.parametrize("dim", [1, 6, 777, 21_840])
def test_updates_are_rounded_with_the_same_bits_alone_and_together(dim: int) -> None:
    lattice, draw = Lattice(0.7), torch.Generator().manual_seed(dim)
    rows = torch.randn(150, dim, generator=draw) * torch.rand(150, 1, generator=draw) * 3 / dim**0.5
    rows[3], rows[5, 0], rows[7, -1], rows[9], rows[11] = 0, torch.nan, torch.inf, 1e-30, 1e30
    together = torch.zeros(dim, dtype=torch.int64, device=CUDA)
    flags = lattice.encode_rows(rows.to(CUDA), together)
    alone, clipped = zip(*(lattice.encode(row.to(CUDA)) for row in rows), strict=True)
    assert torch.equal(together, sum(alone))
    assert flags.tolist() == list(clipped)
    assert all(int(part.square().sum()) <= lattice.radius**2 for part in alone)
    assert not any(alone[bad].any() for bad in (3, 5, 7))
    # As on a processor, but for the last bits of a norm.
    apart = [int((part.cpu() - lattice.encode(row)[0]).abs().max()) for part, row in zip(alone, rows, strict=True)]
    assert max(apart) <= 1


@pytest.mark.parametrize("make", ["one-by-one", "batched-3", "examples", "table"])
def test_cli_13_a_class_or_a_row_that_is_not_there_never_reaches_the_gpu_and_adds_nothing(make: str) -> None:
    torch.manual_seed(0)
    table = make == "table"
    model = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2)) if table else nn.Linear(2, 2)
    clients = [(torch.randint(0, 4, (4, 2)) if table else torch.randn(4, 2), torch.tensor([0, 1, 1, 0])) for _ in range(6)]
    if table:
        clients[4][0][1, 0] = 9
    else:
        clients[4][1][2] = 7
    if make == "examples":
        inputs, targets = (torch.cat(part).to(CUDA) for part in zip(*clients, strict=True))
        units: ExamplePopulation | SimulatedPopulation = ExamplePopulation(inputs, targets, F.cross_entropy)
        everybody, spoilt = range(24), 18
    else:
        plan = "one-by-one" if table else make
        units = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), execution=Execution(plan, device="cuda"))
        everybody, spoilt = range(6), 4
    whole, others = (units.collect(c, model, 0.5, 0) for c in (everybody, [one for one in everybody if one != spoilt]))
    assert torch.equal(whole.total.cpu(), others.total.cpu())
    # Nothing was raised: it would have ended all that the process does with the GPU.
    assert "failed" not in whole.statistics


@pytest.mark.parametrize("name", ["identity", "banded", "blt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_noise_are_those_of_a_processor_wherever_they_are_needed(name: str, dtype: torch.dtype) -> None:
    strategies = {
        "identity": Identity(9),
        "banded": toeplitz.square_root(9, 4),
        "blt": factorization.blt.optimize(prefix_sum(9), buffers=2, participation=SingleParticipation()).strategy,
    }
    mechanism = Mechanism(strategies[name], MinSeparation(9, 1), 0.7)
    there, here = (NoiseStream(mechanism, 100_003, seed=4, device=device, dtype=dtype) for device in ("cuda", "cpu"))
    for _ in range(9):
        row = there.next_row()
        assert (row.device, row.dtype) == (CUDA, dtype)
        assert torch.equal(row.cpu(), here.next_row())


SETTINGS: dict[str, Any] = {
    "training": {"rounds": 4, "cohort_size": 12, "device": "cuda"},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-3},
    "data": {"name": "digits", "clients": 40},
}
EXAMPLES = {"privacy": {"unit": "example"}, "data": {"clients": configs.Config().data.clients}}
CHANGES: dict[str, dict[str, Any]] = {
    "secure": {},
    "simulation": {"privacy": {"noise": "simulation"}},
    "bfloat16": {"training": {"precision": "bfloat16"}},
    "correlated": {"privacy": {"mode": "dp-ftrl", "strategy": "blt"}},
    "examples": EXAMPLES,
    "examples, simulated": {**EXAMPLES, "privacy": {"unit": "example", "noise": "simulation"}},
    "adam": {"training": {"server_optimizer": "fedadam", "server_learning_rate": 0.01}},
    "adaptive": {"privacy": {"clipping": "adaptive"}},
    "stacked": {"training": {"plan": "batched-5", "fairness": True}},
    "flower": {"training": {"engine": "flower"}},
    "encrypted": {"secagg": {"scheme": "paillier", "key_bits": 2048}},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_run_is_trained_resumed_verified_and_extended(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(configs.dump(configs.resolve(SETTINGS, CHANGES[kind])))
    folder = tmp_path / "run"
    with interrupted_at(3):
        invoke("train", tmp_path / "run.toml", "--out", folder, status=130)
    invoke("resume", folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert all(0 < row["loss"] < 10 for row in rows)
    verdict = verify(folder)
    assert verdict.ok, verdict
    assert "Accuracy" in invoke("evaluate", folder)
    if kind in ("secure", "examples"):
        invoke("extend", folder, "--rounds", 2, "--out", tmp_path / "more")
        assert verify(tmp_path / "more").ok


@pytest.mark.parametrize("unit", ["client", "example"])
def test_two_ranks_on_a_gpu_train_the_model_of_one(unit: str, tmp_path: Path) -> None:
    of_unit = EXAMPLES if unit == "example" else {"training": {"plan": "batched-4"}}
    settings = configs.resolve(SETTINGS, {"privacy": {"noise": "simulation"}}, of_unit)
    (tmp_path / "run.toml").write_text(configs.dump(settings))
    models = []
    for place, ranks in (("once", "1"), ("again", "1"), ("divided", "2")):
        command = [sys.executable, "-m", "hubbub", "train", "run.toml", "--out", place, "--nproc", ranks]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        models.append(load_file(tmp_path / place / "model.safetensors"))
    for other in models[1:]:
        assert all(torch.equal(value, other[name]) for name, value in models[0].items())


def over_gpus(ranks: Ranks, ends: bool) -> list[Any]:
    device = torch.device("cuda", ranks.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    sums = []
    for dtype in (torch.int64, torch.float64):
        # Terms are lost where sums in floating point are added in another order.
        chunks = [lambda total, n=n: total.add_(1 + 10**16 * n * (n - 3)) and None for n in range(5)]
        sums += ranks.summed(chunks, torch.zeros(1, dtype=dtype, device=device))[0].tolist()
    vector = torch.full((5,), 1.0 + ranks.rank, device=device)
    ranks.complete(vector, [(0, 3), (3, 5)][: ranks.size])
    if ends:
        if ranks.rank:
            ranks._moving = lambda moves: os._exit(1)
        ranks.complete(vector, [(0, 3), (3, 5)])
    return [*sums, *vector.tolist(), "" if ranks.size == 1 else torch.distributed.get_backend(ranks._gpus)]


@pytest.mark.skipif(
    torch.cuda.device_count() < 2 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1",
    reason="needs a GPU for each rank, or NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1",
)
def test_ranks_on_gpus_exchange_by_nccl_and_name_a_rank_that_ends() -> None:
    alone = over_gpus(Ranks(), ends=False)
    assert on_ranks(2, over_gpus, False) == [[*alone[:2], 1.0, 1.0, 1.0, 2.0, 2.0, "nccl"]] * 2
    error, nothing = on_ranks(2, over_gpus, True, limit=15.0)
    assert (str(error), nothing) == ("rank 1: ended; its own output may say why", None)
