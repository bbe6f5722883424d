"""MNIST: location, download and checks of the files, the idx format, digits as densities."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import struct
import tracemalloc
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

import geonet
from experiments import mnist as module
from experiments import mnist_subset
from experiments.mnist import as_densities, mnist, read_idx, sample_digits
from geonet.errors import DensityError, FileError, InputError

TYPES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
RNG = np.random.default_rng(0)
ARRAYS = {
    part: (
        RNG.integers(0, 256, (count, 28, 28)).astype(np.uint8),
        RNG.integers(0, 10, count).astype(np.uint8),
    )
    for part, count in (("train", 6), ("test", 4))
}
IMAGES, LABELS = module.NAMES["test"]


def write_idx(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """Return the content of an idx file; `shape` replaces the shape in its header."""
    shape = array.shape if shape is None else shape
    kind = array.dtype.str[1:]
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, TYPES[kind], len(shape), *shape)
    return header + array.astype(f">{kind}").tobytes()


CONTENTS = {
    name: gzip.compress(write_idx(array), mtime=0)
    for part, arrays in ARRAYS.items()
    for name, array in zip(module.NAMES[part], arrays, strict=True)
}


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Replace MNIST by ten digits; return the folder for downloads, which does not exist yet."""
    for name in ("GEONET_DATA", "GEONET_MNIST_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")  # the mirror is on this machine
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sums = {name: hashlib.md5(content).hexdigest() for name, content in CONTENTS.items()}
    monkeypatch.setattr(module, "CHECKSUMS", sums)
    return tmp_path / "cache" / "geonet" / "mnist"


@pytest.fixture
def mirror(cache, monkeypatch, tmp_path):
    """Serve the files of a folder on this machine; return the folder."""
    folder = tmp_path / "mirror"
    write_files(folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        thread = Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        monkeypatch.setenv("GEONET_MNIST_URL", f"http://127.0.0.1:{server.server_port}/")
        yield folder
        server.shutdown()
        thread.join()


class Handler(SimpleHTTPRequestHandler):
    """Silent handler."""

    def log_message(self, format, *args):
        pass


def write_files(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)


def assert_equal(digits, part):
    images, labels = ARRAYS[part]
    assert len(digits) == len(labels)
    assert np.array_equal(digits.images, images) and np.array_equal(digits.labels, labels)


def list_files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


# ---- Location and download


@pytest.mark.parametrize("subfolder", ["", "mnist"])
def test_files_are_read_from_a_folder(cache, monkeypatch, tmp_path, subfolder):
    monkeypatch.setenv("GEONET_DATA", str(tmp_path))
    write_files(tmp_path / subfolder)
    for part in ("train", "test"):
        assert_equal(mnist(part), part)
    file = tmp_path / subfolder / IMAGES
    file.write_bytes(CONTENTS[LABELS])
    with pytest.raises(FileError, match=f"{IMAGES} is not the original"):
        mnist("test")
    file.unlink()
    with pytest.raises(FileError, match=f"no {IMAGES} in .*GEONET_DATA"):
        mnist("test")
    with pytest.raises(InputError, match="part is 'valid'"):
        mnist("valid")
    assert not cache.exists()


def test_missing_files_are_downloaded_once(cache, mirror):
    assert_equal(mnist("test"), "test")
    (mirror / IMAGES).unlink()
    assert_equal(mnist("test"), "test")
    assert list_files(cache) == [IMAGES, LABELS]
    (cache / LABELS).write_bytes(b"damaged")
    with pytest.raises(FileError, match=f"{LABELS} is not.*delete it"):
        mnist("test")


def test_default_cache_is_in_the_home_folder(mirror, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/folder")  # to be ignored
    mnist("test")
    assert list_files(tmp_path / ".cache" / "geonet" / "mnist") == [IMAGES, LABELS]
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(FileError, match="no home folder"):
        mnist("test")


@pytest.mark.parametrize("fault", ["wrong", "long", "404", "disk", "folder"])
def test_failed_downloads_leave_no_file(cache, mirror, monkeypatch, tmp_path, fault):
    if fault == "wrong":
        (mirror / IMAGES).write_bytes(CONTENTS[LABELS])
    elif fault == "long":
        monkeypatch.setattr(module, "MAX_BYTES", len(CONTENTS[IMAGES]) - 1)
    elif fault == "404":
        (mirror / IMAGES).unlink()
    elif fault == "folder":
        (tmp_path / "cache").write_text("a file in place of the folder")
    else:

        def write_half(file, content):
            with file.open("wb") as stream:
                stream.write(content[:100])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(FileError, match="mnist|GEONET_DATA"):
        mnist("test")
    assert list_files(cache) == []


def test_servers_that_do_not_answer(cache, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.05)
    with HTTPServer(("127.0.0.1", 0), Handler) as silent:  # accepts connections, serves none
        port = silent.server_port
        monkeypatch.setenv("GEONET_MNIST_URL", f"http://127.0.0.1:{port}")
        with pytest.raises(FileError, match="timed out"):
            mnist("test")
    for url in (f"http://127.0.0.1:{port}", "nonsense", "http://[", "http://127.0.0.1:9/a b"):
        monkeypatch.setenv("GEONET_MNIST_URL", url)
        with pytest.raises(FileError, match="Cannot download .+: .+; set GEONET_DATA"):
            mnist("test")


# ---- The idx format


@pytest.mark.parametrize("kind", TYPES)
def test_arrays_of_every_type_are_read(tmp_path, kind):
    for shape in ((7,), (3, 4, 5), (0, 28, 28)):
        array = (100 * RNG.normal(size=shape)).astype(np.int8).astype(kind)
        (tmp_path / "digits").write_bytes(write_idx(array))
        result = read_idx(tmp_path / "digits")
        assert result.dtype == np.dtype(kind) and result.shape == shape
        assert np.array_equal(result, array)
        torch.from_numpy(result)  # warns if the array is not writable


VALID = write_idx(np.zeros((3, 4, 5), np.uint8))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0\0\x08", b"\1" + VALID[1:], b"\0\0\x0a" + VALID[3:], VALID[:9]),
        *(VALID[:-1], VALID + b"\0", write_idx(np.zeros(1, np.uint8), (1,) * 255)),
    ],
)
def test_invalid_files_raise(tmp_path, content):
    (tmp_path / "digits").write_bytes(content)
    (tmp_path / "digits.gz").write_bytes(gzip.compress(content))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(content)[:-9])
    for name in ("digits", "digits.gz", "cut.gz"):
        with pytest.raises(FileError, match=name):
            read_idx(tmp_path / name)


