# `make demo` and `make test` do all their own set-up. PYTHON=python3.12 chooses the interpreter, VENV=FOLDER where it is
# set up; a change of pyproject.toml sets it up again.

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest
# Test processes. Most tests wait for something, so twice as many as cores; 0: one test after another.
WORKERS ?= 4

# The tests start hundreds of interpreters; none shall compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: help demo test test-all test-fast lint types pytest peers grafana readme bench soak panels scale notifications
.PHONY: costs properties fuzz
.PHONY: vm windows systemd cluster pythons arm64
.PHONY: dist image image-test standalone standalone-test deb rpm packages-test windows-zip msi chart
.PHONY: manifests rules
.PHONY: sbom audit platforms licences reproducible checksums notes lock

help:
	@echo "make demo        the whole of it on this machine, in about 20 seconds; nothing is installed beside $(VENV)"
	@echo "make test        linters, types, and every test, against real peers (as root they are installed with apt)"
	@echo "make test-all    the same, and the dashboards drawn by Grafana's own components"
	@echo "make test-fast   the tests that start no peers and no whole agent, in a minute and a half"
	@echo "make bench       speed and memory of the agent (about 5 minutes)"
	@echo "make soak        the agent through maintenance and failures for MINUTES (default 10)"
	@echo "make scale       a thousand VMs of one scale set"
	@echo "make notifications  how often the alerts speak in a month of 3,000 VMs (half an hour; builds promtool by Go)"
	@echo "make panels      how long the dashboards' panels take at 10,000 VMs (VMS=1000), on a real Prometheus"
	@echo "make costs       what 1, 1,000 and 10,000 VMs cost, into docs/fleet.md; half an hour"
	@echo "make properties  what must always hold, in ever new random worlds, for MINUTES (default 10)"
	@echo "make fuzz        whatever strangers can send, coverage-guided, for SECONDS each (default 60; installs atheris)"
	@echo "make vm          the interruption observer in a virtual machine that is really paused (as root installs QEMU)"
	@echo "make windows     the agent and its tests on Windows, under Wine (as root installs Wine; TESTS=tests/core: only these)"
	@echo "make systemd     the installed deb under a real systemd, in a virtual machine (as root installs QEMU)"
	@echo "make cluster     manifests and chart against a real Kubernetes control plane (built by Go the first time: KUBERNETES=1.33.6)"
	@echo "make pythons     the tests on CPython 3.12, 3.13 and 3.14"
	@echo "make arm64       demo and fast tests in an arm64 Debian (as root installs QEMU)"
	@echo "make docs        the documentation as a site in build/docs, every link checked"
	@echo "make readme      write the generated parts of the documentation"
	@echo "make manifests   write what is generated of deploy/kubernetes and deploy/helm"
	@echo "make rules       write alerts and dashboards for other loaders than Prometheus' and Grafana's own"
	@echo "make dist        wheel and sdist in dist/, checked"
	@echo "make image       the container image, by docker or podman; image-test builds and runs it without either"
	@echo "make standalone  a folder for hosts without Python; standalone-test starts it in a root without one"
	@echo "make deb         a Debian package of that folder in dist/; make rpm: an RPM; packages-test installs them in fresh roots"
	@echo "make windows-zip the same for Windows, as a zip; on a Windows with python.org's CPython (PYTHON=python)"
	@echo "make msi         an installer for Windows of the zip in dist/ (needs wixl and msitools, by apt)"
	@echo "make cloud-init  first boots with deploy/azure/cloud-init.yaml and the deb in dist/, in a fresh Debian root"
	@echo "make chart       the Helm chart as an archive in dist/"
	@echo "make sbom        what the build is made of, as CycloneDX JSON in dist/"
	@echo "make audit       known vulnerabilities of the locked dependencies (asks the network)"
	@echo "make platforms   whether the locks hold on Linux amd64 and arm64 and on Windows, on each Python (asks the network)"
	@echo "make licences    the licences of what ships, in dist/; reproducible: two builds, one hash"
	@echo "make checksums   SHA256SUMS of dist/; notes: a release's notes out of CHANGELOG.md"
	@echo "make lock        lock the newest dependencies, and tools of a release, in deploy/*.txt"

demo: $(VENV)/.run
	@echo "== python -m exporter demo"
	@$(BIN)/python -m exporter demo

test: lint types peers pytest

test-all: export DASHBOARDS_DRAWN = 1
test-all: grafana test

grafana: $(VENV)/.test
	@.ci/node $(BIN)/python tests/grafana

lint: $(VENV)/.test
	@echo "== ruff check, ruff format --check"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== import-linter: who may import whom (.importlinter)"
	@$(BIN)/lint-imports >/dev/null || $(BIN)/lint-imports

types: $(VENV)/.test
	@echo "== mypy --strict, for Linux and for Windows"
	@$(BIN)/mypy
	@$(BIN)/mypy --platform win32 --no-warn-unreachable exporter

peers: $(VENV)/.test
	@.ci/peers
	@.ci/tools $(BIN)/python
	@.ci/node $(BIN)/python tests/node

pytest: $(VENV)/.test
	@echo "== pytest"
	@$(PYTEST) --numprocesses $(WORKERS) --dist loadfile

test-fast: export PROPERTIES_TIMES ?= 0.25
test-fast: $(VENV)/.test
	@$(PYTEST) --numprocesses $(WORKERS) --dist worksteal --ignore tests/system --ignore tests/dashboards -m "not peer"

