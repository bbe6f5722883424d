"""The trained models that come with geonet: a table of files, each a solver under its own name."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from geonet._utils import import_object
from geonet.solvers.catalogue import Card, card_at, gives_of_form

if TYPE_CHECKING:
    from geonet.solvers.base import Solver

NETWORK = "geonet.solvers.neural.solver:NetworkSolver"
# Forms whose solver does more than evaluate the network.
SOLVERS = {
    "transport": "geonet.solvers.neural.transport.solver:TransportSolver",
    "cascade": "geonet.solvers.neural.solver:CascadeSolver",
}


class Shipped(NamedTuple):
    """A row of the table; the file is NAME.safetensors.

    Attributes:
        form: of the model.
        dimension: of the densities it takes.
        summary: one line for `geonet solvers`.
        lacks: what its paths cannot answer, of all that its form can.
    """

    form: str
    dimension: int
    summary: str
    lacks: tuple[str, ...] = ()


SHIPPED = {
    "universal-2d": Shipped(
        "cascade",
        2,
        "2D, neural operator for any two densities, then a few steps of Newton's; milliseconds",
    ),
    "universal-3d": Shipped(
        "cascade",
        3,
        "3D, neural operator for any two densities, then a few steps of Newton's; on at most 64³",
    ),
    "transport-1d": Shipped(
        "transport",
        1,
        "1D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds",
    ),
    "transport-2d": Shipped(
        "transport",
        2,
        "2D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds",
    ),
    "transport-3d": Shipped(
        "transport",
        3,
        "3D, neural operator of the transport form, trained on Gaussian mixtures; milliseconds",
    ),
    "transport-cloud": Shipped(
        "transport",
        2,
        "2D, neural operator of the transport form, trained on histograms of point clouds",
    ),
    "transport-mnist": Shipped(
        "transport",
        2,
        "2D, neural operator of the transport form, trained on images of MNIST's digits",
    ),
    "geonet-1d": Shipped(
        "geonet",
        1,
        "1D, the paper's neural operator, trained on its Gaussian mixtures; milliseconds",
    ),
    "geonet-2d": Shipped(
        "geonet",
        2,
        "2D, the paper's neural operator, trained on its Gaussian mixtures; milliseconds",
    ),
    "er-geonet-1d": Shipped(
        "geonet",
        1,
        "1D, the paper's entropic operator: a Schrödinger bridge on its Gaussian mixtures",
        lacks=("distance",),
    ),
    "er-geonet-2d": Shipped(
        "geonet",
        2,
        "2D, the paper's entropic operator: a Schrödinger bridge on its Gaussian mixtures",
        lacks=("distance",),
    ),
    "geonet-cloud": Shipped(
        "geonet", 2, "2D, the paper's neural operator, trained on histograms of point clouds"
    ),
    "geonet-mnist": Shipped(
        "geonet", 1, "1D, the paper's neural operator, trained on codes of MNIST's digits"
    ),
    "deeponet-1d": Shipped(
        "deeponet", 1, "1D, neural operator without physics, trained on exact paths; density only"
    ),
}


def shipped_card(name: str) -> Card:
    """What `geonet solvers` says of a shipped model."""
    about = SHIPPED[name]
    card = card_at(SOLVERS.get(about.form, NETWORK))
    options = [
        option._replace(default=f"{name}.safetensors") if option.name == "file" else option
        for option in card.options
    ]
    return Card(name, about.summary, (about.dimension,), _gives(about), tuple(options))


def _gives(about: Shipped) -> tuple[str, ...]:
    return tuple(what for what in gives_of_form(about.form) if what not in about.lacks)


@cache
def shipped_class(name: str) -> type[Solver]:
    """The solver of a shipped model: that of its form, with the file filled in."""
    from geonet.solvers.neural.model import PRETRAINED

    about = SHIPPED[name]
    gives = _gives(about)
    file = str(PRETRAINED / f"{name}.safetensors")
    own = {
        "name": name,
        "summary": about.summary,
        "dimensions": (about.dimension,),
        "gives": gives,
        "differentiable": ("density", *gives),
    }
    return _subclass(about.form, own, [("file", str, field(default=file))])


@cache
def class_of_form(form: str) -> type[Solver]:
    """The solver of a model's file, by the form that its header names."""
    from geonet.solvers.neural.model import form_of

    gives = form_of(form).gives
    own = {
        "name": form,
        "summary": f"a model of the form {form} from a file that `geonet train` wrote",
        "gives": gives,
        "differentiable": ("density", *gives),
    }
    return _subclass(form, own, [])


def _subclass(form: str, own: dict[str, Any], options: list[Any]) -> type[Solver]:
    base = import_object(SOLVERS.get(form, NETWORK))
    namespace = own | {"form": form, "__doc__": base.__doc__, "__module__": __name__}
    return make_dataclass(base.__name__, options, bases=(base,), namespace=namespace, frozen=True)
