PYTHON ?= python3
# Number of test processes: more than the usual two cores, because many tests wait for other processes.
JOBS ?= 3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup test quick fuzz simulate check types release-data demo bench secrets wheel image

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install everything in it; does nothing if it is up to date

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV): a minute or two the first time'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[server,verify,test,dev,bench]'
	@# the provider of the tests of single sign-on, apart from the rest: it brings a package named `tests`
	@$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade --target $(VENV)/identity-provider 'canaille[front,oidc]==0.3.6'
	@touch $@

# One thread per process: processes that compete for cores are slower, and a single thread sums numbers in the same order
# on every machine. Compiled modules are always written, because hundreds of processes load them.
PYTEST := $(if $(ALL),AMEND_TEST_ALL=1) OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# Tests that share a server run in the same process.
PARALLEL := -n $(JOBS) --dist loadgroup --no-loadscope-reorder
test: setup  ## run all tests; ARGS="-k name" is passed to pytest, ALL=1 runs each on both databases, and every case of grids
	$(PYTEST) $(PARALLEL) $(ARGS)

QUICK := $(filter-out tests/core/kprior tests/core/tracking tests/core/__% tests/core/conftest.py,$(wildcard tests/core/*)) \
    $(addprefix tests/core/kprior/,model passes curvature memory objective solvers adaptation/test_exact.py) \
    $(addprefix tests/service/test_,models.py examples.py predictions.py removals.py erasures.py) \
    tests/worker/test_jobs.py tests/amend/commands tests/amend/test_client.py
quick: setup  ## run a selection of the tests, on SQLite, in less than two minutes
	$(PYTEST) $(PARALLEL) -m 'not timing' -k 'not postgresql' $(QUICK) $(ARGS)

TIME ?= 300
fuzz: setup  ## run the property tests with random examples until one fails or TIME seconds (300) are over
	@end=$$(($$(date +%s) + $(TIME))); while [ $$(date +%s) -lt $$end ]; do \
	    seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); \
	    $(PYTEST) $(PARALLEL) -q -m hypothesis --hypothesis-profile fuzz --hypothesis-seed $$seed tests $(ARGS) || \
	    { echo "failed with --hypothesis-profile fuzz --hypothesis-seed $$seed"; exit 1; }; done

SEEDS ?= 1000
simulate: setup  ## run SEEDS (1000) simulated histories with crashes and faults; ARGS="--first 42 --trace" reproduces one
	@OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation.simulate --seeds $(SEEDS) $(ARGS)

check: setup  ## lint, formatting, types, import directions; that every test can be collected
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' || { echo 'conflict markers'; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.spec_types --check
	$(BIN)/python -m tools.client_types --check
	$(BIN)/python -m pytest --collect-only -q --no-header tests > /dev/null || \
	    { echo 'tests cannot be collected: run pytest --collect-only tests'; exit 1; }

types: setup  ## generate the types of specs and of the client's responses anew, after their declaration has changed
	$(BIN)/python -m tools.spec_types
	$(BIN)/python -m tools.client_types

release-data: setup  ## write the data that tests of later releases open, after the schema of the untagged release has changed
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.release_data

demo: setup  ## a tour in two or three minutes: a model of a million rows goes through every kind of change; KEEP=1 leaves it running
	@$(BIN)/amend demo $(if $(KEEP),--keep)

bench: setup  ## DATA=dir: the paper's benchmark; without it: the scaling benchmark; ARGS="..." adds options
ifdef DATA
	$(BIN)/amend bench paper --data "$(DATA)" $(ARGS)
else
	$(BIN)/amend bench scale $(ARGS)
endif

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
wheel:  ## build the wheel in dist/, install it in build/, and list what it installs (CycloneDX)
	@rm -rf build dist
	@for name in tools installed; do $(PYTHON) -m venv build/$$name; done
	@build/tools/bin/pip install -q -c constraints.txt build cyclonedx-bom
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) build/tools/bin/python -m build --wheel --outdir dist
	@build/installed/bin/pip install -q -c constraints.txt "$$(echo dist/*.whl)[verify]"
	build/tools/bin/cyclonedx-py environment --output-reproducible -o dist/wheel.cdx.json build/installed/bin/python
	build/installed/bin/amend --help > /dev/null

IMAGE ?= amend
TARGETS ?= cpu ray
SOURCE ?=
image:  ## build IMAGE:VERSION (and -ray); TORCH_INDEX=URL, TARGETS="cpu ray cuda"; ARGS="..." is passed to docker build
	@set -e; for target in $(TARGETS); do \
	    suffix=$$(test $$target = cpu || echo -$$target); \
	    docker build --target $$target --tag $(IMAGE):$(VERSION)$$suffix --build-arg TORCH_INDEX="$(TORCH_INDEX)" \
	        --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) --build-arg SOURCE="$(SOURCE)" \
	        --build-arg CREATED=$$(git log -1 --format=%cI) $(ARGS) .; done

# Containers run as other users, so the files are world-readable; the folder is accessible only to its owner.
random = od -An -N$(1) -tx1 /dev/urandom | tr -d ' \n'
secrets:  ## create the passwords and keys that docker-compose.yml reads; existing ones are kept
	@mkdir -p -m 700 secrets
	@for name in postgres_password amend_database_password mlflow_database_password amend_mlflow_password \
	    amend_secret_key ray_auth_token; do \
	    test -s secrets/$$name || $(call random,32) > secrets/$$name; done
	@test -s secrets/amend_admin_key || echo "amend_$$($(call random,6))_$$($(call random,32))" > secrets/amend_admin_key
	@test -s secrets/amend_signing_key || openssl genpkey -algorithm ed25519 > secrets/amend_signing_key
	@chmod 644 secrets/*
	@echo 'secrets/ holds the passwords and keys; keep copies of amend_secret_key and amend_signing_key somewhere safe'
