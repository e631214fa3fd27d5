"""A finished run: the trained model with its guarantee, and a folder of both for others."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub._util import files, strict_json
from hubbub._util.ssh_signatures import private_key, sign
from hubbub.accounting import PrivacyGuarantee
from hubbub.datasets import Dataset
from hubbub.errors import RunFolderError
from hubbub.experiment import config as configs
from hubbub.experiment.build import client_side
from hubbub.experiment.planner import require_release
from hubbub.ledger.actual_cost import Recorded, spent
from hubbub.ledger.ledger import add_record
from hubbub.report.audit import audited
from hubbub.report.citations import bibtex, cited
from hubbub.report.page import page, rendered
from hubbub.report.summary import RunSummary, escaped
from hubbub.training import RunStore, evaluate
from hubbub.training.moments import read_moments
from hubbub.training.run_folder.record import read_run
from hubbub.training.run_folder.state import metadata, parse
from hubbub.verification import PUBLICATION, SIGNATURE, verify

_LARGEST_MODEL = 2**36


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The model of a finished run, with its guarantee, settings and data.

    Args:
        model: The trained module, in evaluation mode.
        guarantee: The guarantee of the rounds in its ledger.
        config: The settings.
        dataset: The data that they name; with ``training.validation`` the held-out examples are its test examples.
    """

    model: nn.Module
    guarantee: PrivacyGuarantee
    config: configs.Config
    dataset: Dataset

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.model.parameters())
        said = self.guarantee.sentence() if self.guarantee.private else "no privacy guarantee"
        return f"<finished run: {type(self.model).__name__} of {parameters:,} parameters on {self.config.data.name}; {said}>"

    def evaluate(self) -> tuple[float, float]:
        """Loss and accuracy on the test examples."""
        return evaluate(self.model, (self.dataset.test_inputs, self.dataset.test_targets), F.cross_entropy)


def load(run: str | Path, *, allow_import: bool = False) -> FinishedRun:
    """The model and the guarantee of a finished run, from its folder alone.

    Args:
        run: Its folder.
        allow_import: Whether names of code in its settings, ``"pkg.mod:Name"``, may be imported: that runs the code.

    Raises:
        RunFolderError: The folder is no run, or has no model, or its model is that of another state of the ledger.
        LedgerError: The ledger is damaged, or does not account for all that lies in the folder.
        ConfigError: The settings cannot be read, or name code that may not be imported.
        DataError: The data that they name are missing.

    Example:
        >>> import tempfile
        >>> from hubbub.experiment.build import build
        >>> from hubbub.experiment.engine.folder import RunInFolder
        >>> settings = {"training": {"rounds": 1}, "data": {"name": "digits"}, "privacy": {"epsilon": 2.0}}
        >>> begun = RunInFolder.begun(build(configs.resolve(settings)), Path(tempfile.mkdtemp()) / "run")
        >>> released = list(begun.rounds(begun.run.population))
        >>> last = begun.finish()
        >>> run = load(begun.folder)
        >>> run.guarantee.epsilon <= 2.0
        True
        >>> loss, accuracy = run.evaluate()
    """
    folder = Path(run)
    recorded = read_run(folder)
    content = _model_content(folder, recorded)
    # The state is not needed for that, and may be gone.
    bound = {name: digest for name, digest in (recorded.history.files or {}).items() if not name.startswith("state/")}
    for change in RunStore(folder).changed(bound):
        raise RunFolderError(f"{folder}: {change}; restore the file")
    config = configs.resolve(configs.of_run(folder))
    if config.data.normalization is not None:
        require_release(config.data.normalization, recorded.promise)
    side = client_side(config, allow_import=allow_import)
    with files.refusing(folder / "model.safetensors", "is no model", f"make it anew: hubbub resume {folder}"):
        tensors = parse(content)
    parameters = dict(side.model.named_parameters())
    if parameters.keys() != tensors.keys() or any(tensors[name].shape != p.shape for name, p in parameters.items()):
        raise RunFolderError(f"{folder / 'model.safetensors'}: does not fit the module of the settings; restore the file")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    return FinishedRun(side.model.eval(), spent(recorded.promise, recorded.history).guarantee, config, side.dataset)


