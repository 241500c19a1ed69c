// CUDA C++ for the host compiler: what a kernel that includes nothing may use, on top of a few calls into the emulator.
// Loads and stores reach the emulator through the calls that the compiler makes for its race detector (-fsanitize=thread).

#define KILN_EMULATOR 1
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __restrict__ __restrict
#define KILN_UNCHECKED __attribute__((no_sanitize("thread"), noinline))

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };

extern "C" {
// Filled by the emulator before a launch; the first four fields change from thread to thread and block to block.
struct KilnState {
    uint3 threadIdx, blockIdx;
    dim3 blockDim, gridDim;
    void (*access)(unsigned long address, unsigned long bytes, int kind);
    void (*variable)(unsigned long address, unsigned long bytes);
    void (*barrier)(int line);
    unsigned long (*warp)(int what, unsigned mask, unsigned long value, int lane, int width, int line);
};
KilnState kiln_state = {};

#define KILN_HOOK __attribute__((no_sanitize("thread"), visibility("hidden")))
KILN_HOOK void kiln_access(unsigned long a, unsigned long bytes, int kind) {
    if (a - (unsigned long)&kiln_state >= sizeof(KilnState)) kiln_state.access(a, bytes, kind);
}
#define KILN_CHECK(NAME, BYTES, KIND) \
    KILN_HOOK void __tsan_##NAME(unsigned long a) { kiln_access(a, BYTES, KIND); }
#define KILN_CHECKS(PREFIX)                                                                                             \
    KILN_CHECK(PREFIX##read1, 1, 0) KILN_CHECK(PREFIX##read2, 2, 0) KILN_CHECK(PREFIX##read4, 4, 0)                     \
    KILN_CHECK(PREFIX##read8, 8, 0) KILN_CHECK(PREFIX##read16, 16, 0)                                                   \
    KILN_CHECK(PREFIX##write1, 1, 1) KILN_CHECK(PREFIX##write2, 2, 1) KILN_CHECK(PREFIX##write4, 4, 1)                  \
    KILN_CHECK(PREFIX##write8, 8, 1) KILN_CHECK(PREFIX##write16, 16, 1)
KILN_CHECKS()
KILN_CHECKS(unaligned_)
KILN_HOOK void __tsan_read_range(unsigned long a, unsigned long n) { kiln_access(a, n, 0); }
KILN_HOOK void __tsan_write_range(unsigned long a, unsigned long n) { kiln_access(a, n, 1); }
KILN_HOOK void __tsan_init() {}
KILN_HOOK void __tsan_func_entry(void*) {}
KILN_HOOK void __tsan_func_exit() {}
}
#define threadIdx kiln_state.threadIdx
#define blockIdx kiln_state.blockIdx
#define blockDim kiln_state.blockDim
#define gridDim kiln_state.gridDim
static const int warpSize = 32;

// A shared variable with room behind it, which belongs to nobody. By reference, so that the compiler knows nothing of it
// and every access is checked.
template <typename T>
struct KilnShared {
    alignas(16) unsigned char bytes[sizeof(T)];
    alignas(16) unsigned char beyond[256];
};
template <typename T>
static inline T& kiln_shared(KilnShared<T>& x) {
    kiln_state.variable((unsigned long)x.bytes, sizeof(T));
    T* p = (T*)x.bytes;
    asm volatile("" : "+r"(p));
    return *p;
}

// --- bits ------------------------------------------------------------------------------------------------------------

template <typename To, typename From>
static inline To kiln_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "the widths are equal");
    To y;
    __builtin_memcpy(&y, &x, sizeof(To));
    return y;
}
static inline float __uint_as_float(unsigned x) { return kiln_bits<float>(x); }
static inline float __int_as_float(int x) { return kiln_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return kiln_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return kiln_bits<int>(x); }
static inline double __longlong_as_double(long long x) { return kiln_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return kiln_bits<long long>(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }

// --- conversions and arithmetic ------------------------------------------------------------------------------------------

static inline float __double2float_rz(double x) {
    const float near = (float)x;
    if (near != near || __builtin_isinf(x)) return near;
    const double size = __builtin_fabs(x), got = __builtin_fabs((double)near);
    return got > size ? __uint_as_float(__float_as_uint(near) - 1) : near;
}
// The instructions that the prelude otherwise gives in PTX.
static inline float ptx_f16_to_f32(unsigned short x) { return (float)kiln_bits<_Float16>(x); }
static inline unsigned short ptx_f32_to_f16(float x) { return kiln_bits<unsigned short>((_Float16)x); }
static inline unsigned short ptx_f64_to_f16(double x) { return kiln_bits<unsigned short>((_Float16)x); }
static inline unsigned short ptx_f32_to_bf16(float x) {
    const unsigned bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float kiln_flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.f, x) : x; }
static inline float ptx_rcp(float x) { return kiln_flush(1.f / kiln_flush(x)); }
static inline float ptx_exp2(float x) { return kiln_flush(__builtin_exp2f(kiln_flush(x))); }

#define KILN_MATH1(NAME)                                                  \
    static inline float NAME##f(float x) { return __builtin_##NAME##f(x); } \
    static inline double NAME(double x) { return __builtin_##NAME(x); }
KILN_MATH1(exp) KILN_MATH1(exp2) KILN_MATH1(expm1) KILN_MATH1(log) KILN_MATH1(log2) KILN_MATH1(log10) KILN_MATH1(log1p)
KILN_MATH1(sqrt) KILN_MATH1(cbrt) KILN_MATH1(cos) KILN_MATH1(sin) KILN_MATH1(tan) KILN_MATH1(cosh) KILN_MATH1(sinh)
KILN_MATH1(tanh) KILN_MATH1(acos) KILN_MATH1(acosh) KILN_MATH1(asin) KILN_MATH1(asinh) KILN_MATH1(atan) KILN_MATH1(atanh)
KILN_MATH1(erf) KILN_MATH1(erfc) KILN_MATH1(floor) KILN_MATH1(ceil) KILN_MATH1(trunc) KILN_MATH1(rint) KILN_MATH1(round)
KILN_MATH1(fabs)
#define KILN_MATH2(NAME)                                                                     \
    static inline float NAME##f(float x, float y) { return __builtin_##NAME##f(x, y); }        \
    static inline double NAME(double x, double y) { return __builtin_##NAME(x, y); }
KILN_MATH2(pow) KILN_MATH2(atan2) KILN_MATH2(fmod) KILN_MATH2(fmax) KILN_MATH2(fmin) KILN_MATH2(copysign) KILN_MATH2(hypot)
static inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float rsqrtf(float x) { return 1.f / __builtin_sqrtf(x); }
static inline double rsqrt(double x) { return 1. / __builtin_sqrt(x); }
static inline float __expf(float x) { return __builtin_expf(x); }
static inline float __logf(float x) { return __builtin_logf(x); }
// Never fused with an addition, which no operation is here.
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __fdividef(float a, float b) { return a / b; }
// Half-turns are reduced exactly, as on the device.
static inline void sincospi(double x, double* s, double* c) {
    const double r = __builtin_fmod(x, 2.);
    const double t = r * 4.;
    const double octant = __builtin_rint(t);
    const double angle = (r - octant * 0.25) * 3.14159265358979323846;
    const double a = __builtin_sin(angle), b = __builtin_cos(angle), h = 0.70710678118654752440;
    switch (((int)octant % 8 + 8) % 8) {
        case 0: *s = a, *c = b; break;
        case 1: *s = h * (a + b), *c = h * (b - a); break;
        case 2: *s = b, *c = -a; break;
        case 3: *s = h * (b - a), *c = -h * (a + b); break;
        case 4: *s = -a, *c = -b; break;
        case 5: *s = -h * (a + b), *c = h * (a - b); break;
        case 6: *s = -b, *c = a; break;
        default: *s = h * (a - b), *c = h * (a + b); break;
    }
}
static inline void sincospif(float x, float* s, float* c) {
    double ds, dc;
    sincospi(x, &ds, &dc);
    *s = (float)ds, *c = (float)dc;
}
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
static inline unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }

// --- threads that meet -----------------------------------------------------------------------------------------------------

#define __syncthreads() kiln_state.barrier(__LINE__)
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}

enum { KILN_SYNC, KILN_XOR, KILN_UP, KILN_DOWN, KILN_INDEX, KILN_BALLOT };
template <typename T>
static inline T kiln_exchange(int what, unsigned mask, T x, int lane, int width, int line) {
    static_assert(sizeof(T) <= 8, "a lane has 8 bytes to exchange, at most");
    unsigned long word = 0;
    __builtin_memcpy(&word, &x, sizeof(T));
    word = kiln_state.warp(what, mask, word, lane, width, line);
    T y;
    __builtin_memcpy(&y, &word, sizeof(T));
    return y;
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T x, int lane, int width = 32, int line = __builtin_LINE()) {
    return kiln_exchange(KILN_XOR, mask, x, lane, width, line);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T x, unsigned lane, int width = 32, int line = __builtin_LINE()) {
    return kiln_exchange(KILN_UP, mask, x, (int)lane, width, line);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T x, unsigned lane, int width = 32, int line = __builtin_LINE()) {
    return kiln_exchange(KILN_DOWN, mask, x, (int)lane, width, line);
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32, int line = __builtin_LINE()) {
    return kiln_exchange(KILN_INDEX, mask, x, lane, width, line);
}
static inline unsigned __ballot_sync(unsigned mask, int x, int line = __builtin_LINE()) {
    return (unsigned)kiln_state.warp(KILN_BALLOT, mask, x != 0, 0, 32, line);
}
static inline int __any_sync(unsigned mask, int x, int line = __builtin_LINE()) { return __ballot_sync(mask, x, line) != 0; }
static inline int __all_sync(unsigned mask, int x, int line = __builtin_LINE()) { return __ballot_sync(mask, x, line) == mask; }
// Of the whole warp.
static inline unsigned __reduce_add_sync(unsigned mask, unsigned x, int line = __builtin_LINE()) {
    for (int lanes = 16; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(mask, x, lanes, 32, line);
    return x;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    kiln_state.warp(KILN_SYNC, mask, 0, 0, 32, line);
}

// --- atomics: threads are never interrupted, so a plain update is one; the emulator is told ---------------------------------------

template <typename T, typename F>
static KILN_UNCHECKED T kiln_update(T* p, F next) {
    kiln_state.access((unsigned long)p, sizeof(T), 2);
    const T old = *p;
    *p = next(old);
    return old;
}
#define KILN_ATOMICS(T)                                                                                                          \
    static inline T atomicExch(T* p, T v) { return kiln_update(p, [=](T) KILN_UNCHECKED { return v; }); }                           \
    static inline T atomicAdd(T* p, T v) { return kiln_update(p, [=](T x) KILN_UNCHECKED { return (T)(x + v); }); }                 \
    static inline T atomicMax(T* p, T v) { return kiln_update(p, [=](T x) KILN_UNCHECKED { return x > v ? x : v; }); }              \
    static inline T atomicMin(T* p, T v) { return kiln_update(p, [=](T x) KILN_UNCHECKED { return x < v ? x : v; }); }
KILN_ATOMICS(int) KILN_ATOMICS(unsigned) KILN_ATOMICS(unsigned long long) KILN_ATOMICS(float) KILN_ATOMICS(double)
#define KILN_BIT_ATOMICS(T)                                                                                                      \
    static inline T atomicOr(T* p, T v) { return kiln_update(p, [=](T x) KILN_UNCHECKED { return x | v; }); }                       \
    static inline T atomicAnd(T* p, T v) { return kiln_update(p, [=](T x) KILN_UNCHECKED { return x & v; }); }                      \
    static inline T atomicXor(T* p, T v) { return kiln_update(p, [=](T x) KILN_UNCHECKED { return x ^ v; }); }                      \
    static inline T atomicCAS(T* p, T c, T v) { return kiln_update(p, [=](T x) KILN_UNCHECKED { return x == c ? v : x; }); }
KILN_BIT_ATOMICS(int) KILN_BIT_ATOMICS(unsigned) KILN_BIT_ATOMICS(unsigned long long)

// --- entry points: the emulator appends functions that call these for each kernel ----------------------------------------

template <unsigned long... I>
struct KilnIndices {};
template <unsigned long N, unsigned long... I>
struct KilnCount : KilnCount<N - 1, N - 1, I...> {};
template <unsigned long... I>
struct KilnCount<0, I...> {
    typedef KilnIndices<I...> type;
};
template <typename... P, unsigned long... I>
static KILN_UNCHECKED void kiln_call(void (*f)(P...), void** a, KilnIndices<I...>) {
    f(*(P*)a[I]...);
}
struct KilnInfo {
    unsigned long count, bound;
    unsigned long sizes[24];
};
template <typename... P>
static KILN_UNCHECKED void kiln_info(void (*)(P...), unsigned long bound, KilnInfo* out) {
    out->count = sizeof...(P), out->bound = bound;
    const unsigned long sizes[] = {sizeof(P)..., 0};
    for (unsigned long k = 0; k < sizeof...(P); ++k) out->sizes[k] = sizes[k];
}
template <typename... P>
static void kiln_run(void (*f)(P...), void** a) {
    kiln_call(f, a, typename KilnCount<sizeof...(P)>::type());
}
