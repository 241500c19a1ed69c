// Reductions inside a group of lanes, a warp and a block. `combine` is associative and commutative; the order in which
// values meet is fixed, so results repeat bit for bit.

// The value of the lane whose number differs in the bits `lanes`. Structs get an overload next to their definition.
template <typename T>
DEV T shuffle_xor(T x, int lanes) {
    return __shfl_xor_sync(0xffffffffu, x, lanes);
}

// Over aligned groups of LANES lanes (a power of two, at most 32); every lane of the warp calls it and gets the result.
template <int LANES, typename T, typename F>
DEV T lanes_reduce(T x, F combine) {
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes >>= 1) x = combine(x, shuffle_xor(x, lanes));
    return x;
}

// Every lane gets the result.
template <typename T, typename F>
DEV T warp_reduce(T x, F combine) {
    return lanes_reduce<32>(x, combine);
}

// Every thread gets the result. `shared` holds 32 values; blockDim.x is a multiple of 32; may be called repeatedly.
template <typename T, typename F>
DEV T block_reduce(T x, T identity, T* shared, F combine) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    x = warp_reduce(x, combine);
    if (warps == 1) return x;
    __syncthreads();  // the previous call may still be read
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : identity;
    return warp_reduce(x, combine);
}

// Over GROUP neighbouring threads: lanes of a warp when GROUP <= 32, else the whole block of GROUP threads.
template <int GROUP, typename T, typename F>
DEV T group_reduce(T x, T identity, T* shared, F combine) {
    if (GROUP <= 32) return lanes_reduce<(GROUP < 32 ? GROUP : 32)>(x, combine);
    return block_reduce(x, identity, shared, combine);
}

// A block of ROWS x COLUMNS threads (thread = row * COLUMNS + column), V values each: combines over the rows, value by
// value. Row 0 gets the results. `shared` holds max(1, ROWS / 2) * COLUMNS * V values; every thread calls it.
template <int ROWS, int COLUMNS, int V, typename T, typename F>
DEV void rows_reduce(T (&x)[V], T* shared, F combine) {
    const int row = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
#pragma unroll
    for (int half = ROWS / 2; half > 0; half >>= 1) {
        __syncthreads();  // the previous step, or call, may still be read
        if (row >= half && row < 2 * half) {
#pragma unroll
            for (int k = 0; k < V; ++k) shared[((row - half) * V + k) * COLUMNS + column] = x[k];
        }
        __syncthreads();
        if (row < half) {
#pragma unroll
            for (int k = 0; k < V; ++k) x[k] = combine(x[k], shared[(row * V + k) * COLUMNS + column]);
        }
    }
}
