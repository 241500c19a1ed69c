// y[r, :], index[r, :] = the row x[r, :] in rising (or falling) order and where each element stood; equal elements keep their order.
//
// generated  the host prepends: T; one CASE_; THREADS, ITEMS elements a thread; WARP: GROUP lanes a row; COUNT: V elements per pack;
//            all but COUNT: IDX_T (u32 | u64) of `index`
// order      -inf < .. < -0 = 0 < .. < inf < NaN, whatever its sign. Elements are moved as bits, so each keeps its sign and payload
// shapes     x: [R, n] row-major;  y, index: [R, kept], of each row the first `kept`;  from: as x, what to write for an element in
//            place of where it stands (null: that).  y and index may be null
// dtypes     T = f32 | f64 | f16 | bf16 | integers
// requires   n < 2^32; THREADS a multiple of 32, in BLOCK, COUNT and SCATTER at least DIGITS; y, index do not overlap x, from
// bound      memory. WARP, BLOCK, SELECT: x, y, index once.  COUNT and SCATTER, for each of the sizeof(T) digits: x twice, from,
//            y, index

#define FULL 0xffffffffu
#define DIGITS 256
#define WARPS (THREADS / 32)

// --- the order of elements -------------------------------------------------------------------------------------------------------

enum Kind { UNSIGNED, SIGNED, FLOAT };
template <typename T_>
struct Key;
#define KILN_KEY(T_, BITS_, KIND_, INF_)      \
    template <>                               \
    struct Key<T_> {                          \
        typedef BITS_ Bits;                   \
        static const Kind KIND = KIND_;       \
        static const BITS_ INF = (BITS_)INF_; \
    };
KILN_KEY(f64, u64, FLOAT, 0x7ff0000000000000ull)
KILN_KEY(f32, u32, FLOAT, 0x7f800000u)
KILN_KEY(f16, u16, FLOAT, 0x7c00u)
KILN_KEY(bf16, u16, FLOAT, 0x7f80u)
KILN_KEY(i64, u64, SIGNED, 0)
KILN_KEY(i32, u32, SIGNED, 0)
KILN_KEY(i16, u16, SIGNED, 0)
KILN_KEY(i8, u8, SIGNED, 0)
KILN_KEY(u64, u64, UNSIGNED, 0)
KILN_KEY(u32, u32, UNSIGNED, 0)
KILN_KEY(u16, u16, UNSIGNED, 0)
KILN_KEY(u8, u8, UNSIGNED, 0)
typedef Key<T>::Bits Bits;

// Unsigned integers in the order of the elements, equal for equal ones. Falling: their complement.
DEV Bits rank_of(Bits u, u32 falling) {
    const Bits sign = (Bits)((Bits)1 << (8 * sizeof(Bits) - 1));
    if (Key<T>::KIND == SIGNED) u = (Bits)(u ^ sign);
    if (Key<T>::KIND == FLOAT) {
        const Bits magnitude = (Bits)(u & (Bits)~sign);
        if (magnitude > Key<T>::INF) {
            u = (Bits)~(Bits)0;
        } else {
            u = u > sign ? (Bits)~u : (Bits)(magnitude | sign);  // -0 goes the way of 0
        }
    }
    return falling ? (Bits)~u : u;
}

// The sum over the lanes up to this one; every lane of the warp calls it.
DEV u32 sum_up(u32 x) {
    const u32 lane = threadIdx.x & 31;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const u32 below = __shfl_up_sync(FULL, x, d);
        if (lane >= d) x += below;
    }
    return x;
}

#ifdef CASE_WARP
// A bitonic sort of (element, place) in the registers of GROUP lanes, of which lane l holds the places l * ITEMS + i of the network.
// launch     a row for GROUP neighbouring threads; GROUP * ITEMS >= n, at most 256; GROUP a power of two, at most 32

// Pairs that are compared as one number, where they fit.
template <int BYTES>
struct PairOf {
    typedef u32 type;
    static DEV u32 make(Bits rank, u32 at) { return (u32)rank << 8 | at; }
    static DEV u32 at(u32 pair) { return pair & 255; }
};
template <>
struct PairOf<4> {
    typedef u64 type;
    static DEV u64 make(Bits rank, u32 at) { return (u64)rank << 32 | at; }
    static DEV u32 at(u64 pair) { return (u32)pair; }
};
struct LongPair {
    u64 rank;
    u32 place;
};
template <>
struct PairOf<8> {
    typedef LongPair type;
    static DEV LongPair make(Bits rank, u32 at) { return LongPair{(u64)rank, at}; }
    static DEV u32 at(LongPair pair) { return pair.place; }
};
typedef PairOf<sizeof(Bits)> Pairs;
typedef Pairs::type Pair;

