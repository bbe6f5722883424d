"""W2² as a loss: the components of a mixture move to the components of a target.

If the components do not overlap, the squared difference of the densities has a vanishing gradient,
while the gradient of W2² points from every component to its place in the target.
"""

import torch

import geonet

GRID = geonet.Grid((32, 32), 0, 5)
GOAL = torch.tensor([[3.7, 3.8], [3.8, 1.4]], dtype=torch.float64)
TARGET = geonet.GaussianMixture.isotropic(GOAL, 0.3).to_density(GRID)


def transport(density: geonet.Density) -> torch.Tensor:
    """Return W2² by a network."""
    return geonet.geodesic(density, TARGET, solver="transport-2d").distance ** 2


def difference(density: geonet.Density) -> torch.Tensor:
    """Return the mean squared difference of the values."""
    return (density.values - TARGET.values).square().mean()


for loss in (transport, difference):
    means = torch.tensor([[1.2, 3.2], [1.4, 1.0]], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([means], lr=0.5)
    for step in range(13):
        value = loss(geonet.GaussianMixture.isotropic(means, 0.3).to_density(GRID))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step % 4 == 0:
            print(f"{loss.__name__:>10}, step {step:2}: {float(value.detach()):.4f}")
    missed = (means.detach() - GOAL).norm(dim=-1).max()
    print(f"{loss.__name__:>10}: the components are within {missed:.2f} of the goal\n")
