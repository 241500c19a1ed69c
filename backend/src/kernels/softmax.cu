// y[c] = exp(s * x[c] - m) / sum_c exp(s * x[c] - m),  m = max_c s * x[c]      (softmax; s = -1 for softmin)
// y[c] = (s * x[c] - m) - log(sum_c exp(s * x[c] - m))                           (log_softmax, with LOG)
// dx[c] = y[c] * (dy[c] - sum_c dy[c] * y[c]);  with LOG: dx[c] = dy[c] - exp(y[c]) * sum_c dy[c]           (backward)
//
// generated  the host prepends: T element type; V elements per pack; LOG and NEGATE 0 or 1; BLOCK threads; one CASE_; and
//            per case: registers, backward: GROUP threads a row and N packs a thread; columns: X
// shapes     x, y: [R, C] row-major (columns: [outer, C, inner])
// dtypes     T = f64 | f32 | f16 | bf16; computed in f32, or f64 for f64, and rounded once
// requires   registers, backward: C % V == 0, pointers multiples of min(16, V * sizeof(T)) bytes, C <= GROUP * N * V,
//            GROUP a power of two, GROUP <= 32 or GROUP == BLOCK
//            columns: inner % V == 0, pointers as before.  online: C >= V, x and y equal modulo V * sizeof(T)
//            y may be x
// launch     registers, backward: BLOCK / GROUP rows a block.  online: one row a block.  columns: X packs a block
// bound      memory: 2*R*C*sizeof(T) bytes (backward 3*R*C); online and columns read x again, from L2 when it is there
//
// A row that is all -inf, or has a NaN or a +inf, is all NaN, as the composite of max, sub, exp, sum and div gives.

typedef Compute<T> S;

DEV float logarithm(float x) { return logf(x); }
DEV double logarithm(double x) { return log(x); }

DEV S load_signed(T x) {
    const S v = load_value(x);
    return NEGATE ? -v : v;
}

struct Plus {
    DEV S operator()(S a, S b) const { return a + b; }
};

#ifdef CASE_REGISTERS
extern "C" __global__ void __launch_bounds__(BLOCK) softmax(T* y, const T* x, u64 rows, u32 size) {
    __shared__ S shared_max[32], shared_sum[32];
    const u64 row = (u64)blockIdx.x * (BLOCK / GROUP) + threadIdx.x / GROUP;
    const u32 t = threadIdx.x % GROUP;
    const bool live = row < rows;  // the others take part in the shuffles
    const T* from = x + (live ? row : 0) * size;
    Pack<T, V> pack[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const u32 c = (n * GROUP + t) * V;
        if (live && c < size) pack[n].load(from + c);  // y may be x: another row must not be read
    }
    S v[N * V];
    S m = Limits<S>::lowest();
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const bool in = (n * GROUP + t) * V < size;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            v[n * V + k] = in ? load_signed(pack[n].v[k]) : Limits<S>::lowest();
            m = greater(m, v[n * V + k]);
        }
    }
    m = group_reduce<GROUP>(m, Limits<S>::lowest(), shared_max, Greater());
    S sum = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const bool in = (n * GROUP + t) * V < size;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            S& e = v[n * V + k];
            e -= m;
            const S p = exponential<T>(e);
            if (in) sum += p;
            if (!LOG) e = p;
        }
    }
    sum = group_reduce<GROUP>(sum, (S)0, shared_sum, Plus());
    const S factor = LOG ? logarithm(sum) : (S)1 / sum;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const u32 c = (n * GROUP + t) * V;
        Pack<T, V> out;
#pragma unroll
        for (int k = 0; k < V; ++k) out.v[k] = cast<T>(LOG ? v[n * V + k] - factor : v[n * V + k] * factor);
        if (live && c < size) out.store(y + row * size + c);
    }
}
#endif