DEV bool less(u32 a, u32 b) { return a < b; }
DEV bool less(u64 a, u64 b) { return a < b; }
DEV bool less(LongPair a, LongPair b) { return a.rank < b.rank || (a.rank == b.rank && a.place < b.place); }
DEV u32 of_lane_xor(u32 x, int lanes) { return __shfl_xor_sync(FULL, x, lanes); }
DEV u64 of_lane_xor(u64 x, int lanes) { return __shfl_xor_sync(FULL, x, lanes); }
DEV LongPair of_lane_xor(LongPair x, int lanes) {
    return LongPair{__shfl_xor_sync(FULL, x.rank, lanes), __shfl_xor_sync(FULL, x.place, lanes)};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sort_warp(T* y, IDX_T* index, const T* x, const u32* from, u64 rows, u32 n, u32 kept, u32 falling) {
    const u32 lane = threadIdx.x % GROUP;
    const u64 row = (u64)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const bool live = row < rows;  // the others take part in the exchanges
    const Bits* bits = (const Bits*)x + row * n;

    Pair v[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        // Which place of the network an element starts from does not matter. Behind the row: greater than all.
        const u32 at = i * GROUP + lane;
        v[i] = Pairs::make(live && at < n ? rank_of(bits[at], falling) : (Bits)~(Bits)0, at);
    }
#pragma unroll
    for (int size = 2; size <= GROUP * ITEMS; size <<= 1) {
#pragma unroll
        for (int step = size / 2; step > 0; step >>= 1) {
            if (step >= ITEMS) {
#pragma unroll
                for (int i = 0; i < ITEMS; ++i) {
                    const u32 place = lane * ITEMS + i;
                    const Pair other = of_lane_xor(v[i], step / ITEMS);
                    const bool smaller = ((place & step) == 0) == ((place & size) == 0);
                    if (less(other, v[i]) == smaller) v[i] = other;
                }
            } else {
#pragma unroll
                for (int i = 0; i < ITEMS; ++i) {
                    const int j = i ^ step;
                    if (j < i) continue;
                    const bool rising = ((lane * ITEMS + i) & size) == 0;
                    if (less(v[j], v[i]) == rising) {
                        const Pair t = v[i];
                        v[i] = v[j];
                        v[j] = t;
                    }
                }
            }
        }
    }
    u32 at[ITEMS];
    if (ITEMS == 1) {
        at[0] = Pairs::at(v[0]);
    } else {
        // So that neighbours write neighbours.
        __shared__ u8 places[THREADS * ITEMS];
        const u32 start = threadIdx.x / GROUP * (GROUP * ITEMS);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) places[start + lane * ITEMS + i] = (u8)Pairs::at(v[i]);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) at[i] = places[start + i * GROUP + lane];
    }
    if (!live) return;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const u32 p = i * GROUP + lane;
        if (p >= kept) break;
        if (y) ((Bits*)y)[row * kept + p] = bits[at[i]];
        if (index) index[row * kept + p] = from ? from[row * n + at[i]] : at[i];
    }
}
#endif

#if defined(CASE_BLOCK) || defined(CASE_SCATTER)
// --- the ranks of a block's elements by one digit -----------------------------------------------------------------------------------
// The item i of a thread stands at place_of(i): a warp's items are neighbours, and its lanes' too.

#define TILE (THREADS * ITEMS)
static_assert(TILE <= 65535 && THREADS >= DIGITS, "ranks have 16 bits, and each digit a thread");

DEV u32 place_of(int i) { return (threadIdx.x >> 5) * (32 * ITEMS) + (threadIdx.x & 31) + i * 32; }

struct Ranks {
    u16 warp[WARPS][DIGITS];  // of each warp, how many there are; then where those of the digit begin
    u32 sum[DIGITS / 32];
};

