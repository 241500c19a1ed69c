// Images of another size: y[p, i, j] = sum_k sum_l v[i, k] w[j, l] x[p, v's tap k, w's tap l], and its gradient.
//
// generated  the host prepends: T, MODE (see common/taps.cuh), INDEX (u32 | u64, by the number of outputs), and one of
//            CASE_FORWARD
//            CASE_BACKWARD  one dimension of the gradient, IN_T -> T: the transpose of the weights, first along W into a
//                           workspace, then along H
// position   of output o in the input, in f64: o (in - 1) / (out - 1) with aligned corners, else (o + 1/2) in / out - 1/2.
//            nearest: floor(o in / out), in integers
// edges      bilinear: a position before the first element is taken as it; the last element stands for the one behind it
//            bicubic: the first and the last element stand for those outside
//            Lanczos: elements outside are left out, and the weights of the others divided by their sum
// shapes     x: [planes, H, W], y: [planes, OH, OW]; backward: g: [lines, out, inner] -> dx: [lines, in, inner]; contiguous
// dtypes     T = f32 | f64 | f16 | bf16; IN_T = T or Acc<T>. Weights and sums in Acc<T>, rounded once
// requires   in > 0
// launch     forward: blocks of 256 pixels along x, planes along y (a thread keeps its weights for several);
//            backward: one thread an element, blocks of 256 threads, grid-stride
// bound      memory: x and y once (backward: dy, dx, and twice the workspace)

#define THREADS 256
#define TAPS (MODE == 0 ? 1 : 2 * MODE)

// One dimension. `ratio` is (in - 1) / (out - 1), or in / out.
struct Scale {
    double ratio;
    i32 in, out;
    u32 align_corners;
};
typedef Acc<T> A;

struct Line {
    i32 first;       // element of tap 0, possibly outside
    i32 begin, end;  // taps that count
    A weight[TAPS];
    DEV Line(i32 o, const Scale& s) {
        if (MODE == 0) {
            const u64 product = (u64)o * s.in;
            first = product >> 32 ? (i32)(product / s.out) : (i32)((u32)product / (u32)s.out);
            begin = 0, end = 1;
            weight[0] = 1;
            return;
        }
        double position = s.align_corners ? o * s.ratio : (o + 0.5) * s.ratio - 0.5;
        if (MODE == 1 && position < 0) position = 0;
        const double low = floor(position);
        first = (i32)low - (TAPS / 2 - 1);
        tap_weights<MODE>(weight, (A)(position - low));
        begin = 0, end = TAPS;
        if (MODE == 3) {
            begin = max(-first, 0);
            end = min(s.in - first, TAPS);
            A sum = 0;
#pragma unroll
            for (int k = 0; k < TAPS; ++k) sum += k >= begin && k < end ? weight[k] : (A)0;
#pragma unroll
            for (int k = 0; k < TAPS; ++k) weight[k] = sum != 0 ? weight[k] / sum : weight[k];
        }
    }
    DEV bool counts(int k) const { return MODE != 3 || (k >= begin && k < end); }
    DEV i32 at(int k, i32 in) const { return min(max(first + k, 0), in - 1); }
};

#ifdef CASE_FORWARD
extern "C" __global__ void __launch_bounds__(THREADS)
    interpolate(T* y, const T* x, u64 planes, const __grid_constant__ Scale rows, const __grid_constant__ Scale columns) {
    const u64 pixels = (u64)rows.out * columns.out, size = (u64)rows.in * columns.in;
    for (u64 pixel = (u64)blockIdx.x * THREADS + threadIdx.x; pixel < pixels; pixel += (u64)gridDim.x * THREADS) {
        const i32 oh = (i32)((INDEX)pixel / (INDEX)columns.out);
        const Line v(oh, rows), w((i32)(pixel - (u64)oh * columns.out), columns);
        for (u64 plane = blockIdx.y; plane < planes; plane += gridDim.y) {
            const T* from = x + plane * size;
            A sum = 0;
            if (MODE == 0) {
                y[plane * pixels + pixel] = from[(u64)v.first * columns.in + w.first];
                continue;
            }
#pragma unroll
            for (int k = 0; k < TAPS; ++k) {
                if (!v.counts(k)) continue;
                const T* row = from + (u64)v.at(k, rows.in) * columns.in;
                A part = 0;
#pragma unroll
                for (int l = 0; l < TAPS; ++l)
                    if (w.counts(l)) part += w.weight[l] * load_value(row[w.at(l, columns.in)]);
                sum += v.weight[k] * part;
            }
            y[plane * pixels + pixel] = cast<T>(sum);
        }
    }
}
#endif

#ifdef CASE_BACKWARD
// Outputs [begin, end) that may have element i among their taps.
struct Range {
    i32 begin, end;
    DEV Range(i32 i, const Scale& s) {
        begin = 0, end = s.out;
        if (MODE == 0) {
            begin = (i32)(((i64)i * s.out + s.in - 1) / s.in);
            end = (i32)(((i64)(i + 1) * s.out + s.in - 1) / s.in);
            return;
        }
        if (!(s.ratio > 0)) return;
        // Positions in [i - REACH, i + REACH], and one output more on each side, for roundings.
        const int REACH = TAPS / 2;
        const double shift = s.align_corners ? 0. : 0.5;
        const double low = floor((i - REACH + shift) / s.ratio - shift) - 1, high = ceil((i + REACH + shift) / s.ratio - shift) + 2;
        // Elements outside are those at the edges.
        if (i > 0) begin = low > 0 ? (low < s.out ? (i32)low : s.out) : 0;
        if (i < s.in - 1) end = high < s.out ? (high > 0 ? (i32)high : 0) : s.out;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    interpolate(T* dx, const IN_T* g, u64 n, u64 inner, const __grid_constant__ Scale scale) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < n; j += (u64)gridDim.x * THREADS) {
        const INDEX line = (INDEX)j / (INDEX)inner, outer = line / (INDEX)scale.in;
        const i32 i = (i32)(line - outer * scale.in);
        const IN_T* from = g + ((u64)outer * scale.out * inner + (j - (u64)line * inner));
        const Range range(i, scale);
        A sum = 0;
        for (i32 o = range.begin; o < range.end; ++o) {
            const Line taps(o, scale);
            A weight = 0;
            bool is_tap = false;
#pragma unroll
            for (int k = 0; k < TAPS; ++k) {
                if (!taps.counts(k) || taps.at(k, scale.in) != i) continue;
                weight += taps.weight[k];
                is_tap = true;
            }
            if (is_tap) sum += weight * (A)load_value(from[(u64)o * inner]);
        }
        dx[j] = cast<T>(sum);
    }
}
#endif
