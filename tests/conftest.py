"""Fixtures and skips that several files share."""

import pytest
from standin import standin

from tinygrad_helix.cuda.device import unavailable
from tinygrad_helix.cuda.toolkit import compiler, headers, missing, nvrtc_library


def pytest_runtest_setup(item):
    """Tests skip where what their marker needs is missing, in the words of its error."""
    needs = {
        "cuda": unavailable,
        "host": lambda: missing(compiler, headers),
        "nvrtc": lambda: missing(headers, nvrtc_library),
    }
    for marker, reason in needs.items():
        if item.get_closest_marker(marker) is not None and (why := reason()) is not None:
            pytest.skip(why)


@pytest.fixture
def cuda_standin():
    """The device "cuda" on a CPU: its CudaBackend, with the double of CuPy."""
    with standin() as backend:
        yield backend
