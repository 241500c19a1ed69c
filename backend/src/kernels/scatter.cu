// x[x's element at i, but with coordinate index[i] in the indexed dimension] += value[i]: scatter and select with addition,
// or with "or" for bools. Repeated indices all count. With REDUCE, "*=", or the smaller or larger of the two.
//
// generated  the host prepends: T of x, VAL_T of value, IDX_T (i32 | i64), OFFSET (i32 | i64), and one of
//            CASE_ATOMIC   one thread an element. Integers and "or": the result does not depend on the order. Floats: it does,
//                          in the last bits, so this is only taken where the two below would be slow
//            CASE_LINES    one thread for all the values along the indexed dimension, in their order: deterministic
//            CASE_SHARED   one block for them, and a line of x in shared memory meanwhile: deterministic. See below
//            CASE_RANK, CASE_ROWS, CASE_CARRY   select_add for floats, deterministic: sorts the indices, then adds the rows of
//                          value that share an index in their order. See below
//            and, unless values are added, REDUCE: 1 multiplies; 2 takes the smaller, 3 the larger, of which NaN is both.
//            2 and 3 do not depend on the order, and come as ATOMIC, or as LINES with one value a line
// dtypes     T = f32 | f64 | f16 | bf16 | integers | b8. The sum is rounded to T once per call in SHARED, ROWS and CARRY;
//            ATOMIC and LINES round at every step, so 16-bit floats come with an f32 x (VAL_T stays 16-bit)
// requires   x contiguous and not overlapping value; at most 8 loops; dim_size > 0
// faults     an index outside [0, dim_size) is clamped and noted
// bound      memory: index, value, and the touched part of x twice

#define THREADS 256

#define ADD 0
#define MUL 1
#define MIN 2
#define MAX 3
#ifndef REDUCE
#define REDUCE ADD
#endif
#define IDENTITY (REDUCE == MUL ? 1 : 0)

template <typename C>
DEV C combine(C a, C b) {
    if (REDUCE == ADD) return a + b;
    if (REDUCE == MUL) return wrapping_mul(a, b);
    // Of zeros, -0 is the smaller: the bits do not depend on the order either.
    if (a == 0 && b == 0) return REDUCE == MIN ? (C)-(-a - b) : (C)(a + b);
    return REDUCE == MIN ? min_of(a, b) : max_of(a, b);
}

#if defined(CASE_ATOMIC) && REDUCE != ADD
template <typename To, typename From>
DEV To same_bits(From x) {
    union {
        From from;
        To to;
    } u;
    u.from = x;
    return u.to;
}
// Exchanges the word around an element; Bits has its width, Word is u32 or u64. The word lies inside the allocation, whose
// start and size are multiples of 4.
template <typename Bits, typename Word>
DEV void exchange(T* p, Compute<T> v) {
    Word* word = (Word*)((u64)p & ~(u64)(sizeof(Word) - 1));
    const u32 shift = (u32)((u64)p & (sizeof(Word) - 1)) * 8;
    const Word mask = (Word)(Bits)~(Bits)0 << shift;
    Word seen = *(volatile Word*)word, expected;
    do {
        expected = seen;
        const T before = same_bits<T, Bits>((Bits)(expected >> shift));
        const Bits after = same_bits<Bits, T>(cast<T>(combine(load_value(before), v)));
        if (REDUCE != MUL && after == (Bits)(expected >> shift)) return;  // what is smaller or larger already stays so
        seen = atomicCAS(word, expected, (expected & ~mask) | ((Word)after << shift));
    } while (seen != expected);
}
template <int BYTES>
struct Exchange;
template <>
struct Exchange<1> {
    static DEV void apply(T* p, Compute<T> v) { exchange<u8, u32>(p, v); }
};
template <>
struct Exchange<2> {
    static DEV void apply(T* p, Compute<T> v) { exchange<u16, u32>(p, v); }
};
template <>
struct Exchange<4> {
    static DEV void apply(T* p, Compute<T> v) { exchange<u32, u32>(p, v); }
};
template <>
struct Exchange<8> {
    static DEV void apply(T* p, Compute<T> v) { exchange<u64, u64>(p, v); }
};
DEV void atomic_combine(T* p, Compute<T> v) { Exchange<sizeof(T)>::apply(p, v); }
#endif

