"""``hubbub report``, ``cite``, ``evaluate`` and ``publish``: what is done with a run once it has trained."""

import os
from collections.abc import Sequence
from pathlib import Path

from hubbub.cli.output import console, print_json, say
from hubbub.errors import ConfigError
from hubbub.files import write_atomic

__all__ = ["cite", "evaluate", "publish", "report"]

_MOST_RUNS = 40


def report(folders: Sequence[Path], output: Path | None, audit: Path | None = None, *, public: bool) -> None:
    """Write the page of one or several runs, with the audit of each that is named or lies in its folder."""
    from hubbub.report.audited import AUDIT, read_audit, with_audit
    from hubbub.report.page import page
    from hubbub.report.told import told

    if len(folders) > _MOST_RUNS:
        raise ConfigError(f"{len(folders)} runs: a page shows at most {_MOST_RUNS}; name fewer")
    if output is None and len(folders) > 1:
        raise ConfigError("--output: several runs have no folder in common; say where the page is to be written")
    if audit is not None and len(folders) > 1:
        raise ConfigError(f"--audit {audit}: is of one run; put the audit of each into its folder, as {folders[0] / AUDIT}")
    runs = []
    for folder in folders:
        found = audit or folder / AUDIT
        there = audit is not None or os.path.lexists(found)
        runs.append(with_audit(told(folder), read_audit(found)) if there else told(folder))
    file = output or folders[0] / ("report-public.html" if public else "report.html")
    if file.is_dir():
        raise ConfigError(f"--output = {str(output)!r}: is a folder; name the HTML file, such as {str(file / 'report.html')!r}")
    if not file.parent.is_dir():
        raise ConfigError(f"--output = {str(file)!r}: there is no folder {str(file.parent)!r}; make it first")
    write_atomic(file, page(runs, public=public).encode())
    say(console(), f"Report: {file}")


def cite(folder: Path) -> None:
    """Print the results that a run relies on, as BibTeX."""
    from hubbub.report.citations import bibtex, cited
    from hubbub.report.told import told

    console().print(bibtex(cited(told(folder))), markup=False, highlight=False, soft_wrap=True, end="")


def publish(folder: Path, output: Path, head: str | None) -> None:
    """Write what others may have of a run."""
    from hubbub.accounting.chain import read_chain
    from hubbub.engine.finished import PUBLISHED
    from hubbub.engine.finished import publish as published
    from hubbub.training.run_folder.record import ledger_of

    found = published(folder, output, head)
    say(console(), found.guarantee.sentence())
    say(console(), f"In {output}: {', '.join(PUBLISHED)}. Keys, names and private numbers stayed in {folder}.")
    told = read_chain(ledger_of(folder)).head
    say(console(), f"Ledger head, to tell readers elsewhere (hubbub verify {output} --head H): {told}")


def evaluate(folder: Path, *, allow_import: bool, as_json: bool) -> None:
    """Print how good a run's model is on its test examples."""
    from hubbub.engine.finished import load

    run = load(folder, allow_import=allow_import)
    loss, accuracy = run.evaluate()
    held_out = bool(run.config.training.validation)
    examples = len(run.dataset.test_targets)
    if as_json:
        print_json(
            {"loss": loss, "accuracy": accuracy, "examples": examples, "held_out": held_out, "epsilon": run.guarantee.epsilon}
        )
        return
    of = "held-out training examples (private: for choosing settings, not for release)" if held_out else "test examples"
    say(console(), f"Accuracy {accuracy:.2%}, loss {loss:.4f} on {examples:,} {of}.")
    say(console(), run.guarantee.sentence())
