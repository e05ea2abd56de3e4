import shutil

import pytest
from opened_pages import QUIET
from reported_runs import Recording, healthy, sick


@pytest.fixture
def sick_run(tmp_path):
    return sick(tmp_path / "sick")


@pytest.fixture
def healthy_run(tmp_path):
    return healthy(tmp_path / "healthy", names=["a.weight", "b.weight"])


@pytest.fixture
def empty_run(tmp_path):
    return Recording(tmp_path / "empty").finish("failed")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install -e '.[dev]')")
    pytest.importorskip("plotly", reason="needs plotly (pip install -e '.[dev]')")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        yield browser
        browser.close()
