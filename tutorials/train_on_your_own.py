# %% [markdown]
# # Train a solver on your own densities
#
# A network that has seen many densities of one kind answers new pairs of that kind at once. No
# geodesic is needed for the training, only the densities. Here they are the thousand handwritten
# digits of MNIST that come with geonet; put yours in their place. The training takes some minutes
# on two cores. `TUTORIAL_STEPS=30` makes it a rehearsal.

# %%
import os
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter

import geonet
from geonet.errors import ConvergenceError
from geonet.measures.metrics import l1
from geonet.measures.mnist import sample_digits
from geonet.plotting import plot_together
from geonet.training.loop import train
from geonet.training.own_config import config_for
from geonet.training.own_report import report_on_own

# %% [markdown]
# ## The file
#
# An npz with an array `values`, `(n, cells…)`: any two of these make a pair. (With two arrays
# `source` and `target` the pairs are as given.) `values[i, j]` has x along the first axis and y
# upwards, so images, whose rows run from the top, are turned. A blur of one pixel takes the hard
# edges off. The last tenth will be held out, so the order should be random: shuffle first.

# %%
digits = sample_digits()
order = np.random.default_rng(0).permutation(len(digits))
upright = digits.images[order][:, ::-1].transpose(0, 2, 1).astype(float)
values = gaussian_filter(upright, (0, 1, 1))
np.savez("digits.npz", values=values)

# %% [markdown]
# ## The training
#
# `config_for` looks at the file and chooses the settings. Digits have empty cells, so it spreads
# 5 % of the mass evenly, in the training and in every answer: maps between densities with holes
# have jumps, which no smooth potential has.

# %%
steps = int(os.environ.get("TUTORIAL_STEPS", "0")) or None  # None: the default training
config = config_for(Path("digits.npz"), steps=steps)
print(config.steps, "steps, floor", config.problem.floor)
outcome = train(config, Path("runs/digits"))
assert outcome.model is not None
print(outcome.model, f"validation L1 {outcome.best:.1f} %")

# %% [markdown]
# This is what `geonet train --pairs digits.npz` does.
#
# ## How good is it?
#
# Pairs that were held out, solved by the model and by the best classical solver for each. Strokes
# with space between them tear the map, so for digits that is not `monge-ampere` but
# `schrodinger`, the path with a little noise; some of the difference is that noise. The linear
# mixture moves nothing: a model that does not beat it has learnt nothing.

# %%
report = report_on_own(outcome.model, config)
print("against", report.truth)
for own, mixed in zip(report.model.rows(), report.linear.rows(), strict=True):
    print(f"t = {own[0]:>4}   model {own[1]:>14} %   linear mixture {mixed[1]:>14} %")
report.save(Path("runs/digits"))

# %% [markdown]
# ## Two digits it has never seen
#
# The file is a solver. The report says whether the pair is like those of the training; if not,
# steps of Newton's method correct the network's answer (`corrections=0` for the network alone).

# %%
grid = geonet.Grid((28, 28))
source, target = (geonet.Density(values[k], grid) for k in (-1, -2))
path = geonet.geodesic(source, target, solver=str(outcome.model))
print(path.report)

# %% [markdown]
# The same pair by a classical solver. `monge-ampere` refuses it, with the reason, rather than
# return what did not converge; `auto` without learned solvers falls back to the bridge.

# %%
floor = config.problem.floor
try:
    geonet.geodesic(source, target, solver="monge-ampere", floor=floor)
except ConvergenceError as error:
    print(error)
ends = source.with_floor(floor), target.with_floor(floor)  # as the model has them
classical = geonet.geodesic(*ends, learned=False)
faded = geonet.geodesic(*ends, solver="linear")
halfway = classical.density(0.5)
print(classical.solver)
print(f"model {float(l1(path.density(0.5), halfway)):.1%} off at t = ½")
print(f"linear mixture {float(l1(faded.density(0.5), halfway)):.1%} off")

# %%
figure = plot_together({"model": path, classical.solver: classical, "mixture": faded})
figure.savefig("digits.png")

# %% [markdown]
# A model can leave Python: `geonet export runs/digits/model.safetensors -o onnx` writes ONNX
# files.
