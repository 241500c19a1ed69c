// Deformable convolution (arXiv:1703.06211, with the mask of arXiv:1811.11168) around its matrix product. Kernel element k
// (a tap) of output pixel l samples x at p = (base of k and l) + offset[b, group, k, l], bilinearly; outside x is 0:
//     columns    col[b, (c, k), l] = mask[b, group of c, k, l] * x[b, c](p)
//     offsets    dmask = sum_c dcol * x[b, c](p);  doffset = mask * sum_c dcol * (derivative of x[b, c] at p)
//     x          dx[b, c, i] = the sum of mask * dcol * (share of i in the sample) over the samples that read pixel i
// x sums in the order of the samples, without atomics on floats: count, then a prefix sum (cumsum), fill and sort list the
// samples by the cell (the pixel to their upper left) that they lie in, for all channels of a group at once.
//
// generated  the host prepends: T; INDEX (u32 | u64, by the number of threads); one of CASE_COLUMNS, CASE_OFFSETS, CASE_COUNT,
//            CASE_FILL, CASE_SORT, CASE_X
// shapes     x, dx: [B, C, H, W]; offset: [B, G, K, 2, L] (down, then right); mask: [B, G, K, L] or null, all contiguous; col:
//            any strides for b and (c, k), dcol: [B, C * K, L]; count, starts: [B, G, (H + 1) * (W + 1) + 1]; ids: [B, G, K * L]
// dtypes     T = f32 | f64 | f16 | bf16; dcol in Acc<T>; places and sums in Acc<T>; count, starts, ids: i32
// launch     blocks of 256 threads, grid-stride. columns: one thread per (b, group, CHANNELS of its channels, k, l); offsets,
//            count, fill: per (b, group, k, l); sort: per cell; x: per element of dx; the last fastest
// bound      columns and offsets: memory, col once (x comes from L1 and L2); x: latency of its scattered reads of dcol

#define THREADS 256
#define CHANNELS 16

typedef Acc<T> A;

struct Deform {
    u64 batch;
    i32 channels, groups, group_channels, taps;
    i32 pixels, cells;
    i32 size[2], out[2], kernel[2], stride[2], pad[2], dilation[2];
    i64 col_batch, col_row;  // strides of b and of (c, k)
};

DEV float floor_of(float x) { return floorf(x); }
DEV double floor_of(double x) { return floor(x); }

// Runs f(b and group as one, block of channels, tap, pixel).
template <typename F>
DEV void for_each_sample(const Deform& s, i32 blocks, F f) {
    const u64 n = s.batch * (u64)s.groups * blocks * s.taps * s.pixels;
    for (u64 flat = (u64)blockIdx.x * THREADS + threadIdx.x; flat < n; flat += (u64)gridDim.x * THREADS) {
        const INDEX i = (INDEX)flat, line = i / (INDEX)s.pixels, plane = line / (INDEX)s.taps, row = plane / (INDEX)blocks;
        f((u64)row, (i32)(plane - row * blocks), (i32)(line - plane * s.taps), (i32)(i - line * s.pixels));
    }
}

struct Place {
    A h, w;
};
// Where a sample lies. `row` is b and group as one.
DEV Place place(const Deform& s, const T* offset, u64 row, i32 tap, i32 pixel) {
    const i32 oh = pixel / s.out[1], ow = pixel - oh * s.out[1];
    const i32 kh = tap / s.kernel[1], kw = tap - kh * s.kernel[1];
    const T* at = offset + (row * s.taps + tap) * 2 * s.pixels + pixel;
    Place p;
    p.h = (A)(oh * s.stride[0] - s.pad[0] + kh * s.dilation[0]) + load_value(at[0]);
    p.w = (A)(ow * s.stride[1] - s.pad[1] + kw * s.dilation[1]) + load_value(at[s.pixels]);
    return p;
}
// Whether one of the four pixels around is in x; false for NaN.
DEV bool touches(const Deform& s, Place p) {
    return p.h > (A)-1 && p.h < (A)s.size[0] && p.w > (A)-1 && p.w < (A)s.size[1];
}
// What a sample that touches nothing is: 0, but a place that is NaN shows.
DEV A nowhere(Place p) { return is_nan(p.h) || is_nan(p.w) ? p.h + p.w : (A)0; }

DEV A mask_of(const Deform& s, const T* mask, u64 row, i32 tap, i32 pixel) {
    return mask ? (A)load_value(mask[(row * s.taps + tap) * s.pixels + pixel]) : (A)1;
}

