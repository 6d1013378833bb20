# `make demo` and `make test` need no set-up. deploy/Makefile builds releases; tests/Makefile runs the tests that need another
# machine or much time. `make -C deploy` and `make -C tests` list their targets.
include .ci/venv.mk

PYTEST := $(BIN)/python -m pytest
# Number of test processes. Most tests wait, so use three for each core. 0: run one test at a time.
WORKERS ?= 6

.PHONY: help demo test test-all test-fast lint types peers grafana pytest docs generate bench lock audit

demo: $(VENV)/.run ## run a complete demo with a simulated Azure, in about 20 seconds; installs only into .venv
	@echo "== python -m exporter demo"
	@$(BIN)/python -m exporter demo

test: lint types peers pytest ## run linters, type checks, and all tests with real peers (as root on Debian, installs them with apt)

# Also draws the dashboards with Grafana's components.
test-all: export DASHBOARDS_DRAWN = 1
test-all: grafana test

test-fast: export PROPERTIES_TIMES ?= 0.25
test-fast: $(VENV)/.test ## run the tests that need no peers and no whole agent, in 90 seconds
	@$(PYTEST) --numprocesses $(WORKERS) --dist worksteal --ignore tests/system --ignore tests/dashboards -m "not peer and not nightly"

# What codespell reads; pyproject.toml has the words that it accepts.
SPELLED := README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs alerts/RUNBOOK.md exporter benchmarks
lint: $(VENV)/.test ## check code, formatting, import layers, and spelling
	@echo "== ruff check, ruff format --check"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== import-linter: package layers (.importlinter)"
	@$(BIN)/lint-imports >/dev/null || $(BIN)/lint-imports
	@echo "== codespell"
	@$(BIN)/codespell $(SPELLED)

types: $(VENV)/.test ## check types with mypy --strict for Linux and Windows, tests included
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

# Without --quiet, which hides the warnings that --strict turns into errors. The variable silences a notice of the theme.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs ## build the documentation as a site in build/docs and check every link
	@echo "== mkdocs build --strict"
	@$(BIN)/mkdocs build --strict --clean --config-file .mkdocs.yml
	@echo "== built: build/docs"

# The order matters: the chart has copies of dashboards and rules.
generate: $(VENV)/.test ## update all generated files: dashboards, rules for other loaders, manifests, schemas, parts of pages
	$(BIN)/python -m dashboards.build
	$(BIN)/python -m deploy.loaders
	$(BIN)/python -m deploy.manifests
	UPDATE_README=1 $(PYTEST) -q tests/project/test_docs.py -k generated_part

# WHAT is a module of benchmarks/ and its arguments. Some need real peers.
WHAT ?= run
bench: $(if $(filter notifications panels rules stories,$(firstword $(WHAT))),peers,$(VENV)/.test) ## measure speed and memory, in 5 minutes; or WHAT=costs, notifications, panels, scale, …
	$(BIN)/python -m benchmarks.$(WHAT)

lock: $(VENV)/.locked ## lock the newest dependencies and release tools in deploy/*.txt
	UV=$(BIN)/uv deploy/lock
	$(BIN)/python -m deploy.platforms

audit: $(VENV)/.locked ## check the locked dependencies for known vulnerabilities (needs the network)
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement deploy/constraints.txt \
		--requirement deploy/build.txt --requirement deploy/standalone.txt --requirement deploy/release.txt
