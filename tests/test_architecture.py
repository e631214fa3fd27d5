"""ARCHITECTURE.md: its picture is that of the import contract, and every file that it names is there."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def test_the_picture_is_drawn_from_the_import_contract() -> None:
    assert runpy.run_path(str(ROOT / "scripts" / "picture.py"))["drawn"](PAGE) == PAGE, "run `python scripts/picture.py`"


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE)) - {
        "tests/",
        "mechanism/strategies/mine.py",
        "factorization/mine.py",
    }
    assert len(named) > 25
    missing = [name for name in named if not any((ROOT / base / name).exists() for base in ("src/hubbub", "."))]
    assert missing == []
