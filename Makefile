# Every target creates .venv first, and again after changes of pyproject.toml, constraints.txt or the
# C sources. Requirements: Python 3.11 or newer with pip, make and a C compiler.

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP_INSTALL := $(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(PYTHON) -m pytest
KERNELS := $(wildcard src/geonet/numerics/kernels/*.c src/geonet/numerics/kernels/*.h)

# pip builds geonet in an isolated environment; these variables pin setuptools there, too.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo app test test-all test-matrix test-browser test-sanitize coverage regression fuzz lint format docs \
  screenshots wheel-test release-check figures benchmark reproduce hot-paths clean

help: ## show this list
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 21

demo: $(VENV)/.dev ## compute a first geodesic, with pictures
	$(VENV)/bin/geonet demo

app: $(VENV)/.dev ## open the drawing page in the browser
	$(VENV)/bin/geonet app

test: $(VENV)/.dev ## run the tests without the slow ones
	$(PYTEST) -n 2

test-all: $(VENV)/.all test-matrix ## run all tests; an hour
	$(PYTEST) -n 2 -m ""

test-matrix: $(VENV)/.dev ## run tests with other versions and CPU builds; ROWS="oldest avx2" selects
	OMP_NUM_THREADS=1 $(PYTHON) tests/trust/matrix.py $(if $(ROWS),--rows $(ROWS)) -n 2

test-browser: $(VENV)/.browser ## test the page in a real browser; needs Debian's chromium
	$(PYTEST) tests/browser

test-sanitize: $(VENV)/.dev ## run the C kernels under AddressSanitizer and UBSan
	$(PYTHON) tests/sanitize.py

coverage: $(VENV)/.dev ## measure the tests' coverage of src/geonet
	$(PYTEST) -n 2 --cov=geonet --cov-report=term:skip-covered --cov-fail-under=97

regression: $(VENV)/.dev ## compare the solvers' answers with the stored table to 1e-9
	OMP_NUM_THREADS=1 $(PYTHON) -W ignore tests/regression/table.py --check

CASES := 10000
SEED := 0
fuzz: $(VENV)/.dev ## feed damaged files to every reader; CASES=100000 SEED=7 for others
	OMP_NUM_THREADS=1 $(PYTHON) tests/trust/fuzz.py --cases $(CASES) --seed $(SEED)

lint: $(VENV)/.dev ## check formatting, lint and types
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m basedpyright --pythonpath $(PYTHON)
	$(VENV)/bin/codespell src docs benchmarks experiments examples README.md

format: $(VENV)/.dev ## format the code and apply automatic fixes
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

docs: $(VENV)/.docs ## build the documentation in site/
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

screenshots: $(VENV)/.browser ## take the documentation's pictures of the page
	$(VENV)/bin/geonet geodesic src/geonet/demo_data/spiral.png src/geonet/demo_data/heart.png -o docs/images/morph.html
	SCREENSHOTS=docs/images $(PYTEST) tests/browser/test_appearance.py

wheel-test: $(VENV)/.dev ## build the wheel and test it in an empty environment; a minute
	$(PYTEST) -m "" tests/trust/test_wheel.py

# The sdist builds the wheel; the wheel is installed with its dependencies in an empty environment, and
# once more without a compiler in the path. CONSTRAINTS= takes the newest versions of dependencies.
CONSTRAINTS := constraints.txt
release-check: $(VENV)/.dev ## build sdist and wheel, and check both in empty environments; ten minutes
	rm -rf build/release && mkdir -p build/release
	$(PYTHON) -c "from setuptools import build_meta; build_meta.build_sdist('build/release')"
	$(PYTHON) -m pip wheel --no-deps -w build/release build/release/*.tar.gz
	test $$(stat -c %s build/release/*.whl) -lt 15000000
	$(PYTHON) -m venv build/release/venv
	PATH=build/release/venv/bin build/release/venv/bin/python -m pip install --quiet --no-compile \
	  $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) build/release/*.whl
	OMP_NUM_THREADS=1 PATH=build/release/venv/bin build/release/venv/bin/python -W error \
	  tests/trust/wheel_check.py --source src

# All measurements need an idle machine and GEONET_DATA, a folder with mnist/. DATA= is the folder of
# DOTmark, RADAR= of radar images. The steps dotmark, fields and gallery fail without theirs.
DATA :=
RADAR :=
FOLDERS = $(if $(DATA),--data $(DATA)) $(if $(RADAR),--radar $(RADAR))
figures: $(VENV)/.all $(VENV)/.browser ## measure all figures and draw all pictures; an hour; ONLY=dotmark,fields selects
	$(PYTHON) -m benchmarks figures $(FOLDERS) $(if $(ONLY),--only $(ONLY))

NAME :=
benchmark: $(VENV)/.all ## compare all solvers; NAME=midpoint runs one study, NAME=list names them
	$(PYTHON) -m benchmarks $(if $(NAME),study $(filter-out list,$(NAME)) $(FOLDERS) $(OPTIONS),compare --out benchmarks/results)
	$(if $(filter list,$(NAME)),,$(PYTHON) -m benchmarks.page)

reproduce: $(VENV)/.dev ## run the paper's experiments; NAME=table-1 for one; a quarter of an hour
	$(PYTHON) -m experiments $(or $(NAME),all) --out experiments/results
	$(PYTHON) -m benchmarks.page

# Compared with the run before, if there is one. A slow run is stored, too, and is the reference of the
# next one; remove its file from runs/hot-paths otherwise. One thread varies least.
hot-paths: $(VENV)/.dev ## time the hot paths; fails if one is 30 % slower than in the last run
	$(PYTEST) -p benchmark -W default benchmarks/hot_paths \
	  --benchmark-storage=runs/hot-paths --benchmark-autosave --benchmark-sort=name \
	  --benchmark-columns=median,min,iqr,rounds \
	  $$(find runs/hot-paths -name '*.json' 2>/dev/null | grep -q . && \
	    echo --benchmark-compare --benchmark-compare-fail=median:30%)

clean: ## remove build products, but not .venv and the compiled kernels
	rm -rf site build dist geonet-demo .pytest_cache .ruff_cache .coverage
	find src tests benchmarks experiments -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.dev: pyproject.toml setup.py constraints.txt $(KERNELS)
	@echo "Setting up $(VENV); this happens once and takes some minutes."
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { \
	  for python in python3.11 python3; do $$python -c '' 2>/dev/null && break; done; \
	  $$python -m venv --clear $(VENV); }
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@

# Baselines and other libraries that only comparisons need. torchcfm names fifty packages as
# dependencies; the parts that are used need only torch, NumPy and POT.
$(VENV)/.all: $(VENV)/.dev
	$(PIP_INSTALL) -e '.[ott,radar]'
	$(PIP_INSTALL) --no-deps torchcfm
	@touch $@

# The requirements of an extra, without a further build of the kernels.
EXTRA = $(PYTHON) -c "import sys, tomllib; \
  print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies'][sys.argv[1]])"
$(VENV)/.browser $(VENV)/.docs: $(VENV)/.%: $(VENV)/.dev
	$(PIP_INSTALL) $$($(EXTRA) $*)
	@touch $@
