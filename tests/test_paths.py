import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, Geodesic, Grid
from geonet._serialization import _digest
from geonet.errors import FileError, GridError, InputError, UnavailableError


@pytest.fixture
def path(pair_1d):
    return geonet.geodesic(*pair_1d)


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (1.5, r"t = 1.5 is outside \[0, 1\]"),
        (-0.1, "t = -0.1 is outside"),
        ([0.2, float("nan")], "t = nan is outside"),
        ([], "non-empty list"),
        ([[0.1]], r"t has shape \(1, 1\)"),
    ],
)
def test_impossible_times_are_refused(path, t, message):
    asks = (path.density, lambda t: path.velocity(t, [1.0]), lambda t: path.trajectories(t, [1.0]))
    for ask in asks:
        with pytest.raises(InputError, match=message):
            ask(t)


def test_a_grid_on_another_box_is_refused(path):
    with pytest.raises(GridError, match="the boxes differ; give a grid on the same box"):
        path.density(0.5, Grid(100, 0, 1))


def test_a_grid_must_be_a_grid(path):
    with pytest.raises(GridError, match="grid is 96; give a Grid"):
        path.density(0.5, 96)


def test_points_of_another_dimension_are_refused(pair_2d):
    path = geonet.geodesic(*pair_2d)
    with pytest.raises(GridError, match=r"shape \(5,\) do not lie in 2D; give an array \(..., 2\)"):
        path.velocity(0.5, torch.zeros(5))


def test_times_in_any_order(pair_2d):
    path = geonet.geodesic(*pair_2d, "monge-ampere")
    forth, back = path.density([0.2, 0.9]).tensor, path.density([0.9, 0.2]).tensor
    assert torch.allclose(forth, back.flip(0), atol=1e-9)


def test_what_a_solver_cannot_give_is_one_clear_error(pair_1d):
    with pytest.raises(UnavailableError, match="The solver 'linear' gives no velocity; choose one"):
        geonet.geodesic(*pair_1d, "linear").velocity(0.5, [1.0])


def test_saved_frames_can_be_read_by_anyone(path, tmp_path):
    file = path.save(tmp_path / "p.npz", times=[0.0, 0.5], grid=path.grid.with_shape(50))
    with np.load(file) as archive:
        assert archive["times"].tolist() == [0.0, 0.5]
        assert archive["density"].shape == (2, 50)
        assert (archive["lower"], archive["upper"]) == (0.0, 10.0)
        assert json.loads(str(archive["geonet"]))["solver"] == "quantile"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.npz"]


def test_loading_keeps_mass_and_formula(pair_1d, tmp_path):
    source, target = pair_1d
    heavy = Density(source.tensor * 5, source.grid)
    loaded = Geodesic.load(geonet.geodesic(heavy, target).save(tmp_path / "p.npz"))
    assert float(loaded.source.mass) == pytest.approx(5)
    assert torch.equal(loaded.target.mixture.means, target.mixture.means)


def test_the_given_mass_goes_evenly_from_end_to_end(pair_1d, tmp_path):
    source, target = (
        Density(end.tensor * m, end.grid) for end, m in zip(pair_1d, (5, 1), strict=True)
    )
    path = geonet.geodesic(source, target)
    for one in (path, geonet.load(path.save(tmp_path / "p.npz"))):
        assert float(one.density(0.25).mass) == pytest.approx(4)
        frames = one.density([0, 0.5, 1], path.grid.with_shape(37))
        assert frames.mass.tolist() == pytest.approx([5, 3, 1])
        cell = frames.grid.cell_volume
        assert (frames.numpy().sum(-1) * cell).tolist() == pytest.approx([1, 1, 1])
        assert (frames.numpy(mass="given").sum(-1) * cell).tolist() == pytest.approx([5, 3, 1])


@pytest.mark.parametrize("solver", ["quantile", "linear-program"])  # the latter stacks its pairs
def test_every_pair_of_a_batch_has_its_masses(solver):
    grid = Grid(6)
    first, last = torch.rand(2, 3, 6).double() * torch.tensor([1.0, 10, 100])[:, None]
    path = geonet.geodesic(Density(first, grid), Density(last, grid), solver)
    assert torch.allclose(path.density(0.5).mass, (first + last).mean(-1) / 2)
    frames = path.density([0.0, 1.0])
    assert torch.allclose(frames.mass, torch.stack([first, last], 1).mean(-1))
    assert np.allclose(frames.numpy(mass="given")[:, 0], first)
    assert np.allclose(frames.numpy(mass="given")[:, 1], last)


def test_gaussians_without_a_grid_have_mass_one():
    ends = [geonet.GaussianMixture.isotropic([[c]], 0.1) for c in (0.4, 0.6)]
    frames = geonet.geodesic(*ends, "bures").density([0.0, 0.5], Grid(20))
    assert frames.mass.tolist() == [1, 1]


