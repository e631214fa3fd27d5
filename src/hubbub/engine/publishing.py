"""What others may have of a run: model, guarantee, card and report; no keys, no names, no numbers made of clients' data."""

import hashlib
import re
from pathlib import Path

from hubbub import files, strict_json
from hubbub.accounting import rounded_up
from hubbub.accounting.ledger import add_record
from hubbub.accounting.statement import no_less
from hubbub.engine.finished import model_content
from hubbub.errors import RunFolderError
from hubbub.report.citations import bibtex, cited
from hubbub.report.page import page
from hubbub.report.summary import RunSummary, summary
from hubbub.training import RunStore
from hubbub.verification import PUBLICATION, verify

__all__ = ["PUBLISHED", "publish"]

# What Markdown would take for its own, in a name.
_MARKUP, _ESCAPED = re.compile(r"([\\`*_{}\[\]<>()#!|&~])"), r"\\\1"
PUBLISHED = ("model.safetensors", "guarantee.json", "README.md", "report.html", PUBLICATION)


def publish(run: Path, folder: Path, head: str | None = None) -> RunSummary:
    """Write what others may have of a run into a new folder; the run's ledger binds it, and all else of the run stays as it is.

    Args:
        run: The run's folder. It is verified first.
        folder: Where to write; it must not exist, or be empty.
        head: A head of the ledger that was kept elsewhere.

    Returns:
        The run, as its report shows it.

    Raises:
        RunFolderError: A simulation, a run without a guarantee or without a model, one that does not verify, or a folder that
            holds something.
        LedgerError: The ledger is damaged, or does not account for all that lies in the folder.
    """
    found = summary(run)
    if found.guarantee.simulation:
        raise RunFolderError(
            f"{run}: is a simulation, not for release, or counts one as an earlier run: that noise follows from a known "
            "seed, and who knows that takes it off; "
            "train again with privacy.noise = 'secure'"
        )
    if not found.guarantee.private:
        raise RunFolderError(
            f"{run}: has no privacy guarantee, and there is nothing to state beside its model; see privacy.mode"
        )
    verdict = verify(run, head)
    for check in verdict.checks:
        if not check.ok:
            raise RunFolderError(f"{run}: does not verify ({check.name}: {check.detail}); see hubbub verify {run}")
    model = model_content(run, found.recorded)
    _require_empty(folder)
    store = RunStore(run)
    contents = {
        "model.safetensors": model,
        "guarantee.json": strict_json.canonical(found.guarantee.as_json()),
        "README.md": card(found).encode(),
        "report.html": page([found], public=True).encode(),
    }
    record = {"kind": "publish", "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}}
    with store.locked():
        chain = add_record(store.ledger_path, record)
    contents[PUBLICATION] = strict_json.canonical({"before": chain.hashes[-2], "head": chain.head, "record": record})
    folder.mkdir(mode=0o755, exist_ok=True)
    for name in PUBLISHED:
        files.write_atomic(folder / name, contents[name])
        (folder / name).chmod(0o644)
    return found


def card(run: RunSummary) -> str:
    """The model card: what the model is, what is promised of it, and how that can be checked."""
    guarantee = run.guarantee
    last = next((row for row in reversed(run.rows) if row.get("accuracy") is not None), None)
    name = _MARKUP.sub(_ESCAPED, run.name)
    lines = ["---", "library_name: hubbub", "tags: [differential-privacy, federated-learning]", "---", "", f"# {name}", ""]
    lines += [f"**{guarantee.sentence()}**", ""]
    if last and run.public:
        lines += [f"Accuracy on public test data: {last['accuracy']:.2%}, after {len(run.recorded.history.rounds)} rounds.", ""]
    lines += [
        "| file | |",
        "|---|---|",
        "| `model.safetensors` | the weights; their metadata name the head of the ledger after the last round |",
        "| `guarantee.json` | the guarantee with all of its numbers, for programs |",
        "| `report.html` | the report, to be opened in a browser |",
        f"| `{PUBLICATION}` | the record that binds these files in the ledger, and the head of the ledger with it |",
        "",
        "## The guarantee in full",
        "",
        "```text",
        run.statement().strip(),
        "```",
        "",
        "## What it does not say",
        "",
        f"Under the assumptions above, epsilon {rounded_up(guarantee.epsilon)} at delta {no_less(guarantee.delta)} bounds what "
        f"those who see releases alone can learn from them about one {guarantee.privacy_unit}, and not without it. "
        "It does not make the model right or fair. That these files are those that were published, byte for byte, "
        f"`hubbub verify` says of this folder; with `--head H` it compares the head in `{PUBLICATION}` with the one that the "
        "publisher tells elsewhere. Who trained it can prove the rest: `hubbub verify RUN --head H` checks the run against the "
        f"head of its ledger, `{run.recorded.chain.head}` before this was published.",
        "",
        "## To cite",
        "",
        "```bibtex",
        bibtex(cited(run)).strip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _require_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder}: exists and is not empty; name a new folder, so that nothing else is published with it")
    if not folder.parent.is_dir():
        raise RunFolderError(f"{folder}: there is no folder {folder.parent}; make it first")
