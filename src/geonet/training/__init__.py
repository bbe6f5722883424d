"""Training operators on pairs of densities alone: no geodesic is ever shown."""
