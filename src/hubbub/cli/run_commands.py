"""Commands about settings and runs: to train, to look at a run, to plan and to audit one."""

import os
import shlex
from dataclasses import asdict
from importlib.resources import files as resources
from pathlib import Path
from typing import Annotated, Any

import typer

from hubbub._util.files import write_atomic
from hubbub.cli import commands, flags
from hubbub.cli.output import console, print_json, require_output, say
from hubbub.errors import ConfigError


def _place(words: str) -> Any:
    return typer.Option("--out", "--output", "-o", help=words)


# By suffix: the template, the command that runs the file, and its content.
_KINDS = {
    ".toml": ("settings.toml", "hubbub train", "the settings of a run"),
    ".py": ("own_model.py", "python", "a model and data of your own"),
}


def new(
    file: Annotated[Path, typer.Argument(help="A new file: .toml for settings, .py for a model and data of your own.")],
) -> None:
    """Write a file to start from; it runs unchanged."""
    kind = _KINDS.get(file.suffix)
    if kind is None:
        choices = ", or ".join(f"a name that ends in {suffix} for {what}" for suffix, (_, _, what) in _KINDS.items())
        raise ConfigError(f"FILE = '{file}': choose {choices}")
    template, command, _ = kind
    text = (resources("hubbub") / "cli" / "templates" / f"{template}.template").read_text(encoding="utf-8")
    if os.path.lexists(file):
        raise ConfigError(f"FILE = '{file}': exists already; choose another name")
    if not file.parent.is_dir():
        raise ConfigError(f"FILE = '{file}': there is no folder '{file.parent}'; make it first")
    try:
        write_atomic(file, text.replace("examples/own_model.py", str(file)).encode(), mode=0o666)
    except OSError as error:
        raise ConfigError(f"FILE = '{file}': cannot be written ({error.strerror}); choose another place") from error
    say(console(), f"Wrote {file}", f"Try it: {command} {shlex.quote(str(file))}")


def train(
    config: flags.Config,
    assignments: flags.Assignments = None,
    out: Annotated[Path | None, _place("Folder of the run; by default a new one in runs/.")] = None,
    engine: flags.Engine = None,
    plan: flags.Plan = None,
    nproc: flags.Nproc = None,
    tensorboard: flags.TensorBoard = None,
    mlflow: flags.Mlflow = None,
    wandb: flags.WandB = None,
    track_private: flags.TrackPrivate = False,
    allow_import: flags.AllowImport = False,
    as_json: flags.AsJson = False,
) -> None:
    """Train by a config file."""
    how = commands.training.How(engine, plan, nproc, tensorboard, mlflow, wandb, track_private, allow_import, as_json)
    commands.training.train(config, assignments or [], out, how)


def resume(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.", autocompletion=flags.runs)],
    head: flags.Head = None,
    engine: flags.Engine = None,
    nproc: flags.Nproc = None,
    tensorboard: flags.TensorBoard = None,
    mlflow: flags.Mlflow = None,
    wandb: flags.WandB = None,
    track_private: flags.TrackPrivate = False,
    allow_import: flags.AllowImport = False,
    as_json: flags.AsJson = False,
) -> None:
    """Resume an interrupted run."""
    how = commands.training.How(engine, None, nproc, tensorboard, mlflow, wandb, track_private, allow_import, as_json)
    commands.training.resume(run, head, how)


def extend(
    run: Annotated[
        Path, typer.Argument(help="The folder of a finished run; only a note is added to it.", autocompletion=flags.runs)
    ],
    rounds: flags.Rounds,
    assignments: flags.Assignments = None,
    out: Annotated[Path | None, _place("Folder of the new run; by default a new one in runs/.")] = None,
    head: flags.Head = None,
    engine: flags.Engine = None,
    nproc: flags.Nproc = None,
    tensorboard: flags.TensorBoard = None,
    mlflow: flags.Mlflow = None,
    wandb: flags.WandB = None,
    track_private: flags.TrackPrivate = False,
    allow_import: flags.AllowImport = False,
    as_json: flags.AsJson = False,
) -> None:
    """Train more rounds from the model of a finished run (a warm start); the privacy cost counts both."""
    how = commands.training.How(engine, None, nproc, tensorboard, mlflow, wandb, track_private, allow_import, as_json)
    commands.training.extend(run, rounds, assignments or [], out, head, how)


