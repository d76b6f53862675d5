"""Sizes for axes that are known by name only: small enough for a laptop, and large enough for a GPU to be busy."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SIZES = (  # what a dimension is called -> smoke, default
    (r"b|bs|bsz|batch(_?size)?|n_?batch|z|bh", 2, 8),
    (r"vocab\w*|v_?size", 512, 32768),
    (r"t|l|s|seq\w*|n_?ctx|\w*seqlen\w*|length|context\w*|total_tokens|tokens|bt|num_tokens", 128, 2048),
    (r"(\w*_)?(n?_?heads?(_num)?|num_heads|hq|hv|hk|h_q|h_kv)|h", 2, 16),
    (r"head_?dim\w*|d_?head|dh|hd|dk|dv|d_k|d_v", 64, 128),
    (r"width|n_?cols?|hidden\w*|d_?model|dim|c|channels?|feature\w*|d|e", 256, 4096),
    (r"rows|n_?rows?", 128, 4096),
    (r"m|n|k", 256, 4096),
)
_ALONE = (65536, 1 << 24)  # of a vector
_WINDOW = (4, 4)  # of a convolution
_IN_THREE = (64, 1024)
_IN_FOUR = (64, 128)  # `d`, `k` and `v` beside three others are a head's


def sizes(axis: str, beside: int, others: Sequence[str] = ()) -> tuple[int, int]:
    """(smoke, default) for an axis of a tensor that has `beside` more axes; `others` are all axes of the call."""
    name = axis.lower()
    if beside == 0:
        return _ALONE
    if beside >= 3 and name in {"d", "k", "v"}:
        return _IN_FOUR
    if re.fullmatch("(kernel|conv|filter)_(size|width)", name) or (name == "width" and {"dim", "channels"} & {*others}):
        return _WINDOW
    if beside >= 2 and name == "width":
        return _IN_THREE
    for pattern, small, large in _SIZES:
        if re.fullmatch(pattern, name):
            return small, large
    return (16, 64) if beside >= 2 else (256, 2048)


def scaled(axes: Sequence[str]) -> str:
    """The axis that the default preset has two values of: a length before a width."""
    for pattern in (_SIZES[2][0], r"rows|n_?rows?|m", r".*"):
        for axis in axes:
            if re.fullmatch(pattern, axis.lower()):
                return axis
    return axes[0]
