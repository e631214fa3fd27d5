"""``hubbub paillier``: keys and shares as files, and times beside phe's."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="Keys for sums that the server cannot read.", rich_markup_mode="rich", no_args_is_help=True)

KeyBits = Annotated[int, typer.Option("--bits", metavar="N", help="Of n: 3072, or 2048 for 112 bits of security.")]
Folder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A folder; what is in it is never overwritten.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one strict JSON object, without secrets.")]


@app.callback()
def _paillier() -> None:
    """Keys for sums that the server cannot read."""


@app.command()
def keygen(output: Folder, bits: KeyBits = 3072, as_json: AsJson = False) -> None:
    """A private key, for one owner who is not the server, and its public key."""
    _require_gmpy2()
    from hubbub.cli import keys

    keys.keygen(output, bits, as_json=as_json)


@app.command()
def shares(
    output: Folder,
    holders: Annotated[int, typer.Option(metavar="N", help="Who each get a share, from 1 to 100.")],
    threshold: Annotated[int, typer.Option(metavar="N", help="How many of them decrypt together.")],
    bits: KeyBits = 3072,
    min_contributions: Annotated[int, typer.Option(metavar="N", help="Sums of fewer contributions are not decrypted.")] = 2,
    as_json: AsJson = False,
) -> None:
    """A key that no one has: any so many holders decrypt together, fewer learn nothing."""
    _require_gmpy2()
    from hubbub.cli import keys

    keys.shares(output, keys.Group(holders, threshold, min_contributions), bits, as_json=as_json)


@app.command()
def bench(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="For bench.png, bench.csv and bench.json.")],
    bits: Annotated[int, typer.Option(metavar="N", help="Of n, of keys that are thrown away.")] = 1024,
    sizes: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Bits of the operand; by default from 10 to as many as the key takes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one strict JSON object.")] = False,
) -> None:
    """How long encryption, arithmetic and decryption take, ours beside phe's, as nine plots."""
    _require_gmpy2()
    from hubbub.cli import benching

    benching.bench(output, bits, sizes, as_json=as_json)


def _require_gmpy2() -> None:
    """One line, in place of a traceback, where the extra is not installed."""
    from hubbub.errors import ConfigError

    try:
        import hubbub.secagg  # noqa: F401
    except ImportError as error:
        raise ConfigError(str(error)) from error
