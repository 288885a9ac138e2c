PYTHON ?= python3
# Number of test processes: more than the usual two cores, because many tests wait for other processes.
JOBS ?= 3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup test quick fuzz simulate check types demo bench secrets

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install everything in it; does nothing if it is up to date

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV): a minute or two the first time'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[server,test,dev,bench]'
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

demo: setup  ## a tour in two or three minutes: three models go through every kind of change; KEEP=1 leaves it running
	@$(BIN)/amend demo $(if $(KEEP),--keep)

bench: setup  ## DATA=dir: the paper's benchmark; without it: the scaling benchmark; ARGS="..." adds options
ifdef DATA
	$(BIN)/amend bench paper --data "$(DATA)" $(ARGS)
else
	$(BIN)/amend bench scale $(ARGS)
endif

# Containers run as other users, so the files are world-readable; the folder is accessible only to its owner.
random = od -An -N$(1) -tx1 /dev/urandom | tr -d ' \n'
secrets:  ## create the passwords and keys that docker-compose.yml reads; existing ones are kept
	@mkdir -p -m 700 secrets
	@for name in postgres_password amend_database_password mlflow_database_password amend_mlflow_password \
	    amend_secret_key ray_auth_token; do \
	    test -s secrets/$$name || $(call random,32) > secrets/$$name; done
	@test -s secrets/amend_admin_key || echo "amend_$$($(call random,6))_$$($(call random,32))" > secrets/amend_admin_key
	@chmod 644 secrets/*
	@echo 'secrets/ holds the passwords and keys; keep a copy of secrets/amend_secret_key somewhere safe'
