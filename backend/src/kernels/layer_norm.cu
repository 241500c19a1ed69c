// y[r,c] = (x[r,c] - mean[r]) * rstd[r] * gamma[c] + beta[c]                          (arXiv:1607.06450)
// mean[r] = mean_c x[r,c],  rstd[r] = 1 / sqrt(mean_c (x[r,c] - mean[r])^2 + eps)
//
// generated  the host prepends: T element type; V elements per pack; BLOCK threads; one CASE_; registers: GROUP threads a
//            row and N packs a thread
// shapes     x, y: [R, C] row-major;  gamma, beta: [C], beta may be null;  mean, rstd: [R] of compute type, may be null
// dtypes     T = f64 | f32 | f16 | bf16; computed in f32, or f64 for f64, and rounded once
// requires   C % V == 0, pointers multiples of min(16, V * sizeof(T)) bytes; y may be x
//            registers: C <= GROUP * N * V, GROUP a power of two, GROUP <= 32 or GROUP == BLOCK
// launch     registers: BLOCK / GROUP rows a block.  loop: one row a block
// bound      memory: 2*R*C*sizeof(T) bytes; the loop case reads x twice more, from L2
//
// The variance is taken from the differences to the mean, in a second pass, so it holds when mean >> deviation.

typedef Compute<T> S;

DEV float inverse_root(float x) { return 1.f / sqrtf(x); }
DEV double inverse_root(double x) { return 1. / sqrt(x); }
struct Plus {
    DEV S operator()(S a, S b) const { return a + b; }
};

DEV void normalise(Pack<T, V>& out, const S (&centered)[V], S rstd, const T* gamma, const T* beta, u32 c) {
    Pack<T, V> scale, shift;
    scale.load(gamma + c);
    if (beta) shift.load(beta + c);
#pragma unroll
    for (int k = 0; k < V; ++k) {
        const S scaled = centered[k] * rstd * load_value(scale.v[k]);
        out.v[k] = cast<T>(beta ? scaled + load_value(shift.v[k]) : scaled);
    }
}

#ifdef CASE_REGISTERS
extern "C" __global__ void __launch_bounds__(BLOCK)
    layer_norm(T* y, S* mean_out, S* rstd_out, const T* x, const T* gamma, const T* beta, u64 rows, u32 size, double eps) {
    __shared__ S shared_sum[32], shared_squares[32];
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
    S v[N][V];
    S sum = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const bool in = (n * GROUP + t) * V < size;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            v[n][k] = in ? load_value(pack[n].v[k]) : (S)0;
            sum += v[n][k];
        }
    }
    const S mean = group_reduce<GROUP>(sum, (S)0, shared_sum, Plus()) / (S)size;
    S squares = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const bool in = (n * GROUP + t) * V < size;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            v[n][k] -= mean;
            if (in) squares += v[n][k] * v[n][k];
        }
    }
    const S variance = group_reduce<GROUP>(squares, (S)0, shared_squares, Plus()) / (S)size;
    const S rstd = inverse_root(variance + (S)eps);
    if (live && t == 0) {
        if (mean_out) mean_out[row] = mean;
        if (rstd_out) rstd_out[row] = rstd;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const u32 c = (n * GROUP + t) * V;
        if (live && c < size) {
            Pack<T, V> out;
            normalise(out, v[n], rstd, gamma, beta, c);
            out.store(y + row * size + c);
        }
    }
}
#endif

#ifdef CASE_LOOP
extern "C" __global__ void __launch_bounds__(BLOCK)
    layer_norm(T* y, S* mean_out, S* rstd_out, const T* x, const T* gamma, const T* beta, u64, u32 size, double eps) {
    __shared__ S shared_sum[32], shared_squares[32];
    const u64 start = (u64)blockIdx.x * size;
    const u32 packs = size / V;
    S sum = 0;
#pragma unroll 4
    for (u32 j = threadIdx.x; j < packs; j += BLOCK) {
        Pack<T, V> pack;
        pack.load(x + start + j * V);
#pragma unroll
        for (int k = 0; k < V; ++k) sum += load_value(pack.v[k]);
    }
    const S mean = block_reduce(sum, (S)0, shared_sum, Plus()) / (S)size;
    S squares = 0;
#pragma unroll 4
    for (u32 j = threadIdx.x; j < packs; j += BLOCK) {
        Pack<T, V> pack;
        pack.load(x + start + j * V);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const S d = load_value(pack.v[k]) - mean;
            squares += d * d;
        }
    }
    const S variance = block_reduce(squares, (S)0, shared_squares, Plus()) / (S)size;
    const S rstd = inverse_root(variance + (S)eps);
    if (threadIdx.x == 0) {
        if (mean_out) mean_out[blockIdx.x] = mean;
        if (rstd_out) rstd_out[blockIdx.x] = rstd;
    }
#pragma unroll 2
    for (u32 j = threadIdx.x; j < packs; j += BLOCK) {
        Pack<T, V> pack;
        pack.load(x + start + j * V);
        S centered[V];
#pragma unroll
        for (int k = 0; k < V; ++k) centered[k] = load_value(pack.v[k]) - mean;
        normalise(pack, centered, rstd, gamma, beta, j * V);
        pack.store(y + start + j * V);
    }
}
#endif
