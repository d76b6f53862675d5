"""Overwrites its input with the result."""


def run(x, w):
    return x.copy_(honest(x, w))