#if defined(CASE_ONLINE) || defined(CASE_COLUMNS)
// The maximum so far, and the sum of exp(v - max) (Milakov and Gimelshein, arXiv:1805.02867).
struct MaxSum {
    S max, sum;
};
// A maximum of -inf has no elements, or -inf ones only, under it: they add nothing.
DEV S scale_to(S max, S new_max) { return max == new_max ? (S)1 : exponential<T>(max - new_max); }
DEV MaxSum joined(MaxSum a, MaxSum b) {
    MaxSum c;
    c.max = greater(a.max, b.max);
    c.sum = a.sum * scale_to(a.max, c.max) + b.sum * scale_to(b.max, c.max);
    return c;
}
DEV MaxSum none() {
    MaxSum a;
    a.max = Limits<S>::lowest();
    a.sum = 0;
    return a;
}
DEV MaxSum shuffle_xor(MaxSum a, int lanes) {
    MaxSum b;
    b.max = shuffle_xor(a.max, lanes);
    b.sum = shuffle_xor(a.sum, lanes);
    return b;
}
struct Join {
    DEV MaxSum operator()(MaxSum a, MaxSum b) const { return joined(a, b); }
};
// a with the N elements of v.
template <int N_>
DEV MaxSum with(MaxSum a, const S (&v)[N_]) {
    S m = a.max;
#pragma unroll
    for (int k = 0; k < N_; ++k) m = greater(m, v[k]);
    a.sum *= scale_to(a.max, m);
    const S base = m == Limits<S>::lowest() ? (S)0 : m;  // -inf - -inf would be NaN
#pragma unroll
    for (int k = 0; k < N_; ++k) a.sum += exponential<T>(v[k] - base);
    a.max = m;
    return a;
}
DEV T result(T x, MaxSum a, S factor) {
    const S e = load_signed(x) - a.max;
    return cast<T>(LOG ? e - factor : exponential<T>(e) * factor);
}
#endif

#ifdef CASE_ONLINE
// Elements before the first and after the last 16-byte boundary are taken one by one, so rows of any length go in packs.
#define UNROLL (V >= 4 ? 4 : 16 / V)
DEV MaxSum with_one(MaxSum a, T x) {
    const S v[1] = {load_signed(x)};
    return with(a, v);
}
extern "C" __global__ void __launch_bounds__(BLOCK) softmax(T* y, const T* x, u64 size) {
    __shared__ MaxSum shared[32];
    const T* from = x + blockIdx.x * size;
    T* to = y + blockIdx.x * size;
    const u32 past = V > 1 ? (u64)from % (V * sizeof(T)) / sizeof(T) : 0;
    const u32 head = past ? V - past : 0;
    const u64 packs = (size - head) / V, tail = head + packs * V;
    const T* body = from + head;
    T* to_body = to + head;

    MaxSum a = none();
    if (threadIdx.x < head) a = with_one(a, from[threadIdx.x]);
    u64 j = threadIdx.x;
    for (; j + (UNROLL - 1) * BLOCK < packs; j += UNROLL * BLOCK) {
        Pack<T, V> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) pack[u].load(body + (j + u * BLOCK) * V);
        S v[UNROLL * V];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int k = 0; k < V; ++k) v[u * V + k] = load_signed(pack[u].v[k]);
        }
        a = with(a, v);
    }
    for (; j < packs; j += BLOCK) {
        Pack<T, V> pack;
        pack.load(body + j * V);
        S v[V];
#pragma unroll
        for (int k = 0; k < V; ++k) v[k] = load_signed(pack.v[k]);
        a = with(a, v);
    }
    for (u64 c = tail + threadIdx.x; c < size; c += BLOCK) a = with_one(a, from[c]);

    a = block_reduce(a, none(), shared, Join());
    const S factor = LOG ? logarithm(a.sum) : (S)1 / a.sum;
    if (threadIdx.x < head) to[threadIdx.x] = result(from[threadIdx.x], a, factor);
    for (j = threadIdx.x; j + (UNROLL - 1) * BLOCK < packs; j += UNROLL * BLOCK) {
        Pack<T, V> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) pack[u].load(body + (j + u * BLOCK) * V);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int k = 0; k < V; ++k) pack[u].v[k] = result(pack[u].v[k], a, factor);
            pack[u].store(to_body + (j + u * BLOCK) * V);
        }
    }
    for (; j < packs; j += BLOCK) {
        Pack<T, V> pack;
        pack.load(body + j * V);
#pragma unroll
        for (int k = 0; k < V; ++k) pack.v[k] = result(pack.v[k], a, factor);
        pack.store(to_body + j * V);
    }
    for (u64 c = tail + threadIdx.x; c < size; c += BLOCK) to[c] = result(from[c], a, factor);
}
#endif

