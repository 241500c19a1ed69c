// y[i] = x[x's element at i, but with coordinate index[i] in the indexed dimension]: gather and select.
//
// generated  the host prepends: T (only its size matters), IDX_T (i32 | i64), V elements per pack, OFFSET (i32 | i64)
// shapes     y: contiguous, n elements; index and x: the same loops with their own strides, where x has stride 0 in the
//            indexed dimension, and index of a select has stride 0 in all others
// requires   V > 1: x has stride 1 and index stride 0 in the innermost loop, whose size and strides are given in packs (so x's
//            is V); x, its other strides, dim_stride and y are multiples of the pack; at most 8 loops, dim_size > 0
// faults     an index outside [0, dim_size) is clamped and noted
// launch     one pack a thread, blocks of 256 threads, grid-stride
// bound      memory: y, index, and the part of x that is read

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    gather(T* y, const T* x, const IDX_T* index, u64 packs, i64 dim_stride, i64 dim_size, const __grid_constant__ Loops loops,
           FaultTable faults) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < packs; j += (u64)gridDim.x * THREADS) {
        const At<OFFSET> at(loops, j);
        const i64 k = checked_index(index[at.to[0]], dim_size, faults);
        Pack<T, V> pack;
        pack.load(x + (at.to[1] + k * dim_stride));
        pack.store(y + j * V);
    }
}
