#!/usr/bin/env bash
{# The start of every script. abprof/report/scripts.py quotes each inserted value as one shell word. #}
# `abprof scripts RUN` writes this file. --help shows its options.
# shellcheck disable=SC1003,SC2016 # names of branches and cells are quoted: the shell must not expand them
set -euo pipefail
unset CDPATH
trap 'exit 130' INT

me=${0##*/}
abprof=${ABPROF:-abprof}
command -v "$abprof" >/dev/null || abprof={{ abprof }}
repo={{ repo }}
device={{ device }}

refuse() {
  printf '%s: %s\n' "$me" "$1" >&2
  exit 2
}

need() {
  command -v "$1" >/dev/null || refuse "$1 is not installed, or not on PATH: $2"
}
need "$abprof" 'pip install abprof, or name it: ABPROF=/path/to/abprof'
[[ $abprof != */* ]] || abprof=$(cd -- "$(dirname -- "$abprof")" && pwd)/${abprof##*/} # a script changes its folder before it calls abprof
