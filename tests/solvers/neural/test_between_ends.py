"""A density that has both its ends by construction, whatever the weights."""

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import ConfigError
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.geonet import GeONet, GeONetSettings
from geonet.solvers.neural.jets import variables
from geonet.solvers.neural.layers import BetweenEnds, cartesian
from geonet.solvers.neural.losses import Batch, LossSettings
from geonet.solvers.neural.model import Branch, Trunk, build, load_model, save_model

# At its first jvp torch warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

SENSORS = {1: 12, 2: 6}
TIMES = [0.0, 0.3, 1.0]


def architecture(d, symmetry="both", network="mlp", features="cosines", modes=3):
    return GeONetSettings(
        dimension=d,
        sensors=SENSORS[d],
        rank=6,
        swap_symmetry=symmetry,
        ends="given",
        branch=Branch("mlp", 5, 3, modes=modes),
        trunk=Trunk(network, 4, 3, features, modes=2, sigma=0.5),
    )


@pytest.fixture
def densities(generator):
    """Two ends of three pairs at the sensors, (3, m) each."""

    def drawn(d):
        return 2 * torch.rand(2, 3, SENSORS[d] ** d, generator=generator)

    return drawn


def rows_at(grid, t):
    """The centres of cells at a time, (cells, d + 1)."""
    points = grid.points().reshape(-1, grid.dimension)
    return torch.cat([points, torch.full_like(points[:, :1], t)], dim=1)


def value(model, ends, rows):
    """C at (x, t), (B, N)."""
    return cartesian(model.coefficients(*ends)[0], model.density.basis(rows))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("symmetry", ["none", "density", "both"])
@pytest.mark.parametrize("modes", [0, 3])
def test_both_ends_are_those_given(d, symmetry, modes, randomised, densities, double_precision):
    ends = densities(d)
    model = randomised(GeONet(architecture(d, symmetry, modes=modes)))
    sensors = Grid((SENSORS[d],) * d)
    for t, end in ((0.0, ends[0]), (1.0, ends[1])):
        assert torch.allclose(value(model, ends, rows_at(sensors, t)), end, rtol=0, atol=1e-12)
    halfway = value(model, ends, rows_at(sensors, 0.5))
    assert (halfway - ends.mean(0)).abs().max() > 0.01  # between them the network decides


