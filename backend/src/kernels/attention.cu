// The two steps of attention around its matrix products x = q k^T and o = p v:
//     softmax   p[r, j] = exp(z[j] - m) / sum_j exp(z[j] - m),  m = max_j z[j],
//               z[j] = cap * tanh(x[r, j] * scale / cap) + bias[r, j]   (without a cap: x * scale + bias),
//               -inf where the mask is set, and where j > query + shift if attention is causal
//     repair    o[r, d] = the sum of p[r, j] * v[j, d] over the j with p[r, j] != 0, where o[r, d] is infinite or NaN: a key that
//               was removed shows through 0 * inf in a matrix product
// A row of -inf alone gives zeros. A NaN or a +inf among what is left gives a row of NaN, as in the composite.
//
// generated  the host prepends: T of bias, p, v and o; BLOCK threads; one of
//            CASE_REGISTERS  GROUP threads a row, N keys a thread
//            CASE_LOOP       a block a row: z replaces x on the way
//            CASE_REPAIR
// shapes     x: [B, H, R, K] row-major, for queries `first` .. `first` + R of each head; p: the same, may be x if of one type;
//            mask: bool, bias: T, any strides over [B, H, R, K], or null; o: [B, H, R, D], v: [B, H, K, D] of any strides
// dtypes     T = f64 | f32 | f16 | bf16; x and all between in Acc<T>
// requires   registers: K <= GROUP * N, GROUP = 32 or BLOCK
// launch     softmax: BLOCK / GROUP rows a block; repair: one thread an element of o, grid-stride
// bound      memory: x, mask and bias once, p once; keys that causality removes are not read. loop: x three times, from L2

typedef Acc<T> S;

struct Attention {
    u64 rows;  // B * H * R
    i64 heads, queries, keys, width, first, shift;
    i64 mask[4], bias[4], o[4], v[4];  // strides of b, h, and of query or key, then of key or d
    f64 scale, cap;                  // no cap: 0
    u32 causal;
};

DEV float hyperbolic(float x) { return tanhf(x); }
DEV double hyperbolic(double x) { return tanh(x); }

struct Plus {
    DEV S operator()(S a, S b) const { return a + b; }
};

// A row's place in [B, H, R].
struct At {
    i64 b, h, query;
};
DEV At place(const Attention& s, u64 row) {
    const u64 pair = row / s.queries, b = pair / s.heads;
    At at;
    at.b = (i64)b, at.h = (i64)(pair - b * s.heads), at.query = (i64)(row - pair * s.queries);
    return at;
}
DEV i64 offset(const i64 (&stride)[4], At at) { return at.b * stride[0] + at.h * stride[1] + at.query * stride[2]; }

// The first keys of a row, which causality leaves.
DEV i64 keys_of(const Attention& s, At at) {
    const i64 end = s.first + at.query + s.shift + 1;
    if (!s.causal || end > s.keys) return s.keys;
    return end > 0 ? end : 0;
}
DEV S capped(const Attention& s, S x) {
    x *= (S)s.scale;
    return s.cap > 0 ? (S)s.cap * hyperbolic(x / (S)s.cap) : x;
}

