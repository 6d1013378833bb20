# `make demo` and `make test` do all their own set-up. What is handed out is made by deploy/Makefile, what needs another
# machine or much time by tests/Makefile: `make -C deploy`, `make -C tests` tell of them.
include .ci/venv.mk

PYTEST := $(BIN)/python -m pytest
# Test processes. Most tests wait for something, so three times as many as cores; 0: one test after another.
WORKERS ?= 6

.PHONY: help demo test test-all test-fast lint types peers grafana pytest docs generate bench lock audit

demo: $(VENV)/.run ## the whole of it on this machine, in about 20 seconds; nothing is installed beside .venv
	@echo "== python -m exporter demo"
	@$(BIN)/python -m exporter demo

test: lint types peers pytest ## linters, types, and every test, against real peers (as root they are installed with apt)

# The same, and the dashboards drawn by Grafana's own components.
test-all: export DASHBOARDS_DRAWN = 1
test-all: grafana test

test-fast: export PROPERTIES_TIMES ?= 0.25
test-fast: $(VENV)/.test ## the tests that start no peers and no whole agent, in a minute and a half
	@$(PYTEST) --numprocesses $(WORKERS) --dist worksteal --ignore tests/system --ignore tests/dashboards -m "not peer and not nightly"

lint: $(VENV)/.test ## ruff, formatting, import-linter
	@echo "== ruff check, ruff format --check"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== import-linter: who may import whom (.importlinter)"
	@$(BIN)/lint-imports >/dev/null || $(BIN)/lint-imports

types: $(VENV)/.test ## mypy --strict, tests included, for Linux and for Windows
	@echo "== mypy --strict, for Linux and for Windows"
	@$(BIN)/mypy
	@$(BIN)/mypy --platform win32 --no-warn-unreachable exporter

peers: $(VENV)/.test
	@.ci/peers
	@.ci/tools $(BIN)/python
	@.ci/node $(BIN)/python tests/node

grafana: $(VENV)/.test
	@.ci/node $(BIN)/python tests/grafana

pytest: $(VENV)/.test
	@echo "== pytest"
	@$(PYTEST) --numprocesses $(WORKERS) --dist worksteal $(if $(NIGHTLY),-m "")

# Not --quiet: it takes the warnings away that --strict is there for. The variable silences the theme about its successor.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs ## the documentation as a site in build/docs, every link checked
	@echo "== mkdocs build --strict"
	@$(BIN)/mkdocs build --strict --clean --config-file .mkdocs.yml
	@echo "== it is in build/docs"

# In this order: the chart has copies of dashboards and rules.
generate: $(VENV)/.test ## whatever is made of something else: dashboards, rules for other loaders, manifests, schema, parts of pages
	$(BIN)/python -m dashboards.build
	$(BIN)/python -m deploy.loaders
	$(BIN)/python -m deploy.manifests
	UPDATE_README=1 $(PYTEST) -q tests/project/test_docs.py -k generated_part

# The words of WHAT are a module of benchmarks/ and its arguments. Some ask real peers.
WHAT ?= run
bench: $(if $(filter notifications panels rules,$(firstword $(WHAT))),peers,$(VENV)/.test) ## speed and memory in 5 minutes; WHAT=costs, notifications, panels, scale, …
	$(BIN)/python -m benchmarks.$(WHAT)

lock: $(VENV)/.locked ## lock the newest dependencies, and the tools of a release, in deploy/*.txt
	UV=$(BIN)/uv deploy/lock
	$(BIN)/python -m deploy.platforms

audit: $(VENV)/.locked ## known vulnerabilities of the locked dependencies (asks the network)
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement deploy/constraints.txt \
		--requirement deploy/build.txt --requirement deploy/standalone.txt --requirement deploy/release.txt
