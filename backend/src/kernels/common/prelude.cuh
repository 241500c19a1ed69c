// What every kernel starts from: element types, conversions, packs of elements, scalars, fast division.
// No header is included: the same text compiles under NVRTC and nvcc, with no CUDA toolkit installed.

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
static_assert(sizeof(i64) == 8 && sizeof(i32) == 4, "element widths");

#define DEV __device__ __forceinline__

// f16 and bf16 are storage only: arithmetic happens in Compute<T>.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};
// One byte, 0 or 1.
struct b8 {
    u8 bits;
};

// Single instructions, on bits. Where PTX does not run there are others of the same names.
#ifndef KILN_EMULATOR
DEV float ptx_f16_to_f32(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
DEV u16 ptx_f32_to_f16(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
DEV u16 ptx_f64_to_f16(double x) {
    u16 y;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y) : "d"(x));
    return y;
}
DEV u16 ptx_f32_to_bf16(float x) {
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
// Approximations: within an ulp or two, with subnormals taken as 0.
DEV float ptx_rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV float ptx_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

DEV float to_f32(f16 x) { return ptx_f16_to_f32(x.bits); }
DEV float to_f32(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEV f16 to_f16(float x) { return f16{ptx_f32_to_f16(x)}; }
DEV f16 to_f16(double x) { return f16{ptx_f64_to_f16(x)}; }  // one rounding: through f32 it would be two
DEV bf16 to_bf16(float x) { return bf16{ptx_f32_to_bf16(x)}; }
// Rounds to odd on the way to f32, so that the second rounding cannot hit a false tie.
DEV bf16 to_bf16(double x) {
    const float toward_zero = __double2float_rz(x);
    const bool exact = (double)toward_zero == x || x != x;
    return to_bf16(exact ? toward_zero : __uint_as_float(__float_as_uint(toward_zero) | 1u));
}

// The type that arithmetic on T is done in.
template <typename T>
struct ComputeOf {
    typedef T type;
};
template <>
struct ComputeOf<f16> {
    typedef float type;
};
template <>
struct ComputeOf<bf16> {
    typedef float type;
};
template <>
struct ComputeOf<b8> {
    typedef bool type;
};
template <typename T>
using Compute = typename ComputeOf<T>::type;

// The type that sums and products over T are kept in.
template <typename T>
struct AccOf {
    typedef i64 type;
};
template <>
struct AccOf<f64> {
    typedef double type;
};
template <>
struct AccOf<f32> {
    typedef float type;
};
template <>
struct AccOf<f16> {
    typedef float type;
};
template <>
struct AccOf<bf16> {
    typedef float type;
};
template <typename T>
using Acc = typename AccOf<T>::type;

// --- limits ---------------------------------------------------------------------------------------------------------

template <typename T>
struct Limits;
#define KILN_LIMITS(T, LOW, HIGH)             \
    template <>                               \
    struct Limits<T> {                        \
        static DEV T lowest() { return LOW; } \
        static DEV T highest() { return HIGH; } \
    };
KILN_LIMITS(i8, -128, 127)
KILN_LIMITS(i16, -32768, 32767)
KILN_LIMITS(i32, (-2147483647 - 1), 2147483647)
KILN_LIMITS(i64, (-9223372036854775807LL - 1), 9223372036854775807LL)
KILN_LIMITS(u8, 0, 255)
KILN_LIMITS(u16, 0, 65535)
KILN_LIMITS(u32, 0u, 4294967295u)
KILN_LIMITS(u64, 0ull, 18446744073709551615ull)
// For floats these are the identities of max and min: the infinities.
KILN_LIMITS(f32, __uint_as_float(0xff800000u), __uint_as_float(0x7f800000u))
KILN_LIMITS(f64, __longlong_as_double((long long)0xfff0000000000000ull), __longlong_as_double(0x7ff0000000000000ll))
KILN_LIMITS(bool, false, true)

template <typename T>
struct IsFloat {
    static const bool value = false;
};
template <>
struct IsFloat<f32> {
    static const bool value = true;
};
template <>
struct IsFloat<f64> {
    static const bool value = true;
};

// NaN exists in floats only; for the others this folds to false.
DEV bool is_nan(float x) { return x != x; }
DEV bool is_nan(double x) { return x != x; }
template <typename T>
DEV bool is_nan(T) { return false; }

// --- conversions: cast<To>(x) --------------------------------------------------------------------------------------
// Float to integer saturates and takes NaN to 0; integer to integer keeps the low bits; anything to bool asks "not 0".

template <typename To, typename From>
struct Cast {
    static DEV To apply(From x) { return (To)x; }
};
template <typename To>
DEV To float_to_int(double x) {
    if (x != x) return 0;
    // The upper limit may round up to a power of two as a double, so "not below it" is the test.
    if (x <= (double)Limits<To>::lowest()) return Limits<To>::lowest();
    if (x >= (double)Limits<To>::highest()) return Limits<To>::highest();
    return (To)x;
}
template <typename To>
DEV To float_to_int(float x) {
    if (x != x) return 0;
    if (x <= (float)Limits<To>::lowest()) return Limits<To>::lowest();
    if (x >= (float)Limits<To>::highest()) return Limits<To>::highest();
    return (To)x;
}
#define KILN_FLOAT_TO_INT(T)                                            \
    template <>                                                         \
    struct Cast<T, float> {                                             \
        static DEV T apply(float x) { return float_to_int<T>(x); }      \
    };                                                                  \
    template <>                                                         \
    struct Cast<T, double> {                                            \
        static DEV T apply(double x) { return float_to_int<T>(x); }     \
    };
KILN_FLOAT_TO_INT(i8)
KILN_FLOAT_TO_INT(i16)
KILN_FLOAT_TO_INT(i32)
KILN_FLOAT_TO_INT(i64)
KILN_FLOAT_TO_INT(u8)
KILN_FLOAT_TO_INT(u16)
KILN_FLOAT_TO_INT(u32)
KILN_FLOAT_TO_INT(u64)
template <typename From>
struct Cast<bool, From> {
    static DEV bool apply(From x) { return x != (From)0; }
};
template <typename From>
struct Cast<f16, From> {
    static DEV f16 apply(From x) { return to_f16((float)x); }
};
template <typename From>
struct Cast<bf16, From> {
    static DEV bf16 apply(From x) { return to_bf16((float)x); }
};
template <>
struct Cast<f16, double> {
    static DEV f16 apply(double x) { return to_f16(x); }
};
template <>
struct Cast<bf16, double> {
    static DEV bf16 apply(double x) { return to_bf16(x); }
};
template <typename From>
struct Cast<b8, From> {
    static DEV b8 apply(From x) {
        b8 y;
        y.bits = x != (From)0;
        return y;
    }
};
template <typename To, typename From>
DEV To cast(From x) {
    return Cast<To, From>::apply(x);
}

// Storage to compute type and back.
template <typename T>
DEV Compute<T> load_value(T x) { return x; }
template <>
DEV float load_value<f16>(f16 x) { return to_f32(x); }
template <>
DEV float load_value<bf16>(bf16 x) { return to_f32(x); }
template <>
DEV bool load_value<b8>(b8 x) { return x.bits != 0; }

// --- packs: N elements moved with accesses of up to 16 bytes -------------------------------------------------------

template <int BYTES>
struct Word;
template <>
struct Word<1> {
    typedef u8 type;
};
template <>
struct Word<2> {
    typedef u16 type;
};
template <>
struct Word<4> {
    typedef u32 type;
};
template <>
struct Word<8> {
    typedef uint2 type;
};
template <>
struct Word<16> {
    typedef uint4 type;
};

// requires: N * sizeof(T) is a power of two, and the address a multiple of min(16, N * sizeof(T)).
template <typename T, int N>
struct Pack {
    static const int BYTES = N * (int)sizeof(T);
    static const int STEP = BYTES < 16 ? BYTES : 16;
    typedef typename Word<STEP>::type W;
    static const int WORDS = BYTES / STEP;
    union {
        T v[N];
        W w[WORDS];
    };
    DEV Pack() {}
    DEV void load(const T* p) {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) w[k] = ((const W*)p)[k];
    }
    DEV void store(T* p) const {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) ((W*)p)[k] = w[k];
    }
};

