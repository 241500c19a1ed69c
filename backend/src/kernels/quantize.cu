// q[i] = clamp(round(x[i] / s), low, high),  y[i] = s * q[i],  s = 2 max |x| / (high - low) over the elements that share it:
// symmetric quantisation, its scales, and the way back.
//
// generated  the host prepends one of CASE_MAX (max |x| or the scales of segments), CASE_CHECK (scales given by the user),
//            CASE_QUANTIZE, CASE_DEQUANTIZE, CASE_DEQUANTIZE_VIEW; T (of x or y); UINDEX (u32 | u64), by the number of values;
//            and what the case uses of BITS, PARAM (f32 | f16 | bf16: what a scale is rounded to), V elements per load, LANES
//            (32 | 256) threads per segment, OFFSET (i32 | i64, with UINDEX)
// shapes     x, y: n elements, contiguous; words, groups: common/quantized.cuh. scales: f32. What is left of the last word is
//            0. CASE_DEQUANTIZE begins at a word, `base` values into the storage; the view's loops begin there, too
// dtypes     T = f32 | f64 | f16 | bf16, all arithmetic in f32. Halves round away from zero, NaN becomes 0. A scale that is 0,
//            infinite, NaN or subnormal becomes the smallest normal number of PARAM, before or after rounding
// requires   V > 1: x is aligned to the load, and V divides the segments' size or there is one segment; for CASE_QUANTIZE V is
//            PER_WORD or 1
// launch     blocks of 256 threads, grid-stride: LANES threads a segment, a scale, a word, or an element (of a view) a thread
// bound      memory: x, y, words and scales once

#define THREADS 256
#define PER_WORD (32 / BITS)

#if defined(CASE_MAX) || defined(CASE_CHECK)
DEV bool is_normal(float x) {
    const u32 exponent = __float_as_uint(x) >> 23 & 0xff;
    return exponent != 0 && exponent != 0xff;
}
template <typename P>
struct Smallest {
    static DEV float value() { return __uint_as_float(1u << 23); }  // 2^-126
};
template <>
struct Smallest<f16> {
    static DEV float value() { return __uint_as_float(113u << 23); }  // 2^-14
};
// A scale that can be divided by, rounded to PARAM.
DEV float usable_scale(float s) {
    s = load_value(cast<PARAM>(is_normal(s) ? s : Smallest<PARAM>::value()));
    return is_normal(s) ? s : Smallest<PARAM>::value();
}
#endif

#ifdef CASE_MAX
// out[k] = max |x| of segment k, or its scale when `inverse`, 1 / (high - low), is not 0. NaN is passed over. The product
// with an inverse in f64 rounds to the same f32 as the quotient: ranges are integers below 256 that are 2 or no power of
// two, so no quotient lies near the middle between two f32.
extern "C" __global__ void __launch_bounds__(THREADS)
    quantize(f32* out, const T* x, u64 n, u64 segments, u64 size, f64 inverse) {
    __shared__ float shared[32];
    const int lane = threadIdx.x % LANES;
    // LANES is 32 or the whole block: whoever reduces together loops together.
    for (u64 k = (u64)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES; k < segments; k += (u64)gridDim.x * (THREADS / LANES)) {
        const u64 begin = k * size, left = n - begin, len = left < size ? left : size;
        const T* p = x + begin;
        float most = 0.f;
        const u64 packs = len / V;
        for (u64 j = lane; j < packs; j += LANES) {
            Pack<T, V> pack;
            pack.load(p + j * V);
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const float v = (float)load_value(pack.v[i]), size_of = v < 0.f ? -v : v;
                if (size_of > most) most = size_of;
            }
        }
        for (u64 j = packs * V + lane; j < len; j += LANES) {
            const float v = (float)load_value(p[j]), size_of = v < 0.f ? -v : v;
            if (size_of > most) most = size_of;
        }
        most = group_reduce<LANES>(most, 0.f, shared, [](float a, float b) { return a > b ? a : b; });
        if (lane == 0) out[k] = inverse != 0.0 ? usable_scale((float)((double)(2.f * most) * inverse)) : most;
    }
}
#endif

