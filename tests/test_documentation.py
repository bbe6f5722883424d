"""Run the code of README and of the documentation, from top to bottom of every page."""

from __future__ import annotations

import re
import shlex
import tomllib
import warnings
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from geonet._toml import to_toml
from geonet._utils import import_object
from geonet.cli.main import app, main
from geonet.solvers.registry import list_solver_names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")
DIRECTIVE = re.compile(r"^<!-- ::: (\S+)((?:(?!-->).)*)-->$", re.MULTILINE | re.DOTALL)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTION = PROJECT["name"]  # another package owns the name of the module
NUMBER = re.compile(r"(?<!\w)\d+(?:\.\d+)?(?:e-\d+)?(?!\w)")
COMMANDS = ("make demo", "make test")
OTHER_LIBRARIES = (
    "jax",
    "ott",
    "pysteps",
)  # blocks of the language `py` run if these are installed

# Slow commands with a shorter form that is run instead; None: only the options are parsed.
SHORTER: dict[str, str | None] = {
    "geonet evaluate transport-2d": "geonet evaluate transport-2d --count 1",
    "geonet evaluate schrodinger --suite 2d-ood --option epsilon=0.01": (
        "geonet evaluate schrodinger --suite 2d-ood --option epsilon=0.01 --count 1"
    ),
    "geonet evaluate transport-2d --pairs my.npz": (
        "geonet evaluate transport-2d --pairs my.npz --count 1"
    ),
    "geonet evaluate runs/my/model.safetensors --pairs my.npz": (
        "geonet evaluate runs/my/model.safetensors --pairs my.npz --count 1"
    ),
    "geonet train --pairs my.npz": "geonet train --pairs my.npz --stop-at 1",
    "geonet train --pairs my.npz --resume": "geonet train --pairs my.npz --resume --stop-at 2",
    "geonet train --pairs my.npz --name mine": (
        "geonet train --pairs my.npz --name mine --stop-at 1"
    ),
    "torchrun --nproc-per-node 2 -m geonet train experiments/configs/gaussian-1d.toml "
    "--folder runs/two": "geonet train experiments/configs/gaussian-1d.toml --folder runs/two",
    "geonet app": None,
}

# Settings with which any config trains for a second.
FEW = {"steps": 2, "compile": False, "checkpoint_every": 1, "log_every": 1}
SMALL = {"sampling": {"pairs": 4, "points": 8, "places": 8}, "validation": {"pairs": 1, "every": 1}}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str | None  # name of the file that the block shows
    lines_before: int
    text: str

    def commands(self) -> list[str]:
        """Return the shell commands without comments."""
        if self.language != "bash":
            return []
        return [line.split(" #")[0].strip() for line in self.text.splitlines() if line.strip()]


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def parse_blocks(page: Path) -> list[Block]:
    text, blocks = page.read_text(encoding="utf-8"), []
    for fence in FENCE.finditer(text):
        title = TITLE.search(fence[2])
        before = text.count("\n", 0, fence.start(3))
        blocks.append(Block(fence[1], title and title[1], before, fence[3]))
    return blocks


def is_executable(block: Block) -> bool:
    return block.language in ("python", "py", "bash") or block.title is not None


# ---- executing a page


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(is_executable, parse_blocks(page)))], ids=page_name
)
def test_code_of_page_runs(page, tmp_path, monkeypatch, capsys):
    """Run Python and commands in an empty folder; files that are shown are written first.

    After a block of a library that is not installed, further blocks of it cannot run.
    """
    monkeypatch.chdir(tmp_path)
    namespace, is_installed = {"__name__": "documentation"}, True
    if "experiments/configs/" in page.read_text(encoding="utf-8"):
        copy_configs(tmp_path / "experiments" / "configs")
    for block in parse_blocks(page):
        if block.title is not None:
            write(tmp_path / block.title, block.text)
        elif block.language == "python":
            run_python(block, page, namespace)
        elif block.language == "py" and is_installed:
            is_installed = run_other_library(block, page, namespace)
        for line in block.commands():
            run_command(line, capsys)


