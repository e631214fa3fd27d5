"""A compiled kernel is loaded only from where nobody else could have put it, and only where it answers rightly.

Tried on a kernel of one function, which any processor can run. Where there is no C compiler, a file stands in its place.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub import compiled, files
from hubbub.compiled import Kernel
from hubbub.errors import ConfigError
from kernel_caches import kernels_in

SOURCE = "int hubbub_answer(void) { return ANSWER; }\n"
MODEL = "model name\t: A Processor 3000\nflags\t\t: fpu vme avx2\n\nprocessor\t: 1\nmodel name\t: Another\nflags\t\t: fpu\n"
ARM = "Features\t: fp asimd\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n\nCPU part\t: 0xd03\n"
needs_a_compiler = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not shutil.which("cc"), reason="no C compiler for x86_64"
)


def declare(library: ctypes.CDLL) -> None:
    library.hubbub_answer.restype = ctypes.c_int
    if library.hubbub_answer() < 0:
        raise ConfigError("this processor has no answer")


def check(library: ctypes.CDLL) -> None:
    if library.hubbub_answer() != 42:
        raise ConfigError("the kernel answers wrongly")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.delenv("CC", raising=False)
    with kernels_in(folder, monkeypatch):
        yield folder


def kernel(tmp_path: Path, source: str = SOURCE, **fields: object) -> Kernel:
    """A kernel with an answer, by default the right one."""
    path = tmp_path / f"{hashlib.sha256(source.encode()).hexdigest()[:8]}.c"
    path.write_text(source)
    given = {"name": "small", "source": path, "declare": declare, "check": check, "flags": ("-DANSWER=42",), **fields}
    return Kernel(**given)  # type: ignore[arg-type]


def planted(small: Kernel, content: bytes = b"no library at all") -> Path:
    """A file where the library of this version is looked for."""
    files.make_folder(compiled.folder())
    path = compiled.folder() / f"{small._target()}-{small._version(small.source.read_bytes())}-0.so"
    path.write_bytes(content)
    path.chmod(0o700)
    return path


def refusal(small: Kernel) -> str:
    """Why nothing is used; and nothing is."""
    small.forget()
    assert small.library() is None
    with pytest.raises(ConfigError) as refused:
        small.in_use()
    assert str(refused.value) == f"the small kernel is to do this, and is {small.standing()}"
    return small.standing()


# Building, and using what was built.


@needs_a_compiler
def test_what_is_built_is_used_from_then_on(tmp_path: Path, cache: Path) -> None:
    small = kernel(tmp_path)
    assert refusal(small) == "not built: 'hubbub kernel small' builds it, where the machine can have it"
    path = small.build()
    assert (path.parent, path.stat().st_mode & 0o777) == (cache / "kernel", 0o700)
    assert (cache / "kernel").stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]
    opened = small.library()
    assert opened is not None
    assert opened.hubbub_answer() == 42
    assert small.in_use() is opened
    assert small.standing() == f"in use: {path}"
    # Once in a process: what others do to the file now is of no account.
    path.chmod(0o777)
    assert small.library() is opened
    assert f"others can change {path}" in refusal(small)


@needs_a_compiler
def test_another_process_looks_and_checks_for_itself(tmp_path: Path, cache: Path) -> None:
    small = kernel(tmp_path)
    code = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]!r}\n"
        "from pathlib import Path\nimport test_compiled\n"
        f"small = test_compiled.kernel(Path({str(tmp_path)!r}))\nprint(small.standing())\n"
    )
    path = small.build()
    used = f"in use: {path}"
    assert small.standing() == used
    for mode, told in ((0o700, used), (0o707, f"not used: others can change {path}")):
        path.chmod(mode)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(told)
        assert small.standing() == used


@needs_a_compiler
def test_a_kernel_that_answers_wrongly_is_not_kept(tmp_path: Path, cache: Path) -> None:
    wrong = kernel(tmp_path, flags=("-DANSWER=41",))
    with pytest.raises(ConfigError, match="answers wrongly"):
        wrong.build()
    assert list(cache.glob("kernel/*")) == []
    planted(wrong, library(wrong, tmp_path))
    assert refusal(wrong) == "not used: the kernel answers wrongly"


def library(small: Kernel, tmp_path: Path) -> bytes:
    """What the compiler makes of it, unchecked."""
    made = tmp_path / "unchecked.so"
    subprocess.run(["cc", "-shared", "-fPIC", *small.flags, "-o", made, small.source], check=True)
    return made.read_bytes()


@needs_a_compiler
def test_a_processor_that_lacks_something_is_told_so(tmp_path: Path, cache: Path) -> None:
    lacking = kernel(tmp_path, flags=("-DANSWER=-1",))
    with pytest.raises(ConfigError, match="this processor has no answer"):
        lacking.build()
    planted(lacking, library(lacking, tmp_path))
    assert refusal(lacking) == "not used: this processor has no answer"


@needs_a_compiler
def test_a_library_without_its_functions_is_not_used(tmp_path: Path, cache: Path) -> None:
    hollow = kernel(tmp_path, "int nothing;\n")
    with pytest.raises(ConfigError, match=r"does not load: .*hubbub_answer; build it again with 'hubbub kernel small'"):
        hollow.build()
    assert list(cache.glob("kernel/*")) == []


@needs_a_compiler
def test_a_new_version_takes_the_place_of_the_old_one(tmp_path: Path, cache: Path) -> None:
    old, beside = kernel(tmp_path), kernel(tmp_path, name="smaller")
    others = beside.build()
    assert old.build().exists()
    new = kernel(tmp_path, SOURCE + "int more;\n")
    assert refusal(new).startswith("not built")
    path = new.build()
    assert sorted(cache.glob("kernel/*")) == sorted([path, others])
    assert refusal(old).startswith("not built")
    assert new.remove() == [path]
    assert (new.standing()[:9], beside.standing()) == ("not built", f"in use: {others}")
    assert compiled.remove("smaller") == [others]
    assert beside.standing().startswith("not built")
    assert new.remove() == []


@needs_a_compiler
def test_other_flags_are_another_version(tmp_path: Path, cache: Path) -> None:
    one, two = kernel(tmp_path), kernel(tmp_path, flags=("-DANSWER=42", "-ffp-contract=off"))
    path = one.build()
    assert refusal(two).startswith("not built")
    assert one.standing() == f"in use: {path}"


@needs_a_compiler
def test_a_kernel_for_this_processor_is_not_found_on_another(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "cpuinfo"
    monkeypatch.setattr(compiled, "_PROCESSORS", told)
    own, general = kernel(tmp_path, native=True), kernel(tmp_path, name="general")
    built = {}
    general.build()
    arms = ARM, ARM.replace("asimd", "asimd sve"), ARM.replace("0xd0c", "0xd40")
    for content in (MODEL, MODEL.replace("3000", "2000"), MODEL.replace("avx2", "avx2 avx512f"), *arms):
        told.write_text(content)
        assert refusal(own).startswith("not built")
        assert general.standing().startswith("in use")
        built[content] = own.build()
        # What a second core is has no say.
        told.write_text(content.replace("Another", "A Third").replace("0xd03", "0xd04"))
        own.forget()
        assert own.standing() == f"in use: {built[content]}"
    # Nobody's library is lost, and all are removed together.
    assert len(set(built.values())) == 6
    for content, path in built.items():
        told.write_text(content)
        own.forget()
        assert own.standing() == f"in use: {path}"
    assert own.remove() == sorted(built.values())


@pytest.mark.parametrize(("told", "missing"), [(MODEL, "model name"), (MODEL, "flags"), (ARM, "CPU part"), (ARM, "Features")])
def test_a_processor_that_does_not_say_what_it_is_gets_no_kernel_of_its_own(
    told: str, missing: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(told.replace(missing, "other", 1))
    monkeypatch.setattr(compiled, "_PROCESSORS", tmp_path / "cpuinfo")
    own = kernel(tmp_path, native=True)
    with pytest.raises(ConfigError, match=r"does not say what this processor is|no C compiler|is for Linux"):
        own.build()
    files.make_folder(compiled.folder())
    assert sys.platform != "linux" or "does not say what this processor is and can do" in refusal(own)


@needs_a_compiler
@pytest.mark.parametrize("native", [True, False])
def test_the_compiler_is_told_for_which_processor_and_the_kernels_own_flags(
    native: bool, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spying = tmp_path / "spying"
    spying.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\nexec cc "$@"\n')
    spying.chmod(0o700)
    monkeypatch.setenv("CC", str(spying))
    kernel(tmp_path, native=native).build()
    version, told = (tmp_path / "told").read_text().splitlines()
    assert version == "--version"
    words = told.split()
    assert words[:4] == ["-O3", "-std=c11", "-shared", "-fPIC"]
    assert ("-march=native" in words) == native
    assert words[-1] == "-DANSWER=42"


def test_a_machine_that_it_is_not_for_is_named(tmp_path: Path, cache: Path) -> None:
    foreign = kernel(tmp_path, machines=("pdp11", "vax"))
    with pytest.raises(ConfigError, match=r"this machine is \w+ on \w+: the small kernel is for Linux on pdp11 or vax"):
        foreign.build()
    assert list(cache.iterdir()) == []


def test_no_compiler_and_a_compiler_that_fails_are_named(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho out of order >&2; exit 1\n")
    broken.chmod(0o700)
    for compiler, words in (
        ("no-such-compiler", "no C compiler: looked for no-such-compiler"),
        (str(broken), "broken cannot build the kernel: out of order; name another compiler in CC"),
    ):
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(ConfigError, match=f"{words}|the small kernel is for Linux"):
            kernel(tmp_path).build()
    assert list(cache.glob("kernel/*")) == []


def test_the_switch_is_on_or_off_and_nothing_else(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = kernel(tmp_path)
    monkeypatch.setenv("HUBBUB_KERNEL", "off")
    assert small.library() is None
    assert small.standing() == "not used: HUBBUB_KERNEL is off"
    with pytest.raises(ConfigError, match="HUBBUB_KERNEL = 'off': the small kernel would not be used; unset it to build one"):
        small.build()
    monkeypatch.setenv("HUBBUB_KERNEL", "no")
    for asked in (small.library, small.standing, small.build):
        with pytest.raises(ConfigError, match="HUBBUB_KERNEL = 'no': must be on or off"):
            asked()


# Where it comes from.


def test_a_file_that_is_no_library_is_not_used(tmp_path: Path, cache: Path) -> None:
    small = kernel(tmp_path)
    planted(small)
    assert "does not load" in refusal(small)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_library_that_others_can_write_is_not_loaded(mode: int, tmp_path: Path, cache: Path) -> None:
    small = kernel(tmp_path)
    path = planted(small)
    path.chmod(mode)
    assert f"others can change {path}" in refusal(small)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_library_in_a_folder_that_others_can_write_is_not_loaded(mode: int, tmp_path: Path, cache: Path) -> None:
    small = kernel(tmp_path)
    path = planted(small)
    path.parent.chmod(mode)
    assert f"others can change {path.parent}: no kernel is loaded from there" in refusal(small)
    with pytest.raises(ConfigError, match=r"others can change|for Linux|no C compiler"):
        small.build()


def test_a_folder_further_up_that_others_can_write_is_refused_unless_it_is_sticky(tmp_path: Path, cache: Path) -> None:
    small = kernel(tmp_path)
    planted(small)
    cache.chmod(0o777)
    assert f"others can change {cache}" in refusal(small)
    cache.chmod(0o1777)
    assert "does not load" in refusal(small)


def test_a_library_of_another_user_is_not_loaded(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = kernel(tmp_path)
    path = planted(small)
    if os.geteuid() == 0:
        os.chown(path, 4321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert "belongs to another user" in refusal(small)


def test_a_link_in_place_of_the_library_is_not_followed(tmp_path: Path, cache: Path) -> None:
    small = kernel(tmp_path)
    path = planted(small)
    path.rename(cache / "elsewhere.so")
    path.symlink_to(cache / "elsewhere.so")
    assert f"others can change {path}" in refusal(small)


def test_what_others_could_change_behind_a_link_is_refused_too(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, link = kernel(tmp_path), tmp_path / "link"
    planted(small)
    link.symlink_to(cache)
    monkeypatch.setenv("HUBBUB_CACHE", str(link))
    assert "does not load" in refusal(small)
    cache.chmod(0o777)
    assert f"others can change {cache}" in refusal(small)


def test_without_a_home_one_does_without(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HUBBUB_CACHE")
    monkeypatch.setattr(Path, "home", homeless)
    assert refusal(kernel(tmp_path)) == "not used: Could not determine home directory."


# Small things.


def test_the_digest_of_a_library_tells_its_parts_apart() -> None:
    assert compiled._digest(b"ab", b"c") != compiled._digest(b"a", b"bc")
    lengths = b"".join(len(part).to_bytes(8, "big") + part for part in (b"ab", b"c"))
    assert compiled._digest(b"ab", b"c") == hashlib.sha256(lengths).hexdigest()[:16]


def test_the_least_of_several_calls_is_told_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 7_000, 10_000, 12_500, 20_000, 29_000])
    monkeypatch.setattr(compiled.time, "process_time_ns", lambda: next(clock))
    calls: list[None] = []
    assert compiled.least_microseconds(lambda: calls.append(None)) == 2.5
    assert len(calls) == 3


def test_looking_for_a_kernel_loads_no_library_of_others() -> None:
    code = "import sys, hubbub.compiled; print(*{'numpy', 'torch', 'gmpy2'} & {name.partition('.')[0] for name in sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
