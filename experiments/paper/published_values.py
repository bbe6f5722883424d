"""Values that the paper prints: L1 and similar errors in per cent at t = 0, ¼, ½, ¾, 1."""

from __future__ import annotations

from benchmarks.results import Spread

Five = tuple[float, float, float, float, float]


def _spread(means: Five, deviations: Five) -> list[Spread]:
    return [Spread(mean, sd) for mean, sd in zip(means, deviations, strict=True)]


TABLE_2 = {
    "1D identity": _spread((2.67, 2.85, 3.04, 2.86, 2.63), (0.750, 0.912, 1.02, 0.898, 0.696)),
    "1D random": _spread((4.92, 5.43, 5.76, 5.26, 4.65), (2.00, 3.02, 3.56, 3.25, 1.50)),
    "1D high-res": _spread((4.76, 5.49, 6.01, 5.59, 4.77), (1.53, 3.00, 3.53, 2.99, 1.49)),
    "1D OOD": _spread((12.9, 14.3, 16.4, 14.9, 12.3), (4.13, 5.35, 6.01, 5.48, 3.94)),
    "2D identity": _spread((6.50, 7.68, 7.69, 7.70, 6.42), (1.15, 0.915, 0.924, 0.889, 1.11)),
    "2D random": _spread((6.59, 7.10, 7.13, 7.04, 6.33), (1.01, 0.869, 0.892, 0.780, 0.835)),
    "2D high-res": _spread((6.66, 7.71, 7.88, 7.59, 6.29), (0.766, 1.26, 1.21, 0.979, 0.723)),
    "2D OOD": _spread((7.15, 7.82, 8.14, 7.96, 7.14), (0.985, 1.04, 1.33, 1.30, 0.882)),
}
TABLE_3 = {
    "GeONet": _spread((22.9, 28.8, 30.0, 29.6, 22.6), (1.08, 1.01, 1.10, 0.877, 1.02)),
    "CFM": _spread((0.0, 94.1, 98.9, 91.8, 75.9), (0.0, 3.68, 2.41, 4.15, 3.77)),
    "RF": _spread((0.0, 103.0, 112.0, 112.0, 91.3), (0.0, 2.48, 3.61, 5.03, 3.79)),
}
MNIST = {
    "codes, identity": (0.923, 0.830, 0.825, 0.834, 0.931),
    "codes, random": (1.62, 2.14, 2.78, 2.11, 1.54),
    "images, identity": (26.7, 34.0, 35.3, 36.4, 34.0),
    "images, random": (32.1, 58.2, 68.1, 56.4, 24.7),
}
