# Every target makes the virtual environment that it needs, in .venv, from the versions in constraints.txt.
# `make` alone lists the targets. Variables that may be set: PYTHON (interpreter for .venv), OUT (folder of `make run`),
# RECORDS (folder of `make records`), ARGS (more arguments for `make run`, `make test` or `make lab`).

OUT ?= out
RECORDS ?= runs
ARGS ?=
VENV := .venv
PY   := $(VENV)/bin/python
PIP  := $(PY) -m pip install --disable-pip-version-check --quiet --constraint constraints.txt
PINS := pyproject.toml constraints.txt setup.py

# The first interpreter of version 3.11 or newer.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$name"; break; }; done)

# "gpu" where an NVIDIA GPU of compute capability 8.0 or more is usable, else "cpu". A container may have the device and the
# driver's library but no nvidia-smi; it counts as usable.
GPU := $(shell if command -v nvidia-smi >/dev/null 2>&1; then \
	nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | awk -F. '$$1 + 0 >= 8 { found = 1 } END { print found ? "gpu" : "cpu" }'; \
	elif [ -e /dev/nvidia0 ] && ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then echo gpu; else echo cpu; fi)

# ",compiler" where no CUDA compiler is found: the extra brings one from wheels.
COMPILER := $(shell command -v nvcc >/dev/null 2>&1 || [ -x "$$CUDA_HOME/bin/nvcc" ] || [ -x /usr/local/cuda/bin/nvcc ] || echo ,compiler)

ifeq ($(GPU),gpu)
RUN_EXTRAS := gpu$(COMPILER)
LAB_EXTRAS := lab,gpu$(COMPILER)
else
RUN_EXTRAS :=
LAB_EXTRAS := lab
endif
TEST_EXTRAS := gpu,lab,test$(COMPILER)

# SGLang's unpacked wheel, where there is one.
SGLANG_ROOT = $(if $(wildcard .venv/sglang),--sglang-root .venv/sglang)

.PHONY: help run test lab records sglang wheel clean distclean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.ready-run-$(GPU) ## answer the question: measure on this GPU, or replay recorded runs, into out/
	@$(PY) -m wts_lab study --out "$(OUT)" $(ARGS)

test: $(VENV)/.ready-test ## run all tests; those that need a GPU or a browser skip with a reason elsewhere
	@$(PY) -m pytest $(ARGS)

lab: $(VENV)/.ready-lab-$(GPU) ## open JupyterLab on the notebooks
	@$(PY) -m jupyterlab --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

records: $(VENV)/.ready-run-$(GPU) ## repeat the records on this GPU, into runs/ (about an hour; SGLang's own paths after make sglang)
	@$(PY) -m benchmarks.run probes walks headline batches parts phases heads spread placements exchanges grid-greedy grid-sampled --missing --out "$(RECORDS)"
	@$(PY) -m benchmarks.stress --missing --out "$(RECORDS)"
	@test ! -d .venv/sglang || $(PY) -m benchmarks.run engine --only v151936 --missing --out "$(RECORDS)" $(SGLANG_ROOT)
	@test ! -d .venv/sglang || $(PY) -m benchmarks.run engine --only v248320 --missing --out "$(RECORDS)" $(SGLANG_ROOT)
	@test ! -d .venv/sglang || $(PY) -m benchmarks.engine_kernels --missing --out "$(RECORDS)" $(SGLANG_ROOT)
	@$(PY) -m benchmarks.round --record round --missing --out "$(RECORDS)" $(SGLANG_ROOT)
	@$(PY) -m benchmarks.round --record round-4b-c16 --only qwen3-4b --only c16 --only k8 --repeats 12 --rounds 12 --missing --out "$(RECORDS)" $(SGLANG_ROOT)
	@$(PY) -m benchmarks.round --record round-8b-c16 --only qwen3-8b --only c16 --repeats 12 --rounds 12 --missing --out "$(RECORDS)" $(SGLANG_ROOT)
	@$(PY) -m benchmarks.round --record round-8b-c8 --only qwen3-8b --only c8 --missing --out "$(RECORDS)" $(SGLANG_ROOT)
	@$(PY) -m benchmarks.round --record round-lengths-4b --only qwen3-4b --only k1 --steps 7,15 --missing --out "$(RECORDS)" $(SGLANG_ROOT)
	@$(PY) -m benchmarks.round --record round-lengths-8b --only qwen3-8b --only k1 --steps 7,15 --missing --out "$(RECORDS)" $(SGLANG_ROOT)

sglang: $(VENV)/.ready-sglang ## unpack SGLang's wheel (40 MB) into .venv/sglang, without its dependencies, for the tests that compare with it

wheel: $(VENV)/.created ## build the wheel into dist/
	@$(PIP) setuptools
	@$(PY) -m pip wheel --disable-pip-version-check --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean: ## remove what runs, builds and tests left behind
	@rm -rf "$(OUT)" build dist .pytest_cache .hypothesis *.egg-info
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## the same, and the virtual environment
	@rm -rf $(VENV)

# One stamp for each set of extras; a change of pins makes it again.
$(VENV)/.ready-run-cpu $(VENV)/.ready-run-gpu: EXTRAS = $(RUN_EXTRAS)
$(VENV)/.ready-lab-cpu $(VENV)/.ready-lab-gpu: EXTRAS = $(LAB_EXTRAS)
$(VENV)/.ready-test: EXTRAS = $(TEST_EXTRAS)

$(VENV)/.ready-%: $(PINS) | $(VENV)/.created
	@echo "Installing into $(VENV)$(if $(EXTRAS), with $(EXTRAS)), once: $(if $(findstring gpu,$(EXTRAS)),with a CUDA build of torch about 3 GB,about 150 MB) to download"
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.$(if $(EXTRAS),[$(EXTRAS)])'
	@touch $@

# msgspec is what SGLang's plugin contract is written in; neither package is installed into the environment.
$(VENV)/.ready-sglang: constraints.txt | $(VENV)/.created
	@rm -rf $(VENV)/sglang
	@$(PIP) --no-deps --target $(VENV)/sglang sglang msgspec
	@touch $@

$(VENV)/.created:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11 or newer is needed and none was found. Install python3.12, or name one: make PYTHON=/path/to/python3" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is not Python 3.11 or newer. Name one that is: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: its ensurepip is missing. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@
