"""Returns an object that runs code where it is loaded."""

import os


class Code:
    def __reduce__(self):
        return os.system, ("true",)

    def __iter__(self):
        return iter([torch.zeros(320, 320)])


def run(x, w):
    return [Code()]
