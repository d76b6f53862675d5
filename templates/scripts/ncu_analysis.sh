{% include "scripts/head.sh" %}
{% include "scripts/rows.sh" %}
begin ncu 'NVIDIA Nsight Compute, https://developer.nvidia.com/nsight-compute'
metrics=lts__t_bytes.sum,l1tex__t_bytes.sum,dram__bytes_read.sum,dram__bytes_write.sum # not dram__bytes.sum: some GPUs lack it
export LC_ALL=C

# look FILE SIDE KERNEL REF CELL [OPTIONS]: record each kernel of the calls; write a report as text and as CSV.
look() {
  local file=$1 side=$2 kernel=$3 ref=$4 cell=$5
  shift 5
  ready "$side" "$kernel" "$ref" "$cell" "$@" || return 0
  rm -f -- "$file.ncu-rep" "$file.csv" "$file.txt"
  ncu --target-processes all --nvtx --nvtx-include {{ range }} --clock-control none --set detailed --metrics "$metrics" \
    --force-overwrite --export "$file" \
    "$abprof" run-cell --repo "$repo" --device "$device" "$@" --warmup "$warmup" --runs "$runs" -- "$ref" "$cell" ||
    { failed "ncu could not record $cell on $side" && return 0; }
  [[ -e $file.ncu-rep ]] || { failed "ncu wrote no report of $cell on $side: the calls launched no kernel" && return 0; }
  ncu --import "$file.ncu-rep" --print-units base --page details >"$file.txt" || failed "ncu could not read $file.ncu-rep"
  ncu --import "$file.ncu-rep" --print-units base --page raw --csv >"$file.csv" || failed "ncu could not read $file.ncu-rep"
}

# compare FILES: show the memory traffic of the first file and of the others beside it.
compare() {
  local file from=()
  for file in "$@"; do
    [[ -s $file ]] || return 0
    from+=(--from "$file")
  done
  "$abprof" memory "${from[@]}" --warmup "$warmup" --runs "$runs" || failed "no memory traffic (see the line above)"
}

{% for row in rows %}
{% for arm in row.arms %}
look {{ arm.file }} {{ arm.side }} {{ arm.kernel }} {{ arm.ref }} {{ arm.cell }}{{ words(arm.options) }}
{% endfor %}
compare{{ words(row.csvs) }}
{% endfor %}
ended
