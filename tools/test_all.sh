#!/usr/bin/env bash
# Everything that CI runs, cheapest first. Ends with `N passed, N failed, N skipped`.
set -uo pipefail
cd "$(dirname "$0")/.."
tally=$(mktemp)
rm -f "$tally"
passed=0
failed=0
stage() {  # stage NAME COMMAND...: one check that passes or fails as a whole
  local name=$1
  shift
  local started=$SECONDS
  if "$@" >"build/stage.log" 2>&1; then
    passed=$((passed + 1))
    printf '%-34s ok      %4d s\n' "$name" $((SECONDS - started))
  else
    failed=$((failed + 1))
    printf '%-34s FAILED  %4d s\n' "$name" $((SECONDS - started))
    tail -n 60 build/stage.log
  fi
}
mkdir -p build

stage "layers: the check can fail" tools/check_layers.py --self-test
stage "layers: no upward include" tools/check_layers.py
stage "configure cpu" cmake --preset cpu
stage "build cpu, no warnings" tools/build_clean.sh cpu
echo "== unit tests (optimised)"
tools/run_tests.py build/cpu --tally "$tally"
stage "command line" tools/cli_test.py build/cpu/riptide
stage "command line, its edges" tools/cli_edges_test.py build/cpu/riptide
stage "commands round a server" tools/serve_test.py build/cpu/riptide
stage "clients from npm" tests/clients/run.sh build/cpu/riptide ${RIPTIDE_CLIENTS:+"$RIPTIDE_CLIENTS/node_modules"}
grep -h skipped build/stage.log || true
stage "streams that last" tools/soak.py build/cpu/tests/script_server --seconds 20
stage "coding agents from npm" tests/clients/agents.py build/cpu/riptide build/cpu/tests/script_server --install 240 \
  ${RIPTIDE_AGENTS:+--agents "$RIPTIDE_AGENTS"}
grep -h -e skipped -e "turn 2" -e "agents," build/stage.log || true
if [ -x /usr/local/cuda/bin/nvcc ] || command -v nvcc >/dev/null; then
  stage "configure cuda" cmake --preset cuda
  # The program and one test binary: the tests' own sources have been compiled for the CPU above.
  stage "build cuda (sm_90a), no warnings" tools/build_clean.sh cuda riptide test_ops
  stage "cuda: loads behind the wait" tools/check_pdl_order.py build/cuda
else
  echo "cuda build                         skipped: no nvcc here (the CUDA toolkit is not in Debian)"
fi
stage "configure asan" cmake --preset asan
stage "build asan" cmake --build --preset asan -- -k 0
echo "== unit tests (AddressSanitizer + UndefinedBehaviorSanitizer)"
# Guesses with the small models only, no crowds, and no distributions: they take minutes here, and the optimised tests have them. Fuzzing is short: a
# look at the corpus and a little more (tools/fuzz.sh takes as long as you like).
GTEST_FILTER='-All/Speculation*/demo_*:All/SpeculationCrowd*:SampledGuesses.*:EngineLaw.in_a_crowd*:EngineDflash.in_a_crowd*:EngineConstraint.a_hundred_schemas*:FormedDraw.guesses*:FormedDraw.answers_in_a_crowd*:FormedDraw.a_session*:scheduler.random_scenarios*:SessionTest.sampled_answers*:Sampler.draws_follow*:All/DraftRoundsTest.the_device_accepts*:All/DraftRoundsTest.chains_and_trees*/dflash_*:EngineLaw.ten_thousand*:FormedDraw.a_lone*:SampleMask.masked_logits_are_impossible_in_a_large*:EngineCompression.whoever*' tools/run_tests.py build/asan --tally "$tally"
stage "configure fuzz" cmake --preset fuzz
stage "build fuzz" cmake --build --preset fuzz --target fuzzers
for target in gguf safetensors tokenizer jinja laguna_stream qwen_stream constraint http body; do
  stage "fuzz $target, ${FUZZ_SECONDS:=12} s" tools/fuzz.sh "$target" "$FUZZ_SECONDS"
done

counts=($(python3 -c "import json,sys; t=json.load(open('$tally')); print(t['passed'], t['failed'], t['skipped'])"))
passed=$((passed + counts[0]))
failed=$((failed + counts[1]))
echo "$passed passed, $failed failed, ${counts[2]} skipped"
[ "$failed" -eq 0 ]
