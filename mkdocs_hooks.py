"""Hooks of mkdocs: the first page of the site is the README.

The README links to files of the repository. On the site, links into docs/ become links between
pages, and links to files that are not part of the site become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).with_name("README.md")
INCLUDED = '--8<-- "README.md"'
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page, with the README in the place that is marked for it."""
    return markdown.replace(INCLUDED, readme())


def readme() -> str:
    """The README as a page in docs/."""
    return LINK.sub(_moved, README.read_text(encoding="utf-8"))


def _moved(link: re.Match[str]) -> str:
    picture, label, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link[0]
    if target.startswith("docs/"):
        return f"{picture}[{label}]({target.removeprefix('docs/')})"
    return label
