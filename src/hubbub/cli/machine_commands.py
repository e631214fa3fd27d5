"""Commands about this machine."""

import typer

from hubbub.cli.flags import AsJson

__all__ = ["COMMANDS"]


def doctor(as_json: AsJson = False) -> None:
    """Whether this machine can train and keep secrets, and how fast: versions, device, randomness, disk, speed."""
    from hubbub.cli import doctor as command

    raise typer.Exit(command.doctor(as_json=as_json))


# In the order of the help.
COMMANDS = (doctor,)