def run_python(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    source = "\n" * block.lines_before + block.text  # an error names the page's own line
    exec(compile(source, str(page), "exec", dont_inherit=True), namespace)


def run_other_library(block: Block, page: Path, namespace: dict[str, Any]) -> bool:
    """Run a block that shows another library; return False if that is not installed.

    Its warnings do not count.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_python(block, page, namespace)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in OTHER_LIBRARIES:
            raise
        return False
    return True


def run_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command of geonet or its shorter form; for other programs check that they exist."""
    if line in SHORTER:
        parse_command(line)
        if SHORTER[line] is None:
            return
        line = str(SHORTER[line])
    program, *arguments = shlex.split(line)
    if program == "make":
        assert has_target(arguments[0]), line
    elif program == "pip":
        assert arguments[1] == "pre-commit" or is_installable(arguments[-1]), line
    elif program in ("python", ".venv/bin/python"):
        assert has_script(arguments), line
    else:
        assert program == "geonet", f"{line!r} is not a command that a test can run"
        code = main(arguments)
        assert code == 0, f"{line}\n{capsys.readouterr().err}"


def is_installable(requirement: str) -> bool:
    """Return True for this distribution, alone or with extras that exist."""
    name, _, extras = requirement.removesuffix("]").partition("[")
    return name == DISTRIBUTION and set(filter(None, extras.split(","))) <= set(list_extras())


def has_script(arguments: list[str]) -> bool:
    """Return True if the script or module of a Python command exists."""
    if arguments[0] != "-m":
        return Path(ROOT, arguments[0]).is_file()
    if arguments[1] == "pytest":
        return all(Path(ROOT, word).exists() for word in arguments[2:] if word.startswith("tests"))
    module = ROOT / arguments[1].replace(".", "/")
    return (module / "__main__.py").is_file() or module.with_suffix(".py").is_file()


def parse_command(line: str) -> None:
    """Parse command, options and arguments without running them."""
    program, *words = shlex.split(line)
    command, *arguments = words[words.index("geonet") + 1 :] if program != "geonet" else words
    get_command(app).get_command(None, command).make_context(command, arguments)


def has_target(target: str) -> bool:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) is not None


def list_extras() -> list[str]:
    return list(PROJECT["optional-dependencies"])


def copy_configs(folder: Path) -> None:
    """Copy the configs of the repository, which some pages use."""
    folder.mkdir(parents=True)
    for config in (ROOT / "experiments" / "configs").glob("*.toml"):
        write(folder / config.name, config.read_text(encoding="utf-8"))


def write(file: Path, text: str) -> None:
    """Write a file of a page; configs get few steps and little data."""
    if file.suffix == ".toml":
        table: dict[str, Any] = tomllib.loads(text) | FEW
        table |= {part: table.get(part, {}) | values for part, values in SMALL.items()}
        text = to_toml(table)
    file.write_text(text, encoding="utf-8")


