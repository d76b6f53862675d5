"""Multiplies with ten bits of mantissa."""


def run(x, w):
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return honest(x, w)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
