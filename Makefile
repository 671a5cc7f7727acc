# The two commands that a newcomer needs: `make demo` and `make test`. Both install what they need.
.PHONY: demo test quick build matrix format clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo    build the program, then let the demo model complete code and call a tool"
	@echo "make test    everything that CI runs: unit tests, sanitizers, fuzzing, layer checks"
	@echo "make quick   the unit tests of the optimised build only"
	@echo "make build   build/cpu/riptide      make format  clang-format      make clean"
	@echo "make matrix  g++ and clang++, each with and without unity groups, no warnings (an hour; nightly)"

build:
	@tools/setup.sh
	@cmake --preset cpu >/dev/null
	@cmake --build --preset cpu

demo: build
	@tools/demo.sh build/cpu/riptide

quick:
	@tools/setup.sh --tests
	@cmake --preset test >/dev/null
	@cmake --build --preset test -- -k 0
	@tools/run_tests.py build/cpu

test:
	@tools/setup.sh --tests
	@tools/test_all.py

matrix:
	@tools/setup.sh --tests
	@tools/build_matrix.sh

format:
	@find src tests bench -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | xargs clang-format -i

clean:
	@rm -rf build
