// out[o, i] = finish(combine_r map(x[o, r, i])): sums, products, means, extrema, any and all over one dimension.
//
// generated  the host prepends: T input, OUT_T output and IDX_T index element types (IDX_T = OUT_T without indices);
//            OP one of the structs below; INDEX u32 or u64, a position along r; one CASE_; PARTIAL 0 or 1; and per case
//            rows LANES, row -, columns V and X, partials X
// shapes     x: kept loops o and i of any strides around R elements of stride 1 (rows, row), or R of any stride with i of
//            stride 1 (columns); out and idx row-major over the kept dimensions. R may be 0 where OP has a neutral value
// dtypes     16-bit floats accumulate in f32, f64 in f64, integers in 64 bits (wrapping, the low bits are the result)
// requires   columns: sizes, strides and address multiples of V elements. rows, row: none
// launch     rows: 256 / LANES rows a block.  row: (rows, chunks) linear in x, 256 threads on a chunk of a row.
//            columns: (column blocks, chunks) linear in x, X pack columns times 256 / X rows of threads.
//            With PARTIAL a chunk's value goes to `partials` [chunks, kept] and case partials combines them: no atomics,
//            so results repeat bit for bit
// bound      memory: x once; partials stay in L2

#define THREADS 256

// --- operations ------------------------------------------------------------------------------------------------------
// A: what is accumulated. `step` takes the next element of a thread, in increasing order of index; `combine` joins any two.

template <typename T_>
struct Values {  // an operation whose result is one value
    template <typename A>
    static DEV OUT_T value(A a, u64) { return cast<OUT_T>(a); }
    template <typename A>
    static DEV IDX_T index(A) { return IDX_T(); }
};

template <typename T_>
struct Sum : Values<T_> {
    typedef Acc<T_> A;
    static DEV A identity() { return 0; }
    static DEV A step(A a, Compute<T_> x, INDEX) { return wrapping_add(a, (A)x); }
    static DEV A combine(A a, A b) { return wrapping_add(a, b); }
};

template <typename T_>
DEV float quotient(float sum, u64 n) { return sum / (float)n; }
template <typename T_>
DEV double quotient(double sum, u64 n) { return sum / (double)n; }
// The mean of integers is that of their 64-bit sum, rounded toward zero.
template <typename T_>
DEV i64 quotient(i64 sum, u64 n) { return (T_)-1 < (T_)0 ? sum / (i64)n : (i64)((u64)sum / n); }
template <typename T_>
struct Mean : Sum<T_> {
    template <typename A>
    static DEV OUT_T value(A a, u64 n) { return cast<OUT_T>(quotient<T_>(a, n)); }
};

// Products of floats are kept in f64: those of many numbers near 1, multiplied pairwise in f32, lose each product of two
// small differences, and always in the same direction.
template <bool FLOAT>
struct ProductAcc {
    typedef i64 type;
};
template <>
struct ProductAcc<true> {
    typedef double type;
};
template <typename T_>
struct Prod : Values<T_> {
    typedef typename ProductAcc<IsFloat<Compute<T_>>::value>::type A;
    static DEV A identity() { return 1; }
    static DEV A step(A a, Compute<T_> x, INDEX) { return wrapping_mul(a, (A)x); }
    static DEV A combine(A a, A b) { return wrapping_mul(a, b); }
};

template <typename T_>
struct Max : Values<T_> {
    typedef Compute<T_> A;
    static DEV A identity() { return Limits<A>::lowest(); }
    static DEV A step(A a, A x, INDEX) { return max_of(a, x); }
    static DEV A combine(A a, A b) { return max_of(a, b); }
};
template <typename T_>
struct Min : Values<T_> {
    typedef Compute<T_> A;
    static DEV A identity() { return Limits<A>::highest(); }
    static DEV A step(A a, A x, INDEX) { return min_of(a, x); }
    static DEV A combine(A a, A b) { return min_of(a, b); }
};

