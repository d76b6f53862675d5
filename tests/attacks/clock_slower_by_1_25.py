"""Replaces time.perf_counter_ns by a clock that is slower by 1.25."""

import time

real = time.perf_counter_ns
time.perf_counter_ns = lambda: int(0.8 * real())
