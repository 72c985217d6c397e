# shellcheck shell=bash
# A minimal Debian with python3 and nothing else, as an engine's image would be, to run a wheel in.

CLEAN_ROOT=$ROOT/.cache/clean-root

# Why this machine cannot do it; empty when it can.
clean_root_obstacle() {
  if [ "$(id -u)" != 0 ]; then echo "the clean root needs root (chroot)"
  elif ! command -v apt-get >/dev/null; then echo "the clean root needs a Debian or Ubuntu host"
  fi
}

clean_root_make() {
  [ ! -d "$CLEAN_ROOT" ] || return 0
  [ -z "$(missing_packages debootstrap)" ] || install_packages debootstrap
  local suite
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  say "wheel: making a minimal $suite in .cache/clean-root"
  rm -rf "$CLEAN_ROOT.part"
  mkdir -p "$CLEAN_ROOT.part"
  debootstrap --variant=minbase --include=python3 "$suite" "$CLEAN_ROOT.part" >"$CLEAN_ROOT.log" 2>&1 ||
    { tail -n 20 "$CLEAN_ROOT.log" >&2; return 1; }
  mv "$CLEAN_ROOT.part" "$CLEAN_ROOT"
}

# In a mount namespace of its own, so that /proc goes away with the command.
clean_root_run() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount sh -ec 'root=$1; shift; mount -t proc proc "$root/proc"
    exec chroot "$root" env -i PATH=/usr/bin:/bin PYTHONPATH=/opt/kvstore "$@"' sh "$CLEAN_ROOT" "$@"
}

# Installs the wheel with what it depends on from outside (there is no pip inside) and runs tests/packaging/smoke.py.
clean_root_smoke() {
  local wheel=$1 obstacle here there
  obstacle=$(clean_root_obstacle)
  [ -z "$obstacle" ] || { say "wheel: not run, $obstacle"; return 0; }
  clean_root_make
  here=$(python -c 'import sys; print(sys.implementation.cache_tag)')
  there=$(clean_root_run python3 -c 'import sys; print(sys.implementation.cache_tag)')
  [ "$here" = "$there" ] || die "the wheel is for $here, the clean root has $there: set KVSTORE_PYTHON to the system's"
  rm -rf "$CLEAN_ROOT/opt/kvstore"
  pip_install --target "$CLEAN_ROOT/opt/kvstore" "$wheel"
  install -m 644 tests/packaging/smoke.py "$CLEAN_ROOT/opt/smoke.py"
  clean_root_run python3 /opt/smoke.py
}
