"""Config files that are no TOML, given to a command or found in the folder of a run."""

import json
import pickle
import tomllib
import zlib
from collections.abc import Iterator

from malformed.base import CONFIG, RESUME, Case, Run
from malformed.contents import some
from malformed.damages import holding

NO_TOML = r"""
rounds
rounds =
= 3
rounds = 1 2
rounds = 01
rounds = 1__0
rounds = 0x
rounds = 1e
rounds = .5
rounds = 5.
rounds = +-1
rounds = Infinity
rounds = NaN
rounds = None
rounds = True
rounds = 3 rounds
rounds = [1
rounds = {a = 1
rounds = {a = 1,}
rounds = "3
rounds = '3
rounds = \"\"\"3
rounds = "\x"
rounds = "\ud800"
rounds = 1979-13-01
rounds = 25:00:00
rounds = 1\nrounds = 2
rounds.a = 1\nrounds.a = 2
a = 1\na.b = 2
[training
[training]]
[[training]
[]
[training.]
[training]\n[training]
[training.rounds]\n[training.rounds]
rounds = 3 // three
rounds = $HOME
""".strip().splitlines()


def broken_toml(content: bytes) -> Iterator[tuple[str, bytes]]:
    """What is no TOML, made from what is."""
    at = 0
    for line in content.splitlines(keepends=True):
        # Up to the equals sign, or inside the brackets, a line is not whole.
        end = line.find(b"]") if line.startswith(b"[") else line.find(b"=") + 1
        for cut in {1, end // 2, end} - {0, -1} if end > 0 else set():
            yield f"cut at {at + cut}", content[: at + cut]
        at += len(line)
    places = some(12, len(content), seed=4)
    for odd in (b"\0", b"\x7f", b"\x1b", b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xc0\xaf"):
        for place in places[:: 2 if len(odd) > 1 else 1]:
            yield f"{odd!r} at {place}", content[:place] + odd + content[place:]
    yield "UTF-16", content.decode().encode("utf-16-le")
    yield "UTF-32", content.decode().encode("utf-32")
    yield "byte order mark in the middle", content + b"\xef\xbb\xbf[secagg]\n"
    yield "carriage returns", content.replace(b"\n", b"\r")
    yield "compressed", zlib.compress(content)
    yield "pickled", pickle.dumps({"training": {"rounds": 1}})
    yield "JSON", json.dumps(tomllib.loads(content.decode())).encode()
    yield "YAML", content.replace(b" = ", b": ")
    yield "twice", content + content
    for line in (*NO_TOML, "rounds = " + "[" * 20_000, "rounds = " + "{a=" * 20_000, "a" * 5 + ".b" * 3000 + " = "):
        yield line[:40], line.replace("\\n", "\n").encode() + b"\n" + content


def config_files(run: Run) -> Iterator[Case]:
    for number, (name, content) in enumerate(broken_toml(CONFIG.encode())):
        command = "train" if number % 3 else "plan"
        yield Case(name, ((command, "bad.toml"),), ("bad.toml", "TOML"), holding("bad.toml", content))


def configs_of_runs(run: Run) -> Iterator[Case]:
    content = run.files["config.toml"]
    content = content[content.index(b"\n") + 1 :]
    for name, broken in list(broken_toml(content))[::6]:
        yield Case(name, (RESUME,), ("run/config.toml", "TOML"), holding("run/config.toml", broken))
