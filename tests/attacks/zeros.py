"""Returns zeros."""


def run(x, w):
    return torch.zeros(x.shape)
