"""The page in a real browser: it opens with words, draws, answers to mouse and keyboard, and lets no name run."""

import re
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from opened_pages import DESKTOP, PHONE, Opened, needs_browser, wait_until
from reported_runs import HOSTILE, NAN, PLATEAU, SPIKE, STEPS, Recording, eventful, healthy, sick

from gradguard.report.write import write_report


pytestmark = needs_browser


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """Return the addresses of the pages by name."""
    folder = tmp_path_factory.mktemp("pages")
    runs = {
        "sick": [sick(folder / "sick")],
        "healthy": [healthy(folder / "healthy", names=["a.weight", "b.weight"])],
        "empty": [Recording(folder / "empty").finish("failed")],
        "eventful": [eventful(folder / "eventful")],
    }
    runs["both"] = [*runs["sick"], *runs["healthy"]]
    written = {name: write_report(paths, folder / f"{name}.html").path for name, paths in runs.items()}
    return {name: path.as_uri() for name, path in written.items()}


@pytest.fixture(scope="module")
def opened_sick(browser, pages):
    opened = Opened(browser, pages["sick"])
    yield opened
    opened.close()


@pytest.fixture
def page(opened_sick):
    """Return the page of the sick run as it was when it was opened; at the end nothing may have gone wrong with it."""
    page = opened_sick.page
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_role("button", name="Whole run").first.click()
    page.locator("[aria-expanded=true]").evaluate_all("(buttons) => buttons.forEach((button) => button.click())")
    yield page
    assert opened_sick.faults == []


def rows(page):
    return [line.locator("td").all_inner_texts() for line in page.locator("#interventions tr.row").all()]


def span(page):
    return [
        int(page.get_by_label("Steps from").first.input_value()),
        int(page.get_by_label("to", exact=True).first.input_value()),
    ]


def is_in_view(locator):
    return locator.evaluate(
        "(node) => { const box = node.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; }"
    )


def test_words_and_a_first_picture_do_not_wait_for_the_library(browser, pages, tmp_path):
    page_file = tmp_path / "page.html"
    whole = Path(url2pathname(urlsplit(pages["sick"]).path)).read_text(encoding="utf-8")
    page_file.write_text(re.sub(r'(?s)(<script id="plotly"[^>]*>).*?(?=</script>)', r"\1", whole), encoding="utf-8")
    opened = Opened(browser, page_file.as_uri(), "none")
    page = opened.page
    assert not page.evaluate("'Plotly' in globalThis")
    assert page.locator(".answer").count() == 4
    assert len(rows(page)) == 4
    for section in ("curves", "norm"):
        inks = page.locator(f"#{section} .glimpse").evaluate(
            """(canvas) => {
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                return new Set(new Uint32Array(data.buffer)).size;
            }"""
        )
        assert inks > 10
    picture = "document.querySelector('#norm .glimpse').toDataURL()"
    light = page.evaluate(picture)
    for theme in ("light", "dark"):
        page.locator("#theme").click()
        assert (page.evaluate(picture) == light) is (theme == "light")
    page.locator("#curves .chart").focus()
    page.keyboard.press("ArrowRight")
    assert f"step {SPIKE}: exploding_gradient" in page.locator("#announce").inner_text()
    assert opened.faults == []
    opened.close()


@pytest.mark.parametrize("name", ["sick", "healthy"])
def test_a_chart_takes_the_place_of_its_first_picture_exactly(browser, pages, name):
    opened = Opened(browser, pages[name], "#curves .chart, #norm .chart")
    page = opened.page
    order = "['words', 'glimpse', 'charts'].map((name) => performance.getEntriesByName(name)[0].startTime)"
    assert page.evaluate(order) == sorted(page.evaluate(order))
    assert page.locator(".chart:has(.main-svg) .glimpse").count() == 0
    for section in ("curves", "norm"):
        chart = page.locator(f"#{section} .chart")
        asked, drawn = chart.evaluate("(host) => [host.layout.margin, host._fullLayout._size]")
        assert asked == {side: drawn[side] for side in "lrtb"}
    assert opened.faults == []
    opened.close()


@pytest.mark.parametrize(
    "section", ["curves", "norm", "heat", "boxes", "layer", "updates", "activations", "histograms"]
)
def test_every_chart_is_there_with_something_in_it(page, section):
    chart = page.locator(f"#{section} .chart")
    assert chart.count() == 1
    assert chart.get_attribute("aria-label")
    drawn = chart.locator(".scatterlayer path, .heatmaplayer image, .barlayer path, .boxlayer path")
    assert drawn.count() > 0