#ifdef CASE_ATOMIC
#if REDUCE == ADD
DEV void atomic_add(f32* p, f32 v) { atomicAdd(p, v); }
DEV void atomic_add(f64* p, f64 v) { atomicAdd(p, v); }
DEV void atomic_add(i32* p, i32 v) { atomicAdd(p, v); }
DEV void atomic_add(u32* p, u32 v) { atomicAdd(p, v); }
DEV void atomic_add(i64* p, i64 v) { atomicAdd((u64*)p, (u64)v); }
DEV void atomic_add(u64* p, u64 v) { atomicAdd(p, v); }
// A type narrower than 32 bits: its part of the aligned word around it is exchanged. The word lies inside the allocation,
// whose start and size are multiples of 4.
template <typename U, typename Bits>
DEV void atomic_add_narrow(U* p, U v) {
    u32* word = (u32*)((u64)p & ~(u64)3);
    const u32 shift = (u32)((u64)p & 3) * 8, mask = (u32)(Bits)~0u << shift;
    u32 seen = *(volatile u32*)word, expected;
    do {
        expected = seen;
        const u32 sum = (u32)(Bits)((Bits)(expected >> shift) + (Bits)v);
        seen = atomicCAS(word, expected, (expected & ~mask) | (sum << shift));
    } while (seen != expected);
}
DEV void atomic_add(i8* p, i8 v) { atomic_add_narrow<i8, u8>(p, v); }
DEV void atomic_add(u8* p, u8 v) { atomic_add_narrow<u8, u8>(p, v); }
DEV void atomic_add(i16* p, i16 v) { atomic_add_narrow<i16, u16>(p, v); }
DEV void atomic_add(u16* p, u16 v) { atomic_add_narrow<u16, u16>(p, v); }
// "or": whoever writes, writes 1.
DEV void atomic_add(b8* p, bool v) {
    if (v) p->bits = 1;
}
#define atomic_combine atomic_add
#endif

// launch     blocks of 256 threads, grid-stride; n elements
extern "C" __global__ void __launch_bounds__(THREADS)
    scatter(T* x, const VAL_T* value, const IDX_T* index, u64 n, i64 dim_stride, i64 dim_size,
            const __grid_constant__ Loops loops, FaultTable faults) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < n; j += (u64)gridDim.x * THREADS) {
        const At<OFFSET> at(loops, j);
        const i64 k = checked_index(index[at.to[0]], dim_size, faults);
        atomic_combine(x + (at.to[1] + k * dim_stride), load_value(value[at.to[2]]));
    }
}
#endif

#ifdef CASE_LINES
// launch     blocks of 256 threads, grid-stride; `lines` lines, which the loops walk (without the indexed dimension), of
//            `count` values each
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    scatter(T* x, const VAL_T* value, const IDX_T* index, u64 lines, u64 count, i64 index_stride, i64 value_stride,
            i64 dim_stride, i64 dim_size, const __grid_constant__ Loops loops, FaultTable faults) {
    for (u64 j = (u64)blockIdx.x * THREADS + threadIdx.x; j < lines; j += (u64)gridDim.x * THREADS) {
        const At<OFFSET> at(loops, j);
        const IDX_T* i = index + at.to[0];
        const VAL_T* v = value + at.to[2];
        for (u64 c = 0; c < count; ++c, i += index_stride, v += value_stride) {
            T* p = x + (at.to[1] + checked_index(*i, dim_size, faults) * dim_stride);
            *p = cast<T>(combine(load_value(*p), load_value(*v)));
        }
    }
}
#endif

