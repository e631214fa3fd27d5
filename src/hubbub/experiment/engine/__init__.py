"""Two engines for a run with a folder: this process, or a Flower app."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hubbub.experiment.engine.folder import RunInFolder
    from hubbub.training import Population


def train(begun: "RunInFolder", engine: str, show: Callable[[dict[str, Any]], None], *, allow_import: bool = False) -> None:
    """Train the remaining rounds of a run in this process, or as a ``"flower"`` app in it; ``show`` gets the metrics of each.

    With ``allow_import`` the clients of the app may import code that the settings name.
    """
    if engine == "flower":
        from hubbub.experiment.engine.flower_app import run_locally

        run_locally(begun, show, allow_import=allow_import)
        return
    population: Population = begun.run.population
    if begun.run.encryption is not None:
        from hubbub.experiment.engine.parties import parties

        population = parties(begun, begun.run.encryption)
    for row in begun.rounds(population):
        show(row)
