// q[i] = clamp(round(x[i] / s), low, high),  y[i] = s * q[i],  s = 2 max |x| / (high - low) over the elements that share it:
// symmetric quantisation, its scales, and values moved without being changed.
//
// generated  the host prepends one of CASE_MAX, CASE_CHECK, CASE_QUANTIZE, CASE_DEQUANTIZE, CASE_DEQUANTIZE_VIEW, CASE_MOVE,
//            CASE_MOVE_SCALES, and what that case uses of: T (of x or y), PARAM (f32 | f16 | bf16, what a scale is rounded to),
//            BITS and OUT_BITS (8 | 4 | 2, of a stored value), V elements per load, LANES (32 | 256) threads per segment,
//            IDX_T (i32 | i64), INDEXED (0 | 1), OFFSET (i32 | i64)
// shapes     words: values of BITS bits in u32, the first in the lowest bits, one after another across the whole tensor; what
//            is left of the last word is 0. scales: f32, one for each `groups.size` neighbours in storage, or one for all
//            (size 0). x, y: contiguous. Views: loops over the stored values, beginning `base` values into the storage
// dtypes     T = f32 | f64 | f16 | bf16, all arithmetic in f32. Halves round away from zero; NaN becomes 0. A scale that is 0,
//            infinite, NaN or subnormal becomes the smallest normal number of PARAM
// requires   V > 1: x is aligned to the load, and V divides `size` (the last segment may end anywhere)
// faults     an index outside [0, dim_size) is clamped and noted
// launch     blocks of 256 threads; a word a thread, an element in CASE_DEQUANTIZE_VIEW, LANES threads a segment in CASE_MAX;
//            grid-stride
// bound      memory: x, y and words once

#define THREADS 256
#define PER_WORD (32 / BITS)

// A number times 2^-126 or less is no divisor that f32 has an inverse of.
DEV bool is_normal(float x) {
    const u32 exponent = __float_as_uint(x) >> 23 & 0xff;
    return exponent != 0 && exponent != 0xff;
}

struct Groups {
    u64 size;
    FastDiv size32;
};
// The scale of the stored value `at`. 32-bit offsets come with sizes below 2^31.
DEV i32 group_of(i32 at, Groups groups) { return groups.size == 0 ? 0 : (i32)groups.size32.div((u32)at); }
DEV i64 group_of(i64 at, Groups groups) { return groups.size == 0 ? 0 : (i64)((u64)at / groups.size); }

#ifdef CASE_MAX
#include_guard
#endif
