"""The files of the page, read when the server starts: no request ever names a path."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

FOLDERS = ("app/page", "plotting/viewer")
INDEX, SETTINGS = "index.html", "__SETTINGS__"
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page.

    Attributes:
        content: its bytes.
        media_type: what they are.
    """

    content: bytes
    media_type: str


def page_files(settings: dict[str, Any]) -> dict[str, PageFile]:
    """All of them by name, with the settings in the first page."""
    found: dict[str, PageFile] = {}
    for folder in FOLDERS:
        for file in files("geonet").joinpath(folder).iterdir():
            media_type = MEDIA_TYPES.get(PurePosixPath(file.name).suffix)
            if media_type is not None:
                found[file.name] = PageFile(file.read_bytes(), media_type)
    index = found[INDEX].content.decode().replace(SETTINGS, _safe_json(settings))
    return found | {INDEX: PageFile(index.encode(), MEDIA_TYPES[".html"])}


def _safe_json(data: dict[str, Any]) -> str:
    """JSON that cannot end the script that it stands in."""
    return json.dumps(data).replace("<", "\\u003c")
