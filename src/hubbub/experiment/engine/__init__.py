"""Two engines for a run with a folder: this process, or a Flower app."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hubbub.experiment.engine.folder import RunInFolder
    from hubbub.training import Population


def population_of(begun: "RunInFolder", engine: str, *, allow_import: bool = False) -> "Population":
    """The clients of a run: in this process, or as nodes of a ``"flower"`` app in it; together with all parties of encryption.

    With ``allow_import`` the clients of the app may import code that the settings name.
    """
    if engine == "flower":
        from hubbub.experiment.engine.flower_app import local_population

        return local_population(begun, allow_import=allow_import)
    if begun.run.encryption is None:
        return begun.run.population
    from hubbub.experiment.engine.parties import parties

    return parties(begun, begun.run.encryption)
