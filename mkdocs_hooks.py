"""Hooks of mkdocs: the README is the first page, and comments with directives show documentation.

The README links to files of the repository. On the site, links into docs/ become links between
pages, and links to files that are not part of the site become plain text. Directives of
mkdocstrings, `::: object`, are in comments, so that other viewers of Markdown do not show them.
"""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).with_name("README.md")
INCLUDE = '--8<-- "README.md"'
DIRECTIVE = re.compile(r"^<!-- (::: .*?) -->$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the include directive by the README, and comments with directives by these."""
    return DIRECTIVE.sub(r"\1", markdown.replace(INCLUDE, read_readme()))


def read_readme() -> str:
    """Return the README with the links of a page in docs/."""
    return LINK.sub(_rewrite_link, README.read_text(encoding="utf-8"))


def _rewrite_link(link: re.Match[str]) -> str:
    image, label, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link[0]
    if target.startswith("docs/"):
        return f"{image}[{label}]({target.removeprefix('docs/')})"
    return label
