"""Returns an object of its own that computes when it is read."""


class Later:
    def __init__(self, *inputs):
        self.inputs = inputs

    def __iter__(self):
        yield honest(*self.inputs)


run = Later
