"""What mkdocs calls while it builds the site: pages that are made, and links that lead out of docs/."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import api
import bibliography
import command_line
import notebooks
import repository

# Its many names of tests would come first in whatever one searches for.
LISTS = "reliability.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made: reference, command line, bibliography, and what is linked outside docs/."""
    made = {**api.pages(), "command-line.md": command_line.page(), "bibliography.md": bibliography.page()}
    for notebook in notebooks.FOLDER.glob("*.ipynb"):
        made[repository.page_of(f"notebooks/{notebook.name}")] = notebooks.page(notebook)
    waiting = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    waiting += [(page, "") for page in repository.BESIDE]
    seen = set()
    while waiting:
        origin, text = waiting.pop()
        if origin in seen:
            continue
        seen.add(origin)
        if not origin.startswith("docs/"):
            text = (repository.ROOT / origin).read_text(encoding="utf-8")
            made[repository.page_of(origin)] = repository.shown(origin)
        if origin.endswith(".md"):
            waiting += [(path, "") for path in _outside(origin, text)]
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def _outside(origin: str, text: str) -> list[str]:
    """The files of the repository to which a page links and which are no page of docs/ or of the reference."""
    found = []
    for target in repository.targets(text):
        path = (repository.ROOT / origin).parent.joinpath(target).resolve()
        path = path / "README.md" if path.is_dir() else path
        if not path.is_file() or not path.is_relative_to(repository.ROOT):
            continue
        name = path.relative_to(repository.ROOT).as_posix()
        if not name.startswith("docs/") and not name.endswith(".ipynb") and not repository.page_of(name).startswith("api/"):
            found.append(name)
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that lead out of docs/ lead to the pages made for them."""
    if page.file.src_uri == LISTS:
        page.meta["search"] = {"boost": 0.2}
    if page.file.generated_by:
        return markdown
    return repository.linked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
