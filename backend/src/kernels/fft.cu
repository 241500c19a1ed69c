// Fourier transforms of real lines and back: X[k] = sum_t x[t] exp(-2 pi i k t / n), k = 0 .. n / 2, and
// x[t] = 1/n sum_k X[k] exp(2 pi i k t / n) over all k, of which those above n / 2 are the conjugates of the others.
//
// An even n is a complex transform of half the length, H = n / 2, over z[t] = x[2t] + i x[2t + 1]. Where H is a power of two
// that fits shared memory, one kernel does all (RFFT, IRFFT). A longer power of two is H = M1 M2: transforms of M1 over
// columns, times exp(-2 pi i j k / H), then of M2 over rows, which are stored as columns (Bailey, "FFTs in external or
// hierarchical memory", 1990). Another H is a convolution with a chirp, of a power of two M >= 2 H - 1 (Bluestein, "A linear
// filtering approach to the computation of discrete Fourier transform", 1970). A short n that is no power of two is summed.
//
// Transforms in shared memory are Stockham's, radix 4, after one step of radix 2 where needed. A forward transform of the
// conjugates is the conjugate of the inverse one; CONJ flags say where to conjugate.
//
// generated  the host prepends: T; COUNT, the complex length in shared memory (a power of two from 8 to CAPACITY); and one of
//            CASE_RFFT, CASE_IRFFT           real lines and spectra, at once
//            CASE_DIRECT, CASE_DIRECT_INVERSE  the same by summing
//            CASE_COMPLEX                    transforms of COUNT at any strides
//            CASE_PACK, CASE_UNPACK          real lines -> z (ODD: complex lines of n); z -> spectra
//            CASE_REPACK, CASE_REAL          spectra -> z (ODD: n bins, all of them); z -> real lines
//            CASE_CHIRP                      b[m] = exp(i pi m^2 / H) for |m| < H, modulo M
//            CASE_CHIRP_IN, CASE_CHIRP_MUL, CASE_CHIRP_OUT  times the conjugate chirp, with zeros up to M; times its
//            transform, conjugated; the convolution times the conjugate chirp
// shapes     x, y: [lines, length]; re, im: [lines, bins]; z: [lines, H] complex; all contiguous
// dtypes     T = f32 | f64 | f16 | bf16; z and all arithmetic in Acc<T>, rounded once. Angles are reduced in integers
// requires   z is aligned to a complex number
// launch     in shared memory: 256 threads for CAPACITY / COUNT lines; the others: one thread an element, grid-stride
// bound      memory: input and output once (a long H: z three times more, a chirp: z of M about six times)

#define THREADS 256

