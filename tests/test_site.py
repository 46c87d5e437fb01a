"""The documentation site: built as `make docs` does, with links that lead somewhere and pages that fit the window."""

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

from browser import browser_page  # noqa: F401

ROOT = Path(__file__).parent.parent
HOME = "http://site/"
ADDRESSES = {"a": "href", "link": "href", "script": "src", "img": "src"}


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], {""}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found.get("id"), found.get("name")} - {None}
        if found.get(ADDRESSES.get(tag)) is not None:
            self.links.append(found[ADDRESSES[tag]])


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        """Requests are not printed."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. The build gets copies, so that it writes nothing into the checkout."""
    pytest.importorskip("zensical", reason="needs the package zensical: install the extra `docs`")
    folder = tmp_path_factory.mktemp("documentation")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    (folder / "src").symlink_to(ROOT / "src")
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def address(site):
    """The address of the site on a server of this machine."""
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def file_of(site, url):
    path = site / unquote(urlsplit(url).path).lstrip("/")
    return path / "index.html" if url.endswith("/") else path


def broken_links(site):
    """A line for every link to a missing file or anchor."""
    pages = {file: Page(file.read_text()) for file in site.rglob("*.html") if file.name != "404.html"}
    found = []
    for file, page in pages.items():
        here = HOME + file.relative_to(site).as_posix()
        for link in page.links:
            target, anchor = urldefrag(urljoin(here, link))
            goal = file_of(site, target)
            if not target.startswith(HOME):
                continue
            if not goal.is_file() or (goal in pages and unquote(anchor) not in pages[goal].anchors):
                found.append(f"{here}: {link}")
    return found


def test_every_link_and_anchor_of_the_site_leads_somewhere(site):
    sources = list((ROOT / "docs").rglob("*.md"))
    assert len(list(site.rglob("index.html"))) == len(sources)
    assert broken_links(site) == []


def test_a_missing_page_and_a_missing_anchor_are_found(tmp_path):
    """The check of links itself."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h1 id="here"></h1><a href="../">back</a>')
    links = ["other/", "other/#here", "other/#gone", "missing/", "https://example.org/x"]
    (tmp_path / "index.html").write_text("".join(f'<a href="{link}"></a>' for link in links))
    assert broken_links(tmp_path) == [f"{HOME}index.html: other/#gone", f"{HOME}index.html: missing/"]


def test_reference_shows_signatures(site):
    text = (site / "reference" / "index.html").read_text()
    for name in ("gasam.SharpBackward", "gasam.lab.compare", "gasam.lab.tune", "gasam.lab.runs", "gasam.lab.load"):
        assert f'id="{name}"' in text
    signatures = [part for part in text.split('<div class="doc doc-object')[1:] if 'id="gasam.lab.compare"' in part]
    assert "doc-signature" in signatures[0]
    assert "RunFailedError" in signatures[0]


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", ["", "guide/", "experiments/", "reference/", "results/"])
def test_page_fits_the_window_without_errors(address, browser_page, name, width):  # noqa: F811
    opened = browser_page(address + name, width=width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    too_wide = opened.page.evaluate(
        """() => [...document.querySelectorAll("article p, article li, article h1, article h2, article img")]
            .filter(part => part.getBoundingClientRect().right > innerWidth && !part.closest("table"))
            .map(part => part.textContent.slice(0, 80))"""
    )
    assert too_wide == []
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith((address, "data:", "blob:"))] == []
    opened.page.close()
