"""Shakespeare's speakers as users: who says what, what is asked of a model, and that who is tested on is not trained on."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import unplugged
from hubbub.datasets import Dataset, shakespeare
from hubbub.errors import ConfigError, DataError
from hubbub.experiment.build import client_side
from hubbub.experiment.config import resolve

ROOT = Path(__file__).parent.parent
# Fixtures are found by their names here.
home = unplugged.home

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


@pytest.fixture(scope="module")
def dataset(data_folder: Path, text: str) -> Dataset:
    return shakespeare.load(str(data_folder))


def words_of(inputs: torch.Tensor, targets: torch.Tensor) -> str:
    """One speaker's examples, put together again."""
    alphabet = shakespeare.ALPHABET
    return alphabet[inputs[0, 0]] + "".join(alphabet[number] for number in targets.reshape(-1).tolist() if number != -100)


def test_a_speaker_is_a_name_in_large_or_small_letters_and_all_that_it_says() -> None:
    assert shakespeare.speakers(SCENE) == {
        "first citizen": "\nSpeak, speak.\nYou are resolved:\nNay.",
        "ghost": "",
        "all": "\nResolved.\nAye.",
    }


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


@pytest.mark.parametrize("words", ["", "A", "A naïve rose", "A\trose"])
def test_a_text_of_other_characters_or_of_none_is_refused(words: str) -> None:
    with pytest.raises(DataError, match=rf"a text of {len(words)} characters"):
        shakespeare.examples(words, 4)


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


def test_every_speaker_is_whole_and_either_trained_on_or_tested_on(dataset: Dataset, text: str) -> None:
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


def test_speakers_are_clients_and_their_words_stay_where_they_are(
    data_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"data": {"name": "shakespeare", "path": str(data_folder), "partition": "user"}, "model": {"name": "char-lstm"}}
    side = client_side(resolve(settings))
    assert len(side.population.clients) == 264
    users = side.dataset.users
    starts = [0, *(np.flatnonzero(users[1:] != users[:-1]) + 1)]
    assert [len(inputs) for inputs, _ in side.population._examples] == np.diff([*starts, len(users)]).tolist()
    settings["data"]["partition"] = "dirichlet"
    with pytest.raises(DataError, match="these are sequences with a target at each of 80 places; use 'user' or 'iid'"):
        client_side(resolve(settings))
    settings["data"]["partition"], settings["model"]["name"] = "iid", "cnn"
    with pytest.raises(ConfigError, match=r"model\.name = 'cnn'"):
        client_side(resolve(settings))


def test_another_text_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shakespeare\.txt: is missing; give data\.path or set HUBBUB_DATA"):
        shakespeare.load(str(tmp_path))
    (tmp_path / "input.txt").write_text(SCENE)
    for path in (tmp_path, tmp_path / "input.txt"):
        with pytest.raises(DataError, match=r"is not the published input\.txt \(its digest differs\); give data\.path"):
            shakespeare.load(str(path))
