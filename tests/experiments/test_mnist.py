"""MNIST is found, fetched and checked; its digits become upright densities of mass one."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import struct
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

import geonet
from experiments import mnist as module
from experiments.mnist import as_densities, mnist, sample_digits
from geonet.errors import DensityError, FileError, InputError

BENCHMARKS = Path(__file__).resolve().parents[2] / "studies" / "pages"
VARIABLES = ("GEONET_DATA", "GEONET_MNIST_URL", "XDG_CACHE_HOME")
RNG = np.random.default_rng(0)
COUNTS = {"train": 6, "test": 4}
ARRAYS = {
    part: (
        RNG.integers(0, 256, (count, 28, 28)).astype(np.uint8),
        RNG.integers(0, 10, count).astype(np.uint8),
    )
    for part, count in COUNTS.items()
}
real_data = pytest.mark.skipif(not os.environ.get("GEONET_DATA"), reason="needs GEONET_DATA")


def zipped(array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 0x08, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


CONTENTS = {
    name: zipped(array)
    for part, arrays in ARRAYS.items()
    for name, array in zip(module.NAMES[part], arrays, strict=True)
}
IMAGES, LABELS = module.NAMES["test"]


@pytest.fixture
def small(monkeypatch):
    """A world in which MNIST has ten digits and no variable is set."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")  # the mirror is on this machine
    sums = {name: hashlib.md5(content).hexdigest() for name, content in CONTENTS.items()}
    monkeypatch.setattr(module, "CHECKSUMS", sums)


@pytest.fixture
def data(small, monkeypatch, tmp_path):
    """Writes the files into a folder, or one below it, that GEONET_DATA names."""

    def put(subfolder=""):
        folder = tmp_path / subfolder
        folder.mkdir(exist_ok=True)
        for name, content in CONTENTS.items():
            (folder / name).write_bytes(content)
        monkeypatch.setenv("GEONET_DATA", str(tmp_path))
        return folder

    return put


