"""The CUDA device, by CuPy: imported when the device is first used, never before."""
