"""The folder of a run: its keys, ledger, releases and checkpoints. Its files are the operator's alone.

::

    ledger.jsonl                     the promise, and what happened
    ledger.cohorts                   who took part when, by number, if the participation is a pattern
    strategy.safetensors             the arrays of the strategy, if it has any
    state/lock                       held while a process is at work
    state/keys/run, epoch-N, next    secrets: 32 bytes each
    state/releases/T.safetensors     the release of round T
    state/initial.safetensors        the model before the first round
    state/checkpoint.json            names the last checkpoint, with the SHA-256 of its file
    state/checkpoint-N.safetensors   model and optimizer after N rounds
    state/noise.sealed               rows of noise that later rounds need, encrypted under the run's key
    evaluation/                      ledger, keys and releases of the private evaluations
    normalization/                   ledger, keys and release of means and variances, before the first round
    state/heads                      the last head of the ledger that the hook took
    state/holders/                   keys, noise and records of simulated share holders

Every release and checkpoint is used only after its SHA-256 was compared with that in the ledger or in the manifest; the noise
is authenticated under the run's key. The manifest and ``state/heads`` are bound by nothing but the heads that they name.
"""

from hubbub.training.run_folder.store import EVALUATION, NORMALIZATION, SEALED_NOISE, RunStore

__all__ = ["EVALUATION", "NORMALIZATION", "SEALED_NOISE", "RunStore"]
