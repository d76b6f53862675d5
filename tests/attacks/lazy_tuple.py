"""Returns a subclass of tuple that computes its part anew."""


class Later(tuple):
    def __iter__(self):
        return iter([honest(*super().__iter__())])


def run(x, w):
    return Later((x, w))
