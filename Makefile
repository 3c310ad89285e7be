# Thin wrappers; the work is done by tools/setup.sh, CMake and CTest.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
BENCH_ARGS ?=
DEMO_ARGS ?=
PYTHON ?= python3
PIP_ARGS ?=
SOURCES = $(shell git ls-files -co --exclude-standard '*.cc' '*.h' '*.c')

.DEFAULT_GOAL := build
.PHONY: help build test sanitize demo bench format tidy install install-python clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

build:  ## the program, the library and the examples, in build/release
	tools/setup.sh build
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target pliant_shared pliant_program examples

test:  ## build everything and run all tests
	tools/setup.sh test
	cmake --preset release
	cmake --build --preset release -j $(JOBS)
	ctest --preset release -j $(JOBS)

sanitize:  ## all tests again under ASan+UBSan, then under TSan
	tools/setup.sh test
	cmake --preset asan
	cmake --build --preset asan -j $(JOBS)
	ctest --preset asan -j $(JOBS)
	cmake --preset tsan
	cmake --build --preset tsan -j $(JOBS)
	ctest --preset tsan -j $(JOBS)

demo:  ## a small GPT trains while workers join, die and leave; options in DEMO_ARGS
	tools/setup.sh demo
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target pliant_program train_gpt
	tools/demo.py $(DEMO_ARGS)

bench: build  ## all-reduce beside Open MPI and Gloo; options in BENCH_ARGS
	tools/setup.sh bench
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target bench
	bench/peers/run.py $(BENCH_ARGS)

format:  ## clang-format every source file
	tools/setup.sh format
	clang-format -i $(SOURCES)

tidy:  ## clang-tidy every source file
	tools/setup.sh tidy
	cmake --preset release
	run-clang-tidy -p build/release -quiet -j $(JOBS) \
	  -extra-arg=-Wno-unknown-warning-option -extra-arg=-Wno-ignored-optimization-argument \
	  '/(pliant|capi|cli|examples|tests(?!/train))/.*\.cc$$'

install: build  ## into PREFIX (default /usr/local)
	cmake --install build/release --prefix $(PREFIX)

install-python: build  ## the Python package with the built library; options of pip in PIP_ARGS
	$(PYTHON) -m pip install --no-build-isolation --no-deps $(PIP_ARGS) .

clean:  ## remove the build folders
	rm -rf build