#ifdef CASE_CHECK
extern "C" __global__ void __launch_bounds__(THREADS) quantize(f32* out, const T* scales, u64 n) {
    for (u64 k = (u64)blockIdx.x * THREADS + threadIdx.x; k < n; k += (u64)gridDim.x * THREADS)
        out[k] = usable_scale((float)load_value(scales[k]));
}
#endif

#ifdef CASE_QUANTIZE
DEV i32 quantized(float x, float inverse, i32 low, i32 high) {
    const float v = x * inverse;
    if (v != v) return 0;
    // Far beyond every range, and far below what an integer holds.
    const float near = v < -1024.f ? -1024.f : v > 1024.f ? 1024.f : v;
    i32 q = (i32)near;
    const float rest = near - (float)q;
    q += rest >= 0.5f ? 1 : rest <= -0.5f ? -1 : 0;
    return q < low ? low : q > high ? high : q;
}

// `whole` says that a word's values share a scale.
extern "C" __global__ void __launch_bounds__(THREADS)
    quantize(u32* words, const T* x, const f32* scales, u64 n, Groups groups, u32 whole, i32 low, i32 high) {
    const u64 count = (n + PER_WORD - 1) / PER_WORD;
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < count; j += (u64)gridDim.x * THREADS) {
        const u64 first = j * PER_WORD;
        const int here = n - first < PER_WORD ? (int)(n - first) : PER_WORD;
        Pack<T, PER_WORD> pack;
        if (V == PER_WORD && here == PER_WORD) {
            pack.load(x + first);
        } else {
#pragma unroll
            for (int k = 0; k < PER_WORD; ++k) pack.v[k] = k < here ? x[first + k] : T();
        }
        float inverse = 1.f / scales[group_of((UINDEX)first, groups)];
        u32 word = 0;
#pragma unroll
        for (int k = 0; k < PER_WORD; ++k) {
            if (k < here) {
                if (!whole) inverse = 1.f / scales[group_of((UINDEX)(first + k), groups)];
                const u32 q = (u32)quantized((float)load_value(pack.v[k]), inverse, low, high);
                word |= (q & (0xffffffffu >> (32 - BITS))) << (BITS * k);
            }
        }
        words[j] = word;
    }
}
#endif

#ifdef CASE_DEQUANTIZE
extern "C" __global__ void __launch_bounds__(THREADS)
    quantize(T* y, const u32* words, const f32* scales, u64 n, u64 base, Groups groups, u32 whole) {
    const u64 count = (n + PER_WORD - 1) / PER_WORD;
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < count; j += (u64)gridDim.x * THREADS) {
        const u64 first = j * PER_WORD;
        const u32 word = words[base / PER_WORD + j];
        float scale = scales[group_of((UINDEX)(base + first), groups)];
        Pack<T, PER_WORD> pack;
        const int here = n - first < PER_WORD ? (int)(n - first) : PER_WORD;
#pragma unroll
        for (int k = 0; k < PER_WORD; ++k) {
            if (!whole && k < here) scale = scales[group_of((UINDEX)(base + first + k), groups)];
            pack.v[k] = cast<T>(scale * (float)unpacked<BITS>(word, k));
        }
        if (here == PER_WORD) {
            pack.store(y + first);
        } else {
#pragma unroll
            for (int k = 0; k < PER_WORD; ++k)
                if (k < here) y[first + k] = pack.v[k];
        }
    }
}
#endif

#ifdef CASE_DEQUANTIZE_VIEW
extern "C" __global__ void __launch_bounds__(THREADS)
    quantize(T* y, const u32* words, const f32* scales, u64 n, u64 base, const __grid_constant__ Loops loops, Groups groups) {
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) {
        const At<OFFSET> at(loops, i);
        const UINDEX from = (UINDEX)((OFFSET)base + at.to[1]);
        y[i] = cast<T>(scales[group_of(from, groups)] * (float)value_at<BITS>(words, from));
    }
}
#endif
