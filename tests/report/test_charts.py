"""The charts in a real browser: every mark, line and stripe has its sign in words, and noise takes no scale."""

import pytest
from opened_pages import Opened, needs_browser, wait_until
from reported_runs import CLIPPED, EARLY, MILD, OUTRANKED, UNSEEN, WARNED, normalised, peaks, sick

from gradguard.report.write import write_report


pytestmark = needs_browser


@pytest.fixture(scope="module")
def open_page(browser, tmp_path_factory):
    """Return what opens the page of a run, as it was recorded by a function; nothing may have gone wrong with it."""
    folder = tmp_path_factory.mktemp("pages")
    opened = {}

    def open_page(record):
        name = record.__name__
        if name not in opened:
            path = write_report([record(folder / name)], folder / f"{name}.html").path
            opened[name] = Opened(browser, path.as_uri())
        return opened[name].page

    yield open_page
    assert [fault for one in opened.values() for fault in one.faults] == []
    for one in opened.values():
        one.close()


def test_a_symbol_has_the_same_outline_in_a_legend_as_the_library_draws(open_page):
    different = open_page(sick).evaluate(
        """async () => {
            const symbols = ["triangle-up", ...Object.values(OUTCOMES).map(({ symbol }) => symbol)];
            const host = document.body.appendChild(document.createElement("div"));
            const [x, y] = [symbols.map((_, i) => i), symbols.map(() => 0)];
            await Plotly.newPlot(host, [{ x, y, mode: "markers", marker: { symbol: symbols, size: 40 } }]);
            const shape = (path) => {
                const { x, y, width, height } = path.getBBox();
                return [x, y, width, height, path.getTotalLength()];
            };
            const different = [...host.querySelectorAll(".points path")].filter((path, i) => {
                const own = path.parentNode.appendChild(symbolNode(symbols[i], "red", 40));
                const isSame = shape(path).every((value, k) => Math.abs(value - shape(own)[k]) < 0.3);
                own.remove();
                return !isSame;
            });
            host.remove();
            return [symbols.length, different.map((path) => path.getAttribute("d"))];
        }"""
    )
    assert different == [9, []]


def test_a_first_picture_fills_a_symbol_as_far_as_its_outline_reaches(open_page):
    wrong = open_page(sick).evaluate(
        """() => Object.values(OUTCOMES).map(({ symbol }) => {
            const canvas = Object.assign(document.createElement("canvas"), { width: 60, height: 60 });
            const pen = canvas.getContext("2d");
            const marker = { symbol, size: 40, color: "rgb(0,0,0)", line: { width: 1, color: "rgb(0,0,0)" } };
            drawTrace(pen, { x: [30], y: [30], mode: "markers", marker }, (x) => x, (y) => y, []);
            const outline = new Path2D(symbolPath(symbol, 40));
            const { data } = pen.getImageData(0, 0, 60, 60);
            let wrong = 0;
            for (let x = 0; x < 60; x++) for (let y = 0; y < 60; y++) {
                const isInside = pen.isPointInPath(outline, x - 29.5, y - 29.5) && !symbol.endsWith("open");
                wrong += (data[4 * (60 * y + x) + 3] > 127) !== isInside;
            }
            return wrong / 3600;
        })"""
    )
    assert max(wrong) < 0.05  # of the pixels: the line around it


