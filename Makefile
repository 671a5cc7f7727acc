# The two commands that a newcomer needs: `make demo` and `make test`. Both install what they need.
.PHONY: demo test quick build asan fuzz format clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo    build, then let the demo model complete code and call a tool"
	@echo "make test    everything that CI runs: unit tests, sanitizers, fuzzing, layer checks"
	@echo "make quick   the unit tests of the optimised build only"
	@echo "make build   build/cpu/riptide      make format  clang-format      make clean"

build:
	@tools/setup.sh
	@cmake --preset cpu >/dev/null
	@cmake --build --preset cpu -- -k 0

demo: build
	@tools/demo.sh build/cpu/riptide

quick: build
	@tools/run_tests.py build/cpu

test:
	@tools/setup.sh
	@tools/test_all.sh

format:
	@find src tests bench -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | xargs clang-format -i

clean:
	@rm -rf build
