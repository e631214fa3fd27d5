"""Names that would lead out of a folder, links, what is no file, foreign folders, and files that change under the reader."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

import paillier_nodes
from hubbub import RunStore, SingleParticipation
from hubbub._util import files, strict_json
from hubbub.errors import RunFolderError
from hubbub.experiment import config
from hubbub.factorization import Optimized, strategy_file
from hubbub.flower.holders import answer
from hubbub.ledger.chain import Chain, read_chain
from hubbub.mechanism.strategies import Dense, dense
from hubbub.mechanism.workloads import prefix_sum
from hubbub.training.run_folder.state import Checkpoint
from malformed.contents import sha256
from malformed.place import becoming
from refusals import contents, refused, settings

pytestmark = pytest.mark.usefixtures("workplace")

# Forty names that mean more to a shell, a terminal or a file system than to whoever wrote them.
NAMES = [
    "../out", "../../out", "../../../../../../../../usr/out", "/var/out", "/etc/cron.d/out", "//out", "./out/../../x",
    "a/../../out", "..", ".", "/", "~", "~root/out", "~/out", "link/out", "state", "state/keys/run",
    "ledger.jsonl", "opened.json",
    ".hidden", "-rf", "--out", "out\\..\\..\\x", "C:\\out", "CON", "nul", "a b", "a;touch out", "$(touch out)", "`touch out`",
    "${HOME}/out", "{{7*7}}", "%2e%2e%2fout", "\u2024\u2024/out", "..\u2215out", "ｏｕｔ", "n" * 200, "é" * 100, "out ", " out",
]  # fmt: skip
# What is no text of one line, or longer than a name may be.
NO_NAMES = ["", "nul\0byte", "two\nlines", "\x1b[31mred", "re\rturn", "\u202egnp.exe", "half\udcff", "n" * 300, "line\u2028end"]


def below(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


def hello(run: str) -> RecordDict:
    agreement = paillier_nodes.agreed(paillier_nodes.owner().public_key)
    record = strict_json.canonical({**agreement.record(), "run": run})
    return RecordDict({"paillier": ConfigRecord({"action": "hello", "hubbub_agreement": record})})


def test_fil_10_forty_names_of_runs_lead_nowhere_but_into_the_holders_own_folder(workplace: Path) -> None:
    """A run's name comes from the server."""
    assert len(set(NAMES)) == 40
    Path("link").symlink_to("elsewhere")
    Path("elsewhere").mkdir()
    Path("root").mkdir()
    before = below(workplace)
    for name in NAMES:
        # Of each name by itself, so that one that leads out is the last.
        made = below(workplace)
        assert answer(hello(name), paillier_nodes.owner(), Path("root"))["holder"] == 1
        (folder,) = {path for path in below(workplace) - made if path.count("/") < 2}
        assert re.fullmatch("root/holder-1-[0-9a-f]{16}", folder)
    for name in NO_NAMES:
        with pytest.raises(ValueError, match=r"run = |cannot be read|surrogates"):
            answer(hello(name), paillier_nodes.owner(), Path("root"))
    made = below(workplace) - before
    folders = {name for name in made if name.count("/") == 1}
    assert len(folders) == 40
    assert {Path(name).name for name in made - folders} == {"agreement.json", "opened.json", "lock"}


def test_fil_10_an_app_gets_no_name_that_is_none_of_a_package(workplace: Path) -> None:
    before = below(workplace)
    # Where it is put is the user's choice; what it is called becomes the name of a package.
    bad = [name for name in [*NAMES, *NO_NAMES] if not re.fullmatch("[a-z]+", Path(name).name, re.ASCII)]
    assert len(bad) > 30
    for name in bad:
        assert "NAME = " in refused(["flower", "new", "--", name])
    assert below(workplace) == before


def test_fil_10_no_name_of_a_file_is_taken_from_a_manifest() -> None:
    """A checkpoint is found by its number: a manifest that names a file is refused before anything is opened."""
    for name in [*NAMES, *NO_NAMES[1:6]]:
        stated = {"schema": 1, "rounds": 1, "head": "0" * 64, "files": {name: {"sha256": sha256(b""), "bytes": 0}}}
        Path("checkpoint.json").write_bytes(strict_json.canonical(stated))
        with pytest.raises(RunFolderError, match="it must name schema, rounds, head and sha256"):
            Checkpoint(Path("checkpoint.json"), again=False)


LITERAL = [
    "${HOME}", "$(touch ran)", "`touch ran`", "{{ 7*7 }}", "{% raw %}", "%(home)s", "%s%n", "{0.__class__}", "!!python/object",
    "a; touch ran", "two\nlines", "re\rturn", "tab\there", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "[bold]loud[/bold]",
]  # fmt: skip


@pytest.mark.parametrize("value", LITERAL)
def test_fil_9_a_value_is_what_stands_there(value: str) -> None:
    layer: dict[str, dict[str, Any]] = {"data": {"name": "mnist", "path": value}, "privacy": {"noise_multiplier": 1.0}}
    resolved = config.resolve(layer)
    assert resolved.data.path == value
    # Written and read again it is the same.
    Path("again.toml").write_text(config.dump(resolved))
    assert config.resolve(config.load("again.toml")) == resolved
    before = below(Path())
    for name in ("data.name", "model.name", "privacy.mode"):
        section, _, key = name.partition(".")
        Path("odd.toml").write_text(config.dump(config.Config()).split("[")[0])
        other = {"privacy": {"noise_multiplier": 1.0}} | {section: {key: value}}
        with pytest.raises(config.ConfigError) as caught:
            config.resolve(other)
        assert f"{name} = {value!r}"[:100] in str(caught.value)
    # As a path it is looked for under this name; a terminal is shown what it would obey.
    error = refused(["plan", "again.toml", "--measure"], "is missing")
    assert error.strip().isprintable()
    assert value.encode("unicode_escape").decode() in error or " ".join(value.split()) in error
    assert below(Path()) - before <= {"odd.toml"}
    assert not Path("ran").exists()


