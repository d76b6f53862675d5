# `make demo` and `make test` create .venv and install everything into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test processes: one for each core, at least 2, at most 4.
WORKERS := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 2 ? 2 : n > 4 ? 4 : n)))

.PHONY: compiled rewritten demo test test-slow test-nightly lint browser sandbox slurm ray clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@# Install torch first and alone: as a dependency it could be a build with gigabytes of CUDA.
	$(BIN)/pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/abprof demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The browser tests of the report's pages need Chromium. Without it they are skipped with that reason, except in CI.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	for as in "" "sudo -n"; do \
	  $$as apt-get update -qq >/dev/null 2>&1 && \
	  $$as apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 && exit 0; \
	done; echo "Chromium is missing and cannot be installed: the browser tests are skipped"

# The sandbox of code under test is bubblewrap. If it does not start, its tests are skipped with that reason.
sandbox:
	@command -v bwrap >/dev/null && exit 0; \
	for as in "" "sudo -n"; do \
	  $$as apt-get update -qq >/dev/null 2>&1 && \
	  $$as apt-get install -qq -y --no-install-recommends bubblewrap >/dev/null 2>&1 && exit 0; \
	done; echo "bubblewrap is missing and cannot be installed: its tests are skipped"

# Tests start and stop a real Slurm in their own folder. Only CI installs its packages, which add a user and daemons;
# RUNLEVEL=1 prevents the daemons' start.
slurm:
	@command -v sbatch >/dev/null && test -x /usr/sbin/slurmctld -a -x /usr/sbin/slurmd && exit 0; \
	for as in "" "sudo -n"; do \
	  $$as apt-get update -qq >/dev/null 2>&1 && \
	  $$as env RUNLEVEL=1 apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client >/dev/null 2>&1 && exit 0; \
	done; echo "Slurm is missing and cannot be installed"

# Ray has 240 MB. Without it its tests are skipped, except in CI.
ray: $(STAMP)
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[ray]' || echo "Ray is missing and cannot be installed"

# Compile first: abprof distrusts a run whose worker gets a new compiled file, and the first import writes one.
compiled: $(STAMP)
	@$(BIN)/python -m compileall -q abprof tests/simulated

# pytest compiles each test file anew, once for all test processes. One core does this while mypy has the other.
rewritten: compiled
	@$(BIN)/pytest --collect-only --quiet >/dev/null 2>&1 || true

# File by file in the given order: the last files are short, so both processes end at about the same time.
test: $(STAMP) browser sandbox
	@$(MAKE) --no-print-directory --jobs=2 lint rewritten
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	@echo "left out: tests marked slow (make test-slow), nightly (make test-nightly), gpu (pytest -m gpu)"

test-slow: $(STAMP) compiled browser sandbox
	@# Test by test: these tests do not depend on each other.
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'slow and not nightly and not gpu' --ignore=tests/test_demo.py \
	  --ignore=tests/why/test_real_causes.py --ignore=tests/on_ray --ignore=tests/slurm
	@# These tests measure real kernels within a budget, or use every core: they run alone.
	$(BIN)/pytest -rs -m 'slow and not nightly and not gpu' tests/test_demo.py tests/why/test_real_causes.py \
	  tests/slurm tests/on_ray

# The long forms of fuzzing, random faults, Slurm and Ray; .ci/run runs the short forms.
test-nightly: $(STAMP) compiled slurm ray
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'nightly and not gpu' --ignore=tests/on_ray --ignore=tests/slurm
	$(BIN)/pytest -rs -m 'not gpu' tests/slurm tests/on_ray

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