def test_saved_frames_have_mass_one_or_the_given_mass(pair_1d, tmp_path):
    source, target = (
        Density(end.tensor * m, end.grid) for end, m in zip(pair_1d, (5, 1), strict=True)
    )
    path, cell = geonet.geodesic(source, target), source.grid.cell_volume
    for mass, expected in (("one", [1, 1, 1]), ("given", [5, 3, 1])):
        with np.load(path.save(tmp_path / "p.npz", [0, 0.5, 1], mass=mass)) as archive:
            assert archive["mass"].tolist() == pytest.approx(expected)
            assert (archive["density"].sum(-1) * cell).tolist() == pytest.approx(expected)
        loaded = geonet.load(tmp_path / "p.npz")
        assert torch.equal(loaded.density(0.5).tensor, path.density(0.5).tensor)
    with pytest.raises(InputError, match="mass is 'all'; give 'one' or 'given'"):
        path.save(tmp_path / "other.npz", mass="all")
    assert [file.name for file in tmp_path.iterdir()] == ["p.npz"]


@pytest.mark.parametrize("drawn", ["image", "plane"])
def test_loading_keeps_how_a_grid_is_drawn(tmp_path, drawn):
    density = Density(torch.rand(3, 4), geonet.Grid((3, 4), drawn=drawn))
    file = geonet.geodesic(density, density, "linear").save(tmp_path / "p.npz")
    assert geonet.load(file).grid.drawn == drawn
    arrays = dict(np.load(file))  # as files were before they said so: those were planes
    arrays["geonet"] = np.array(str(arrays["geonet"]).replace(f', "drawn": "{drawn}"', ""))
    assert "drawn" not in str(arrays["geonet"])
    arrays["sha256"] = np.array(_digest(arrays))
    np.savez(file, **arrays)
    assert geonet.load(file).grid.drawn == "plane"


@pytest.mark.parametrize("damage", ["missing", "truncated", "text", "other npz", "newer"])
def test_what_is_not_a_saved_geodesic_is_refused(path, tmp_path, damage):
    file = path.save(tmp_path / "p.npz")
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:400])
    elif damage == "text":
        file.write_text("not an archive")
    elif damage == "other npz":
        np.savez(file, values=np.ones(3))
    else:
        arrays = dict(np.load(file))
        arrays["geonet"] = np.array(str(arrays["geonet"]).replace('"format": 1', '"format": 99'))
        np.savez(file, **arrays)
    messages = {
        "missing": "There is no file",
        "other npz": "no saved geodesic",
        "newer": "this version does not know",
    }
    message = messages.get(damage, "Cannot read .* as a saved geodesic")
    with pytest.raises(FileError, match=message):
        geonet.load(file)


@pytest.mark.parametrize("key", ["source", "state/mass", "lower", "geonet"])
def test_a_saved_geodesic_that_was_changed_is_refused(pair_1d, tmp_path, key):
    """What a path is made of fits together, or else it fails long after it was loaded."""
    file = geonet.geodesic(*pair_1d, "linear-program").save(tmp_path / "p.npz")
    arrays = dict(np.load(file))
    changed = np.array(str(arrays[key]).replace("plan entries", "entries"))
    arrays[key] = changed if key == "geonet" else arrays[key][:-1]
    np.savez(file, **arrays)
    with pytest.raises(FileError, match="was changed after it was written; save the geodesic"):
        geonet.load(file)


def test_what_is_loaded_lies_where_torch_puts_its_tensors(pair_1d, tmp_path, misaligned_files):
    """Wherever the file's arrays lie; products round by addresses, and so they round as before."""
    loaded = geonet.load(geonet.geodesic(*pair_1d, "geonet-1d").save(tmp_path / "p.npz"))
    weights = loaded.bases.model.state_dict().values()
    tensors = (loaded.source.tensor, loaded.target.tensor, *loaded.coefficients, *weights)
    assert {tensor.data_ptr() % 64 for tensor in tensors} == {0}


@pytest.mark.parametrize("solver", ["monge-ampere", "linear-program", "auto"])
def test_a_fresh_process_can_load(pair_2d, tmp_path, solver):
    """Solvers are imported when asked for; loading must not depend on that."""
    ends = [Density(torch.stack([end.tensor] * 2), end.grid) for end in pair_2d]
    file = geonet.geodesic(*ends, solver).save(tmp_path / "p.npz", times=[0.0])
    code = f"import geonet; print(float(geonet.load({str(file)!r}).distance[1]))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(answer.stdout) == pytest.approx(float(geonet.load(file).distance[1]))


def test_saving_to_an_impossible_place_writes_nothing(path, tmp_path):
    with pytest.raises(FileError, match="does not end in .npz"):
        path.save(tmp_path / "p.txt")
    with pytest.raises(FileError, match="does not exist; create it first"):
        path.save(tmp_path / "nowhere" / "p.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_keeps_the_old_file(path, tmp_path, monkeypatch):
    file = path.save(tmp_path / "p.npz")
    before = file.read_bytes()

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(FileError, match="No space left"):
        path.save(file)
    assert file.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