def test_memory_does_not_depend_on_the_header(tmp_path):
    file = tmp_path / "digits"
    file.write_bytes(write_idx(np.zeros(60, np.uint8), (2**24, 28, 28)))
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="fewer values"):
            read_idx(file)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


# ---- The sample and densities


def test_sample_has_a_hundred_digits_of_each_class(tmp_path):
    digits = sample_digits()
    assert digits.images.shape == (1000, 28, 28) and digits.images.dtype == np.uint8
    assert np.bincount(digits.labels).tolist() == [100] * 10
    for name in ("a.npz", "b.npz"):
        mnist_subset.write(mnist_subset.subset(digits), tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz") as arrays:
        assert np.array_equal(arrays["images"], digits.images)


def test_densities_agree_with_from_image_and_scipy(tmp_path):
    images = sample_digits().images[:3]
    sharp, blurred = (as_densities(images, blur, 0) for blur in (0, 1.5))
    for k, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "digit.png")
        expected = geonet.from_image(tmp_path / "digit.png")
        assert sharp.grid == expected.grid == geonet.Grid((28, 28))
        assert torch.allclose(sharp[k].tensor, expected.tensor)
        filtered = gaussian_filter(image.astype(float), 1.5, mode="reflect")
        expected = geonet.Density(filtered, sharp.grid)
        assert torch.allclose(blurred[k].tensor, expected.tensor)
    assert torch.allclose(sharp.mass, blurred.mass)
    floored = as_densities(images, 1.5, 0.3).tensor
    assert torch.allclose(floored, 0.7 * blurred.tensor + 0.3)


def test_invalid_images_blurs_and_floors_raise():
    images = np.ones((2, 28, 28), np.uint8)
    for wrong in (images[0], images[:, :27], images[:0], 0 * images):
        with pytest.raises(DensityError):
            as_densities(wrong, 1.0, 0.1)
    for blur in (-1.0, 28.5, float("nan")):
        with pytest.raises(InputError, match="blur is"):
            as_densities(images, blur, 0.1)
    with pytest.raises(DensityError, match="floor is"):
        as_densities(images, 1.0, 1.0)
