"""Computes half of the rows."""


def run(x, w):
    out = torch.zeros(x.shape)
    out[: len(x) // 2] = honest(x[: len(x) // 2], w)
    return out
