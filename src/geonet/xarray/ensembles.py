"""Ensembles: groups of members at one time, with weights, and their Wasserstein mean."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from geonet.barycenters import barycenter
from geonet.errors import DensityError, InputError
from geonet.solvers.barycenters import BarycenterOptions
from geonet.weights import check_weights
from geonet.xarray.pairs import FrameConfig, FrameGroup


@dataclass(frozen=True)
class EnsembleConfig(FrameConfig):
    """Settings of the mean of an ensemble.

    Attributes:
        weights: weights of the members, (n,), with sum one.
        options: options of the barycenter; a reach is in the units of the space.
    """

    weights: tuple[float, ...] = ()
    options: BarycenterOptions = field(default_factory=BarycenterOptions)


class Ensemble(FrameGroup):
    """The members of an ensemble at one time, and their Wasserstein mean."""

    noun = "mean"

    def mean(self, fractions: np.ndarray) -> np.ndarray:
        """Return the mean of all members once for each fraction, (T, *space)."""
        members, gaps = self._filled_frames
        weights = np.array(self._config.weights)
        is_wet = np.array([member.any() for member in members])
        self._check_dry(is_wet, weights)
        total = float(weights @ self._integrate(members))
        wet = np.flatnonzero(is_wet & (weights > 0))
        frame = self._average(members[wet], weights[wet]) if len(wet) else members[0] * 0.0
        if len(wet):
            frame = frame * (
                (total if self._config.mass == "given" else 1.0) / self._integrate(frame)
            )
        frame = np.where(gaps, np.nan, frame) if gaps.any() else frame
        return np.broadcast_to(frame, (len(fractions), *frame.shape))

    def _average(self, members: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the barycenter of members with mass, up to a factor."""
        if len(members) == 1:
            return members[0]
        densities = [self._to_density(member) for member in members]
        own = asdict(self._config.options)
        found = barycenter(densities, weights / weights.sum(), **own)
        return np.asarray(found.density) / self._space.areas

    def _check_dry(self, is_wet: np.ndarray, weights: np.ndarray) -> None:
        """Raise DensityError if a member without mass has no part in a balanced mean.

        Nothing can move to or from it. If all members are empty, so is their mean.
        """
        dry = np.flatnonzero(~is_wet & (weights > 0))
        if self._config.options.reach is None and 0 < len(dry) < np.count_nonzero(weights):
            raise DensityError(
                f"{self._describe(int(dry[0]))} is zero everywhere, and no mass can move to it; "
                "give a reach=..., with which it counts as zero mass, or the weight zero."
            )


def member_weights(field: xr.DataArray, dim: Hashable, weights: Any) -> tuple[float, ...]:
    """Return the checked weights of all members along a dimension."""
    count = field.sizes[dim]
    if count == 0:
        raise InputError(f"The field has no members along {dim!r}; give one or more.")
    if isinstance(weights, xr.DataArray):
        if weights.dims != (dim,):
            raise InputError(
                f"The weights lie along {', '.join(map(str, weights.dims)) or 'no dimension'}; "
                f"give an array along {dim!r}."
            )
        if dim in weights.coords and dim in field.coords:
            weights = _match_labels(weights, field, dim)
        weights = weights.values
    if weights is not None and np.shape(weights) != (count,):
        raise InputError(
            f"The field has {count} members along {dim!r} and the weights have the shape "
            f"{np.shape(weights)}; give {count} numbers."
        )
    return tuple(check_weights(weights, count).tolist())


def _match_labels(weights: xr.DataArray, field: xr.DataArray, dim: Hashable) -> xr.DataArray:
    """Return the weights in the order of the members."""
    own, labels = weights.get_index(dim), field.get_index(dim)
    if own.equals(labels):
        return weights
    if not (own.is_unique and labels.is_unique and set(own) == set(labels)):
        raise InputError(
            f"The weights and the field have different labels along {dim!r}; give one weight for "
            "each member, or weights without labels: weights.values."
        )
    return weights.sel({dim: labels})