// --- scalars: by value, or from a device slot that may change between replays of a captured graph ------------------

struct ScalarArg {
    u64 bits;          // an f64, i64 or u64, when slot is null
    const u64* slot;   // else its address
};
DEV double scalar_f64(ScalarArg s) { return __longlong_as_double((long long)(s.slot ? *s.slot : s.bits)); }
DEV u64 scalar_u64(ScalarArg s) { return s.slot ? *s.slot : s.bits; }
// A scalar in compute type S. Floats travel as f64, integers and bools as 64-bit integers.
template <typename S>
DEV S scalar(ScalarArg s) { return (S)scalar_u64(s); }
template <>
DEV float scalar<float>(ScalarArg s) { return (float)scalar_f64(s); }
template <>
DEV double scalar<double>(ScalarArg s) { return scalar_f64(s); }
template <>
DEV bool scalar<bool>(ScalarArg s) { return scalar_u64(s) != 0; }

// --- division by a number that does not change: n / d for n < 2^31 --------------------------------------------------
// (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994)

struct FastDiv {
    u32 divisor, multiplier, shift;
    DEV u32 div(u32 n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

// --- maximum and minimum: NaN wins ----------------------------------------------------------------------------------

template <typename T>
DEV T max_of(T a, T b) { return is_nan(a) || a > b ? a : b; }
template <typename T>
DEV T min_of(T a, T b) { return is_nan(a) || a < b ? a : b; }

// --- faults found on the device --------------------------------------------------------------------------------------
// One entry per operation in host-mapped memory; `ticket` names the operation. Written without atomics: every writer of
// an entry stores the same ticket and size, and whichever index comes last is as good as another.

struct Fault {
    i64 index, size;
    u32 ticket, unused;
};
struct FaultTable {
    volatile u32* any;   // set to 1 with any entry
    Fault* entry;        // this operation's
    u32 ticket;
};
// Takes `index` into [0, size), and notes the fault if it was outside. size is at least 1.
DEV i64 checked_index(i64 index, i64 size, FaultTable faults) {
    if (index >= 0 && index < size) return index;
    volatile Fault* f = faults.entry;
    f->index = index;
    f->size = size;
    f->ticket = faults.ticket;
    __threadfence_system();
    *faults.any = 1;
    return index < 0 ? 0 : size - 1;
}