def sweep(
    config: Annotated[
        Path, typer.Argument(help="A TOML file, or the folder of a sweep to resume.", autocompletion=flags.configs)
    ],
    grid: Annotated[
        list[str] | None, typer.Option("--grid", metavar="KEY=V,V", help="A setting and its values; one for each setting.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N,N", help="Values of training.seed; results are averaged over them.")
    ] = None,
    assignments: flags.Assignments = None,
    jobs: Annotated[int | None, flags.whole_option("Runs at a time, each in a process of one thread; by default 1.")] = None,
    output: Annotated[Path | None, _place("Folder of the sweep; by default runs/CONFIG-sweep.")] = None,
    allow_import: flags.AllowImport = False,
    as_json: flags.AsJson = False,
) -> None:
    """Train over a grid of settings, and state the privacy cost of choosing among the runs; the same command again resumes."""
    asked = commands.sweeping.Asked(
        grid or [], seeds, assignments or [], output, 1 if jobs is None else jobs, allow_import, as_json
    )
    commands.sweeping.sweep(config, asked)


def close(
    run: flags.Run,
    early: Annotated[bool, typer.Option("--early", help="End the run although rounds are left.")] = False,
) -> None:
    """End a run permanently and destroy its keys."""
    commands.runs.close(run, early=early)


def verify(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a published one.", autocompletion=flags.runs)],
    head: flags.Head = None,
    heads: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The ledger heads that a head hook received, one a line.")
    ] = None,
    signer: Annotated[
        Path | None,
        typer.Option(metavar="KEY.pub", help="The key that must have signed each line of --heads, or the published folder."),
    ] = None,
    as_json: flags.AsJson = False,
) -> int:
    """Check a run from its folder alone; status 1 if a check fails."""
    from hubbub.verification import verify as verified

    verdict = verified(run, head, heads=heads, signer=signer)
    if as_json:
        print_json({"ok": verdict.ok, **asdict(verdict)})
        return int(not verdict.ok)
    screen = console()
    for check in verdict.checks:
        label = f"{'FAILS ' if not check.ok else 'passes' if check.checked else 'note  '} {check.name:<14} "
        say(screen, label + check.detail, indent=len(label))
    failed = sum(not check.ok for check in verdict.checks)
    say(screen, f"{run}: " + (f"{failed} of {len(verdict.checks)} checks fail." if failed else "all checks pass."))
    return int(not verdict.ok)


def ledger(run: flags.Run, as_json: flags.AsJson = False) -> None:
    """The record of a run: cohort, release and state of each round, and the epsilon spent."""
    commands.runs.ledger(run, as_json=as_json)


_MOST_RUNS = 40


def report(
    runs: Annotated[list[Path], typer.Argument(help="The folder of a run, or several to compare.", autocompletion=flags.runs)],
    output: Annotated[Path | None, _place("The HTML file; by default report.html in the run's folder.")] = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The findings of 'hubbub audit' for these settings; by default audit/ in the folder."
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Leave out numbers computed from clients' data.")] = False,
) -> None:
    """Write the report of one or several runs as one page that opens offline.

    report.md and report.png in a run's folder stay as its training wrote them.
    """
    from hubbub.report.audit import AUDIT, audited
    from hubbub.report.page import page

    if len(runs) > _MOST_RUNS:
        raise ConfigError(f"{len(runs)} runs: a page shows at most {_MOST_RUNS}; name fewer")
    if output is None and len(runs) > 1:
        raise ConfigError("--output: is needed for the page of several runs; say --output FILE.html")
    if audit is not None and len(runs) > 1:
        raise ConfigError(f"--audit {audit}: is of one run; put the audit of each into its folder, as {runs[0] / AUDIT}")
    found = [audited(run, audit) for run in runs]
    file = output or runs[0] / ("report-public.html" if public else "report.html")
    require_output("--output", file, ".html")
    write_atomic(file, page(found, public=public).encode())
    say(console(), f"Report: {file}")


def cite(run: flags.Run) -> None:
    """The publications that a run relies on, as BibTeX."""
    from hubbub.report.citations import bibtex, cited
    from hubbub.report.summary import summary

    console().print(bibtex(cited(summary(run))), end="")


