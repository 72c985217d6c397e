# shellcheck shell=bash
# The stages of scripts/test, one function each. A stage fails by its exit status; what it counted, it leaves as JUnit
# XML in $RESULTS. A stage that cannot run here says why with `skip_stage`.

RESULTS=$ROOT/build/results

run_stage() {
  local name=$1 started=$SECONDS status
  say ""
  say "== $name"
  set +e
  (set -e; "stage_$name")
  status=$?
  set -e
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - started))" >>"$RESULTS/stages.tsv"
  say "== $name: $([ "$status" = 0 ] && echo ok || echo FAILED), $((SECONDS - started)) s"
}

stage_status() { awk -F '\t' -v name="$1" '$1 == name { print $2 }' "$RESULTS/stages.tsv"; }

# Ends the stage, well, with a reason for the report.
skip_stage() {
  printf '%s\n' "$*" >"$RESULTS/$1.skipped"
  exit 0
}

# $SETUP_FLAGS: --lmcache in CI, before any stage, so that no test is skipped for want of it.
stage_setup() { scripts/setup ${SETUP_FLAGS:-}; }

# Every checker runs, so that one run shows all there is to mend.
stage_lint() {
  local failed=0
  ruff check || failed=1
  ruff format --check || failed=1
  cpp_is_formatted || failed=1
  shell_files | xargs -0 -r shellcheck --severity=warning --external-sources --source-path=SCRIPTDIR:. || failed=1
  codespell || failed=1
  mypy || failed=1
  return "$failed"
}

stage_cpp() { ctest_in "$KVSTORE_BUILD_DIR" cpp; }

stage_python() {
  pytest_as python -m "not lmcache and not slow and not nvmf and not engines and not kvikio" \
    --ignore tests/reliability --ignore tests/sharing --ignore tests/nvmf
}

# Real faults of devices and processes; most of them need root.
stage_faults() { pytest_as faults -m "not slow" tests/reliability; }

# Pools with several openers, each a process of its own.
stage_sharing() { pytest_as sharing -m "not slow" tests/sharing; }

# Real kernels, NVMe over fabrics and RDMA verbs between guests. What a guest needs is this machine's own. What is done
# in the guest "alone", half of it all, runs beside the rest: either waits much of its time for a fault to be over.
stage_nvmf() {
  local status=0 log=$RESULTS/nvmf-rest.log rest
  command -v apt-get >/dev/null || skip_stage nvmf "the laboratory is made of Debian packages: apt-get is missing"
  scripts/vm/build --packages || status=$?
  [ "$status" != 126 ] || skip_stage nvmf "packages of the laboratory are missing, and installing them needs root"
  [ "$status" = 0 ] || return "$status"
  KVSTORE_NVMF_TRANSCRIPT=-rest \
    pytest -q --junitxml "$RESULTS/nvmf-rest.xml" -m "nvmf and not alone" tests/nvmf >"$log" 2>&1 &
  rest=$!
  # shellcheck disable=SC2064  # this one; guests end with whoever started them
  trap "kill $rest 2>/dev/null" EXIT
  KVSTORE_NVMF_TRANSCRIPT=-alone pytest_as nvmf-alone -m "nvmf and alone" tests/nvmf || status=$?
  wait "$rest" || status=$?
  trap - EXIT
  cat "$log"
  return "$status"
}

stage_lmcache() {
  scripts/setup --lmcache
  pytest_as lmcache -m "lmcache and not slow"
}

# The doors to vLLM and SGLang in those engines themselves, in environments that this makes: it takes minutes once, and
# 5 GB. SGLang's beside vLLM's, which waits for one process after the other; both run, whatever is wrong with one of
# them. Not `( … ) || failed=1`: that would turn errexit off inside.
stage_engines() {
  . scripts/lib/engines.sh
  local failed=0 log=$RESULTS/engines-sglang.log sglang
  (set -e; sglang_environment; engine_tests "$SGLANG_VENV" sglang) >"$log" 2>&1 &
  sglang=$!
  set +e
  (set -e; vllm_environment; lmcache_beside_vllm; engine_tests "$VLLM_VENV" vllm)
  [ $? = 0 ] || failed=1
  wait "$sglang" || failed=1
  cat "$log" >&2
  return "$failed"
}

