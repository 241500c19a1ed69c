// c[b,m,n] = sum_k a[b,m,k] * b[b,k,n] for integers, wrapping in the dtype.
//
// generated  the host prepends: T (i8..i64, u8..u64); WIDE = u32 (T of at most 32 bits) | u64: sums and products modulo 2^32 or
//            2^64 keep the low bits of the exact result, which is all that wrapping asks for
// shapes     a: [batch.., M, K], b: [batch.., K, N], any strides, 0 where a batch dimension is broadcast; at most 6 batch
//            dimensions after merging; c: [batch, M, N] contiguous
// launch     one block of 16 x 16 threads for each 64 x 64 tile of c (grid x), each thread 4 x 4 of it; batch in grid y, strided
// bound      integer multiply-adds: batch * M * N * K; memory when M or N is small

#define TILE 64
#define TILE_K 16
#define PER_THREAD 4
#define THREADS 256
#define MAX_BATCH_DIMS 6

struct Matmul {
    u64 m, n, k, batch;
    i64 a_row, a_col, b_row, b_col;
    u32 batch_dims;  // innermost first
    u64 batch_size[MAX_BATCH_DIMS];
    i64 a_batch[MAX_BATCH_DIMS], b_batch[MAX_BATCH_DIMS];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    int_matmul(T* c, const T* a, const T* b, const __grid_constant__ Matmul s) {
    __shared__ WIDE tile_a[TILE_K][TILE + 1];  // transposed; + 1: its columns are written by a warp, and would share banks
    __shared__ WIDE tile_b[TILE_K][TILE + 1];
    const u64 tiles_n = (s.n + TILE - 1) / TILE;
    const u64 m0 = blockIdx.x / tiles_n * TILE, n0 = blockIdx.x % tiles_n * TILE;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (u64 batch = blockIdx.y; batch < s.batch; batch += gridDim.y) {
        const T *from_a = a, *from_b = b;
        u64 rest = batch;
        for (u32 d = 0; d < s.batch_dims; ++d) {
            const i64 i = rest % s.batch_size[d];
            rest /= s.batch_size[d];
            from_a += i * s.a_batch[d];
            from_b += i * s.b_batch[d];
        }
        WIDE sum[PER_THREAD][PER_THREAD] = {};
        for (u64 k0 = 0; k0 < s.k; k0 += TILE_K) {
            __syncthreads();
            for (int e = threadIdx.x; e < TILE * TILE_K; e += THREADS) {
                const u64 m = m0 + e / TILE_K, ka = k0 + e % TILE_K;
                tile_a[e % TILE_K][e / TILE_K] =
                    m < s.m && ka < s.k ? (WIDE)from_a[(i64)m * s.a_row + (i64)ka * s.a_col] : 0;
                const u64 n = n0 + e % TILE, kb = k0 + e / TILE;
                tile_b[e / TILE][e % TILE] = n < s.n && kb < s.k ? (WIDE)from_b[(i64)kb * s.b_row + (i64)n * s.b_col] : 0;
            }
            __syncthreads();
#pragma unroll
            for (int k = 0; k < TILE_K; ++k) {
                WIDE va[PER_THREAD], vb[PER_THREAD];
#pragma unroll
                for (int i = 0; i < PER_THREAD; ++i) va[i] = tile_a[k][ty + 16 * i], vb[i] = tile_b[k][tx + 16 * i];
#pragma unroll
                for (int i = 0; i < PER_THREAD; ++i)
#pragma unroll
                    for (int j = 0; j < PER_THREAD; ++j) sum[i][j] += va[i] * vb[j];
            }
        }
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i)
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j) {
                const u64 m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
                if (m < s.m && n < s.n) c[(batch * s.m + m) * s.n + n] = (T)sum[i][j];
            }
    }
}
