from recording import Recorder


def __getattr__(name):
    return Recorder(f"{__name__}.{name}")
