from . import blocks, launches, matmul, passes, phases, spill, streams, strides, tuned, window

PARTS = {"spill": spill, "tuned": tuned, "passes": passes, "matmul": matmul, "launches": launches, "phases": phases,
         "blocks": blocks, "streams": streams, "strides": strides, "window": window}  # fmt: skip
