// y[i] = x[x's element at i, but with coordinate index[i] in the indexed dimension]: gather and select.
//
// generated  the host prepends: T (only its size matters), IDX_T (i32 | i64), OFFSET (i32 | i64), and the shape of a unit, which
//            is what a thread moves at once: V elements per index and ITEMS indices, one of the two being 1; UNROLL units
// shapes     y: contiguous, n elements; index and x: the same loops with their own strides, where x has stride 0 in the
//            indexed dimension, and index of a select has stride 0 in all others; the innermost loop's size and strides are
//            given in units
// requires   V > 1: x has stride 1 and index stride 0 in the innermost loop; x, its other strides, dim_stride and y are
//            multiples of V.  ITEMS > 1: index has stride 1 and x stride item_stride in the innermost loop; index and its other
//            strides, and y, are multiples of ITEMS.  at most 8 loops, dim_size > 0
// faults     an index outside [0, dim_size) is clamped and noted
// launch     UNROLL units a thread, blocks of 256 threads over consecutive units, grid-stride
// bound      memory: y, index, and the part of x that is read

#define THREADS 256
#define UNIT (V * ITEMS)

extern "C" __global__ void __launch_bounds__(THREADS)
    gather(T* y, const T* x, const IDX_T* index, u64 units, i64 dim_stride, i64 dim_size, i64 item_stride,
           const __grid_constant__ Loops loops, FaultTable faults) {
    const u64 step = (u64)gridDim.x * THREADS * UNROLL;
    for (u64 first = (u64)blockIdx.x * THREADS * UNROLL + threadIdx.x; first < units; first += step) {
        Pack<T, UNIT> unit[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const u64 j = first + u * THREADS;
            if (j >= units) break;
            const At<OFFSET> at(loops, j);
            Pack<IDX_T, ITEMS> named;
            named.load(index + at.to[0]);
            if (ITEMS == 1) {
                unit[u].load(x + (at.to[1] + checked_index(named.v[0], dim_size, faults) * dim_stride));
            } else {
#pragma unroll
                for (int k = 0; k < ITEMS; ++k) {
                    const i64 to = checked_index(named.v[k], dim_size, faults);
                    unit[u].v[k] = x[at.to[1] + k * item_stride + to * dim_stride];
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const u64 j = first + u * THREADS;
            if (j < units) unit[u].store(y + j * UNIT);
        }
    }
}
