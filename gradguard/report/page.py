"""The page as one HTML file: style, scripts and data inside, nothing outside; whatever a name holds stays text."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from gradguard.record.encode import to_json


GENERATOR = '<meta name="generator" content="gradguard report">'
SCRIPTS = (  # what every part needs, the charts, the words, and what puts the page together
    *("base", "theme", "chart", "marks", "lines", "statistics"),
    *("curves", "norm", "heat", "boxes", "evolution", "updates", "activations", "histograms"),
    *("answers", "story", "table", "efficacy", "policy"),
    "main",
)


def render(title: str, runs: Sequence[dict[str, Any]], plotly_js: str) -> str:
    """Return the page.

    Its content security policy allows the scripts below by their hashes, and no request: were a name from a record not
    escaped somewhere, it could still not run.

    Args:
        title: of the browser's tab.
        runs: as `describe` returns them.
        plotly_js: the library that draws the charts.
    """
    scripts = [_inline("\n".join(_file(f"{name}.js") for name in SCRIPTS)), _inline(plotly_js)]
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
    )
    parts = {
        "generator": GENERATOR,
        "policy": html.escape(policy),
        "title": html.escape(title),
        "style": _file("page.css"),
        "data": _data({"runs": list(runs)}),
        "script": scripts[0],
        "plotly": scripts[1],
    }
    page = _file("page.html")
    pieces = page.split("@@")  # text, name, text, name, ..., text
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def _data(value: Any) -> str:
    r"""Return JSON that is safe inside of a script element: there is no "<" in it.

    Example:
        >>> _data({"name": "</script>"})
        '{"name":"\\u003c/script>"}'
    """
    return to_json(value).replace("<", "\\u003c")


def _inline(script: str) -> str:
    r"""Return a script as it may stand in HTML: in JavaScript "<\/" means "</" in every text and pattern."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _file(name: str) -> str:
    return files("gradguard.report").joinpath("page").joinpath(name).read_text(encoding="utf-8")