// From the digit of each item to its place when the block's items are ordered by digit, equal ones as they stand. Every thread calls
// it; threads below DIGITS get where their digit begins. A barrier must stand between two calls.
DEV u32 ranks_of(u32 (&item)[ITEMS], Ranks& shared) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int d = 0; d < DIGITS; d += 32) shared.warp[warp][d + lane] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        u32 peers = FULL;
#pragma unroll
        for (int b = 0; b < 8; ++b) {
            const bool set = item[i] >> b & 1;
            const u32 those = __ballot_sync(FULL, set);
            peers &= set ? those : ~those;
        }
        const u32 before = __popc(peers & ((1u << lane) - 1));
        const u32 seen = shared.warp[warp][item[i]];
        __syncwarp();
        if (before == 0) shared.warp[warp][item[i]] = (u16)(seen + __popc(peers));
        __syncwarp();
        item[i] = item[i] << 16 | (seen + before);  // one register for both
    }
    __syncthreads();
    // Over the warps, then over the digits.
    u32 count = 0, up = 0;
    if (threadIdx.x < DIGITS) {
        for (int w = 0; w < WARPS; ++w) count += shared.warp[w][threadIdx.x];
        up = sum_up(count);
        if (lane == 31) shared.sum[warp] = up;
    }
    __syncthreads();
    u32 start = up - count;
    if (threadIdx.x < DIGITS) {
        for (int w = 0; w < warp; ++w) start += shared.sum[w];
        u32 next = start;
        for (int w = 0; w < WARPS; ++w) {
            const u32 those = shared.warp[w][threadIdx.x];
            shared.warp[w][threadIdx.x] = (u16)next;
            next += those;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) item[i] = (item[i] & 0xffff) + shared.warp[warp][item[i] >> 16];
    return start;
}

// What elements, and then their indices, change places in.
template <int BYTES>
struct SlotOf {
    typedef u32 type;
};
template <>
struct SlotOf<8> {
    typedef u64 type;
};
typedef SlotOf<sizeof(Bits)>::type Slot;
#endif

#ifdef CASE_BLOCK
// All digits, in a block. A digit that all elements share is left out.
// launch     a block a row; n <= TILE
struct Or {
    DEV Slot operator()(Slot a, Slot b) const { return a | b; }
};

extern "C" __global__ void __launch_bounds__(THREADS, THREADS > 256 || sizeof(Bits) == 8 ? 2 : 4)
    sort_block(T* y, IDX_T* index, const T* x, const u32* from, u32 n, u32 kept, u32 falling) {
    __shared__ Ranks ranks;
    __shared__ Slot slots[TILE];
    __shared__ Slot reduced[32];
    const Bits* bits = (const Bits*)x + (u64)blockIdx.x * n;

    // What lies behind the end has the greatest digit in each pass, so it stays there.
    Bits key[ITEMS];
    u32 at[ITEMS / 2];  // where items stood, two of 16 bits in one
    const Bits first = rank_of(bits[0], falling);
    Slot differ = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const u32 p = place_of(i);
        at[i / 2] = i % 2 ? at[i / 2] | p << 16 : p;
        key[i] = p < n ? bits[p] : bits[0];
        differ |= (Bits)(rank_of(key[i], falling) ^ first);
    }
    differ = block_reduce(differ, (Slot)0, reduced, Or());
#pragma unroll 1
    for (u32 shift = 0; shift < 8 * sizeof(Bits); shift += 8) {
        if ((differ >> shift & (DIGITS - 1)) == 0) continue;
        u32 rank[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            rank[i] = place_of(i) < n ? (u32)(rank_of(key[i], falling) >> shift) & (DIGITS - 1) : DIGITS - 1;
        ranks_of(rank, ranks);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) slots[rank[i]] = key[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) key[i] = (Bits)slots[place_of(i)];
        __syncthreads();
        if (index) {
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) slots[rank[i]] = at[i / 2] >> i % 2 * 16 & 0xffff;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                const u32 p = (u32)slots[place_of(i)];
                at[i / 2] = i % 2 ? at[i / 2] | p << 16 : p;
            }
            __syncthreads();
        }
    }
    if (y) y += (u64)blockIdx.x * kept;
    if (index) index += (u64)blockIdx.x * kept;
    if (from) from += (u64)blockIdx.x * n;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const u32 p = place_of(i);
        if (p >= kept) break;
        if (y) ((Bits*)y)[p] = key[i];
        const u32 stood = at[i / 2] >> i % 2 * 16 & 0xffff;
        if (index) index[p] = from ? from[stood] : stood;
    }
}
#endif