DEV float magnitude(float x) { return fabsf(x); }
DEV double magnitude(double x) { return fabs(x); }
template <typename A>
DEV A magnitude(A x) { return x < (A)0 ? (A)(0 - (u64)x) : x; }  // the most negative value stays what it is
template <typename T_>
struct MaxAbs : Max<T_> {
    typedef Compute<T_> A;
    static DEV A step(A a, A x, INDEX) { return max_of(a, magnitude(x)); }
};

template <typename T_>
struct Any : Values<T_> {
    typedef u32 A;
    static DEV A identity() { return 0; }
    static DEV A step(A a, Compute<T_> x, INDEX) { return a | (u32)(x != (Compute<T_>)0); }
    static DEV A combine(A a, A b) { return a | b; }
};
template <typename T_>
struct All : Values<T_> {
    typedef u32 A;
    static DEV A identity() { return 1; }
    static DEV A step(A a, Compute<T_> x, INDEX) { return a & (u32)(x != (Compute<T_>)0); }
    static DEV A combine(A a, A b) { return a & b; }
};

// A value and where it stands. NOWHERE goes with the neutral value only, and an element that equals the neutral value
// leaves it so: when it survives, all elements are equal and the answer is 0.
#define NOWHERE ((INDEX)-1)
template <typename C>
struct At {
    C value;
    INDEX index;
};
template <typename C>
DEV At<C> shuffle_xor(At<C> a, int lanes) {
    At<C> b;
    b.value = shuffle_xor(a.value, lanes);
    b.index = shuffle_xor(a.index, lanes);
    return b;
}
template <typename C>
DEV bool above(C a, C b) { return a > b || (is_nan(a) && !is_nan(b)); }
template <typename C>
DEV bool below(C a, C b) { return a < b || (is_nan(a) && !is_nan(b)); }

#define KILN_EXTREMUM_AT(NAME, BETTER, IDENTITY)                                                        \
    template <typename T_>                                                                              \
    struct NAME {                                                                                       \
        typedef Compute<T_> C;                                                                          \
        typedef At<C> A;                                                                                \
        static DEV A identity() {                                                                       \
            A a;                                                                                        \
            a.value = Limits<C>::IDENTITY();                                                            \
            a.index = NOWHERE;                                                                          \
            return a;                                                                                   \
        }                                                                                               \
        static DEV A step(A a, C x, INDEX i) {                                                          \
            const bool better = BETTER(x, a.value);                                                     \
            a.value = better ? x : a.value;                                                             \
            a.index = better ? i : a.index;                                                             \
            return a;                                                                                   \
        }                                                                                               \
        static DEV A combine(A a, A b) {                                                                \
            const bool better = BETTER(b.value, a.value);                                               \
            const bool worse = BETTER(a.value, b.value);                                                \
            return better || (!worse && b.index < a.index) ? b : a;                                     \
        }                                                                                               \
        static DEV OUT_T value(A a, u64) { return cast<OUT_T>(a.value); }                               \
        static DEV IDX_T index(A a) { return cast<IDX_T>((i64)(a.index == NOWHERE ? 0 : a.index)); }    \
    };
KILN_EXTREMUM_AT(MaxAt, above, lowest)
KILN_EXTREMUM_AT(MinAt, below, highest)

typedef OP<T> Op;
typedef Op::A A;

struct Combine {
    DEV A operator()(A a, A b) const { return Op::combine(a, b); }
};

struct Target {
    OUT_T* out;        // values, or null
    IDX_T* idx;        // indices, or null
    A* partials;       // [chunks, kept] with PARTIAL
};

DEV void finish(Target to, u64 at, A a, u64 count) {
    if (to.out) to.out[at] = Op::value(a, count);
    if (to.idx) to.idx[at] = Op::index(a);
}

// --- rows: R elements of stride 1 ------------------------------------------------------------------------------------

#if defined(CASE_ROWS) || defined(CASE_ROW)
// Row r starts at (r / inner) * outer_stride + (r % inner) * inner_stride.
struct Rows {
    u64 rows, inner;
    i64 outer_stride, inner_stride;
};
DEV i64 row_offset(const Rows& g, u64 row) {
    if (g.inner == g.rows) return (i64)row * g.inner_stride;
    const u64 outer = row / g.inner;
    return (i64)outer * g.outer_stride + (i64)(row - outer * g.inner) * g.inner_stride;
}