typedef Acc<T> A;
struct alignas(2 * sizeof(A)) C {
    A re, im;
};
DEV C operator+(C a, C b) { return C{a.re + b.re, a.im + b.im}; }
DEV C operator-(C a, C b) { return C{a.re - b.re, a.im - b.im}; }
DEV C operator*(C a, C b) { return C{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
DEV C operator*(A a, C b) { return C{a * b.re, a * b.im}; }
DEV C conj(C a) { return C{a.re, -a.im}; }
DEV C conj_if(u32 flag, C a) { return C{a.re, flag ? -a.im : a.im}; }

DEV void sincos_pi(float x, float& s, float& c) { sincospif(x, &s, &c); }
DEV void sincos_pi(double x, double& s, double& c) { sincospi(x, &s, &c); }
// exp(-i pi x)
DEV C half_turns(A x) {
    C w;
    sincos_pi(-x, w.im, w.re);
    return w;
}
// exp(-2 pi i m / n), m < n < 2^60: m / n is a number of quarters and a rest of at most an eighth, which is what is rounded.
DEV C turn(u64 m, u64 n) {
    const u64 quarters = (8 * m + n) / (2 * n);
    const i64 rest = (i64)(4 * m) - (i64)(quarters * n);
    const C w = half_turns((A)rest / (A)(2 * n));
    switch (quarters & 3) {
        case 0: return w;
        case 1: return C{w.im, -w.re};
        case 2: return C{-w.re, -w.im};
        default: return C{-w.im, w.re};
    }
}
// exp(-i pi m^2 / n), m < 2^32
DEV C chirp(u64 m, u64 n) { return turn(m * m % (2 * n), 2 * n); }

// Bin k of the spectrum of n = 2 H samples, from z's bins k and H - k.
DEV C unpacked(C z, C mirror, u64 k, u64 h) {
    const C even = (A)0.5 * (z + conj(mirror)), odd = (A)0.5 * (z - conj(mirror));
    return even + turn(k, 2 * h) * C{odd.im, -odd.re};
}
// The reverse: z's bin k from the spectrum's bins k and H - k.
DEV C packed(C x, C mirror, u64 k, u64 h) {
    const C even = (A)0.5 * (x + conj(mirror)), odd = conj(turn(k, 2 * h)) * ((A)0.5 * (x - conj(mirror)));
    return C{even.re - odd.im, even.im + odd.re};
}
// Sample t of a line of `length`, with zeros behind.
DEV A sample(const T* x, u64 t, u64 length) { return t < length ? (A)load_value(x[t]) : (A)0; }
// Bin k of a line of `bins`, with zeros behind. Those that are real for n samples are taken as real.
DEV C bin(const T* re, const T* im, u64 k, u64 bins, u64 n) {
    if (k >= bins) return C{0, 0};
    const bool real = k == 0 || 2 * k == n;
    return C{(A)load_value(re[k]), real ? (A)0 : (A)load_value(im[k])};
}

#define GRID_STRIDE(i, n) for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < (n); i += (u64)gridDim.x * THREADS)

// --- in shared memory ---------------------------------------------------------------------------------------------------

#if defined(CASE_RFFT) || defined(CASE_IRFFT) || defined(CASE_COMPLEX)
#define CAPACITY (sizeof(A) == 8 ? 2048 : 4096)
#define LINES (CAPACITY / COUNT)
// Lines that begin one element off lie in different banks.
#define LINE (COUNT + (LINES > 1))
#define EACH (CAPACITY / 4 / THREADS)  // butterflies of 4 a thread
#define QUARTER (COUNT / 4)

template <u32 DONE>
DEV void radix4(C* tile) {
    C v[EACH][4];
#pragma unroll
    for (u32 b = 0; b < EACH; ++b) {
        const u32 i = b * THREADS + threadIdx.x, j = i % QUARTER, k = j % DONE;
        const C* line = tile + i / QUARTER * LINE;
        C x[4];
#pragma unroll
        for (u32 r = 0; r < 4; ++r) x[r] = line[j + r * QUARTER];
        if (DONE > 1) {
            const C w = half_turns((A)k / (A)(2 * DONE)), w2 = half_turns((A)k / (A)DONE);
            x[1] = w * x[1];
            x[2] = w2 * x[2];
            x[3] = w * w2 * x[3];
        }
        const C p = x[0] + x[2], q = x[0] - x[2], s = x[1] + x[3], d = x[1] - x[3];
        v[b][0] = p + s;
        v[b][1] = C{q.re + d.im, q.im - d.re};
        v[b][2] = p - s;
        v[b][3] = C{q.re - d.im, q.im + d.re};
    }
    __syncthreads();
#pragma unroll
    for (u32 b = 0; b < EACH; ++b) {
        const u32 i = b * THREADS + threadIdx.x, j = i % QUARTER, k = j % DONE;
        C* line = tile + i / QUARTER * LINE + (j - k) * 4 + k;
#pragma unroll
        for (u32 r = 0; r < 4; ++r) line[r * DONE] = v[b][r];
    }
    __syncthreads();
}
DEV void radix2(C* tile) {
    C v[EACH][4];
#pragma unroll
    for (u32 b = 0; b < EACH; ++b) {
        const u32 i = b * THREADS + threadIdx.x, j = i % QUARTER;
        const C* line = tile + i / QUARTER * LINE;
        const C x0 = line[j], x1 = line[j + QUARTER], x2 = line[j + 2 * QUARTER], x3 = line[j + 3 * QUARTER];
        v[b][0] = x0 + x2;
        v[b][1] = x0 - x2;
        v[b][2] = x1 + x3;
        v[b][3] = x1 - x3;
    }
    __syncthreads();
#pragma unroll
    for (u32 b = 0; b < EACH; ++b) {
        const u32 i = b * THREADS + threadIdx.x, j = i % QUARTER;
        C* line = tile + i / QUARTER * LINE + 2 * j;
        line[0] = v[b][0];
        line[1] = v[b][1];
        line[COUNT / 2] = v[b][2];
        line[COUNT / 2 + 1] = v[b][3];
    }
    __syncthreads();
}
template <u32 DONE, bool MORE>
struct Steps {
    static DEV void run(C* tile) {
        radix4<DONE>(tile);
        Steps<4 * DONE, (4 * DONE < COUNT)>::run(tile);
    }
};
template <u32 DONE>
struct Steps<DONE, false> {
    static DEV void run(C*) {}
};
// Forward transforms of the tile's lines; the tile has been written, and may be read after it.
DEV void transform(C* tile) {
    __syncthreads();
    const bool odd = COUNT == 8 || COUNT == 32 || COUNT == 128 || COUNT == 512 || COUNT == 2048;
    if (odd) radix2(tile);
    Steps<odd ? 2 : 1, true>::run(tile);
}
#endif

#ifdef CASE_RFFT
extern "C" __global__ void __launch_bounds__(THREADS) fft(T* re, T* im, const T* signal, u64 lines, u64 length) {
    __shared__ C tile[LINES * LINE];
    const u64 first = (u64)blockIdx.x * LINES;
    for (u32 i = threadIdx.x; i < CAPACITY; i += THREADS) {
        const u32 l = i / COUNT, t = i % COUNT;
        const T* line = signal + (first + l) * length;
        C z = {0, 0};
        if (first + l < lines) z = C{sample(line, 2 * t, length), sample(line, 2 * t + 1, length)};
        tile[l * LINE + t] = z;
    }
    transform(tile);
    for (u32 i = threadIdx.x; i < LINES * (COUNT + 1); i += THREADS) {
        const u32 l = i / (COUNT + 1), k = i % (COUNT + 1);
        if (first + l >= lines) break;
        const C* z = tile + l * LINE;
        const C w = half_turns((A)k / (A)COUNT), mirror = conj(z[(COUNT - k) % COUNT]);
        const C even = (A)0.5 * (z[k % COUNT] + mirror), odd = (A)0.5 * (z[k % COUNT] - mirror);
        const C x = even + w * C{odd.im, -odd.re};
        const u64 at = (first + l) * (COUNT + 1) + k;
        re[at] = cast<T>(x.re);
        im[at] = cast<T>(x.im);
    }
}
#endif

#ifdef CASE_IRFFT
extern "C" __global__ void __launch_bounds__(THREADS) fft(T* y, const T* re, const T* im, u64 lines, u64 bins) {
    __shared__ C tile[LINES * LINE];
    const u64 first = (u64)blockIdx.x * LINES;
    for (u32 i = threadIdx.x; i < CAPACITY; i += THREADS) {
        const u32 l = i / COUNT, k = i % COUNT;
        const u64 at = (first + l) * bins;
        C z = {0, 0};
        if (first + l < lines) {
            const C x = bin(re + at, im + at, k, bins, 2 * COUNT);
            const C mirror = conj(bin(re + at, im + at, COUNT - k, bins, 2 * COUNT));
            const C even = (A)0.5 * (x + mirror), odd = conj(half_turns((A)k / (A)COUNT)) * ((A)0.5 * (x - mirror));
            z = C{even.re - odd.im, -(even.im + odd.re)};
        }
        tile[l * LINE + k] = z;
    }
    transform(tile);
    const A scale = (A)1 / (A)COUNT;
    for (u32 i = threadIdx.x; i < 2 * CAPACITY; i += THREADS) {
        const u32 l = i / (2 * COUNT), t = i % (2 * COUNT);
        if (first + l >= lines) break;
        const C z = tile[l * LINE + t / 2];
        y[(first + l) * (2 * COUNT) + t] = cast<T>(scale * (t % 2 ? -z.im : z.re));
    }
}
#endif

#ifdef CASE_COMPLEX
// Element e of line l: l / inner * outer + l % inner * line + e * element.
struct Strides {
    u64 outer, line, element;
};
struct Geometry {
    u64 lines, inner;
    Strides from, to;
    u64 turns;               // not 0: element e of line l is multiplied with exp(-2 pi i e (l % inner) / turns)
    u32 conj_in, conj_out;
};
extern "C" __global__ void __launch_bounds__(THREADS) fft(C* y, const C* x, const __grid_constant__ Geometry g) {
    __shared__ C tile[LINES * LINE];
    const u64 first = (u64)blockIdx.x * LINES;
    for (u32 i = threadIdx.x; i < CAPACITY; i += THREADS) {
        // Neighbouring threads read neighbouring elements, or else lines.
        const bool along = g.from.element == 1;
        const u32 l = along ? i / COUNT : i % LINES, e = along ? i % COUNT : i / LINES;
        const u64 line = first + l, o = line / g.inner, n = line - o * g.inner;
        C z = {0, 0};
        if (line < g.lines) z = conj_if(g.conj_in, x[o * g.from.outer + n * g.from.line + e * g.from.element]);
        tile[l * LINE + e] = z;
    }
    transform(tile);
    for (u32 i = threadIdx.x; i < CAPACITY; i += THREADS) {
        const bool along = g.to.element == 1;
        const u32 l = along ? i / COUNT : i % LINES, e = along ? i % COUNT : i / LINES;
        const u64 line = first + l, o = line / g.inner, n = line - o * g.inner;
        if (line >= g.lines) continue;
        C z = tile[l * LINE + e];
        if (g.turns) z = turn(e * n, g.turns) * z;
        y[o * g.to.outer + n * g.to.line + e * g.to.element] = conj_if(g.conj_out, z);
    }
}
#endif

// --- by summing -------------------------------------------------------------------------------------------------------------

#ifdef CASE_DIRECT
extern "C" __global__ void __launch_bounds__(THREADS) fft(T* re, T* im, const T* x, u64 lines, u64 length, u64 n) {
    const u64 bins = n / 2 + 1, terms = length < n ? length : n;
    GRID_STRIDE(i, lines * bins) {
        const u64 line = i / bins, k = i - line * bins;
        C sum = {0, 0};
        for (u64 t = 0; t < terms; ++t) sum = sum + (A)load_value(x[line * length + t]) * turn(k * t % n, n);
        if (k == 0 || 2 * k == n) sum.im = 0;
        re[i] = cast<T>(sum.re);
        im[i] = cast<T>(sum.im);
    }
}
#endif

#ifdef CASE_DIRECT_INVERSE
extern "C" __global__ void __launch_bounds__(THREADS) fft(T* y, const T* re, const T* im, u64 lines, u64 bins, u64 n) {
    GRID_STRIDE(i, lines * n) {
        const u64 line = i / n, t = i - line * n;
        A sum = 0;
        for (u64 k = 0; k <= n / 2; ++k) {
            const C x = bin(re + line * bins, im + line * bins, k, bins, n), w = turn(k * t % n, n);
            sum += (k == 0 || 2 * k == n ? (A)1 : (A)2) * (x.re * w.re + x.im * w.im);
        }
        y[i] = cast<T>(sum / (A)n);
    }
}
#endif

// --- element by element -------------------------------------------------------------------------------------------------------

#ifdef CASE_PACK
extern "C" __global__ void __launch_bounds__(THREADS) fft(C* z, const T* x, u64 lines, u64 length, u64 h, u32 odd) {
    GRID_STRIDE(i, lines * h) {
        const u64 line = i / h, t = i - line * h;
        const T* from = x + line * length;
        z[i] = odd ? C{sample(from, t, length), 0} : C{sample(from, 2 * t, length), sample(from, 2 * t + 1, length)};
    }
}
#endif

#ifdef CASE_UNPACK
extern "C" __global__ void __launch_bounds__(THREADS) fft(T* re, T* im, const C* z, u64 lines, u64 h, u32 odd) {
    const u64 bins = odd ? h / 2 + 1 : h + 1;
    GRID_STRIDE(i, lines * bins) {
        const u64 line = i / bins, k = i - line * bins;
        const C* from = z + line * h;
        C x = odd ? from[k] : unpacked(from[k % h], from[(h - k) % h], k, h);
        if (k == 0) x.im = 0;
        re[i] = cast<T>(x.re);
        im[i] = cast<T>(x.im);
    }
}
#endif

#ifdef CASE_REPACK
extern "C" __global__ void __launch_bounds__(THREADS)
    fft(C* z, const T* re, const T* im, u64 lines, u64 bins, u64 h, u32 odd) {
    GRID_STRIDE(i, lines * h) {
        const u64 line = i / h, k = i - line * h;
        const T* r = re + line * bins;
        const T* m = im + line * bins;
        if (odd) {
            z[i] = k <= h / 2 ? bin(r, m, k, bins, h) : conj(bin(r, m, h - k, bins, h));
        } else {
            z[i] = packed(bin(r, m, k, bins, 2 * h), bin(r, m, h - k, bins, 2 * h), k, h);
        }
    }
}
#endif

#ifdef CASE_REAL
extern "C" __global__ void __launch_bounds__(THREADS) fft(T* y, const C* z, u64 lines, u64 h, u32 odd) {
    const u64 n = odd ? h : 2 * h;
    GRID_STRIDE(i, lines * n) {
        const C from = z[odd ? i : i / 2];
        y[i] = cast<T>((odd || i % 2 == 0 ? from.re : from.im) / (A)h);
    }
}
#endif

#ifdef CASE_CHIRP
extern "C" __global__ void __launch_bounds__(THREADS) fft(C* b, u64 h, u64 size) {
    GRID_STRIDE(i, size) {
        const u64 m = i < h ? i : size - i;
        b[i] = m < h ? conj(chirp(m, h)) : C{0, 0};
    }
}
#endif

#ifdef CASE_CHIRP_IN
extern "C" __global__ void __launch_bounds__(THREADS) fft(C* a, const C* z, u64 lines, u64 h, u64 size, u32 conj_in) {
    GRID_STRIDE(i, lines * size) {
        const u64 line = i / size, m = i - line * size;
        a[i] = m < h ? conj_if(conj_in, z[line * h + m]) * chirp(m, h) : C{0, 0};
    }
}
#endif

#ifdef CASE_CHIRP_MUL
extern "C" __global__ void __launch_bounds__(THREADS) fft(C* a, const C* b, u64 lines, u64 size) {
    GRID_STRIDE(i, lines * size) a[i] = conj(a[i] * b[i % size]);
}
#endif

#ifdef CASE_CHIRP_OUT
extern "C" __global__ void __launch_bounds__(THREADS) fft(C* y, const C* a, u64 lines, u64 h, u64 size, u32 conj_out) {
    GRID_STRIDE(i, lines * h) {
        const u64 line = i / h, m = i - line * h;
        y[i] = conj_if(conj_out, ((A)1 / (A)size) * (conj(a[line * size + m]) * chirp(m, h)));
    }
}
#endif
