"""The docs: blocks are parts of examples that run, commands parse, links lead somewhere, and the site builds."""

import ast
import functools
import http.server
import importlib
import json
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

from browser import browser_page  # noqa: F401

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TASK_FILES = sorted((ROOT / "examples" / "tasks").glob("*.py"))  # tests/lab/test_own_model.py trains them
RUN_ELSEWHERE = {"digits", "ddp", "fsdp"}  # below, and in two processes by tests/distributed
PUBLIC = ["gasam", "gasam.analysis", "gasam.lab", "gasam.lab.training.finished", "gasam.lab.theory"]
IMPORTS_SHOWN = {"README.md", "index.md", "guide.md", "frameworks.md", "experiments.md"}


def found_in_pages(pattern):
    return [
        (page.name, text)
        for page in PAGES
        for text in re.findall(pattern, page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    ]


def public_names():
    return {name for module in PUBLIC for name in importlib.import_module(module).__all__}


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning calls what torch 2.13 deprecates
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.stem not in RUN_ELSEWHERE], ids=lambda path: path.stem)
def test_example_runs_and_verifies_itself(example):
    assert "\nassert " in example.read_text(encoding="utf-8")
    runpy.run_path(str(example), run_name="__main__")


def test_demo_prints_a_row_for_each_method(capsys, monkeypatch):
    from examples import digits

    short = {name: (perturbation, 6) for name, (perturbation, _) in digits.METHODS.items()}
    monkeypatch.setattr(digits, "METHODS", short)
    digits.main(seeds=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:30].strip() for line in lines] == ["method", *digits.METHODS]
    for line in lines[1:]:
        accuracy, sharpness = re.search(r"([\d.]+) ± [\d.]+ +([\d.]+)", line).groups()
        assert 50 < float(accuracy) <= 100
        assert float(sharpness) > 0


def imports(nodes):
    """The names that import statements bring in, each with the module it comes from."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(getattr(node, "module", None), alias.name, alias.asname) for alias in node.names}
    return found


def split(block):
    """The imports that a block begins with, and the code after them."""
    body = ast.parse(block).body
    count = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in body)
    code = "".join(block.splitlines(keepends=True)[body[count - 1].end_lineno :]) if count else block
    return imports(body[:count]), code.lstrip("\n")


def test_code_blocks_are_parts_of_examples_and_import_what_they_use():
    """A block may leave out imports that it does not need. All its other lines stand together in one example."""
    blocks, public = found_in_pages(r"^```python\n(.*?)^```$"), public_names()
    texts = [file.read_text(encoding="utf-8") for file in [*EXAMPLES, *TASK_FILES]]
    examples, wrong = [(text, imports(ast.walk(ast.parse(text)))) for text in texts], []
    for page, block in blocks:
        names, code = split(block)
        if not any(code in text and names <= imported for text, imported in examples):
            wrong.append(f"{page}: no example has\n{block}")
        nodes = list(ast.walk(ast.parse(block)))
        used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)} & public
        missing = used - {name for _, name, _ in imports(nodes)}
        if page in IMPORTS_SHOWN and missing:
            wrong.append(f"{page}: add the imports of {missing} to\n{block}")
    assert not wrong, "\n".join(wrong)
    assert {page for page, _ in blocks} >= {"README.md", "guide.md"}


def test_commands_in_the_docs_can_be_run_and_every_command_is_there():
    """Parsed as the shell would, not run."""
    typer, lab = importlib.import_module("typer"), importlib.import_module("gasam.lab.cli")
    for module in pkgutil.iter_modules(lab.__path__, "gasam.lab.cli."):
        importlib.import_module(module.name)
    commands = typer.main.get_command(sys.modules["gasam.lab.cli.options"].app).commands
    named = set()
    for page, command in found_in_pages(r"(?:^|`)gasam ([a-z][^`#\n]*)"):
        name, *words = shlex.split(command)
        assert name in commands, f"{page}: gasam {command}"
        words = [word.lower() if word.isupper() else word for word in words]
        named.add(name)
        try:
            commands[name].make_context(name, words)
        except typer.Exit:
            pass  # a page may show --help
        except Exception as refused:
            raise AssertionError(f"{page}: gasam {command}: {refused}") from refused
    assert named == set(commands)


def test_performance_page_is_made_from_the_results():
    report = importlib.import_module("benchmarks.report")
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    assert report.PAGE.read_text(encoding="utf-8") == report.page(results)
    assert set(results) == set(report.SECTIONS)


def test_links_and_navigation_lead_somewhere():
    for page, target in found_in_pages(r"\]\((?!https?:)([^)#]+)\)"):
        folder = ROOT if page == "README.md" else ROOT / "docs"
        assert (folder / target).exists(), f"{page} links to {target}"
    navigation = re.findall(r'= "(.+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8"))
    docs = ROOT / "docs"
    assert sorted(navigation) == sorted(file.relative_to(docs).as_posix() for file in docs.rglob("*.md"))


def test_reference_lists_the_public_names_and_no_others():
    """A name may be listed with its file, `gasam.analysis.attack.attack`, where the module has both."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: (.+)$", text, flags=re.MULTILINE)
    found = {(name.rpartition(".")[2]) for name in listed if not name.startswith("gasam.integrations.")}
    assert found == public_names() | {"reference"}
    assert len(listed) == len(set(listed))


