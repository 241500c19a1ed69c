// y[o, r, i] = combine_{q <= r} x[o, q, i]: cumulative sums, products, maxima and minima along r.
//
// generated  the host prepends: T element type; OP one of the structs below; V elements per pack; BLOCK threads; one CASE_;
//            TOTALS 0 or 1; rows: GROUP threads a row, ITEMS elements a thread and tile (a multiple of V)
// shapes     x, y: [R, C] row-major scanned along C (rows), [outer, C, inner] scanned along C (columns)
// dtypes     16-bit floats carry in f32, f64 in f64, sums and products of integers in 64 bits (wrapping)
// requires   rows: C and chunk multiples of V; columns: inner % V == 0; pointers multiples of min(16, V * sizeof(T)) bytes
//            GROUP a power of two, GROUP == 32 or GROUP == BLOCK; with chunks > 1 GROUP == BLOCK; y may be x
// launch     rows: (rows / (BLOCK / GROUP), chunks) linear in x.  columns: (column blocks, chunks) linear in x
//            More than one chunk takes two launches: with TOTALS the chunks' totals are written; without, each chunk
//            starts from the combination of the totals before it
// bound      memory: 2*R*C*sizeof(T) bytes, 3 with more than one chunk

template <typename T_>
struct Sum {
    typedef Acc<T_> A;
    static DEV A identity() { return 0; }
    static DEV A combine(A a, A b) { return wrapping_add(a, b); }
};
template <typename T_>
struct Prod {
    typedef Acc<T_> A;
    static DEV A identity() { return 1; }
    static DEV A combine(A a, A b) { return wrapping_mul(a, b); }
};
template <typename T_>
struct Max {  // NaN wins, and so stays
    typedef Compute<T_> A;
    static DEV A identity() { return Limits<A>::lowest(); }
    static DEV A combine(A a, A b) { return max_of(a, b); }
};
template <typename T_>
struct Min {
    typedef Compute<T_> A;
    static DEV A identity() { return Limits<A>::highest(); }
    static DEV A combine(A a, A b) { return min_of(a, b); }
};

typedef OP<T> Op;
typedef Op::A A;
struct Combine {
    DEV A operator()(A a, A b) const { return Op::combine(a, b); }
};

#ifdef CASE_ROWS
#define TILE (GROUP * ITEMS)

// Combines x over the threads before this one; `all` gets the combination over the group. `shared` holds 32 values and is
// not the one of the previous call.
DEV A exclusive(A x, A& all, A* shared) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const A before = __shfl_up_sync(0xffffffffu, x, d);
        if (lane >= d) x = Op::combine(before, x);
    }
    A before = __shfl_up_sync(0xffffffffu, x, 1);
    if (lane == 0) before = Op::identity();
    if (GROUP == 32) {
        all = __shfl_sync(0xffffffffu, x, 31);
        return before;
    }
    if (lane == 31) shared[warp] = x;
    __syncthreads();
    A prefix = Op::identity();
    all = Op::identity();
#pragma unroll
    for (int w = 0; w < GROUP / 32; ++w) {
        if (w == warp) prefix = all;
        all = Op::combine(all, shared[w]);
    }
    return Op::combine(prefix, before);
}

DEV void load_items(Pack<T, V> (&pack)[ITEMS / V], const T* from, u64 c, u64 end) {
#pragma unroll
    for (int n = 0; n < ITEMS / V; ++n)
        if (c + n * V < end) pack[n].load(from + c + n * V);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    cumulative_rows(T* y, A* totals, const T* x, u64 rows, u64 size, u64 chunk, u32 chunks) {
    __shared__ A shared[3][32];
    const u64 row_block = blockIdx.x / chunks;
    const u32 part = blockIdx.x - row_block * chunks;
    const u64 row = row_block * (BLOCK / GROUP) + threadIdx.x / GROUP;
    const bool live = row < rows;
    const u32 t = threadIdx.x % GROUP;
    const T* from = x + row * size;
    const u64 first = part * chunk, end = first + chunk < size ? first + chunk : size;
    const u64 last = live ? end : first;  // rows past the end, which are whole warps, have no elements

    A carry = Op::identity();
    if (!TOTALS && GROUP > 32) {
        A before = Op::identity();
        for (u32 s = t; s < part; s += BLOCK) before = Op::combine(before, totals[row * chunks + s]);
        carry = block_reduce(before, Op::identity(), shared[2], Combine());
    }
    Pack<T, V> pack[ITEMS / V];
    load_items(pack, from, first + t * ITEMS, last);
    int parity = 0;
    for (u64 tile = first; tile < last; tile += TILE) {
        const u64 c = tile + t * ITEMS;
        A v[ITEMS];
        A sum = Op::identity();
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            if (c + k < last) sum = Op::combine(sum, (A)load_value(pack[k / V].v[k % V]));
            v[k] = sum;
        }
        load_items(pack, from, c + TILE, last);  // in flight during the exchange below
        A all;
        const A before = Op::combine(carry, exclusive(sum, all, shared[parity]));
        parity ^= 1;
        carry = Op::combine(carry, all);
        if (!TOTALS && live) {
#pragma unroll
            for (int n = 0; n < ITEMS / V; ++n) {
                Pack<T, V> out;
#pragma unroll
                for (int k = 0; k < V; ++k) out.v[k] = cast<T>(Op::combine(before, v[n * V + k]));
                if (c + n * V < last) out.store(y + row * size + c + n * V);
            }
        }
    }
    if (TOTALS && live && t == 0) totals[row * chunks + part] = carry;
}
#endif

#ifdef CASE_COLUMNS
// A thread walks a pack of columns down, UNROLL rows in flight. totals: [chunks, outer * inner].
#define UNROLL 8
extern "C" __global__ void __launch_bounds__(BLOCK)
    cumulative_columns(T* y, A* totals, const T* x, u64 outer, u64 size, u64 inner, u64 chunk, u32 column_blocks) {
    const u32 part = blockIdx.x / column_blocks;
    const u64 packs = inner / V;
    const u64 column = (u64)(blockIdx.x - part * column_blocks) * BLOCK + threadIdx.x;
    if (column >= outer * packs) return;
    const u64 o = column / packs, i = (column - o * packs) * V;
    const u64 start = o * size * inner + i, kept = outer * inner, q = o * inner + i;
    const u64 first = part * chunk, last = first + chunk < size ? first + chunk : size;

    A acc[V];
#pragma unroll
    for (int k = 0; k < V; ++k) acc[k] = Op::identity();
    if (!TOTALS) {
#pragma unroll 4
        for (u32 s = 0; s < part; ++s) {
#pragma unroll
            for (int k = 0; k < V; ++k) acc[k] = Op::combine(acc[k], totals[s * kept + q + k]);
        }
    }
    for (u64 c = first; c < last; c += UNROLL) {
        Pack<T, V> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) pack[u].load(x + start + (c + u < last ? c + u : c) * inner);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (c + u < last) {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    acc[k] = Op::combine(acc[k], (A)load_value(pack[u].v[k]));
                    pack[u].v[k] = cast<T>(acc[k]);
                }
                if (!TOTALS) pack[u].store(y + start + (c + u) * inner);
            }
        }
    }
    if (TOTALS) {
#pragma unroll
        for (int k = 0; k < V; ++k) totals[part * kept + q + k] = acc[k];
    }
}
#endif
