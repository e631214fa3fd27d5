"""Keys as files: read back as they were, and never overwritten."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.errors import KeyFileError
from hubbub.secagg import ciphertext, key_files
from hubbub.secagg.paillier import PublicKey
from written_keys import (
    KINDS,
    LARGE,
    refused,
    small_keys,  # noqa: F401 # a fixture
    write,
)


def test_keys_are_read_back_as_they_were(tmp_path: Path) -> None:
    key_files.write_private(tmp_path / "private", LARGE)
    key_files.write_public(str(tmp_path / "public"), LARGE.public_key)
    private, public = key_files.read_private(tmp_path / "private"), key_files.read_public(str(tmp_path / "public"))
    assert isinstance(public, PublicKey)
    assert public == LARGE.public_key == private.public_key
    assert public.short_exponents
    assert private.decrypt(public.encrypt([3, -4])) == [3, -4]


def test_pai_15_only_the_owner_may_read_secrets_and_everybody_public_keys(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for kind in KINDS:
            write(kind, tmp_path / kind)
    finally:
        os.umask(before)
    modes = {kind: (tmp_path / kind).stat().st_mode & 0o777 for kind in KINDS}
    assert modes == {"public": 0o644, "threshold": 0o644, "private": 0o600, "share": 0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(KINDS)
    assert {path.stat().st_nlink for path in tmp_path.iterdir()} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_never_overwritten(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    for make in (lambda: path.write_text("mine"), path.mkdir, lambda: path.symlink_to("nowhere")):
        make()
        with pytest.raises(KeyFileError, match="exists, and a key file is never overwritten"):
            write(kind, path)
        assert [found.name for found in tmp_path.iterdir()] == ["key"]
        if path.is_symlink():
            assert not path.exists()
        elif path.is_file():
            assert path.read_text() == "mine"
            path.unlink()
        else:
            path.rmdir()


def test_a_name_that_is_taken_at_the_last_moment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    link = os.link

    def raced(source: Path, target: Path) -> None:
        path.write_text("somebody else's")
        link(source, target)

    monkeypatch.setattr(os, "link", raced)
    with pytest.raises(KeyFileError, match="exists"):
        write("private", path)
    assert path.read_text() == "somebody else's"
    assert [found.name for found in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("kind", KINDS)
def test_small_keys_are_neither_written_nor_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(kind, tmp_path / "key")
    for module in (ciphertext, key_files):
        monkeypatch.setattr(module, "SMALLEST_BITS", 2048)
    refused(kind, tmp_path / "key", "2048", "512")
    with pytest.raises(KeyFileError, match="512 bits hides nothing: must have at least 2048"):
        write(kind, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_pai_16_without_gmpy2_the_extra_to_install_is_named() -> None:
    code = "import sys; sys.modules['gmpy2'] = None; import hubbub; import hubbub.secagg.paillier"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith("ImportError: hubbub.secagg needs gmpy2: pip install 'hubbub[secagg]'")
