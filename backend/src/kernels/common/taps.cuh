// What interpolation of images shares: the taps of a position along one dimension, with their weights.
//
// MODE 0 nearest, 1 bilinear, 2 bicubic (Keys, "Cubic convolution interpolation for digital image processing", 1981, with
// a = -0.75), 3 Lanczos (Duchon, "Lanczos filtering in one and two dimensions", 1979, with three lobes). A position has
// TAPS = 1, 2, 4 or 6 elements around it; weights are those of the fraction t = position - floor(position).

DEV void sincos_pi(float x, float& s, float& c) { sincospif(x, &s, &c); }
DEV void sincos_pi(double x, double& s, double& c) { sincospi(x, &s, &c); }

template <typename A>
DEV A cubic(A x) {
    const A a = (A)-0.75;
    return x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

// weight[k] belongs to element floor(position) + k - (TAPS / 2 - 1).
template <int MODE, int TAPS, typename A>
DEV void tap_weights(A (&weight)[TAPS], A t) {
    if (MODE == 0) weight[0] = 1;
    if (MODE == 1) {
        weight[0] = 1 - t;
        weight[TAPS - 1] = t;
    }
    if (MODE == 2) {
#pragma unroll
        for (int k = 0; k < TAPS; ++k) weight[k] = cubic<A>(k < 2 ? t + (1 - k) : (k - 1) - t);
    }
    if (MODE == 3) {
        // x = t - j, j = k - 2: sin(pi x) = (-1)^j sin(pi t), and sin(pi x / 3) from the sum of angles, but for the two
        // elements beside the position, where that would cancel.
        const A pi = (A)3.14159265358979323846, root = (A)0.86602540378443864676;
        A s, c, s3, c3, n3, unused;
        sincos_pi(t, s, c);
        sincos_pi(t / 3, s3, c3);
        sincos_pi((t - 1) / 3, n3, unused);
        const A third[6] = {(A)-0.5 * s3 + root * c3, (A)0.5 * s3 + root * c3, s3, n3, (A)-0.5 * s3 - root * c3, -s3};
#pragma unroll
        for (int k = 0; k < TAPS; ++k) {
            const A x = pi * (t - (k - 2));
            weight[k] = x == 0 ? (A)1 : (k % 2 ? -s : s) * third[k % 6] * 3 / (x * x);
        }
    }
}
