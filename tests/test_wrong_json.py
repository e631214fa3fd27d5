"""JSON has one reading, and a record of a later form is not guessed at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hubbub._util import strict_json
from hubbub.errors import DataError, KeyFileError, LedgerError, RunFolderError
from hubbub.factorization import Optimized, strategy_file
from hubbub.ledger.promise import SCHEMA, Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import SingleParticipation
from hubbub.mechanism.strategies import Dense, Identity
from hubbub.mechanism.workloads import prefix_sum
from hubbub.secagg import key_files
from hubbub.secagg.packing import Packing
from hubbub.secagg.protocol import Agreement
from hubbub.training.run_folder.state import Checkpoint
from malformed.contents import opened, sha256, tensors, tensors_file
from written_keys import LARGE

DEEP = 100_000
ODD: dict[str, tuple[bytes, str]] = {
    "NaN": (b'{"epsilon":NaN}', "NaN is no number"),
    "an infinity": (b'{"epsilon":[-Infinity]}', "-Infinity is no number"),
    "a number beyond all floats": (b'{"epsilon":1e999}', "1e999 is not finite"),
    "a name twice": (b'{"epsilon":1.0,"epsilon":0.0}', "the name 'epsilon' comes twice"),
    "a name twice within": (b'[{"a":{"b":1,"b":1}}]', "the name 'b' comes twice"),
    "a name twice, once by its code": (b'{"a":1,"\\u0061":2}', "the name 'a' comes twice"),
    "a hundred thousand levels": (b"[" * DEEP + b"]" * DEEP, "too many levels"),
    "a hundred thousand levels of tables": (b'{"a":' * DEEP + b"1" + b"}" * DEEP, "too many levels"),
    "a hundred thousand digits": (b"9" * DEEP, "digits"),
    "no UTF-8": (b'{"a":"\xff"}', "can't decode"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "BOM"),
    "a comment": (b"{} // none", "Extra data"),
    "a comma too many": (b'{"a":1,}', "line 1 column"),
}


@pytest.mark.parametrize("kind", ODD)
def test_fil_6_json_has_one_reading(kind: str) -> None:
    content, words = ODD[kind]
    with pytest.raises(ValueError, match=words) as caught:
        strict_json.loads(content)
    assert len(str(caught.value)) < 200
    # A record of a ledger is read by its one form, which none of these has.
    with pytest.raises(ValueError, match=words if words == "too many levels" else "."):
        strict_json.loads_canonical(content)


def test_fil_6_what_is_written_is_one_form_of_finite_numbers() -> None:
    for odd in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="Out of range"):
            strict_json.canonical({"epsilon": odd})
    assert strict_json.canonical({"b": [1.5, None], "a": "é"}) == b'{"a":"\\u00e9","b":[1.5,null]}'


# Later forms.


def of_a_promise(schema: object) -> None:
    record = json.loads(json.dumps(Promise(3, Mechanism(Identity(3), SingleParticipation(), 1.0)).record()))
    Promise.from_record({**record, "kind": "promise", "schema": schema}, {})


def of_a_checkpoint(schema: object) -> None:
    content = tensors(model=np.zeros(2))
    Path("checkpoint-1.safetensors").write_bytes(content)
    files = {"checkpoint-1.safetensors": {"sha256": sha256(content), "bytes": len(content)}}
    Path("checkpoint.json").write_text(json.dumps({"schema": schema, "rounds": 1, "head": "0" * 64, "files": files}))
    Checkpoint(Path("checkpoint.json"), again=True)


def of_a_strategy(schema: object) -> None:
    strategy_file.save(
        "s.safetensors", Optimized(Dense([[1.0]]), prefix_sum(1), SingleParticipation(), "mean", 1.0, 1.0, "", 0)
    )
    header, data = opened(Path("s.safetensors").read_bytes())
    said = {**json.loads(header["__metadata__"]["hubbub"]), "schema": schema}
    header["__metadata__"]["hubbub"] = json.dumps(said)
    Path("s.safetensors").write_bytes(tensors_file(header, data))
    strategy_file.load("s.safetensors")


def of_a_key(version: object) -> None:
    Path("key.json").unlink(missing_ok=True)
    key_files.write_public("key.json", LARGE.public_key)
    Path("key.json").write_text(json.dumps({**json.loads(Path("key.json").read_text()), "version": version}))
    key_files.read_public("key.json")


def of_an_agreement(version: object) -> None:
    record = Agreement(LARGE.public_key, Packing(key_bits=2048), 10, "a run").record()
    Agreement.from_record({**record, "version": version})


FORMS: dict[str, tuple[Callable[[Any], None], type[Exception], int, str]] = {
    "a ledger": (of_a_promise, LedgerError, SCHEMA, "begun with another version"),
    "a checkpoint": (of_a_checkpoint, RunFolderError, 1, "schema"),
    "a strategy": (of_a_strategy, DataError, 1, "this hubbub reads 1"),
    "a key": (of_a_key, KeyFileError, 1, "version: must be 1"),
    "an agreement": (of_an_agreement, ValueError, 1, "than 1, which this hubbub reads"),
}


@pytest.mark.parametrize("form", FORMS)
def test_fil_12_a_later_form_is_refused_with_the_forms_that_are_read(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, error, own, words = FORMS[form]
    make(own)
    for other in (own + 98, 0, -1, True, None, str(own), float(own), [own]):
        with pytest.raises(error, match=words):
            make(other)
