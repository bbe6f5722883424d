# Every target makes its own .venv first, and again when pyproject.toml, constraints.txt or the C sources
# change.
# All that a machine needs is Python 3.11 or newer with pip, make and a compiler.

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP_INSTALL := $(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt

# pip builds geonet in an environment of its own; these pin setuptools there too (old pip, new pip).
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo app app-latency screenshots test test-browser test-all test-matrix test-quickest wheel-test fuzz lint format docs accuracy training-step variants models transport \
  transport-speed transport-failures midpoint universal universal-3d universal-variants reproduce reproduction stale benchmark solvers gradients command-line \
  inference-floor hot-paths busy anything own-training radar field-cluster \
  clean

help: ## show this list
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

demo: $(VENV)/.dev ## a first geodesic, with pictures
	$(VENV)/bin/geonet demo

app: $(VENV)/.dev ## a page to draw two densities on, in the browser
	$(VENV)/bin/geonet app

test: $(VENV)/.dev ## the tests, without the slow ones
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2

test-all: $(VENV)/.torchcfm $(VENV)/.radar test-matrix ## all tests
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 -m ""

test-matrix: $(VENV)/.dev ## tests with other versions and other arithmetic; ROWS="oldest avx2" for some
	OMP_NUM_THREADS=1 $(PYTHON) tests/trust/matrix.py $(if $(ROWS),--rows $(ROWS)) -n 2

# Of the slow tests those that take less than half a minute each, and what must agree to the last bit
# with other arithmetic.
QUICKEST := tests/trust/test_wheel.py tests/trust/test_determinism.py tests/solvers/test_costs.py \
  tests/export/test_onnx_files.py tests/training
test-quickest: $(VENV)/.dev ## the quickest of the slow tests, and resuming with other arithmetic
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 -m slow $(QUICKEST)
	OMP_NUM_THREADS=1 $(PYTHON) tests/trust/matrix.py --rows plain threads misaligned \
	  -n 2 -k "break or half or resume or saved"

test-browser: $(VENV)/.browser ## the page of `make app` in a real browser: needs Debian's chromium
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests/browser

screenshots: $(VENV)/.browser ## pictures of that page and a path to explore, for the documentation
	$(VENV)/bin/geonet geodesic src/geonet/demo_data/spiral.png src/geonet/demo_data/heart.png -o docs/images/morph.html
	SCREENSHOTS=docs/images OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests/browser/test_looks.py

wheel-test: $(VENV)/.dev ## build the wheel and try it where there are no sources; a minute
	$(PYTHON) -m pytest -m "" tests/trust/test_wheel.py

CASES := 10000
SEED := 0
fuzz: $(VENV)/.dev ## damaged files for every reader; CASES=100000 SEED=7 for others
	OMP_NUM_THREADS=1 $(PYTHON) tests/trust/fuzz.py --cases $(CASES) --seed $(SEED)

lint: $(VENV)/.dev ## formatting, lint and types
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m basedpyright --pythonpath $(PYTHON)

format: $(VENV)/.dev ## format the code and mend what can be mended
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

docs: $(VENV)/.docs ## the documentation, in site/
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

accuracy: $(VENV)/.dev ## measure the solvers and write docs/accuracy.md; ten minutes, idle machine
	$(PYTHON) studies/pages/exact_solvers.py

training-step: $(VENV)/.dev ## measure what a step of training costs; a minute, idle machine
	$(PYTHON) studies/pages/training_step.py

variants: $(VENV)/.dev ## measure what each choice in training is worth; half an hour of one core
	$(PYTHON) studies/pages/training_variants.py

models: $(VENV)/.dev ## measure the trained models and write docs/models.md; some minutes
	$(PYTHON) studies/pages/learned_solvers.py

transport: $(VENV)/.dev ## measure the transport models and write docs/transport.md; a quarter of an hour
	$(PYTHON) studies/pages/transport_accuracy.py

transport-speed: $(VENV)/.dev ## measure their speed; some minutes, idle machine
	$(PYTHON) studies/pages/transport_speed.py

transport-failures: $(VENV)/.dev ## show where they fail; a minute
	$(PYTHON) studies/pages/transport_failures.py

midpoint: $(VENV)/.dev ## measure midpoint and write docs/midpoint.md; a quarter of an hour, idle machine
	$(PYTHON) studies/pages/midpoint_accuracy.py

universal: $(VENV)/.dev ## measure universal-2d and write docs/universal.md; ten minutes, idle machine
	$(PYTHON) studies/pages/universal_accuracy.py

universal-3d: $(VENV)/.dev ## measure universal-3d, for docs/universal.md; ten minutes, idle machine
	$(PYTHON) studies/pages/universal_3d.py

own-training: $(VENV)/.dev ## compare trainings on one's own densities, for docs/training.md; half an hour, idle machine
	$(PYTHON) studies/pages/own_training.py

universal-variants: $(VENV)/.dev ## compare networks for any two densities at equal training time; half an hour, idle machine
	$(PYTHON) studies/pages/universal_variants.py

anything: $(VENV)/.dev ## draw densities that universal-2d is trained on, for docs/anything.md; seconds
	$(PYTHON) studies/pages/anything_pictures.py

NAME := all
reproduce: $(VENV)/.dev ## the paper's experiments and docs/reproduction.md; hours; NAME=table-1 for one
	$(VENV)/bin/geonet reproduce $(NAME) --out studies/results
	$(PYTHON) studies/pages/reproduction_page.py

reproduction: $(VENV)/.dev ## put studies/results into docs/reproduction.md; make reproduce makes them
	$(PYTHON) studies/pages/reproduction_page.py

stale: $(VENV)/.dev ## list the figures on pages that are older than their sources; the pages say so
	$(PYTHON) studies/pages/stale.py

benchmark: $(VENV)/.ott ## error against time of all solvers, and docs/benchmark.md; an hour, idle machine
	$(VENV)/bin/geonet benchmark --out studies/results
	$(PYTHON) studies/pages/benchmark_page.py
	$(PYTHON) studies/pages/inference_floor.py

solvers: $(VENV)/.dev ## write docs/solvers.md from the solvers' docstrings
	$(PYTHON) studies/pages/solver_list.py

gradients: $(VENV)/.dev ## measure gradients and write docs/gradients.md; a minute
	$(PYTHON) studies/pages/gradient_accuracy.py

command-line: $(VENV)/.dev ## what the first command and a thousand pairs cost; some minutes, idle machine
	$(PYTHON) studies/pages/command_line.py

inference-floor: $(VENV)/.dev ## how near inference is to what this machine can do; a minute, idle machine
	$(PYTHON) studies/pages/inference_floor.py

app-latency: $(VENV)/.browser ## measure how soon that page answers a stroke; a minute, idle machine
	$(PYTHON) studies/pages/app_latency.py

radar: $(VENV)/.radar ## rain between radar images by three methods, and docs/fields.md; a minute
	$(PYTHON) studies/pages/radar_fields.py

field-cluster: $(VENV)/.dev ## a thousand radar images on a Dask cluster, and docs/fields.md; ten minutes, idle machine
	OMP_NUM_THREADS=1 $(PYTHON) studies/pages/field_cluster.py

busy: $(VENV)/.dev ## solves and training beside other programs, and docs/threads.md; some minutes, idle machine
	$(PYTHON) studies/pages/busy_machine.py

# Compared with the run before, if there is one. A slow run is kept too and becomes the next one's
# measure; remove its file from runs/hot-paths if it should not. One thread varies least. Inference is
# timed with each build of the compiled loops; ATEN_CPU_CAPABILITY=avx2 makes torch's own like it.
hot-paths: $(VENV)/.dev ## time our own hot paths; fails where one got slower by 30 %; a minute, idle machine
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -p benchmark -W default studies/hot_paths \
	  --benchmark-storage=runs/hot-paths --benchmark-autosave --benchmark-sort=name \
	  --benchmark-columns=median,min,iqr,rounds \
	  $$(find runs/hot-paths -name '*.json' 2>/dev/null | grep -q . && \
	    echo --benchmark-compare --benchmark-compare-fail=median:30%)

clean: ## remove what the other targets made, but for .venv and the compiled loops
	rm -rf site build dist geonet-demo .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.dev: pyproject.toml constraints.txt src/geonet/numerics/kernels/cosine_paths.c \
  src/geonet/numerics/kernels/multigrid.c src/geonet/numerics/kernels/newton_residual.c \
  src/geonet/numerics/kernels/quadratic.h src/geonet/numerics/kernels/unet.c \
  src/geonet/numerics/kernels/c_transform.c
	@echo "Setting up $(VENV); this is done once and takes some minutes."
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { \
	  for python in python3.11 python3; do $$python -c '' 2>/dev/null && break; done; \
	  $$python -m venv --clear $(VENV); }
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/.radar: $(VENV)/.dev
	$(PIP_INSTALL) -e '.[radar]'
	@touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(PIP_INSTALL) -e '.[browser]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP_INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.ott: $(VENV)/.dev
	$(PIP_INSTALL) -e '.[ott]'
	@touch $@

# What our flows are compared with. What we call of it needs torch, NumPy and POT alone, and not the
# fifty packages that it names.
$(VENV)/.torchcfm: $(VENV)/.dev
	$(PIP_INSTALL) --no-deps torchcfm
	@touch $@
