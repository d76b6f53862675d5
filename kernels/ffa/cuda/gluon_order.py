"""Which item and head a program of the Hopper kernels takes: the order in which a launch does its work (plan.order)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def place(pid, n_first, heads_per_group, heads):
    """(item, head). The long items 0..n_first go by groups of heads whose operands fit the L2 cache together, longest
    first in a group; the short items of all heads come last and fill up the end. n_first is at least 1."""
    grouped = pid < n_first * heads
    rest = pid - n_first * heads
    item = gl.where(grouped, (pid % (n_first * heads_per_group)) // heads_per_group, n_first + rest // heads)
    by_group = pid // (n_first * heads_per_group) * heads_per_group + pid % heads_per_group
    return item, gl.where(grouped, by_group, rest % heads)
