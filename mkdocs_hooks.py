"""Hooks of mkdocs: the README is the first page, and comments with directives show documentation.

The README links to files of the repository, and so do pages. On the site, links into docs/ become
links between pages, and links to files that are not part of the site become plain text. Directives
of mkdocstrings, `::: object`, and the scripts of the gallery, `example: NAME`, are in comments, so
that other viewers of Markdown do not show them.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent
INCLUDE = '--8<-- "README.md"'
DIRECTIVE = re.compile(r"^<!-- (::: .*?) -->$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^<!-- example: (\w+) -->$", re.MULTILINE)
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./[^)\s]+\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the include directive by the README, and comments by what they name."""
    text = OUTSIDE.sub(r"\1", markdown).replace(INCLUDE, read_readme())
    text = EXAMPLE.sub(lambda found: render_example(found[1]), text)
    return DIRECTIVE.sub(r"\1", text)


def read_readme() -> str:
    """Return the README with the links of a page in docs/."""
    return LINK.sub(_rewrite_link, (ROOT / "README.md").read_text(encoding="utf-8"))


def _rewrite_link(link: re.Match[str]) -> str:
    image, label, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link[0]
    if target.startswith("docs/"):
        return f"{image}[{label}]({target.removeprefix('docs/')})"
    return label


def render_example(name: str) -> str:
    """Return a script in percent format as a collapsed block of text and code."""
    script = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    _, *parts = CELL.split(script)  # pairs: " [markdown]" or None, and the cell
    cells = [
        _render_text(cell) if kind else f"```python\n{cell.strip()}\n```"
        for kind, cell in zip(parts[::2], parts[1::2], strict=True)
    ]
    lines = "\n\n".join(cells).splitlines()
    body = "\n".join(f"    {line}" if line else "" for line in lines)
    return f'??? example "{name}.py"\n\n{body}\n'


def _render_text(cell: str) -> str:
    """Return a Markdown cell without its title; other headings become bold lines."""
    lines = [line.removeprefix("#").removeprefix(" ") for line in cell.strip().splitlines()]
    text = "\n".join(line for line in lines if not line.startswith("# ")).strip()
    return re.sub(r"^## (.*)$", r"**\1**", text, flags=re.MULTILINE)
