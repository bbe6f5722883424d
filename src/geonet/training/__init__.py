"""Training of neural operators on pairs of densities."""

from geonet.training.config import TrainingConfig, read_config
from geonet.training.log import plot_log
from geonet.training.loop import TrainingOutcome, train
from geonet.training.problems import Problem, list_problems, register_problem
from geonet.training.user_data import make_config

__all__ = [
    "Problem",
    "TrainingConfig",
    "TrainingOutcome",
    "list_problems",
    "make_config",
    "plot_log",
    "read_config",
    "register_problem",
    "train",
]
