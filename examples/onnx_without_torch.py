"""Compute W2 and the density at any time without torch, from an exported model.

Run it in the folder of the two files of `geonet export transport-2d`: python onnx_without_torch.py
"""

import numpy as np
from onnxruntime import InferenceSession
from scipy.ndimage import map_coordinates

CELLS = 64
branch, basis = (InferenceSession(f"transport-2d-{part}.onnx") for part in ("branch", "basis"))


def centres(cells):  # of a grid on the unit box, (cells², 2)
    axis = (np.arange(cells) + 0.5) / cells
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)


def mixture(means, sd):  # of round Gaussians, at the cells, relative to uniform
    squares = ((centres(CELLS)[:, None] - np.array(means)) ** 2).sum(-1)
    values = np.exp(-squares / (2 * sd**2)).sum(-1)
    return values.reshape(CELLS, CELLS) / values.mean()


def read(values, points):  # a density between its cells, by cubic splines
    return map_coordinates(values, points.T * CELLS - 0.5, order=3, mode="reflect")


def potential(y):  # u, ∇u and D²u at t = ½, (n,), (2, n) and (2, 2, n)
    return [part @ c for part in basis.run(None, {"points": y.astype(np.float32)})]


def stretch(h, s):  # det(I + s D²u)
    return np.linalg.det(np.eye(2) + s * h.transpose(2, 0, 1))


def brought(y, v, h):  # the densities at t = ½ that come from the source and from the target
    pair = ((source, -0.5), (target, 0.5))
    return [read(end, y + s * v.T) * stretch(h, s) for end, s in pair]


def density(t):  # at the cells; y is where their particles are at t = ½
    y = centres(CELLS)
    for _ in range(12):
        y = centres(CELLS) - (t - 0.5) * potential(y)[1].T
    _, v, h = potential(y)
    r0, r1 = brought(y, v, h)
    return (((1 - t) * r0 + t * r1) / stretch(h, t - 0.5)).reshape(CELLS, CELLS)


source = mixture([[0.32, 0.32], [0.68, 0.60]], 0.16)
target = mixture([[0.36, 0.68], [0.68, 0.36]], 0.16)
sensors = centres(int(branch.get_modelmeta().custom_metadata_map["sensors"]))
ends = {"source": read(source, sensors), "target": read(target, sensors)}
(c,) = branch.run(None, {name: end[None].astype(np.float32) for name, end in ends.items()})[0]
u, v, h = potential(centres(CELLS))
r0, r1 = brought(centres(CELLS), v, h)
distance = np.sqrt((0.5 * (v**2).sum(0) * (r0 + r1) + 2 * u * (r1 - r0)).mean())
print(f"W2 = {distance:.4f}, mass at t = 0.3: {density(0.3).mean():.4f}")