# KvikIO and NVIDIA's own libcufile, without a GPU, in an environment that this makes: half a minute once, and 320 MB.
stage_gpu() {
  . scripts/lib/engines.sh
  kvikio_environment
  configure_tests "$KVSTORE_BUILD_DIR"
  cmake --build "$KVSTORE_BUILD_DIR" --target kvstore_gpu_tests -j "$KVSTORE_BUILD_JOBS"
  "$KVIKIO_VENV/bin/python" -m pytest -q --junitxml "$RESULTS/gpu.xml" -m kvikio tests/gpu
}

engine_tests() {
  "$1/bin/python" -m pytest -q --durations=10 --junitxml "$RESULTS/engines-$2.xml" -m engines "tests/$2"
}

stage_long() {
  KVSTORE_TEST_LONG=1 ctest_in "$KVSTORE_BUILD_DIR" long-cpp
  KVS_SEEDS=${KVS_SEEDS:-20000} random_runs long-seeds RandomRun
  KVS_SEEDS=${KVS_SEEDS:-10000} random_runs long-sharing-seeds RandomSharing
  [ -n "$(fuzz_obstacle)" ] || fuzz_all "${KVSTORE_FUZZ_SECONDS:-600}"
  KVSTORE_TEST_LONG=1 pytest_as long -m slow
}

# Others every day, so that the net widens; the same all day, so that a failure is there for whoever looks into it.
stage_reliability() {
  build_tests "$KVSTORE_BUILD_DIR"
  export KVS_SECONDS=${KVS_SECONDS:-60} KVS_FIRST_SEED=${KVS_FIRST_SEED:-$(seed_of_the_day)}
  random_runs reliability RandomRun
  random_runs reliability-sharing RandomSharing
}

stage_sanitize() {
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=1
  export UBSAN_OPTIONS=print_stacktrace=1
  export KVS_STRIDE=15  # what is exhaustive in the stage cpp would take half an hour here
  ctest_in "$ROOT/build/asan" sanitize -DKVSTORE_SANITIZE=address,undefined
}

# The tests that start threads: the others would find no race, and take ten times as long for it.
THREADED_TESTS='SameKeys|OnAFile|OnSimulatedDisks|Fork|DeviceConformance|UringQueue|BlockingIo|IndexBuilder'
THREADED_TESTS+='|SpaceRegistry|Evictions|Open\.|OpenLoop|System|SharingThreads|GpuBlocks|DirectBlocks'

# Without address space randomisation, because the runtime of GCC 12 refuses the layouts of current kernels.
stage_tsan() {
  export CTEST_PREFIX="setarch -R" CTEST_FILTER=$THREADED_TESTS
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  ctest_in "$ROOT/build/tsan" tsan -DKVSTORE_SANITIZE=thread
}

# In a build of its own, where the rules can be switched off one clause at a time.
stage_mutate() { scripts/mutate --junit "$RESULTS/mutate.xml"; }

stage_fuzz() {
  local obstacle
  obstacle=$(fuzz_obstacle)
  [ -z "$obstacle" ] || skip_stage fuzz "$obstacle"
  fuzz_all "${KVSTORE_FUZZ_SECONDS:-60}"
}

fuzz_obstacle() {
  command -v clang++ >/dev/null || { echo "clang is missing: apt-get install clang libclang-rt-dev"; return; }
  [ -e "$(clang++ -print-file-name=libclang_rt.fuzzer-x86_64.a)" ] || echo "libclang-rt-dev is missing"
}

# Every target for SECONDS, as many at once as there are processors. What a target learns is kept in build/fuzz.
fuzz_all() {
  cmake -S . -B build/fuzz -G Ninja -DKVSTORE_FUZZ=ON -DKVSTORE_SANITIZE=address,undefined \
    -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ >/dev/null
  cmake --build build/fuzz -j "$KVSTORE_BUILD_JOBS"
  export -f fuzz_one
  find tests/fuzz -name '*_fuzz.cpp' -printf '%f\n' | sed 's/_fuzz\.cpp$//' | sort |
    xargs -P "$KVSTORE_BUILD_JOBS" -I{} bash -c 'fuzz_one {} '"$1"
}