// `threads` threads, this one being t, over n elements at p whose indices start at `first`. Elements before the first
// and after the last 16-byte boundary are taken one by one, the rest in packs, UNROLL of them in flight.
template <int GROUP>
DEV A reduce_span(const T* p, u64 n, INDEX first, u32 t) {
    const int PACK = 16 / (int)sizeof(T), UNROLL = 4;
    A acc[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) acc[u] = Op::identity();
    const u64 past = (u64)p % 16 / sizeof(T);
    u64 head = past ? PACK - past : 0;
    head = head < n ? head : n;
    for (u64 i = t; i < head; i += GROUP) acc[0] = Op::step(acc[0], load_value(p[i]), first + (INDEX)i);

    const T* body = p + head;
    const INDEX body_first = first + (INDEX)head;
    const u64 packs = (n - head) / PACK;
    u64 j = t;
    for (; j + (UNROLL - 1) * GROUP < packs; j += UNROLL * GROUP) {
        Pack<T, PACK> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) pack[u].load(body + (j + u * GROUP) * PACK);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int k = 0; k < PACK; ++k)
                acc[u] = Op::step(acc[u], load_value(pack[u].v[k]), body_first + (INDEX)((j + u * GROUP) * PACK + k));
        }
    }
    if (j < packs) {  // up to UNROLL - 1 more packs; the loads go out together, those past the end to pack j
        Pack<T, PACK> pack[UNROLL - 1];
#pragma unroll
        for (int u = 0; u < UNROLL - 1; ++u) pack[u].load(body + (j + u * GROUP < packs ? j + u * GROUP : j) * PACK);
#pragma unroll
        for (int u = 0; u < UNROLL - 1; ++u) {
            if (j + u * GROUP < packs) {
#pragma unroll
                for (int k = 0; k < PACK; ++k)
                    acc[u] = Op::step(acc[u], load_value(pack[u].v[k]), body_first + (INDEX)((j + u * GROUP) * PACK + k));
            }
        }
    }
    for (u64 i = head + packs * PACK + t; i < n; i += GROUP)
        acc[0] = Op::step(acc[0], load_value(p[i]), first + (INDEX)i);
#pragma unroll
    for (int u = 1; u < UNROLL; ++u) acc[0] = Op::combine(acc[0], acc[u]);
    return acc[0];
}
#endif

#ifdef CASE_ROWS
// LANES lanes a row.
extern "C" __global__ void __launch_bounds__(THREADS) reduce_rows(Target to, const T* x, Rows g, u64 size, u64 count) {
    const u64 row = (u64)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const bool live = row < g.rows;  // the others take part in the shuffles
    A a = Op::identity();
    if (live) a = reduce_span<LANES>(x + row_offset(g, row), size, 0, threadIdx.x % LANES);
    a = lanes_reduce<LANES>(a, Combine());
    if (live && threadIdx.x % LANES == 0) finish(to, row, a, count);
}
#endif

#ifdef CASE_ROW
// One block a chunk of a row.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_row(Target to, const T* x, Rows g, u64 size, u64 chunk, u64 count) {
    __shared__ A shared[32];
    const u64 part = PARTIAL ? blockIdx.x / g.rows : 0, row = blockIdx.x - part * g.rows;
    const u64 first = part * chunk, left = size - first;
    A a = reduce_span<THREADS>(x + row_offset(g, row) + first, left < chunk ? left : chunk, (INDEX)first, threadIdx.x);
    a = block_reduce(a, Op::identity(), shared, Combine());
    if (threadIdx.x == 0) {
        if (PARTIAL) to.partials[part * g.rows + row] = a;
        else finish(to, row, a, count);
    }
}
#endif

// --- columns: neighbouring threads on neighbouring columns -----------------------------------------------------------

#if defined(CASE_COLUMNS) || defined(CASE_PARTIALS)
// Kept element q = o * inner + i goes to out[o * out_outer + i * out_inner].
struct Columns {
    u64 outer, inner;
    i64 outer_stride, reduce_stride;
    u64 out_outer, out_inner;
};
#define Y (THREADS / X)
#endif

