# Shared by the scripts; source it. Everything that is said goes to standard error, so that
# standard output holds results alone.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
script_name="$(basename "$0")"
jobs="$(nproc 2>/dev/null || echo 2)"

say() { printf '%s: %s\n' "$script_name" "$*" >&2; }

die() {
  printf '%s: error: %s\n' "$script_name" "$*" >&2
  exit 1
}

# run_logged LOG WHAT COMMAND...: the output goes to LOG, and is shown only when the command fails.
run_logged() {
  local log="$1" what="$2"
  shift 2
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 60 "$log" >&2
    die "$what failed; the whole output is in $log"
  fi
}

# configure_preset PRESET [argument...]: into build/PRESET; starts afresh where that folder was
# configured for another place (the tree was moved or copied), since CMake would refuse it.
configure_preset() {
  local preset="$1" cache="$root/build/$1/CMakeCache.txt"
  shift
  if [[ -f "$cache" ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then
    rm -rf "${root:?}/build/$preset"
  fi
  run_logged "$root/build/logs/configure-$preset.log" "configuring '$preset'" \
    cmake -S "$root" --preset "$preset" "$@"
}

# build_preset PRESET [cmake --build argument...]: progress is shown on a terminal.
build_preset() {
  local preset="$1"
  shift
  if [[ -t 2 ]]; then
    cmake --build "$root/build/$preset" --parallel "$jobs" "$@" >&2 </dev/null ||
      die "building '$preset' failed; the messages are above"
  else
    run_logged "$root/build/logs/build-$preset.log" "building '$preset'" \
      cmake --build "$root/build/$preset" --parallel "$jobs" "$@"
  fi
}