#ifdef CASE_SHARED
// generated  also SIZE places in shared memory, V elements of x a pack
// shapes     x: [lines, size], row-major, size <= SIZE, size % V == 0;  from: what x holds before, alike, may be x;  `lines`
//            lines, which the loops walk, of `count` values each
// launch     blocks of LINE_THREADS threads, grid-stride
//
// Of each 32 values in a row, those with one place are added up in their order, and the sum is added to the line. Each warp finds
// the sums of STEPS times 32 values, which no other waits for; the warps then add theirs to the line in turn.
#define LINE_THREADS 128
#define FULL 0xffffffffu
#define PACKS 8  // of x in flight, for each thread
#define STEPS 8
#define WARP_VALUES (32 * STEPS)
#define VALUES (LINE_THREADS * STEPS)
typedef Acc<T> A;

extern "C" __global__ void __launch_bounds__(LINE_THREADS)
    scatter(T* x, const T* from, const VAL_T* value, const IDX_T* index, u64 lines, u64 count, i64 index_stride, i64 value_stride,
            u32 size, const __grid_constant__ Loops loops, FaultTable faults) {
    __shared__ Pack<A, V> packs[SIZE / V];  // the line
    A* line = packs[0].v;
    const u32 thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    for (u64 j = blockIdx.x; j < lines; j += gridDim.x) {
        const At<OFFSET> at(loops, j);
        const IDX_T* i = index + at.to[0];
        const VAL_T* v = value + at.to[2];
        IDX_T to[STEPS];
        VAL_T add[STEPS];
        auto load = [&](u64 first) {
#pragma unroll
            for (u32 s = 0; s < STEPS; ++s) {
                const u64 c = first + warp * WARP_VALUES + s * 32 + lane;
                if (c < count) {
                    to[s] = i[c * index_stride];
                    add[s] = v[c * value_stride];
                }
            }
        };
        load(0);
        for (u32 start = thread * V; start < size; start += LINE_THREADS * V * PACKS) {
            Pack<T, V> pack[PACKS];
#pragma unroll
            for (u32 p = 0; p < PACKS; ++p) {
                if (start + p * LINE_THREADS * V < size) pack[p].load(from + at.to[1] + start + p * LINE_THREADS * V);
            }
#pragma unroll
            for (u32 p = 0; p < PACKS; ++p) {
                if (start + p * LINE_THREADS * V < size) {
                    Pack<A, V> wide;
#pragma unroll
                    for (int k = 0; k < V; ++k) wide.v[k] = load_value(pack[p].v[k]);
                    wide.store(line + start + p * LINE_THREADS * V);
                }
            }
        }
        __syncthreads();

        for (u64 first = 0; first < count; first += VALUES) {
            u32 place[STEPS];  // of a sum; SIZE: none
            A sum[STEPS];
#pragma unroll
            for (u32 s = 0; s < STEPS; ++s) {
                const bool in = first + warp * WARP_VALUES + s * 32 + lane < count;
                place[s] = in ? (u32)checked_index(to[s], size, faults) : SIZE;
                sum[s] = in ? (A)load_value(add[s]) : (A)0;
            }
            load(first + VALUES);
#pragma unroll
            for (u32 s = 0; s < STEPS; ++s) {
                u32 same = FULL;  // the lanes with this place
#pragma unroll
                for (u32 bit = 1; bit <= SIZE; bit <<= 1) {
                    const u32 have = __ballot_sync(FULL, (place[s] & bit) != 0);
                    same &= place[s] & bit ? have : ~have;
                }
                // The first of them adds up what the others have.
                const bool leads = (same & ((1u << lane) - 1)) == 0;
                u32 others = leads && place[s] < SIZE ? same & (same - 1) : 0;
                const A mine = sum[s];
                while (__any_sync(FULL, others != 0)) {
                    const A next = __shfl_sync(FULL, mine, others ? __ffs(others) - 1 : lane);
                    if (others) sum[s] = combine(sum[s], next);
                    others &= others - 1;
                }
                if (!leads) place[s] = SIZE;
            }
            for (u32 turn = 0; turn < LINE_THREADS / 32 && first + turn * WARP_VALUES < count; ++turn) {
                if (turn == warp) {
#pragma unroll
                    for (u32 s = 0; s < STEPS; ++s) {
                        if (place[s] < SIZE) line[place[s]] = combine(line[place[s]], sum[s]);
                        __syncwarp();
                    }
                }
                __syncthreads();
            }
        }

        for (u32 start = thread * V; start < size; start += LINE_THREADS * V) {
            Pack<A, V> wide;
            wide.load(line + start);
            Pack<T, V> pack;
#pragma unroll
            for (int k = 0; k < V; ++k) pack.v[k] = cast<T>(wide.v[k]);
            pack.store(x + at.to[1] + start);
        }
        __syncthreads();  // before the next line's elements
    }
}
#endif

