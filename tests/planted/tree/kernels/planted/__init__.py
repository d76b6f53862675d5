from . import blocks, launches, matmul, passes, phases, spill, streams, tuned

PARTS = {"spill": spill, "tuned": tuned, "passes": passes, "matmul": matmul, "launches": launches, "phases": phases,
         "blocks": blocks, "streams": streams}  # fmt: skip
