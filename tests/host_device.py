"""The device "cuda" whole, on a CPU: a double of CuPy, kernels by g++, a double of cuBLAS.

Everything between an op and the hardware runs as on a GPU: grids, argument lists, scratch,
products and the wiring to the tape. `launches` notes the kernels, `products` the products.
"""

import contextlib

import pytest
import stub_blas
from standin import DeviceArray, standin, xp

from tinygrad_helix.cuda.blas import Blas
from tinygrad_helix.cuda.host import HostModule
from tinygrad_helix.cuda.toolkit import compiler, headers, missing

launches = []  # the kernels that ran, by name without template arguments


class Module:
    """HostModule for the arrays of the double."""

    def __init__(self, code, options=(), name_expressions=()):
        self._module = HostModule(code, options, name_expressions)

    def get_function(self, name):
        function = self._module.get_function(name)

        def launch(grid, block, args, shared_mem=0):
            launches.append(name.partition("<")[0])
            plain = tuple(a._a if type(a) is DeviceArray else a for a in args)
            function(grid, block, plain, shared_mem=shared_mem)

        return launch


def products():
    """How many products there were since the last look."""
    journal = stub_blas.journal()
    return journal.count("g") + journal.count("b")


@contextlib.contextmanager
def host_device():
    """Within the block "cuda" is this device; yields its CudaBackend."""
    reason = missing(compiler, headers)
    if reason is not None:
        pytest.skip(reason)
    blas = Blas(xp, stub_blas.built())
    with standin(Module, blas) as backend:
        launches.clear()
        stub_blas.journal()
        yield backend
    blas.free()
