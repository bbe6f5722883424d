"""Training operators on pairs of densities; only a DeepONet is shown geodesics."""

from geonet.training.config import TrainingConfig, read_config
from geonet.training.loop import TrainingOutcome, train
from geonet.training.user_data import config_for

__all__ = ["TrainingConfig", "TrainingOutcome", "config_for", "read_config", "train"]