HOME = "http://site/"


def broken_links(site):
    """A line for every link to a missing file or anchor."""
    pages = {file: file.read_text() for file in site.rglob("*.html") if file.name != "404.html"}
    anchors = {file: {"", *re.findall(r'\s(?:id|name)="([^"]*)"', text)} for file, text in pages.items()}
    found = []
    for file, text in pages.items():
        here = HOME + file.relative_to(site).as_posix()
        for link in re.findall(r'\s(?:href|src)="([^"]*)"', text):
            target, anchor = urldefrag(urljoin(here, unescape(link)))
            path = site / unquote(urlsplit(target).path).lstrip("/")
            goal = path / "index.html" if target.endswith("/") else path
            if target.startswith(HOME) and not (goal.is_file() and unquote(anchor) in anchors.get(goal, {""})):
                found.append(f"{here}: {link}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` does. The build gets copies, so that it writes nothing into the checkout."""
    pytest.importorskip("zensical", reason="needs the package zensical: install the extra `docs`")
    folder = tmp_path_factory.mktemp("documentation")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    (folder / "src").symlink_to(ROOT / "src")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_every_link_and_anchor_of_the_site_leads_somewhere(site, tmp_path):
    page = '<h1 id="here"></h1><a href="#here"></a><a href="#gone"></a><a href="no/"></a>'
    (tmp_path / "index.html").write_text(page)
    assert broken_links(tmp_path) == [f"{HOME}index.html: #gone", f"{HOME}index.html: no/"]
    assert len(list(site.rglob("index.html"))) == len(list((ROOT / "docs").rglob("*.md")))
    assert broken_links(site) == []
    text = (site / "reference" / "index.html").read_text()
    for name in ("gasam.SharpBackward", "gasam.lab.compare"):
        assert f'id="{name}"' in text
    assert "doc-signature" in text


TOO_WIDE = """() => [...document.querySelectorAll("article p, article li, article h1, article h2, article img")]
    .filter(part => part.getBoundingClientRect().right > innerWidth && !part.closest("table"))
    .map(part => part.textContent.slice(0, 80))"""


def test_pages_fit_the_window_without_errors(site, browser_page):  # noqa: F811
    of_site = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), of_site) as server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        for name in ("", "guide/", "reference/", "results/"):
            opened = browser_page(address + name)
            for width in (1400, 400):
                opened.page.set_viewport_size({"width": width, "height": 900})
                assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, name
                assert opened.page.evaluate(TOO_WIDE) == [], name
            assert opened.errors == [], name
            assert [url for url in opened.requests if not url.startswith((address, "data:", "blob:"))] == [], name
            opened.page.close()
        server.shutdown()
