"""The Newton engine: optimal transport between any two densities on a grid.

The geodesic between μ0 and μ1 is determined by one function, the Kantorovich potential u at t = ½.
A particle at y at the midpoint starts at y − ½∇u(y) and ends at y + ½∇u(y), so u is characterised
by the balance of both densities after they are pulled back to the midpoint,

    μ0(y − ½∇u)·det(I − ½D²u) = μ1(y + ½∇u)·det(I + ½D²u),        −2I ≤ D²u ≤ 2I.

The bounds on D²u hold for any two measures: u is C^{1,1} although potentials at t = 0 and t = 1 may
have kinks. Quadratic splines therefore represent it (`geonet.numerics.splines`). The modules, in
the order of a call:

- `solver`: the solver "midpoint" with its options;
- `iteration`: Newton's method from coarse to fine grids, damping, halved cells (`NewtonConfig`);
- `system`: residual and linear system of a step, with the reference implementation in torch;
- `compiled`: the same by C kernels (newton_residual.c, multigrid.c);
- `path`: densities, velocities and distance from u, and their gradients;
- `bounds`: lower and upper bounds of W2 and of barycenters that hold for any u (`BoundsConfig`);
- `unbalanced_bounds`: the same for unequal masses;
- `lattices`, `plans`, `repairs`: potentials and transport plans on lattices, for the bounds;
- `bounds_kernels`: the interface to their kernels (bounds.c).
"""
