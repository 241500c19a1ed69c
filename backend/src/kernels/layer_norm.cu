// y[r,c] = (x[r,c] - mean[r]) * rstd[r] * gamma[c] + beta[c]                          (arXiv:1607.06450)
// mean[r] = mean_c x[r,c],  rstd[r] = 1 / sqrt(mean_c (x[r,c] - mean[r])^2 + eps)
// Its gradients from dy (backward): with h = (x - mean) * rstd and g = dy * gamma,
// dx = (g - mean_c g - h * mean_c (g * h)) * rstd,  dgamma[c] = sum_r dy * h,  dbeta[c] = sum_r dy
//
// generated  the host prepends: T element type; V elements per pack; BLOCK threads; one CASE_; registers and backward: GROUP
//            threads a row and N packs a thread
// shapes     x, y, dy, dx: [R, C] row-major;  gamma, beta: [C], beta may be null;  partial: [gridDim * BLOCK / GROUP, 2, C] of
//            compute type, whose sums over the first dimension are dgamma and dbeta
// dtypes     T = f64 | f32 | f16 | bf16; computed in f32, or f64 for f64, and rounded once
// requires   C % V == 0, pointers multiples of min(16, V * sizeof(T)) bytes; y may be x, dx may be x or dy
//            registers and backward: C <= GROUP * N * V, GROUP a power of two, GROUP <= 32 or GROUP == BLOCK
// launch     registers: BLOCK / GROUP rows a block.  loop: one row a block.  backward: as many blocks as the device runs at
//            once, each with every gridDim-th set of BLOCK / GROUP rows
// bound      memory: 2*R*C*sizeof(T) bytes, backward 3*R*C*sizeof(T); the loop case reads x twice more, from L2
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
    layer_norm(T* y, const T* x, const T* gamma, const T* beta, u64 rows, u32 size, double eps) {
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
    layer_norm(T* y, const T* x, const T* gamma, const T* beta, u64, u32 size, double eps) {
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

#ifdef CASE_BACKWARD
struct Sums {
    S g, gh;
};
DEV Sums shuffle_xor(Sums a, int lanes) {
    Sums b;
    b.g = shuffle_xor(a.g, lanes);
    b.gh = shuffle_xor(a.gh, lanes);
    return b;
}
struct PlusBoth {
    DEV Sums operator()(Sums a, Sums b) const {
        a.g += b.g;
        a.gh += b.gh;
        return a;
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    layer_norm_backward(T* dx, S* partial, const T* dy, const T* x, const T* gamma, u64 rows, u32 size, double eps) {
    __shared__ S shared_sum[32], shared_squares[32];
    __shared__ Sums shared_sums[32];
    const u32 set = BLOCK / GROUP, own = threadIdx.x / GROUP, t = threadIdx.x % GROUP;
    const u64 step = (u64)gridDim.x * set;
    Pack<T, V> scale[N], px[N], pdy[N];
    S dgamma[N][V], dbeta[N][V];
    auto load = [&](u64 row) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const u32 c = (n * GROUP + t) * V;
            if (row < rows && c < size) {
                px[n].load(x + row * size + c);
                pdy[n].load(dy + row * size + c);
            }
        }
    };
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const u32 c = (n * GROUP + t) * V;
        if (c < size) scale[n].load(gamma + c);
#pragma unroll
        for (int k = 0; k < V; ++k) dgamma[n][k] = dbeta[n][k] = 0;
    }
    const u64 first = (u64)blockIdx.x * set;
    load(first + own);
    // All threads of a block go round as often: they meet in the reductions.
    for (u64 start = first; start < rows; start += step) {
        const u64 row = start + own;
        const bool live = row < rows;
        S h[N][V], d[N][V];
        S sum = 0;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const bool in = live && (n * GROUP + t) * V < size;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                h[n][k] = in ? load_value(px[n].v[k]) : (S)0;
                d[n][k] = in ? load_value(pdy[n].v[k]) : (S)0;
                sum += h[n][k];
            }
        }
        load(row + step);
        const S mean = group_reduce<GROUP>(sum, (S)0, shared_sum, Plus()) / (S)size;
        S squares = 0;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const bool in = live && (n * GROUP + t) * V < size;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                h[n][k] = in ? h[n][k] - mean : (S)0;
                squares += h[n][k] * h[n][k];
            }
        }
        const S rstd = inverse_root(group_reduce<GROUP>(squares, (S)0, shared_squares, Plus()) / (S)size + (S)eps);
        Sums sums;
        sums.g = sums.gh = 0;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const bool in = live && (n * GROUP + t) * V < size;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                h[n][k] *= rstd;
                // Rows past the end have rstd = 1 / sqrt(eps), which may be infinite.
                dgamma[n][k] += in ? d[n][k] * h[n][k] : (S)0;
                dbeta[n][k] += d[n][k];
                d[n][k] = in ? d[n][k] * load_value(scale[n].v[k]) : (S)0;
                sums.g += d[n][k];
                sums.gh += in ? d[n][k] * h[n][k] : (S)0;
            }
        }
        Sums none;
        none.g = none.gh = 0;
        sums = group_reduce<GROUP>(sums, none, shared_sums, PlusBoth());
        const S g = sums.g / (S)size, gh = sums.gh / (S)size;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const u32 c = (n * GROUP + t) * V;
            if (live && c < size) {
                Pack<T, V> out;
#pragma unroll
                for (int k = 0; k < V; ++k) out.v[k] = cast<T>((d[n][k] - g - h[n][k] * gh) * rstd);
                out.store(dx + row * size + c);
            }
        }
    }
    S* to = partial + (first + own) * 2 * size;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const u32 c = (n * GROUP + t) * V;
        if (c < size) {
            Pack<S, V> sums;
#pragma unroll
            for (int k = 0; k < V; ++k) sums.v[k] = dgamma[n][k];
            sums.store(to + c);
#pragma unroll
            for (int k = 0; k < V; ++k) sums.v[k] = dbeta[n][k];
            sums.store(to + size + c);
        }
    }
}
#endif
