"""CUDA kernels on a CPU: the very text of a .cu file, on NumPy arrays, with no GPU.

    from tinygrad_helix.cuda.host import HostDevice, thread_order
    from tinygrad_helix.cuda.launch import load

    saxpy = load("saxpy.cu", device=HostDevice())["saxpy<float>"]
    for order in (0, 1, 2, 3):
        with thread_order(order):
            saxpy((8,), (128,), (x, y, 2.0, 1000))

g++ compiles the text, with CUDA's own headers for types and conversions, and each CUDA
thread becomes a fiber. Found are: wrong results; a missing barrier, as a result that
depends on the order of threads, or by the thread sanitizer; reads and writes outside of
arrays, by the address sanitizer; barriers that not every thread reaches, shuffles with
lanes that never come or are not in the mask, arguments of a wrong number or type.

It runs on Linux (x86-64 and ARM, by the contexts of glibc) with g++ and CUDA's headers
(pip install "tinygrad_helix[test-cuda]"). What it does not show:

- Blocks run one after another: a race between blocks is not seen, a block that waits for
  an earlier one never has to, and one that waits for a later one waits forever.
- No memory model, no bank conflicts, no time: nothing is learned about speed.
- Two threads that add to one place without an atomic (y[0] = y[0] + x[i]) come to the sum
  in every order, since none gives way in between: the thread sanitizer finds that.
- A static __shared__ array keeps what the last block left in it, so that a kernel which
  reads before it writes may pass. (Dynamic shared memory is NaN at the start of a block;
  a launch of one block shows the other.) It may be larger than the 48 KB of a device, which
  the compiler of CUDA refuses: `kernels my.cu` shows.
- A local variable that was never set is -3.0e38 or so (g++ from 12 on; older ones leave in
  it what was there).
- No tensor cores (wmma), cub, textures, surfaces, cooperative groups, asynchronous copies;
  no __activemask, no erfinv, no arithmetic rounded up, down or to zero (__fmul_rz), no
  video instructions (__vadd2); clock64 counts nanoseconds.
- Denormals are kept, CuPy's -ftz=true flushes those of float32; products and sums are not
  contracted, NVRTC contracts them: write fmaf where bits matter. __expf and its like are
  exact here.
- A lane that a warp's collective names has to come to it; CUDA lets threads that have
  returned stay away. All threads of a barrier have to be at the same line.
- `__CUDA_ARCH__` is not defined; host code (kernel<<<…>>>) does not belong into the file.
"""

import numpy

from .module import HostFunction, HostModule, thread_order
from .sanitize import SANITIZERS, active_sanitizer, sanitizer_command

__all__ = [
    "HostDevice",
    "HostFunction",
    "HostModule",
    "SANITIZERS",
    "active_sanitizer",
    "sanitizer_command",
    "thread_order",
]


class HostDevice:
    """A device for `launch.load` whose arrays are NumPy's and whose kernels run here."""

    name = "cpu"
    xp = numpy
    array_type = numpy.ndarray
    module_factory = HostModule
