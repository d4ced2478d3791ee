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

.PHONY: help demo test bench format install clean docs setup build
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18
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
	@$(if $(TESTS),ACCELERATE_TEST_SUITES=1) ctest --test-dir $(BUILD) --output-on-failure --parallel $(shell expr $(JOBS) + 2) $(if $(TESTS),-R '$(TESTS)')

bench: setup ## measure; CASE=name picks one, a line of JSON per figure
ifneq ($(CASE),build)
	@tools/configure $(PRESET) $(BUILD)
	@cmake --build $(BUILD) --parallel $(JOBS) --target benchmark_programs
endif
	@tools/bench $(BUILD) $(CASE)

format: ## lay out the sources with clang-format
	@clang-format --version 2>/dev/null | grep -qE 'version (1[6-9]|[2-9][0-9])\.' || { echo 'make format needs clang-format 16 or newer: pip install clang-format==18.1.8'; exit 1; }
	@git ls-files '*.cpp' '*.h' | xargs clang-format -i

install: setup ## build and install library, headers and tool below PREFIX
	@tools/configure $(PRESET) $(BUILD)
	@cmake --build $(BUILD) --parallel $(JOBS) --target install_programs
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean: ## remove what was built (LibTorch in .deps stays)
	rm -rf build