bench: $(VENV)/.test
	@$(PYTEST) -q benchmarks
	$(BIN)/python -m benchmarks.run

soak: $(VENV)/.test
	$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),10)

panels: peers
	$(BIN)/python -m benchmarks.dashboards $(if $(VMS),--vms $(VMS))

scale: $(VENV)/.test
	$(BIN)/python -m benchmarks.scale

notifications: peers
	$(BIN)/python -m benchmarks.notifications $(VMS)

costs: $(VENV)/.test
	$(BIN)/python -m benchmarks.costs --minutes $(or $(MINUTES),15)
	@$(MAKE) --no-print-directory readme

properties: $(VENV)/.test
	$(BIN)/python -m tests.properties --minutes $(or $(MINUTES),10)

fuzz: $(VENV)/.test
	@$(PIP) install atheris
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

vm: $(VENV)/.test
	$(BIN)/python -m tests.vm

windows: $(VENV)/.test
	@$(BIN)/python -m tests.windows $(TESTS)

systemd: $(VENV)/.test
	@$(BIN)/python -m tests.systemd

cluster: $(VENV)/.test
	@$(BIN)/python -m tests.cluster $(if $(KUBERNETES),--kubernetes $(KUBERNETES))

pythons: peers
	@$(BIN)/python -m tests.pythons $(VERSIONS)

arm64: $(VENV)/.test
	@$(BIN)/python -m tests.arm64

readme: $(VENV)/.test
	UPDATE_README=1 $(PYTEST) -q tests/project/test_docs.py -k generated_part

manifests: $(VENV)/.test
	$(BIN)/python -m deploy.manifests

rules: $(VENV)/.test
	$(BIN)/python -m deploy.loaders

# Not --quiet: it takes the warnings away that --strict is there for. The variable silences the theme about its successor.
.PHONY: docs
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs
	@echo "== mkdocs build --strict"
	@$(BIN)/mkdocs build --strict --clean --config-file .mkdocs.yml
	@echo "== it is in build/docs"

# -- what is handed out

NAME := azure-scheduled-events-exporter
ENGINE ?= $(shell command -v docker || command -v podman)

dist: $(VENV)/.locked
	$(BIN)/python -m deploy.dist
	$(BIN)/python -m twine check --strict dist/*.whl dist/azure_scheduled_events_exporter-*.tar.gz

image:
	$(or $(ENGINE),$(error needs docker or podman; `make image-test` builds it without)) build --tag $(NAME) .

image-test: $(VENV)/.locked
	HADOLINT=$(BIN)/hadolint deploy/image-test

standalone:
	deploy/standalone

standalone-test:
	deploy/standalone-test

deb: $(VENV)/.locked
	$(BIN)/python -m deploy.packages.build deb

rpm: $(VENV)/.locked
	$(BIN)/python -m deploy.packages.build rpm

packages-test: $(VENV)/.release
	$(BIN)/python -m tests.packages

.PHONY: cloud-init
cloud-init:
	deploy/azure/try

windows-zip:
	$(or $(PYTHON),python) -m deploy.windows.build

msi:
	$(or $(PYTHON),python3) -m deploy.windows.msi $(or $(wildcard dist/$(NAME)-*-windows-amd64.zip),$(error no zip in dist/))

chart: $(VENV)/.locked
	$(BIN)/helm package --destination dist deploy/helm/$(NAME)

sbom: $(VENV)/.locked
	$(BIN)/python -m deploy.sbom

audit: $(VENV)/.locked
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement deploy/constraints.txt \
		--requirement deploy/build.txt --requirement deploy/standalone.txt --requirement deploy/release.txt

platforms: $(VENV)/.locked
	$(BIN)/python -m deploy.platforms

licences: $(VENV)/.locked
	$(BIN)/python -m deploy.licences

reproducible: $(VENV)/.locked
	deploy/reproducible

checksums:
	$(or $(PYTHON),python3) -m deploy.checksums $(if $(RELEASE),--release)

notes:
	@$(or $(PYTHON),python3) -m deploy.notes

lock: $(VENV)/.locked
	UV=$(abspath $(BIN))/uv deploy/lock
	$(BIN)/python -m deploy.platforms

# -- set-up

$(VENV)/.run: pyproject.toml
	@.ci/venv $(VENV)
	@echo "== installing the agent and its dependencies into $(VENV) (half a minute)" >&2
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.test: pyproject.toml
	@.ci/venv $(VENV)
	@echo "== installing the agent, its dependencies and what the tests need into $(VENV) (a minute)" >&2
	@$(PIP) install --editable ".[test]"
	@touch $@ $(VENV)/.run

$(VENV)/.docs: pyproject.toml
	@.ci/venv $(VENV)
	@echo "== installing what the documentation needs into $(VENV)" >&2
	@$(PIP) install --editable ".[docs]"
	@touch $@ $(VENV)/.run

# What builds what is handed out, all of it by its hash. The tests' own tools are not locked, so a job that builds or
# publishes asks for nothing else.
LOCKS := deploy/constraints.txt deploy/build.txt deploy/release.txt
$(VENV)/.locked: $(LOCKS)
	@.ci/venv $(VENV)
	@echo "== installing the locked tools of a release into $(VENV)" >&2
	@$(PIP) install --require-hashes --only-binary :all: $(LOCKS:%=--requirement %)
	@touch $@

$(VENV)/.release: $(VENV)/.test $(VENV)/.locked
	@touch $@
