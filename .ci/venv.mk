# What the Makefiles share: the virtual environment, set up by what a target needs, and `make help`, made of what stands
# behind `##`. PYTHON=python3.12 chooses the interpreter, VENV=FOLDER where it is; a change of pyproject.toml or of a lock
# sets it up again.

SHELL := /bin/sh
ROOT := $(patsubst %.ci/venv.mk,%,$(lastword $(MAKEFILE_LIST)))
IN := $(notdir $(if $(ROOT),$(CURDIR)))
VENV ?= $(ROOT).venv
BIN := $(abspath $(VENV))/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# A module of ours, which finds the checkout by where it is started.
MODULE := cd $(or $(ROOT),.) && $(BIN)/python -m

# The tests start hundreds of interpreters; none shall compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
help:
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make $(IN:%=-C % )%-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

$(VENV)/.run: $(ROOT)pyproject.toml
	@$(ROOT).ci/venv $(VENV)
	@echo "== installing the agent and its dependencies into $(VENV) (half a minute)" >&2
	@$(PIP) install --editable $(ROOT).
	@touch $@

$(VENV)/.test: $(ROOT)pyproject.toml
	@$(ROOT).ci/venv $(VENV)
	@echo "== installing the agent, its dependencies and what the tests need into $(VENV) (a minute)" >&2
	@$(PIP) install --editable "$(ROOT).[test]"
	@touch $@ $(VENV)/.run

$(VENV)/.docs: $(ROOT)pyproject.toml
	@$(ROOT).ci/venv $(VENV)
	@echo "== installing what the documentation needs into $(VENV)" >&2
	@$(PIP) install --editable "$(ROOT).[docs]"
	@touch $@ $(VENV)/.run

# What builds what is handed out, all of it by its hash. The tests' own tools are not locked, so a job that builds or
# publishes asks for nothing else.
LOCKS := $(addprefix $(ROOT)deploy/,constraints.txt build.txt release.txt)
$(VENV)/.locked: $(LOCKS)
	@$(ROOT).ci/venv $(VENV)
	@echo "== installing the locked tools of a release into $(VENV)" >&2
	@$(PIP) install --require-hashes --only-binary :all: $(LOCKS:%=--requirement %)
	@touch $@
