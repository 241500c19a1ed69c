// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011), and how Kiln's random tensors are drawn from it. The CPU twin is kernels/random.rs.
//
// A draw is philox(counter, seed) -> 4 lanes of 32 bits: key = (low, high) half of the seed; counter words 0 and 1 = (low,
// high) half of a 64-bit counter, words 2 and 3 = 0 (reserved for a stream number).
//
// Element i of a tensor drawn at (seed, offset) depends on nothing else, so neither on the launch nor on the tensor's size:
//     narrow (f32, f16, bf16):     counter offset + i / 4 (wrapping), the 32-bit word x = lane i % 4
//     wide   (f64, all integers):  counter offset + i / 2 (wrapping), the 64-bit word w = lane 2(i % 2) | lane 2(i % 2) + 1 << 32
// so n elements use up ceil(n / 4) or ceil(n / 2) counters.
//     uniform    u = (x >> 8) * 2^-24 narrow, (w >> 11) * 2^-53 wide, in [0, 1); value = fma(u, high - low, low) in f32
//                (f64 for f64) with low and high rounded to the dtype first, then rounded to the dtype and clamped to
//                [low, the largest value below high]
//                integers: low + floor(w * (high - low) / 2^64)
//                integers without bounds: the low bits of w
//     bernoulli  1 if x < ceil(p * 2^32) narrow, which is exactly x * 2^-32 < p; else the wide u < p
//     normal     Box and Muller (1958) on the pair of elements (i, i + 1), i even, with their words a and b:
//                r = sqrt(-2 ln u1), z[i] = r cos(2 pi u2), z[i + 1] = r sin(2 pi u2); value = fma(z, std, mean)
//                narrow: u1 = fma(a, 2^-32, 2^-33), u2 = b * 2^-32 in f32;  wide: u1 = ((a >> 11) + 1) * 2^-53,
//                u2 = (b >> 11) * 2^-53 in f64. Bit for bit up to the device's log, sine and cosine.

struct Philox {
    u32 lane[4];
    DEV Philox(u64 counter, u64 key) {
        u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0;
        u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
        for (int round = 0; round < 10; ++round) {
            const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
            c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
            c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
            c1 = (u32)p1;
            c3 = (u32)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        lane[0] = c0, lane[1] = c1, lane[2] = c2, lane[3] = c3;
    }
    DEV u64 wide(int k) const { return (u64)lane[2 * k] | (u64)lane[2 * k + 1] << 32; }
};

DEV float uniform_f32(u32 x) { return (float)(x >> 8) * 0x1p-24f; }
DEV double uniform_f64(u64 w) { return (double)(w >> 11) * 0x1p-53; }

DEV void normal_pair(float& z0, float& z1, u32 a, u32 b) {
    const float r = sqrtf(-2.f * logf(fmaf((float)a, 0x1p-32f, 0x1p-33f)));
    float s, c;
    sincospif((float)b * 0x1p-31f, &s, &c);
    z0 = r * c, z1 = r * s;
}
DEV void normal_pair(double& z0, double& z1, u64 a, u64 b) {
    const double r = sqrt(-2. * log((double)((a >> 11) + 1) * 0x1p-53));
    double s, c;
    sincospi((double)(b >> 11) * 0x1p-52, &s, &c);
    z0 = r * c, z1 = r * s;
}
