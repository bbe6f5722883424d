"""Jets: values with their derivatives in (x, t), propagated through a network in one pass.

A jet of a function of (x, t) holds on its leading axis the channels

    value | ∂x_1 … ∂x_d, ∂t | second derivatives: "none", the "laplacian" in x, the "hessian" in x
                              (i ≤ j), or "mixed": the Hessian, then ∂t∂x_1 … ∂t∂x_d

and every operation below maps jets to jets by the chain rule. The same operations accept plain
tensors, so a network is written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import Linear

Second = Literal["none", "laplacian", "hessian", "mixed"]


@dataclass(frozen=True)
class Jet:
    """Values and derivatives, data (channels, ...), of functions of x ∈ R^dimension and t."""

    data: Tensor
    dimension: int
    second: Second

    @property
    def value(self) -> Tensor:
        """The value f, (...)."""
        return self.data[0]

    @property
    def gradient(self) -> Tensor:
        """The gradient ∇f in x, (d, ...)."""
        return self.data[1 : self.dimension + 1]

    @property
    def rate(self) -> Tensor:
        """The time derivative ∂t f, (...)."""
        return self.data[self.dimension + 1]

    @property
    def laplacian(self) -> Tensor:
        """The Laplacian Δf in x, (...)."""
        if self.second == "laplacian":
            return self.data[-1]
        return self.hessian.diagonal().sum(-1)

    @property
    def hessian(self) -> Tensor:
        """The Hessian D²f in x, (d, d, ...), of jets with second derivatives."""
        assert self.second in ("hessian", "mixed")
        index = torch.zeros(self.dimension, self.dimension, dtype=torch.long)
        rows, columns = torch.triu_indices(self.dimension, self.dimension)
        index[rows, columns] = index[columns, rows] = torch.arange(len(rows))
        return self.data[self.dimension + 2 :][index]

    @property
    def gradient_rate(self) -> Tensor:
        """The mixed derivatives ∂t∇f, (d, ...), of jets with "mixed" second derivatives."""
        assert self.second == "mixed"
        return self.data[-self.dimension :]

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return value, first derivatives (∇, ∂t) and second ones, each with its channel axis.

        The derivative of one split is one concatenation; slices would each fill a tensor of zeros.
        """
        first = self.dimension + 1
        value, slopes, seconds = self.data.split([1, first, len(self.data) - first - 1])
        return value, slopes, seconds

    def like(self, data: Tensor) -> Jet:
        """Return a jet of other data with the same channels."""
        return Jet(data, self.dimension, self.second)

    def cross(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ½(a_i b_j + a_j b_i) in the layout of the second derivatives."""
        d = self.dimension
        if self.second == "laplacian":
            return (a[:d] * b[:d]).sum(0, keepdim=True)
        rows, columns = _second_indices(d, self.second)
        if a is b:
            return a[rows] * a[columns]
        return 0.5 * (a[rows] * b[columns] + a[columns] * b[rows])

    def __add__(self, other: Jet) -> Jet:
        return self.like(self.data + other.data)

    def __sub__(self, other: Jet) -> Jet:
        return self.like(self.data - other.data)

    def __mul__(self, other: Jet) -> Jet:
        """Return the product: (ab)' = a'b + ab', (ab)_ij = a_ij b + a_i b_j + a_j b_i + a b_ij."""
        a, a_i, a_ij = self.split()
        b, b_i, b_ij = other.split()
        parts = [a * b, torch.addcmul(a_i * b, a, b_i)]
        if self.second != "none":
            outer = torch.addcmul(a_ij * b, a, b_ij)
            parts.append(outer + 2 * self.cross(a_i, b_i))
        return self.like(torch.cat(parts))


Z = TypeVar("Z", Tensor, Jet)


def make_variables(points: Tensor, times: Tensor, second: Second) -> Jet:
    """Return the jet of (x, t): points (N, d) and times (N,) to data (channels, N, d + 1)."""
    n, d = points.shape
    value = torch.cat([points, times[:, None]], dim=1)
    first = torch.eye(d + 1, dtype=value.dtype, device=value.device)[:, None]
    first = first.expand(d + 1, n, d + 1)
    count = {"none": 0, "laplacian": 1}.get(second, len(_second_indices(d, second)[0]))
    return Jet(torch.cat([value[None], first, value.new_zeros(count, n, d + 1)]), d, second)


def apply_linear(layer: Linear, z: Z) -> Z:
    """Return Wz + b; b is added to the value only."""
    if isinstance(z, Tensor):
        return layer(z)
    data = z.data @ layer.weight.T
    if layer.bias is None:
        return z.like(data)
    return z.like(torch.cat([data[:1] + layer.bias, data[1:]]))


def apply_tanh_layer(layer: Linear, z: Z) -> Z:
    """Return σ(Wz + b) with σ = tanh: σ' = 1 − σ², σ'' = −2σσ'."""
    if isinstance(z, Tensor):
        return torch.tanh(layer(z))
    image = z.like(z.data @ layer.weight.T)
    parts = image.split()
    value = torch.tanh(parts[0] + layer.bias)
    slope = 1 - value * value
    return _chain(image, parts, value, slope, -2 * value * slope)


def cosine(z: Z) -> Z:
    """Return the cosine of every entry."""
    if isinstance(z, Tensor):
        return torch.cos(z)
    parts = z.split()
    value = torch.cos(parts[0])
    return _chain(z, parts, value, -torch.sin(parts[0]), -value)


def sine(z: Z) -> Z:
    """Return the sine of every entry."""
    if isinstance(z, Tensor):
        return torch.sin(z)
    parts = z.split()
    value = torch.sin(parts[0])
    return _chain(z, parts, value, torch.cos(parts[0]), -value)


def select_columns(z: Z, start: int, stop: int | None = None) -> Z:
    """Return the entries [start:stop] of the last axis."""
    if isinstance(z, Tensor):
        return z[..., start:stop]
    return z.like(z.data[..., start:stop])


def concatenate(parts: list[Z]) -> Z:
    """Concatenate along the last axis."""
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, dim=-1)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return parts[0].like(torch.cat([part.data for part in parts], dim=-1))


