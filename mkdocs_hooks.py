"""Hooks of mkdocs: the first page of the site is the README.

The README links to files of the repository. On the site, links into docs/ become links between
pages, and links to files that are not part of the site become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).with_name("README.md")
INCLUDE = '--8<-- "README.md"'
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the include directive of a page by the README."""
    return markdown.replace(INCLUDE, read_readme())


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
