"""Returns a generator, which computes when it is read."""


def run(x, w):
    return (honest(*each) for each in [(x, w)])
