{# The options of a script that records arms of cells, and the functions that every arm needs. #}
warmup={{ warmup }}
runs={{ runs }}
out=$(cd -- "$(dirname -- "$0")" && pwd)/{{ out }}
part=

while [[ $# -gt 0 ]]; do
  case $1 in
    --help | -h)
      printf 'usage: %s [--out DIR] [--warmup CALLS] [--runs CALLS] [--repo DIR] [--device DEVICE] [PART]\n' "$me"
      printf 'PART: record only cells whose id contains this text. DIR: folder for the recordings; default: %s\n' "$out"
      exit 0
      ;;
    --out | --warmup | --runs | --repo | --device)
      [[ $# -ge 2 ]] || refuse "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    -*) refuse "unknown option $1 (--help lists the options)" ;;
    *)
      part=$1
      shift
      ;;
  esac
done
# begin TOOL ADDRESS: check that the tool is installed, and change to the folder for the recordings.
begin() {
  need "$1" "$2"
  [[ -d $repo ]] || refuse "no such folder: $repo"
  repo=$(cd -- "$repo" && pwd)
  mkdir -p -- "$out"
  cd -- "$out"
  printf 'recording into %s\n' "$PWD"
}

declare -A built=()
looked=0
failures=0

failed() {
  printf '%s: %s\n' "$me" "$1" >&2
  failures=$((failures + 1))
}

# ready SIDE KERNEL REF CELL [OPTIONS]: succeed if PART selects the cell and its calls work. The first cell of a side and a
# kernel package compiles the package here, so that no compiler runs under the profiler.
ready() {
  local side=$1 kernel=$2 ref=$3 cell=$4
  shift 4
  [[ $cell == *"$part"* ]] || return 1
  looked=$((looked + 1))
  printf '\n== %s: %s, %s\n' "$side" "$cell" "$ref"
  [[ -z ${built["$side $kernel"]-} ]] || return 0
  if ! "$abprof" run-cell --repo "$repo" --device "$device" "$@" --warmup 0 --runs 1 -- "$ref" "$cell"; then
    failed "$side: $cell could not be called (see the line above)"
    return 1
  fi
  built["$side $kernel"]=yes
}

ended() {
  [[ $looked -gt 0 ]] || refuse "no cell id contains $part"
  [[ $failures -eq 0 ]] || exit 1
}
