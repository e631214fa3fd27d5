"""``hubbub audit``: canaries through the real pipeline of a run, and the epsilon that they prove."""

import os
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from hubbub.audit import Audit, Effort
from hubbub.audit import audit as audit_run
from hubbub.cli.output import WIDE, console, grid, print_columns, print_json, print_table, say
from hubbub.cli.training import new_folder
from hubbub.errors import ConfigError, RunFolderError
from hubbub.experiment import config as configs
from hubbub.experiment.build import Run, build
from hubbub.experiment.engine import population_of
from hubbub.experiment.engine.folder import RunInFolder, resolved
from hubbub.experiment.settings import require_engine
from hubbub.report.audit import audit_rows, write_audit
from hubbub.training.aggregate import Population


def audit(
    file: Path,
    assignments: list[str],
    effort: Effort,
    *,
    engine: str | None,
    out: Path | None,
    allow_import: bool,
    as_json: bool,
) -> int:
    """Audit the run that a config describes; returns the exit status, 1 if its guarantee is broken."""
    layers = [configs.load(file), configs.overrides(assignments)]
    simulated = configs.resolve(*layers).privacy.noise == "simulation"
    if engine is not None:
        layers.append({"training": {"engine": engine}})
    # Canaries are added in this process; the number of processes changes no bit of a sum.
    config = configs.resolve(*layers, {"privacy": {"noise": "secure"}, "training": {"nproc": 1}})
    require_engine(config)
    # The settings of a run are runs/NAME/config.toml.
    name = file.absolute().parent.name if file.name == "config.toml" else file.stem
    folder = new_folder(out, "audits", name)
    # Before an audit, which takes long.
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise RunFolderError(f"{folder}: cannot be made, since {above} is no folder to write in; name another with --out")
    torch.set_num_threads(1)
    run = build(config, allow_import=allow_import)
    # A report compares them with those of its run.
    settings = tomllib.loads(configs.dump(resolved(run)))
    screen = console(stderr=as_json)
    if simulated:
        say(screen, "privacy.noise = 'simulation': its noise follows from a known seed; audited with secure noise.")
    with tempfile.TemporaryDirectory(prefix="hubbub-audit-") as scratch:
        found = _audited(run, effort, Path(scratch), screen, allow_import=allow_import)
    findings = {**found.as_json(), "settings": settings}
    # Meanwhile another audit may have taken the name.
    folder = folder if out else new_folder(None, "audits", name)
    try:
        write_audit(folder, name, findings)
    finally:
        if as_json:
            print_json({**findings, "folder": str(folder)})
        else:
            _show(found, audit_rows(findings), folder)
    return 0 if found.holds else 1


def _show(found: Audit, bounds: Sequence[Sequence[str]], folder: Path) -> None:
    screen = console()
    say(screen, "")
    print_columns(grid(("epsilon", "stated", "proved (95 %)", "proved (1 − 10⁻⁶)", ""), bounds), WIDE)
    say(screen, "")
    tests = {check.name: f"{check.value:<12.4g}{'passed' if check.passed else 'FAILED'}" for check in found.checks}
    print_table("Tests of the system", tests)
    files = f"Findings: {folder / 'audit.md'}, {folder / 'audit.png'} and {folder / 'audit.json'}"
    say(screen, "", *found.notes, found.sentence(), files)


def _audited(run: Run, effort: Effort, scratch: Path, screen: Console, *, allow_import: bool) -> Audit:
    """Audit a run with the engine that its settings name."""
    if (extends := run.config.training.extends) is not None:
        raise ConfigError(
            f"training.extends = {extends!r}: an audit starts runs of its own; leave it out, with privacy.earlier_runs"
        )
    if (released := run.config.data.normalization) is not None:
        raise ConfigError(f"data.normalization = {released!r}: an audit starts runs of its own; leave it out")
    if run.plan.evaluation is not None:
        raise ConfigError("evaluation.statistics: the runs of an audit measure nothing of their clients; leave it out")
    terms, engine = run.encryption, run.config.training.engine

    def population(number: int) -> Population:
        if terms is None and engine == "process":
            return run.population
        # Its parties need keys and streams of noise of their own.
        return population_of(RunInFolder.begun(run, scratch / str(number)), engine, allow_import=allow_import)

    return audit_run(
        run.plan,
        population,
        run.model,
        honest=run.population,
        effort=effort,
        noise_rows=(terms and terms.noise_rows) or 1,
        progress=lambda done, runs: say(screen, f"run {done}/{runs} done"),
    )
