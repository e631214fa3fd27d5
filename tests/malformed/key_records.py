"""Files of keys that hold no key, or another than they say."""

import json
from collections.abc import Iterator
from pathlib import Path

from malformed.base import Call, Case, Run
from malformed.contents import DEEP, some
from malformed.damages import KINDS, becoming, having_mode, holding, together
from written_keys import KINDS as KINDS_OF_KEY
from written_keys import READ, damaged, small_keys_taken, write

ODD_FILES = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "text": b'"key"',
    "no JSON": b"-----BEGIN PRIVATE KEY-----\n",
    "deep": b"[" * DEEP,
    "a long number": b'{"n":' + b"9" * DEEP + b"}",
    "NaN": b'{"n":NaN}',
    "a name twice": b'{"n":1,"n":1}',
    "no UTF-8": b'{"n":"\xff"}',
    "zeros": bytes(500),
    "long": b" " * 2**22,
    "YAML": b"format: hubbub paillier private key\n",
}


def read(kind: str, path: Path) -> None:
    with small_keys_taken():
        READ[kind](path)


def key_files(run: Run) -> Iterator[Case]:  # noqa: C901 # one kind after another
    for kind in KINDS_OF_KEY:
        call = (Call(f"read a {kind} key", lambda k=kind: read(k, Path("key"))),)
        Path("key").unlink(missing_ok=True)
        with small_keys_taken():
            said = write(kind, Path("key"))
        whole = Path("key").read_bytes()
        Path("key").unlink()
        tried = set()
        for field in said:
            for copy in damaged(said, field):
                # That a key takes the textbook form of encryption is always true.
                if not (kind == "public" and copy == {**said, "short_exponents": False}):
                    content = json.dumps(copy).encode()
                    if content not in tried:
                        tried.add(content)
                        what = f"{kind}: {field}: {str(copy.get(field, 'none'))[:30]!r}, {len(tried)}"
                        yield Case(what, call, ("key: ",), holding("key", content))
        for what, content in ODD_FILES.items():
            yield Case(f"{kind}: {what}", call, ("key: ",), holding("key", content))
        for cut in some(20, len(whole) - 2, seed=len(kind)):
            yield Case(f"{kind}: cut at {cut}", call, ("key: is no key file",), holding("key", whole[:cut]))
        for number in KINDS:
            damage = together(holding("key", whole), becoming("key", number))
            yield Case(f"{kind}: {number}", call, ("key: cannot be read",), damage)
        for mode in (0o644, 0o640, 0o604, 0o620, 0o777):
            if kind in ("private", "share"):
                damage = together(holding("key", whole), having_mode("key", mode))
                yield Case(f"{kind}: mode {mode:o}", call, ("key: ", f"mode {mode:04o}", "chmod 600 key"), damage)
