// Addition, subtraction and multiplication of compute types and accumulators.

// Integers wrap: computed without a sign, where overflow is defined.
template <typename T>
DEV T wrapping_add(T a, T b) { return (T)((u64)a + (u64)b); }
template <typename T>
DEV T wrapping_sub(T a, T b) { return (T)((u64)a - (u64)b); }
template <typename T>
DEV T wrapping_mul(T a, T b) { return (T)((u64)a * (u64)b); }
DEV float wrapping_add(float a, float b) { return a + b; }
DEV float wrapping_sub(float a, float b) { return a - b; }
DEV float wrapping_mul(float a, float b) { return a * b; }
DEV double wrapping_add(double a, double b) { return a + b; }
DEV double wrapping_sub(double a, double b) { return a - b; }
DEV double wrapping_mul(double a, double b) { return a * b; }
