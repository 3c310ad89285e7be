#!/usr/bin/env bash
# Installs the Debian (or Ubuntu) packages that a goal needs, and nothing if they are there.
#
#   tools/setup.sh build|test|demo|bench|format|tidy
#
# PLIANT_SETUP=skip leaves the system alone, for machines whose libraries come from elsewhere.
set -euo pipefail

build=(g++ cmake ninja-build make python3 libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev)
case "${1:-}" in
  build) packages=("${build[@]}") ;;
  test) packages=("${build[@]}" libgtest-dev iproute2 libtorch-dev python3-torch python3-pip
                  python3-setuptools python3-wheel) ;;
  demo) packages=("${build[@]}" libtorch-dev) ;;
  bench) packages=("${build[@]}" libgtest-dev libbenchmark-dev openmpi-bin libopenmpi-dev
                   libgloo-dev) ;;
  format) packages=(clang-format) ;;
  tidy) packages=("${build[@]}" libgtest-dev clang-tidy) ;;
  *)
    echo "usage: tools/setup.sh build|test|demo|bench|format|tidy" >&2
    exit 2
    ;;
esac

[ "${PLIANT_SETUP:-}" != skip ] || exit 0
if ! command -v dpkg-query >/dev/null; then
  echo "setup: this is no Debian; these packages' counterparts are needed: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: not root and no sudo; as root run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
  "${missing[@]}"
