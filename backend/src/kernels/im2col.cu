// The two halves of a convolution around its matrix product, for one to three spatial dimensions (d, h, w):
//     im2col   col[b, (c, k), o] = x[b, c, i],  i = o * stride - pad + k * dilation in each dimension, 0 outside x
//     col2im   dx[b, c, i] = bias[c] + the sum of dcol[b, (c, k), o] over all entries that read x[b, c, i]
//
// generated  the host prepends: T of x and dx; COL_T of the columns; DIMS (1 | 2 | 3); INDEX (u32 | u64, by the number of
//            threads); one of CASE_IM2COL, CASE_COL2IM
// shapes     x: [B, C, ..] with any strides; dx: [B, C, ..] contiguous; bias: [C] or null; col: any strides for b and (c, k),
//            which are those of [B, K, L] or [K, B, L], K = C * kernel elements, L = output pixels; o is contiguous
// dtypes     T = f32 | f64 | f16 | bf16; COL_T = T for im2col, Acc<T> for col2im, which sums in it in the order of k (no
//            atomics) and rounds once
// launch     im2col: one thread for each (b, c, o), which writes a value per kernel element; col2im: one thread an element of
//            dx; the last dimension fastest; blocks of 256 threads, grid-stride
// bound      memory: col once, and x or dx once (kernel elements that overlap read x again from L1)

#define THREADS 256
#define FIRST (3 - DIMS)  // the dimensions before it do not exist

struct Conv {
    u64 batch;
    i32 channels, kernel_len;
    i32 size[3], out[3], kernel[3], stride[3], pad[3], dilation[3];  // d, h, w
    i64 x_stride[5];                                                // b, c, d, h, w
    i64 col_batch, col_row;                                         // strides of b and of (c, k)
};

// Runs f(batch, channel, place) for every element of [batch, channels, size..].
template <typename F>
DEV void for_each(u64 batch, i32 channels, const i32 (&size)[3], F f) {
    u64 n = batch * (u64)channels;
#pragma unroll
    for (int d = FIRST; d < 3; ++d) n *= (u64)size[d];
    for (u64 flat = (u64)blockIdx.x * THREADS + threadIdx.x; flat < n; flat += (u64)gridDim.x * THREADS) {
        INDEX rest = (INDEX)flat;
        i32 at[3] = {0, 0, 0};
#pragma unroll
        for (int d = 2; d >= FIRST; --d) {
            const INDEX outer = rest / (INDEX)size[d];
            at[d] = (i32)(rest - outer * (INDEX)size[d]);
            rest = outer;
        }
        const INDEX b = rest / (INDEX)channels;
        f((u64)b, (i32)(rest - b * (INDEX)channels), at);
    }
}

// Dimensions that do not exist have one kernel element, at place 0.
DEV i32 kernel_size(const Conv& s, int d) { return d < FIRST ? 1 : s.kernel[d]; }

#ifdef CASE_IM2COL
// The place that kernel element k reads; whether x has it.
DEV bool reads(const Conv& s, int d, i32 first, i32 k, i32& i) {
    i = d < FIRST ? 0 : first + k * s.dilation[d];
    return d < FIRST || (i >= 0 && i < s.size[d]);
}
extern "C" __global__ void __launch_bounds__(THREADS) im2col(COL_T* col, const T* x, const __grid_constant__ Conv s) {
    for_each(s.batch, s.channels, s.out, [&](u64 b, i32 c, const i32 (&o)[3]) {
        const T* from = x + (i64)b * s.x_stride[0] + c * s.x_stride[1];
        i64 pixel = 0;
        i32 first[3] = {0, 0, 0};
#pragma unroll
        for (int d = FIRST; d < 3; ++d) {
            pixel = pixel * s.out[d] + o[d];
            first[d] = o[d] * s.stride[d] - s.pad[d];
        }
        COL_T* to = col + (i64)b * s.col_batch + (i64)c * s.kernel_len * s.col_row + pixel;
        for (i32 kd = 0; kd < kernel_size(s, 0); ++kd) {
            i32 id, ih, iw;
            const bool in_d = reads(s, 0, first[0], kd, id);
            for (i32 kh = 0; kh < kernel_size(s, 1); ++kh) {
                const bool in_h = reads(s, 1, first[1], kh, ih) && in_d;
                const T* line = from;
                if (DIMS > 2) line += id * s.x_stride[2];
                if (DIMS > 1) line += ih * s.x_stride[3];
                for (i32 kw = 0; kw < s.kernel[2]; ++kw) {
                    T value = cast<T>(0);
                    if (reads(s, 2, first[2], kw, iw) && in_h) value = line[iw * s.x_stride[4]];
                    *to = value;
                    to += s.col_row;
                }
            }
        }
    });
}
#endif

#ifdef CASE_COL2IM
// Finds the window that reads i at kernel element k. What there is: that window, none, none for any larger k either.
enum Found { HERE, NOT_HERE, NO_MORE };
DEV Found window(const Conv& s, int d, i32 i, i32 k, i32& o) {
    o = 0;
    if (d < FIRST) return HERE;
    const i32 from = i + s.pad[d] - k * s.dilation[d];
    if (from < 0) return NO_MORE;
    o = s.stride[d] == 1 ? from : from / s.stride[d];
    return o < s.out[d] && o * s.stride[d] == from ? HERE : NOT_HERE;
}
// The second bound leaves the larger cases the registers that they need.
extern "C" __global__ void __launch_bounds__(THREADS, DIMS == 3 || sizeof(INDEX) == 8 ? 5 : 8)
    col2im(T* dx, const COL_T* col, const T* bias, const __grid_constant__ Conv s) {
    for_each(s.batch, s.channels, s.size, [&](u64 b, i32 c, const i32 (&i)[3]) {
        const COL_T* from = col + (i64)b * s.col_batch + (i64)c * s.kernel_len * s.col_row;
        COL_T sum = bias ? (COL_T)load_value(bias[c]) : (COL_T)0;
        i32 od, oh, ow;
        for (i32 kd = 0; kd < kernel_size(s, 0); ++kd) {
            const Found d = window(s, 0, i[0], kd, od);
            if (d == NO_MORE) break;
            if (d == NOT_HERE) continue;
            for (i32 kh = 0; kh < kernel_size(s, 1); ++kh) {
                const Found h = window(s, 1, i[1], kh, oh);
                if (h == NO_MORE) break;
                if (h == NOT_HERE) continue;
                const i64 row = (i64)(DIMS > 2 ? kd * s.kernel[1] : 0) + (DIMS > 1 ? kh : 0);
                i64 pixel = 0;
                if (DIMS > 2) pixel = (i64)od * s.out[1];
                if (DIMS > 1) pixel = (pixel + oh) * s.out[2];
                const COL_T* line = from + row * s.kernel[2] * s.col_row + pixel;
                for (i32 kw = 0; kw < s.kernel[2]; ++kw) {
                    const Found w = window(s, 2, i[2], kw, ow);
                    if (w == NO_MORE) break;
                    if (w == HERE) sum += line[kw * s.col_row + ow];
                }
            }
        }
        i64 at = (i64)b * s.channels + c;
#pragma unroll
        for (int d = FIRST; d < 3; ++d) at = at * s.size[d] + i[d];
        dx[at] = cast<T>(sum);
    });
}
#endif
