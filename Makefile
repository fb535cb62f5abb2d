# Two commands: `make demo` and `make test`. Each sets up .venv by itself; a second run is quick.
#
#   PYTHON=python3.12       the Python that the virtual environment is made with (3.11 or newer)
#   PYTEST_ARGS="-k paging" what pytest is told

PYTHON ?= python3
PYTEST_ARGS ?= -n auto --dist loadfile
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ASSETS := apps/omnilive/assets

ifeq ($(shell nvidia-smi -L >/dev/null 2>&1 && echo yes),yes)
NVIDIA := yes
endif

# The demo installs one backend: MLX on a Mac (Metal) and on a CPU, PyTorch on an NVIDIA card.
ifeq ($(NVIDIA),yes)
BACKEND := cuda
else
BACKEND := mlx
endif

# Without an NVIDIA card the tests take the release of PyTorch that they are known to pass with. Where
# pip is set up for PyTorch's CPU-only wheels (PIP_EXTRA_INDEX_URL), that saves gigabytes on Linux.
ifneq ($(NVIDIA),yes)
TEST_TORCH := torch==2.13.0
endif

KERNELS := tests/cuda/test_kernel_attention.py tests/cuda/test_kernel_mass.py \
	tests/cuda/test_kernel_gemv.py tests/cuda/test_kernel_norm.py tests/cuda/test_kernel_move.py \
	tests/cuda/test_kernel_store.py tests/cuda/test_kernel_sealed_attention.py \
	tests/cuda/test_kernel_sealed_store.py
SANITIZER ?= compute-sanitizer

.PHONY: help demo test lint format docs clean sanitize

help:
	@echo "make demo   set up one backend and run omnilive on the demo clip"
	@echo "make test   set up everything that can run here; lint, type check and test"
	@echo "make lint   ruff, format check and mypy      make format   let ruff put things right"
	@echo "make sanitize   CUDA's compute-sanitizer on the kernels (an NVIDIA card; minutes)"
	@echo "make docs   write docs/cli.md from --help    make clean    remove what make made"

demo: $(VENV)/.demo-$(BACKEND)
	$(BIN)/omnilive live --backend $(BACKEND) --source $(ASSETS)/demo.mp4 --fast \
		--budget 768 --questions $(ASSETS)/demo.json

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Without PyTorch's cache each tensor is an allocation of its own, whose ends are watched.
sanitize: $(VENV)/.test
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(SANITIZER) --tool memcheck --error-exitcode 1 \
		$(BIN)/python -m pytest -q $(KERNELS)
	$(SANITIZER) --tool racecheck --error-exitcode 1 $(BIN)/python -m pytest -q $(KERNELS)

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.test
	$(BIN)/python -m omnilive.docs

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		found=$$($(PYTHON) -V 2>/dev/null) || found="no $(PYTHON)"; \
		echo "omnilive needs Python 3.11 or newer and found $$found:" \
			"install it, or name another, as in: make PYTHON=python3.12 ..." >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment:" \
			"on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.demo-$(BACKEND): $(VENV)/.python pyproject.toml
	@echo "installing omnilive and its $(BACKEND) backend into $(VENV); only the first run takes long"
	@$(PIP) install --quiet --editable '.[$(BACKEND)]'
	@touch $@

$(VENV)/.test: $(VENV)/.python pyproject.toml
	@echo "installing both backends and the test tools into $(VENV); only the first run takes long"
ifdef TEST_TORCH
	@$(PIP) install --quiet $(TEST_TORCH)
endif
	@$(PIP) install --quiet --editable '.[mlx,cuda,live,bench,dev]'
	@touch $@
