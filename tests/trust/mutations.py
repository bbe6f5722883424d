"""Seeded damage to the bytes of valid files, outside and, with valid checksums, inside."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from safetensors import safe_open

from geonet._toml import to_toml
from geonet.solvers.neural.model import write_tensors

Mutation = Callable[[bytes, Generator], bytes]
HEAD = 200  # bytes, within which most formats have their sizes
HUGE = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
NUMBERS = (
    "0",
    "-1",
    "1e999",
    "nan",
    "-inf",
    "1e-320",
    f"{10**12}",
    f"{10**30}",
    5000 * "9",
    "1e308",
)
ODD_TEXT = (
    "",
    "\0",
    "é",
    "Ω̃",
    "\u202e",
    "😀",
    "\ufeff",
    "\u2028",
    "١٢٣",
    "a\nb",
    "../x",
    300 * "n",
)
ODD_NUMBERS = (0, -1, 10**6, 10**19, 10**400, 1e308, float("nan"), float("inf"))
ODD_OBJECTS = (None, True, [], {}, [[]], [1, 2, 3], {"a": 1}, "geonet", "transport", "stack")
ODD_VALUES: tuple[Any, ...] = (*ODD_NUMBERS, *ODD_OBJECTS, *ODD_TEXT)


# ---- Bytes of any file


def flip_bits(content: bytes, rng: Generator) -> bytes:
    """Flip some bits."""
    array = np.frombuffer(content, np.uint8).copy()
    for _ in range(rng.integers(1, 9)):
        array[_place(content, rng)] ^= 1 << rng.integers(8)
    return array.tobytes()


def cut_piece(content: bytes, rng: Generator) -> bytes:
    """Keep the beginning alone, or all but a piece."""
    start, stop = sorted(rng.integers(0, len(content) + 1, 2))
    return content[:start] + (content[stop:] if rng.random() < 0.5 else b"")


def insert_noise(content: bytes, rng: Generator) -> bytes:
    """Insert noise in the middle."""
    place = _place(content, rng)
    return content[:place] + rng.bytes(rng.integers(1, 64)) + content[place:]


def repeat_piece(content: bytes, rng: Generator) -> bytes:
    """Repeat a piece."""
    start, stop = sorted(rng.integers(0, len(content) + 1, 2))
    return content[:stop] + int(rng.integers(1, 5)) * content[start:stop] + content[stop:]


def blank_piece(content: bytes, rng: Generator) -> bytes:
    """Replace a piece by zeros or ones."""
    start, count = _place(content, rng), int(rng.integers(1, 64))
    piece = content[start : start + count]
    return content[:start] + rng.choice([b"\0", b"\xff"]) * len(piece) + content[start + count :]


def enlarge_size(content: bytes, rng: Generator) -> bytes:
    """Write a huge number of two, four or eight bytes near the beginning."""
    size, order = int(rng.choice([2, 4, 8])), rng.choice(["little", "big"])
    number = (int(rng.choice(np.array(HUGE, object))) % 256**size).to_bytes(size, order)  # type: ignore[arg-type]
    place = int(rng.integers(0, max(1, min(len(content), HEAD) - size)))
    return content[:place] + number + content[place + size :]


def change_number(content: bytes, rng: Generator) -> bytes:
    """Change a number that is written in digits."""
    return _one_match(rb"\d+(\.\d+)?", content, rng, str(rng.choice(NUMBERS)).encode())


def change_word(content: bytes, rng: Generator) -> bytes:
    """Change a word."""
    return _one_match(rb"[A-Za-z_]{2,}", content, rng, str(rng.choice(ODD_TEXT)).encode())


def replace_by_noise(content: bytes, rng: Generator) -> bytes:
    """Replace everything but the first bytes by noise."""
    return content[: int(rng.integers(0, 12))] + rng.bytes(rng.integers(1, 2000))


def replace_by_text(content: bytes, rng: Generator) -> bytes:
    """Return odd characters instead."""
    return "".join(rng.choice(ODD_TEXT, rng.integers(1, 40))).encode(
        str(rng.choice(["utf-8", "utf-16", "utf-32"]))
    )


def empty_file(content: bytes, rng: Generator) -> bytes:
    """Return no bytes."""
    return b""


OUTSIDE: tuple[Mutation, ...] = (
    flip_bits,
    cut_piece,
    insert_noise,
    repeat_piece,
    blank_piece,
    enlarge_size,
    change_number,
    change_word,
    replace_by_noise,
    replace_by_text,
    empty_file,
)


def _place(content: bytes, rng: Generator) -> int:
    """Return a random place, half of the time in the header."""
    return int(rng.integers(min(HEAD, len(content)) if rng.random() < 0.5 else len(content)))


def _one_match(pattern: bytes, content: bytes, rng: Generator, new: bytes) -> bytes:
    found = [*re.finditer(pattern, content)]
    if not found:
        return flip_bits(content, rng)
    match = found[rng.integers(len(found))]
    return content[: match.start()] + new + content[match.end() :]


# ---- Contents with valid checksums


def png_inside(content: bytes, rng: Generator) -> bytes:
    """Change a chunk of a PNG, mostly the first, which has the sizes."""
    chunks, place = [], 8
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + size]))
        place += size + 12
    k = 0 if rng.random() < 0.5 else int(rng.integers(len(chunks)))
    kind, data = chunks[k]
    if kind == b"IDAT":
        data = zlib.compress(_any(zlib.decompress(data), rng))
    chunks[k] = kind, _any(data, rng) if data and kind != b"IDAT" else data
    parts = [
        struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d))
        for name, d in chunks
    ]
    return content[:8] + b"".join(parts)


def gzip_inside(content: bytes, rng: Generator) -> bytes:
    """Change the compressed bytes."""
    return gzip.compress(_any(gzip.decompress(content), rng), 1)


def npz_inside(content: bytes, rng: Generator) -> bytes:
    """Change, remove or rename an array of an archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = str(rng.choice(list(members)))
    kind = rng.random()
    if kind < 0.1:
        members[str(rng.choice(ODD_TEXT[1:]))] = members.pop(name)
    elif kind < 0.2:
        del members[name]
    elif kind < 0.5:
        members[name] = _any(members[name], rng)
    else:
        members[name] = _npy(_odd_array(np.load(io.BytesIO(members[name])), rng))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return stream.getvalue()


