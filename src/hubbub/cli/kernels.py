"""``hubbub kernel``: the compiled kernels of this machine, built, checked, measured or removed."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hubbub import compiled
from hubbub.cli.output import console, print_json, say
from hubbub.compiled import Gain, Kernel
from hubbub.errors import ConfigError

__all__ = ["NAMES", "build", "remove", "standings"]

# Each module has a ``KERNEL`` of that name, and says by ``measured()`` what it gains.
_MODULES = {
    "encryption": "hubbub.secagg.kernel",
    "noise": "hubbub.noise.rows",
}
NAMES = tuple(_MODULES)


@dataclass(frozen=True)
class _Made:
    """What became of a kernel that was asked for: where it lies and what it gains, or why there is none."""

    name: str
    path: Path | None
    gains: list[Gain]
    refusal: str | None


def build(names: list[str], *, as_json: bool) -> int:
    """Build kernels, and print what each gains; returns the status, 1 where none was built.

    Args:
        names: Some of ``NAMES``; none for all.
        as_json: As one JSON object.

    Raises:
        ValueError: There is no kernel of such a name.
    """
    made = [_made(name) for name in _asked(names)]
    status = int(all(one.path is None for one in made))
    if as_json:
        print_json({"kernels": [_fields(one) for one in made]})
        return status
    screen = console()
    for one in made:
        say(screen, f"Wrote {one.path}" if one.path else f"No {one.name} kernel: {one.refusal}")
        for gain in one.gains:
            ratio = gain.without / gain.kernel
            say(screen, f"  {gain.what}: {gain.kernel:,.1f} µs, {gain.without:,.1f} µs without, {ratio:.1f} times as fast")
    if not status:
        say(screen, "What was written is used from now on wherever it is faster; HUBBUB_KERNEL=off switches it off.")
    return status


def remove(names: list[str], *, as_json: bool) -> None:
    """Delete kernels, in all their versions.

    Args:
        names: Some of ``NAMES``; none for all.
        as_json: As one JSON object.

    Raises:
        ValueError: There is no kernel of such a name.
    """
    gone = [str(path) for name in _asked(names) for path in compiled.remove(name)]
    if as_json:
        print_json({"removed": gone})
        return
    for path in gone:
        say(console(), f"Removed {path}")
    if not gone:
        say(console(), f"There is none in {compiled.folder()}")


def standings() -> Iterator[tuple[str, str]]:
    """The name of each kernel that the libraries installed here allow, and whether it is used, and if not, why."""
    for name, module in _MODULES.items():
        try:
            kernel: Kernel = importlib.import_module(module).KERNEL
        except ImportError:
            continue
        yield name, kernel.standing()


def _asked(names: list[str]) -> list[str]:
    from hubbub._checks import one_of

    return [one_of("kernel", name, NAMES) for name in dict.fromkeys(names)] or list(NAMES)


def _made(name: str) -> _Made:
    try:
        module = importlib.import_module(_MODULES[name])
        path: Path = module.KERNEL.build()
        return _Made(name, path, module.measured(), None)
    except (ConfigError, ImportError, OSError) as error:
        # One that cannot be built is no reason to do without the others.
        return _Made(name, None, [], str(error))


def _fields(one: _Made) -> dict[str, object]:
    gains = [{"what": gain.what, "kernel_us": gain.kernel, "without_us": gain.without} for gain in one.gains]
    return {"name": one.name, "path": one.path and str(one.path), "gains": gains, "refusal": one.refusal}
