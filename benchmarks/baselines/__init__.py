"""Methods that geonet is compared with, as solvers of its registry.

Importing this package registers them under their names.
"""

from geonet.solvers.registry import list_solver_names, register

BASELINES = {
    "barycenter": "benchmarks.baselines.pot_barycenter:Barycenter",
    "debiased-barycenter": "benchmarks.baselines.pot_barycenter:DebiasedBarycenter",
    "ott-barycenter": "benchmarks.baselines.ott_barycenter:OttBarycenter",
    "pinn": "benchmarks.baselines.pinn:Pinn",
    "flow-matching": "benchmarks.baselines.flow_matching:FlowMatching",
    "rectified-flow": "benchmarks.baselines.flow_matching:RectifiedFlow",
}

for _name, _location in BASELINES.items():
    if _name not in list_solver_names():
        register(_name, _location)
