"""Where a file of the repository stands on the site, and links from one to another."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
# The packages of which a user imports names, in the order in which a reader meets them: each has a page in the reference.
PACKAGES = (
    *("mechanism", "mechanism.strategies", "mechanism.gaussian", "accounting", "factorization", "noise", "ledger"),
    *("training", "flower", "secagg", "audit", "verification", "datasets", "models"),
)
# Pages that live beside docs/, by the name that they have on the site.
BESIDE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".bib": "bibtex", ".c": "c"}


def reference_page(path: str) -> str | None:
    """The page of the reference for a source file of a package, if its package has one."""
    inside = path.removeprefix("src/hubbub/").replace("/", ".")
    found = [package for package in PACKAGES if inside.startswith(f"{package}.") and path.endswith(".py")]
    return f"api/hubbub.{max(found, key=len)}.md" if found else None


def page_of(path: str) -> str:
    """The page of the site for a file or folder of the repository, by its path in the repository.

    Raises:
        FileNotFoundError: There is no such file.
    """
    file = ROOT / path
    if not file.exists():
        raise FileNotFoundError(path)
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in BESIDE:
        return BESIDE[path]
    if file.is_dir():
        return page_of(posixpath.join(path, "README.md"))
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    if path.startswith("src/hubbub/") and (page := reference_page(path)):
        return page
    return f"files/{path}.md"


def targets(text: str) -> set[str]:
    """The relative links of a page, without their anchors; those in code are none."""
    return set(_LINK.findall(_FENCE.sub("", text)))


def linked(text: str, origin: str, page: str) -> str:
    """The text with its relative links as they must be on the site.

    Args:
        text: Markdown.
        origin: The path of the page in the repository, to which its links are relative.
        page: The page of the site on which the text stands.
    """

    def moved(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[1]))
        try:
            return posixpath.relpath(page_of(path), posixpath.dirname(page) or ".")
        except FileNotFoundError:
            # A page that the site makes, such as the reference; mkdocs says where there is none.
            return match[1]

    fences = list(_FENCE.finditer(text))
    ends = [0, *(fence.end() for fence in fences)]
    starts = [*(fence.start() for fence in fences), len(text)]
    proses = [_LINK.sub(moved, text[start:end]) for start, end in zip(ends, starts, strict=True)]
    codes = [fence.group() for fence in fences]
    return "".join(part for pair in zip(proses, [*codes, ""], strict=True) for part in pair)


def shown(path: str) -> str:
    """A page for a file of the repository: itself, where it is text in Markdown, or as code."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return linked(text, path, page_of(path))
    return f"# {posixpath.basename(path)}\n\n`{path}`\n\n````{_LANGUAGES.get(Path(path).suffix, 'text')}\n{text}````\n"
