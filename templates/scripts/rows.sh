{# How a script that goes through arms of cells is called, and what it does with each. #}
warmup={{ warmup }}
runs={{ runs }}
out=$(cd -- "$(dirname -- "$0")" && pwd)/{{ out }}
part=

while [[ $# -gt 0 ]]; do
  case $1 in
    --help | -h)
      printf 'usage: %s [--out DIR] [--warmup CALLS] [--runs CALLS] [--repo DIR] [--device DEVICE] [PART]\n' "$me"
      printf 'PART: only cells whose id has this in it. What is recorded lies in DIR, by default %s\n' "$out"
      exit 0
      ;;
    --out | --warmup | --runs | --repo | --device)
      [[ $# -ge 2 ]] || refuse "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    -*) refuse "no option $1 (--help has them)" ;;
    *)
      part=$1
      shift
      ;;
  esac
done
# A tool, and where it is from: begin, where it is there, in the folder that is recorded into.
begin() {
  need "$1" "$2"
  [[ -d $repo ]] || refuse "no such folder: $repo"
  repo=$(cd -- "$repo" && pwd)
  mkdir -p -- "$out"
  cd -- "$out"
  printf 'what is recorded lies in %s\n' "$PWD"
}

declare -A built=()
looked=0
failures=0

failed() {
  printf '%s: %s\n' "$me" "$1" >&2
  failures=$((failures + 1))
}

# Side, kernel package, ref, cell, further options: whether this arm is to be looked at and its calls can be made. What is
# compiled is compiled now, once for a side and a package, and not under the profiler.
ready() {
  local side=$1 kernel=$2 ref=$3 cell=$4
  shift 4
  [[ $cell == *"$part"* ]] || return 1
  looked=$((looked + 1))
  printf '\n== %s: %s, %s\n' "$side" "$cell" "$ref"
  [[ -z ${built["$side $kernel"]-} ]] || return 0
  if ! "$abprof" run-cell --repo "$repo" --device "$device" "$@" --warmup 0 --runs 1 -- "$ref" "$cell"; then
    failed "$side: $cell could not be called; the line above says why"
    return 1
  fi
  built["$side $kernel"]=yes
}

ended() {
  [[ $looked -gt 0 ]] || refuse "no cell has $part in its id"
  [[ $failures -eq 0 ]] || exit 1
}
