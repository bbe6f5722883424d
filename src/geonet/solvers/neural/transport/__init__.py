"""The transport form: network, path, certificate, potential, endpoint splines, kernels, solver."""