@pytest.mark.parametrize("kind", ["empty", "folder", "pipe", "endless", "void", "loop"])
def test_fil_13_what_is_no_file_is_refused_at_once(kind: str) -> None:
    Path("odd").touch()
    if kind != "empty":
        becoming("odd", kind)()
    dense = ["privacy.strategy=dense", "privacy.matrix=odd"]
    data = ["data.name=mnist", "data.path=odd"]
    cifar = ["data.name=cifar10", "data.path=odd"]
    lines = [settings("correlated.toml", *dense), settings("good.toml", *data), settings("good.toml", *cifar)]
    lines += [["verify", "odd"], ["resume", "odd"], ["ledger", "odd"], ["close", "odd"]]
    lines += [settings("good.toml", 'privacy.earlier_runs=["odd"]')]
    lines += [["factorize", "file", "--matrix", "odd"], ["account", "odd", "--delta", "1e-5"]]
    lines += [["factorize", "dense", "--rounds", "4", "--learning-rates", "odd"]]
    lines += [["train", "odd"]] if kind != "empty" else []
    for line in lines:
        refused(line, "odd")
    refused(settings("good.toml", 'privacy.earlier_runs=["~odd"]'), "a path with ~: Could not determine home directory")
    assert not Path("new").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o755])
def test_fil_11_the_folder_of_a_run_is_taken_from_everybody_else_before_anything_is_in_it(mode: int) -> None:
    Path("run").mkdir()
    Path("run").chmod(mode)
    with RunStore(Path("run")).locked():
        assert Path("run").stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o077 for path in Path("run").rglob("*")} == {0}


def test_fil_11_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run").mkdir()
    before = contents(Path("run"))
    monkeypatch.setattr(os, "getuid", lambda: Path("run").stat().st_uid + 1)
    with pytest.raises(RunFolderError, match="run: belongs to another user"), RunStore(Path("run")).locked():
        pass
    assert contents(Path("run")) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.yaml", "training:\n  rounds: 2\nprivacy:\n  noise_multiplier: 1.0\n"),
        ("run.yml", "--- !!python/object/apply:os.mkdir [ran]\n"),
        ("run.toml", "training: {rounds: 2}\n"),
        ("run.json", '{"training": {"rounds": 2}}'),
        ("run.ini", "[training]\nrounds: 2\n"),
        ("run.cfg", "[training]\nrounds = two\n"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "train"])
def test_fil_7_what_is_not_toml_is_told_so(command: str, name: str, content: str) -> None:
    Path(name).write_text(content)
    refused([command, name], name, "is not TOML")
    assert not Path("ran").exists()


def test_the_mark_that_some_editors_begin_a_file_with_is_no_setting() -> None:
    Path("marked.toml").write_bytes(b"\xef\xbb\xbf" + Path("good.toml").read_bytes())
    assert config.load("marked.toml") == config.load("good.toml")


def of_a_strategy(value: int) -> None:
    answer = Optimized(Dense([[value]]), prefix_sum(1), SingleParticipation(), "mean", 1.0, 1.0, "", 0)
    strategy_file.save("s.safetensors", answer)


def of_a_ledger(value: int) -> None:
    Path("run.jsonl").unlink(missing_ok=True)
    chain = Chain(Path("run.jsonl"))
    for number in range(value):
        chain.append({"kind": "abort", "round": number})


# For each kind the file, what writes it with a number in it, and what reads that number.
READERS: dict[str, tuple[str, Callable[[int], object], Callable[[], Any]]] = {
    "a strategy": ("s.safetensors", of_a_strategy, lambda: np.array(strategy_file.load("s.safetensors").matrix()).item()),
    "a ledger": ("run.jsonl", of_a_ledger, lambda: len(read_chain(Path("run.jsonl")).records)),
    "a matrix": ("m.npy", lambda v: np.save("m.npy", np.array([[float(v)]])), lambda: dense.load("m.npy").matrix().item()),
}


def changing(monkeypatch: pytest.MonkeyPatch, path: Path, later: bytes) -> None:
    """From now on the file is another one as soon as it has been read once."""
    read = files.read

    def reading(place: Path, *, at_most: int) -> bytes:
        content = read(place, at_most=at_most)
        if Path(place).resolve() == path.resolve():
            path.write_bytes(later)
        return content

    monkeypatch.setattr(files, "read", reading)


@pytest.mark.parametrize("kind", READERS)
def test_fil_14_what_was_checked_is_what_is_used(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, write, load = READERS[kind]
    write(2)
    later = Path(name).read_bytes()
    write(1)
    changing(monkeypatch, Path(name), later)
    assert [load(), load()] == [1, 2]


def test_fil_14_a_release_is_parsed_from_the_bytes_that_were_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, contents_of = RunStore(Path("run")), []
    with store.locked():
        for value in (2, 1):
            contents_of.append(store.save_release(0, torch.full((3,), float(value))))
    later, now = contents_of
    changing(monkeypatch, Path("run/state/releases/0.safetensors"), later)
    assert store.load_release(0, sha256(now), 3).tolist() == [1.0] * 3
    with pytest.raises(RunFolderError, match="not what the ledger says"):
        store.load_release(0, sha256(now), 3)
