"""Correlated against independent noise at equal zCDP: MNIST, 1,000 clients of 60 images, a fixed rotation.

Every client takes part once in 10 rounds, 100 rounds long, and nothing is amplified. Both mechanisms meet the same epsilon
(delta = 1e-5) for the same clients in the same rounds, so they spend the same zCDP; only the noise differs: independent in
each round, or banded Toeplitz with 10 bands. The learning rate of each mechanism and epsilon is chosen on the same grid on
6,000 held-out *training* images, with a seed that is not used again; the test images are only shown to the chosen setting.

    python examples/headlines/correlated_noise.py --data FOLDER_WITH_MNIST_NPZ --jobs 2

Finished runs are kept in the results file, so that an interrupted search goes on where it was.
"""

import argparse
import itertools
import json
import math
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.accounting import calibrate
from hubbub.datasets import iid, mnist
from hubbub.mechanism.participation import FixedEpochs
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.models import Mlp
from hubbub.training import LocalTraining, RunPlan, SimulatedPopulation, evaluate, train

ROUNDS, PERIOD, CLIENTS, CLIP_NORM, DELTA = 100, 10, 1000, 0.3, 1e-5
STRATEGIES = {"independent": Identity(ROUNDS), "banded Toeplitz": toeplitz.square_root(ROUNDS, bands=PERIOD)}
COLORS = {"independent": "#b5542b", "banded Toeplitz": "#1b6ca8"}
LEARNING_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2)
EPSILONS = (2.0, 8.0)
CHOOSING_SEED = 1000
EVALUATE_EVERY = 5

# Noise, epsilon, learning rate, seed, and whether the setting is being chosen.
Task = tuple[str, float, float, int, bool]
# The accuracy after every EVALUATE_EVERY rounds of each finished task, by its name.
Results = dict[str, list[float]]


def one_run(data: str, noise: str, epsilon: float, learning_rate: float, seed: int, choosing: bool) -> list[float]:
    torch.set_num_threads(1)
    dataset = mnist.load(data)
    if choosing:
        dataset = dataset.without_test(validation=0.1, seed=seed)
    parts = iid(len(dataset.train_inputs), CLIENTS, seed)
    examples = [(dataset.train_inputs[part], dataset.train_targets[part]) for part in parts]
    mechanism = calibrate(STRATEGIES[noise], FixedEpochs(ROUNDS // PERIOD, PERIOD), epsilon=epsilon, delta=DELTA)
    plan = RunPlan(
        ROUNDS, mechanism.participation, CLIENTS / PERIOD, mechanism, CLIP_NORM, DELTA, seed=seed, noise="simulation"
    )
    population = SimulatedPopulation(examples, F.cross_entropy, LocalTraining(batch_size=10, learning_rate=learning_rate), seed)
    torch.manual_seed(seed)
    model = Mlp(dataset.shape, dataset.classes)
    return [
        evaluate(model, (dataset.test_inputs, dataset.test_targets), F.cross_entropy)[1]
        for result in train(plan, population, model)
        if (result.round_index + 1) % EVALUATE_EVERY == 0
    ]


def finish(tasks: list[Task], results: Results, file: Path, data: str, jobs: int) -> None:
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(one_run, data, *task): task for task in tasks if key(task) not in results}
        for done in as_completed(running):
            results[key(running[done])] = done.result()
            print(f"{key(running[done])}: {done.result()[-1]:.4f}", flush=True)
            file.write_text(json.dumps(results, sort_keys=True, indent=1))


def key(task: Task) -> str:
    noise, epsilon, learning_rate, seed, choosing = task
    return f"{noise} | epsilon {epsilon:g} | learning rate {learning_rate:g} | {'choosing' if choosing else 'test'} {seed}"


def chosen_rates(results: Results) -> dict[tuple[str, float], float]:
    def accuracy(noise: str, epsilon: float, rate: float) -> float:
        return results[key((noise, epsilon, rate, CHOOSING_SEED, True))][-1]

    return {
        (noise, epsilon): max(LEARNING_RATES, key=lambda rate: accuracy(noise, epsilon, rate))  # used at once
        for noise, epsilon in itertools.product(STRATEGIES, EPSILONS)
    }


def summarize(results: Results, chosen: dict[tuple[str, float], float], seeds: int) -> None:
    for epsilon in EPSILONS:
        final = {noise: [curve[-1] for curve in curves(results, chosen, noise, epsilon, seeds)] for noise in STRATEGIES}
        gains = [b - a for a, b in zip(final["independent"], final["banded Toeplitz"], strict=True)]
        gain, error = statistics.mean(gains), statistics.stdev(gains) / math.sqrt(seeds)
        print(f"epsilon {epsilon:g}, delta {DELTA:g}, {seeds} seeds:")
        for noise, values in final.items():
            print(f"  {noise}: {statistics.mean(values):.4f} (learning rate {chosen[noise, epsilon]:g})")
        print(f"  gain {gain:+.4f} ± {error:.4f} (standard error), {gain / error:.1f} standard errors above 0")


def curves(
    results: Results, chosen: dict[tuple[str, float], float], noise: str, epsilon: float, seeds: int
) -> list[list[float]]:
    rate = chosen[noise, epsilon]
    return [results[key((noise, epsilon, rate, seed, False))] for seed in range(seeds)]


def plot(results: Results, chosen: dict[tuple[str, float], float], seeds: int, file: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(9, 3.8), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(EPSILONS), sharey=True)
    rounds = list(range(EVALUATE_EVERY, ROUNDS + 1, EVALUATE_EVERY))
    for axes, epsilon in zip(panels, EPSILONS, strict=True):
        for noise, color in COLORS.items():
            runs = list(zip(*curves(results, chosen, noise, epsilon, seeds), strict=True))
            means = [statistics.mean(values) for values in runs]
            axes.fill_between(rounds, list(map(min, runs)), list(map(max, runs)), color=color, alpha=0.2, linewidth=0)
            axes.plot(rounds, means, color=color, label=f"{noise} noise: {means[-1]:.1%}")
        axes.set_title(f"epsilon {epsilon:g}, delta {DELTA:g}", loc="left")
        axes.set_xlabel("round")
        axes.set_ylim(0.5, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(visible=True, color="#e5e5e5")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right", frameon=False)
    panels[0].set_ylabel(f"test accuracy, mean and range of {seeds} seeds")
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="mnist.npz or its folder")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("docs/correlated_noise.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/correlated_noise.png"))
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    grid = list(itertools.product(STRATEGIES, EPSILONS, LEARNING_RATES, [CHOOSING_SEED], [True]))
    finish(grid, results, arguments.results, arguments.data, arguments.jobs)
    chosen = chosen_rates(results)
    tests = [(noise, eps, rate, seed, False) for seed in range(arguments.seeds) for (noise, eps), rate in chosen.items()]
    finish(tests, results, arguments.results, arguments.data, arguments.jobs)
    summarize(results, chosen, arguments.seeds)
    plot(results, chosen, arguments.seeds, arguments.picture)


if __name__ == "__main__":
    main()
