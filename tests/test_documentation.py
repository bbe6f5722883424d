"""What the README and the documentation say is followed here, from top to bottom of every page."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from geonet._toml import to_toml
from geonet._utils import import_object
from geonet.cli import main
from geonet.cli import main as app
from geonet.solvers.registry import solver_names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")
DIRECTIVE = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)
COMMANDS = ("make demo", "make test")

# Lines that take long, what is run in their place, and why that is enough. A line without any is
# only parsed.
SHORTER: dict[str, tuple[str | None, str]] = {
    "geonet evaluate transport-2d": (
        "geonet evaluate transport-2d --count 1",
        "exact paths of twenty pairs",
    ),
    "geonet evaluate schrodinger --suite 2d-ood --option epsilon=0.01": (
        "geonet evaluate schrodinger --suite 2d-ood --option epsilon=0.01 --count 1",
        "exact paths of twenty pairs",
    ),
    "geonet evaluate transport-2d --pairs my.npz": (
        "geonet evaluate transport-2d --pairs my.npz --count 1",
        "exact paths of twenty pairs",
    ),
    "geonet evaluate runs/my/model.safetensors --pairs my.npz": (
        "geonet evaluate runs/my/model.safetensors --pairs my.npz --count 1",
        "exact paths of twenty pairs",
    ),
    "geonet train --pairs my.npz": (
        "geonet train --pairs my.npz --stop-at 1",
        "minutes of training, then twenty exact paths; tests/cli/test_train.py has the end of it",
    ),
    "geonet train --pairs my.npz --resume": (
        "geonet train --pairs my.npz --resume --stop-at 2",
        "goes on with the training above",
    ),
    "geonet train --pairs my.npz --name mine": (
        "geonet train --pairs my.npz --name mine --stop-at 1",
        "minutes of training",
    ),
    "torchrun --nproc-per-node 2 -m geonet train studies/configs/gaussian-1d.toml "
    "--folder runs/two": (
        "geonet train studies/configs/gaussian-1d.toml --folder runs/two",
        "two processes on one core; tests/training/test_processes.py starts torchrun",
    ),
    "geonet app": (None, "runs until Ctrl-C; tests/app starts it"),
    "geonet benchmark": (None, "an hour; the last line of its page runs one suite"),
    "geonet benchmark --quick": (None, "minutes; the last line of its page runs one suite"),
    "geonet benchmark --suite any": (
        None,
        "an hour; tests/studies/benchmark/any_pair measures its pairs",
    ),
    "geonet benchmark --suite 2d --solvers transport-2d,monge-ampere": (
        None,
        "minutes; the last line of its page runs another suite",
    ),
    "geonet benchmark --suite 1d --solvers quantile,transport-1d --json": (
        "geonet benchmark --suite 1d --solvers quantile --json --quick",
        "a minute; with fewer pairs and one process some seconds",
    ),
    "geonet reproduce table-2": (
        "geonet reproduce table-1 --quick",
        "minutes; table 1 is the quickest, and the tests of studies/reproduction run the others",
    ),
    "geonet reproduce all --quick": (
        None,
        "half an hour; tests/studies/reproduction runs every experiment",
    ),
    "geonet reproduce table-2 --train": (
        None,
        "hours; tests/studies/reproduction/test_retraining.py trains and measures",
    ),
    ".venv/bin/python tutorials/images.py": (None, "tests/test_tutorials.py runs every tutorial"),
}

# What makes any config a matter of seconds.
FEW = {"steps": 2, "compile": False, "checkpoint_every": 1, "log_every": 1}
SMALL = {"sampling": {"pairs": 4, "points": 8, "places": 8}, "validation": {"pairs": 1, "every": 1}}


@dataclass(frozen=True)
class Block:
    """What stands between two fences of a page."""

    language: str
    title: str | None  # the name of a file whose content the block is
    lines_before: int
    text: str

    def commands(self) -> list[str]:
        """The lines of a shell, without comments."""
        if self.language != "bash":
            return []
        return [line.split(" #")[0].strip() for line in self.text.splitlines() if line.strip()]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text, found = page.read_text(encoding="utf-8"), []
    for fence in FENCE.finditer(text):
        title = TITLE.search(fence[2])
        before = text.count("\n", 0, fence.start(3))
        found.append(Block(fence[1], title and title[1], before, fence[3]))
    return found


def can_be_followed(block: Block) -> bool:
    return block.language in ("python", "bash") or block.title is not None


# ---- following a page


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(can_be_followed, blocks(page)))], ids=name
)
def test_page_can_be_followed(page, tmp_path, monkeypatch, capsys):
    """In an empty folder, from top to bottom: Python, commands, and files that are shown."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "documentation"}
    if "studies/configs/" in page.read_text(encoding="utf-8"):
        copy_configs(tmp_path / "studies" / "configs")
    for block in blocks(page):
        if block.title is not None:
            write(tmp_path / block.title, block.text)
        elif block.language == "python":
            source = "\n" * block.lines_before + block.text  # an error names the page's own line
            exec(compile(source, str(page), "exec", dont_inherit=True), namespace)
        for line in block.commands():
            follow(line, capsys)