#ifdef CASE_SELECT
// The first `kept` elements of each tile of a row, in the places' order: what a sort of the row has first is among them. The rank
// of the last one is found bit by bit.
// shapes     y, index: [R, out_n], `kept` for each tile, of which the last may have fewer
// launch     (rows, tiles) linear in x; kept <= TILE
#define TILE (THREADS * ITEMS)
static_assert(TILE <= 65535, "counts have 16 bits");
#define GROUPS (WARPS * ITEMS)  // of 32 neighbours in a tile
#define GROUPS_A_LANE ((GROUPS + 31) / 32)

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    sort_select(T* y, IDX_T* index, const T* x, const u32* from, u32 n, u32 tiles, u32 kept, u64 out_n, u32 falling) {
    __shared__ u32 counts[8 * sizeof(Bits)];
    __shared__ u32 before[GROUPS_A_LANE * 32];  // less than the last one, and 1 << 16 times those equal to it
    const u64 row = blockIdx.x / tiles;
    const u32 tile = blockIdx.x - (u32)row * tiles, start = tile * TILE;
    const u32 size = n - start < TILE ? n - start : TILE;
    const Bits* bits = (const Bits*)x + (row * n + start);
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

    // What lies behind the end is equal to the greatest, and stands behind it.
    Bits rank[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const u32 p = i * THREADS + threadIdx.x;
        rank[i] = p < size ? rank_of(bits[p], falling) : (Bits)~(Bits)0;
    }
    if (threadIdx.x < 8 * sizeof(Bits)) counts[threadIdx.x] = 0;
    if (threadIdx.x < GROUPS_A_LANE * 32) before[threadIdx.x] = 0;
    __syncthreads();
    // The greatest rank that no more than those wanted are less than.
    const u32 wanted = kept < size ? kept : size;
    Bits last = 0;
    u32 less = 0;
#pragma unroll 1
    for (int b = 8 * sizeof(Bits) - 1; b >= 0 && less < wanted; --b) {
        const Bits next = (Bits)(last | (Bits)1 << b);
        u32 mine = 0;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) mine += rank[i] < next;
        mine = __reduce_add_sync(FULL, mine);
        if (lane == 0) atomicAdd(&counts[b], mine);
        __syncthreads();
        if (counts[b] <= wanted) last = next, less = counts[b];
    }
    const u32 equal_wanted = wanted - less;

#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const u32 lower = __ballot_sync(FULL, rank[i] < last), equal = __ballot_sync(FULL, rank[i] == last);
        if (lane == 0) before[i * WARPS + warp] = __popc(lower) + (__popc(equal) << 16);
    }
    __syncthreads();
    if (warp == 0) {
        u32 count[GROUPS_A_LANE], sum = 0;
#pragma unroll
        for (int g = 0; g < GROUPS_A_LANE; ++g) {
            count[g] = before[lane * GROUPS_A_LANE + g];
            sum += count[g];
        }
        u32 up = sum_up(sum) - sum;
#pragma unroll
        for (int g = 0; g < GROUPS_A_LANE; ++g) {
            before[lane * GROUPS_A_LANE + g] = up;
            up += count[g];
        }
    }
    __syncthreads();
    const u64 out = row * out_n + (u64)tile * kept;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const u32 lower = __ballot_sync(FULL, rank[i] < last), equal = __ballot_sync(FULL, rank[i] == last);
        const u32 lanes = (1u << lane) - 1, sums = before[i * WARPS + warp];
        const u32 equals = (sums >> 16) + __popc(equal & lanes);
        if (rank[i] < last || (rank[i] == last && equals < equal_wanted)) {
            const u32 p = i * THREADS + threadIdx.x;
            const u64 to = out + (sums & 0xffff) + __popc(lower & lanes) + min(equals, equal_wanted);
            if (y) ((Bits*)y)[to] = bits[p];
            if (index) index[to] = from ? from[row * n + start + p] : start + p;
        }
    }
}
#endif

