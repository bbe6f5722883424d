"""Optimizers by name, and the learning rate over time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from geonet.training.config import OptimizerSettings


def make_optimizer(
    settings: OptimizerSettings, parameters: Iterable[Tensor]
) -> torch.optim.Optimizer:
    """Return SOAP or Adam for the parameters that require gradients."""
    trainable = [p for p in parameters if p.requires_grad]
    if settings.name == "soap":
        return SOAP(trainable, lr=settings.learning_rate)
    return torch.optim.Adam(trainable, lr=settings.learning_rate)


def learning_rate(settings: OptimizerSettings, step: int, steps: int) -> float:
    """Return the learning rate at `step` of `steps`, counted from 0."""
    warm = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    progress, final = step / steps, settings.final
    decay = {
        "cosine": final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)),
        "exponential": final**progress,
        "constant": 1.0,
    }[settings.schedule]
    return settings.learning_rate * warm * decay


@torch.no_grad()
def decay_weights(parameters: Iterable[Tensor], share: float) -> None:
    """Subtract a share of every trainable matrix; biases do not change."""
    for parameter in parameters:
        if parameter.requires_grad and parameter.ndim > 1:
            parameter.mul_(1 - share)


class SOAP(torch.optim.Optimizer):
    """SOAP: Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al., 2024).

    For a matrix G of gradients it is Adam on QᵀGP, with the eigenvectors Q of the mean of GGᵀ and P
    of the mean of GᵀG. One power iteration with QR every `every` steps updates them. Sides longer
    than `largest` are not rotated; vectors get plain Adam. Matrices of one shape are stacked and
    updated together, because a network has many small ones. The state is made of tensors, so it can
    be saved; the state of a stack is stored with the first of its parameters.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        beta: float = 0.95,
        eps: float = 1e-8,
        every: int = 10,
        largest: int = 400,
    ):
        super().__init__(params, dict(lr=lr, beta=beta, eps=eps, every=every, largest=largest))

    @torch.no_grad()
    def step(self, closure=None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter; the very first step only measures the gradients."""
        assert closure is None
        for group in self.param_groups:
            stacks: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    stacks.setdefault(p.shape, []).append(p)
            for parameters in stacks.values():
                grads = torch.stack([p.grad for p in parameters])  # pyright: ignore[reportArgumentType, reportCallIssue]
                state = self.state[parameters[0]]
                if not state:
                    _initialize(state, grads, group)
                else:
                    for p, update in zip(parameters, _update(state, grads, group), strict=True):
                        p.sub_(update)


State = dict[str, Tensor]


def _initialize(state: State, grads: Tensor, group: dict) -> None:
    state["step"] = torch.zeros(())
    state["mean"], state["square"] = torch.zeros_like(grads), torch.zeros_like(grads)
    for side in _rotated_sides(grads, group["largest"]):
        gram = _gram(grads, side) * (1 - group["beta"])
        state[f"gram_{side}"] = gram
        state[f"basis_{side}"] = torch.linalg.eigh(gram)[1].flip(-1).contiguous()


def _update(state: State, grads: Tensor, group: dict) -> Tensor:
    """Return the numbers to subtract from each parameter of a stack, (count, *shape)."""
    beta = group["beta"]
    state["step"] += 1
    steps = int(state["step"])
    mean, square = state["mean"], state["square"]
    rotated = _rotate(grads, state)
    mean.lerp_(rotated, 1 - beta)
    square.mul_(beta).addcmul_(rotated, rotated, value=1 - beta)
    step = mean / square.sqrt().add_(group["eps"])
    correction = 1 - beta**steps  # of both moments: sqrt(correction) / correction
    update = _rotate(step, state, back=True) * (group["lr"] / correction**0.5)
    for side in _rotated_sides(grads, group["largest"]):
        state[f"gram_{side}"].lerp_(_gram(grads, side), 1 - beta)
        if steps % group["every"] == 0:
            _refresh_basis(state, side)
    return update


def _refresh_basis(state: State, side: int) -> None:
    """Do one power iteration and sort the columns, and Adam's squares, by eigenvalue.

    Adam's mean is stored in the eigenbasis, which saves a rotation per step, and rotates with it.
    """
    gram, basis = state[f"gram_{side}"], state[f"basis_{side}"]
    image = gram @ basis
    order = (basis * image).sum(-2).argsort(dim=-1, descending=True)  # (count, n)
    index = order[:, :, None] if side == 0 else order[:, None, :]
    state["square"] = torch.take_along_dim(state["square"], index, dim=side + 1)
    new_basis, _ = torch.linalg.qr(torch.take_along_dim(image, order[:, None, :], -1))
    rotation = new_basis.mT @ basis
    state["mean"] = rotation @ state["mean"] if side == 0 else state["mean"] @ rotation.mT
    state[f"basis_{side}"] = new_basis.contiguous()


def _rotated_sides(grads: Tensor, largest: int) -> list[int]:
    """Return the sides of the matrices that are rotated: 0 for rows, 1 for columns."""
    return [side for side, n in enumerate(grads.shape[1:]) if grads.ndim == 3 and 1 < n <= largest]


def _gram(grads: Tensor, side: int) -> Tensor:
    return grads @ grads.mT if side == 0 else grads.mT @ grads


def _rotate(x: Tensor, state: State, back: bool = False) -> Tensor:
    """Return QᵀxP, or with `back` QxPᵀ."""
    if "basis_0" in state:
        basis = state["basis_0"]
        x = (basis if back else basis.mT) @ x
    if "basis_1" in state:
        basis = state["basis_1"]
        x = x @ (basis.mT if back else basis)
    return x
