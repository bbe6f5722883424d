"""Tests of potentials on lattices: integrals, wrapping, c-transforms with any cost."""

import pytest
import torch

from geonet.numerics.splines import evaluate_at_points
from geonet.solvers.newton.lattices import PartLattices, RadialTransform


def noise(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


CASES = [
    PartLattices((13,), (1.0,), 7, (False,)),
    PartLattices((5,), (1.0,), 3, (True,)),
    PartLattices((9, 14), (0.8, 1.0), 2, (False, False)),
    PartLattices((4, 5), (0.8, 1.0), 3, (True, False)),
    PartLattices((3, 4, 5), (0.6, 0.8, 1.0), 2, (False, True, False)),
]


@pytest.mark.parametrize("lattices", CASES, ids=str)
def test_radial_transform(lattices, monkeypatch):
    """Blocks skip nothing that matters; the quadratic cost has a transform of its own."""
    radial = RadialTransform(lattices, lambda squares: squares / 2)
    values = noise(*(own.count for own in lattices.vertices), seed=1) / 10
    values[values > 0.09] = torch.inf
    expected = lattices.transform(values, lattices.vertices, lattices.centres)
    back = lattices.transform(-expected, lattices.centres, lattices.vertices)
    for choice in ("1", "0"):
        monkeypatch.setenv("GEONET_COMPILED", choice)
        result = radial.to_centres(values)
        assert torch.allclose(result, expected, rtol=0, atol=1e-14)
        assert torch.allclose(radial.to_vertices(-expected), back, rtol=0, atol=1e-14)


@pytest.mark.parametrize("lattices", CASES, ids=str)
def test_integrals_of_linear_functions(lattices):
    """Linear interpolation is exact for x² up to the variance, h²/6 in the mean."""
    masses = noise(*lattices.shape)
    if any(lattices.periodic):
        assert float(
            lattices.integrate_vertices(
                torch.ones_like(noise(*(own.count for own in lattices.vertices))), masses
            )
        ) == pytest.approx(float(masses.sum()))
        return
    cells = [side / n for side, n in zip(lattices.sides, lattices.shape, strict=True)]
    for axis, (n, width) in enumerate(zip(lattices.shape, cells, strict=True)):
        centre = (torch.arange(n).double() + 0.5) * width
        moments = centre**2 + width**2 / 12 + lattices.steps[axis] ** 2 / 6
        view = [-1 if k == axis else 1 for k in range(masses.ndim)]
        expected = float((masses * moments.reshape(view)).sum())
        for points, integrate in (
            (lattices.vertices, lattices.integrate_vertices),
            (lattices.centres, lattices.integrate_centres),
        ):
            values = (points[axis].points() ** 2).reshape(view)
            values = values.expand([own.count for own in points])
            assert float(integrate(values, masses)) == pytest.approx(expected)


@pytest.mark.parametrize("lattices", CASES[3:4], ids=str)
def test_splines_wrap(lattices):
    c = noise(8, 10)
    values = lattices.evaluate(c, lattices.centres)
    turned = lattices.evaluate(c.roll(2, 0), lattices.centres)
    assert torch.allclose(values.roll(lattices.parts, 0), turned)
    own = lattices.centres
    point = torch.tensor([[own[0].points()[5], own[1].points()[6]]])
    inside = evaluate_at_points(c, [0.8 / 8, 1.0 / 10], point).value
    assert float(values[5, 6]) == pytest.approx(float(inside))


@pytest.mark.parametrize("lattices", CASES, ids=str)
def test_points_that_matter(lattices):
    """Values elsewhere do not change an integral."""
    masses = torch.zeros(lattices.shape).double()
    masses[(1,) * masses.ndim], masses[(-1,) * masses.ndim] = 0.3, 0.7
    for points, integrate, touch in (
        (lattices.vertices, lattices.integrate_vertices, lattices.touch_vertices),
        (lattices.centres, lattices.integrate_centres, lattices.touch_centres),
    ):
        values, touched = noise(*(own.count for own in points)), touch(masses)
        assert not bool(touched.all())
        other = torch.where(touched, values, 1e3)
        assert float(integrate(other, masses)) == pytest.approx(float(integrate(values, masses)))
        fewer = torch.where(touched, 1e3, values)
        assert float(integrate(fewer, masses)) > 900 * float(masses.sum())
