"""Commands about this machine."""

from typing import Annotated

import typer

from hubbub.cli import completing
from hubbub.cli.flags import AsJson

__all__ = ["COMMANDS"]


def doctor(as_json: AsJson = False) -> None:
    """Whether this machine can train and keep secrets, and how fast: versions, device, randomness, disk, speed."""
    from hubbub.cli import doctor as command

    raise typer.Exit(command.doctor(as_json=as_json))


def kernel(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="encryption, training or noise; by default all.", autocompletion=completing.kernels
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Delete them; everything goes on without.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build kernels that make hubbub faster on this machine, with its C compiler; status 1 where none can be built."""
    from hubbub.cli import kernels

    if remove:
        kernels.remove(names or [], as_json=as_json)
    else:
        raise typer.Exit(kernels.build(names or [], as_json=as_json))


# In the order of the help.
COMMANDS = (doctor, kernel)