def evaluate(run: flags.FinishedRun, allow_import: flags.AllowImport = False, as_json: flags.AsJson = False) -> None:
    """Loss and accuracy of a run's model on its test examples."""
    from hubbub.experiment.engine.finished import load

    found = load(run, allow_import=allow_import)
    (loss, accuracy), examples = found.evaluate(), len(found.dataset.test_targets)
    held_out, promised = bool(found.config.training.validation), found.guarantee
    if as_json:
        stated = {name: getattr(promised, name) for name in ("epsilon", "delta", "neighboring_relation", "privacy_unit")}
        print_json({"loss": loss, "accuracy": accuracy, "examples": examples, "held_out": held_out, **stated})
        return
    of = "held-out training examples (private: for choosing settings, not for release)" if held_out else "test examples"
    say(console(), f"Accuracy {accuracy:.2%}, loss {loss:.4f} on {examples:,} {of}.", promised.sentence())


def publish(
    run: flags.FinishedRun,
    output: Annotated[Path, _place("A new folder.")],
    head: flags.Head = None,
    sign_with: Annotated[
        Path | None, typer.Option("--sign-with", metavar="KEY", help="Sign it with an Ed25519 key, as ssh-keygen makes it.")
    ] = None,
) -> None:
    """Write a folder to publish: model, guarantee, card and report; refuses a simulation."""
    from hubbub.experiment.engine.finished import publish as published
    from hubbub.ledger.chain import read_chain
    from hubbub.training.run_folder.record import ledger_of

    found = published(run, output, head, sign_with=sign_with)
    names = sorted(path.name for path in output.iterdir())
    last = read_chain(ledger_of(run)).head
    say(
        console(),
        found.guarantee.sentence(),
        f"In {output}: {', '.join(names)}. Keys, names and private numbers stayed in {run}.",
        f"Ledger head, to tell readers elsewhere (hubbub verify {shlex.quote(str(output))} --head H): {last}",
    )


def plan(
    config: flags.Config,
    assignments: flags.Assignments = None,
    alternatives: Annotated[
        bool, typer.Option("--alternatives/--no-alternatives", help="Compare with other strategies, cohorts, sizes and rounds.")
    ] = True,
    neighbours: Annotated[bool | None, typer.Option("--neighbours/--no-neighbours", hidden=True)] = None,
    thorough: Annotated[bool, typer.Option("--thorough", help="Also try alternatives that take some seconds.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the alternatives and epsilon over rounds into this PNG.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Load data and model, and measure the run's time.")] = False,
    allow_import: flags.AllowImport = False,
    as_json: flags.AsJson = False,
) -> None:
    """The privacy, noise and cost of a run before it starts, its alternatives, and a recommendation."""
    require_output("--plot", plot, ".png")
    commands.planning.plan(
        config,
        assignments or [],
        compare=alternatives if neighbours is None else neighbours,
        thorough=thorough,
        plot=plot,
        measure=measure,
        allow_import=allow_import,
        as_json=as_json,
    )


def audit(
    config: flags.Config,
    assignments: flags.Assignments = None,
    canaries: Annotated[int | None, flags.whole_option("Clients that become canaries; by default half, 100 at most.")] = None,
    runs: Annotated[int | None, flags.whole_option("Number of runs; by default enough for 1,000 canaries in all.", "R")] = None,
    rounds: Annotated[int | None, flags.whole_option("Rounds of each run; by default those of the config.", "T")] = None,
    engine: flags.Engine = None,
    out: Annotated[Path | None, _place("Folder of the findings; by default a new one in audits/.")] = None,
    allow_import: flags.AllowImport = False,
    as_json: flags.AsJson = False,
) -> int:
    """Attack a run with canaries among its clients; status 1 if that proves a broken guarantee."""
    from hubbub.audit import Effort

    effort = Effort(canaries, runs, rounds)
    return commands.auditing.audit(
        config, assignments or [], effort, engine=engine, out=out, allow_import=allow_import, as_json=as_json
    )


# In the order of the help.
TRAIN = (new, train, resume, extend, sweep, close)
LOOK = (verify, ledger, report, cite, evaluate, publish)
PLAN = (plan, audit)