#ifdef CASE_REGISTERS
extern "C" __global__ void __launch_bounds__(BLOCK)
    attention_softmax(T* p, S* x, const b8* mask, const T* bias, const __grid_constant__ Attention s) {
    __shared__ S shared_max[32], shared_sum[32];
    const u64 row = (u64)blockIdx.x * (BLOCK / GROUP) + threadIdx.x / GROUP;
    const int t = threadIdx.x % GROUP, keys = (int)s.keys;
    const bool live = row < s.rows;  // the others take part in the shuffles
    const At at = place(s, live ? row : 0);
    const int end = live ? (int)keys_of(s, at) : 0;
    const S* from = x + row * s.keys;
    S z[N];
#pragma unroll
    for (int n = 0; n < N; ++n) z[n] = n * GROUP + t < end ? from[n * GROUP + t] : (S)0;
#pragma unroll
    for (int n = 0; n < N; ++n) z[n] = capped(s, z[n]);
    if (bias) {
        const T* add = bias + offset(s.bias, at);
#pragma unroll
        for (int n = 0; n < N; ++n)
            if (n * GROUP + t < end) z[n] += load_value(add[(n * GROUP + t) * s.bias[3]]);
    }
    if (mask) {
        const b8* masked = mask + offset(s.mask, at);
#pragma unroll
        for (int n = 0; n < N; ++n)
            if (n * GROUP + t < end && load_value(masked[(n * GROUP + t) * s.mask[3]])) z[n] = Limits<S>::lowest();
    }
    S m = Limits<S>::lowest();
#pragma unroll
    for (int n = 0; n < N; ++n) {
        if (n * GROUP + t >= end) z[n] = Limits<S>::lowest();
        m = greater(m, z[n]);
    }
    m = group_reduce<GROUP>(m, Limits<S>::lowest(), shared_max, Greater());
    const S base = m == Limits<S>::lowest() ? (S)0 : m;  // -inf - -inf would be NaN
    S sum = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        z[n] = exponential<T>(z[n] - base);
        sum += z[n];
    }
    sum = group_reduce<GROUP>(sum, (S)0, shared_sum, Plus());
    const S factor = sum == 0 ? (S)0 : (S)1 / sum;
    T* to = p + row * s.keys;
#pragma unroll
    for (int n = 0; n < N; ++n)
        if (live && n * GROUP + t < keys) to[n * GROUP + t] = cast<T>(z[n] * factor);
}
#endif

#ifdef CASE_LOOP
extern "C" __global__ void __launch_bounds__(BLOCK)
    attention_softmax(T* p, S* x, const b8* mask, const T* bias, const __grid_constant__ Attention s) {
    __shared__ S shared[32];
    const u64 row = blockIdx.x;
    const At at = place(s, row);
    const i64 end = keys_of(s, at);
    S* from = x + row * s.keys;
    const T* add = bias ? bias + offset(s.bias, at) : bias;
    const b8* masked = mask ? mask + offset(s.mask, at) : mask;
    S m = Limits<S>::lowest();
#pragma unroll 4
    for (i64 j = threadIdx.x; j < end; j += BLOCK) {
        S z = capped(s, from[j]);
        if (add) z += load_value(add[j * s.bias[3]]);
        if (masked && load_value(masked[j * s.mask[3]])) z = Limits<S>::lowest();
        from[j] = z;
        m = greater(m, z);
    }
    m = block_reduce(m, Limits<S>::lowest(), shared, Greater());
    const S base = m == Limits<S>::lowest() ? (S)0 : m;
    S sum = 0;
#pragma unroll 4
    for (i64 j = threadIdx.x; j < end; j += BLOCK) sum += exponential<T>(from[j] - base);
    sum = block_reduce(sum, (S)0, shared, Plus());
    const S factor = sum == 0 ? (S)0 : (S)1 / sum;
    T* to = p + row * s.keys;
#pragma unroll 4
    for (i64 j = threadIdx.x; j < s.keys; j += BLOCK)
        to[j] = cast<T>(j < end ? exponential<T>(from[j] - base) * factor : (S)0);
}
#endif

#ifdef CASE_REPAIR
// Stops where nothing changes any more.
extern "C" __global__ void __launch_bounds__(BLOCK)
    attention_repair(T* o, const T* p, const T* v, const __grid_constant__ Attention s) {
    const u64 n = s.rows * s.width;
    for (u64 i = (u64)blockIdx.x * BLOCK + threadIdx.x; i < n; i += (u64)gridDim.x * BLOCK) {
        const u64 row = i / s.width;
        const i64 d = (i64)(i - row * s.width);
        const At at = place(s, row);
        T* to = o + offset(s.o, at) + d * s.o[3];
        const S seen = load_value(*to);
        if (seen - seen == 0) continue;
        const T* from = v + at.b * s.v[0] + at.h * s.v[1] + d * s.v[3];
        const T* share = p + row * s.keys;
        S sum = 0;
        for (i64 j = 0; j < s.keys && sum == sum; ++j) {
            const S w = load_value(share[j]);
            if (w != 0) sum += w * load_value(from[j * s.v[2]]);
        }
        *to = cast<T>(sum);
    }
}
#endif
