import pytest
from opened_pages import CHROMIUM, QUIET
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
    from playwright.sync_api import sync_playwright  # only where `needs_browser` found it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()
