"""Pictures are drawn for what there is, and their labels do not lie on each other."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.figures import _draw_front, make_figures, save_figures
from benchmarks.records import Benchmark

NAMES = ["any", "pareto", "resolution", "runtime", "break-even", "scaling"]


def test_all_figures(made_up, tmp_path):
    files = save_figures(made_up, tmp_path)
    assert [file.name for file in files] == [f"benchmark-{name}.png" for name in NAMES]
    assert all(file.stat().st_size > 5_000 for file in files)


def test_a_panel_for_each_dimension(made_up):
    drawn = make_figures(made_up)
    for name in NAMES[1:5]:
        titles = [axis.get_title() for axis in drawn[name].axes]
        assert [title[:2] for title in titles] == ["1D", "2D"]
    assert [axis.get_xlabel() for axis in drawn["scaling"].axes] == [
        "output points",
        "times",
        "pairs",
    ]
    text = drawn["scaling"].axes[0].get_legend().get_texts()[0].get_text()
    assert text == "transport-1d, slope 0.87"


def test_any_pair_has_a_panel_for_each_grid(made_up):
    figure = make_figures(made_up)["any"]
    assert [axis.get_title() for axis in figure.axes] == ["64² cells", "128² cells"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["midpoint", "back-and-forth"]


def test_only_what_was_measured_is_drawn(made_up, row):
    assert make_figures(Benchmark({}, True)) == {}
    assert list(make_figures(Benchmark({}, True, scaling=made_up.scaling))) == ["scaling"]
    (panel,) = make_figures(Benchmark({}, True, [row()]))["pareto"].axes
    assert panel.get_title() == "2D, 64² cells, one pair, 5 times"


def test_the_papers_figure_has_pot_stopped_early(made_up):
    for axis, early in zip(make_figures(made_up)["runtime"].axes, ("0.5", "10"), strict=True):
        labels = [text.get_text() for text in axis.get_legend().get_texts()]
        dimension = axis.get_title()[0]
        assert labels == [
            "POT",
            f"POT, stopped at {early}",
            f"geonet-{dimension}d",
            f"transport-{dimension}d",
        ]
        assert axis.get_xscale() == axis.get_yscale() == "linear"


@pytest.mark.parametrize("gap", [1.01, 1.5, 3.0])
def test_labels_of_the_front_do_not_overlap(row, gap):
    rows = [
        row(label=f"a solver with some options {k}", seconds=0.01 * gap**k, l1_percent=9 / gap**k)
        for k in range(4)
    ]
    rows += [row(label="far", solver="far", seconds=30.0, l1_percent=30.0)]
    figure = Figure(figsize=(5.4, 5.0), layout="constrained")
    axis = figure.subplots()
    _draw_front(axis, "2d", rows)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in axis.texts]
    assert len(boxes) == 4
    for i, first in enumerate(boxes):
        assert not any(first.overlaps(second) for second in boxes[i + 1 :])
