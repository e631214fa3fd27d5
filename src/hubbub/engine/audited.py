"""The clients of a run for its audit: those of the engine that the run has, with keys and folders that are thrown away."""

from collections.abc import Callable
from pathlib import Path

from hubbub.audit import Audit, Effort, audit
from hubbub.build import Run
from hubbub.engine.folder import RunInFolder
from hubbub.errors import ConfigError
from hubbub.training import Population

__all__ = ["audited"]


def audited(
    run: Run,
    effort: Effort,
    scratch: Path,
    told: Callable[[int, int], None] | None = None,
    *,
    seed: int | None = None,
    allow_import: bool = False,
) -> Audit:
    """Audit a run with the engine that its settings name.

    Args:
        run: With secure noise; its population's clients become canaries, and are themselves again afterwards.
        effort: How much is done.
        scratch: An empty folder for what parties of a run keep; nothing in it is needed afterwards.
        told: Is called after each run of the rounds, with how many are done, and of how many.
        seed: Of the canaries; by default nobody knows it.
        allow_import: Whether clients of a Flower app may import code that the settings name.

    Raises:
        ConfigError: The run promises nothing, or cannot carry canaries.
    """
    if run.config.training.extends is not None:
        raise ConfigError(
            f"training.extends = {run.config.training.extends!r}: an audit makes runs that begin by themselves; leave it out, "
            "with privacy.earlier_runs, and audit what this run does beside them"
        )
    terms = run.encryption
    rows = terms.noise_rows if terms else 0

    def population(number: int) -> Population:
        flower = run.config.training.engine == "flower"
        if terms is None and not flower:
            return run.population
        # Its parties have keys, agreements and streams of noise that no other run has.
        begun = RunInFolder.begun(run, scratch / str(number))
        if terms is None or flower:
            from hubbub.engine.flower_app import local_population

            return local_population(begun, allow_import=allow_import)
        from hubbub.engine.parties import parties

        return parties(begun, terms)

    return audit(
        run.plan, population, run.model, honest=run.population, effort=effort, noise_rows=max(1, rows), seed=seed, told=told
    )
