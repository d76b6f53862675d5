"""Returns a tensor without memory."""


def run(x, w):
    return torch.empty(x.shape, device="meta")
