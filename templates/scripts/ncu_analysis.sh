{% include "scripts/head.sh" %}
{% include "scripts/rows.sh" %}
begin ncu 'NVIDIA Nsight Compute, https://developer.nvidia.com/nsight-compute'
metrics=lts__t_bytes.sum,l1tex__t_bytes.sum,dram__bytes_read.sum,dram__bytes_write.sum # not dram__bytes.sum: some GPUs lack it
export LC_ALL=C

# File, side, kernel package, ref, cell, further options: a report of every kernel within its calls, as text and as CSV.
look() {
  local file=$1 side=$2 kernel=$3 ref=$4 cell=$5
  shift 5
  ready "$side" "$kernel" "$ref" "$cell" "$@" || return 0
  rm -f -- "$file.ncu-rep" "$file.csv" "$file.txt"
  ncu --target-processes all --nvtx --nvtx-include {{ range }} --clock-control none --set detailed --metrics "$metrics" \
    --force-overwrite --export "$file" \
    "$abprof" run-cell --repo "$repo" --device "$device" "$@" --warmup "$warmup" --runs "$runs" -- "$ref" "$cell" ||
    { failed "ncu could not record $cell on $side" && return 0; }
  [[ -e $file.ncu-rep ]] || { failed "ncu wrote no report of $cell on $side: it saw no kernel in its calls" && return 0; }
  ncu --import "$file.ncu-rep" --print-units base --page details >"$file.txt" || failed "ncu could not read $file.ncu-rep"
  ncu --import "$file.ncu-rep" --print-units base --page raw --csv >"$file.csv" || failed "ncu could not read $file.ncu-rep"
}

# Files: the memory traffic of the first and of the others beside it.
beside() {
  local file from=()
  for file in "$@"; do
    [[ -s $file ]] || return 0
    from+=(--from "$file")
  done
  "$abprof" memory "${from[@]}" --warmup "$warmup" --runs "$runs" || failed "no memory traffic; the line above says why"
}

{% for row in rows %}
{% for arm in row.arms %}
look {{ arm.file }} {{ arm.side }} {{ arm.kernel }} {{ arm.ref }} {{ arm.cell }}{{ words(arm.options) }}
{% endfor %}
beside{{ words(row.csvs) }}
{% endfor %}
ended
