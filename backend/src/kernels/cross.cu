// y = a x b along a dimension of 3: y[0] = a[1] b[2] - a[2] b[1], and so on in turn.
//
// generated  the host prepends: T, OFFSET (i32 | i64)
// shapes     a, b, y: the same loops without that dimension, in which each has a stride of its own
// dtypes     T = f32 | f64 | f16 | bf16; both products and their difference are rounded in Compute<T> (no fused
//            multiply-add, so that a x a is 0), and the result once
// requires   y overlaps neither a nor b; at most 8 loops
// launch     one vector a thread, blocks of 256 threads, grid-stride
// bound      memory: a, b and y once

#define THREADS 256

DEV float product(float a, float b) { return __fmul_rn(a, b); }
DEV double product(double a, double b) { return __dmul_rn(a, b); }

extern "C" __global__ void __launch_bounds__(THREADS)
    cross(T* y, const T* a, const T* b, u64 n, i64 a_stride, i64 b_stride, i64 y_stride, const __grid_constant__ Loops loops) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < n; j += (u64)gridDim.x * THREADS) {
        const At<OFFSET> at(loops, j);
        Compute<T> u[3], v[3];
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            u[k] = load_value(a[at.to[0] + k * a_stride]);
            v[k] = load_value(b[at.to[1] + k * b_stride]);
        }
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            const int p = (k + 1) % 3, q = (k + 2) % 3;
            y[at.to[2] + k * y_stride] = cast<T>(product(u[p], v[q]) - product(u[q], v[p]));
        }
    }
}
