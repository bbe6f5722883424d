"""Training in two processes: equal weights, different batches, averaged gradients."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest
import torch

from geonet._toml import to_table, to_toml
from geonet.solvers.neural.model import load_model, read_tensors
from geonet.training.loop import Processes, Run, join_processes

TIMEOUT = 240  # seconds, on a machine that has other work

# Runs in each of two processes and writes its results to rank0.pt and rank1.pt.
SCRIPT = """
import os, signal, sys
from pathlib import Path

import torch
from geonet.errors import TrainingError
from geonet.training.config import read_config
from geonet.training.loop import Run, join_processes, train
from geonet.solvers.neural.geonet import GeONetLoss

folder, *ports = sys.argv[1:]
folder, rank = Path(folder), int(os.environ["RANK"])
config, found = read_config(folder / "tiny.toml"), {}

def go(name, config=config, **options):  # every group of processes meets at a port of its own
    os.environ["MASTER_PORT"] = ports.pop()
    outcome = train(config, folder / name, **options)
    return [outcome.reason, outcome.step]

os.environ["MASTER_PORT"] = ports.pop()
with join_processes() as processes:
    found["place"] = [processes.rank, processes.count, processes.is_main]
    found["any"] = [processes.any(rank == 1), processes.any(False)]
    own = ((None, "b")[rank], "ba"[rank], None)
    found["first"] = [processes.broadcast_first(value, ("a", "b")) for value in own]
    found["mean"] = processes.mean(torch.tensor([1.0 + 2 * rank]))
    found["gathered"] = processes.gather(torch.tensor([rank]))
    run = Run(config, folder, processes)
    batch = run.draw_batch()
    found["batch"] = [batch.source, batch.points, batch.endpoint_points]
    terms = run.parallel(batch)
    run.objective.total(terms).backward()
    found["gradients"] = [p.grad for p in run.model.parameters() if p.requires_grad]
    for _ in range(5):
        run.step()
    found["weights"] = run.model.state_dict()
    found["balance"] = run.progress.weights
    run.close()

found["whole"] = go("whole")
found["half"] = go("parts", stop_at=5)
found["resumed"] = go("parts", resume=True)

step = Run.step
def signalled(self):
    if rank == 1 and self.progress.step == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self)
Run.step = signalled
found["signalled"] = go("signalled")
Run.step = step

total, steps = GeONetLoss.total, iter(range(1, 100))
def spoilt(self, terms, weights=None):
    loss = total(self, terms, weights)
    return loss * float("nan") if next(steps) == 4 and rank == 1 else loss
GeONetLoss.total = spoilt
try:
    go("spoilt")
except (TrainingError, RuntimeError) as error:
    found["spoilt"] = [type(error).__name__, str(error)]

