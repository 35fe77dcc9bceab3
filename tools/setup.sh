#!/usr/bin/env bash
# Installs the Debian packages that Lathe builds with. It is safe to run again: it installs only what is missing.
#   tools/setup.sh --tests   # also those that only the tests use
#   tools/setup.sh --docs    # only those that tools/docs.sh uses
#   tools/setup.sh --clang   # only those of bazel build --config=clang
set -euo pipefail

packages=(
  bazel-bootstrap bazel-rules-java g++ pkg-config
  libabsl-dev libbenchmark-dev libdnnl-dev libgloo-dev libgomp1 libgtest-dev libicu-dev libonig-dev
  libcurl4-openssl-dev libhdf5-dev libsentencepiece-dev libssl-dev libyaml-cpp-dev libzstd-dev nlohmann-json3-dev
  zlib1g-dev
)

case "${1:-}" in
  --tests) packages+=(chromium clang-format iproute2 openmpi-bin) ;;
  --docs) packages=(doxygen mkdocs) ;;
  --clang) packages=(clang-16 libclang-rt-16-dev libomp-16-dev) ;;
  '') ;;
  *) echo "error: unknown argument \"$1\"; hint: tools/setup.sh [--tests | --docs | --clang]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$'; then
    missing+=("$package")
  fi
done

if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all ${#packages[@]} packages are installed"
  exit 0
fi

command -v apt-get >/dev/null || { echo "error: no apt-get here: Lathe's packages come from Debian 12" >&2; exit 1; }
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "error: only root can install packages, and there is no sudo; install these first: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi

echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" >>"$log" 2>&1; }
# Errors of apt-get update don't count: without a network it only warns, and one broken source need not
# matter. If the installation fails, update's messages explain why.
run apt-get update || true
if ! run apt-get install -y --no-install-recommends "${missing[@]}"; then
  cat "$log" >&2
  echo "error: apt-get could not install what Lathe needs; its messages are above" >&2
  exit 1
fi
echo "setup: done"
