"""Pages as a browser sees them: headless Chromium, where there is one."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

# What the page tells of itself once it is laid out: what it asked for, what is wider than the window, how it is coloured.
PROBE = """<script>
addEventListener("load", () => {
  const wide = document.documentElement.clientWidth;
  const beyond = e => !e.closest(".scroll, svg") && e.getBoundingClientRect().right > wide + 1;
  const letters = [...document.querySelectorAll("figure svg text")];
  const told = {
    wide, scroll: document.documentElement.scrollWidth,
    out: [...document.querySelectorAll("body *")].filter(beyond).map(e => e.tagName),
    requests: performance.getEntriesByType("resource").length,
    paper: getComputedStyle(document.body).backgroundColor,
    inks: [...new Set(letters.map(e => getComputedStyle(e).fill))],
    figures: document.querySelectorAll("figure svg").length,
    smallest: Math.min(...letters.map(e => e.getBoundingClientRect().height).filter(Boolean)),
  };
  parent.document.title = "probe:" + JSON.stringify(told);
});
</script></body>"""


def looked_at(page: str, scratch: Path, *, width: int = 1100, dark: bool = False) -> dict[str, Any]:
    """What the page is like in a frame of that width: a window of a browser without a screen has at least 500 dots."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    file = scratch / "frame.html"
    framed = html.escape(page.replace("</body>", PROBE))
    file.write_text(f'<!DOCTYPE html><title></title><iframe width="{width}" height="2000" srcdoc="{framed}"></iframe>')
    command = [
        chromium,
        *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={scratch / 'profile'}"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--blink-settings=preferredColorScheme={0 if dark else 1}"),
        *("--window-size=1300,2200", file.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r"<title>probe:(.*?)</title>", done.stdout, flags=re.DOTALL)
    assert told, done.stderr[-2000:]
    return json.loads(html.unescape(told[1]))
