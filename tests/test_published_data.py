"""Published data sets: MNIST and Fashion-MNIST, CIFAR-10, Shakespeare by speaker; from files, from a network, from a cache.

Damaged and strange files are tried in tests/malformed.
"""

import gzip
import hashlib
import http.client
import io
import os
import tarfile
import urllib.error
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import raising
from hubbub.datasets import Dataset, cifar10, mnist, published, shakespeare
from hubbub.errors import ConfigError, DataError
from hubbub.experiment.build import client_side
from hubbub.experiment.config import resolve


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, without a folder of data, and without a network."""
    monkeypatch.delenv("HUBBUB_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUBBUB_DATA", raising=False)
    monkeypatch.setattr("urllib.request.urlopen", raising(urllib.error.URLError("no network here")))
    return tmp_path / "home"


def serve(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> list[str]:
    """The network, with these files; gives what was asked for."""
    asked: list[str] = []

    def urlopen(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(files[address.rpartition("/")[2]])

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return asked


def idx(array: np.ndarray) -> bytes:
    """A published file as its format is defined: zeros, the type, the number of axes, the axes, the bytes."""
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes(), 1)


@pytest.mark.slow
def test_clothes_come_in_every_form_of_the_digits(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(5)
    made = {"x_train": (60_000, 28, 28), "y_train": (60_000,), "x_test": (10_000, 28, 28), "y_test": (10_000,)}
    arrays = {key: np.zeros(shape, np.uint8) for key, shape in made.items()}
    arrays["x_train"][:50] = generator.integers(0, 256, (50, 28, 28))
    arrays["y_train"][:] = generator.integers(0, 10, 60_000)
    arrays["x_test"][-1] = 7
    files = dict(zip(mnist._NAMES, (idx(array) for array in arrays.values()), strict=True))
    digests = tuple(hashlib.md5(content, usedforsecurity=False).hexdigest() for content in files.values())
    monkeypatch.setattr(mnist, "_FASHION", mnist._Kind("Fashion-MNIST", "fashion-mnist", "https://x/", digests, 0.5, 0.25))
    expected = (arrays["x_train"][:50, np.newaxis] / 255 - 0.5) / 0.25
    folder = tmp_path / "data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    np.savez(tmp_path / "fashion-mnist.npz", **arrays)
    asked = serve(monkeypatch, files)
    for path in (folder, folder.parent, tmp_path / "fashion-mnist.npz", tmp_path, None):
        found = mnist._arrays(mnist._FASHION, None if path is None else str(path))
        assert all(np.array_equal(found[key], array) for key, array in arrays.items())
    dataset = mnist.load_fashion()
    np.testing.assert_allclose(dataset.train_inputs[:50].numpy(), expected, atol=1e-5)
    assert dataset.train_targets.tolist() == arrays["y_train"].tolist()
    assert (dataset.classes, dataset.shape, len(dataset.test_inputs)) == (10, (1, 28, 28), 10_000)
    assert asked == [f"https://x/{name}" for name in mnist._NAMES]
    # What was damaged in the cache is fetched again, alone.
    (home / ".cache" / "hubbub" / "fashion-mnist" / mnist._NAMES[2]).write_bytes(b"torn")
    mnist._arrays(mnist._FASHION, None)
    assert asked[4:] == [f"https://x/{mnist._NAMES[2]}"]


@pytest.mark.parametrize("load", [mnist.load, mnist.load_fashion, cifar10.load, shakespeare.load])
def test_without_data_or_a_network_a_user_is_told_what_to_do(load: Callable[..., Dataset], home: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be downloaded \(.*no network here.*\); give data.path or set HUBBUB_DATA"):
        load()
    assert not list(home.rglob("*.npz"))


def test_what_comes_damaged_from_the_network_is_not_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, dict.fromkeys([*mnist._NAMES, "cifar-10-binary.tar.gz", "input.txt"], b"<html>"))
    for load in (mnist.load, cifar10.load, shakespeare.load):
        with pytest.raises(DataError, match="came damaged; try again"):
            load()
    monkeypatch.setattr("urllib.request.urlopen", raising(http.client.IncompleteRead(b"cut off")))
    with pytest.raises(DataError, match=r"cannot be downloaded \(IncompleteRead"):
        mnist.load()
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_a_file_of_another_data_set_or_far_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "_LARGEST", 1000)
    for name, load, fault in (
        ("mnist.npz", mnist.load_fashion, "is MNIST, by its name; name fashion-mnist.npz"),
        ("cifar10.npz", cifar10.load, "is neither"),
    ):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 2**42)
        with pytest.raises(DataError, match=fault):
            load(str(tmp_path / name))


def jpeg(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=95, subsampling=0)
    return out.getvalue()


def binary(rows: np.ndarray) -> bytes:
    """The published archive, by its description: six files of 10,000 rows, a label and then 3 × 1,024 pixels each."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for name, part in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], np.split(rows, 6), strict=True):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = part.nbytes
            archive.addfile(member, io.BytesIO(part.tobytes()))
    return out.getvalue()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Files of a few images; gives how many there are in all."""
    monkeypatch.setattr(cifar10, "_BATCH", 20)
    return 120


def pixels_of(inputs: torch.Tensor) -> np.ndarray:
    """What was standardized, as it was before."""
    deviations, means = (np.reshape(part, (3, 1, 1)) for part in ([0.2470, 0.2435, 0.2616], [0.4914, 0.4822, 0.4465]))
    return (inputs.numpy() * deviations + means) * 255


def test_the_archive_is_decoded_once(home: Path, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a damaged cache is made again."""
    rows = np.random.default_rng(0).integers(0, 256, (small, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    content = binary(rows)
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    monkeypatch.setattr(cifar10, "_PUBLISHED", published.PublishedFile("https://x/cifar-10-binary.tar.gz", digest))
    asked = serve(monkeypatch, {"cifar-10-binary.tar.gz": content})

    def check(path: str | None) -> None:
        dataset = cifar10.load(path)
        assert (dataset.shape, dataset.classes) == ((3, 32, 32), 10)
        np.testing.assert_allclose(pixels_of(dataset.train_inputs), rows[:100, 1:].reshape(100, 3, 32, 32), atol=1e-3)
        np.testing.assert_allclose(pixels_of(dataset.test_inputs), rows[100:, 1:].reshape(20, 3, 32, 32), atol=1e-3)
        assert [*dataset.train_targets.tolist(), *dataset.test_targets.tolist()] == rows[:, 0].tolist()

    check(None)
    check(None)
    assert len(asked) == 1
    (kept,) = (home / ".cache" / "hubbub" / "cifar10").iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[:-100], whole[:100_000] + b"\xa5" + whole[100_001:], b"", whole.replace(b"y_test", b"z_test")):
        kept.write_bytes(damaged)
        check(None)
    assert len(asked) == 5
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    check(str(tmp_path))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"neither cifar10\.npz nor the published"):
        cifar10.load(str(tmp_path))
    # Unpacked, it is taken where there is no archive, and its files are the published ones.
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "cifar-10-binary.tar.gz").unlink()
    unpacked = tmp_path / "cifar-10-batches-bin"
    for name in cifar10._BATCHES:
        digest = hashlib.md5((unpacked / name).read_bytes(), usedforsecurity=False).hexdigest()
        monkeypatch.setitem(cifar10._BATCHES, name, digest)
    check(str(tmp_path))
    check(str(unpacked))
    (unpacked / "data_batch_1.bin").rename(unpacked / "kept")
    with pytest.raises(DataError, match=r"data_batch_1\.bin: is missing; unpack the archive again"):
        cifar10.load(str(tmp_path))
    (unpacked / "kept").rename(unpacked / "data_batch_1.bin")
    (unpacked / "test_batch.bin").write_bytes((unpacked / "data_batch_1.bin").read_bytes())
    with pytest.raises(DataError, match=r"test_batch\.bin: is not the published test_batch\.bin"):
        cifar10.load(str(tmp_path))


