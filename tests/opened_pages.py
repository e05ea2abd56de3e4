"""A page in a real browser, and what it should not have done."""

import shutil
import time
from importlib.util import find_spec

import pytest


QUIET = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
QUIET += ["--disable-sync", "--no-first-run"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
IS_THERE = CHROMIUM is not None and find_spec("playwright") is not None and find_spec("plotly") is not None
needs_browser = pytest.mark.skipif(not IS_THERE, reason="needs Chromium (apt-get install chromium) and the extra dev")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def wait_until(page, expression):
    """Wait until `expression` holds, asked from outside: one that asks again in the page is refused by its CSP."""
    deadline = time.monotonic() + 30
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"not within 30 s: {expression}"
        page.evaluate("new Promise(requestAnimationFrame)")


class Opened:
    """A page with its charts drawn, and what it should not have done.

    Attributes:
        page: playwright's.
        faults: console errors, uncaught errors, dialogs and requests.
    """

    def __init__(self, browser, address, charts=".chart", viewport=DESKTOP, color_scheme="light"):
        self.context = browser.new_context(viewport=viewport, color_scheme=color_scheme, reduced_motion="reduce")
        self.page = self.context.new_page()
        self.faults = []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.faults.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.context.route("**/*", lambda route: self._route(route, address))
        self.page.goto(address)
        wait_until(self.page, "performance.getEntriesByName('charts').length")
        self.page.evaluate("(charts) => document.querySelectorAll(charts).forEach((host) => host.draw())", charts)

    def _route(self, route, address):
        if route.request.url == address:
            route.continue_()
        else:
            self.faults.append(f"request {route.request.url}")
            route.abort()

    def close(self):
        self.context.close()
