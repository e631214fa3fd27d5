"""Each mutant of the source is noticed by the test that is named for it, and the package as it is by none of them."""

from collections.abc import Iterator

import pytest

from mutants import ALL, Mutant
from mutants.laboratory import Laboratory, changed


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with Laboratory(tmp_path_factory.mktemp("mutants")) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ALL, ids=[mutant.what for mutant in ALL])
def test_a_mutant_is_noticed_by_its_test(mutant: Mutant, laboratory: Laboratory) -> None:
    outcome, output = laboratory.outcome(mutant, mutant.test)
    assert mutant.noticed(outcome, output), f"{outcome}\n{output}"


@pytest.mark.slow
@pytest.mark.parametrize("test", sorted({mutant.test for mutant in ALL}))
def test_the_package_as_it_is_passes_the_same_test(test: str, laboratory: Laboratory) -> None:
    outcome, output = laboratory.outcome(None, test)
    assert outcome == "passed", f"{outcome}\n{output}"


def test_mutants_have_names_of_their_own_and_change_what_is_there() -> None:
    names = [mutant.what for mutant in ALL]
    assert len(set(names)) == len(names)
    for mutant in ALL:
        file, text = changed(mutant)
        compile(text, str(file), "exec")