def follow(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command of geonet, or what `SHORTER` has for it; of others, see that they exist."""
    if line in SHORTER:
        instead, _ = SHORTER[line]
        understand(line)
        if instead is None:
            return
        line = instead
    program, *arguments = shlex.split(line)
    if program == "make":
        assert has_target(arguments[0]), line
    elif program == "pip":
        assert arguments[-1] in (f"geonet[{extra}]" for extra in extras()), line
    else:
        assert program == "geonet", f"{line!r} is no command that a test can follow"
        code = main(arguments)
        assert code == 0, f"{line}\n{capsys.readouterr().err}"


def understand(line: str) -> None:
    """Command, options and arguments; nothing is run."""
    program, *words = shlex.split(line)
    if "geonet" not in (program, *words):
        assert Path(ROOT, words[0]).is_file(), line
        return
    command, *arguments = words[words.index("geonet") + 1 :] if program != "geonet" else words
    get_command(app.app).commands[command].make_context(command, arguments)  # raises if it cannot


def has_target(target: str) -> bool:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) is not None


def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"])


def copy_configs(folder: Path) -> None:
    """The configs of a clone, in which some pages are read."""
    folder.mkdir(parents=True)
    for config in (ROOT / "studies" / "configs").glob("*.toml"):
        write(folder / config.name, config.read_text(encoding="utf-8"))


def write(file: Path, text: str) -> None:
    """A file as it stands on a page; a config with few steps on little, to train for a second."""
    if file.suffix == ".toml":
        table: dict[str, Any] = tomllib.loads(text) | FEW
        table |= {part: table.get(part, {}) | values for part, values in SMALL.items()}
        text = to_toml(table)
    file.write_text(text, encoding="utf-8")


def test_every_shorter_line_is_on_a_page():
    lines = {line for page in PAGES for block in blocks(page) for line in block.commands()}
    assert set(SHORTER) <= lines


def test_a_page_that_cannot_be_followed_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for line in ("geonet geodesic a.png b.png", "make nothing", "pip install nothing", "rm a.png"):
        with pytest.raises(AssertionError, match=line.split()[-1]):
            follow(line, capsys)


# ---- one home for every object


def objects(page: Path) -> list[str]:
    """What the `:::` directives of a page document, each by the place where it is defined."""
    found = []
    for path, options in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
        members = re.search(r"members: \[(.*)\]", options)
        found += documented(path, members and [part.strip() for part in members[1].split(",")])
    return found


def documented(path: str, members: list[str] | None = None) -> list[str]:
    """An object, or a module with the public names that it defines."""
    try:
        module = import_module(path)
    except ModuleNotFoundError:
        home, _, last = path.rpartition(".")
        found = import_object(f"{home}:{last}")
        return [f"{found.__module__}.{found.__qualname__}"]
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == path]
    chosen = own if members is None else members
    return [path, *(f"{path}.{key}" for key in chosen if not key.startswith("_"))]


def test_every_object_has_one_home():
    """An object on two pages has two addresses, and mkdocs does not know which one links mean."""
    homes = Counter(found for page in PAGES for found in objects(page))
    assert len(homes) > 80
    assert [found for found, count in homes.items() if count > 1] == []


def test_an_object_is_known_by_any_name():
    (grid,) = documented("geonet.Grid")
    assert grid == "geonet.grid.Grid"
    assert "geonet.errors.GridError" in documented("geonet.errors")
    assert "geonet.metrics.l1" not in documented("geonet.metrics")


# ---- what pages say and link to


def test_readme_shows_python():
    assert any(block.language == "python" for block in blocks(ROOT / "README.md"))


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
    assert command in [line for block in blocks(ROOT / "README.md") for line in block.commands()]


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
