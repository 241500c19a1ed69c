// out[i] = EXPR(a[i], b[i], c[i], s0, s1): every elementwise operation, one instance per (expression, dtypes, case).
//
// generated  the host prepends: N_IN (0..3); A_T, B_T, C_T, OUT_T element types; S_T the scalars' compute type;
//            V elements per pack; and EXPR, an expression in a, b, c (compute types), s0, s1 and i (flat index, u64)
// shapes     any; the host has merged dimensions that all operands walk as one (at most 8 are left)
// requires   contiguous: each operand has stride 1, or stride 0 (bit k of `broadcast` set); 16-byte aligned unless V == 1
//            rows: inner strides 0 or 1, inner size a multiple of V, every outer stride of a unit-stride operand too
//            out may be an input if both have the same layout: an element is read before it is written, by one thread
// launch     contiguous: blocks of 256 threads, UNROLL packs a thread; the others: one pack (element) a thread, grid-stride
// bound      memory: each operand's bytes once

#define THREADS 256
#define UNROLL 2
#define MAX_DIMS 8

struct Pointers {
    OUT_T* out;
    const A_T* a;
    const B_T* b;
    const C_T* c;
};
struct Scalars {
    ScalarArg s0, s1;
};

DEV OUT_T evaluate(Compute<A_T> a, Compute<B_T> b, Compute<C_T> c, S_T s0, S_T s1, u64 i) {
    return cast<OUT_T>(EXPR);
}

// Loads V elements at p, or one that stands for all of them.
template <typename T>
DEV void load_pack(Pack<T, V>& pack, const T* p, bool one) {
    if (one) {
        const T x = *p;
#pragma unroll
        for (int k = 0; k < V; ++k) pack.v[k] = x;
    } else {
        pack.load(p);
    }
}

DEV void evaluate_pack(Pack<OUT_T, V>& out, const Pack<A_T, V>& a, const Pack<B_T, V>& b, const Pack<C_T, V>& c, S_T s0, S_T s1,
                       u64 i) {
#pragma unroll
    for (int k = 0; k < V; ++k)
        out.v[k] = evaluate(N_IN > 0 ? load_value(a.v[k]) : Compute<A_T>(), N_IN > 1 ? load_value(b.v[k]) : Compute<B_T>(),
                            N_IN > 2 ? load_value(c.v[k]) : Compute<C_T>(), s0, s1, i + k);
}

#ifdef CASE_CONTIGUOUS
extern "C" __global__ void __launch_bounds__(THREADS) elementwise(Pointers p, Scalars s, u64 n, u32 broadcast) {
    const S_T s0 = scalar<S_T>(s.s0), s1 = scalar<S_T>(s.s1);
    const bool one_a = broadcast & 1, one_b = broadcast & 2, one_c = broadcast & 4;
    const u64 block = (u64)blockIdx.x * (THREADS * UNROLL * V);
    if (block + THREADS * UNROLL * V <= n) {
        Pack<A_T, V> a[UNROLL];
        Pack<B_T, V> b[UNROLL];
        Pack<C_T, V> c[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const u64 i = block + (u64)(u * THREADS + threadIdx.x) * V;
            if (N_IN > 0) load_pack(a[u], p.a + (one_a ? 0 : i), one_a);
            if (N_IN > 1) load_pack(b[u], p.b + (one_b ? 0 : i), one_b);
            if (N_IN > 2) load_pack(c[u], p.c + (one_c ? 0 : i), one_c);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const u64 i = block + (u64)(u * THREADS + threadIdx.x) * V;
            Pack<OUT_T, V> out;
            evaluate_pack(out, a[u], b[u], c[u], s0, s1, i);
            out.store(p.out + i);
        }
    } else {
        for (u64 i = block + threadIdx.x; i < n; i += THREADS)
            p.out[i] = evaluate(N_IN > 0 ? load_value(p.a[one_a ? 0 : i]) : Compute<A_T>(),
                                N_IN > 1 ? load_value(p.b[one_b ? 0 : i]) : Compute<B_T>(),
                                N_IN > 2 ? load_value(p.c[one_c ? 0 : i]) : Compute<C_T>(), s0, s1, i);
    }
}
#endif

// A loop nest of up to 8 loops, innermost first; stride[d][0] is the output's, then the inputs'.
struct Nest {
    u32 dims;
    FastDiv size32[MAX_DIMS];
    u64 size[MAX_DIMS];
    i64 stride[MAX_DIMS][4];
};

// Offsets of the element with flat index i. Index is u32 (with i32 offsets) when everything stays below 2^31.
template <typename Index>
struct Offsets;
template <>
struct Offsets<u32> {
    i32 at[4];
    DEV Offsets(const Nest& nest, u32 i) : at{0, 0, 0, 0} {
#pragma unroll
        for (int d = 0; d < MAX_DIMS; ++d) {
            if (d == nest.dims) break;
            const u32 next = nest.size32[d].div(i);
            const i32 x = i - next * nest.size32[d].divisor;
#pragma unroll
            for (int k = 0; k <= N_IN; ++k) at[k] += x * (i32)nest.stride[d][k];
            i = next;
        }
    }
};
template <>
struct Offsets<u64> {
    i64 at[4];
    DEV Offsets(const Nest& nest, u64 i) : at{0, 0, 0, 0} {
        for (u32 d = 0; d < nest.dims; ++d) {
            const u64 next = i / nest.size[d];
            const i64 x = i - next * nest.size[d];
#pragma unroll
            for (int k = 0; k <= N_IN; ++k) at[k] += x * nest.stride[d][k];
            i = next;
        }
    }
};

#ifdef CASE_ROWS
// The innermost loop counts packs: its size and strides are given in packs by the host, except that `broadcast` operands
// have inner stride 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    elementwise(Pointers p, Scalars s, u64 packs, u32 broadcast, const __grid_constant__ Nest nest) {
    const S_T s0 = scalar<S_T>(s.s0), s1 = scalar<S_T>(s.s1);
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < packs; j += (u64)gridDim.x * THREADS) {
        const Offsets<INDEX> o(nest, (INDEX)j);
        Pack<A_T, V> a;
        Pack<B_T, V> b;
        Pack<C_T, V> c;
        if (N_IN > 0) load_pack(a, p.a + o.at[1], broadcast & 1);
        if (N_IN > 1) load_pack(b, p.b + o.at[2], broadcast & 2);
        if (N_IN > 2) load_pack(c, p.c + o.at[3], broadcast & 4);
        Pack<OUT_T, V> out;
        evaluate_pack(out, a, b, c, s0, s1, j * V);
        out.store(p.out + o.at[0]);
    }
}
#endif

#ifdef CASE_STRIDED
extern "C" __global__ void __launch_bounds__(THREADS)
    elementwise(Pointers p, Scalars s, u64 n, u32, const __grid_constant__ Nest nest) {
    const S_T s0 = scalar<S_T>(s.s0), s1 = scalar<S_T>(s.s1);
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) {
        const Offsets<INDEX> o(nest, (INDEX)i);
        p.out[o.at[0]] = evaluate(N_IN > 0 ? load_value(p.a[o.at[1]]) : Compute<A_T>(),
                                  N_IN > 1 ? load_value(p.b[o.at[2]]) : Compute<B_T>(),
                                  N_IN > 2 ? load_value(p.c[o.at[3]]) : Compute<C_T>(), s0, s1, i);
    }
}
#endif