def test_every_outcome_has_one_sign_in_legend_table_and_chart(open_page):
    page = open_page(sick)
    marks = page.evaluate(
        """() => Object.fromEntries(document.querySelector("#curves .chart").data
            .filter(({ yaxis, mode }) => yaxis === "y2" && mode === "markers")
            .map(({ text, marker }) => [text[0].split("<br>").at(-1), [marker.symbol, marker.color]]))"""
    )
    signs = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("#curves .legend .verdict")].map((node) => {
            const [red, green, blue] = getComputedStyle(node).color.match(/\\d+/g);
            const symbol = Object.values(OUTCOMES).find(({ text }) => text === node.textContent).symbol;
            const isDrawn = node.querySelector("path").getAttribute("d") === symbolPath(symbol, 10);
            return [node.textContent, [isDrawn && symbol, `rgba(${red},${green},${blue},1)`]];
        }))"""
    )
    assert len(marks) >= 3
    assert signs == marks
    drawn = "(nodes) => nodes.map((node) => node.querySelector('path').getAttribute('d'))"
    in_table = page.locator("#interventions .verdict").evaluate_all(drawn)
    assert set(in_table) <= set(page.locator("#curves .verdict").evaluate_all(drawn))


def test_lines_marks_and_stripes_are_named_beside_their_chart(open_page):
    page = open_page(sick)
    for section, words in {
        "curves": ("learning rate as scheduled", "with the guard's factor"),
        "norm": ("global norm", "usual", "20", "100", "after clipping", "clipped to 5", "NaN or Inf"),
        "boxes": ("the chosen layer", "the others"),
        "updates": ("the chosen layer", "median", "half of them", "all of them"),
        "histograms": ("this probe", "the first probe", "share of the entries"),
    }.items():
        legend = page.locator(f"#{section} .legend").all_inner_texts()
        assert all(word in " ".join(legend) for word in words), section


def test_steps_above_a_threshold_say_what_was_done_or_why_nothing_was(open_page):
    page = open_page(peaks)
    said = page.locator("#norm figcaption").inner_text()
    assert (
        "5 steps rose above a threshold: on 1 the guard acted on that, on 1 another rule went first (nonfinite)" in said
    )
    assert "on 1 nothing was done" in said
    assert "on 1 it told of it and changed nothing" in said
    assert "1 raised no alarm" in said
    assert "On 1 other step the guard acted on another sign of exploding_gradient." in said
    marks = page.evaluate(
        """() => Object.fromEntries(document.querySelector("#norm .chart").data
            .filter(({ text, mode }) => text && mode === "markers")
            .flatMap(({ x, text, marker }) => x.map((step, i) => [step, [marker.symbol, text[i]]])))"""
    )
    assert sorted(map(int, marks)) == [EARLY, WARNED, CLIPPED, OUTRANKED, MILD, UNSEEN]
    for step, symbol, words in (
        (EARLY, "diamond-open", "clip_norm: clipped"),
        (WARNED, "triangle-down", "nothing was changed"),
        (CLIPPED, "diamond-open", "times the usual"),
        (OUTRANKED, "diamond-open", "another rule went first, against nonfinite: skip_step; its own rule"),
        (MILD, "circle-open", "not acted on"),
        (UNSEEN, "circle-open", "no alarm"),
    ):
        assert marks[str(step)][0] == symbol
        assert words in marks[str(step)][1].replace("<br>", " ")


def test_a_mark_at_a_peak_leads_to_its_row(open_page):
    page = open_page(peaks)
    mark = page.locator("#norm .points path").last
    mark.scroll_into_view_if_needed()
    wait_until(page, "document.querySelector('#norm .points path')")
    page.evaluate("document.querySelector('#norm .chart').emit('plotly_click', { points: [{ customdata: 2 }] })")
    assert page.locator("#interventions tr.is-target .expand").inner_text().strip("▸\n ") == str(CLIPPED)


def test_a_gradient_of_rounding_leaves_the_scales_to_the_other_layers(open_page):
    page = open_page(normalised)
    for section in ("heat", "boxes"):
        note = page.locator(f"#{section} .note").inner_text()
        assert note.startswith("conv.bias lies orders of magnitude below the rest")
    low, high, labels = page.evaluate(
        "() => { const [map] = document.querySelector('#heat .chart').data;"
        " return [map.zmin, map.zmax, map.colorbar.ticktext]; }"
    )
    assert -1 <= low < high <= 1
    assert labels[0].startswith("&lt; ")
    assert not labels[-1].startswith("&gt; ")
    boxes = page.evaluate(
        "() => { const { layout } = document.querySelector('#boxes .chart');"
        " return [layout.xaxis.range, layout.annotations.map(({ y, text }) => [y, text])]; }"
    )
    assert -1 <= boxes[0][0] < boxes[0][1] <= 1
    [[name, text]] = boxes[1]
    assert name == "conv.bias"
    assert text.startswith("◂ ")
    assert text.endswith(("e-9", "e-8"))


def test_layers_that_fade_one_by_one_keep_the_whole_scale(open_page):
    usual = [10.0**-decade for decade in range(9)]
    assert open_page(sick).evaluate("(usual) => farBelow(usual).size", usual) == 0
    assert open_page(sick).evaluate("(usual) => [...farBelow(usual)]", [1.0, 1e-7, 2.0, 3e-8, 0.5, 1e-1]) == [3, 1]
    assert open_page(sick).evaluate("(usual) => farBelow(usual).size", [1.0, 1e-7]) == 1
    assert open_page(sick).evaluate("(usual) => farBelow(usual).size", [0.0, 1.0]) == 0


def test_hardly_a_dead_unit_is_a_sentence_and_no_chart(open_page):
    page = open_page(normalised)
    assert page.locator("#activations .chart").count() == 0
    assert "the largest share was 0.4 %" in page.locator("#activations .note").inner_text()
    assert open_page(sick).locator("#activations .chart").count() == 1


@pytest.mark.parametrize("record", [sick, normalised, peaks])
def test_a_chart_takes_the_room_that_it_needs(open_page, record):
    gaps = open_page(record).evaluate(
        """() => [...document.querySelectorAll(".chart")].map((host) => {
            const labels = [...host.querySelectorAll("[class^=x][class$=title], [class^=x][class$=tick] text")];
            const lowest = Math.max(...labels.map((node) => node.getBoundingClientRect().bottom));
            const drawn = host.querySelector(".main-svg").getBoundingClientRect();
            const box = host.getBoundingClientRect();
            return [box.height - drawn.height, box.bottom - lowest];
        })"""
    )
    assert len(gaps) >= 3
    for blank, below in gaps:
        assert blank == pytest.approx(0, abs=1)
        assert 0 <= below < 30


def test_a_click_anywhere_in_a_row_opens_it_and_one_that_selects_text_does_not(open_page):
    page = open_page(sick)
    row = page.locator("#interventions tr.row").first
    details = page.locator("#interventions .details")
    row.locator("td").nth(3).click()
    assert details.count() == 1
    assert row.locator(".expand").get_attribute("aria-expanded") == "true"
    details.locator("h4").first.click()
    assert details.count() == 1
    row.locator("td").nth(1).click()
    assert details.count() == 0
    row.locator(".expand").click()
    assert details.count() == 1
    row.locator(".expand").click()
    box = row.locator("td").nth(3).locator("b").bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"], box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    assert page.evaluate("getSelection().toString()")
    assert details.count() == 0
    page.evaluate("getSelection().removeAllRanges()")
