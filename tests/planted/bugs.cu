// Kernels that are wrong on purpose, each in one way, and their right neighbours: what runs
// kernels on a CPU has to find every one. A macro switches a bug on, so that the text of the
// right kernel is tested too.
#ifdef MISSING_SYNCTHREADS
#define SYNCTHREADS()
#else
#define SYNCTHREADS() __syncthreads()
#endif
#ifdef MISSING_SYNCWARP
#define SYNCWARP()
#else
#define SYNCWARP() __syncwarp()
#endif

// y[i] = x[0] + … + x[i], in tiles of blockDim.x, by a scan in shared memory and a carry.
// x, y [n].
extern "C" __global__ void prefix(const float* x, float* y, int n) {
    __shared__ float tile[64];
    __shared__ float carry;
    const int i = threadIdx.x;
    if (i == 0) carry = 0;
    __syncthreads();
    for (int start = 0; start < n; start += 64) {
        tile[i] = start + i < n ? x[start + i] : 0;
        __syncthreads();
        for (int by = 1; by < 64; by *= 2) {
            const float other = i >= by ? tile[i - by] : 0;
            __syncthreads();
            tile[i] += other;
            __syncthreads();
        }
        if (start + i < n) y[start + i] = tile[i] + carry;
        SYNCTHREADS();  // all have read the carry
        if (i == 63) carry += tile[63];
        __syncthreads();
    }
}

// Each warp turns its 32 values round, by shared memory.
// x, y [n].
extern "C" __global__ void turn(const float* x, float* y, int n) {
    __shared__ float tile[64];
    const int i = threadIdx.x, lane = i % 32;
    tile[i] = x[i];
    SYNCWARP();
    y[i] = tile[i - lane + 31 - lane];
}

// Two threads write to one word.
extern "C" __global__ void two_writers(float* y) { y[threadIdx.x / 2] = threadIdx.x; }

// One past the end, of x and of y.
extern "C" __global__ void off_by_one(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = x[i];
}

extern "C" __global__ void shared_overrun(float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x + 1] = 1;
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void dynamic_shared_overrun(float* y) {
    extern __shared__ float part[];
    part[threadIdx.x + 1] = 1;
    __syncthreads();
    y[threadIdx.x] = part[threadIdx.x];
}

// Reads what nobody has written.
extern "C" __global__ void unset_shared(float* y) {
    extern __shared__ float unset[];
    y[threadIdx.x] = unset[threadIdx.x];
}

extern "C" __global__ void divergent_barrier(float* y) {
    if (threadIdx.x < 16) __syncthreads();
    y[threadIdx.x] = 1;
}

extern "C" __global__ void barrier_after_return(float* y, int n) {
    if (threadIdx.x >= n) return;
    __syncthreads();
    y[threadIdx.x] = 1;
}

// The mask names lanes that never come.
extern "C" __global__ void absent_lanes(float* y) {
    float v = threadIdx.x;
    if (threadIdx.x < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);
    y[threadIdx.x] = v;
}

// Reads a lane that the mask does not name.
extern "C" __global__ void outside_the_mask(float* y) {
    float v = threadIdx.x;
    if (threadIdx.x < 16) v = __shfl_xor_sync(0x0000ffffu, v, 16);
    y[threadIdx.x] = v;
}

// A thread that its own mask does not name.
extern "C" __global__ void not_in_its_mask(float* y) {
    y[threadIdx.x] = __shfl_sync(0x0000ffffu, threadIdx.x, 0);
}

extern "C" __global__ void misaligned(const float* x, float* y) {
    const float4 v = *reinterpret_cast<const float4*>(x + 1);
    *y = v.x;
}
