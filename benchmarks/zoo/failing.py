from benchmarks.zoo.setup import Setup


FAILING: tuple[Setup, ...] = ()
