"""Returns a narrower type."""


def run(x, w):
    return honest(x, w).half()
