"""Kernels: C sources of ours that this machine's compiler builds when its owner asks, loaded from where nobody else writes.

Loading a library runs what is in it. So libraries lie in a folder of their own in the cache, and one is taken only where no
other user could have put it there or changed it: file and folders belong to this user or to root, and others cannot write to
them. Its name holds a digest of the source and of how it was compiled: a library of another version is not found. And each
process takes it only after it has answered rightly there.

Every kernel is optional. Nothing is built or loaded unless ``hubbub kernel`` was run once, and ``HUBBUB_KERNEL=off`` in the
environment leaves all of them alone.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hubbub import files
from hubbub.errors import ConfigError

__all__ = ["Gain", "Kernel", "folder", "least_microseconds", "remove"]

_FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC")
_NOT_BUILT = "not built"
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 120
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PROCESSORS = Path("/proc/cpuinfo")
# What a core is and can do, as it stands there on x86, and on Arm.
_TELLING = (("model name", "flags"), ("CPU implementer", "CPU variant", "CPU part", "Features"))


@dataclass(frozen=True)
class Gain:
    """What a kernel gains, in microseconds of CPU time.

    Args:
        what: One piece of work, as a user would call it.
        kernel: With the kernel.
        without: Without it.
    """

    what: str
    kernel: float
    without: float


@dataclass(frozen=True)
class Kernel:
    """A C source that is compiled on this machine when its owner asks, and used only where it answers rightly.

    Args:
        name: Of the file and on the command line: lower-case letters.
        source: A C file of the package, which includes no other file of ours.
        declare: Says the types of a library's functions. ``ConfigError`` where this processor lacks what they need.
        check: ``ConfigError`` where a library, declared, answers wrongly.
        flags: For the compiler, beside those that every kernel has.
        native: Compiled for exactly this processor: one of another model, with the same home, does not find it.
        machines: What ``platform.machine()`` says of those that it is for; all of them are Linux.
    """

    name: str
    source: Path
    declare: Callable[[ctypes.CDLL], None]
    check: Callable[[ctypes.CDLL], None]
    flags: tuple[str, ...] = ()
    native: bool = False
    machines: tuple[str, ...] = ("x86_64",)

    def library(self) -> ctypes.CDLL | None:
        """The library, if it may be used. Each process looks and checks once; a forked one has its parent's answer.

        Raises:
            ConfigError: ``HUBBUB_KERNEL`` is neither on nor off.
        """
        return None if _switched_off() else _loaded(self)[0]

    def in_use(self) -> ctypes.CDLL:
        """The library, for what cannot do without.

        Raises:
            ConfigError: There is none that may be used.
        """
        library = self.library()
        if library is None:
            raise ConfigError(f"the {self.name} kernel is to do this, and is {self.standing()}")
        return library

    def standing(self) -> str:
        """``in use: PATH``, or ``not built: …`` or ``not used: …`` with what to do about it.

        Raises:
            ConfigError: ``HUBBUB_KERNEL`` is neither on nor off.
        """
        if _switched_off():
            return "not used: HUBBUB_KERNEL is off"
        return _loaded(self)[1]

    def build(self) -> Path:
        """Compile and check it, and use it from now on: where it lies. What was there of it for this processor is replaced.

        Raises:
            ConfigError: It cannot be built here, or answers wrongly, or the folder is not safe; nothing is left of it.
        """
        compiler = self._compiler()
        place = folder().resolve()
        files.make_folder(place)
        _require_own(place)
        source, target = self.source.read_bytes(), self._target()
        which = _digest(compiler.encode(), _run([compiler, "--version"]))
        with tempfile.TemporaryDirectory(dir=place) as work:
            written, made = Path(work) / f"{self.name}.c", Path(work) / f"{self.name}.so"
            written.write_bytes(source)
            _run([compiler, *self._options(), "-o", str(made), str(written), *self.flags])
            self.check(self._opened(made))
            content = made.read_bytes()
        path = place / f"{target}-{self._version(source)}-{which}.so"
        files.write_atomic(path, content, mode=0o700)
        for old in set(place.glob(f"{target}-*.so")) - {path}:
            files.remove(old)
        self.forget()
        return path

    def could_be_built(self) -> bool:
        """Whether there is none, and this machine seems to have what it takes to build one."""
        try:
            self._compiler()
        except ConfigError:
            return False
        return _loaded(self)[1].startswith(_NOT_BUILT)

    def _compiler(self) -> str:
        """What would build it here.

        Raises:
            ConfigError: Nothing would.
        """
        if _switched_off():
            raise ConfigError(f"HUBBUB_KERNEL = 'off': the {self.name} kernel would not be used; unset it to build one")
        if sys.platform != "linux" or platform.machine() not in self.machines:
            raise ConfigError(
                f"this machine is {sys.platform} on {platform.machine()}: "
                f"the {self.name} kernel is for Linux on {' or '.join(self.machines)}"
            )
        return _compiler()

    def remove(self) -> list[Path]:
        """Delete every version of the library, of other processors', too; what was deleted."""
        return remove(self.name)

    def forget(self) -> None:
        """Look again when next asked."""
        _loaded.cache_clear()

    def _find(self) -> Path | None:
        """The library of this version, if it was built.

        Raises:
            ConfigError: Somebody else could have put it there.
        """
        place = folder().resolve()
        if sys.platform != "linux" or not place.is_dir():
            return None
        built = sorted(place.glob(f"{self._target()}-{self._version(self.source.read_bytes())}-*.so"))
        if not built:
            return None
        _require_own(place, built[0])
        return built[0]

    def _opened(self, path: Path) -> ctypes.CDLL:
        """The library in a file, with the types of its functions."""
        try:
            library = ctypes.CDLL(str(path))
            self.declare(library)
        except (OSError, AttributeError) as error:
            raise ConfigError(f"{path} does not load: {error}; build it again with 'hubbub kernel {self.name}'") from error
        return library

    def _options(self) -> tuple[str, ...]:
        return (*_FLAGS, "-march=native") if self.native else _FLAGS

    def _target(self) -> str:
        """Its name and what it was made for."""
        return f"{self.name}-{platform.machine()}{f'-{_processor()}' if self.native else ''}"

    def _version(self, source: bytes) -> str:
        return _digest(source, *(option.encode() for option in (*self._options(), *self.flags)))