// The four pixels around a place that touches x, and how far from the upper left one it is.
struct Corners {
    i32 h, w;
    A down, right;
    bool in[4];
};
DEV Corners corners(const Deform& s, Place p) {
    Corners c;
    const A h = floor_of(p.h), w = floor_of(p.w);
    c.h = (i32)h, c.w = (i32)w;
    c.down = p.h - h, c.right = p.w - w;
    const bool top = c.h >= 0, bottom = c.h + 1 < s.size[0], left = c.w >= 0, right = c.w + 1 < s.size[1];
    c.in[0] = top && left, c.in[1] = top && right, c.in[2] = bottom && left, c.in[3] = bottom && right;
    return c;
}
DEV void load_corners(const Deform& s, const T* plane, const Corners& c, A (&v)[4]) {
    const T* at = plane + (i64)c.h * s.size[1] + c.w;
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = c.in[k] ? (A)load_value(at[(k & 1) + (i64)(k >> 1) * s.size[1]]) : (A)0;
}
DEV A interpolated(const Corners& c, const A (&v)[4]) {
    const A up = 1 - c.down, left = 1 - c.right;
    return up * left * v[0] + up * c.right * v[1] + c.down * left * v[2] + c.down * c.right * v[3];
}

#ifdef CASE_COLUMNS
extern "C" __global__ void __launch_bounds__(THREADS)
    deform_columns(T* col, const T* x, const T* offset, const T* mask, const __grid_constant__ Deform s) {
    const i32 blocks = (s.group_channels + CHANNELS - 1) / CHANNELS;
    for_each_sample(s, blocks, [&](u64 row, i32 block, i32 tap, i32 pixel) {
        const u64 b = row / s.groups;
        const i32 group = (i32)(row - b * s.groups), first = group * s.group_channels + block * CHANNELS;
        const i32 end = (group + 1) * s.group_channels, last = first + CHANNELS < end ? first + CHANNELS : end;
        const Place p = place(s, offset, row, tap, pixel);
        const A factor = mask_of(s, mask, row, tap, pixel);
        const bool inside = touches(s, p);
        Corners c;
        if (inside) c = corners(s, p);
        const i64 plane = (i64)s.size[0] * s.size[1];
        T* to = col + (i64)b * s.col_batch + ((i64)first * s.taps + tap) * s.col_row + pixel;
        for (i32 channel = first; channel < last; ++channel, to += s.taps * s.col_row) {
            A value = nowhere(p);
            if (inside) {
                A v[4];
                load_corners(s, x + ((i64)b * s.channels + channel) * plane, c, v);
                value = interpolated(c, v);
            }
            *to = cast<T>(value * factor);
        }
    });
}
#endif

#ifdef CASE_OFFSETS
extern "C" __global__ void __launch_bounds__(THREADS)
    deform_offsets(T* doffset, T* dmask, const T* x, const T* offset, const T* mask, const A* dcol,
                   const __grid_constant__ Deform s) {
    for_each_sample(s, 1, [&](u64 row, i32, i32 tap, i32 pixel) {
        const u64 b = row / s.groups;
        const i32 first = (i32)(row - b * s.groups) * s.group_channels;
        const Place p = place(s, offset, row, tap, pixel);
        A value = nowhere(p), down = value, right = value;
        if (touches(s, p)) {
            const Corners c = corners(s, p);
            const i64 plane = (i64)s.size[0] * s.size[1];
            const T* from = x + ((i64)b * s.channels + first) * plane;
            const A* grad = dcol + (i64)b * s.col_batch + ((i64)first * s.taps + tap) * s.col_row + pixel;
            for (i32 k = 0; k < s.group_channels; ++k, from += plane, grad += s.taps * s.col_row) {
                A v[4];
                load_corners(s, from, c, v);
                const A g = *grad;
                value += g * interpolated(c, v);
                down += g * ((1 - c.right) * (v[2] - v[0]) + c.right * (v[3] - v[1]));
                right += g * ((1 - c.down) * (v[1] - v[0]) + c.down * (v[3] - v[2]));
            }
        }
        const A factor = mask_of(s, mask, row, tap, pixel);
        T* to = doffset + (row * s.taps + tap) * 2 * s.pixels + pixel;
        to[0] = cast<T>(factor * down);
        to[s.pixels] = cast<T>(factor * right);
        if (dmask) dmask[(row * s.taps + tap) * s.pixels + pixel] = cast<T>(value);
    });
}
#endif

#if defined(CASE_COUNT) || defined(CASE_FILL)
// Runs f(row, cell, id) for every sample that touches x; pixels from (-1, -1) on have a cell.
template <typename F>
DEV void for_each_inside(const Deform& s, const T* offset, F f) {
    for_each_sample(s, 1, [&](u64 row, i32, i32 tap, i32 pixel) {
        const Place p = place(s, offset, row, tap, pixel);
        if (!touches(s, p)) return;
        const i32 h = (i32)floor_of(p.h) + 1, w = (i32)floor_of(p.w) + 1;
        f(row, h * (s.size[1] + 1) + w, tap * s.pixels + pixel);
    });
}
#endif

