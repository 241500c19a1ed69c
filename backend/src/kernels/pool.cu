// Pooling over the two innermost dimensions. Forward kernels compute one output element a thread; backward kernels one input
// element a thread, which gathers from every window that covers it: no atomics, the same bits every time.
//
// generated  the host prepends: T; INDEX (u32 | u64, by the number of elements); for max pooling IDX_T (i32 | i64); and one of
//            CASE_AVG, CASE_AVG_BACKWARD, CASE_MAX, CASE_MAX_INDICES, CASE_MAX_BACKWARD, CASE_ADAPTIVE, CASE_ADAPTIVE_BACKWARD
// shapes     x, dx: [planes, H, W]; y, dy, indices: [planes, OH, OW]; all contiguous; H * W and OH * OW below 2^31
// dtypes     T = f32 | f64 | f16 | bf16, sums in Acc<T>, rounded once
// windows    output o of a dimension reads inputs o * stride - pad + k * dilation, k in [0, kernel)
//            avg: sum / count, where count is the number of inputs read, or with count_include_pad of positions in
//            [-pad, size + pad) (a window of ceil mode may reach further); at least 1
//            max: the first of the largest, NaN above all; padding is never chosen: -inf and index -1 when nothing else is there.
//            The index is h * W + w
//            adaptive: inputs floor(o * size / out) .. ceil((o + 1) * size / out)
// launch     blocks of 256 threads along W, then H, then planes; grid-stride
// bound      memory: x and y once; windows that overlap are read again from L1

#define THREADS 256

struct Pool {
    u64 planes;
    i32 height, width, out_height, out_width;
    i32 kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    u32 count_include_pad;
};
typedef Acc<T> A;

DEV i32 min_i(i32 a, i32 b) { return a < b ? a : b; }
DEV i32 max_i(i32 a, i32 b) { return a > b ? a : b; }

// Inputs [begin, end) of an averaging window, and what counts in the divisor.
struct Window {
    i32 begin, end, count;
    DEV Window(i32 o, i32 size, i32 kernel, i32 stride, i32 pad, bool include_pad) {
        const i32 first = o * stride - pad;
        begin = max_i(first, 0);
        end = min_i(first + kernel, size);
        count = include_pad ? min_i(first + kernel, size + pad) - first : end - begin;
        count = max_i(count, 0);
    }
};
// Outputs [begin, end) whose windows (of `reach` inputs from the first to the last) may cover input i.
struct Covering {
    i32 begin, end;
    DEV Covering(i32 i, i32 out, i32 reach, i32 stride, i32 pad) {
        const i32 first = i + pad - reach + 1;
        begin = first > 0 ? (first + stride - 1) / stride : 0;
        end = min_i((i + pad) / stride + 1, out);
    }
};
// The same for adaptive windows.
struct Adaptive {
    i32 begin, end;
    DEV Adaptive(i32 o, i32 size, i32 out) {
        begin = (i32)((i64)o * size / out);
        end = (i32)(((i64)(o + 1) * size + out - 1) / out);
    }
};
struct AdaptiveCovering {
    i32 begin, end;
    DEV AdaptiveCovering(i32 i, i32 size, i32 out) {
        begin = (i32)((i64)i * out / size);
        end = (i32)(((i64)(i + 1) * out + size - 1) / size);
    }
};

// Runs f(flat index, plane, row, column) for every element of [planes, height, width].
template <typename F>
DEV void for_each(u64 planes, i32 height, i32 width, F f) {
    const u64 n = planes * (u64)height * width;
    for (u64 flat = (u64)blockIdx.x * THREADS + threadIdx.x; flat < n; flat += (u64)gridDim.x * THREADS) {
        const INDEX i = (INDEX)flat, line = i / (INDEX)width, plane = line / (INDEX)height;
        f(flat, (u64)plane, (i32)(line - plane * height), (i32)(i - line * width));
    }
}

#ifdef CASE_AVG
extern "C" __global__ void __launch_bounds__(THREADS) pool(T* y, const T* x, const __grid_constant__ Pool p) {
    for_each(p.planes, p.out_height, p.out_width, [&](u64 flat, u64 plane, i32 oh, i32 ow) {
        const Window h(oh, p.height, p.kernel_h, p.stride_h, p.pad_h, p.count_include_pad);
        const Window w(ow, p.width, p.kernel_w, p.stride_w, p.pad_w, p.count_include_pad);
        const T* from = x + plane * p.height * p.width;
        A sum = 0;
        for (i32 ih = h.begin; ih < h.end; ++ih)
            for (i32 iw = w.begin; iw < w.end; ++iw) sum += load_value(from[ih * p.width + iw]);
        const i64 count = (i64)h.count * w.count;
        y[flat] = cast<T>(sum / (A)(count > 0 ? count : 1));
    });
}
#endif

