# Everything a newcomer needs to run. tools/bootstrap and CMake do the work.
#   LIBTORCH=2.15.0      use that wheel instead of the pinned one
#   LIBTORCH_DIR=/path   use that LibTorch (the directory with include/ and lib/)
#   PRESET=debug|asan|tsan|release
LIBTORCH ?=
LIBTORCH_DIR ?=
PRESET ?= release
PREFIX ?= /usr/local
CASE ?= all
TESTS ?=
JOBS ?= $(shell nproc)
PROCESSES ?= 2
# Built beside the usual one, for the wheel.
WHEEL_LIBTORCH ?= 2.15.0

ifeq ($(PRESET),release)
  ifeq ($(LIBTORCH),)
    BUILD := build
  else
    BUILD := build/libtorch-$(LIBTORCH)
  endif
else
  BUILD := build/$(PRESET)
endif

export LIBTORCH LIBTORCH_DIR

.PHONY: help demo test test-install bench format install wheel tarballs deb docs clean setup build package_programs
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22
	@echo 'variables: LIBTORCH=2.15.0  LIBTORCH_DIR=/path  PRESET=debug|asan|tsan  JOBS=2  PREFIX=/usr/local  CASE=step_overhead  TESTS=Workers'

setup:
	@tools/bootstrap

build: setup
	@tools/configure $(PRESET) $(BUILD)
	@cmake --build $(BUILD) --parallel $(JOBS)

demo: setup ## train on real data with two processes
	@tools/configure $(PRESET) $(BUILD)
	@cmake --build $(BUILD) --parallel $(JOBS) --target demo_programs
	$(BUILD)/bin/accelerate-cpp launch --num_processes $(PROCESSES) $(BUILD)/bin/digits

# Runs two tests more than there are processors, because many tests wait.
test: build ## build everything and run all tests, or those that TESTS=regex names
	@$(if $(TESTS),ACCELERATE_TEST_SUITES=1) ctest --test-dir $(BUILD) --output-on-failure --parallel $(shell expr $(JOBS) + 2) $(if $(TESTS),-R '$(TESTS)',-LE slow)

test-install: build ## run the tests that install packages and build projects with them, from nothing
	@ctest --test-dir $(BUILD) --output-on-failure -L install

bench: setup ## measure; CASE=name picks one, a line of JSON per figure
ifneq ($(CASE),build)
	@tools/configure $(PRESET) $(BUILD)
	@cmake --build $(BUILD) --parallel $(JOBS) --target benchmark_programs
endif
	@tools/bench $(BUILD) $(CASE)

format: ## lay out the sources with clang-format
	@clang-format --version 2>/dev/null | grep -qE 'version (1[6-9]|[2-9][0-9])\.' || { echo 'make format needs clang-format 16 or newer: pip install clang-format==18.1.8'; exit 1; }
	@git ls-files '*.cpp' '*.h' ':!tests/*/planted/*' ':!tests/layers/bad/*' | xargs clang-format -i

install: setup ## build and install library, headers and tool below PREFIX
	@tools/configure $(PRESET) $(BUILD)
	@cmake --build $(BUILD) --parallel $(JOBS) --target install_programs
	@cmake --install $(BUILD) --prefix $(PREFIX)

package_programs: setup
	@tools/configure $(PRESET) $(BUILD)
	@cmake --build $(BUILD) --parallel $(JOBS) --target install_programs demo_programs

wheel: package_programs ## make dist/*.whl for this LibTorch and those of WHEEL_LIBTORCH
	@$(foreach version,$(WHEEL_LIBTORCH),$(MAKE) --no-print-directory package_programs LIBTORCH=$(version) && ) true
	@tools/package wheel $(BUILD) $(addprefix build/libtorch-,$(WHEEL_LIBTORCH))

tarballs: package_programs ## make dist/*.tar.gz: the tool alone, and with the library
	@tools/package tarballs $(BUILD)

deb: package_programs ## make dist/*.deb: the tool, and the library
	@tools/package deb $(BUILD)

docs: ## build the documentation as a site in build/site
	@tools/docs/build build/site $(REPOSITORY)

clean: ## remove what was built (LibTorch in .deps stays)
	rm -rf build
