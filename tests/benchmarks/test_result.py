"""Results go through their file unchanged."""

import json
from dataclasses import replace

import pytest

from benchmarks.records import Benchmark, read_benchmark
from benchmarks.results import Stamp, read_machine
from geonet._files import ensure_dir
from geonet.errors import FileError


def test_there_and_back(made_up, tmp_path):
    file = made_up.save(tmp_path)
    assert file == tmp_path / "benchmark.json"
    assert read_benchmark(tmp_path) == made_up
    content = json.loads(file.read_text(encoding="utf-8"))
    assert list(content) == ["machine", "quick", "settings", "skipped", "scaling", "stamp", "any"]
    assert content["settings"][0]["seconds_per_pair"].keys() == {
        "median",
        "low_quartile",
        "high_quartile",
        "min",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["benchmark.json"]


def test_a_later_run_replaces_its_solvers_and_keeps_the_rest(row):
    old = Benchmark(
        {"cpu": "old"}, False, [row(label="a"), row(label="b", suite="1d"), row(label="b")]
    )
    new = Benchmark({"cpu": "new"}, False, [row(label="b", seconds=9.0)])
    both = new.merge(old)
    assert [(r.suite, r.label) for r in both.settings] == [("2d", "b"), ("2d", "a"), ("1d", "b")]
    assert both.settings[0].seconds == 9.0 and both.machine == {"cpu": "new"}


def test_the_stamp_is_kept(row, tmp_path):
    stamp = Stamp("abc1234", "2026-11-17", {"cpu": "A Processor"}, "0123456789abcdef")
    Benchmark({}, False, [row()], stamp=stamp).save(tmp_path)
    assert read_benchmark(tmp_path).stamp == stamp


def test_results_from_before_there_were_stamps(row, tmp_path):
    file = Benchmark({}, False, [row()]).save(tmp_path)
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["stamp"]
    file.write_text(json.dumps(content), encoding="utf-8")
    assert read_benchmark(tmp_path).stamp is None


def test_an_update_is_as_old_as_what_it_keeps(row):
    old, new = (Stamp(commit, "2026-11-17", {}, commit) for commit in ("old", "new"))
    before = Benchmark({}, False, [row(label="a"), row(label="b")], stamp=old)
    some = Benchmark({}, False, [row(label="a")], stamp=new)
    every = Benchmark({}, False, [row(label="a"), row(label="b")], stamp=new)
    assert some.merge(before).stamp == old
    assert every.merge(before).stamp == new


def test_an_update_of_any_pair_alone(made_up):
    """It has its own machine and stamp, and the other suites keep theirs."""
    old, new = (Stamp(commit, "2026-11-17", {}, commit) for commit in ("old", "new"))
    before = replace(made_up, machine={"cpu": "old"}, stamp=old)
    pairs = replace(made_up.any, machine={"cpu": "new"}, stamp=new)
    after = Benchmark({"cpu": "new"}, False, stamp=new, any=pairs).merge(before)
    assert (after.machine, after.stamp) == ({"cpu": "old"}, old)
    assert after.any == pairs and after.settings == made_up.settings
    without = Benchmark({"cpu": "new"}, False, made_up.settings, stamp=new)
    assert without.merge(before).any == made_up.any


def test_the_median_is_a_rows_time(row):
    assert row(seconds=0.25).seconds == 0.25


def test_what_is_not_a_number_is_not_written(row, tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Benchmark({}, True, [row(l1_percent=float("nan"))]).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"machine": {}}', '{"settings": [{"suite": 1}]}'])
def test_broken_files(tmp_path, text):
    (tmp_path / "benchmark.json").write_text(text)
    with pytest.raises(FileError, match="Cannot read .* as the result of geonet benchmark"):
        read_benchmark(tmp_path)


def test_no_file(tmp_path):
    with pytest.raises(FileError, match="There is no file"):
        read_benchmark(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    assert ensure_dir(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="Cannot make the folder .*: Not a directory."):
        ensure_dir(tmp_path / "file" / "c")


def test_the_machine_is_told():
    found = read_machine()
    assert found["cpu"] and found["cores"] >= 1 and found["threads"] >= 1
    assert all(found[name] for name in ("os", "python", "torch", "numpy", "scipy", "POT"))
    assert {"jax", "ott-jax", "memory_gb"} <= found.keys()
    json.dumps(found, allow_nan=False)