# Ends with what libFuzzer says at the end: how many inputs, or which one broke what. A small quarantine, because a
# store that is opened takes megabytes, which would have to be faulted in anew each time.
fuzz_one() {
  local name=$1 seconds=$2 log=build/fuzz/$1.log status=0
  mkdir -p "build/fuzz/corpus/$name"
  ASAN_OPTIONS=quarantine_size_mb=4 "build/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=20 \
    -rss_limit_mb=1024 -max_len=16400 -artifact_prefix="build/fuzz/$name-" \
    "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1 || status=$?
  if [ "$status" = 0 ]; then
    echo "$name: $(tail -n 1 "$log"), nothing found"
  else
    tail -n 60 "$log"
    return 1
  fi
}

stage_wheel() {
  . scripts/lib/clean_root.sh
  local obstacle
  obstacle=$(clean_root_obstacle)
  scripts/build-wheel --smoke
  [ -z "$obstacle" ] || skip_stage wheel "built, but not run: $obstacle"
}

revision() { git rev-parse HEAD 2>/dev/null || echo unknown; }

seed_of_the_day() {
  local hash
  hash=$(date -u +%F | sha256sum)
  echo $((16#${hash:0:10}))
}

# Runs the seeded runs of a suite from $KVS_FIRST_SEED in one process per core: $KVS_SEEDS together, or $KVS_SECONDS
# long. A seed that fails prints the command that replays it.
random_runs() {
  local name=$1 suite=$2 process processes=$KVSTORE_BUILD_JOBS first=${KVS_FIRST_SEED:-1} each=$((1 << 30))
  local failed=0 pids=()
  [ -z "${KVS_SEEDS:-}" ] || each=$(((KVS_SEEDS + processes - 1) / processes))
  say "$name: revision $(revision), ${KVS_SEEDS:-${KVS_SECONDS:-0} s of} seeds from $first in $processes processes"
  for ((process = 0; process < processes; ++process)); do
    KVS_FIRST_SEED=$((first + process * each)) KVS_SEEDS=$each \
      "$KVSTORE_BUILD_DIR/kvstore_tests" --gtest_filter="$suite.*" \
      --gtest_output="xml:$RESULTS/$name-$process.xml" >"$RESULTS/$name-$process.log" 2>&1 &
    pids+=($!)
  done
  for ((process = 0; process < processes; ++process)); do
    wait "${pids[$process]}" && continue
    failed=1
    cat "$RESULTS/$name-$process.log" >&2
  done
  grep -h KVS_SUMMARY "$RESULTS/$name"-*.log >&2
  return "$failed"
}

# Configures FOLDER for the C++ tests, with the further arguments.
configure_tests() {
  local folder=$1
  shift
  cmake -S . -B "$folder" -G Ninja -DKVSTORE_BUILD_TESTS=ON -DKVSTORE_WERROR="${KVSTORE_WERROR:-0}" "$@" >/dev/null
}

# The same, then builds them.
build_tests() {
  configure_tests "$@"
  cmake --build "$1" --target kvstore_tests -j "$KVSTORE_BUILD_JOBS"
}

# The same, then runs them and names the results NAME.
ctest_in() {
  local folder=$1 name=$2
  shift 2
  build_tests "$folder" "$@"
  ${CTEST_PREFIX:-} ctest --test-dir "$folder" -R "${CTEST_FILTER:-.}" -j "$KVSTORE_BUILD_JOBS" \
    --output-on-failure --no-tests=error --output-junit "$RESULTS/$name.xml"
}

# No test selected is not a failure of the stage: markers and folders come one by one.
pytest_as() {
  local name=$1 status=0
  shift
  pytest -q --junitxml "$RESULTS/$name.xml" "$@" || status=$?
  [ "$status" = 5 ] || return "$status"
}

# Folders of the list that do not exist are no error.
shell_files() { grep -rlZ -E '^#!.*\bbash|^# shellcheck shell=' scripts tools bench .ci 2>/dev/null || true; }

cpp_files() { find csrc tests bench -regex '.*\.\(cpp\|h\|cu\)' -print0 2>/dev/null || true; }

cpp_is_formatted() {
  local unformatted
  unformatted=$(cpp_files | xargs -0 -r clang-format --dry-run 2>&1 |
    sed -n 's/:[0-9]*:[0-9]*: .*clang-formatted.*//p' | sort -u)
  [ -n "$unformatted" ] || return 0
  say "$unformatted" "would be formatted otherwise; scripts/test --format does it"
  return 1
}

format_sources() {
  ruff check --fix-only -q
  ruff format -q
  cpp_files | xargs -0 -r clang-format -i
}
