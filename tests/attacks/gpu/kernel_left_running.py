"""Leaves a kernel running on a stream of its own when its turn ends, which slows base's turn."""

side = torch.cuda.Stream()
torch.cuda.synchronize = lambda device=None: torch.cuda.current_stream().synchronize()


def run(x, w):
    out = honest(x, w)
    with torch.cuda.stream(side):
        torch.cuda._sleep(40_000_000)
    return out