@pytest.mark.parametrize("d", [1, 2])
def test_both_ends_are_those_given_in_single_precision(d, randomised, densities):
    ends = densities(d)
    model = randomised(GeONet(architecture(d)))
    for t, end in ((0.0, ends[0]), (1.0, ends[1])):
        found = value(model, ends, rows_at(Grid((SENSORS[d],) * d), t).float())
        assert found.dtype == torch.float32
        assert torch.allclose(found, end, rtol=0, atol=2e-5)  # sums of some 50 rounded numbers


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("t", [0.0, 0.2, 0.5, 1.0])
def test_by_its_formula(d, t, randomised, densities, generator, double_precision):
    """(1 − t)·μ0 + t·μ1 + t(1 − t)·F, with F of the same weights."""
    ends, model = densities(d), randomised(GeONet(architecture(d)))
    sensors, inner = rows_at(Grid((SENSORS[d],) * d), t), model.density.inner
    scaled = [(end - 1) / 2 for end in ends]
    between = cartesian(inner.coefficients(*scaled), inner.basis(sensors))
    expected = (1 - t) * ends[0] + t * ends[1] + t * (1 - t) * between
    assert torch.allclose(value(model, ends, sensors), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize(("symmetry", "holds"), [("none", False), ("density", True)])
def test_swap_symmetry_is_kept(
    d, symmetry, holds, randomised, densities, generator, double_precision
):
    """C(μ0, μ1)(x, t) = C(μ1, μ0)(x, 1 − t)."""
    ends, model = densities(d), randomised(GeONet(architecture(d, symmetry)))
    rows = torch.rand(7, d + 1, generator=generator)
    mirrored = torch.cat([rows[:, :d], 1 - rows[:, d:]], dim=1)
    forth, back = value(model, ends, rows), value(model, ends.flip(0), mirrored)
    assert torch.allclose(forth, back, rtol=0, atol=1e-12) == holds


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
def test_jets_of_the_basis(d, parity, network, randomised, check_jets, double_precision):
    check_jets(randomised(BetweenEnds(architecture(d, network=network), parity, 1.0)).basis, d)


@pytest.mark.parametrize("d", [1, 2])
def test_basis_of_values_and_of_jets_agree(d, randomised, generator, double_precision):
    operator = randomised(BetweenEnds(architecture(d), 1, 1.0))
    points, times = torch.rand(5, d, generator=generator), torch.rand(5, generator=generator)
    rows = operator.basis(torch.cat([points, times[:, None]], dim=1))
    for second in ("none", "laplacian", "hessian", "mixed"):
        jet = operator.basis(variables(points, times, second))
        assert jet.second == second
        assert torch.allclose(jet.value, rows, rtol=0, atol=1e-14)


@pytest.mark.parametrize("d", [1, 2])
def test_coefficients_fit_the_basis(d, densities):
    model = GeONet(architecture(d))
    for own, network in zip(model.coefficients(*densities(d)), model.networks, strict=True):
        assert own.shape[1] == network.basis(torch.zeros(1, d + 1)).shape[1]


def test_gradients_reach_every_weight(randomised, densities, generator):
    """The ends have no terms: they are given."""
    model = randomised(GeONet(architecture(1)))
    points, times = torch.rand(8, 1, generator=generator), torch.rand(8, generator=generator)
    batch = Batch(*densities(1), points, times, None, None, None, ends=(None, None), paired=False)
    settings = LossSettings(source=0.0, target=0.0, hamilton_jacobi_gradient=0.1, robust=0.1)
    objective = model.objective(settings, Grid(4))
    objective.total(objective(batch)).backward()
    constant = model.potential.trunk.output.bias  # no equation sees it
    for name, p in model.named_parameters():
        if p.requires_grad and p is not constant:
            assert p.grad is not None and p.grad.abs().max() > 1e-9, name


# ---- settings


@pytest.mark.parametrize("kind", [GeONetSettings, DeepONetSettings])
@pytest.mark.parametrize("modes", [-1, 13, 100])
def test_impossible_modes_are_refused(kind, modes):
    with pytest.raises(ConfigError) as error:
        kind(sensors=12, branch=Branch(modes=modes))
    assert str(error.value) == (f"branch.modes is {modes}; give 0 to 12, the number of sensors.")


@pytest.mark.parametrize("modes", [0, 1, 12])
def test_the_fewest_and_the_most_modes(modes, densities):
    model = GeONet(architecture(1, modes=modes))
    first = next(model.density.inner.branches[0].parameters())
    assert first.shape == (5, modes or 12)
    assert all(bool(torch.isfinite(c).all()) for c in model.coefficients(*densities(1)))


@pytest.mark.parametrize("d", [1, 2])
def test_branches_with_few_modes_do_not_see_fine_waves(d, randomised, densities):
    """H depends on the low modes alone; C has the whole ends still."""
    ends = densities(d)
    x = Grid((SENSORS[d],) * d).points()[..., 0].flatten().float()
    finer = ends + 0.2 * torch.cos(5 * torch.pi * x)
    few, all_of_them = (randomised(GeONet(architecture(d, modes=m))) for m in (3, 0))
    assert torch.allclose(few.coefficients(*finer)[1], few.coefficients(*ends)[1], atol=1e-5)
    (c, h), (c_finer, h_finer) = (all_of_them.coefficients(*pair) for pair in (ends, finer))
    assert (h - h_finer).abs().max() > 1e-3
    assert (c - c_finer).abs().max() > 0.1


# ---- files and paths


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models with random weights, one for each dimension, that know what is usual."""
    folder, made = tmp_path_factory.mktemp("between"), {}
    for d in SENSORS:
        model = build(architecture(d), 5)  # a loaded path starts from other weights
        noise = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p += 0.3 * torch.randn(p.shape, generator=noise)
        model.prepare(2 * torch.rand(80, SENSORS[d] ** d, generator=noise))
        test = {"mean": [1.0] * 5, "sd": [0.5] * 5}
        header = {"name": "tiny", "measured": {"test": test, "calibration": {"slope": 0.7}}}
        made[d] = save_model(folder / f"{d}d.safetensors", model, header)
    return made


@pytest.fixture
def pairs(densities):
    """Three pairs on a box of length 5, with a cell for each sensor."""

    def drawn(d):
        shape = (SENSORS[d],) * d
        return [
            Density(end.reshape(3, *shape).double(), Grid(shape, -1, 4)) for end in densities(d)
        ]

    return drawn


@pytest.mark.parametrize("d", [1, 2])
def test_a_file_holds_the_whole_model(d, files, densities):
    """The matrices of the series are made again, and not on a device without numbers."""
    model, _ = load_model(files[d])
    assert all(buffer.device.type == "cpu" for buffer in model.buffers())
    assert not any("ends." in name for name in model.state_dict())
    ends = densities(d)
    found = value(model, ends, rows_at(Grid((SENSORS[d],) * d), 0.0).float())
    assert torch.allclose(found, ends[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("d", [1, 2])
def test_paths_have_both_ends(d, files, pairs):
    source, target = pairs(d)
    path = geonet.geodesic(source, target, str(files[d]))
    for t, end in ((0.0, source), (1.0, target)):
        # Single precision, of densities up to 2 or so in the unit box.
        assert torch.allclose(path.density(t).tensor, end.tensor, rtol=0, atol=2e-5)
    report = path.report
    assert max(report.source_error + report.target_error) < 1e-4
    assert max(report.mass_error) > 1e-4  # between the ends it is the network's


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("single", [True, False])
def test_save_and_load(d, single, files, pairs, tmp_path, generator):
    ends = [end[0] for end in pairs(d)] if single else pairs(d)
    path = geonet.geodesic(*ends, str(files[d]))
    loaded = geonet.load(path.save(tmp_path / "path.npz", times=[0.0, 0.5]))
    assert type(loaded) is type(path)
    assert (loaded.solver, loaded.notes, loaded.batch) == (path.solver, path.notes, path.batch)
    finer = path.grid.with_shape(17)
    assert torch.equal(loaded.density(TIMES, finer).tensor, path.density(TIMES, finer).tensor)
    points = -1 + 5 * torch.rand(4, d, generator=generator)
    assert torch.equal(loaded.velocity(TIMES, points), path.velocity(TIMES, points))
    assert torch.equal(loaded.potential(TIMES, points), path.potential(TIMES, points))
    report = path.report
    assert loaded.report == report
    for name in ("continuity", "hamilton_jacobi", "in_distribution", "error_estimate"):
        assert getattr(report, name) is not None


@pytest.mark.parametrize("d", [1, 2])
def test_a_saved_path_knows_what_is_usual(d, files, pairs, tmp_path):
    """Of a spike both ends come out well, and it is unusual."""
    source, target = (end[0] for end in pairs(d))
    spike = Density(torch.eye(source.grid.size)[3].reshape(source.grid.shape), source.grid)
    for end, expected in ((source, True), (spike, False)):
        path = geonet.geodesic(end, target, str(files[d]))
        loaded = geonet.load(path.save(tmp_path / "path.npz"))
        assert path.report.in_distribution is loaded.report.in_distribution is expected


@pytest.mark.parametrize("d", [1, 2])
def test_a_pair_of_a_batch(d, files, pairs):
    many = geonet.geodesic(*pairs(d), str(files[d]))
    whole, own = many.report, many[1].report
    assert own.in_distribution == whole.in_distribution[1]
    for name in ("continuity", "hamilton_jacobi", "error_estimate"):
        assert getattr(own, name) == pytest.approx(getattr(whole, name)[1], rel=1e-4)


@pytest.mark.parametrize("t", [0.0, 1.0])
def test_gradients_go_through_both_ends(t, files, pairs):
    """At t = 0 and 1 the density is an end, and has its gradient."""
    ends = [Density(end.tensor.clone().requires_grad_(), end.grid) for end in pairs(1)]
    path = geonet.geodesic(*ends, str(files[1]))
    weight = torch.arange(36.0, dtype=torch.float64).reshape(3, 12).sin()
    found = torch.autograd.grad((weight * path.density(t).tensor).sum(), [e.tensor for e in ends])
    expected = [weight, torch.zeros(3, 12)] if t == 0 else [torch.zeros(3, 12), weight]
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs.double(), rtol=0, atol=1e-10)
