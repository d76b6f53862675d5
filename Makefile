# `make demo` and `make test` are all a new machine needs: they make .venv and install into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test processes: one a core, and never so many that a machine that shares its cores is crowded by them.
WORKERS := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 2 ? 2 : n > 4 ? 4 : n)))

.PHONY: compiled demo test test-slow test-nightly lint browser sandbox slurm ray clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@# torch first and by itself: a plain requirement would take a build with gigabytes of CUDA where none is needed.
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

# The report's pages are tested in a real browser: the system's Chromium. Where there is none and none can be installed,
# those tests are skipped with that reason, except in CI.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	for as in "" "sudo -n"; do \
	  $$as apt-get update -qq >/dev/null 2>&1 && \
	  $$as apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 && exit 0; \
	done; echo "no Chromium here, and none could be installed: the browser tests are skipped"

# Code under test is contained by bubblewrap: where it does not start, its tests are skipped with that reason.
sandbox:
	@command -v bwrap >/dev/null && exit 0; \
	for as in "" "sudo -n"; do \
	  $$as apt-get update -qq >/dev/null 2>&1 && \
	  $$as apt-get install -qq -y --no-install-recommends bubblewrap >/dev/null 2>&1 && exit 0; \
	done; echo "no bubblewrap here, and none could be installed: its tests are skipped"

# A real Slurm, which tests start in a folder of theirs and stop. Only CI installs it: its packages bring a user, and daemons, which
# in runlevel 1 are not started.
slurm:
	@command -v sbatch >/dev/null && test -x /usr/sbin/slurmctld -a -x /usr/sbin/slurmd && exit 0; \
	for as in "" "sudo -n"; do \
	  $$as apt-get update -qq >/dev/null 2>&1 && \
	  $$as env RUNLEVEL=1 apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client >/dev/null 2>&1 && exit 0; \
	done; echo "no Slurm here, and none could be installed"

# Ray is 240 MB, and takes seconds to install: without it its tests are skipped, but not in CI.
ray: $(STAMP)
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[ray]' || echo "no Ray here, and it could not be installed"

# A run is not trusted whose worker gets another compiled file while it lasts, and a test that imports its code first writes one.
compiled: $(STAMP)
	@$(BIN)/python -m compileall -q abprof tests/simulated

# File by file in the order they stand in: the last ones are short, so that no process waits long for the other.
test: $(STAMP) lint compiled browser sandbox
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	@echo "left out: tests marked slow (make test-slow), nightly (make test-nightly), gpu (pytest -m gpu)"

test-slow: $(STAMP) compiled browser sandbox
	@# Test by test: a file may be split, for none of these tests leans on another.
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'slow and not gpu' --ignore=tests/test_demo.py \
	  --ignore=tests/why/test_real_causes.py --ignore=tests/on_ray --ignore=tests/slurm
	@# What measures real kernels against the clock of a budget, or takes every core, has the machine for itself.
	$(BIN)/pytest -rs -m 'slow and not gpu' tests/test_demo.py tests/why/test_real_causes.py \
	  tests/slurm tests/on_ray

# Fuzzing, random faults, Slurm and Ray in their long forms; .ci/run has them short.
test-nightly: $(STAMP) compiled slurm ray
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'nightly and not gpu' --ignore=tests/on_ray --ignore=tests/slurm
	$(BIN)/pytest -rs -m 'not gpu' tests/slurm tests/on_ray

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
