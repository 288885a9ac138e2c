PYTHON ?= python3
# Processes that run tests: more than two cores can do at once, since many tests wait for something.
JOBS ?= 3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup test check demo bench secrets

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv and install everything in it; nothing to do when up to date

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV): a minute or two the first time'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[server,test,dev,bench]'
	@touch $@

# One thread in each process: test processes that compete for cores are slower, and one thread adds numbers in the same
# order on every machine. Compiled modules are kept, whatever the environment says: hundreds of processes load them.
PYTEST := $(if $(ALL),AMEND_TEST_ALL=1) OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# What failed is run once more, alone: some tests kill and wait for real processes, and a busy machine may keep those
# waiting for too long. Those that pass then are listed as flaky.
test: setup  ## run the tests; ARGS="-k name" is passed to pytest, ALL=1 runs each on both databases, and every case of grids
	$(PYTEST) -n $(JOBS) $(ARGS) || $(PYTEST) -n 1 --last-failed --last-failed-no-failures none $(ARGS)

check: setup  ## lint, formatting, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: setup  ## a tour in two or three minutes: three models live through every kind of change; KEEP=1 leaves it running
	@$(BIN)/amend demo $(if $(KEEP),--keep)

bench: setup  ## DATA=dir: the paper's benchmark; without it: the scaling benchmark; ARGS="..." adds options
ifdef DATA
	$(BIN)/amend bench paper --data "$(DATA)" $(ARGS)
else
	$(BIN)/amend bench scale $(ARGS)
endif

# Containers run as other users than ours, so the files are readable; nobody else gets into the folder.
random = od -An -N$(1) -tx1 /dev/urandom | tr -d ' \n'
secrets:  ## make the passwords and keys that docker-compose.yml reads; those that are there stay
	@mkdir -p -m 700 secrets
	@for name in postgres_password amend_database_password mlflow_database_password amend_mlflow_password \
	    amend_secret_key ray_auth_token; do \
	    test -s secrets/$$name || $(call random,32) > secrets/$$name; done
	@test -s secrets/amend_admin_key || echo "amend_$$($(call random,6))_$$($(call random,32))" > secrets/amend_admin_key
	@chmod 644 secrets/*
	@echo 'secrets/ holds the passwords and keys; keep a copy of secrets/amend_secret_key somewhere safe'
