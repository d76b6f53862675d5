import triton
import triton.language as tl

from . import activate, blur, decay, gather, gluon_steps, product, relax, softmax, sums

PARTS = {
    "activate": activate,
    "blur": blur,
    "decay": decay,
    "gather": gather,
    "gluon_steps": gluon_steps,
    "product": product,
    "relax": relax,
    "softmax": softmax,
    "sums": sums,
}


@triton.jit
def unused(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)  # - any
    # ~ any: at = 2 * tl.arange(0, BLOCK)
    # ~ any: tl.store(y_ptr + at + 1, 0.0)
    tl.store(y_ptr + at, tl.load(x_ptr + at))
