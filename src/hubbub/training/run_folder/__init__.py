"""The folder of a run: its keys, ledger, releases and checkpoints. Its files are the operator's alone.

::

    ledger.jsonl                     the promise, and what happened
    ledger.cohorts                   who took part when, by number, if the participation is a pattern
    strategy.safetensors             the arrays of the strategy, if it has any
    state/lock                       held while a process is at work
    state/keys/run, epoch-N          secrets: 32 bytes each
    state/releases/T.safetensors     the release of round T
    state/initial.safetensors        the model before the first round
    state/clients                    SHA-256 of the clients' names, if they have any and the promise depends on their list
    state/checkpoint.json            names the last checkpoint, with the SHA-256 of its file
    state/checkpoint-N.safetensors   model and optimizer after N rounds
    state/noise.sealed               rows of noise that later rounds need, encrypted under the run's key
    evaluation/                      ledger, keys and releases of the private evaluations
    normalization/                   ledger, keys and release of means and variances, before the first round
    state/heads                      the last head of the ledger that the hook took
    state/holders/                   keys, noise and records of simulated share holders

Every file but the keys and the noise, which is authenticated under the run's key, is used only after its SHA-256 was compared
with the ledger's or the manifest's.
"""

from hubbub.training.run_folder.store import EVALUATION, NORMALIZATION, SEALED_NOISE, RunStore

__all__ = ["EVALUATION", "NORMALIZATION", "SEALED_NOISE", "RunStore"]
