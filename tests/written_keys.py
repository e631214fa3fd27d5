"""Small keys as files, what is read of them, and ways to damage them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hubbub.errors import KeyFileError
from hubbub.secagg import ciphertext, key_files, paillier, threshold
from small_keys import SAFE, small

KEY, SHARES = threshold.deal(*SAFE, holders=3, threshold=2, min_contributions=2)
SHARE = SHARES[1]
LARGE = paillier.generate(2048)
KINDS = ("public", "threshold", "private", "share")
READ: dict[str, Callable[[Path], Any]] = {
    "public": key_files.read_public,
    "threshold": key_files.read_public,
    "private": key_files.read_private,
    "share": key_files.read_share,
}
SECRETS = [small().p, small().q, SHARE.secret, *SAFE]


@contextmanager
def small_keys_taken() -> Iterator[None]:
    """Keys of 512 bits are written and read as those of 2048 are."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (ciphertext, key_files):
            patch.setattr(module, "SMALLEST_BITS", 512)
        yield


@pytest.fixture(autouse=True)
def small_keys() -> Iterator[None]:
    with small_keys_taken():
        yield


def write(kind: str, path: Path) -> dict[str, Any]:
    """A file with a small key, and what it says."""
    match kind:
        case "public":
            key_files.write_public(path, small().public_key)
        case "threshold":
            key_files.write_public(path, KEY)
        case "private":
            key_files.write_private(path, small())
        case _:
            key_files.write_share(path, SHARE)
    return json.loads(path.read_text())


def overwrite(path: Path, said: Any) -> None:
    path.unlink(missing_ok=True)
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    path.chmod(0o600)


def refused(kind: str, path: Path, *words: str) -> str:
    """The one line that says why a file is refused: it names the file, and no secret in any notation."""
    with pytest.raises(KeyFileError) as caught:
        READ[kind](path)
    message = str(caught.value)
    assert message.startswith(f"{path}: "), message
    assert not [word for word in words if word not in message], message
    error: BaseException | None = caught.value
    while error is not None:
        for text in (str(error), repr(error), repr(vars(error))):
            for secret in SECRETS:
                assert f"{secret:x}"[:12] not in text
                assert str(secret)[:12] not in text
        error = error.__cause__ or error.__context__
    return message


WRONG = (None, True, False, 0, -1, 1.5, 2**40, [], ["0x2"], {}, "", "0x1" + "0" * 10_000, *"x 0x 0x0 0x00ff 0xFF 12".split())


def damaged(said: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """Copies in which a field is gone, or something else than it was."""
    value = said[field]
    copies = [{name: item for name, item in said.items() if name != field}]
    copies += [{**said, field: wrong} for wrong in WRONG if wrong != value or type(wrong) is not type(value)]
    if isinstance(value, str) and value.startswith("0x"):
        number = int(value, 16)
        copies += [{**said, field: hex(x)} for x in (number + 2, number - 2, 2 * number, number ^ 1 << 40, 3)]
    elif isinstance(value, str):
        copies += [{**said, field: value[:-1]}, {**said, field: value.upper()}, {**said, field: value.encode().hex()}]
    elif isinstance(value, bool):
        copies.append({**said, field: not value})
    elif isinstance(value, int):
        copies += [{**said, field: x} for x in (value - 1, value + 1, str(value), float(value))]
    elif isinstance(value, list):
        copies += [{**said, field: x} for x in (value[:-1], value + value[:1], value[::-1], [*value[:-1], None])]
    return copies
