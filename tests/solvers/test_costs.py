"""Ratios of costs that users are told of, measured in one run."""

import time

import pytest

import geonet
from geonet import Density
from geonet.measures.families import BOX_2D, mixtures_2d


def seconds(work):
    """Of this process alone: other work on the machine does not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.slow
def test_monge_ampere_costs_a_fiftieth_of_the_debiased_barycenter_at_one_time(generator):
    source, target = (Density(mixtures_2d(1, generator)[0].on(BOX_2D).values, BOX_2D) for _ in "ab")
    coarse = [end.resample(BOX_2D.with_shape(16)) for end in (source, target)]
    for name in ("monge-ampere", "debiased-barycenter"):  # imports are not the solvers' cost
        geonet.geodesic(*coarse, name, **({"reg": 0.1} if "debiased" in name else {})).density(0.5)
    exact, entropic = (
        seconds(lambda name=name: geonet.geodesic(source, target, name).density(0.5))
        for name in ("monge-ampere", "debiased-barycenter")
    )
    assert entropic / exact > 50
