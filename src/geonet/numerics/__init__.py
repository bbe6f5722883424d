"""Numerical methods that two or more solvers share."""
