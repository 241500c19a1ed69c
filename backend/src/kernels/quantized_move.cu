// y[i] = x[x's value at i, but with coordinate index[i] in the indexed dimension], or without an index, over packed values; and
// the scales that go with them: every way of moving quantised values without changing them.
//
// generated  the host prepends CASE_VALUES with OUT_BITS (8 | 4 | 2), or CASE_SCALES; BITS; INDEXED (0 | 1); IDX_T (i32 | i64);
//            OFFSET and UINDEX (i32 and u32 | i64 and u64)
// shapes     words, groups: common/quantized.cuh. Values: y has n values of OUT_BITS, the rest of its last word 0. Scales:
//            y[j] is the scale of value j * run, for n values. Loops as for gather.cu, over the values that are moved, from
//            `base` values into the storage
// requires   at most 8 loops; dim_size > 0 with an index; all values of a run have one scale
// faults     an index outside [0, dim_size) is clamped and noted
// launch     a word (a scale) a thread, blocks of 256 threads, grid-stride
// bound      memory: y, index, and the part of words that is read

#define THREADS 256

// Where value i comes from.
DEV UINDEX source(u64 i, const Loops& loops, const IDX_T* index, u64 base, i64 dim_stride, i64 dim_size, FaultTable faults) {
    const At<OFFSET> at(loops, i);
    i64 moved = 0;
    if (INDEXED) moved = checked_index(index[at.to[0]], dim_size, faults) * dim_stride;
    return (UINDEX)((i64)base + at.to[1] + moved);
}

#ifdef CASE_VALUES
#define PER_OUT (32 / OUT_BITS)
extern "C" __global__ void __launch_bounds__(THREADS)
    quantized_move(u32* y, const u32* words, const IDX_T* index, u64 n, u64 base, i64 dim_stride, i64 dim_size,
                   const __grid_constant__ Loops loops, FaultTable faults) {
    const u64 count = (n + PER_OUT - 1) / PER_OUT;
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < count; j += (u64)gridDim.x * THREADS) {
        const u64 first = j * PER_OUT;
        const int here = n - first < PER_OUT ? (int)(n - first) : PER_OUT;
        u32 word = 0;
        for (int k = 0; k < here; ++k) {
            const u32 q = (u32)value_at<BITS>(words, source(first + k, loops, index, base, dim_stride, dim_size, faults));
            word |= (q & (0xffffffffu >> (32 - OUT_BITS))) << (OUT_BITS * k);
        }
        y[j] = word;
    }
}
#endif

#ifdef CASE_SCALES
extern "C" __global__ void __launch_bounds__(THREADS)
    quantized_move(f32* y, const f32* scales, const IDX_T* index, u64 n, u64 run, u64 base, i64 dim_stride, i64 dim_size,
                   const __grid_constant__ Loops loops, Groups groups, FaultTable faults) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < n / run; j += (u64)gridDim.x * THREADS)
        y[j] = scales[group_of(source(j * run, loops, index, base, dim_stride, dim_size, faults), groups)];
}
#endif
