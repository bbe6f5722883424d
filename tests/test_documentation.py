"""What the README and the documentation say is run and followed here."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

from geonet.cli import app
from geonet.solvers.registry import solver_names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")
COMMANDS = ("make demo", "make test")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """The ```python blocks of a page, each with the number of lines before it."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, fence.start(2)), fence[2])
        for fence in FENCE.finditer(text)
        if fence[1] == "python"
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "documentation"}
    for lines_before, block in python_blocks(page):
        source = "\n" * lines_before + block  # an error names the page's own line
        exec(compile(source, str(page), "exec", dont_inherit=True), namespace)


def shell_lines(page: Path) -> list[str]:
    """The `geonet …` lines of a page's shell blocks."""
    fences = FENCE.finditer(page.read_text(encoding="utf-8"))
    lines = [line for fence in fences if fence[1] == "bash" for line in fence[2].splitlines()]
    return [line for line in lines if line.startswith("geonet ")]


@pytest.mark.parametrize("page", [page for page in PAGES if shell_lines(page)], ids=name)
def test_commands_are_understood(page):
    """Command, options and arguments; nothing is run."""
    commands = get_command(app.app).commands
    for line in shell_lines(page):
        _, command, *arguments = shlex.split(line, comments=True)
        if command.startswith("--"):
            continue
        commands[command].make_context(command, arguments)  # raises where it does not understand


def test_readme_shows_python():
    assert python_blocks(ROOT / "README.md")


def test_first_page_of_the_site_is_the_readme(monkeypatch):
    """With links that work from docs/, pictures too, and none that lead out of the site."""
    monkeypatch.syspath_prepend(str(ROOT / "studies" / "pages"))
    hooks = import_module("site_hooks")
    page = hooks.on_page_markdown((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert page.startswith("# geonet\n")
    links = [link.split("#")[0] for link in LINK.findall(page) if "://" not in link]
    assert "quickstart.md" in links and "images/demo.png" in links
    assert all((ROOT / "docs" / link).exists() for link in links)
    assert "CONTRIBUTING.md" in page and "CONTRIBUTING.md" not in links


@pytest.mark.parametrize("command", COMMANDS)
def test_readme_names_the_commands(command):
    shell = [fence[2] for fence in FENCE.finditer((ROOT / "README.md").read_text(encoding="utf-8"))]
    lines = [line.split("#")[0].strip() for block in shell for line in block.splitlines()]
    assert command in lines


@pytest.mark.parametrize("command", COMMANDS)
def test_makefile_has_the_commands(command):
    target = command.removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_exist(page):
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(prose) if "://" not in link]
    missing = [
        link
        for link in links
        if not link.startswith(("#", "mailto:")) and not (page.parent / link.split("#")[0]).exists()
    ]
    assert not missing, f"{name(page)} links to {', '.join(missing)}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert re.search(rf": {re.escape(page.name)}$", navigation, re.MULTILINE), page.name


@pytest.mark.parametrize("solver", solver_names())
def test_every_solver_is_documented(solver):
    listed = (ROOT / "docs" / "solvers.md").read_text(encoding="utf-8")
    assert f"\n## {solver}\n" in listed
