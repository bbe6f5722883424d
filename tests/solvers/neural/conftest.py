"""Shared by the tests of networks: derivatives by autograd, which the jets have to match."""

import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vmap

from geonet.solvers.neural.jets import Jet, make_variables

SECONDS = ("none", "laplacian", "hessian", "mixed")


@pytest.fixture
def randomised(generator):
    """Moves every weight that can move: the biases of a new network are zero and hide errors."""

    def moved(network):
        with torch.no_grad():
            for p in network.parameters():
                if p.requires_grad:
                    p += 0.3 * torch.randn(p.shape, generator=generator)
        return network

    return moved


@pytest.fixture
def check_jets(generator):
    """Jets of a function of rows (x, t) against autograd: all channels, and one derivative more."""

    def check(function, d):
        points, direction = (torch.rand(3, d, generator=generator) for _ in range(2))
        times = torch.rand(3, generator=generator)
        expected, along = jvp(
            lambda x: parts_by_autograd(function, x, times), (points,), (direction,)
        )
        for second in SECONDS:
            computed = jvp(
                lambda x, second=second: parts(function(make_variables(x, times, second))),
                (points,),
                (direction,),
            )
            for name in computed[0]:
                where = f"{name} with second={second}"
                close(computed[0][name], expected[name], where)
                close(computed[1][name], along[name], f"derivative of {where}")

    return check


@pytest.fixture
def check_weights(generator):
    """Derivatives of the jets in a network's weights against autograd."""

    def check(network, d):
        points, times = (torch.rand(*n, generator=generator) for n in ((3, d), (3,)))
        weights = [p for p in network.parameters() if p.requires_grad]
        mixed = []
        for found in (
            parts(network(make_variables(points, times, "mixed"))),
            parts_by_autograd(network, points, times),
        ):
            number = sum((part**2).sum() for part in found.values())
            mixed.append(torch.autograd.grad(number, weights))
        for computed, expected in zip(*mixed, strict=True):
            close(computed, expected, "derivative in the weights")

    return check


@pytest.fixture(scope="session")
def jet_of():
    """The jet of f(x, t) at points (N, d) and times (N,) by autograd, (channels, N)."""

    def made(function, points, times, second="hessian"):
        d = points.shape[1]
        curvature = vmap(hessian(function))(points, times)
        rows, columns = torch.triu_indices(d, d)
        packed = curvature[:, rows, columns].T
        slope = vmap(jacrev(grad(function), argnums=1))(points, times).T
        seconds = {
            "none": points.new_zeros(0, len(points)),
            "laplacian": curvature.diagonal(dim1=1, dim2=2).sum(1)[None],
            "hessian": packed,
            "mixed": torch.cat([packed, slope]),
        }[second]
        value = vmap(function)(points, times)[None]
        gradient = vmap(grad(function))(points, times).T
        rate = vmap(grad(function, argnums=1))(points, times)[None]
        return Jet(torch.cat([value, gradient, rate, seconds]), d, second)

    return made


def parts(jet):
    found = {"value": jet.value, "gradient": jet.gradient, "rate": jet.rate}
    if jet.second != "none":
        found["laplacian"] = jet.laplacian
    if jet.second in ("hessian", "mixed"):
        found["hessian"] = jet.hessian
    if jet.second == "mixed":
        found["gradient_rate"] = jet.gradient_rate
    return found


def parts_by_autograd(function, points, times):
    d = points.shape[1]
    rows = torch.cat([points, times[:, None]], dim=1)
    first = vmap(jacrev(function))(rows).movedim(-1, 0)
    second = vmap(hessian(function))(rows).movedim((-2, -1), (0, 1))
    return {
        "value": function(rows),
        "gradient": first[:d],
        "rate": first[d],
        "laplacian": sum(second[i, i] for i in range(d)),
        "hessian": second[:d, :d],
        "gradient_rate": second[d, :d],
    }


def close(computed, expected, where):
    scale = float(expected.detach().abs().max()) + 1
    torch.testing.assert_close(
        computed, expected, rtol=0, atol=1e-11 * scale, msg=lambda text: f"{where}: {text}"
    )
