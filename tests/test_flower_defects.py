"""What a private strategy must do, put to ours, and to Flower's own classes, which were seen to fail."""

from collections.abc import Callable
from importlib.metadata import version

import pytest

from flower_arms import FLOWERS, OURS
from flower_defects import QUESTIONS, DefectError, Question

# Versions of Flower that were seen to fail each check.
SEEN_TO_FAIL = ("1.41.0", "1.42.0")
NAMES = [question.check.__name__.removeprefix("check_") for question in QUESTIONS]
every_question = pytest.mark.parametrize("question", QUESTIONS, ids=NAMES)


pytestmark = pytest.mark.usefixtures("quiet")


@every_question
def test_ours_does_what_is_asked(question: Question) -> None:
    question.check(OURS)


@pytest.mark.slow
@every_question
def test_a_check_fails_where_flower_has_the_defect(question: Question, record_property: Callable[[str, object], None]) -> None:
    """Of versions that come it only notes what they do: that they mend something must not fail this."""
    try:
        record_property("observed", f"mended: {question.check(FLOWERS)}")
    except DefectError as defect:
        record_property("observed", str(defect))
    else:
        assert version("flwr") not in SEEN_TO_FAIL, f"{question.asked}: the check no longer sees the defect"