def _model_content(folder: Path, recorded: Recorded) -> bytes:
    """The content of a run's model file, checked against the ledger."""
    path, chain = folder / "model.safetensors", recorded.chain
    if not os.path.lexists(path):
        # Without settings, nothing makes the model.
        configs.of_run(folder)
    # A closed run cannot be resumed.
    again = "the run is closed: restore the file" if recorded.history.closed else f"make it: hubbub resume {folder}"
    with files.refusing(path, "is no model", again):
        content = files.read(path, at_most=_LARGEST_MODEL)
        head = metadata(content).get("ledger_head")
    if not isinstance(head, str) or chain.rounds_at(head) != chain.rounds_at(chain.head):
        raise RunFolderError(f"{path}: is of ledger head {str(head)[:16]!r}, which has gone on to {chain.head[:16]!r}; {again}")
    if (recorded.history.files or {}).get(path.name) != hashlib.sha256(content).hexdigest():
        raise RunFolderError(f"{path}: is not the model that the ledger binds; {again}")
    return content


# What the model's inputs are normalized by, if they are.
_MOMENTS = "normalization.safetensors"


def publish(run: Path, folder: Path, head: str | None = None, *, sign_with: Path | None = None) -> RunSummary:
    """Write the public part of a run into a new folder, and bind it in the run's ledger; returns its summary.

    A run that the audit in its folder disproves is refused. It is verified first, with a ``head`` of its ledger that was kept
    elsewhere. ``sign_with`` is the file of an Ed25519 key, to sign the record that binds the published files.
    """
    found, key = audited(run), None if sign_with is None else private_key(sign_with)
    _require_publishable(run, found)
    for check in verify(run, head).checks:
        if not check.ok:
            raise RunFolderError(f"{run}: does not verify ({check.name}: {check.detail}); see hubbub verify {run}")
    model = _model_content(run, found.recorded)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder}: exists and is not empty; name a new folder, so that nothing else is published with it")
    if not folder.parent.is_dir():
        raise RunFolderError(f"{folder}: there is no folder {folder.parent}; make it first")
    store = RunStore(run)
    contents = {
        "model.safetensors": model,
        "guarantee.json": strict_json.canonical(found.guarantee.as_json()),
        "README.md": card(found).encode(),
        "report.html": page([found], public=True).encode(),
    }
    if (released := configs.of_run(run).get("data", {}).get("normalization")) is not None:
        require_release(released, found.recorded.promise)
        moments = read_moments(Path(released))
        contents[_MOMENTS] = save({"mean": moments.mean, "variance": moments.variance})
    record = {"kind": "publish", "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}}
    with store.locked():
        chain = add_record(store.ledger_path, record)
    contents[PUBLICATION] = strict_json.canonical({"before": chain.hashes[-2], "head": chain.head, "record": record})
    if key is not None:
        contents[SIGNATURE] = sign(key, contents[PUBLICATION]).encode()
    folder.mkdir(mode=0o755, exist_ok=True)
    for name, content in contents.items():
        files.write_atomic(folder / name, content)
        (folder / name).chmod(0o644)
    return found


def _require_publishable(run: Path, found: RunSummary) -> None:
    if found.guarantee.simulation:
        raise RunFolderError(
            f"{run}: is a simulation, not for release, or counts one as an earlier run: whoever knows the seed removes that "
            "noise; train again with privacy.noise = 'secure'"
        )
    if not found.guarantee.private:
        raise RunFolderError(f"{run}: has no privacy guarantee, and there is nothing to state with its model; see privacy.mode")
    if found.audit is not None and found.audit["verdict"] != "holds":
        raise RunFolderError(
            f"{run}: its audit disproves what would be stated; find the fault, and train again. {found.audit['sentence']}"
        )


def card(run: RunSummary) -> str:
    """The model card in Markdown: accuracy, files, guarantee, and how to check it."""
    last = next((row for row in reversed(run.rows) if row.get("accuracy") is not None), None)
    measured = last if run.public else None
    return rendered("card.md", run=run, name=escaped(run.name), measured=measured, cited=bibtex(cited(run)).strip()) + "\n"
