"""Networks to compare with `universal-2d`; all but the cascades see the densities once.

Those take the equation at u = 0 on 64² cells as `SymmetricUNet` does: the residual, which is
ρ1 − ρ0 there, the weight, which is the mean of both ends, and Poisson's solution. They answer with
spline coefficients on the same cells, commute with reflections, and are odd under the swap.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from torch.nn.functional import hardswish

from benchmarks.timing import make_generator
from geonet.numerics.cosine import cell_centres_1d, cosine_table, cosine_transform, frequencies
from geonet.solvers.neural.cascade import CONFIG, CascadeNet, CascadeSettings, solve_poisson
from geonet.solvers.neural.transport.network import (
    ClassLinear,
    SymmetricMLP,
    coefficient_scale,
    parity_classes,
)
from geonet.solvers.neural.unet import INPUTS, Pointwise, ResidualBlocks, SymmetricUNet, make_inputs
from geonet.solvers.newton.system import evaluate_residual
from geonet.synthetic import SQUARE
from geonet.training.synthetic_pairs import random_pairs

TYPICAL, TYPICAL_SEED = 256, 1  # pairs from which the spread of the modes is taken
FAINT = 0.04  # modes whose spread is below are not blown up to the size of the others
DARK = 0.05  # densities below, relative to the uniform one, count as equally low
POTENTIAL_SCALE = 0.3 * SQUARE.cells**2  # of what `decay` expects, in squared cells


class Once(Module):
    """(μ0, μ1) ↦ spline coefficients of u at t = ½, from one look at the densities.

    Args:
        network: residual, weight and Poisson's solution (B, n, n) to coefficients (B, n, n).
    """

    def __init__(self, network: Module):
        super().__init__()
        self.network = network

    def forward(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Map densities of mean one, (B, n, n), to one potential, (B, n, n), in squared cells."""
        return [self.network(*first_look(source, target))]


