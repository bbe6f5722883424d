"""Pretrained models: a table of model files, each of which is a solver with a name."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from geonet._utils import import_object
from geonet.solvers.base import MenuEntry, Solver


@dataclass(frozen=True)
class PretrainedModel:
    """A row of the table.

    Attributes:
        form: form of the model.
        dimension: dimension of the densities it takes.
        summary: one line for `geonet solvers`.
        lacks: quantities that its paths cannot compute although the form can.
        menu: entry in the menu of the web page.
        file: model file; None for NAME.safetensors in the package.
    """

    form: str
    dimension: int
    summary: str
    lacks: tuple[str, ...] = ()
    menu: MenuEntry | None = None
    file: Path | None = None


PRETRAINED_MODELS = {
    "universal-2d": PretrainedModel(
        "cascade",
        2,
        "2D, neural operator for any two densities, then a few Newton steps; milliseconds",
        menu=MenuEntry("Neural network for any drawing, three Newton steps"),
    ),
    "universal-3d": PretrainedModel(
        "cascade",
        3,
        "3D, neural operator for any two densities, then a few Newton steps; on at most 64³",
    ),
    "transport-1d": PretrainedModel(
        "transport",
        1,
        "1D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds",
        menu=MenuEntry("Neural network for smooth densities, with Newton steps"),
    ),
    "transport-2d": PretrainedModel(
        "transport",
        2,
        "2D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds",
        menu=MenuEntry("Neural network for smooth densities, with Newton steps", max_cells=128),
    ),
    "transport-3d": PretrainedModel(
        "transport",
        3,
        "3D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds",
    ),
    "geonet-1d": PretrainedModel(
        "geonet",
        1,
        "1D, the paper's neural operator, trained on its Gaussian mixtures; milliseconds",
        menu=MenuEntry("Neural network of the paper, for smooth densities"),
    ),
    "geonet-2d": PretrainedModel(
        "geonet",
        2,
        "2D, the paper's neural operator, trained on its Gaussian mixtures; milliseconds",
        menu=MenuEntry("Neural network of the paper, for smooth densities (slow)", max_cells=64),
    ),
}


def register_pretrained(
    name: str,
    file: str | Path,
    form: str,
    dimension: int,
    summary: str,
    lacks: tuple[str, ...] = (),
) -> None:
    """Register a trained model file as a solver with its own name.

    Args:
        name: solver name, for example "er-geonet-1d".
        file: the model file that `geonet train` wrote.
        form: form of the model, a key of `geonet.solvers.neural.model.FORMS`.
        dimension: dimension of the densities it takes.
        summary: one line for `geonet solvers`.
        lacks: quantities that its paths cannot compute although the form can.
    """
    PRETRAINED_MODELS[name] = PretrainedModel(form, dimension, summary, lacks, file=Path(file))


def pretrained_file(name: str) -> Path:
    """Return the model file of a pretrained solver."""
    from geonet.solvers.neural.model import PRETRAINED

    row = PRETRAINED_MODELS.get(name)
    if row is not None and row.file is not None:
        return row.file
    return PRETRAINED / f"{name}.safetensors"


@cache
def pretrained_solver(name: str) -> type[Solver]:
    """Return the solver class of a pretrained model: the class of its form with the file set."""
    row = PRETRAINED_MODELS[name]
    base = solver_for_form(row.form)
    provides = tuple(one for one in base.info.provides if one not in row.lacks)
    info = replace(
        base.info,
        name=name,
        summary=row.summary,
        dimensions=(row.dimension,),
        provides=provides,
        differentiable=provides,
        menu=row.menu and replace(row.menu, dimensions=(row.dimension,)),
    )
    file = str(pretrained_file(name))
    return _subclass(base, {"info": info}, ("file", str, field(default=file)))


@cache
def solver_for_form(form: str, dimension: int | None = None) -> type[Solver]:
    """Return the solver class for files of a model form, and of one dimension if it is given."""
    from geonet.solvers.neural.model import model_class

    # Forms whose solver does more than evaluate the network.
    special = {
        "transport": "geonet.solvers.neural.transport.solver:TransportSolver",
        "cascade": "geonet.solvers.neural.solver:CascadeSolver",
    }
    base = import_object(special.get(form, "geonet.solvers.neural.solver:NetworkSolver"))
    provides = model_class(form).provides
    info = replace(
        base.info,
        name=form,
        summary=f"a model of the form {form} from a file that `geonet train` wrote",
        dimensions=base.info.dimensions if dimension is None else (dimension,),
        provides=provides,
        differentiable=provides,
    )
    return _subclass(base, {"info": info, "form": form})


def _subclass(base: type[Solver], own: dict[str, Any], *options: Any) -> type[Solver]:
    namespace = own | {"__doc__": base.__doc__, "__module__": __name__}
    return make_dataclass(base.__name__, options, bases=(base,), namespace=namespace, frozen=True)
