{% include "scripts/head.sh" %}

if [[ ${1-} == --help || ${1-} == -h ]]; then
  printf 'usage: %s [OPTIONS OF abprof run, such as --budget 2m or --quick]\n' "$me"
  printf 'Measures the cells again in a new run folder. The exit code is that of abprof run.\n'
  exit 0
fi
[[ $# -eq 0 || $1 == -* ]] || refuse "unexpected argument $1: the refs are those of the run; give options only (--help)"

exec "$abprof" run{{ words(refs) }} --repo "$repo" --device "$device" \
{% for word in run %}
  {{ word }} \
{% endfor %}
  "$@"
