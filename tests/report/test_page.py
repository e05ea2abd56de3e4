"""One file, nothing outside, and no name that becomes code."""

import hashlib
import re
from base64 import b64encode
from html.parser import HTMLParser

import pytest
from reported_runs import HOSTILE, healthy, sick

from gradguard.cli import main
from gradguard.errors import RecordError, UsageError
from gradguard.report.page import render
from gradguard.report.write import run_titles, write_report


pytest.importorskip("plotly", reason="the report needs plotly (pip install 'gradguard[report]')")


class Elements(HTMLParser):
    """Collects the start tags of a page, and the text of its scripts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self._is_script = [], [], False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append((dict(attrs), []))

    def handle_endtag(self, tag):
        self._is_script = False

    def handle_data(self, data):
        if self._is_script:
            self.scripts[-1][1].append(data)


def test_the_page_is_one_file_that_asks_for_nothing(sick_run, tmp_path):
    written = write_report([sick_run], tmp_path / "report.html")
    page = written.path.read_text(encoding="utf-8")
    assert written.num_bytes == written.path.stat().st_size < 15e6
    found = Elements(page)
    assert not [attrs for _, attrs in found.tags if {"src", "srcset", "data"} & attrs.keys()]
    assert [tag for tag, _ in found.tags if tag in ("link", "iframe", "img", "object", "embed", "base")] == []
    runs_as_code = [attrs for attrs, _ in found.scripts if "type" not in attrs]
    assert len(runs_as_code) == 3  # the page, then what fills it, then what draws its charts


def test_only_its_own_scripts_may_run(sick_run, tmp_path):
    page = write_report([sick_run], tmp_path / "report.html").path.read_text(encoding="utf-8")
    found = Elements(page)
    (policy,) = [attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
    for attrs, text in found.scripts:
        digest = b64encode(hashlib.sha256("".join(text).encode("utf-8")).digest()).decode("ascii")
        assert attrs.get("type") == "application/json" or f"'sha256-{digest}'" in policy


def test_words_stand_before_numbers_and_numbers_before_the_library(sick_run, tmp_path):
    page = write_report([sick_run], tmp_path / "report.html").path.read_text(encoding="utf-8")
    ids = [attrs["id"] for attrs, _ in Elements(page).scripts if "id" in attrs]
    assert ids[:3] == ["told", "run0-curves", "run0-actions"]
    assert ids[-2:] == ["plotly", "run0-evidence"]
    assert page.index("this, (() => {") > page.index('id="plotly"')  # its factory is read once


def test_a_name_from_the_record_is_nowhere_markup(sick_run, tmp_path):
    page = write_report([sick_run], tmp_path / "report.html").path.read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert page.count("alert(1)") > 3
    assert "<script>alert" not in page
    assert "\x1b" not in page


def test_a_title_is_escaped():
    page = render("</title><script>alert(1)</script>", [], "")
    assert "<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>" in page


def test_text_that_looks_like_a_placeholder_is_left_alone():
    assert "@@script@@" in render("@@script@@", [], "")


def call(capsys, *args):
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_writes_the_page_and_says_what_is_in_it(sick_run, tmp_path, capsys):
    target = tmp_path / "page.html"
    code, out, err = call(capsys, "report", sick_run, "-o", target)
    assert (code, err) == (0, "")
    assert out.startswith("sick  Cured in part: exploding gradient passed")
    assert re.search(r"page\.html: 1 run, \d+\.\d MB\n", out)
    assert out.endswith("Open it in a browser; it needs no network.\n")
    assert target.exists()


def test_the_readme_shows_what_the_command_prints(healthy_run, tmp_path, capsys, monkeypatch):
    from test_readme import README

    monkeypatch.chdir(tmp_path)
    _, out, _ = call(capsys, "report", healthy_run, healthy_run.parent / "healthy")
    shown = re.search(r"^report\.html: .*\n.*\n", README, re.MULTILINE)[0]
    ending = "".join(out.splitlines(keepends=True)[-2:]).replace("2 runs", "1 run")
    assert re.sub(r"\d+\.\d MB", "", shown) == re.sub(r"\d+\.\d MB", "", ending)


def test_a_report_is_replaced_and_nothing_else_is(healthy_run, tmp_path):
    target = tmp_path / "report.html"
    write_report([healthy_run], target)
    write_report([healthy_run], target)
    target.write_text("<html>my thesis</html>")
    with pytest.raises(UsageError, match="exists and is no report of gradguard; choose another name"):
        write_report([healthy_run], target)
    assert target.read_text() == "<html>my thesis</html>"


def test_what_is_wrong_is_said_before_anything_is_written(healthy_run, tmp_path):
    with pytest.raises(UsageError, match="is a directory"):
        write_report([healthy_run], tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        write_report([healthy_run], tmp_path / "no" / "report.html")
    with pytest.raises(RecordError, match="does not exist"):
        write_report([healthy_run, tmp_path / "nothing"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_without_plotly_the_error_says_what_to_install(healthy_run, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UsageError, match=r"pip install 'gradguard\[report\]'"):
        write_report([healthy_run], tmp_path / "report.html")


def test_all_guards_that_recorded_in_a_directory_are_shown(tmp_path):
    for name in ("generator", "discriminator"):
        healthy(tmp_path / "gan", steps=10, name=name)
    both = write_report([tmp_path / "gan"], tmp_path / "report.html")
    assert [run["title"] for run in both.runs] == ["discriminator", "generator"]
    one = write_report([tmp_path / "gan"], tmp_path / "report.html", name="generator")
    assert [run["title"] for run in one.runs] == ["generator"]


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    paths = [sick(tmp_path / "a" / "run"), healthy(tmp_path / "b" / "run", steps=5)]
    assert run_titles(paths) == ["a/run", "b/run"]
    assert run_titles([paths[0], paths[0]]) == [str(paths[0]), f"{paths[0]} (2)"]
