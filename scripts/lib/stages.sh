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

stage_python() { pytest_as python -m "not lmcache and not slow"; }

stage_lmcache() {
  scripts/setup --lmcache
  pytest_as lmcache -m "lmcache and not slow"
}

stage_long() {
  KVSTORE_TEST_LONG=1 ctest_in "$KVSTORE_BUILD_DIR" long-cpp
  KVSTORE_TEST_LONG=1 pytest_as long -m slow
}

stage_sanitize() {
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=1
  export UBSAN_OPTIONS=print_stacktrace=1
  ctest_in "$ROOT/build/asan" sanitize -DKVSTORE_SANITIZE=address,undefined
}

# Without address space randomisation, because the runtime of GCC 12 refuses the layouts of current kernels.
stage_tsan() {
  export CTEST_PREFIX="setarch -R"
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  ctest_in "$ROOT/build/tsan" tsan -DKVSTORE_SANITIZE=thread
}

stage_wheel() {
  . scripts/lib/clean_root.sh
  local obstacle
  obstacle=$(clean_root_obstacle)
  scripts/build-wheel --smoke
  [ -z "$obstacle" ] || skip_stage wheel "built, but not run: $obstacle"
}

# Configures FOLDER with the further arguments, builds the C++ tests in it, runs them, and names the results NAME.
ctest_in() {
  local folder=$1 name=$2
  shift 2
  cmake -S . -B "$folder" -G Ninja -DKVSTORE_BUILD_TESTS=ON -DKVSTORE_WERROR="${KVSTORE_WERROR:-0}" "$@" >/dev/null
  cmake --build "$folder" --target kvstore_tests -j "$KVSTORE_BUILD_JOBS"
  ${CTEST_PREFIX:-} ctest --test-dir "$folder" -j "$KVSTORE_BUILD_JOBS" --output-on-failure --no-tests=error \
    --output-junit "$RESULTS/$name.xml"
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

cpp_files() { find csrc tests bench -name '*.cpp' -print0 -o -name '*.h' -print0 2>/dev/null || true; }

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