// --- rows longer than a block: a digit at a time, from the lowest ---------------------------------------------------------------------
// COUNT counts the digits of each tile of a row, the host sums the counts up along the tiles (inclusively), and SCATTER writes each
// tile's elements behind those of lower digits and of earlier tiles.
//
// counts     [R, DIGITS, tiles]

#ifdef CASE_COUNT
// launch     (rows, tiles) linear in x; V > 1: n a multiple of V, x of the pack
#define TILE (THREADS * ITEMS)
extern "C" __global__ void __launch_bounds__(THREADS)
    sort_count(u32* counts, const T* x, u32 n, u32 tiles, u32 shift, u32 falling) {
    __shared__ u32 count[DIGITS];
    const u64 row = blockIdx.x / tiles;
    const u32 tile = blockIdx.x - (u32)row * tiles, start = tile * TILE;
    const u32 size = n - start < TILE ? n - start : TILE;
    const Bits* bits = (const Bits*)x + (row * n + start);
    const int PACKS = (TILE / V + THREADS - 1) / THREADS;  // of a thread; there may be none for the last ones
    Pack<Bits, V> pack[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const u32 p = (k * THREADS + threadIdx.x) * V;
        if (p < size) pack[k].load(bits + p);
    }
    if (threadIdx.x < DIGITS) count[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        if ((k * THREADS + threadIdx.x) * V >= size) break;
#pragma unroll
        for (int j = 0; j < V; ++j)
            atomicAdd(&count[(u32)(rank_of(pack[k].v[j], falling) >> shift) & (DIGITS - 1)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < DIGITS) counts[(row * DIGITS + threadIdx.x) * tiles + tile] = count[threadIdx.x];
}
#endif

#ifdef CASE_SCATTER
// launch     (rows, tiles) linear in x; counts summed up
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    sort_scatter(T* y, IDX_T* index, const T* x, const u32* from, const u32* counts, u32 n, u32 tiles, u32 shift, u32 kept,
                 u32 falling) {
    __shared__ Ranks ranks;
    __shared__ Slot slots[TILE];
    __shared__ u32 base[DIGITS];  // of each digit, from a place in the tile to one in the row; wraps
    const u64 row = blockIdx.x / tiles;
    const u32 tile = blockIdx.x - (u32)row * tiles, start = tile * TILE;
    const u32 size = n - start < TILE ? n - start : TILE;
    const Bits* bits = (const Bits*)x + (row * n + start);
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

    Bits key[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (place_of(i) < size) key[i] = bits[place_of(i)];
    // Elements of this digit in the row, and in its earlier tiles.
    u32 all = 0, earlier = 0;
    if (threadIdx.x < DIGITS) {
        const u32* c = counts + (row * DIGITS + threadIdx.x) * tiles;
        all = c[tiles - 1];
        if (tile > 0) earlier = c[tile - 1];
    }
    u32 rank[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        // What lies behind the end gets the last ranks.
        rank[i] = place_of(i) < size ? (u32)(rank_of(key[i], falling) >> shift) & (DIGITS - 1) : DIGITS - 1;
    const u32 begin = ranks_of(rank, ranks);

    u32 up = all;
    if (threadIdx.x < DIGITS) {
        up = sum_up(all);
        if (lane == 31) ranks.sum[warp] = up;  // read last before a barrier in ranks_of
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (place_of(i) < size) slots[rank[i]] = key[i];
    __syncthreads();
    if (threadIdx.x < DIGITS) {
        u32 lower = up - all;
        for (int w = 0; w < warp; ++w) lower += ranks.sum[w];
        base[threadIdx.x] = lower + earlier - begin;
    }
    __syncthreads();
    u32 to[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const u32 p = i * THREADS + threadIdx.x;
        if (p < size) {
            const Bits k = (Bits)slots[p];
            to[i] = base[(u32)(rank_of(k, falling) >> shift) & (DIGITS - 1)] + p;
            if (y && to[i] < kept) ((Bits*)y)[row * kept + to[i]] = k;
        }
    }
    if (!index) return;
    if (from) from += row * n + start;
    index += row * kept;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (place_of(i) < size) slots[rank[i]] = from ? from[place_of(i)] : start + place_of(i);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const u32 p = i * THREADS + threadIdx.x;
        if (p < size && to[i] < kept) index[to[i]] = (IDX_T)slots[p];
    }
}
#endif
