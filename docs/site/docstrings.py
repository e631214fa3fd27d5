"""Docstrings as the site shows them: what is written for a reader of the source, in Markdown."""

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`~?\.?([^`]+)`")
_LITERAL = re.compile(r"^( *)(\S.*)?::$", re.MULTILINE)
_TABLE = re.compile(r"^=+(?: +=+)+$.*^=+(?: +=+)+$", re.MULTILINE | re.DOTALL)


class Roles(Extension):
    """Roles as links, examples as code, tables as they stand."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            text = _TABLE.sub(lambda match: f"```text\n{match[0]}\n```", obj.docstring.value)
            text = _LITERAL.sub(lambda match: f"{match[1]}{match[2] or ''}".rstrip(), text)
            text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
            obj.docstring.value = _ROLE.sub(lambda match: _link(match[1], obj), text)


def _link(name: str, obj: Object) -> str:
    try:
        path = obj.resolve(name)
    except Exception:  # noqa: BLE001 # griffe has several errors for a name that it does not know
        path = name
    return f'<autoref identifier="{path}" optional><code>{name}</code></autoref>'
