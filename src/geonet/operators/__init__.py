"""Networks that map pairs of densities to functions of (x, t)."""