def npy_inside(content: bytes, rng: Generator) -> bytes:
    """Change the array."""
    return _npy(_odd_array(np.load(io.BytesIO(content)), rng))


def json_inside(content: bytes, rng: Generator) -> bytes:
    """Change, remove or add an entry of a JSON table."""
    return json.dumps(_odd_table(json.loads(content), rng)).encode()


def toml_inside(content: bytes, rng: Generator) -> bytes:
    """Change, remove or add an entry of a TOML table."""
    table = _odd_table(tomllib.loads(content.decode()), rng)
    return (to_toml(table) if isinstance(table, dict) else repr(table)).encode()


def weights_inside(content: bytes, rng: Generator) -> bytes:
    """Change the header or a tensor, with a valid signature."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "whole.safetensors"
        file.write_bytes(content)
        with safe_open(file, "pt") as archive:
            header = json.loads(archive.metadata()["geonet"])
            tensors = {name: archive.get_tensor(name).clone() for name in archive.keys()}  # noqa: SIM118
        if rng.random() < 0.7:
            header = _odd_table(header, rng)
        else:
            name = str(rng.choice(list(tensors)))
            changed = tensors.pop(name)
            match rng.integers(4):
                case 0:
                    tensors[name] = changed.reshape(-1)[:0].clone()
                case 1:
                    tensors[name] = (
                        changed * float("nan") if changed.is_floating_point() else changed
                    )
                case 2:
                    tensors["odd/name/of it"] = changed
                case _:
                    pass  # left out
        write_tensors(file, tensors, header)
        return file.read_bytes()


def _any(content: bytes, rng: Generator) -> bytes:
    return OUTSIDE[rng.integers(len(OUTSIDE))](content, rng) if content else b"x"


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _odd_array(array: np.ndarray, rng: Generator) -> np.ndarray:
    if array.dtype.kind == "U":  # a table in JSON, or a name
        try:
            return np.array(json.dumps(_odd_table(json.loads(str(array)), rng)))
        except ValueError:
            return np.array(str(rng.choice(ODD_TEXT)))
    flat = array.reshape(-1)
    match rng.integers(10):
        case 0:
            return flat
        case 1:
            return array[None]
        case 2:
            return flat[: len(flat) // 2]
        case 3:
            return array.astype(rng.choice(["f2", "i1", "u8", "?", "c16", "U8", "S4", "g", ">f8"]))
        case 4:
            return np.array([None, {}], object)
        case 5:
            return np.zeros((0, *array.shape[1:]), array.dtype)
        case 6:
            return np.zeros(3, [("a", "f8")])
        case 7:
            return np.array(str(rng.choice(ODD_TEXT)))
        case 8:
            return np.array(rng.choice([np.nan, np.inf, -1.0, 1e308, 1e-320, 0.0]))
        case _:
            changed = flat.astype(np.float64)
            some = rng.integers(0, max(1, len(flat)), 3)
            if len(flat):
                changed[some] = rng.choice([np.nan, np.inf, -1.0, 1e308, 1e-320, 0.0, 1e12], 3)
            return changed.reshape(array.shape)


def _odd_table(table: Any, rng: Generator) -> Any:
    """Change an entry of a nested table or list."""
    if not isinstance(table, dict | list) or not table or rng.random() < 0.1:
        return ODD_VALUES[rng.integers(len(ODD_VALUES))]
    keys = list(table) if isinstance(table, dict) else list(range(len(table)))
    key = keys[rng.integers(len(keys))]
    changed: Any = table.copy()
    kind = rng.random()
    if kind < 0.15:
        del changed[key]
    elif kind < 0.25 and isinstance(table, dict):
        changed[str(rng.choice(ODD_TEXT))] = changed[key]
    else:
        changed[key] = _odd_table(table[key], rng)
    return changed
