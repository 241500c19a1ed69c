// Scalar functions over compute types, overloaded so that one expression serves every dtype.

#define KILN_UNARY_MATH(NAME)                              \
    DEV float m_##NAME(float x) { return NAME##f(x); }     \
    DEV double m_##NAME(double x) { return NAME(x); }
KILN_UNARY_MATH(exp)
KILN_UNARY_MATH(log)
KILN_UNARY_MATH(log1p)
KILN_UNARY_MATH(sqrt)
KILN_UNARY_MATH(cos)
KILN_UNARY_MATH(sin)
KILN_UNARY_MATH(tan)
KILN_UNARY_MATH(cosh)
KILN_UNARY_MATH(sinh)
KILN_UNARY_MATH(tanh)
KILN_UNARY_MATH(acos)
KILN_UNARY_MATH(acosh)
KILN_UNARY_MATH(asin)
KILN_UNARY_MATH(asinh)
KILN_UNARY_MATH(atan)
KILN_UNARY_MATH(atanh)
KILN_UNARY_MATH(erf)
KILN_UNARY_MATH(floor)
KILN_UNARY_MATH(ceil)
KILN_UNARY_MATH(trunc)
KILN_UNARY_MATH(rint)
KILN_UNARY_MATH(fabs)

DEV float m_pow(float x, float y) { return powf(x, y); }
DEV double m_pow(double x, double y) { return pow(x, y); }
DEV float m_atan2(float y, float x) { return atan2f(y, x); }
DEV double m_atan2(double y, double x) { return atan2(y, x); }
DEV float m_fmod(float x, float y) { return fmodf(x, y); }
DEV double m_fmod(double x, double y) { return fmod(x, y); }

// Truncating division. x / 0 is 0, MIN / -1 is MIN: the hardware would give neither, and C++ defines neither.
template <typename T>
DEV T m_div(T a, T b) {
    if (b == 0) return 0;
    if (Limits<T>::lowest() != 0 && b == (T)-1) return (T)(0 - (u64)a);
    return a / b;
}
DEV float m_div(float a, float b) { return a / b; }
DEV double m_div(double a, double b) { return a / b; }

// The remainder has the sign of the divisor and is smaller than it; x % 0 is 0 for integers, NaN for floats.
template <typename T>
DEV T m_rem(T a, T b) {
    if (b == 0) return 0;
    if (Limits<T>::lowest() != 0 && b == (T)-1) return 0;
    const T r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}
template <typename T>
DEV T float_rem(T a, T b) {
    const T r = m_fmod(a, b);
    if (r == 0 || (r < 0) == (b < 0) || r != r || b != b) return r;
    const T shifted = r + b;
    return shifted == b ? (T)0 : shifted;  // a tiny r of the other sign rounds up to b
}
DEV float m_rem(float a, float b) { return float_rem(a, b); }
DEV double m_rem(double a, double b) { return float_rem(a, b); }

template <typename T>
DEV T m_abs(T x) { return x < 0 ? (T)(0 - (u64)x) : x; }
DEV float m_abs(float x) { return fabsf(x); }
DEV double m_abs(double x) { return fabs(x); }

template <typename T>
DEV T m_neg(T x) { return (T)(0 - (u64)x); }
DEV float m_neg(float x) { return -x; }
DEV double m_neg(double x) { return -x; }

template <typename T>
DEV T m_sign(T x) { return is_nan(x) ? x : (T)((x > 0) - (x < 0)); }

// x^n for integers, wrapping; a negative exponent is taken without sign, as in Burn's reference backend.
template <typename T>
DEV T m_ipow(T x, T n) {
    u64 base = (u64)x, result = 1;
    for (u32 e = (u32)n; e; e >>= 1) {
        if (e & 1) result *= base;
        base *= base;
    }
    return (T)result;
}

// Shifts count modulo the width; a right shift keeps the sign.
template <typename T>
DEV T m_shl(T x, T n) { return (T)((u64)x << ((u32)n & (sizeof(T) * 8 - 1))); }
template <typename T>
DEV T m_shr(T x, T n) { return (T)(x >> ((u32)n & (sizeof(T) * 8 - 1))); }

// NaN stays; if low > high the result is high, as clamping to each in turn gives.
template <typename T>
DEV T m_clamp(T x, T low, T high) { const T y = x < low ? low : x; return y > high ? high : y; }

// The standard normal distribution, Phi(x).
DEV float m_cdf(float x) { return 0.5f * (1.f + erff(x * 0.70710678118654752440f)); }
DEV double m_cdf(double x) { return 0.5 * (1.0 + erf(x * 0.70710678118654752440)); }
template <typename Storage, typename T>
DEV T m_phi(T x) { return m_cdf(x); }
// For results that are stored in 16 bits: with erff these kernels would wait for arithmetic, not for memory.
// Phi(-|x|) = t * 2^(P(t) - x^2 / (2 ln 2)), t = 1 / (1 + |x| / (2 sqrt 2)), P a minimax fit: 1e-5 of the value, everywhere.
DEV float short_phi(float x) {
    const float t = ptx_rcp(fmaf(fabsf(x), 0.35355339059327376f, 1.f));
    float p = fmaf(t, 0.330060691f, -1.02310431f);
    p = fmaf(t, p, 0.684500754f);
    p = fmaf(t, p, 0.367110461f);
    p = fmaf(t, p, 1.46867621f);
    p = fmaf(t, p, -2.82723284f);
    const float tail = t * ptx_exp2(fmaf(x * x, -0.72134752044448170f, p));
    return x < 0.f ? tail : 1.f - tail;
}
template <>
DEV float m_phi<f16, float>(float x) { return short_phi(x); }
template <>
DEV float m_phi<bf16, float>(float x) { return short_phi(x); }

template <typename Storage, typename T>
DEV T m_gelu(T x) { return x * m_phi<Storage>(x); }
// d/dx x * Phi(x) = Phi(x) + x * phi(x). The two cancel near x = -0.75, so that the short formula would not do; and with
// one more operand there is time for the long one.
template <typename T>
DEV T m_gelu_grad(T x) { return m_cdf(x) + x * (T)0.39894228040143267794 * m_exp((T)-0.5 * x * x); }
// Never overflows: exp of a number that is not positive.
template <typename T>
DEV T m_sigmoid(T x) {
    const T e = m_exp(-m_fabs(x));
    return (x < 0 ? e : (T)1) / ((T)1 + e);
}
template <typename T>
DEV T m_log_sigmoid(T x) { return (x < 0 ? x : (T)0) - m_log1p(m_exp(-m_fabs(x))); }
