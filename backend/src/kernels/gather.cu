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
#define MAX_DIMS 8
#define OPERANDS 3

// Loops, innermost first; operand 0 is index, 1 is x. (scatter.cu has the same, with operand 2.)
struct Loops {
    u32 dims;
    FastDiv size32[MAX_DIMS];
    u64 size[MAX_DIMS];
    i64 stride[MAX_DIMS][OPERANDS];
};
// Offsets of the operands at flat index i. OFFSET is i32 when every index and offset stays below 2^31.
template <typename Offset>
struct At;
template <>
struct At<i32> {
    i32 index, x;
    DEV At(const Loops& loops, u64 flat) : index(0), x(0) {
        u32 i = (u32)flat;
#pragma unroll
        for (int d = 0; d < MAX_DIMS; ++d) {
            if (d == loops.dims) break;
            const u32 next = loops.size32[d].div(i);
            const i32 k = i - next * loops.size32[d].divisor;
            index += k * (i32)loops.stride[d][0];
            x += k * (i32)loops.stride[d][1];
            i = next;
        }
    }
};
template <>
struct At<i64> {
    i64 index, x;
    DEV At(const Loops& loops, u64 i) : index(0), x(0) {
        for (u32 d = 0; d < loops.dims; ++d) {
            const u64 next = i / loops.size[d];
            const i64 k = i - next * loops.size[d];
            index += k * loops.stride[d][0];
            x += k * loops.stride[d][1];
            i = next;
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    gather(T* y, const T* x, const IDX_T* index, u64 packs, i64 dim_stride, i64 dim_size, const __grid_constant__ Loops loops,
           FaultTable faults) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < packs; j += (u64)gridDim.x * THREADS) {
        const At<OFFSET> at(loops, j);
        const i64 k = checked_index(index[at.index], dim_size, faults);
        Pack<T, V> pack;
        pack.load(x + (at.x + k * dim_stride));
        pack.store(y + j * V);
    }
}
