"""``hubbub doctor``: a check of this machine."""

import os
import platform
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hubbub._util import __version__
from hubbub.cli.output import console, print_json, say

_LIBRARIES = ("torch", "numpy", "scipy", "safetensors", "cryptography")
_OPTIONAL = {"flwr": "pip install 'hubbub[flower]' for federations", "gmpy2": "pip install 'hubbub[secagg]' for encrypted sums"}
# Seconds of a synced append: below, it cannot have reached a disk; above, it slows each round.
_QUICKEST_SYNC, _SLOW_SYNC = 2e-6, 0.1


# The result of one check: its name, "good", "note" or "bad", and a text.
_Finding = tuple[str, str, str]


def check(*, as_json: bool) -> int:
    """Print what was found; returns the exit status."""
    findings = list[_Finding]()
    for look in (_versions, _device, _randomness, _sampler, _disk, _encryption):
        try:
            findings += list(look())
        except Exception as error:  # noqa: BLE001 # that it fails is the finding, and the others still run
            findings.append((look.__name__.strip("_"), "bad", f"{type(error).__name__}: {error}"))
    bad = sum(state == "bad" for _, state, _ in findings)
    if as_json:
        print_json({"ok": not bad, "findings": [dict(zip(("name", "state", "text"), one, strict=True)) for one in findings]})
        return min(bad, 1)
    screen = console()
    width = max(len(name) for name, _, _ in findings)
    for name, state, text in findings:
        label = f"{state:<5} {name:<{width}} "
        say(screen, label + text, indent=len(label))
    say(screen, f"{bad} of {len(findings)} findings are bad." if bad else "All is well.")
    return min(bad, 1)


def _versions() -> Iterator[_Finding]:
    yield "hubbub", "good", f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    yield "libraries", "good", ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    for name, how in _OPTIONAL.items():
        try:
            yield name, "good", version(name)
        except PackageNotFoundError:
            yield name, "note", f"not installed; {how}"


def _device() -> Iterator[_Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "processor", "good", f"{cores} core{'s' if cores != 1 else ''}; training takes one thread of each process"
    if torch.cuda.is_available():
        yield "CUDA", "good", f"{torch.cuda.get_device_name()}: training.device = 'cuda'"
    else:
        yield "CUDA", "note", "none; training.device = 'cpu'"


def _randomness() -> Iterator[_Finding]:
    """Keys come from the operating system and must not repeat."""
    keys = {os.urandom(32) for _ in range(1000)}
    if len(keys) < 1000 or any(len(set(key)) < 8 for key in keys):
        yield "randomness", "bad", "os.urandom repeats itself: no noise made here is secret"
        return
    yield "randomness", "good", "os.urandom: 1,000 keys of 32 bytes, all different"


def _sampler() -> Iterator[_Finding]:
    """Rows of noise are drawn again from their keys: a machine that resumes a run must draw the same ones."""
    import torch

    from hubbub.noise import SecureSource
    from hubbub.noise.sources import sampler

    row = torch.empty(1 << 16, dtype=torch.float64)
    SecureSource(bytes(32)).segments(0, 0)(row)
    deviation = float(row.std())
    # Of 65,536 numbers: ten standard errors.
    good = abs(deviation - 1) < 10 / (2 * len(row)) ** 0.5
    yield "sampler", "good" if good else "bad", f"fingerprint {sampler()[:16]}, deviation {deviation:.4f} of a row of z"


def _disk() -> Iterator[_Finding]:
    """A privacy cost must be on disk before its noise is drawn."""
    with tempfile.TemporaryDirectory(dir=Path.cwd() if os.access(Path.cwd(), os.W_OK) else None) as folder:
        file = Path(folder, "ledger")
        with file.open("ab") as opened:
            times = []
            for _ in range(20):
                begun = time.perf_counter()
                opened.write(b"x" * 1000)
                opened.flush()
                os.fsync(opened.fileno())
                times.append(time.perf_counter() - begun)
    median = sorted(times)[len(times) // 2]
    words = f"{1000 * median:.2f} ms to sync a record here; a round takes two, and two files"
    if median < _QUICKEST_SYNC:
        yield "disk", "bad", f"{words}: so fast that nothing can have reached a disk; use another file system"
    else:
        yield "disk", "note" if median > _SLOW_SYNC else "good", words


def _encryption() -> Iterator[_Finding]:
    try:
        version("gmpy2")
    except PackageNotFoundError:
        return
    from hubbub.secagg import paillier, textbook

    # The regression of phe's ``paillier_test.py``, and arithmetic under a fresh key.
    published = textbook.encrypt(126869, 10100, 74384) == 935906717 and textbook.decrypt(293, 433, 935906717) == 10100
    private = paillier.generate(2048)
    sums = private.public_key.encrypt([1, -(2**1000)]) * -3 + 17
    if published and private.decrypt(sums) == [14, 3 * 2**1000 + 17]:
        yield "encryption", "good", "a published answer comes out, and sums under a fresh key are right"
    else:
        yield "encryption", "bad", "Paillier computes wrongly with this gmpy2: encrypt nothing on this machine"
