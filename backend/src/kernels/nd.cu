// Indices of several dimensions: gather_nd and scatter_nd, whose slices are rows of x seen as [R, inner].
//
// generated  the host prepends one of
//            CASE_FLAT    IDX_T (i32 | i64), FIRST (0 | 1): row[n] (+)= sum_k index[n, k] * stride[k], the row that index n names
//            CASE_LAST    KEY_T (u32 | u64): last[row[n]] = max(last[row[n]], n + 1), the last of the updates of each row
//            CASE_ASSIGN  T (only its size matters), V elements per pack, KEY_T: x[row[n], :] = value[n, :] for the last n of a row
// shapes     index: [N, K] of which `count` columns from `first` on; row: [N] i64; last: [R], zeros before; value: [N, inner];
//            x: [R, inner]; all contiguous
// requires   ASSIGN: inner and both addresses are multiples of the pack
// faults     FLAT: an index outside of its dimension is clamped and noted; a dimension is at least 1
// launch     a thread for each index (FLAT, LAST) or pack (ASSIGN), blocks of 256 threads, grid-stride
// bound      memory: each operand once

#define THREADS 256

#ifdef CASE_FLAT
#define DIMS 8
struct Dims {
    i64 size[DIMS], stride[DIMS];
    u64 columns;
    u32 first, count;
};
extern "C" __global__ void __launch_bounds__(THREADS)
    nd(i64* row, const IDX_T* index, u64 n, const __grid_constant__ Dims dims, FaultTable faults) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < n; j += (u64)gridDim.x * THREADS) {
        i64 at = FIRST ? 0 : row[j];
        for (u32 k = 0; k < dims.count; ++k)
            at += checked_index(index[j * dims.columns + dims.first + k], dims.size[k], faults) * dims.stride[k];
        row[j] = at;
    }
}
#endif

#ifdef CASE_LAST
extern "C" __global__ void __launch_bounds__(THREADS) nd(KEY_T* last, const i64* row, u64 n) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < n; j += (u64)gridDim.x * THREADS)
        atomicMax(last + row[j], (KEY_T)(j + 1));
}
#endif

#ifdef CASE_ASSIGN
extern "C" __global__ void __launch_bounds__(THREADS)
    nd(T* x, const T* value, const i64* row, const KEY_T* last, u64 n, u64 packs) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < n * packs; j += (u64)gridDim.x * THREADS) {
        const u64 update = j / packs, column = j - update * packs;
        const i64 at = row[update];
        if (last[at] != (KEY_T)(update + 1)) continue;
        Pack<T, V> pack;
        pack.load(value + j * V);
        pack.store(x + ((u64)at * packs + column) * V);
    }
}
#endif