def append_constant(z: Z) -> Z:
    """Append the function 1 as a column."""
    if isinstance(z, Tensor):
        return torch.cat([z, torch.ones_like(z[..., :1])], dim=-1)
    one = torch.zeros_like(z.data[..., :1])
    one[0] = 1
    return z.like(torch.cat([z.data, one], dim=-1))


def reverse_time(z: Z) -> Z:
    """Map (x, t) to (x, 1 − t), in the jet of `make_variables` or in rows (N, d + 1)."""
    if isinstance(z, Tensor):
        return torch.cat([z[..., :-1], 1 - z[..., -1:]], dim=-1)
    data = torch.cat([z.data[..., :-1], -z.data[..., -1:]], dim=-1)
    shift = torch.zeros_like(data[:, :1])
    shift[0, :, -1] = 1
    return z.like(data + shift)


def _chain(
    z: Jet, parts: tuple[Tensor, ...], value: Tensor, slope: Tensor, curvature: Tensor
) -> Jet:
    """Return f(z) from f, f', f'' at the value of z: (f∘z)_ij = f' z_ij + f'' z_i z_j."""
    _, z_i, z_ij = parts
    new = [value, slope * z_i]
    if z.second != "none":
        new.append(torch.addcmul(slope * z_ij, curvature, z.cross(z_i, z_i)))
    return z.like(torch.cat(new))


def _second_indices(d: int, second: Second) -> tuple[Tensor, Tensor]:
    """Return the indices i, j of the second derivatives ∂_i∂_j of a jet; t has the index d."""
    rows, columns = torch.triu_indices(d, d)
    if second == "mixed":
        rows = torch.cat([rows, torch.arange(d)])
        columns = torch.cat([columns, torch.full((d,), d)])
    return rows, columns
