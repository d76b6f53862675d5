#!/usr/bin/env bash
{# What the scripts share. Everything that is printed here is one quoted word (abprof/report/scripts.py). #}
# Written by `abprof scripts`, which writes it anew at any time. --help says how it is called.
# shellcheck disable=SC1003,SC2016 # names of branches and cells are quoted so that nothing in them is expanded
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
[[ $abprof != */* ]] || abprof=$(cd -- "$(dirname -- "$abprof")" && pwd)/${abprof##*/} # it is called from another folder
