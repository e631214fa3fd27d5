"""``hubbub paillier keygen`` and ``shares``."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from hubbub import files
from hubbub.cli.output import console, print_json, say
from hubbub.errors import KeyFileError
from hubbub.secagg import key_files, paillier, threshold
from hubbub.secagg.primes import expected_candidates

__all__ = ["Group", "keygen", "shares"]


@dataclass(frozen=True)
class Group:
    """Who decrypts together, and what."""

    holders: int
    threshold: int
    min_contributions: int


def keygen(folder: Path, bits: int, *, as_json: bool) -> None:
    """Write a new private key and its public key.

    Raises:
        ValueError: Too few bits.
        KeyFileError: A file is there already, or cannot be written.
    """
    _require_free(folder, [key_files.PUBLIC, key_files.PRIVATE])
    private = paillier.generate(bits)
    public = private.public_key
    _make(folder)
    key_files.write_private(folder / key_files.PRIVATE, private)
    key_files.write_public(folder / key_files.PUBLIC, public)
    if as_json:
        paths = {"public_key": str(folder / key_files.PUBLIC), "private_key": str(folder / key_files.PRIVATE)}
        print_json({"key_id": public.key_id, "bits": public.bits, **paths})
        return
    screen = console()
    say(screen, f"Wrote {folder / key_files.PRIVATE}")
    say(
        screen,
        "  Secret: whoever has it reads every contribution, not only sums. For one owner who is not the server and never "
        "sees single contributions; 'hubbub paillier shares' needs no such person.",
    )
    say(screen, f"Wrote {folder / key_files.PUBLIC}")
    say(
        screen,
        f"  Public: for clients and the server. Its key id is {public.key_id}; tell it them by another way, for whoever slips "
        "in a key of his own reads what is encrypted under it.",
    )


def shares(folder: Path, group: Group, bits: int, *, as_json: bool) -> None:
    """Write a new public key and one share of the secret for each holder.

    Raises:
        ValueError: A number out of range.
        KeyFileError: A file is there already, or cannot be written.
    """
    # Numbers out of range are refused before the names of so many files.
    names = [key_files.share_name(i) for i in range(1, min(group.holders, 100) + 1)]
    _require_free(folder, [key_files.PUBLIC, *names])
    with _progress(bits) as progress:
        public, dealt = threshold.generate(
            bits,
            holders=group.holders,
            threshold=group.threshold,
            min_contributions=group.min_contributions,
            progress=progress,
        )
    _make(folder)
    for share in dealt:
        key_files.write_share(folder / key_files.share_name(share.holder), share)
    key_files.write_public(folder / key_files.PUBLIC, public)
    if as_json:
        ids = {"key_id": public.key_id, "clients_key_id": public.public_key.key_id}
        facts = {**ids, "bits": bits, "holders": public.holders, "threshold": public.threshold}
        paths = {"public_key": str(folder / key_files.PUBLIC), "shares": [str(folder / name) for name in names]}
        print_json({**facts, "min_contributions": public.min_contributions, **paths})
    else:
        _explain(folder, public)


def _explain(folder: Path, public: threshold.ThresholdKey) -> None:
    screen = console()
    t, n, least = public.threshold, public.holders, public.min_contributions
    say(screen, f"Wrote {folder / key_files.PUBLIC}")
    say(
        screen,
        f"  Public: for clients, the server and the holders. Its key id is {public.key_id} for holders, and "
        f"{public.public_key.key_id} for clients (paillier-key-id); tell it them by another way.",
    )
    say(screen, f"Wrote {folder / key_files.share_name(1)}" + (f" to {folder / key_files.share_name(n)}" if n > 1 else ""))
    say(
        screen,
        "  Secret: one for each holder. Send each by a way that nobody else reads, have its key id compared, then delete it "
        "here, with its backups.",
    )
    say(screen)
    if t == 1:
        say(screen, f"Each of the {n} holders decrypts alone: every one of them must be trusted not to.")
    else:
        say(screen, f"Any {t} of the {n} holders decrypt; {t - 1} of them learn nothing, whatever they do together.")
    if n - t:
        say(screen, f"Decryption goes on while at most {n - t} of them are away or lie; one who lies is named.")
    else:
        say(screen, "Nothing is decrypted while one of them is away, and never again if one share is lost.")
    if 1 < t <= n / 2:
        say(screen, f"Two groups of {t} can decrypt without knowing of each other; a threshold above {n // 2} rules that out.")
    if 2 * t <= n:
        say(screen, f"No run takes such a key: two sums of one round could be opened. Take at least {n // 2 + 1} of {n}.")
    if least == 1:
        say(
            screen,
            "Holders decrypt whatever the server hands them, single contributions too: it must be trusted to hand in sums.",
        )
    else:
        say(
            screen,
            f"Holders add contributions themselves and decrypt sums of at least {least}. That each comes from another client "
            "is the server's word.",
        )
    say(
        screen,
        "The primes were in this machine's memory, and are written nowhere: whoever watched it at that moment can read "
        "everything under this key.",
    )


def _require_free(folder: Path, names: list[str]) -> None:
    """Refuse before anything is computed or written."""
    for name in names:
        if os.path.lexists(folder / name):
            raise KeyFileError(f"{folder / name}: exists, and a key file is never overwritten; choose another folder with -o")


def _make(folder: Path) -> None:
    try:
        files.make_folder(folder)
    except OSError as error:
        raise KeyFileError(f"{folder}: cannot be made a folder of keys: {error.strerror}") from error


@contextmanager
def _progress(bits: int) -> Iterator[Callable[[int], None]]:
    """A line that lives while safe primes are searched, on a terminal."""
    columns = (SpinnerColumn(), TextColumn("searching two safe primes"), TimeElapsedColumn(), TextColumn("{task.description}"))
    screen = console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("")
        yield lambda tested: progress.update(
            task, description=f"{tested:,} candidates tested, of about {expected_candidates(bits):,}"
        )