// --- select_add (or select_mul) for floats ------------------------------------------------------------------------------------------
// RANK sorts the n indices, stably: order[r] is the position of the r-th smallest, row[r] the index there. The sorted
// positions are cut into groups of GROUP. In ROWS a thread walks one group at one column (a pack of V columns): a run of equal
// rows that lies inside the group is added to x at once; the part of a run that came over from the group before goes to
// carry[group], the start of one that goes on in the next group to head[group]. CARRY then adds head[group], carry[group + 1],
// ... to x for each run that spans groups. Each element of x is written by one thread, in one fixed order of additions.

#define GROUP 32

#ifdef CASE_RANK
#define RANK_THREADS 128
#define TILE 1024
// launch     ceil(n / 128) blocks of 128 threads, n <= 2^31; KEY_T = u32 (dim_size < 2^32 - 1) | u64
extern "C" __global__ void __launch_bounds__(RANK_THREADS)
    scatter(u32* order, KEY_T* row, const IDX_T* index, u32 n, i64 dim_size, FaultTable faults) {
    __shared__ KEY_T tile[TILE];
    const u32 j = blockIdx.x * RANK_THREADS + threadIdx.x;
    const bool mine = j < n;
    const KEY_T key = mine ? (KEY_T)checked_index(index[j], dim_size, faults) : 0;
    u32 rank = 0;
    for (u32 start = 0; start < n; start += TILE) {
        __syncthreads();
        for (u32 k = threadIdx.x; k < TILE; k += RANK_THREADS) {
            // Clamped like `key`; what lies behind the end is greater than every key.
            KEY_T other = (KEY_T)~(KEY_T)0;
            if (start + k < n) {
                const i64 i = index[start + k];
                other = (KEY_T)(i < 0 ? 0 : i >= dim_size ? dim_size - 1 : i);
            }
            tile[k] = other;
        }
        __syncthreads();
        // An equal key counts when it stands before j.
        const u32 block = blockIdx.x * RANK_THREADS;
        if (start + TILE <= block) {
#pragma unroll 16
            for (u32 k = 0; k < TILE; ++k) rank += tile[k] <= key;
        } else if (start >= block + RANK_THREADS) {
#pragma unroll 16
            for (u32 k = 0; k < TILE; ++k) rank += tile[k] < key;
        } else {
            for (u32 k = 0; k < TILE; ++k) rank += tile[k] < key || (tile[k] == key && start + k < j);
        }
    }
    if (mine) {
        order[rank] = j;
        row[rank] = key;
    }
}
#endif

