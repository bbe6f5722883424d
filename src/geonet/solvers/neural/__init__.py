"""Neural solvers: networks that map two densities μ0, μ1 to the path between them.

The forms of models, each a subclass of `model.Model`:

- "geonet" (`geonet.py`), the paper's operator: DeepONets C and H for density and potential,
  Σ_k B0_k(μ0) B1_k(μ1) T_k(x, t), trained on ∂tC + div(C∇H) = 0 and ∂tH + ½|∇H|² = 0.
- "deeponet" (`deeponet.py`): C alone, trained on exact paths.
- "transport" (`transport/`): the cosine series of the potential u at t = ½. Particles move along
  straight lines, x = y + (t − ½)∇u(y), so both ends give the density at any time and their
  mismatch certifies the path.
- "cascade" (`cascade.py`, `unet.py`; universal-2d, universal-3d): learned Newton steps for u from a
  coarse to a fine grid, for any two densities. By default Newton's method starts from it.

`layers.py` has the layers of the DeepONets, `jets.py` derivatives in (x, t), `losses.py` batches
and PDE residuals, `model.py` the base class, model files and their cache, `solver.py` and
`transport/solver.py` the solvers, `pretrained.py` the models that come with geonet.
"""
