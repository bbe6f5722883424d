# %% [markdown]
# # Train a solver on your own densities
#
# A network that is trained on many densities of one kind solves new pairs of this kind quickly. The
# training needs no geodesics, only the densities. Here they are the thousand handwritten digits of
# MNIST that come with geonet; replace them by your own. The training takes some minutes on two
# cores. Set `EXAMPLE_STEPS=30` for a short run.

# %%
import os
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter

import geonet
from geonet.metrics import l1
from geonet.plotting import plot_together
from geonet.training import make_config, train
from geonet.training.user_data import evaluate_on_holdout

# %% [markdown]
# ## The file
#
# Write an npz file with an array `values` of shape `(n, cells…)`; any two of them make a pair.
# (Write two arrays `source` and `target` to give the pairs yourself.) A blur of one pixel softens
# the hard edges. The last tenth will be held out, so shuffle first.

# %%
images = np.load(Path(geonet.__file__).with_name("demo_data") / "mnist-sample.npz")["images"]
order = np.random.default_rng(0).permutation(len(images))
values = gaussian_filter(images[order].astype(float), (0, 1, 1))
np.savez("digits.npz", values=values)

# %% [markdown]
# ## The training
#
# `make_config` chooses the settings for the file. In 2D the training starts from the
# weights of `universal-2d`. `geonet train --pairs digits.npz` does the same.

# %%
steps = int(os.environ.get("EXAMPLE_STEPS", "0")) or None  # None: the default training
config = make_config(Path("digits.npz"), steps=steps)
print(config.steps, "steps from", config.start)
outcome = train(config, Path("runs/digits"))
assert outcome.model is not None
print(outcome.model)
print(f"L1 at t = ½: {outcome.halfway:.1f} % (linear blend {outcome.linear:.1f} %)")

# %% [markdown]
# ## Accuracy
#
# The model and a classical solver, `midpoint` on finer cells, solve the pairs that were held out. A
# model is useful only if its error is smaller than the error of the linear blend.

# %%
report = evaluate_on_holdout(
    outcome.model, config, cache=Path("runs/digits/references.safetensors")
)
print("against", report.reference)
for own, blended in zip(report.model.rows(), report.linear.rows(), strict=True):
    print(f"t = {own[0]:>4}   model {own[1]:>14} %   linear blend {blended[1]:>14} %")
report.save(Path("runs/digits"))

# %% [markdown]
# ## Two digits that were held out
#
# The file is a solver. A few steps of Newton's method correct the network's result
# (`max_iterations=0` gives the network alone). `auto` without learned solvers takes `midpoint`.

# %%
grid = geonet.Grid((28, 28))
source, target = (geonet.Density(values[k], grid) for k in (-10, -9))
path = geonet.geodesic(source, target, solver=str(outcome.model))
print(path.report)
classical = geonet.geodesic(source, target, learned=False)
blend = geonet.geodesic(source, target, solver="linear")
halfway = classical.density(0.5)
print(f"model {l1(path.density(0.5), halfway):.1%} off at t = ½")
print(f"linear blend {l1(blend.density(0.5), halfway):.1%} off")
figure = plot_together({"Trained model": path, "Classical": classical, "Linear blend": blend})
figure.savefig("training.png", dpi=100)