def first_look(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return residual, weight and Poisson's solution at u = 0, (B, n, n) each, as a cascade sees
    them.
    """
    look = evaluate_residual(torch.zeros_like(source), source, target, torch.get_num_threads())
    residual = look.residual.clamp(-CONFIG.max_residual, CONFIG.max_residual)
    return residual, look.weight, solve_poisson(residual)


# ---- the MLP on modes


class ModesMLP(Module):
    """Cosine modes of both fields to those of the potential, by the transport form's network.

    Args:
        modes: along each axis, of the fields and of the potential, an even number.
        width: features in each of the eight classes of symmetry.
        depth: residual blocks.
    """

    mean: Tensor
    gain: Tensor

    def __init__(self, modes: int = 32, width: int = 160, depth: int = 3):
        super().__init__()
        self.modes, per_class = modes, (modes // 2) ** 2
        self.network = SymmetricMLP(3, per_class, width, depth, per_class, slice(4, None))
        self.register_buffer("mean", torch.zeros(2, 1, modes**2))
        self.register_buffer("gain", torch.ones(2, 1, modes**2))

    @torch.no_grad()
    def prepare(self, residual: Tensor, weight: Tensor) -> None:
        """Take mean and spread of the modes from typical fields, (B, n, n).

        Channels that are odd under a reflection or the swap keep mean zero, to keep the symmetry.
        """
        found = self._modes_of(residual, weight)
        even = parity_classes(2, self.modes)[0][0]
        self.mean[0, :, even] = found[0].mean(0)[even]
        self.gain.copy_(1 / (found.std(1, keepdim=True) + FAINT))

    def forward(self, residual: Tensor, weight: Tensor, solved: Tensor) -> Tensor:
        """Map fields (B, n, n) to coefficients (B, n, n)."""
        fields = (self._modes_of(residual, weight) - self.mean) * self.gain
        order, back = parity_classes(2, self.modes)
        inputs = fields.index_select(2, order.flatten()).unflatten(2, order.shape)
        outputs = self.network(inputs.movedim(2, 1).flatten(0, 1)).movedim(1, 0).flatten(1)
        c = outputs.index_select(1, back) * coefficient_scale(2, self.modes) * POTENTIAL_SCALE
        table = _splines(residual.shape[-1], self.modes)
        return table @ c.unflatten(1, (self.modes, self.modes)) @ table.T

    def _modes_of(self, residual: Tensor, weight: Tensor) -> Tensor:
        """Return the modes of the even and the odd field under exchange of the ends, (2, B,
        modes²).
        """
        fields = torch.stack([torch.log(weight + DARK), torch.asinh(residual)])
        there = cosine_transform(residual.shape[-1])[: self.modes].float()
        return (there @ fields @ there.T).flatten(2)


def _splines(cells: int, modes: int) -> Tensor:
    """Return (cells, modes): coefficients of the quadratic splines that are cos(kπx) at cell
    centres.

    There a spline is ⅛, ¾, ⅛ of its neighbouring coefficients, which is ¾ + ¼cos(kπ/n) of a wave.
    """
    kappa = frequencies(modes)
    (table,) = cosine_table(cell_centres_1d(cells), kappa, 1)
    return (table / (0.75 + 0.25 * torch.cos(kappa / cells))).float()


# ---- Fourier layers


class FourierLayer(Module):
    """x + (K + W)·hardswish(x): K mixes the features of each low mode, W those of each cell.

    Every mode has a matrix of its own, as in Fourier neural operators; modes are cosines, since
    nothing flows through the faces.
    """

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.modes = modes
        self.low = ClassLinear(modes**2, width, width)
        self.pointwise = Pointwise(width, width, 0.7)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, width, n, n) to the same."""
        active = hardswish(x)
        low = self._mixed(active.movedim(1, -1))  # features last, as they are in memory
        return x + low.movedim(-1, 1) + self.pointwise(active)

    def _mixed(self, x: Tensor) -> Tensor:
        """Return the low modes of features (B, n, n, width), mixed, at the cells."""
        n, m = x.shape[1], self.modes
        there = cosine_transform(n)[:m].float()
        (back,) = cosine_table(cell_centres_1d(n), frequencies(m), 1).float()
        k = there @ (there @ x.flatten(2)).unflatten(2, (n, -1))  # (B, m, m, width)
        k = self.low(k.flatten(1, 2).movedim(1, 0)).movedim(0, 1).unflatten(1, (m, m))
        return (back @ (back @ k).flatten(2)).unflatten(2, (n, -1))


class FourierNet(Module):
    """Fourier layers, and one convolution for detail that the modes do not have.

    Args:
        width: features.
        modes: along each axis that a layer mixes.
        depth: layers.
    """

    halvings = (3, 5)  # for Poisson's solution, which goes from a fraction of a cell² to thousands

    def __init__(self, width: int = 24, modes: int = 16, depth: int = 4):
        super().__init__()
        self.first = Pointwise(INPUTS + 2 * len(self.halvings), width, 1.4)
        self.layers = ModuleList(FourierLayer(width, modes) for _ in range(depth))
        self.last = ResidualBlocks(width, 1)
        self.head = Pointwise(width, 1, 0.01)

    def forward(self, residual: Tensor, weight: Tensor, solved: Tensor) -> Tensor:
        """Return fields (B, n, n) to coefficients (B, n, n).

        The potential is two derivatives smoother than the densities, so the answer is put through
        Poisson's equation, and added as it is, too.
        """
        fields = torch.stack([residual, weight, solved], 1)
        more = (make_inputs(fields, k)[:, 2:4] for k in self.halvings)
        x = self.first(torch.cat([make_inputs(fields, 0), *more], 1))
        for layer in self.layers:
            x = layer(x)
        plus, minus = self.head(hardswish(self.last(x)))[:, 0].chunk(2)
        answer = plus - minus
        return answer + solve_poisson(answer)


# ---- Variants


def modes_once() -> Once:
    """Return an MLP, with the mean and the spread of modes of the family."""
    network = ModesMLP()
    network.prepare(*first_look(*random_pairs(make_generator(TYPICAL_SEED), TYPICAL, SQUARE))[:2])
    return Once(network)


def fourier_once() -> Once:
    """Return fourier layers."""
    return Once(FourierNet())


def convolutions_once() -> Once:
    """Return one U-Net, whose coarsest grid has 4² cells."""
    return Once(SymmetricUNet((16, 32, 64, 64, 64), (0, 1, 1, 1, 2), (1, 1, 2, 2, 0)))


def cascade() -> CascadeNet:
    """Return the network of `universal-2d`."""
    return CascadeNet(CascadeSettings())


def one_network() -> CascadeNet:
    """Return a cascade whose network for detail answers on the coarsest grid as well."""
    model = cascade()
    model.whole = model.detail
    return model