def test_images_in_jpeg_files_are_decoded_once_and_dealt_by_their_split(home: Path, small: int, tmp_path: Path) -> None:
    files = [jpeg(np.full((32, 32, 3), (number, 255 - number, 60), np.uint8)) for number in range(small)]
    split = np.random.default_rng(0).permutation(np.arange(small) < 20)
    blob, offsets = np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)])
    labels = np.arange(small, dtype=np.uint8) % 10
    arrays = {"blob": blob, "offsets": offsets, "labels": labels, "split": split.astype(np.uint8)}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    for _ in range(2):
        dataset = cifar10.load(str(tmp_path / "cifar10.npz"))
        sides = [(dataset.train_inputs, dataset.train_targets, ~split), (dataset.test_inputs, dataset.test_targets, split)]
        for inputs, targets, mine in sides:
            np.testing.assert_allclose(pixels_of(inputs)[:, 0, 7, 7], np.flatnonzero(mine), atol=3)
            np.testing.assert_allclose(pixels_of(inputs)[:, 1, 7, 7], 255 - np.flatnonzero(mine), atol=3)
            assert targets.tolist() == (np.flatnonzero(mine) % 10).tolist()
    assert len(list((home / ".cache" / "hubbub" / "cifar10").iterdir())) == 1
    # Another file is not taken for this one.
    np.savez(tmp_path / "cifar10.npz", **{**arrays, "labels": labels[::-1].copy()})
    assert cifar10.load(str(tmp_path)).train_targets.tolist() == labels[::-1][~split].tolist()