torch.save(found, folder / f"rank{rank}.pt")
"""


@pytest.fixture(scope="module")
def config(tiny):
    return tiny(optimizer={"balance_every": 3}, checkpoint_every=2)


@pytest.fixture(scope="module")
def pair(config, tmp_path_factory):
    """The folder of the script, and the results of its two processes."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "tiny.toml").write_text(to_toml(to_table(config)))
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    arguments = ["-c", SCRIPT, str(folder), *_free_ports(12)]
    places = [group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    for code, _, err in _run(*((arguments, place) for place in places)):
        assert code == 0, err
    return folder, [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def _run(*commands: tuple[list[str], dict[str, str]]) -> list[tuple[int, str, str]]:
    """Run Python with arguments and environments in parallel; return exit codes and outputs."""
    with ExitStack() as stack:
        started = []
        for arguments, environment in commands:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            stack.callback(_kill, process)
            started.append(process)
        output = [process.communicate(timeout=TIMEOUT) for process in started]
        return [(p.returncode, *texts) for p, texts in zip(started, output, strict=True)]


def _kill(process: subprocess.Popen) -> None:
    """Kill a process and those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in sockets]


# ---- collectives and gradients


def test_one_process():
    with join_processes() as processes:
        assert processes == Processes(0, 1) and processes.is_main
        assert processes.any(True) and not processes.any(False)
        assert processes.broadcast_first("b", ("a", "b")) == "b"
        assert processes.mean(torch.tensor(2.0)) == 2
        module = torch.nn.Linear(1, 1)
        assert processes.parallelize(module) is module


def test_ranks_and_collectives(pair):
    first, second = pair[1]
    assert (first["place"], second["place"]) == ([0, 2, True], [1, 2, False])
    for found in (first, second):
        assert found["any"] == [True, False]
        assert found["first"] == ["b", "a", None]
        assert found["mean"].tolist() == [2.0]
        assert [int(x) for x in found["gathered"]] == [0, 1]


def test_gradients_are_means_over_both_batches(pair, config, tmp_path):
    """Compared with the mean loss of both batches in one process."""
    runs = [Run(config, tmp_path, Processes(rank, 1)) for rank in range(2)]  # their streams
    batches = [run.draw_batch() for run in runs]
    assert not torch.equal(batches[0].source, batches[1].source)
    model, objective = runs[0].model, runs[0].objective
    loss = sum(objective.total(objective(batch)) for batch in batches) / 2
    moving = [p for p in model.parameters() if p.requires_grad]
    expected = torch.autograd.grad(loss, moving)
    largest = max(float(gradient.abs().max()) for gradient in expected)
    for found, batch in zip(pair[1], batches, strict=True):
        own = (batch.source, batch.points, batch.endpoint_points)
        assert all(torch.equal(a, b) for a, b in zip(found["batch"], own, strict=True))
        for gradient, wanted in zip(found["gradients"], expected, strict=True):
            assert torch.allclose(gradient, wanted, rtol=1e-4, atol=1e-6 * largest)


def test_weights_stay_equal(pair, config, tmp_path):
    first, second = pair[1]
    start = Run(config, tmp_path, Processes()).model.state_dict()
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), name
    assert not all(torch.equal(value, start[name]) for name, value in first["weights"].items())
    assert first["balance"] == second["balance"]


# ---- runs


def test_two_processes_resume_bit_for_bit(pair, assert_same_state):
    folder, found = pair
    for each in found:
        assert each["whole"] == each["resumed"] == ["finished", 12]
        assert each["half"] == ["stopped", 5]
    assert_same_state(folder / "whole", folder / "parts")
    tensors, _ = read_tensors(folder / "whole" / "checkpoint.safetensors", "a checkpoint")
    assert not torch.equal(tensors["rng/0"], tensors["rng/1"])
    assert "rng/2" not in tensors


def test_a_signal_to_one_process_stops_both(pair):
    folder, found = pair
    assert [each["signalled"] for each in found] == [["terminated", 3]] * 2
    _, header = read_tensors(folder / "signalled" / "checkpoint.safetensors", "a checkpoint")
    assert header["progress"]["step"] == 3


def test_a_nan_in_one_process_stops_both(pair):
    folder, found = pair
    for each in found:
        name, message = each["spoilt"]
        assert name == "TrainingError" and message.startswith("At step 4 ")
    _, header = read_tensors(folder / "spoilt" / "checkpoint.safetensors", "a checkpoint")
    assert header["progress"]["step"] == 2


@pytest.mark.slow
def test_torchrun(config, tmp_path, logged):
    """`torchrun --nproc-per-node 2 -m geonet train tiny.toml` finishes, and one process writes."""
    (tmp_path / "tiny.toml").write_text(to_toml(to_table(config)))
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    command = ["-m", "geonet", "train", str(tmp_path / "tiny.toml"), "--folder"]
    arguments = [*torchrun, *_free_ports(1), *command, str(tmp_path / "run")]
    ((code, out, err),) = _run((arguments, {"OMP_NUM_THREADS": "1"}))
    assert code == 0, err
    assert out.count(f"finished at step 12 of 12, in {tmp_path / 'run'}\n") == 1
    assert out.count("\n") == 3
    steps = [entry["step"] for entry in logged(tmp_path / "run") if "loss" in entry]
    assert steps == list(range(1, 13))
    tensors, _ = read_tensors(tmp_path / "run" / "checkpoint.safetensors", "a checkpoint")
    assert "rng/1" in tensors
    assert load_model(tmp_path / "run" / "model.safetensors")[1]["steps"] in (6, 12)
    assert not list((tmp_path / "run").glob(".*"))