#ifdef CASE_AVG_BACKWARD
extern "C" __global__ void __launch_bounds__(THREADS) pool(T* dx, const T* dy, const __grid_constant__ Pool p) {
    for_each(p.planes, p.height, p.width, [&](u64 flat, u64 plane, i32 ih, i32 iw) {
        const Covering h(ih, p.out_height, p.kernel_h, p.stride_h, p.pad_h);
        const Covering w(iw, p.out_width, p.kernel_w, p.stride_w, p.pad_w);
        const T* from = dy + plane * p.out_height * p.out_width;
        A sum = 0;
        for (i32 oh = h.begin; oh < h.end; ++oh) {
            const i64 rows = Window(oh, p.height, p.kernel_h, p.stride_h, p.pad_h, p.count_include_pad).count;
            for (i32 ow = w.begin; ow < w.end; ++ow) {
                const i32 columns = Window(ow, p.width, p.kernel_w, p.stride_w, p.pad_w, p.count_include_pad).count;
                sum += load_value(from[oh * p.out_width + ow]) / (A)(rows * columns);  // both are above 0: (ih, iw) is inside
            }
        }
        dx[flat] = cast<T>(sum);
    });
}
#endif

#if defined(CASE_MAX) || defined(CASE_MAX_INDICES)
extern "C" __global__ void __launch_bounds__(THREADS) pool(T* y, IDX_T* indices, const T* x, const __grid_constant__ Pool p) {
    for_each(p.planes, p.out_height, p.out_width, [&](u64 flat, u64 plane, i32 oh, i32 ow) {
        const T* from = x + plane * p.height * p.width;
        Compute<T> best = Limits<Compute<T>>::lowest();
        i32 where = -1;
        for (i32 kh = 0; kh < p.kernel_h; ++kh) {
            const i32 ih = oh * p.stride_h - p.pad_h + kh * p.dilation_h;
            if (ih < 0 || ih >= p.height) continue;
            for (i32 kw = 0; kw < p.kernel_w; ++kw) {
                const i32 iw = ow * p.stride_w - p.pad_w + kw * p.dilation_w;
                if (iw < 0 || iw >= p.width) continue;
                const Compute<T> value = load_value(from[ih * p.width + iw]);
                if (where < 0 || value > best || (is_nan(value) && !is_nan(best))) {
                    best = value;
                    where = ih * p.width + iw;
                }
            }
        }
        y[flat] = cast<T>(best);
#ifdef CASE_MAX_INDICES
        indices[flat] = where;
#endif
    });
}
#endif

#ifdef CASE_MAX_BACKWARD
extern "C" __global__ void __launch_bounds__(THREADS)
    pool(T* dx, const T* dy, const IDX_T* indices, const __grid_constant__ Pool p) {
    for_each(p.planes, p.height, p.width, [&](u64 flat, u64 plane, i32 ih, i32 iw) {
        const Covering h(ih, p.out_height, (p.kernel_h - 1) * p.dilation_h + 1, p.stride_h, p.pad_h);
        const Covering w(iw, p.out_width, (p.kernel_w - 1) * p.dilation_w + 1, p.stride_w, p.pad_w);
        const u64 base = plane * p.out_height * p.out_width;
        const IDX_T me = ih * p.width + iw;
        A sum = 0;
        for (i32 oh = h.begin; oh < h.end; ++oh)
            for (i32 ow = w.begin; ow < w.end; ++ow)
                if (indices[base + oh * p.out_width + ow] == me) sum += load_value(dy[base + oh * p.out_width + ow]);
        dx[flat] = cast<T>(sum);
    });
}
#endif

#ifdef CASE_ADAPTIVE
extern "C" __global__ void __launch_bounds__(THREADS) pool(T* y, const T* x, const __grid_constant__ Pool p) {
    for_each(p.planes, p.out_height, p.out_width, [&](u64 flat, u64 plane, i32 oh, i32 ow) {
        const Adaptive h(oh, p.height, p.out_height), w(ow, p.width, p.out_width);
        const T* from = x + plane * p.height * p.width;
        A sum = 0;
        for (i32 ih = h.begin; ih < h.end; ++ih)
            for (i32 iw = w.begin; iw < w.end; ++iw) sum += load_value(from[ih * p.width + iw]);
        const i64 count = (i64)(h.end - h.begin) * (w.end - w.begin);
        y[flat] = cast<T>(sum / (A)(count > 0 ? count : 1));
    });
}
#endif

#ifdef CASE_ADAPTIVE_BACKWARD
extern "C" __global__ void __launch_bounds__(THREADS) pool(T* dx, const T* dy, const __grid_constant__ Pool p) {
    for_each(p.planes, p.height, p.width, [&](u64 flat, u64 plane, i32 ih, i32 iw) {
        const AdaptiveCovering h(ih, p.height, p.out_height), w(iw, p.width, p.out_width);
        const T* from = dy + plane * p.out_height * p.out_width;
        A sum = 0;
        for (i32 oh = h.begin; oh < h.end; ++oh) {
            const Adaptive rows(oh, p.height, p.out_height);
            for (i32 ow = w.begin; ow < w.end; ++ow) {
                const Adaptive columns(ow, p.width, p.out_width);
                const i64 count = (i64)(rows.end - rows.begin) * (columns.end - columns.begin);
                sum += load_value(from[oh * p.out_width + ow]) / (A)count;
            }
        }
        dx[flat] = cast<T>(sum);
    });
}
#endif
