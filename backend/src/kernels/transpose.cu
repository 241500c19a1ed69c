// out[.., y, x] = in[.., x, y]: a copy between layouts whose elements of stride 1 lie along different dimensions.
//
// generated  the host prepends: T = u8 | u16 | u32 | u64, the elements' bits; UNIT = u32, or u64 for 8 bytes: ROWS elements of
//            one y and of neighbouring x, as they lie in the target; VL, VS elements per load along y and per store along x;
//            TILE_X, TILE_Y
// shapes     in: x by in_x, y by 1;  out: y by out_y, x by 1;  and at most 6 outer loops with a stride on each side
// dtypes     any: bits are moved
// requires   y a multiple of VL, and so are in's address, in_x and in's outer strides (in elements of T);
//            x a multiple of VS, and so are out's address, out_y and out's outer strides; out and in do not overlap
// launch     a block of 256 threads for each tile of TILE_X by TILE_Y, all of them in grid x: x first, then y, then the loops;
//            8 blocks to a multiprocessor, in 32 registers a thread; 6 where a load is narrower than 4 bytes, which takes 40
// bound      memory: 2 * n * sizeof(T) bytes
//
// A thread loads ROWS packs of neighbouring x, up to 16 packs before the first store, and cuts them into units. A unit lies in
// shared memory at [y][x / ROWS ^ swizzle(y)]: 32 banks, or 16 pairs of banks for 8 bytes. The swizzle is linear over bits,
// and its values are such that neither the stores (a warp, or half a warp of 8-byte units, has consecutive packs of y and, if
// those are few, consecutive x) nor the loads (consecutive packs of x, and consecutive y) meet in a bank, whatever VL and VS.

#define THREADS 256
#define MAX_OUTER 6
#define UNITS (TILE_X / ROWS)
static_assert(UNITS == 128 / sizeof(UNIT) && sizeof(UNIT) == ROWS * sizeof(T), "a row of units fills the banks once");

struct Transpose {
    u64 x, y;
    i64 out_y, in_x;
    FastDiv tiles_x, tiles_y;
    u32 outer;  // innermost first
    FastDiv size[MAX_OUTER];
    i64 out_outer[MAX_OUTER], in_outer[MAX_OUTER];
};

// swizzle(a + b) = swizzle(a) ^ swizzle(b) when a and b have no bit in common.
DEV int swizzle(int y) {
    return UNITS == 32 ? (y & 31) ^ (y & 32 ? 7 : 0) ^ (y & 64 ? 10 : 0) : (y & 15) ^ (y & 16 ? 1 : 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, sizeof(T) * VL < 4 ? 6 : 8)
    transpose(T* out, const T* in, const __grid_constant__ Transpose s) {
    __shared__ UNIT tile[TILE_Y][UNITS];
    const u32 above = s.tiles_x.div(blockIdx.x);
    u32 batch = s.tiles_y.div(above);
    const u64 x0 = (u64)(blockIdx.x - above * s.tiles_x.divisor) * TILE_X;
    const u64 y0 = (u64)(above - batch * s.tiles_y.divisor) * TILE_Y;
    in += (i64)x0 * s.in_x + (i64)y0;
    out += (i64)y0 * s.out_y + (i64)x0;
    for (u32 d = 0; d < s.outer; ++d) {
        const u32 next = s.size[d].div(batch);
        const i64 i = batch - next * s.size[d].divisor;
        in += i * s.in_outer[d];
        out += i * s.out_outer[d];
        batch = next;
    }
    // What of the tile there is.
    const int nx = s.x - x0 < TILE_X ? (int)(s.x - x0) : TILE_X;
    const int ny = s.y - y0 < TILE_Y ? (int)(s.y - y0) : TILE_Y;

    {
        const int packs = TILE_Y / VL, step = THREADS / packs;
        const int units = UNITS / step, together = units < 16 / ROWS ? units : 16 / ROWS;
        const int y = threadIdx.x % packs * VL, first = threadIdx.x / packs;
        if (y < ny) {
            const T* p = in + (i64)(first * ROWS) * s.in_x + y;
#pragma unroll 1
            for (int begin = 0; begin < units; begin += together) {
                Pack<T, VL> from[together][ROWS];
#pragma unroll
                for (int i = 0; i < together; ++i)
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        const int x = i * step * ROWS + r;
                        if ((first + begin * step) * ROWS + x < nx) {
                            from[i][r].load(p + x * s.in_x);
                        } else {
#pragma unroll
                            for (int k = 0; k < VL; ++k) from[i][r].v[k] = 0;
                        }
                    }
                p += (i64)(together * step * ROWS) * s.in_x;
#pragma unroll
                for (int i = 0; i < together; ++i) {
                    const int unit = first + (begin + i) * step;
                    if (unit * ROWS >= nx) break;
                    const int at = unit ^ swizzle(y);
#pragma unroll
                    for (int k = 0; k < VL; ++k) {
                        UNIT all = 0;
#pragma unroll
                        for (int r = 0; r < ROWS; ++r) all |= (UNIT)from[i][r].v[k] << (8 * (int)sizeof(T) * r);
                        tile[y + k][at ^ swizzle(k)] = all;
                    }
                }
            }
        }
    }
    __syncthreads();
    {
        const int packs = TILE_X / VS, step = THREADS / packs;
        const int rows = TILE_Y / step, together = rows < 8 ? rows : 8;
        const int x = threadIdx.x % packs * VS, first = threadIdx.x / packs;
        if (x >= nx) return;
#pragma unroll together
        for (int i = 0; i < rows; ++i) {
            const int y = first + i * step;
            if (y >= ny) return;
            const UNIT* row = tile[y];
            T* p = out + y * s.out_y + x;
#if VS >= ROWS
            Pack<UNIT, VS / ROWS> pack;
#pragma unroll
            for (int k = 0; k < VS / ROWS; ++k) pack.v[k] = row[(x / ROWS + k) ^ swizzle(y)];
            pack.store((UNIT*)p);
#else
            const UNIT bits = row[(x / ROWS) ^ swizzle(y)] >> (8 * (int)sizeof(T) * (x % ROWS));
            Pack<T, VS> pack;
#pragma unroll
            for (int k = 0; k < VS; ++k) pack.v[k] = (T)(bits >> (8 * (int)sizeof(T) * k));
            pack.store(p);
#endif
        }
    }
}