@pytest.fixture
def cache(small, monkeypatch, tmp_path):
    """The folder for downloads; it does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "geonet" / "mnist"


@pytest.fixture
def server(monkeypatch):
    """Serves the files as the mirror; change `contents`, look at what was `asked` for."""
    mirror = Mirror()
    thread = Thread(target=partial(mirror.serve_forever, poll_interval=0.01))
    thread.start()
    monkeypatch.setenv("GEONET_MNIST_URL", mirror.url)
    yield mirror
    mirror.shutdown()
    thread.join()
    mirror.server_close()


class Mirror(ThreadingHTTPServer):
    """Knows /digits/<name>; `promised` more bytes are announced than sent."""

    daemon_threads = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.contents, self.asked, self.promised = dict(CONTENTS), [], 0
        self.url = f"http://127.0.0.1:{self.server_port}/digits"


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Mirror

    def do_GET(self):
        folder, _, name = self.path.rpartition("/")
        self.server.asked.append(name)
        if folder != "/digits" or name not in self.server.contents:
            self.send_error(404)
            return
        content = self.server.contents[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) + self.server.promised))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format, *args):
        pass


def assert_is(digits, part):
    images, labels = ARRAYS[part]
    assert len(digits) == COUNTS[part]
    assert digits.images.dtype == digits.labels.dtype == np.uint8
    assert np.array_equal(digits.images, images) and np.array_equal(digits.labels, labels)


def names_in(folder):
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


# ---- a folder with the files


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("subfolder", ["", "mnist"])
def test_files_are_found_in_the_folder_and_below(data, server, part, subfolder):
    data(subfolder)
    assert_is(mnist(part), part)
    assert not server.asked


def test_the_folder_may_begin_with_the_home(data, monkeypatch, tmp_path):
    data()
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    monkeypatch.setenv("GEONET_DATA", f"~/{tmp_path.name}")
    assert_is(mnist("test"), "test")


@pytest.mark.parametrize("missing", [IMAGES, LABELS])
def test_a_missing_file_is_said_and_not_downloaded(data, server, cache, missing):
    (data() / missing).unlink()
    with pytest.raises(FileError, match=f"no {missing} in .*GEONET_DATA.*put it there, or unset"):
        mnist("test")
    assert not server.asked and not cache.exists()


def test_a_missing_folder_is_said(small, monkeypatch, tmp_path):
    monkeypatch.setenv("GEONET_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileError, match=f"There is no {IMAGES} in .*nowhere"):
        mnist("test")


@pytest.mark.parametrize("wrong", [IMAGES, LABELS])
def test_another_file_of_the_name_is_refused(data, wrong):
    file = data() / wrong
    file.write_bytes(CONTENTS[module.NAMES["train"][wrong == LABELS]])
    with pytest.raises(FileError, match=f"{file} is not the original.*delete it and get it again"):
        mnist("test")
    assert_is(mnist("train"), "train")


def test_an_unknown_part_is_refused(data):
    data()
    with pytest.raises(InputError, match="part is 'valid'; give 'train' or 'test'"):
        mnist("valid")


def test_the_checksums_are_the_published_ones():
    assert module.CHECKSUMS == {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    }


@real_data
@pytest.mark.parametrize(("part", "count"), [("train", 60_000), ("test", 10_000)])
def test_the_real_files(part, count):
    digits = mnist(part)
    assert digits.images.shape == (count, 28, 28) and digits.labels.shape == (count,)
    assert digits.labels[:5].tolist() == {"train": [5, 0, 4, 1, 9], "test": [7, 2, 1, 0, 4]}[part]


# ---- download


@pytest.mark.parametrize("part", ["train", "test"])
def test_files_are_downloaded_once(cache, server, part):
    for _ in range(2):
        assert_is(mnist(part), part)
    assert server.asked == list(module.NAMES[part])
    assert names_in(cache) == sorted(module.NAMES[part])


def test_only_what_is_missing_is_downloaded(cache, server):
    cache.mkdir(parents=True)
    (cache / IMAGES).write_bytes(CONTENTS[IMAGES])
    assert_is(mnist("test"), "test")
    assert server.asked == [LABELS]


def test_a_mirror_may_end_in_a_slash(cache, server, monkeypatch):
    monkeypatch.setenv("GEONET_MNIST_URL", server.url + "/")
    assert_is(mnist("test"), "test")


def test_the_mirror_is_used_unless_another_is_named(cache, server, monkeypatch):
    monkeypatch.delenv("GEONET_MNIST_URL")
    monkeypatch.setattr(module, "URL", server.url + "/")
    assert_is(mnist("test"), "test")


@pytest.mark.parametrize("variable", [None, "", "relative/folder"])
def test_the_cache_is_in_the_home_by_default(small, server, monkeypatch, tmp_path, variable):
    monkeypatch.setenv("HOME", str(tmp_path))
    if variable is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
    mnist("test")
    assert names_in(tmp_path / ".cache" / "geonet" / "mnist") == [IMAGES, LABELS]


def test_an_empty_variable_is_an_unset_one(cache, server, monkeypatch):
    monkeypatch.setenv("GEONET_DATA", "")
    assert_is(mnist("test"), "test")
    assert names_in(cache) == [IMAGES, LABELS]


def test_wrong_bytes_leave_nothing(cache, server):
    server.contents[IMAGES] = CONTENTS[IMAGES][:-1] + b"?"
    with pytest.raises(FileError, match=f"What {server.url}/{IMAGES} sends is not.*GEONET_DATA"):
        mnist("test")
    assert names_in(cache) == []


def test_a_download_that_breaks_off_leaves_nothing(cache, server):
    server.promised = 1
    server.contents[IMAGES] = CONTENTS[IMAGES][:100]
    with pytest.raises(FileError, match=IMAGES):
        mnist("test")
    assert names_in(cache) == []


def test_a_full_disk_leaves_nothing(cache, server, monkeypatch):
    def write_half(file, content):
        with file.open("wb") as stream:
            stream.write(content[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(FileError, match=f"Cannot write {cache / IMAGES}: No space left"):
        mnist("test")
    assert names_in(cache) == []


def test_an_endless_download_is_cut(cache, server, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", len(CONTENTS[IMAGES]) - 1)
    with pytest.raises(FileError, match="is not the original"):
        mnist("test")
    assert names_in(cache) == []


def test_the_limit_leaves_room_for_the_largest_file():
    assert module.MAX_BYTES > 9_912_422


def test_a_file_that_the_server_lacks_is_said(cache, server):
    del server.contents[LABELS]
    said = f"Cannot download {server.url}/{LABELS}: Not Found; set GEONET_DATA"
    with pytest.raises(FileError, match=said) as raised:
        mnist("test")
    assert raised.value.__cause__.closed
    assert names_in(cache) == [IMAGES]


def test_no_network_is_said(cache, monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Answer) as closed:
        port = closed.server_port
    monkeypatch.setenv("GEONET_MNIST_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(FileError, match=r"Cannot download .*refused; set GEONET_DATA to a folder"):
        mnist("test")
    assert not cache.exists()


def test_a_server_that_does_not_answer_is_given_up(cache, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.05)
    with HTTPServer(("127.0.0.1", 0), Answer) as silent:  # takes connections, serves none
        monkeypatch.setenv("GEONET_MNIST_URL", f"http://127.0.0.1:{silent.server_port}")
        with pytest.raises(FileError, match="Cannot download .*timed out; set GEONET_DATA"):
            mnist("test")


@pytest.mark.parametrize(
    "url", ["nonsense", "http://", "http://[", "gopher://host", "http://127.0.0.1:9/a b"]
)
def test_what_is_no_url_is_said(cache, monkeypatch, url):
    monkeypatch.setenv("GEONET_MNIST_URL", url)
    with pytest.raises(FileError, match="Cannot download .+: .+; set GEONET_DATA"):
        mnist("test")


def test_a_damaged_file_in_the_cache_is_refused(cache, server):
    mnist("test")
    (cache / LABELS).write_bytes(b"damaged")
    with pytest.raises(FileError, match=f"{cache / LABELS} is not.*delete it and get it again"):
        mnist("test")
    (cache / LABELS).unlink()
    assert_is(mnist("test"), "test")


def test_a_cache_that_cannot_be_made_is_said(cache, server, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(FileError, match="Cannot make the folder .*XDG_CACHE_HOME.*GEONET_DATA"):
        mnist("test")


def test_a_user_without_a_home_is_told(small, server, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(FileError, match="no home folder.*XDG_CACHE_HOME.*GEONET_DATA"):
        mnist("test")


# ---- the digits that come with geonet


def test_the_sample_has_a_hundred_digits_of_each_class(small):
    digits = sample_digits()
    assert len(digits) == 1000
    assert digits.images.shape == (1000, 28, 28) and digits.images.dtype == np.uint8
    assert digits.labels.shape == (1000,) and digits.labels.dtype == np.uint8
    assert np.bincount(digits.labels).tolist() == [100] * 10
    assert len(np.unique(digits.images, axis=0)) == 1000


def test_the_sample_ships_with_its_licence():
    text = (files("geonet") / "demo_data" / "mnist-licence.md").read_text(encoding="utf-8")
    for part in ("LeCun", "Cortes", "by-sa/3.0", "first 100 of each class", module.SAMPLE):
        assert part in text


@real_data
def test_the_sample_is_the_start_of_the_test_set():
    digits, sample = mnist("test"), sample_digits()
    seen = np.zeros(10, int)
    expected = []
    for k, label in enumerate(digits.labels):
        if seen[label] < 100:
            expected.append(k)
        seen[label] += 1
    assert np.array_equal(sample.labels, digits.labels[expected])
    assert np.array_equal(sample.images, digits.images[expected])


def test_the_script_gives_the_same_bytes_again(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = import_module("mnist_subset")
    sample = sample_digits()
    again = script.subset(sample)
    assert np.array_equal(again.images, sample.images)
    assert np.array_equal(again.labels, sample.labels)
    for name in ("a.npz", "b.npz"):
        monkeypatch.setattr("time.time", lambda name=name: {"a.npz": 1e9, "b.npz": 1.5e9}[name])
        script.write(again, tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz") as arrays:
        assert np.array_equal(arrays["images"], sample.images)


# ---- densities


def test_densities_are_what_from_image_reads(tmp_path):
    images = sample_digits().images[:5]
    densities = as_densities(images, blur=0, floor=0)
    assert densities.batch_shape == (5,)
    for k, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "digit.png")
        expected = geonet.from_image(tmp_path / "digit.png")
        assert densities.grid == expected.grid == geonet.Grid((28, 28))
        assert torch.allclose(densities[k].tensor, expected.tensor)
        assert torch.allclose(densities[k].mass, expected.mass)


def test_rows_run_along_axis_0_from_the_top():
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 1, 24] = 200  # second row from the top
    mean = as_densities(image, blur=0, floor=0).mean()[0]
    assert mean.tolist() == pytest.approx([1.5 / 28, 24.5 / 28])


def test_blur_is_a_gaussian_in_each_image():
    images = sample_digits().images[:4]
    densities = as_densities(images, blur=1.5, floor=0)
    for k, image in enumerate(images):
        blurred = gaussian_filter(image.astype(float), 1.5, mode="reflect")
        expected = geonet.Density(blurred, geonet.Grid((28, 28)))
        assert torch.allclose(densities[k].tensor, expected.tensor)


def test_blur_keeps_the_mass_at_the_border():
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 0, 0] = 255
    sharp, blurred = (as_densities(image, blur, 0) for blur in (0, 2.0))
    assert float(blurred.mass) == pytest.approx(float(sharp.mass))


@pytest.mark.parametrize("floor", [0.0, 0.01, 0.3])
def test_floor_is_a_share_of_the_uniform_density(floor):
    images = sample_digits().images[:10]
    densities, bare = as_densities(images, 1.0, floor), as_densities(images, 1.0, 0)
    assert torch.allclose(densities.tensor, (1 - floor) * bare.tensor + floor)
    assert torch.allclose(densities.tensor.mean((1, 2)), torch.ones(10, dtype=torch.float64))
    assert bool((densities.tensor >= floor).all())


def test_images_stay_as_they_are():
    images = sample_digits().images[:2]
    before = images.copy()
    as_densities(images, 1.0, 0.1)
    assert np.array_equal(images, before)


def test_an_image_without_ink_is_refused():
    images = sample_digits().images[:3].copy()
    images[1] = 0
    with pytest.raises(DensityError, match="Density 1 of the batch is zero everywhere"):
        as_densities(images, 1.0, 0.1)


def test_no_images_are_refused():
    with pytest.raises(DensityError, match="The batch is empty"):
        as_densities(np.zeros((0, 28, 28), np.uint8), 1.0, 0.1)


@pytest.mark.parametrize("shape", [(28, 28), (5, 784), (2, 28, 27), (2, 27, 28), (1, 2, 28, 28)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(DensityError, match=r"Images of shape .*give an array \(n, 28, 28\)"):
        as_densities(np.ones(shape, np.uint8), 1.0, 0.1)


@pytest.mark.parametrize("blur", [-1.0, 28.5, float("nan"), float("inf")])
def test_other_blurs_are_refused(blur):
    with pytest.raises(InputError, match="blur is .*0 to 28 pixels"):
        as_densities(np.ones((1, 28, 28), np.uint8), blur, 0.1)


@pytest.mark.parametrize("floor", [-0.1, 1.0, float("nan")])
def test_other_floors_are_refused(floor):
    with pytest.raises(DensityError, match="floor is .*share of the mass"):
        as_densities(np.ones((1, 28, 28), np.uint8), 1.0, floor)
