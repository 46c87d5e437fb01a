"""A real browser for tests of pages: `browser_page` opens a file or an address, and notes errors and requests."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser_page():
    """A function that opens a page; the result has the `page`, its `errors` and the `requests` that it made."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser was found: install one of {', '.join(NAMES)}, for example with `make browser`")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=list(QUIET))

        def opened(place, width=1400, height=900, *, dark=False):
            scheme = "dark" if dark else "light"
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            found = SimpleNamespace(page=page, errors=[], requests=[])
            page.on("console", lambda message: found.errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: found.errors.append(str(error)))
            page.on("request", lambda request: found.requests.append(request.url))
            page.goto(place.resolve().as_uri() if isinstance(place, Path) else place)
            return found

        yield opened
        browser.close()