#ifdef CASE_COLUMNS
// X threads along packs of columns, Y along the reduced elements, UNROLL of them in flight.
// The second bound leaves f64 the registers it needs.
#define UNROLL 4
#define Y (BLOCK / X)
extern "C" __global__ void __launch_bounds__(BLOCK, sizeof(T) == 8 ? 2 : 4)
    softmax(T* y, const T* x, u64 outer, u64 size, u64 inner) {
    __shared__ MaxSum shared[(Y > 1 ? Y / 2 : 1) * X * V];
    const u64 packs = inner / V;
    const u64 column = (u64)blockIdx.x * X + threadIdx.x % X;
    const bool live = column < outer * packs;
    const u64 o = column / packs, start = o * size * inner + (column - o * packs) * V;
    const u64 first = threadIdx.x / X;

    MaxSum a[V];
#pragma unroll
    for (int k = 0; k < V; ++k) a[k] = none();
    for (u64 c = live ? first : size; c < size; c += UNROLL * Y) {
        Pack<T, V> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) pack[u].load(x + start + (c + u * Y < size ? c + u * Y : c) * inner);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            S v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = c + u * Y < size ? load_signed(pack[u].v[k]) : Limits<S>::lowest();
            a[k] = with(a[k], v);
        }
    }
    rows_reduce<Y, X>(a, shared, Join());
    if (Y > 1) {  // back to all rows of threads, through the start of `shared`
        __syncthreads();
#pragma unroll
        for (int k = 0; k < V; ++k)
            if (first == 0) shared[k * X + threadIdx.x % X] = a[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < V; ++k) a[k] = shared[k * X + threadIdx.x % X];
    }
    S factor[V];
#pragma unroll
    for (int k = 0; k < V; ++k) factor[k] = LOG ? logarithm(a[k].sum) : (S)1 / a[k].sum;
    for (u64 c = live ? first : size; c < size; c += UNROLL * Y) {
        Pack<T, V> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) pack[u].load(x + start + (c + u * Y < size ? c + u * Y : c) * inner);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int k = 0; k < V; ++k) pack[u].v[k] = result(pack[u].v[k], a[k], factor[k]);
            if (c + u * Y < size) pack[u].store(y + start + (c + u * Y) * inner);
        }
    }
}
#endif

#ifdef CASE_BACKWARD
extern "C" __global__ void __launch_bounds__(BLOCK)
    softmax_backward(T* dx, const T* y, const T* dy, u64 rows, u32 size) {
    __shared__ S shared[32];
    const u64 row = (u64)blockIdx.x * (BLOCK / GROUP) + threadIdx.x / GROUP;
    const u32 t = threadIdx.x % GROUP;
    const bool live = row < rows;
    const u64 start = (live ? row : 0) * size;
    Pack<T, V> py[N], pdy[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const u32 c = (n * GROUP + t) * V;
        if (live && c < size) {
            py[n].load(y + start + c);
            pdy[n].load(dy + start + c);
        }
    }
    S sum = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        if ((n * GROUP + t) * V < size) {
#pragma unroll
            for (int k = 0; k < V; ++k) sum += load_value(pdy[n].v[k]) * (LOG ? (S)1 : load_value(py[n].v[k]));
        }
    }
    sum = group_reduce<GROUP>(sum, (S)0, shared, Plus());
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const u32 c = (n * GROUP + t) * V;
        if (live && c < size) {
            Pack<T, V> out;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const S p = load_value(py[n].v[k]), g = load_value(pdy[n].v[k]);
                out.v[k] = cast<T>(LOG ? g - exponential<T>(p) * sum : p * (g - sum));
            }
            out.store(dx + start + c);
        }
    }
}
#endif
