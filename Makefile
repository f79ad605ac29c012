# Everything that a fresh machine needs is installed by these targets: Python 3.11 or newer and make are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n 3
SEEDS ?= 2000
ENGINES ?= .venv-engines

# What a program of the tests has compiled, the next one finds: where a shell says that nothing is to be kept, each compiles all of it again.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup demo test checks compiled lint types bench growth crash-bench prove simulate explore fuzz power storm mutants engines guarantee docs golden clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## make .venv with the package and the tools for its tests

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $(STAMP)

demo: setup ## the accident, and the same work with Doubtless: under a minute, no questions
	$(BIN)/doubtless demo

test: setup ## lint, types and all tests, slow proofs in their short form
	@$(MAKE) --no-print-directory -j 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) checks
	$(PYTEST)

checks: lint types compiled

compiled: setup # the tests' modules, by one process for all that will load them, beside mypy
	@$(BIN)/python -m pytest -n 0 --collect-only -qq >/dev/null || true # the run itself says what is wrong

lint: setup ## ruff, and the layers of the imports
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types: setup ## mypy --strict over the package and over user code as the docs show it
	$(BIN)/mypy

bench: setup ## speed as ratios to a hand-written floor, beside others, in one run; writes docs/benchmarks.md; ONLY=resume,steps; QUICK=1
	$(BIN)/python benchmarks/bench.py $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick) $(if $(OTHERS),--others $(OTHERS))

growth: setup ## a PostgreSQL log of EVENTS (20000000) events, API (2000000) of them through the API; writes docs/scale.md
	$(BIN)/python benchmarks/growth.py --events $(or $(EVENTS),20000000) --api $(or $(API),2000000) --page docs/scale.md

crash-bench: setup ## the crash matrix for Doubtless and others, each in a venv of its own; writes docs/crash-bench.md
	$(BIN)/python benchmarks/crash/crash_bench.py $(if $(VENVS),--venvs $(VENVS)) $(if $(POSTGRES),--postgres $(POSTGRES)) $(if $(ABSURD),--absurd) --out docs/crash-bench.md

prove: setup ## the whole matrix, the whole kill sweep, every slice of the exploration, and SEEDS simulated runs
	FUZZ=prove $(PYTEST) -m "prove or not prove"
	$(BIN)/python -m tests.simulation $(SEEDS)

simulate: setup ## SEEDS simulated runs alone, on all cores; prints what they came through, and writes docs/proof.md
	$(BIN)/python -m tests.simulation $(SEEDS) --record

fuzz: setup ## for MINUTES (10): values, arguments, damaged files and the public API, with other examples in each round
	$(BIN)/python tests/fuzz/run.py $(or $(MINUTES),10)

explore: setup ## every state of the protocol within the printed bounds, on all cores; records the counts and writes docs/proof.md
	$(BIN)/python -m tests.explore --plants --record
	$(BIN)/python -m tests.explore --record

power: setup ## every disk that a power loss may leave, on all cores: nothing acknowledged is missing; writes docs/proof.md
	$(BIN)/python -m tests.power --record

storm: setup ## MINUTES (5) of killed, stopped and cut workers and PostgreSQL, effects counted outside; writes docs/storm.md
	$(BIN)/python -m tests.storm $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) --record

mutants: setup ## take each guard away by itself and see its named test fail; exit 1 where none does; writes docs/proof.md
	$(BIN)/python -m tests.mutation.run --record

engines: setup ## Celery, DBOS, Restate, Temporal: installs clients and servers, kills and doubles on each; STORE=postgres
	PYTHON=$(PYTHON) sh tests/engines/install.sh $(ENGINES)
	$(ENGINES)/bin/python -m pytest -n 2 -m engines tests/engines $(if $(ONLY),-k "$(ONLY)")

guarantee: setup ## the checks of one guarantee: G=doubt-2, G=doubt, G=I6, G="rule 8"; WHOLE=1 with the slow proofs
	$(BIN)/python -m tests.docs.guarantees $(if $(WHOLE),--whole) $(if $(G),"$(G)",--list)

docs: setup ## write what the docs take from the code
	$(BIN)/python docs/make_reference.py
	$(BIN)/python -m tests.docs.guarantees --number

golden: setup ## make the golden logs of this release anew; only while its format is not released
	$(BIN)/python tests/replay/make_golden.py

clean: ## remove what the targets made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
