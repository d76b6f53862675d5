{% include "scripts/head.sh" %}
{% include "scripts/rows.sh" %}
begin nsys 'NVIDIA Nsight Systems, https://developer.nvidia.com/nsight-systems'

# look FILE SIDE KERNEL REF CELL [OPTIONS]: record a timeline of the calls; write tables of ranges and kernels.
look() {
  local file=$1 side=$2 kernel=$3 ref=$4 cell=$5 report
  shift 5
  ready "$side" "$kernel" "$ref" "$cell" "$@" || return 0
  rm -f -- "$file.nsys-rep" "$file.qdrep" "$file.sqlite" "$file.txt" # or nsys stats would read the last run's files
  nsys profile --trace=cuda,nvtx,osrt --sample=none --cpuctxsw=none --force-overwrite=true --output="$file" \
    "$abprof" run-cell --repo "$repo" --device "$device" "$@" --warmup "$warmup" --runs "$runs" -- "$ref" "$cell" ||
    { failed "nsys could not record $cell on $side" && return 0; }
  report=$file.nsys-rep
  [[ -e $report ]] || report=$file.qdrep # before version 2021.4
  [[ -e $report ]] || { failed "nsys wrote no report of $cell on $side" && return 0; }
  nsys stats --report nvtx_sum --report cuda_gpu_kern_sum --report nvtx_kern_sum "$report" >"$file.txt" ||
    nsys stats "$report" >"$file.txt" || failed "nsys could not read $report"
  [[ ! -s $file.txt ]] || cat -- "$file.txt"
}

{% for row in rows %}
{% for arm in row.arms %}
look {{ arm.file }} {{ arm.side }} {{ arm.kernel }} {{ arm.ref }} {{ arm.cell }}{{ words(arm.options) }}
{% endfor %}
{% endfor %}
ended
