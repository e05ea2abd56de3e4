"""The page as one HTML file: style, scripts and data inside, nothing outside; whatever a name holds stays text."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from gradguard.record.encode import to_json


GENERATOR = '<meta name="generator" content="gradguard report">'
SCRIPTS = (  # what every part needs, the charts, the words, and what puts the page together
    *("base", "theme", "symbols", "glimpse", "chart", "marks", "lines", "statistics"),
    *("curves", "norm", "heat", "boxes", "evolution", "updates", "activations", "histograms"),
    *("answers", "story", "evidence", "table", "efficacy", "policy"),
    "main",
)
FILL, DRAW = "fillSections();", "drawCharts();"  # run when the browser has read as far as they need
DRAWN = ("curves", "actions", "norms", "probed", "updates", "activations", "histograms")  # pieces of a run, by use
ON_REQUEST = ("evidence",)


def render(title: str, runs: Sequence[dict[str, Any]], plotly_js: str) -> str:
    """Return the page.

    Words come first: a browser shows them, and a first picture of the charts, before it has read the library that
    draws these. Numbers come after the words, a piece at a time, and are read when something is drawn from them.

    Its content security policy allows the scripts below by their hashes, and no request: were a name from a record not
    escaped somewhere, it could still not run.

    Args:
        title: of the browser's tab.
        runs: as `describe` returns them.
        plotly_js: the library that draws the charts.
    """
    scripts = {
        "script": _inline("\n".join(_file(f"{name}.js") for name in SCRIPTS)),
        "fill": FILL,
        "plotly": _inline(_parsed_once(plotly_js)),
        "draw": DRAW,
    }
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts.values())
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
    )
    parts = {
        "generator": GENERATOR,
        "policy": html.escape(policy),
        "title": html.escape(title),
        "style": _file("page.css"),
        "words": _data(
            {"runs": [{key: told for key, told in run.items() if key not in DRAWN + ON_REQUEST} for run in runs]}
        ),
        "drawn": _pieces(runs, DRAWN),
        "evidence": _pieces(runs, ON_REQUEST),
        **scripts,
    }
    page = _file("page.html")
    pieces = page.split("@@")  # text, name, text, name, ..., text
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def _pieces(runs: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    return "\n".join(
        f'<script id="run{place}-{name}" type="application/json">{_data(run[name])}</script>'
        for name in names
        for place, run in enumerate(runs)
    )


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


def _parsed_once(library: str) -> str:
    """Return the library with its factory in parentheses: by them a browser knows that it is called at once.

    Otherwise it reads the whole library twice, first only to find where the function ends. A text of another shape
    comes back as it is.

    Example:
        >>> _parsed_once("(function(root, factory) {} (this, () => { return 1; }));")
        '(function(root, factory) {} (this, (() => { return 1; })));'
    """
    return re.sub(r"(\bthis, )(\(\) => \{.*\})(?=\)\);\s*\Z)", r"\1(\2)", library, count=1, flags=re.DOTALL)


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _file(name: str) -> str:
    return files("gradguard.report").joinpath("page").joinpath(name).read_text(encoding="utf-8")
