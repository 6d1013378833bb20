# Shared by the Makefiles: the virtual environment, and `make help`, which prints the text after `##`. PYTHON=python3.12 selects
# the interpreter, VENV=FOLDER the directory. A change of pyproject.toml or of a lock file reinstalls the dependencies.

SHELL := /bin/sh
ROOT := $(patsubst %.ci/venv.mk,%,$(lastword $(MAKEFILE_LIST)))
IN := $(notdir $(if $(ROOT),$(CURDIR)))
VENV ?= $(ROOT).venv
BIN := $(abspath $(VENV))/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Runs a module of this repository, from its root.
MODULE := cd $(or $(ROOT),.) && $(BIN)/python -m

# The tests start hundreds of interpreters, which must share compiled files.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
help:
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make $(IN:%=-C % )%-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

$(VENV)/.run: $(ROOT)pyproject.toml
	@$(ROOT).ci/venv $(VENV)
	@echo "== installing the agent and its dependencies into $(VENV) (30 seconds)" >&2
	@$(PIP) install --editable $(ROOT).
	@touch $@

$(VENV)/.test: $(ROOT)pyproject.toml
	@$(ROOT).ci/venv $(VENV)
	@echo "== installing the agent, its dependencies, and test tools into $(VENV) (a minute)" >&2
	@$(PIP) install --editable "$(ROOT).[test]"
	@touch $@ $(VENV)/.run

$(VENV)/.docs: $(ROOT)pyproject.toml
	@$(ROOT).ci/venv $(VENV)
	@echo "== installing documentation tools into $(VENV)" >&2
	@$(PIP) install --editable "$(ROOT).[docs]"
	@touch $@ $(VENV)/.run

# The release tools, with all hashes locked. Test tools aren't locked, so jobs that build or publish install only these.
LOCKS := $(addprefix $(ROOT)deploy/,constraints.txt build.txt release.txt)
$(VENV)/.locked: $(LOCKS)
	@$(ROOT).ci/venv $(VENV)
	@echo "== installing the locked release tools into $(VENV)" >&2
	@$(PIP) install --require-hashes --only-binary :all: $(LOCKS:%=--requirement %)
	@touch $@
