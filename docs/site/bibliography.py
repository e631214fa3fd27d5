"""The page of the literature, from the file that ``hubbub cite`` reads."""

import re
import unicodedata

from repository import SOURCE

FILE = SOURCE / "hubbub" / "report" / "templates" / "references.bib"
# Marks in front of a letter, and what they make of it.
_MARKS = {'"': "\u0308", "'": "\u0301", "`": "\u0300", "~": "\u0303", "v": "\u030c", "c": "\u0327"}


def page() -> str:
    """Markdown: the publications, newest first, each with its key in BibTeX."""
    entries = sorted(_entries(), key=lambda entry: (-int(entry["year"]), entry["author"]))
    lines = [_line(entry) for entry in entries]
    return _HEAD + "\n".join(lines) + "\n\n## As BibTeX\n\n````bibtex\n" + FILE.read_text(encoding="utf-8").strip() + "\n````\n"


_HEAD = """# Bibliography

What hubbub relies on. `hubbub cite RUN` prints the entries that one run relies on, and no others; docstrings name theorem and
equation. To cite the program itself take `CITATION.cff`.

"""


def _entries() -> list[dict[str, str]]:
    text = FILE.read_text(encoding="utf-8")
    found = []
    for kind, key, body in re.findall(r"^@(\w+)\{([^,]+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        fields = dict(re.findall(r"^\s*(\w+)\s*=\s*\{(.*)\},?\s*$", body, re.MULTILINE))
        found.append({"kind": kind, "key": key, **{name: _plain(value) for name, value in fields.items()}})
    return found


def _plain(text: str) -> str:
    def letter(match: re.Match[str]) -> str:
        return unicodedata.normalize("NFC", match[2] + _MARKS[match[1]])

    text = re.sub(r"\\([\"'`~]|[vc](?=\{))\{?(\w)\}?", letter, text)
    return text.replace("{", "").replace("}", "").replace("--", "–").replace("~", " ")


def _line(entry: dict[str, str]) -> str:
    people = [" ".join(reversed(name.split(", "))) for name in entry["author"].split(" and ")]
    named = [person for person in people if person != "others"]
    authors = ", ".join(named[:3]) + (" and others" if len(people) > len(named[:3]) else "")
    title = f"[{entry['title']}]({entry['url']})" if "url" in entry else entry["title"]
    place = entry.get("booktitle") or entry.get("journal") or entry.get("howpublished") or entry.get("institution") or ""
    return f"* {authors}: {title}. {place + ', ' if place else ''}{entry['year']}. `{entry['key']}`"
