"""What experiments are told, and the stamp on what they give."""

from geonet.evaluation.sources import sources_hash

from benchmarks.results import Result
from experiments.paper.experiments import EXPERIMENTS, Conditions
from geonet.solvers.neural.model import PRETRAINED


def test_counts():
    assert Conditions().count(50, 3) == 50
    assert Conditions(quick=True).count(50, 3) == 3


def test_solvers_are_those_shipped_unless_trained():
    conditions = Conditions(trained=(("geonet-1d", "runs/new.safetensors"),))
    assert conditions.solver("geonet-1d") == "runs/new.safetensors"
    assert conditions.solver("geonet-2d") == "geonet-2d"
    assert Conditions().solver("geonet-1d") == "geonet-1d"
    assert str(conditions.file("geonet-1d")) == "runs/new.safetensors"
    assert conditions.file("geonet-2d") == PRETRAINED / "geonet-2d.safetensors"


def test_every_experiment_begins_in_its_own_module():
    for experiment in EXPERIMENTS.values():
        (module,) = experiment.modules
        assert module.startswith("geonet.studies.reproduction.")


def test_what_it_gives_is_stamped():
    experiment = EXPERIMENTS["loss-curves"]
    result = experiment.measured(Conditions())
    assert isinstance(result, Result) and result.stamp is not None
    assert result.stamp.sources == sources_hash(experiment.modules)
    assert experiment.run(Conditions()).stamp is None
