# shellcheck shell=bash
# Shared by the scripts beside this folder: source it, do not run it. Everything runs at the root of the repository.

set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=$ROOT/.venv
cd "$ROOT"

export PATH=$VENV/bin:$PATH
export PIP_DISABLE_PIP_VERSION_CHECK=1
export KVSTORE_BUILD_JOBS=${KVSTORE_BUILD_JOBS:-$(nproc)}
# The module and the C++ tests share one CMake folder, so that the core is compiled once.
export KVSTORE_BUILD_DIR=${KVSTORE_BUILD_DIR:-$ROOT/build/dev}

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Runs a command as root: directly, or through sudo where that asks for no password or can ask for one.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then sudo "$@"
  else return 126
  fi
}

# The Debian packages among the arguments that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^.i' || echo "$package"
  done
}

install_packages() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# Does a step again only when what it depends on has changed: once STAMP HASH COMMAND...
once() {
  local stamp=$1 key=$2
  shift 2
  [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && return
  local started=$SECONDS
  "$@"
  echo "$key" >"$stamp"
  say "setup: $1 took $((SECONDS - started)) s"
}

pip_install() { pip install -q --no-warn-conflicts --constraint "$ROOT/scripts/constraints.txt" "$@"; }

hash_of() { cat "$@" | sha256sum | cut -c 1-16; }
