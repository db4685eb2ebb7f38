# Sourced by tests/run.sh and cli/quickstart.sh: installs the Debian packages that are missing.
#   need_packages FLAG_COMMENT package...
need_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if ! command -v apt-get >/dev/null; then
    echo "glim: this script installs packages with apt-get, which is not here. Install by hand: ${missing[*]}" >&2
    return 0
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "glim: need root (or sudo) to install: ${missing[*]}" >&2; return 1; }
    as_root=(sudo)
  fi
  echo "glim: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
build_packages=(g++ cmake ninja-build libeigen3-dev libfmt-dev libtomlplusplus-dev nlohmann-json3-dev libcli11-dev libxxhash-dev)
test_packages=(libgtest-dev graphviz clang clang-format clang-tidy pkg-config golang-github-burntsushi-toml-dev)  # the last: documents of toml-test
fuzz_packages=(clang libclang-rt-14-dev)
