"""What goes in: grids, densities, mixtures, readers."""