def test_the_words_answer_what_broke_where_what_was_done_and_whether_it_worked(page):
    answers = page.locator(".answer").all_inner_texts()
    assert [text.splitlines()[0].strip("✕!●○✓ ") for text in answers] == [
        "What broke?",
        "Where?",
        "What did the guard do?",
        "Did it work?",
    ]
    story = page.locator("#story").inner_text()
    for word in (
        "exploding_gradient",
        f"step {SPIKE}",
        "clip_norm",
        "It helped",
        "Lower the learning rate.",
        "had no effect",
    ):
        assert word in story


def test_a_click_on_a_mark_leads_to_its_row_and_the_row_leads_back(page):
    mark = page.locator("#curves .points path").last
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    target = page.locator("#interventions tr.is-target")
    assert target.count() == 1
    step = int(target.locator("button").inner_text().strip("▸\n "))
    assert step in (SPIKE, NAN, NAN + 1, PLATEAU)
    assert is_in_view(target)
    page.locator("#interventions").get_by_role("button", name="Show in the charts").click()
    assert span(page) == [max(0, step - 60), min(STEPS - 1, step + 60)]
    assert is_in_view(page.locator("#curves .chart"))


def test_with_the_keyboard_one_walks_from_mark_to_mark_and_into_the_row(page):
    page.locator("#curves .chart").focus()
    page.keyboard.press("ArrowRight")
    assert f"step {SPIKE}: exploding_gradient" in page.locator("#announce").inner_text()
    page.keyboard.press("ArrowRight")
    assert f"step {NAN}: nonfinite" in page.locator("#announce").inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent").strip("▸") == str(SPIKE)
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"


def test_a_row_opens_with_the_keyboard_and_shows_evidence_decision_change_and_outcome(page):
    page.locator("#interventions .expand").first.focus()
    page.keyboard.press("Enter")
    detail = page.locator("#interventions .details").inner_text()
    for word in (
        "Found",
        "Evidence",
        "Decision",
        "Before and after",
        "Outcome",
        "usual",
        "2 over 50 steps",
        "alarm from",
        "rule tame fired",
        "100",
        "6",
        "judged at step",
        "Samples:",
    ):
        assert word in detail
    page.keyboard.press("Enter")
    assert page.locator("#interventions .details").count() == 0


@pytest.mark.parametrize(
    ("name", "option", "column", "count"),
    [
        ("diagnosis", "nonfinite (3)", 1, 2),
        ("remedy", "clip_norm (1)", 3, 1),
        ("layer", "h.0.attention.weight (3)", 2, 2),
        ("outcome", "no effect (1)", 4, 1),
        ("outcome", "not done (1)", 4, 1),
    ],
)
def test_a_filter_leaves_what_matches(page, name, option, column, count):
    assert len(rows(page)) == 4
    page.locator(f"[data-filter={name}]").select_option(label=option)
    left = rows(page)
    assert len(left) == count
    assert all(option.rpartition(" (")[0] in row[column] for row in left)
    page.get_by_role("button", name="Clear filters").click()
    assert len(rows(page)) == 4


def test_filters_that_exclude_each_other_leave_nothing_and_say_so(page):
    page.locator("[data-filter=diagnosis]").select_option(label="plateau (1)")
    page.locator("[data-filter=outcome]").select_option(label="helped (1)")
    assert rows(page) == []
    assert page.get_by_text("Nothing matches these filters.").is_visible()


def test_what_was_not_done_is_shown_when_asked_for(page):
    page.get_by_label("also what was not done").check()
    assert len(rows(page)) == 5
    page.get_by_label("also what was not done").uncheck()


def test_of_many_rows_those_that_are_not_there_yet_are_found_and_reached(browser, pages):
    opened = Opened(browser, pages["eventful"], "#curves .chart")
    page = opened.page
    steps = page.locator("#interventions tr.row .expand")
    said = page.locator("#interventions [role=status]")

    def step_of(button):
        return int(button.inner_text().strip("▸\n ").replace(",", ""))

    assert steps.count() == 50
    assert said.inner_text() == "600 rows, the first 50 shown"
    page.locator("[data-filter=remedy]").select_option(label="rollback (1)")
    assert [row[0].strip("▸\n ") for row in rows(page)] == ["1,000"]
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("From step").fill("901")
    page.get_by_label("From step").press("Enter")
    assert (step_of(steps.first), said.inner_text()) == (902, "149 rows, the first 50 shown")
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_role("button", name="Show more").focus()
    for shown in (250, 450, 600):
        page.keyboard.press("Enter")
        assert steps.count() == shown
    assert page.evaluate("document.activeElement.textContent") == "▸900"  # the first of those that came last
    assert step_of(steps.last) == 1198
    page.keyboard.press("Enter")
    assert page.locator("#interventions tr.detail").count() == 1
    page.keyboard.press("Enter")
    assert page.locator("#interventions tr.detail").count() == 0
    assert steps.count() == 600
    page.get_by_role("button", name="Clear filters").click()
    chart = page.locator("#curves .chart")
    chart.focus()
    for _ in range(100):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "▸198"
    assert page.locator("#interventions tr.is-target").count() == 1
    assert steps.count() == 50
    assert opened.faults == []
    opened.close()


