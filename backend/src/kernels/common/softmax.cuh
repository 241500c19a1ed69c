// What kernels share that take softmax of rows: the larger of two numbers and the exponential of a difference.

DEV float greater(float a, float b) { return fmaxf(a, b); }  // drops NaN, which comes back with the sum
DEV double greater(double a, double b) { return fmax(a, b); }

// T_ is the result's type: 16 bits are served by the fast exponential; f32 is not, as its error grows with the argument.
template <typename T_>
DEV float exponential(float x) { return sizeof(T_) == 2 ? __expf(x) : expf(x); }
template <typename T_>
DEV double exponential(double x) { return exp(x); }

struct Greater {
    template <typename S>
    DEV S operator()(S a, S b) const { return greater(a, b); }
};