SCENE = """\
First Citizen:
Speak, speak.
You are resolved:

GHOST:

All:
Resolved.


First citizen:
Nay.

ALL:
Aye."""


@pytest.fixture(scope="module")
def text(data_folder: Path) -> str:
    if not (data_folder / "shakespeare.txt").exists():
        pytest.skip("shakespeare.txt is not beside mnist.npz")
    return (data_folder / "shakespeare.txt").read_text()


def words_of(inputs: torch.Tensor, targets: torch.Tensor) -> str:
    """One speaker's examples, put together again."""
    alphabet = shakespeare.ALPHABET
    return alphabet[inputs[0, 0]] + "".join(alphabet[number] for number in targets.reshape(-1).tolist() if number != -100)


def test_a_speaker_is_a_name_in_large_or_small_letters_and_all_that_it_says() -> None:
    said = {"first citizen": "\nSpeak, speak.\nYou are resolved:\nNay.", "ghost": "", "all": "\nResolved.\nAye."}
    assert shakespeare.speakers(SCENE) == said


@pytest.mark.parametrize("length", [1, 3, 4, 5, 6, 7, 80])
def test_each_character_but_the_first_is_asked_for_once_after_those_before_it(length: int) -> None:
    words = "\nA rose."
    inputs, targets = shakespeare.examples(words, length)
    assert inputs.shape == targets.shape == (-(-7 // length), length)
    assert words_of(inputs, targets) == words
    asked = [(i, j) for i in range(len(targets)) for j in range(length) if targets[i, j] != -100]
    assert asked == [(place // length, place % length) for place in range(7)]
    for place, (i, j) in enumerate(asked):
        assert shakespeare.ALPHABET[inputs[i, j]] == words[place]
    assert (inputs[targets == -100] == 0).all()


def test_the_published_text_has_303_speakers_of_whom_293_say_something(text: str) -> None:
    # Counted another way: a speaker's line stands after an empty one, at the beginning, and ends with a colon.
    lines = ["", *text.split("\n")]
    named = {line.lower() for before, line in pairwise(lines) if not before and line.endswith(":")}
    assert len(named) == 303
    said = shakespeare.speakers(text)
    assert {f"{name}:" for name in said} == named
    assert sum(bool(words) for words in said.values()) == 293
    # Nothing is lost: all that is no name and no empty line is said by somebody, each line end with it.
    rest = [line for before, line in pairwise(lines) if line and (before or line.lower() not in named)]
    assert sum(len(line) + 1 for line in rest) == sum(len(words) for words in said.values())
    assert set(text) == set(shakespeare.ALPHABET)


def test_every_speaker_is_whole_and_either_trained_on_or_tested_on(data_folder: Path, text: str) -> None:
    dataset = shakespeare.load(str(data_folder))
    said = {name: words for name, words in shakespeare.speakers(text).items() if words}
    trained = set(dataset.users.tolist())
    assert len(trained) == 264
    for name in trained:
        mine = torch.from_numpy(dataset.users == name)
        assert words_of(dataset.train_inputs[mine], dataset.train_targets[mine]) == said[name], name
    tested = [said[name] for name in sorted(said.keys() - trained)]
    assert len(tested) == 29
    assert int((dataset.test_targets != -100).sum()) == sum(len(words) - 1 for words in tested)
    assert words_of(dataset.test_inputs, dataset.test_targets).startswith(tested[0])
    # What is held out stays the same: figures of different days are of the same test.
    assert (len(dataset.train_inputs), len(dataset.test_inputs)) == (11_954, 1_033)
    assert (dataset.shape, dataset.classes, dataset.train_inputs.dtype) == ((80,), 65, torch.int64)


def test_speakers_are_clients_and_their_words_stay_where_they_are(data_folder: Path, text: str) -> None:
    settings = {"data": {"name": "shakespeare", "path": str(data_folder), "partition": "user"}, "model": {"name": "char-lstm"}}
    side = client_side(resolve(settings))
    assert len(side.population.clients) == 264
    users = side.dataset.users
    starts = [0, *(np.flatnonzero(users[1:] != users[:-1]) + 1)]
    assert [len(inputs) for inputs, _ in side.population._examples] == np.diff([*starts, len(users)]).tolist()
    settings["data"]["partition"] = "dirichlet"
    with pytest.raises(DataError, match="needs one label for each example, not sequences; use 'user' or 'iid'"):
        client_side(resolve(settings))
    settings["data"]["partition"], settings["model"]["name"] = "iid", "cnn"
    with pytest.raises(ConfigError, match=r"model\.name = 'cnn'"):
        client_side(resolve(settings))
