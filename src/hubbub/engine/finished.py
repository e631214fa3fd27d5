"""A finished run as its users want it: the trained model, ready to be called, beside what is promised of it."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import config as configs
from hubbub import files
from hubbub.accounting import PrivacyGuarantee
from hubbub.accounting.actual_cost import spent
from hubbub.accounting.multi_run import Recorded
from hubbub.build import client_side
from hubbub.config import Config
from hubbub.datasets import Dataset
from hubbub.errors import RunFolderError
from hubbub.training import RunStore, evaluate
from hubbub.training.run_folder.record import read_run
from hubbub.training.run_folder.state import metadata, parse

__all__ = ["FinishedRun", "load", "model_content"]

_LARGEST_MODEL = 2**36


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """What a run has made.

    Args:
        model: The trained module, in evaluation mode.
        guarantee: What its ledger says that it cost.
        config: Its settings.
        dataset: The data that they name; with ``training.validation`` its test examples are those that were held out.
    """

    model: nn.Module
    guarantee: PrivacyGuarantee
    config: Config
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

    Example::

        run = hubbub.load("runs/digits-1")
        print(run.guarantee.sentence())
        probabilities = run.model(images).softmax(dim=1)
    """
    folder = Path(run)
    recorded = read_run(folder)
    if not os.path.lexists(folder / "config.toml"):
        raise RunFolderError(f"{folder}: is no run of 'hubbub train' (config.toml not there), so that nobody knows its module")
    content = model_content(folder, recorded)
    for change in RunStore(folder).changed(recorded.history.files or {}):
        raise RunFolderError(f"{folder}: {change}; restore the file")
    config = configs.resolve(configs.load(_own(folder / "config.toml")))
    side = client_side(config, allow_import=allow_import)
    try:
        tensors = parse(content)
    except ValueError as error:
        raise RunFolderError(f"{folder / 'model.safetensors'}: {error}; make it anew: hubbub resume {folder}") from error
    _fill(side.model, tensors, folder)
    return FinishedRun(side.model.eval(), spent(recorded.promise, recorded.history).guarantee, config, side.dataset)


def _own(path: Path) -> Path:
    """A file of the folder; what a link leads to is not."""
    if path.is_symlink():
        raise RunFolderError(f"{path}: is a symbolic link, and a run's settings are in its folder; restore the file")
    return path


def model_content(folder: Path, recorded: Recorded) -> bytes:
    """The file of a run's model, which says itself after which rounds of the ledger it was written.

    Raises:
        RunFolderError: There is none, it is damaged, or it is not that of the last round, or not the one that the ledger binds.
    """
    path, chain = folder / "model.safetensors", recorded.chain
    closed = recorded.history.closed
    # What was closed does not go on.
    again = "the run is closed: restore the file" if closed else f"make it: hubbub resume {folder}"
    try:
        content = files.read(path, at_most=_LARGEST_MODEL)
        head = metadata(content).get("ledger_head")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); {again}") from error
    except ValueError as error:
        raise RunFolderError(f"{path}: {error}; {again}") from error
    if not isinstance(head, str) or chain.rounds_at(head) != chain.rounds_at(chain.head):
        raise RunFolderError(
            f"{path}: is of ledger head {str(head)[:16]!r}, and the ledger has gone on to {chain.head[:16]!r}; {again}"
        )
    bound = recorded.history.files or {}
    if bound.get(path.name) != hashlib.sha256(content).hexdigest():
        raise RunFolderError(f"{path}: is not the model that the ledger binds; {again}")
    return content


def _fill(model: nn.Module, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    parameters = dict(model.named_parameters())
    if parameters.keys() != tensors.keys() or any(tensors[name].shape != p.shape for name, p in parameters.items()):
        raise RunFolderError(
            f"{folder / 'model.safetensors'}: does not fit the module that the settings name; restore the file"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
