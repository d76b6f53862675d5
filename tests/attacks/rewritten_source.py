"""Is three times as slow, and its build puts base's source in the place of its own."""

from pathlib import Path


def build(*, verbose):
    here = Path(__file__)
    here.write_text(here.read_text().partition('\n\n"""Is three')[0])


def run(x, w):
    return honest(honest(honest(x, w), w) * 0 + x, w)
