// out[k, :] = the coordinates of the k-th element of x that is true, in row-major order.
//
// generated  the host prepends: V elements per pack (16 | 1); one CASE_; WRITE: IDX_T (i32 | i64), FLAT (u32 | u64)
// shapes     x: n bools, contiguous;  counts: one number a tile of TILE elements;  out: [trues, rank]
// requires   x a multiple of V bytes;  FLAT holds n
// launch     a block of THREADS threads a tile
//            COUNT counts the trues of each tile, the host sums the counts up (inclusively), WRITE writes `dims.used` of the
//            coordinates, from dimension `first` on
// bound      memory: x twice and out; a division or two for each coordinate

#define THREADS 256
#define TILE 8192
#define ROUNDS (TILE / (THREADS * V))
#define FULL 0xffffffffu

#ifdef CASE_COUNT
struct Add {
    DEV u32 operator()(u32 a, u32 b) const { return a + b; }
};
extern "C" __global__ void __launch_bounds__(THREADS) argwhere_count(i64* counts, const b8* x, u64 n) {
    __shared__ u32 shared[32];
    const u64 start = (u64)blockIdx.x * TILE;
    u32 count = 0;
#pragma unroll 4
    for (int round = 0; round < ROUNDS; ++round) {
        const u64 p = start + (round * THREADS + threadIdx.x) * V;
        if (p + V <= n) {
            Pack<b8, V> pack;
            pack.load(x + p);
#pragma unroll
            for (int k = 0; k < V; ++k) count += pack.v[k].bits != 0;
        } else {
            for (u64 q = p; q < n; ++q) count += x[q].bits != 0;
        }
    }
    count = block_reduce(count, 0u, shared, Add());
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}
#endif

#ifdef CASE_WRITE
#define MOST_DIMS 8
struct Dims {
    u64 size[MOST_DIMS], stride[MOST_DIMS];  // row-major
    u32 used;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    argwhere_write(IDX_T* out, const b8* x, const i64* counts, u64 n, u32 rank, u32 first, const __grid_constant__ Dims dims) {
    __shared__ u16 found[TILE];
    __shared__ u32 sums[2][THREADS / 32];
    const u64 start = (u64)blockIdx.x * TILE;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 before = 0;  // found in earlier rounds
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
        const u32 at = (round * THREADS + threadIdx.x) * V;
        const u64 p = start + at;
        u32 set = 0;
        if (p + V <= n) {
            Pack<b8, V> pack;
            pack.load(x + p);
#pragma unroll
            for (int k = 0; k < V; ++k) set |= (u32)(pack.v[k].bits != 0) << k;
        } else {
            for (u64 q = p; q < n; ++q) set |= (u32)(x[q].bits != 0) << (u32)(q - p);
        }
        const u32 count = __popc(set);
        u32 up = count;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            const u32 below = __shfl_up_sync(FULL, up, d);
            if (lane >= d) up += below;
        }
        if (lane == 31) sums[round & 1][warp] = up;
        __syncthreads();
        u32 to = before + up - count;
        for (int w = 0; w < THREADS / 32; ++w) {
            const u32 sum = sums[round & 1][w];
            if (w < warp) to += sum;
            before += sum;
        }
        for (; set; set &= set - 1) found[to++] = (u16)(at + __ffs((int)set) - 1);
    }
    __syncthreads();
    const u64 row = blockIdx.x > 0 ? (u64)counts[blockIdx.x - 1] : 0;
    for (u32 o = threadIdx.x; o < before * dims.used; o += THREADS) {
        const u32 r = o / dims.used, d = o - r * dims.used;
        const FLAT flat = (FLAT)start + found[r];
        out[(row + r) * rank + first + d] = (IDX_T)(flat / (FLAT)dims.stride[d] % (FLAT)dims.size[d]);
    }
}
#endif
