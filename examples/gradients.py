# %% [markdown]
# # W2² as a loss
#
# Distances and densities of a path are differentiable with respect to the values of both ends. Here
# the components of a mixture move to the components of a target by gradient descent. They do not
# overlap with it, so the squared difference of the densities has a vanishing gradient; the gradient
# of W2² points from every component to its place in the target.

# %%
import torch
from matplotlib.figure import Figure

import geonet

grid = geonet.Grid((32, 32), 0, 5)
start = torch.tensor([[1.2, 3.2], [1.4, 1.0]], dtype=torch.float64)
goal = torch.tensor([[3.7, 3.8], [3.8, 1.4]], dtype=torch.float64)
target = geonet.GaussianMixture.isotropic(goal, 0.3).to_density(grid)


def transport(density):
    """Return W2² to the target, by a network."""
    return geonet.geodesic(density, target, solver="transport-2d").distance ** 2


def difference(density):
    """Return the mean squared difference of the values."""
    return (density.values - target.values).square().mean()


# %% [markdown]
# ## Gradient descent
#
# The density is computed from the means, so `backward()` gives the gradient with respect to them.

# %%
tracks, curves = {}, {}
for loss in (transport, difference):
    means = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([means], lr=0.5)
    tracks[loss.__name__], curves[loss.__name__] = [start], []
    for step in range(13):
        value = loss(geonet.GaussianMixture.isotropic(means, 0.3).to_density(grid))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        tracks[loss.__name__].append(means.detach().clone())
        curves[loss.__name__].append(float(value.detach()))
        if step % 4 == 0:
            print(f"{loss.__name__:>10}, step {step:2}: {curves[loss.__name__][-1]:.4f}")
    missed = (means.detach() - goal).norm(dim=-1).max()
    print(f"{loss.__name__:>10}: the components are within {missed:.2f} of the goal\n")

# %%
ends = [
    geonet.GaussianMixture.isotropic(m, 0.3).to_density(grid.with_shape(160)) for m in (start, goal)
]
titles = {"transport": "Descent of W2²", "difference": "Descent of the squared difference"}
figure = Figure(figsize=(9.6, 3.3), layout="constrained")
*panels, ax = figure.subplots(1, 3)
for panel, (name, title) in zip(panels, titles.items(), strict=True):
    values = (ends[0].values + ends[1].values).numpy()
    panel.imshow(values, origin="lower", extent=(0, 5, 0, 5), cmap="magma")
    for line in torch.stack(tracks[name]).unbind(1):
        panel.plot(line[:, 1], line[:, 0], "o-", color="white", markersize=4, linewidth=1)
    panel.set(title=title, xticks=[], yticks=[])
for (name, curve), colour in zip(curves.items(), ("#b63679", "0.6"), strict=True):
    ax.plot([value / curve[0] for value in curve], color=colour, linewidth=2, label=name)
ax.set(title="Loss, relative to its first value", xlabel="step", ylim=(0, 1.1))
ax.legend(labels=["W2²", "squared difference"], frameon=False, loc="center right")
ax.spines[["top", "right"]].set_visible(False)
figure.savefig("gradients.png", dpi=100)