def folder() -> Path:
    """Where the libraries lie."""
    return files.cache_folder() / "kernel"


def remove(name: str) -> list[Path]:
    """Delete every version of the kernel of that name; what was deleted."""
    gone = sorted(folder().glob(f"{name}-*.so"))
    for path in gone:
        files.remove(path)
    _loaded.cache_clear()
    return gone


def least_microseconds(call: Callable[[], object], *, repeats: int = 3) -> float:
    """The least CPU time that a call took, of so many, in microseconds."""
    spent = []
    for _ in range(repeats):
        begin = time.process_time_ns()
        call()
        spent.append(time.process_time_ns() - begin)
    return min(spent) / 1000


@functools.cache
def _loaded(kernel: Kernel) -> tuple[ctypes.CDLL | None, str]:
    """The library, if there is one that may be used, and what to say of it."""
    try:
        path = kernel._find()
        if path is None:
            return None, f"{_NOT_BUILT}: 'hubbub kernel {kernel.name}' builds it, where the machine can have it"
        library = kernel._opened(path)
        kernel.check(library)
    except (ConfigError, OSError, RuntimeError) as error:
        # No home, or no way into it, is a reason to do without, too.
        return None, f"not used: {error}"
    return library, f"in use: {path}"


def _switched_off() -> bool:
    switch = os.environ.get("HUBBUB_KERNEL", "on")
    if switch not in ("on", "off"):
        raise ConfigError(f"HUBBUB_KERNEL = {switch!r}: must be on or off")
    return switch == "off"


def _compiler() -> str:
    named = os.environ.get("CC")
    compiler = next(filter(None, map(shutil.which, [named] if named else _COMPILERS)), None)
    if compiler is None:
        raise ConfigError(f"no C compiler: looked for {named or ', '.join(_COMPILERS)}; install one, or name it in CC")
    return compiler


def _processor() -> str:
    """A digest of the processor's model and of what it can do."""
    told: dict[str, str] = {}
    with _PROCESSORS.open() as lines:
        # Up to the first empty line: the first core.
        for line in iter(lambda: lines.readline().rstrip("\n"), ""):
            name, _, value = line.partition(":")
            told[name.strip()] = value.strip()
    for names in _TELLING:
        if all(told.get(name) for name in names):
            return _digest(*(told[name].encode() for name in names))
    raise ConfigError(f"{_PROCESSORS} does not say what this processor is and can do: no kernel is made for it alone")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()[:16]


def _run(command: list[str]) -> bytes:
    """What a command prints."""
    try:
        done = subprocess.run(  # noqa: S603 # this machine's compiler, when its owner asks for it
            command, capture_output=True, check=True, timeout=_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        raise ConfigError(
            f"{command[0]} cannot build the kernel: {told[:500] or error}; name another compiler in CC"
        ) from error
    return done.stdout


def _require_own(place: Path, *files_in_it: Path) -> None:
    """Refuse a folder, or files in it, that another user could have changed.

    Args:
        place: Without symbolic links, so that what is checked is what is loaded.
        files_in_it: Likewise.
    """
    for path in (*files_in_it, place, *place.parents):
        facts = os.lstat(path)
        # In a sticky folder, such as /tmp, nobody moves what belongs to others.
        sticky = bool(facts.st_mode & stat.S_ISVTX) and path in place.parents
        if facts.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"{path} belongs to another user: no kernel is loaded from there; set HUBBUB_CACHE to a folder of yours"
            )
        if stat.S_ISLNK(facts.st_mode) or (facts.st_mode & _OTHERS_WRITE and not sticky):
            raise ConfigError(
                f"others can change {path}: no kernel is loaded from there; remove it with 'hubbub kernel --remove', "
                f"type 'chmod go-w' for the folder, then build it again"
            )
