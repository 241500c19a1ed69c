// The two halves of a convolution around its matrix product:
//     im2col   col[b, (c, kh, kw), (oh, ow)] = x[b, c, oh * stride - pad + kh * dilation, ow * stride - pad + kw * dilation],
//              0 outside x
//     col2im   dx[b, c, ih, iw] = the sum of dcol[b, (c, kh, kw), (oh, ow)] over all entries that read x[b, c, ih, iw]
//
// generated  the host prepends: T; INDEX (u32 | u64, by the number of threads); one of CASE_IM2COL, CASE_COL2IM
// shapes     x: [B, C, H, W] with any strides; dx: [B, C, H, W] contiguous; col: any strides for b and (c, kh, kw), which are
//            those of [B, K, L] or [K, B, L], K = C * kernel_h * kernel_w, L = OH * OW; (oh, ow) is contiguous
// dtypes     T = f32 | f64 | f16 | bf16; col2im sums in Acc<T> in the order of (kh, kw): no atomics
// launch     im2col: one thread for each (b, c, oh, ow), which writes kernel_h * kernel_w values; col2im: one thread an element
//            of dx; ow or iw fastest; blocks of 256 threads, grid-stride
// bound      memory: col once, and x or dx once (kernel positions that overlap read x again from L1)

#define THREADS 256

struct Conv {
    u64 batch;
    i32 channels, height, width, out_height, out_width;
    i32 kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    i64 x_stride[4];              // b, c, h, w
    i64 col_batch, col_row;       // strides of b and of (c, kh, kw)
};

// Runs f(batch, channel, row, column) for every element of [batch, channels, height, width].
template <typename F>
DEV void for_each(u64 batch, i32 channels, i32 height, i32 width, F f) {
    const u64 n = batch * (u64)channels * height * width;
    for (u64 flat = (u64)blockIdx.x * THREADS + threadIdx.x; flat < n; flat += (u64)gridDim.x * THREADS) {
        const INDEX i = (INDEX)flat, line = i / (INDEX)width, plane = line / (INDEX)height, b = plane / (INDEX)channels;
        f((u64)b, (i32)(plane - b * channels), (i32)(line - plane * height), (i32)(i - line * width));
    }
}

#ifdef CASE_IM2COL
extern "C" __global__ void __launch_bounds__(THREADS) im2col(T* col, const T* x, const __grid_constant__ Conv s) {
    for_each(s.batch, s.channels, s.out_height, s.out_width, [&](u64 b, i32 c, i32 oh, i32 ow) {
        const T* from = x + (i64)b * s.x_stride[0] + c * s.x_stride[1];
        T* to = col + (i64)b * s.col_batch + (i64)c * (s.kernel_h * s.kernel_w) * s.col_row + (i64)oh * s.out_width + ow;
        const i32 h0 = oh * s.stride_h - s.pad_h, w0 = ow * s.stride_w - s.pad_w;
        for (i32 kh = 0; kh < s.kernel_h; ++kh) {
            const i32 ih = h0 + kh * s.dilation_h;
            const bool inside = ih >= 0 && ih < s.height;
            const T* line = from + ih * s.x_stride[2];
            for (i32 kw = 0; kw < s.kernel_w; ++kw) {
                const i32 iw = w0 + kw * s.dilation_w;
                T value = cast<T>(0);
                if (inside && iw >= 0 && iw < s.width) value = line[iw * s.x_stride[3]];
                *to = value;
                to += s.col_row;
            }
        }
    });
}
#endif

#ifdef CASE_COL2IM
extern "C" __global__ void __launch_bounds__(THREADS) col2im(T* dx, const T* col, const __grid_constant__ Conv s) {
    for_each(s.batch, s.channels, s.height, s.width, [&](u64 b, i32 c, i32 ih, i32 iw) {
        const T* from = col + (i64)b * s.col_batch + (i64)c * (s.kernel_h * s.kernel_w) * s.col_row;
        Acc<T> sum = 0;
        for (i32 kh = 0; kh < s.kernel_h; ++kh) {
            // The window at oh = h / stride reads ih at this kernel position, if there is one.
            const i32 h = ih + s.pad_h - kh * s.dilation_h;
            if (h < 0) break;
            const i32 oh = s.stride_h == 1 ? h : h / s.stride_h;
            if (oh >= s.out_height || oh * s.stride_h != h) continue;
            const T* line = from + (i64)kh * s.kernel_w * s.col_row + (i64)oh * s.out_width;
            for (i32 kw = 0; kw < s.kernel_w; ++kw) {
                const i32 w = iw + s.pad_w - kw * s.dilation_w;
                if (w < 0) break;
                const i32 ow = s.stride_w == 1 ? w : w / s.stride_w;
                if (ow < s.out_width && ow * s.stride_w == w) sum += load_value(line[kw * s.col_row + ow]);
            }
        }
        dx[(((i64)b * s.channels + c) * s.height + ih) * s.width + iw] = cast<T>(sum);
    });
}
#endif
