"""The part of numpy that images use on their way to a recording package."""
import math

SIZES = {"uint8": 1, "float32": 4}


class Array:
    def __init__(self, dtype, shape):
        self.dtype, self.shape = dtype, tuple(shape)

    def reshape(self, shape):
        assert math.prod(shape) == math.prod(self.shape)
        return Array(self.dtype, shape)

    def transpose(self, order):
        return Array(self.dtype, [self.shape[each] for each in order])

    def __iter__(self):
        return iter([Array(self.dtype, self.shape[1:])] * self.shape[0])


def frombuffer(values, dtype):
    return Array(dtype, [len(values) // SIZES[dtype]])