def test_report_of_the_quick_start_is_the_output(tmp_path, monkeypatch, capsys):
    """The words are those of the command; numbers may differ by rounding on other machines."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "quickstart.md"
    python, shell, shown, *_ = parse_blocks(page)
    run_python(python, page, {"__name__": "documentation"})
    assert main(shlex.split(shell.commands()[0])[1:]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    summary, _, rows = shown.text.strip().partition("\n\n")
    for part in (summary, *rows.splitlines()):
        words = NUMBER.sub("#", " ".join(part.split()))
        pattern = re.escape(words).replace(r"\#", f"({NUMBER.pattern})")
        found = [[*map(float, one.groups())] for one in re.finditer(pattern, printed)]
        numbers = [*map(float, NUMBER.findall(part))]
        assert any(numbers == pytest.approx(one, rel=0.05, abs=1e-9) for one in found), part


def test_unknown_commands_are_rejected(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for line in ("geonet geodesic a.png b.png", "make nothing", "pip install nothing", "rm a.png"):
        with pytest.raises(AssertionError, match=line.split()[-1]):
            run_command(line, capsys)


# ---- install hints

HINT = re.compile(r"(?<![\w./-])(geonet(?:-ot)?|\.)\[([\w, ]+)\](?=['\"`\s])")
INSTALL = re.compile(r"pip install (?:-\S+ )*'?(geonet[\w-]*)")
FOLDERS = ("src", "docs", "benchmarks", "experiments", "examples")
SUFFIXES = (".md", ".py", ".toml", ".yml", ".js", ".html", ".ipynb")


def find_install_hints(text: str) -> list[tuple[str, list[str]]]:
    """Return the distributions and extras that a text proposes to install."""
    hints = [(name, []) for name in INSTALL.findall(text)]
    for match in HINT.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.end() + 1]
        if "pip" in line or match[1] != ".":
            hints.append((match[1], re.split(", *", match[2])))
    return hints


def test_install_hints_name_this_distribution_and_its_extras():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "pyproject.toml"]
    found = 0
    for file in files:
        if file.suffix not in SUFFIXES:
            continue
        for name, extras in find_install_hints(file.read_text(encoding="utf-8")):
            assert name in (DISTRIBUTION, "."), f"{file} proposes {name}"
            assert set(extras) <= set(list_extras()), f"{file} proposes the extras {extras}"
            found += 1
    assert found > 15  # the pages, the error messages and pyproject.toml itself


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("run pip install 'geonet[onnx]'.", [("geonet", []), ("geonet", ["onnx"])]),
        ("pip install geonet", [("geonet", [])]),
        ("`pip install '.[app,onnx]'`", [(".", ["app", "onnx"])]),
        ("values.geonet[0] and a[.] and x.[b]", []),
    ],
)
def test_install_hints_are_found(text, hints):
    assert find_install_hints(text) == hints


# ---- objects of the API reference


def list_objects(page: Path) -> list[str]:
    """Return the objects of the `:::` directives of a page by the place of their definition."""
    objects = []
    for path, options in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
        members = re.search(r"members: \[(.*)\]", options)
        objects += resolve(path, members and [part.strip() for part in members[1].split(",")])
    return objects


def resolve(path: str, members: list[str] | None = None) -> list[str]:
    """Return an object, or a module with the public names that it defines."""
    try:
        module = import_module(path)
    except ModuleNotFoundError:
        home, _, last = path.rpartition(".")
        value = import_object(f"{home}:{last}")
        return [f"{value.__module__}.{value.__qualname__}"]
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == path]
    chosen = own if members is None else members
    return [path, *(f"{path}.{key}" for key in chosen if not key.startswith("_"))]


def test_every_object_is_documented_once():
    """An object on two pages would make links ambiguous."""
    counts = Counter(path for page in PAGES for path in list_objects(page))
    assert len(counts) > 80
    assert [path for path, count in counts.items() if count > 1] == []


def test_objects_are_resolved_to_their_definition():
    assert resolve("geonet.Grid") == ["geonet.grid.Grid"]
    assert "geonet.errors.GridError" in resolve("geonet.errors")
    assert resolve("geonet.metrics", ["l1"]) == ["geonet.metrics", "geonet.metrics.l1"]


# ---- links and navigation


def test_readme_shows_python():
    assert any(block.language == "python" for block in parse_blocks(ROOT / "README.md"))


def test_first_page_of_the_site_is_the_readme(monkeypatch):
    """All links of the page lead to files of docs/."""
    monkeypatch.syspath_prepend(str(ROOT))
    hooks = import_module("mkdocs_hooks")
    page = hooks.on_page_markdown((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert page.startswith("# geonet\n")
    links = [link.split("#")[0] for link in LINK.findall(page) if "://" not in link]
    assert "quickstart.md" in links and "images/overview.png" in links
    assert all((ROOT / "docs" / link).exists() for link in links)
    assert "CONTRIBUTING.md" in page and "CONTRIBUTING.md" not in links


@pytest.mark.parametrize("command", COMMANDS)
def test_readme_names_the_commands(command):
    assert command in [
        line for block in parse_blocks(ROOT / "README.md") for line in block.commands()
    ]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_relative_links_exist(page):
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(prose) if "://" not in link]
    missing = [
        link
        for link in links
        if not link.startswith(("#", "mailto:")) and not (page.parent / link.split("#")[0]).exists()
    ]
    assert not missing, f"{page_name(page)} links to {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_rows_of_tables_are_single_lines(page):
    """A wrapped row would end the table, or become a row of its own."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    rows = [line for line in prose.splitlines() if "|" in (line[:1], line.rstrip()[-1:])]
    assert [row for row in rows if row[0] != "|" or row.rstrip()[-1] != "|"] == []


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert re.search(rf": {re.escape(page.name)}$", navigation, re.MULTILINE), page.name


# Former messages with wrong grammar or vague words, as printed and as written in the source.
FORMER = re.compile(
    r"holds 1 negative values|holds \{[^}]*\} negative values|holds answers with other|"
    r"check that it is whole|as good as equal|went away before all was written|"
    r"A second run does what is missing|the way of least effort|the fastest to be trusted"
)
JOINT = re.compile(r"""(["'])\s+f?\1""")  # between the parts of a string of several lines


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("holds {int((frame < 0).sum())} negative values", True),
        ('"{file} went away before all "\n    f"was written"', True),
        ("holds {count} values", False),
    ],
)
def test_former_messages_are_found(text, is_found):
    assert (FORMER.search(JOINT.sub("", text)) is not None) == is_found


def test_former_messages_do_not_return():
    sources = [file for file in (ROOT / "src").rglob("*") if file.suffix in SUFFIXES]
    texts = {file: JOINT.sub("", file.read_text(encoding="utf-8")) for file in sources}
    assert [file for file, text in texts.items() if FORMER.search(text)] == []


@pytest.mark.parametrize("solver", list_solver_names())
def test_every_solver_is_documented(solver):
    """Every solver has a section, and the models of the experiments a row of a table."""
    page = (ROOT / "docs" / "solvers.md").read_text(encoding="utf-8")
    is_experiment = (ROOT / "experiments" / "models" / f"{solver}.safetensors").is_file()
    assert (f"| `{solver}` |" if is_experiment else f"\n## {solver}\n") in page