#ifdef CASE_COLUMNS
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_columns(Target to, const T* x, Columns g, u64 size, u64 chunk, u32 column_blocks, u64 count) {
    __shared__ A shared[(Y > 1 ? Y / 2 : 1) * X * V];
    const int UNROLL = V * sizeof(T) >= 16 ? 4 : 8;  // bytes in flight, not packs, keep the memory busy
    const u32 part = blockIdx.x / column_blocks;
    const u64 packs = g.inner / V;
    const u64 column = (u64)(blockIdx.x - part * column_blocks) * X + threadIdx.x % X;
    const bool live = column < g.outer * packs;
    const u64 o = g.outer == 1 ? 0 : column / packs, i = (column - o * packs) * V;

    A acc[V];
#pragma unroll
    for (int k = 0; k < V; ++k) acc[k] = Op::identity();
    if (live) {
        const u64 first = part * chunk, end = first + chunk < size ? first + chunk : size;
        const T* p = x + (i64)o * g.outer_stride + (i64)i;
        u64 r = first + threadIdx.x / X;
        for (; r + (UNROLL - 1) * Y < end; r += UNROLL * Y) {
            Pack<T, V> pack[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) pack[u].load(p + (i64)(r + u * Y) * g.reduce_stride);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (int k = 0; k < V; ++k) acc[k] = Op::step(acc[k], load_value(pack[u].v[k]), (INDEX)(r + u * Y));
            }
        }
        if (r < end) {  // the last rows: loads past the end go to row r
            Pack<T, V> pack[UNROLL - 1];
#pragma unroll
            for (int u = 0; u < UNROLL - 1; ++u)
                pack[u].load(p + (i64)(r + u * Y < end ? r + u * Y : r) * g.reduce_stride);
#pragma unroll
            for (int u = 0; u < UNROLL - 1; ++u) {
                if (r + u * Y < end) {
#pragma unroll
                    for (int k = 0; k < V; ++k) acc[k] = Op::step(acc[k], load_value(pack[u].v[k]), (INDEX)(r + u * Y));
                }
            }
        }
    }
    rows_reduce<Y, X>(acc, shared, Combine());
    if (!live || threadIdx.x >= X) return;
    if (PARTIAL) {
        Pack<A, V> pack;
#pragma unroll
        for (int k = 0; k < V; ++k) pack.v[k] = acc[k];
        pack.store(to.partials + part * (g.outer * g.inner) + o * g.inner + i);
    } else if (g.out_inner == 1 && g.out_outer % V == 0) {
        const u64 at = o * g.out_outer + i;
        if (to.out) {
            Pack<OUT_T, V> pack;
#pragma unroll
            for (int k = 0; k < V; ++k) pack.v[k] = Op::value(acc[k], count);
            pack.store(to.out + at);
        }
        if (to.idx) {
            Pack<IDX_T, V> pack;
#pragma unroll
            for (int k = 0; k < V; ++k) pack.v[k] = Op::index(acc[k]);
            pack.store(to.idx + at);
        }
    } else {
#pragma unroll
        for (int k = 0; k < V; ++k) finish(to, o * g.out_outer + (i + k) * g.out_inner, acc[k], count);
    }
}
#endif

#ifdef CASE_PARTIALS
// partials: [chunks, outer * inner].
extern "C" __global__ void __launch_bounds__(THREADS) reduce_partials(Target to, Columns g, u64 chunks, u64 count) {
    __shared__ A shared[(Y > 1 ? Y / 2 : 1) * X];
    const u64 kept = g.outer * g.inner, q = (u64)blockIdx.x * X + threadIdx.x % X;
    A acc[1] = {Op::identity()};
    if (q < kept) {
#pragma unroll 8
        for (u64 s = threadIdx.x / X; s < chunks; s += Y) acc[0] = Op::combine(acc[0], to.partials[s * kept + q]);
    }
    rows_reduce<Y, X>(acc, shared, Combine());
    if (q < kept && threadIdx.x < X) {
        const u64 o = g.outer == 1 ? 0 : q / g.inner, i = q - o * g.inner;
        finish(to, o * g.out_outer + i * g.out_inner, acc[0], count);
    }
}
#endif