#ifdef CASE_COUNT
// Counts one place further on, so that sums up to a cell are where its list begins.
extern "C" __global__ void __launch_bounds__(THREADS)
    deform_count(i32* count, const T* offset, const __grid_constant__ Deform s) {
    for_each_inside(s, offset, [&](u64 row, i32 cell, i32) { atomicAdd(count + row * (s.cells + 1) + cell + 1, 1); });
}
#endif

#ifdef CASE_FILL
// Counts back to 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    deform_fill(i32* ids, i32* count, const i32* starts, const T* offset, const __grid_constant__ Deform s) {
    for_each_inside(s, offset, [&](u64 row, i32 cell, i32 id) {
        const u64 at = row * (s.cells + 1) + cell;
        const i32 place = atomicAdd(count + at + 1, -1) - 1;
        ids[row * (s.taps * (u64)s.pixels) + starts[at] + place] = id;
    });
}
#endif

#ifdef CASE_SORT
// Heapsort: lists are a few ids long, but all samples may lie in one cell.
DEV void sift(i32* list, i32 root, i32 n) {
    const i32 value = list[root];
    for (i32 child = 2 * root + 1; child < n; child = 2 * root + 1) {
        if (child + 1 < n && list[child] < list[child + 1]) ++child;
        if (list[child] <= value) break;
        list[root] = list[child];
        root = child;
    }
    list[root] = value;
}
extern "C" __global__ void __launch_bounds__(THREADS)
    deform_sort(i32* ids, const i32* starts, const __grid_constant__ Deform s) {
    const u64 n = s.batch * (u64)s.groups * s.cells;
    for (u64 flat = (u64)blockIdx.x * THREADS + threadIdx.x; flat < n; flat += (u64)gridDim.x * THREADS) {
        const u64 row = (INDEX)flat / (INDEX)s.cells, at = row * (s.cells + 1) + (flat - row * s.cells);
        const i32 begin = starts[at], len = starts[at + 1] - begin;
        i32* list = ids + row * (s.taps * (u64)s.pixels) + begin;
        for (i32 root = len / 2 - 1; root >= 0; --root) sift(list, root, len);
        for (i32 end = len - 1; end > 0; --end) {
            const i32 largest = list[0];
            list[0] = list[end];
            list[end] = largest;
            sift(list, 0, end);
        }
    }
}
#endif

#ifdef CASE_X
extern "C" __global__ void __launch_bounds__(THREADS)
    deform_x(T* dx, const T* offset, const T* mask, const A* dcol, const i32* starts, const i32* ids,
             const __grid_constant__ Deform s) {
    const u64 n = s.batch * (u64)s.channels * s.size[0] * s.size[1];
    for (u64 flat = (u64)blockIdx.x * THREADS + threadIdx.x; flat < n; flat += (u64)gridDim.x * THREADS) {
        const INDEX i = (INDEX)flat, line = i / (INDEX)s.size[1], plane = line / (INDEX)s.size[0];
        const u64 b = plane / (INDEX)s.channels;
        const i32 w = (i32)(i - line * s.size[1]), h = (i32)(line - plane * s.size[0]);
        const i32 channel = (i32)(plane - (INDEX)b * s.channels);
        const u64 row = b * s.groups + channel / s.group_channels;
        const i32* start = starts + row * (s.cells + 1);
        const i32* list = ids + row * (s.taps * (u64)s.pixels);
        const A* grad = dcol + (i64)b * s.col_batch + (i64)channel * s.taps * s.col_row;
        A sum = 0;
        for (i32 above = 1; above >= 0; --above) {
            for (i32 before = 1; before >= 0; --before) {
                // Samples between this pixel and the one down and right of (h - above, w - before).
                const i32 cell = (h - above + 1) * (s.size[1] + 1) + (w - before + 1);
                const i32 end = start[cell + 1];
                for (i32 k = start[cell]; k < end; ++k) {
                    const i32 tap = list[k] / s.pixels, pixel = list[k] - tap * s.pixels;
                    const Place p = place(s, offset, row, tap, pixel);
                    const A down = p.h - (A)(h - above), right = p.w - (A)(w - before);
                    const A share = (above ? down : 1 - down) * (before ? right : 1 - right);
                    sum += share * mask_of(s, mask, row, tap, pixel) * grad[tap * s.col_row + pixel];
                }
            }
        }
        dx[flat] = cast<T>(sum);
    }
}
#endif
