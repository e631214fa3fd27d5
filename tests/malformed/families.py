"""The families by name, in the order in which they are tried."""

from collections.abc import Callable, Iterator

from malformed import (
    checkpoints,
    configs,
    flags,
    kinds_of_file,
    ledgers,
    matrices,
    mnist,
    names,
    promises,
    releases,
    settings,
    statements,
)
from malformed.base import Case, Run

Family = Callable[[Run], Iterator[Case]]

FAMILIES: dict[str, Family] = {
    "numbers by flag": settings.numbers_by_flag,
    "numbers in a file": settings.numbers_in_a_file,
    "words": settings.words_that_are_none,
    "misspelt names": settings.misspelt_names,
    "config files": configs.config_files,
    "configs of runs": configs.configs_of_runs,
    "flags": flags.flags,
    "kept heads": flags.kept_heads,
    "ledger bits": ledgers.ledger_bits,
    "ledger lines": ledgers.ledger_lines,
    "ledgers rolled back": ledgers.rolled_back,
    "forged types": ledgers.forged_types,
    "forged JSON": ledgers.forged_json,
    "forged order": ledgers.forged_order,
    "forged promises": promises.forged_promises,
    "manifests": checkpoints.manifests,
    "checkpoint bits": checkpoints.checkpoint_bits,
    "checkpoint formats": checkpoints.checkpoint_formats,
    "checkpoint tensors": checkpoints.checkpoint_tensors,
    "releases": releases.releases,
    "release formats": releases.release_formats,
    "keys": releases.keys,
    "kinds of file": kinds_of_file.kinds_of_file,
    "matrices": matrices.matrices,
    "kinds of matrix": kinds_of_file.kinds_of_matrix,
    "metrics": statements.metrics,
    "statements": statements.statements,
    "models": statements.models,
    "strategies": statements.strategies,
    "MNIST": mnist.mnist,
    "names": names.names,
}
