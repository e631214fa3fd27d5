"""Every case of the catalogue has a test named by it, each of the worst a mutant that it kills, and the page says which."""

from catalogue import CASES, PAGE, named_tests, page
from mutants import ALL

KNOWN = {case.id for case in CASES}


def test_a_case_has_a_test_named_by_it_and_the_worst_a_mutant() -> None:
    assert not {case.id: case.lacks for case in CASES if case.lacks}


def test_the_catalogue_is_complete_and_knows_each_name_and_mutants_name_tests_that_exist() -> None:
    assert len(KNOWN) == len(CASES) == 157
    assert named_tests().keys() <= KNOWN
    named = {mutant.test.partition("[")[0] for mutant in ALL}
    assert named <= {test for tests in named_tests().values() for test in tests}


def test_the_page_says_which_and_where() -> None:
    assert page() == PAGE.read_text(), "run `python tests/catalogue.py`"