#if defined(CASE_ROWS) || defined(CASE_CARRY)
// shapes     x: [outer, dim_size, inner], value: [outer, n_all, inner] of which rows first .. first + n count, both contiguous
//            and multiples of V in inner; head, carry: [groups, outer * inner] of Acc<T>
// launch     one thread for each (group, pack of columns), columns fastest, blocks of 256 threads
struct Shape {
    u64 dim_size, inner, outer;  // inner in elements
    u64 value_rows, first;       // n_all and first
    u32 n;
};
typedef Acc<T> A;

// The pack at `offset` of x, combined with sum.
DEV void add_to(T* x, u64 offset, const A (&sum)[V]) {
    Pack<T, V> p;
    p.load(x + offset);
#pragma unroll
    for (int k = 0; k < V; ++k) p.v[k] = cast<T>(combine((A)load_value(p.v[k]), sum[k]));
    p.store(x + offset);
}
#endif

#ifdef CASE_ROWS
extern "C" __global__ void __launch_bounds__(THREADS)
    scatter(T* x, A* head, A* carry, const VAL_T* value, const u32* order, const KEY_T* row, Shape s) {
    const u64 packs = s.inner / V, columns = s.outer * packs;
    const u64 flat = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 group = flat / columns, column = flat - group * columns;
    const u64 begin = group * GROUP;
    if (begin >= s.n) return;
    const u32 end = begin + GROUP < s.n ? (u32)begin + GROUP : s.n;
    const u64 o = column / packs, c = (column - o * packs) * V;
    x += o * s.dim_size * s.inner + c;
    value += (o * s.value_rows + s.first) * s.inner + c;
    const u64 note = (group * columns + column) * V;

    A sum[V];
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = IDENTITY;
    KEY_T current = row[begin];
    bool continued = begin > 0 && row[begin - 1] == current;
    const u32 AHEAD = 4;  // rows of value in flight
    for (u32 p = (u32)begin; p < end; p += AHEAD) {
        Pack<VAL_T, V> v[AHEAD];
        KEY_T r[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; ++a) {
            if (p + a < end) {
                r[a] = row[p + a];
                v[a].load(value + (u64)order[p + a] * s.inner);
            }
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD; ++a) {
            if (p + a >= end) break;
            if (r[a] != current) {
                if (continued) {
#pragma unroll
                    for (int k = 0; k < V; ++k) carry[note + k] = sum[k];
                } else {
                    add_to(x, (u64)current * s.inner, sum);
                }
                continued = false;
                current = r[a];
#pragma unroll
                for (int k = 0; k < V; ++k) sum[k] = IDENTITY;
            }
#pragma unroll
            for (int k = 0; k < V; ++k) sum[k] = combine(sum[k], (A)load_value(v[a].v[k]));
        }
    }
    if (continued) {
#pragma unroll
        for (int k = 0; k < V; ++k) carry[note + k] = sum[k];
    } else if (end < s.n && row[end] == current) {
#pragma unroll
        for (int k = 0; k < V; ++k) head[note + k] = sum[k];
    } else {
        add_to(x, (u64)current * s.inner, sum);
    }
}
#endif

#ifdef CASE_CARRY
extern "C" __global__ void __launch_bounds__(THREADS) scatter(T* x, const A* head, const A* carry, const KEY_T* row, Shape s) {
    const u64 packs = s.inner / V, columns = s.outer * packs;
    const u64 flat = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 group = flat / columns, column = flat - group * columns;
    u64 next = (group + 1) * GROUP;
    if (next >= s.n) return;
    const KEY_T current = row[next - 1];
    if (row[next] != current) return;                        // the last run ends with the group
    if (group > 0 && row[group * GROUP - 1] == current) return;  // it began in an earlier one
    const u64 o = column / packs, c = (column - o * packs) * V;
    const u64 step = columns * V;
    u64 note = group * step + column * V;
    A sum[V];
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = head[note + k];
    for (; next < s.n && row[next] == current; next += GROUP) {
        note += step;
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = combine(sum[k], carry[note + k]);
    }
    add_to(x, (o * s.dim_size + (u64)current) * s.inner + c, sum);
}
#endif
