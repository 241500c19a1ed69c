// The loop nest of gathers, scatters, cross products and views of quantised values, innermost loop first.

#define MAX_DIMS 8
#define OPERANDS 3

// Operand 0 is index, 1 is x (stride 0 in the indexed dimension), 2 is value, which a gather does not have. A cross product
// has its own.
struct Loops {
    u32 dims;
    FastDiv size32[MAX_DIMS];
    u64 size[MAX_DIMS];
    i64 stride[MAX_DIMS][OPERANDS];
};
// Offsets of the operands at a flat index. Offset is i32 when every index and offset stays below 2^31.
template <typename Offset>
struct At;
template <>
struct At<i32> {
    i32 to[OPERANDS];
    DEV At(const Loops& loops, u64 flat) : to{0, 0, 0} {
        u32 i = (u32)flat;
#pragma unroll
        for (int d = 0; d < MAX_DIMS; ++d) {
            if (d == loops.dims) break;
            const u32 next = loops.size32[d].div(i);
            const i32 k = i - next * loops.size32[d].divisor;
#pragma unroll
            for (int o = 0; o < OPERANDS; ++o) to[o] += k * (i32)loops.stride[d][o];
            i = next;
        }
    }
};
template <>
struct At<i64> {
    i64 to[OPERANDS];
    DEV At(const Loops& loops, u64 i) : to{0, 0, 0} {
        for (u32 d = 0; d < loops.dims; ++d) {
            const u64 next = i / loops.size[d];
            const i64 k = i - next * loops.size[d];
#pragma unroll
            for (int o = 0; o < OPERANDS; ++o) to[o] += k * loops.stride[d][o];
            i = next;
        }
    }
};
