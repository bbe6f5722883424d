"""The table of the page's files."""

from __future__ import annotations

import json

from geonet.app.routes import page_files


def test_settings_cannot_end_their_script():
    given = {"label": "</script><script>alert(1)</script>"}
    text = page_files(given)["index.html"].content.decode()
    assert "alert(1)<" not in text
    start = text.index('{"label"')
    assert json.loads(text[start : text.index("</script>", start)]) == given


def test_there_is_no_code_in_it():
    assert all(not name.endswith((".py", ".pyc")) for name in page_files({}))
