"""Reports of a run: ``report.html`` with all of it on one page, and in short ``report.md`` and ``report.png``.

``report.md`` and ``report.png`` show loss and accuracy on public test data and epsilon; accuracy on held-out clients' data is
marked as private. The page also shows the operator what was computed from clients' updates, marked as private, too.
"""

from pathlib import Path

from hubbub._util.files import write_atomic
from hubbub.report.charts import draw_epsilon, draw_over_rounds
from hubbub.report.drawing import canvas, png, styled
from hubbub.report.page import evaluations, facts, page
from hubbub.report.summary import RunSummary, escaped, summary, whose

__all__ = ["draw", "markdown", "write"]


def write(folder: Path) -> None:
    """Write ``report.png``, ``report.md`` and ``report.html`` into the folder of a run.

    Example:
        >>> import tempfile, torch, hubbub
        >>> mechanism = hubbub.calibrate(rounds=2, participation=hubbub.PoissonSampling(0.5), epsilon=4.0, delta=1e-5)
        >>> clients = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long)) for _ in range(20)]
        >>> population = hubbub.SimulatedPopulation(clients, torch.nn.functional.cross_entropy)
        >>> store = hubbub.RunStore(Path(tempfile.mkdtemp()) / "run")
        >>> results = list(hubbub.train(hubbub.Plan(mechanism, 1.0, 1e-5), population, torch.nn.Linear(3, 2), store))
        >>> write(store.folder)
        >>> sorted(file.name for file in store.folder.glob("report.*"))
        ['report.html', 'report.md', 'report.png']
    """
    run = summary(folder)
    write_atomic(folder / "report.png", draw(run))
    write_atomic(folder / "report.md", markdown(run).encode())
    write_atomic(folder / "report.html", page([run]).encode())


def markdown(run: RunSummary) -> str:
    """The run as Markdown: accuracy and epsilon over rounds, the guarantee with its assumptions, and the settings."""
    guarantee = run.guarantee
    lines = [f"# {escaped(run.name)}", "", f"**{guarantee.sentence()}**", ""]
    lines += [f"> {warning}\n" for warning in run.cost.public_warnings()]
    if run.evaluated and not run.public:
        held_out = f"Accuracy and loss are of held-out {whose(guarantee)}, without noise"
        lines += [f"> {held_out}: this report is for choosing settings, not for release.", ""]
    if run.evaluated:
        rows = (f"| {' | '.join(row)} |" for row in evaluations(run, 6))
        lines += ["| after round | accuracy | loss | epsilon spent |", "|---|---|---|---|", *rows, ""]
    if aborted := [str(number) for number in run.aborted]:
        what = f"Round {aborted[0]} was" if len(aborted) == 1 else f"Rounds {', '.join(aborted)} were"
        lines += [f"{what} aborted: the privacy cost stays spent, and the model did not change.", ""]
    lines += [f"![accuracy{' and epsilon' if guarantee.private else ''} over rounds](report.png)", "", "## The guarantee", ""]
    lines += [*(f"- {fact.name}{'' if fact.public else ' (private)'}: {fact.value}" for fact in facts(run)), ""]
    if guarantee.private:
        lines += ["It assumes (in brackets who enforces it):", "", *(f"- {each}" for each in guarantee.assumptions), ""]
        lines += ["It does not cover:", "", *(f"- {each}" for each in guarantee.not_covered), ""]
    return "\n".join([*lines, "## Settings", "", "```toml", run.config.strip(), "```", ""])


@styled()
def draw(run: RunSummary) -> bytes:
    """A PNG of accuracy and epsilon over rounds, and of the clip norm if it is adaptive."""
    adaptive = any(row.get("clip_norm") is not None for row in run.rows)
    heights = [3, *([2] if run.epsilons else []), *([2] if adaptive else [])]
    figure = canvas(8, sum(heights) + 1)
    accuracy, *panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    # The label says on whose data.
    on = " on test data" if run.public else f" on held-out {whose(run.guarantee)} (private)"
    draw_over_rounds(accuracy, [run], "accuracy", f"accuracy{on if run.evaluated else ''}", percent=True)
    if run.epsilons:
        draw_epsilon(panels.pop(0), [run])
    if adaptive:
        draw_over_rounds(panels.pop(0), [run], "clip_norm", "clip norm")
    return png(figure, run.name)
