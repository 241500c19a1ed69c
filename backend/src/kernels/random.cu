// y[i] = a number drawn from a distribution by Philox, as a function of (seed, offset, i) alone (common/philox.cuh).
//
// generated  the host prepends: T; one of CASE_UNIFORM (low = s0, high = s1), CASE_NORMAL (mean = s0, std = s1), CASE_BERNOULLI
//            (p = s0), CASE_BITS (integers only: any value of T)
// shapes     y: [n], contiguous
// dtypes     T = f32 | f16 | bf16 (arithmetic in f32), f64 and every integer type (in f64 or 64-bit integers)
// requires   y 16-byte aligned; low < high in T for CASE_UNIFORM; s0 and s1 hold f64 bits, but 64-bit integers for a uniform
//            integer T
// launch     one 16-byte pack of y a thread, blocks of 256 threads, grid-stride
// bound      memory: n * sizeof(T) bytes, for narrow integers the generator: 2 values a draw

#define THREADS 256
static const int V = 16 / sizeof(T);

// Which words feed T, and the type that it is computed in.
template <typename U>
struct Draw {
    typedef double type;
    static const int PER_COUNTER = 2;
};
template <>
struct Draw<f32> {
    typedef float type;
    static const int PER_COUNTER = 4;
};
template <>
struct Draw<f16> : Draw<f32> {};
template <>
struct Draw<bf16> : Draw<f32> {};
typedef Draw<T>::type Real;
static const int PER_COUNTER = Draw<T>::PER_COUNTER;

#ifdef CASE_UNIFORM
DEV float fma_of(float a, float b, float c) { return fmaf(a, b, c); }
DEV double fma_of(double a, double b, double c) { return fma(a, b, c); }
// The largest value of a float type below x, which is finite.
template <typename Bits>
DEV Bits bits_below(Bits x) {
    const Bits sign = (Bits)1 << (sizeof(Bits) * 8 - 1);
    if ((Bits)(x << 1) == 0) return sign | 1;  // below zero: the smallest negative number
    return x & sign ? x + 1 : x - 1;
}
DEV f32 below(f32 x) { return __uint_as_float(bits_below<u32>(__float_as_uint(x))); }
DEV f64 below(f64 x) { return __longlong_as_double((long long)bits_below<u64>((u64)__double_as_longlong(x))); }
DEV f16 below(f16 x) { x.bits = bits_below<u16>(x.bits); return x; }
DEV bf16 below(bf16 x) { x.bits = bits_below<u16>(x.bits); return x; }

template <typename U, bool FLOAT>
struct Uniform;
template <typename U>
struct Uniform<U, true> {
    Real low, width, last;
    DEV Uniform(ScalarArg s0, ScalarArg s1) {
        const U high = cast<U>(scalar_f64(s1));
        low = load_value(cast<U>(scalar_f64(s0)));
        width = load_value(high) - low;
        last = load_value(below(high));
    }
    DEV U value(Real u) const {
        // Rounding to U may step out of the interval at either end, the sum too at the upper one.
        const Real x = load_value(cast<U>(fma_of(u, width, low)));
        return cast<U>(x < low ? low : x > last ? last : x);
    }
};
template <typename U>
struct Uniform<U, false> {
    u64 low, width;
    DEV Uniform(ScalarArg s0, ScalarArg s1) : low(scalar_u64(s0)), width(scalar_u64(s1) - scalar_u64(s0)) {}
    DEV U value(u64 w) const { return (U)(low + __umul64hi(w, width)); }
};
#endif

// The values of one counter.
struct Values {
#if defined(CASE_UNIFORM)
    const Uniform<T, (IsFloat<Compute<T>>::value)> uniform;
    DEV Values(ScalarArg s0, ScalarArg s1) : uniform(s0, s1) {}
    template <bool FLOAT>
    DEV void make(T* out, const Philox& p) const {
#pragma unroll
        for (int k = 0; k < PER_COUNTER; ++k) {
            if (PER_COUNTER == 4) out[k] = uniform.value(uniform_f32(p.lane[k]));
            else if (FLOAT) out[k] = uniform.value(uniform_f64(p.wide(k & 1)));
            else out[k] = uniform.value(p.wide(k & 1));
        }
    }
#elif defined(CASE_NORMAL)
    const Real mean, std;
    DEV Values(ScalarArg s0, ScalarArg s1) : mean((Real)scalar_f64(s0)), std((Real)scalar_f64(s1)) {}
    template <bool FLOAT>
    DEV void make(T* out, const Philox& p) const {
#pragma unroll
        for (int k = 0; k < PER_COUNTER; k += 2) {
            Real z[2];
            if (PER_COUNTER == 4) {
                float a, b;
                normal_pair(a, b, p.lane[k], p.lane[k + 1]);
                z[0] = a, z[1] = b;
            } else {
                double a, b;
                normal_pair(a, b, p.wide(0), p.wide(1));
                z[0] = a, z[1] = b;
            }
            if (PER_COUNTER == 4) {
                out[k] = cast<T>(fmaf(z[0], std, mean));
                out[k + 1] = cast<T>(fmaf(z[1], std, mean));
            } else {
                out[k] = cast<T>(fma(z[0], std, mean));
                out[k + 1] = cast<T>(fma(z[1], std, mean));
            }
        }
    }
#elif defined(CASE_BERNOULLI)
    const double p;
    const u64 threshold;  // x * 2^-32 < p exactly when x < ceil(p * 2^32)
    DEV Values(ScalarArg s0, ScalarArg) : p(scalar_f64(s0)), threshold((u64)ceil(scalar_f64(s0) * 0x1p32)) {}
    template <bool FLOAT>
    DEV void make(T* out, const Philox& draw) const {
        const T one = cast<T>(1), zero = cast<T>(0);
#pragma unroll
        for (int k = 0; k < PER_COUNTER; ++k) {
            const bool hit = PER_COUNTER == 4 ? draw.lane[k] < threshold : uniform_f64(draw.wide(k & 1)) < p;
            out[k] = hit ? one : zero;
        }
    }
#else
    DEV Values(ScalarArg, ScalarArg) {}
    template <bool FLOAT>
    DEV void make(T* out, const Philox& p) const {
#pragma unroll
        for (int k = 0; k < PER_COUNTER; ++k) out[k] = (T)p.wide(k & 1);
    }
#endif
};

// The offset is offset_base + offset: a captured graph keeps its own base and reads a slot that moves with each replay.
extern "C" __global__ void __launch_bounds__(THREADS)
    random_fill(T* y, u64 n, ScalarArg seed, ScalarArg offset, u64 offset_base, ScalarArg s0, ScalarArg s1) {
    const u64 key = scalar_u64(seed), first = offset_base + scalar_u64(offset);
    const Values values(s0, s1);
    const u64 packs = (n + V - 1) / V;
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < packs; j += (u64)gridDim.x * THREADS) {
        Pack<T, V> out;
#pragma unroll
        for (int k = 0; k < V; k += PER_COUNTER)
            values.make<IsFloat<Compute<T>>::value>(out.v + k, Philox(first + (j * V + k) / PER_COUNTER, key));
        if ((j + 1) * V <= n) {
            out.store(y + j * V);
        } else {
#pragma unroll
            for (int k = 0; k < V; ++k)
                if (j * V + k < n) y[j * V + k] = out.v[k];
        }
    }
}
