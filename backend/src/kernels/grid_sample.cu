// Images sampled at given places: y[n, c, i, j] = sum_k sum_l v[k] w[l] x[n, c, k, l], the taps of place g[n, i, j] = (x, y).
//
// generated  the host prepends: T; MODE 0 nearest, 1 bilinear, 2 bicubic (see common/taps.cuh); PADDING 0 zeros, 1 border,
//            2 reflection; ALIGN_CORNERS (0 | 1); INDEX (u32 | u64, by the number of places)
// position   in f64: (g + 1) (size - 1) / 2 with aligned corners, so that -1 and 1 are the centres of the first and the last
//            pixel; else (g + 1) size / 2 - 1/2, so that they are the edges. nearest rounds halves away from 0
// outside    zeros: pixels outside are 0. border: the position (bicubic: each tap) is moved to the nearest pixel. reflection: it
//            is reflected at the centres of the first and the last pixel (aligned corners) or at their edges
//            A position that is NaN, or infinite and reflected, gives NaN
// shapes     x: [N, C, H, W], g: [N, OH, OW, 2], y: [N, C, OH, OW], pixels = OH * OW; contiguous; H and W below 2^30
// dtypes     T = f32 | f64 | f16 | bf16; weights and sums in Acc<T>, rounded once
// requires   H and W above 0
// launch     blocks of 256 places along x, channels along y (a thread keeps its weights for several)
// bound      memory: x (the part that is read), g and y once

#define THREADS 256
#define TAPS (MODE == 0 ? 1 : 2 * MODE)

typedef Acc<T> A;

DEV double reflected(double position, i32 size) {
    const double low = ALIGN_CORNERS ? 0. : -0.5, span = ALIGN_CORNERS ? size - 1. : (double)size;
    if (span == 0) return 0;
    const double x = fabs(position - low), x_mod = x - floor(x / (2 * span)) * (2 * span);
    return span - fabs(x_mod - span) + low;
}
DEV i32 reflected(i32 i, i32 size) {
    const i64 period = 2 * ((i64)size - ALIGN_CORNERS);
    if (period == 0) return 0;
    const i64 m = (i % period + period) % period;
    return (i32)(m < size ? m : period - (1 - ALIGN_CORNERS) - m);
}

// One dimension.
struct Line {
    i32 element[TAPS];  // -1: a zero
    A weight[TAPS];
    bool lost;
    DEV Line(double g, i32 size) {
        double position = ALIGN_CORNERS ? (g + 1) * (size - 1.) / 2 : (g + 1) * size / 2 - 0.5;
        if (MODE < 2 && PADDING == 2) position = reflected(position, size);
        lost = PADDING == 2 ? position - position != 0 : position != position;
        if (MODE < 2 && PADDING > 0) position = fmin(fmax(position, 0.), size - 1.);
        // Far away, all taps are outside.
        position = fmin(fmax(position, -1073741824.), 1073741824.);
        const double low = MODE == 0 ? round(position) : floor(position);
        const i32 first = (i32)low - (MODE == 0 ? 0 : TAPS / 2 - 1);
        tap_weights<MODE>(weight, (A)(MODE == 0 ? 0 : position - low));
#pragma unroll
        for (int k = 0; k < TAPS; ++k) {
            const i32 i = first + k;
            if (PADDING == 0) {
                element[k] = i >= 0 && i < size ? i : -1;
            } else {
                element[k] = min(max(MODE == 2 && PADDING == 2 ? reflected(i, size) : i, 0), size - 1);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    grid_sample(T* y, const T* x, const T* g, u64 places, u64 pixels, u64 channels, i32 height, i32 width) {
    const u64 size = (u64)height * width;
    for (u64 place = (u64)blockIdx.x * THREADS + threadIdx.x; place < places; place += (u64)gridDim.x * THREADS) {
        const u64 image = (INDEX)place / (INDEX)pixels, pixel = place - image * pixels;
        const Line columns((double)load_value(g[2 * place]), width), rows((double)load_value(g[2 * place + 1]), height);
        const bool lost = rows.lost || columns.lost;
        for (u64 channel = blockIdx.y; channel < channels; channel += gridDim.y) {
            const u64 plane = image * channels + channel;
            const T* from = x + plane * size;
            A sum = 0;
#pragma unroll
            for (int k = 0; k < TAPS; ++k) {
                if (rows.element[k] < 0) continue;
                const T* row = from + (u64)rows.element[k] * width;
                A part = 0;
#pragma unroll
                for (int l = 0; l < TAPS; ++l)
                    if (columns.element[l] >= 0) part += columns.weight[l] * load_value(row[columns.element[l]]);
                sum += rows.weight[k] * part;
            }
            y[plane * pixels + pixel] = cast<T>(lost ? Limits<A>::highest() - Limits<A>::highest() : sum);
        }
    }
}