def test_zooming_one_chart_zooms_the_others_and_chooses_the_span_of_the_boxes(page):
    page.evaluate("Plotly.relayout(document.querySelector('#norm .chart'), {'xaxis.range': [50, 100]})")
    wait_until(page, "document.querySelector('#curves input').value === '50'")
    assert span(page) == [50, 100]
    shown = page.evaluate("document.querySelector('#heat .chart').layout.xaxis.range")
    assert shown == pytest.approx([49.5, 100.5])
    widest = "document.querySelector('#boxes .chart').data[0].upperfence"
    peak = page.evaluate(f"Math.max(...{widest})")
    page.get_by_label("Steps from").first.fill("100")
    page.get_by_label("Steps from").first.blur()
    wait_until(page, f"Math.max(...{widest}) < {peak / 5}")


def test_a_layer_is_chosen_once_for_all_charts(page):
    page.locator("#updates select").select_option(label="wte.weight")
    assert page.locator("#layer select").input_value() == "0"
    assert page.locator("#histograms select").input_value() == "0"
    page.locator("#layer select").select_option(label=HOSTILE)
    assert page.locator("#updates select").input_value() == "2"


def test_the_slider_chooses_the_probe(page):
    slider = page.get_by_label("Probe", exact=True)
    slider.focus()
    page.keyboard.press("Home")
    assert slider.get_attribute("aria-valuetext") == "step 0"
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "step 40"


def test_a_name_like_a_script_is_text_everywhere(page):
    assert HOSTILE in [row[2] for row in rows(page)]
    assert page.locator("script:not([type])").count() == 4  # the page, what fills it, what draws, and the library
    assert page.locator("img[src=x], main b:has-text('bold')").count() == 0
    labels = page.locator("#heat .ytick text").evaluate_all("(nodes) => nodes.map((node) => node.textContent)")
    assert HOSTILE in labels
    assert any(label.startswith("<img src=x") for label in labels)
    page.locator("#heat .chart").scroll_into_view_if_needed()
    box = page.locator("#heat .heatmaplayer image").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] * 0.62)  # the third of four rows
    wait_until(page, "document.querySelector('#heat .hoverlayer').textContent")
    assert HOSTILE in page.locator("#heat .hoverlayer").evaluate("(node) => node.textContent")


def test_every_control_has_a_name(page):
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, select, input")].filter((node) =>
            !(node.labels?.length || node.getAttribute("aria-label") || node.textContent.trim())).length"""
    )
    assert unnamed == 0


def test_a_healthy_run_is_worth_looking_at_in_any_theme(browser, pages):
    """The theme follows the system until it is chosen, and the charts go with it."""
    opened = Opened(browser, pages["healthy"], "#norm .chart", color_scheme="dark")
    page = opened.page
    text = page.locator("main").inner_text()
    for word in ("Healthy: 120 steps", "Nothing", "It left the run alone", "Closest call", "None: nothing was found"):
        assert word in text
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('#norm .chart').layout.font.color"
    dark, dark_ink = page.evaluate(ground), page.evaluate(ink)
    button = page.locator("#theme")
    button.click()
    assert button.inner_text() == "☀ Light"
    assert page.evaluate(ground) != dark
    assert page.evaluate(ink) != dark_ink
    button.click()
    assert page.evaluate(ground) == dark
    assert opened.faults == []
    opened.close()


def test_an_empty_run_says_why_it_may_be_empty(browser, pages):
    opened = Opened(browser, pages["empty"])
    text = opened.page.locator("main").inner_text()
    for word in ("Nothing to judge: no step was taken.", "Usual reasons", "The policy in force", "Environment"):
        assert word in text
    assert opened.page.locator(".chart").count() == 0
    assert opened.faults == []
    opened.close()


def test_several_runs_stand_side_by_side_and_on_a_phone_below_each_other(browser, pages):
    opened = Opened(browser, pages["both"], "#curves .chart, #heat .chart")
    page = opened.page
    assert "Side by side" in page.locator("main").inner_text()
    for viewport, is_beside in ((DESKTOP, True), (PHONE, False)):
        page.set_viewport_size(viewport)
        for section in ("curves", "heat", "boxes"):
            first, second = [card.bounding_box() for card in page.locator(f"#{section} .card").all()]
            assert (first["y"] == second["y"]) is is_beside
            assert (second["x"] > first["x"]) is is_beside
    page.locator("#interventions .expand").first.click()
    wait_until(page, "document.querySelector('#heat .main-svg').getBoundingClientRect().right < 391")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert opened.faults == []
    opened.close()
