//! Random numbers on the host, for draws that a graph takes from its parameters.
//!
//! They are Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) as
//! a function of seed, offset and position alone, by the definition that the CUDA backend's kernel has in
//! `common/philox.cuh`, and with its rules for distributions. So an optimised graph draws on the host what the plain
//! operation draws on the device: bit for bit where the arithmetic is exact (uniform, bernoulli, any integer), and for
//! normal numbers up to the last places of logarithm, sine and cosine.

use std::f64::consts::PI;

use burn_backend::{Distribution, Element, ElementConversion, Shape, TensorData};
use burn_std::{DType, bf16, f16};

/// How many counters `len` values of a dtype use up.
pub(crate) fn counters(dtype: DType, len: usize) -> u64 {
    let per_counter = match dtype {
        DType::F32 | DType::Flex32 | DType::F16 | DType::BF16 => 4,
        _ => 2,
    };
    (len as u64).div_ceil(per_counter)
}

/// A tensor of numbers drawn from `distribution`, with the counters from `offset` on, which wrap.
///
/// `Default` is uniform in `[0, 1)` for floats and any value of the dtype for integers. `Uniform(low, high)` takes its
/// bounds in the dtype and never gives `high`. Normal numbers are cut to integers: they saturate, and NaN gives 0.
///
/// # Errors
/// For bounds, a deviation or a probability that make no distribution, for a dtype that is neither float nor integer,
/// and for a shape that memory does not hold.
pub(crate) fn draw(
    shape: &Shape,
    distribution: Distribution,
    dtype: DType,
    seed: u64,
    offset: u64,
) -> Result<TensorData, String> {
    let request = Request { shape, distribution, dtype, stream: Stream { seed, offset } };
    match dtype {
        DType::F64 => request.f64(),
        DType::F32 | DType::Flex32 => request.narrow::<f32>(),
        DType::F16 => request.narrow::<f16>(),
        DType::BF16 => request.narrow::<bf16>(),
        DType::I64 => request.int::<i64>(),
        DType::I32 => request.int::<i32>(),
        DType::I16 => request.int::<i16>(),
        DType::I8 => request.int::<i8>(),
        DType::U64 => request.int::<u64>(),
        DType::U32 => request.int::<u32>(),
        DType::U16 => request.int::<u16>(),
        DType::U8 => request.int::<u8>(),
        DType::Bool(_) | DType::QFloat(_) => {
            Err(format!("a float or integer dtype is needed, not {dtype:?}"))
        }
    }
}

/// Philox4x32-10: four words for a counter and a key.
fn philox([mut c0, mut c1, mut c2, mut c3]: [u32; 4], [mut k0, mut k1]: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = 0xD251_1F53 * u64::from(c0);
        let p1 = 0xCD9E_8D57 * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// The numbers of a seed from an offset on.
#[derive(Clone, Copy)]
struct Stream {
    seed: u64,
    offset: u64,
}

impl Stream {
    /// The four words of counter `offset + index`.
    fn narrow(self, index: u64) -> [u32; 4] {
        let counter = self.offset.wrapping_add(index);
        philox([counter as u32, (counter >> 32) as u32, 0, 0], [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// The same as two words of 64 bits.
    fn wide(self, index: u64) -> [u64; 2] {
        let [a, b, c, d] = self.narrow(index).map(u64::from);
        [a | b << 32, c | d << 32]
    }
}

/// In `[0, 1)`, a multiple of 2^-24.
fn uniform_f32(word: u32) -> f32 {
    (word >> 8) as f32 * 2f32.powi(-24)
}

/// In `[0, 1)`, a multiple of 2^-53.
fn uniform_f64(word: u64) -> f64 {
    (word >> 11) as f64 * 2f64.powi(-53)
}

/// Two independent normal numbers (Box and Muller, 1958) as the kernel has them: logarithm and root in f32.
fn normal_f32([a, b]: [u32; 2]) -> [f32; 2] {
    let r = (-2.0 * (a as f32).mul_add(2f32.powi(-32), 2f32.powi(-33)).ln()).sqrt();
    let (sin, cos) = sin_cos_pi(f64::from(b as f32 * 2f32.powi(-31)));
    [r * cos as f32, r * sin as f32]
}

/// The same in f64.
fn normal_f64([a, b]: [u64; 2]) -> [f64; 2] {
    let r = (-2.0 * (((a >> 11) + 1) as f64 * 2f64.powi(-53)).ln()).sqrt();
    let (sin, cos) = sin_cos_pi((b >> 11) as f64 * 2f64.powi(-52));
    [r * cos, r * sin]
}

/// Sine and cosine of `x` half turns, for `x` in `[0, 2]`; exact at multiples of a quarter turn.
fn sin_cos_pi(x: f64) -> (f64, f64) {
    let quarters = (2.0 * x).round_ties_even();
    let (sin, cos) = (PI * (x - 0.5 * quarters)).sin_cos();
    match quarters as u32 % 4 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// The float types that are computed in f32.
trait Narrow: Element {
    fn round(x: f32) -> Self;
    fn widen(self) -> f32;
    /// The largest value below, of a finite one.
    fn below(self) -> Self;
}

impl Narrow for f32 {
    fn round(x: f32) -> Self {
        x
    }

    fn widen(self) -> f32 {
        self
    }

    fn below(self) -> Self {
        self.next_down()
    }
}

macro_rules! narrow {
    ($($type:ty)*) => {$(
        impl Narrow for $type {
            fn round(x: f32) -> Self {
                <$type>::from_f32(x)
            }

            fn widen(self) -> f32 {
                self.to_f32()
            }

            fn below(self) -> Self {
                <$type>::from_bits(match self.to_bits() {
                    0 | 0x8000 => 0x8001,
                    bits if bits & 0x8000 != 0 => bits + 1,
                    bits => bits - 1,
                })
            }
        }
    )*};
}
narrow! { f16 bf16 }

/// The integer types.
trait Int: Element + Ord {
    /// The low bits.
    fn cut(bits: u64) -> Self;
    /// A float towards zero, saturating; NaN gives 0.
    fn saturate(x: f64) -> Self;
    /// The value, extended by its sign.
    fn extend(self) -> u64;
}

macro_rules! int {
    ($($type:ty)*) => {$(
        impl Int for $type {
            fn cut(bits: u64) -> Self {
                bits as $type
            }

            fn saturate(x: f64) -> Self {
                x as $type
            }

            fn extend(self) -> u64 {
                self as u64
            }
        }
    )*};
}
int! { i64 i32 i16 i8 u64 u32 u16 u8 }

/// What is asked for.
#[derive(Clone, Copy)]
struct Request<'a> {
    shape: &'a Shape,
    distribution: Distribution,
    dtype: DType,
    stream: Stream,
}

impl Request<'_> {
    fn narrow<T: Narrow>(self) -> Result<TensorData, String> {
        match self.checked()? {
            Distribution::Default => self.narrow_uniform::<T>(0.0, 1.0),
            Distribution::Uniform(low, high) => self.narrow_uniform::<T>(low, high),
            Distribution::Normal(mean, std) => {
                let (mean, std) = (mean as f32, std as f32);
                self.fill_narrow(|[a, b, c, d]| {
                    let ([a, b], [c, d]) = (normal_f32([a, b]), normal_f32([c, d]));
                    [a, b, c, d].map(|z| T::round(z.mul_add(std, mean)))
                })
            }
            Distribution::Bernoulli(probability) => {
                // word * 2^-32 < probability exactly when word < ceil(probability * 2^32)
                let threshold = (probability * 2f64.powi(32)).ceil() as u64;
                let (zero, one) = (T::round(0.0), T::round(1.0));
                self.fill_narrow(|words| {
                    words.map(|word| if u64::from(word) < threshold { one } else { zero })
                })
            }
        }
    }

    fn narrow_uniform<T: Narrow>(self, low: f64, high: f64) -> Result<TensorData, String> {
        let [from, to] = [low, high].map(|bound| bound.elem::<T>());
        let (first, end) = (from.widen(), to.widen());
        let width = end - first;
        if low < high && first == end && first.is_finite() {
            // Narrower than the dtype's steps: each number rounds to the one value.
            return self.fill_narrow(|words| words.map(|_| from));
        }
        // The comparison is false for NaN.
        if !(first < end && width.is_finite() && first.is_finite() && end.is_finite()) {
            return Err(self.no_uniform(low, high));
        }
        let last = to.below();
        let last_wide = last.widen();
        self.fill_narrow(|words| {
            words.map(|word| {
                // Rounding may step out of the interval at either end, the sum too at the upper one.
                let x = T::round(uniform_f32(word).mul_add(width, first));
                let wide = x.widen();
                if wide < first {
                    from
                } else if wide > last_wide {
                    last
                } else {
                    x
                }
            })
        })
    }

    fn f64(self) -> Result<TensorData, String> {
        match self.checked()? {
            Distribution::Default => self.f64_uniform(0.0, 1.0),
            Distribution::Uniform(low, high) => self.f64_uniform(low, high),
            Distribution::Normal(mean, std) => {
                self.fill_wide(|words| normal_f64(words).map(|z| z.mul_add(std, mean)))
            }
            Distribution::Bernoulli(probability) => {
                self.fill_wide(|words| words.map(|word| f64::from(uniform_f64(word) < probability)))
            }
        }
    }

    fn f64_uniform(self, low: f64, high: f64) -> Result<TensorData, String> {
        let width = high - low;
        if !(low < high && width.is_finite() && low.is_finite() && high.is_finite()) {
            return Err(self.no_uniform(low, high));
        }
        let last = high.next_down();
        self.fill_wide(|words| {
            words.map(|word| {
                let x = uniform_f64(word).mul_add(width, low);
                if x < low {
                    low
                } else if x > last {
                    last
                } else {
                    x
                }
            })
        })
    }

    fn int<T: Int>(self) -> Result<TensorData, String> {
        match self.checked()? {
            Distribution::Default => self.fill_wide(|words| words.map(T::cut)),
            Distribution::Uniform(low, high) => {
                let (from, to) = (T::saturate(low), T::saturate(high));
                if from >= to {
                    return Err(self.no_uniform(low, high));
                }
                let (from, width) = (from.extend(), to.extend().wrapping_sub(from.extend()));
                self.fill_wide(|words| {
                    words.map(|word| {
                        let step = (u128::from(word) * u128::from(width)) >> 64;
                        T::cut(from.wrapping_add(step as u64))
                    })
                })
            }
            Distribution::Normal(mean, std) => {
                self.fill_wide(|words| normal_f64(words).map(|z| T::saturate(z.mul_add(std, mean))))
            }
            Distribution::Bernoulli(probability) => {
                self.fill_wide(|words| words.map(|word| T::cut((uniform_f64(word) < probability).into())))
            }
        }
    }

    /// The distribution, whose deviation and probability make sense.
    fn checked(self) -> Result<Distribution, String> {
        match self.distribution {
            Distribution::Normal(mean, std) if !std.is_finite() => {
                Err(format!("a deviation must be finite: normal({mean}, {std})"))
            }
            Distribution::Bernoulli(p) if !(0.0..=1.0).contains(&p) => {
                Err(format!("a probability must be in [0, 1]: bernoulli({p})"))
            }
            distribution => Ok(distribution),
        }
    }

    fn no_uniform(self, low: f64, high: f64) -> String {
        format!("there is no uniform distribution over [{low}, {high}) in {:?}", self.dtype)
    }

    fn fill_narrow<T: Element>(self, values: impl Fn([u32; 4]) -> [T; 4]) -> Result<TensorData, String> {
        self.fill(|index| values(self.stream.narrow(index)))
    }

    fn fill_wide<T: Element>(self, values: impl Fn([u64; 2]) -> [T; 2]) -> Result<TensorData, String> {
        self.fill(|index| values(self.stream.wide(index)))
    }

    /// A tensor from what each counter gives.
    fn fill<T: Element, const N: usize>(self, values: impl Fn(u64) -> [T; N]) -> Result<TensorData, String> {
        let too_large = || format!("no memory for {:?} of shape {:?}", self.dtype, self.shape.as_slice());
        let sizes = self.shape.iter();
        let len = sizes.copied().try_fold(1usize, usize::checked_mul).ok_or_else(too_large)?;
        let whole = len.checked_next_multiple_of(N).ok_or_else(too_large)?;
        let mut all = Vec::new();
        all.try_reserve_exact(whole).map_err(|_| too_large())?;
        (0..(whole / N) as u64).for_each(|index| all.extend(values(index)));
        all.truncate(len);
        let mut data = TensorData::new(all, self.shape.clone());
        data.dtype = self.dtype; // f32 may stand for flex32
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 0x0123_4567_89ab_cdef;
    /// The counter wraps after two.
    const OFFSET: u64 = u64::MAX - 1;

    fn drawn<T: Element>(distribution: Distribution, dtype: DType, len: usize) -> Vec<T> {
        draw(&Shape::new([len]), distribution, dtype, SEED, OFFSET).unwrap().to_vec().unwrap()
    }

    /// The vectors published with the authors' implementation (Random123, `kat_vectors`).
    #[test]
    fn philox_gives_the_published_numbers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn counters_cover_every_value() {
        let cases = [
            (DType::F32, 0, 0),
            (DType::BF16, 1, 1),
            (DType::F16, 5, 2),
            (DType::F64, 5, 3),
            (DType::I8, 4, 2),
        ];
        for (dtype, len, want) in cases {
            assert_eq!(counters(dtype, len), want, "{dtype:?}");
        }
    }

    /// What the kernel gives when its text is compiled for the CPU.
    #[test]
    fn the_kernels_numbers() {
        let uniform = Distribution::Uniform(-2.5, 3.25);
        let f32s: [u32; 9] = [
            0x3e2280a5, 0xbfb78279, 0x3fe24c18, 0x3ffb1bb0, 0xbccc4980, 0xbfa2d90f, 0x3f83c405, 0xbffe3e28,
            0x3fd1e662,
        ];
        assert_eq!(drawn::<f32>(uniform, DType::F32, 9), f32s.map(f32::from_bits));
        let bf16s: [u16; 9] = [0x3e23, 0xbfb8, 0x3fe2, 0x3ffb, 0xbccc, 0xbfa3, 0x3f84, 0xbffe, 0x3fd2];
        assert_eq!(drawn::<bf16>(uniform, DType::BF16, 9), bf16s.map(bf16::from_bits));
        let f16s: [u16; 9] = [0x3114, 0xbdbc, 0x3f12, 0x3fd9, 0xa662, 0xbd17, 0x3c1e, 0xbff2, 0x3e8f];
        assert_eq!(drawn::<f16>(uniform, DType::F16, 9), f16s.map(f16::from_bits));
        let f64s: [u64; 4] = [0xbff6f04f26cd75fe, 0x3fff637620084981, 0xbff45b2192e46625, 0xbfffc7c4d6cf8780];
        assert_eq!(drawn::<f64>(uniform, DType::F64, 4), f64s.map(f64::from_bits));
        assert_eq!(drawn::<i8>(Distribution::Uniform(-100.0, 100.0), DType::I8, 4), [-63, 55, -58, -83]);
        assert_eq!(drawn::<u16>(Distribution::Uniform(3.0, 6e4), DType::U16, 4), [11129, 46558, 12813, 5363]);
        let half = 2f64.powi(62);
        assert_eq!(
            drawn::<i64>(Distribution::Uniform(-half, half), DType::I64, 2),
            [-2901222477282717303, 2545301918041905840]
        );
        assert_eq!(drawn::<i16>(Distribution::Default, DType::I16, 5), [-23790, 13664, -20427, -13803, 8750]);
        let normal = Distribution::Normal(3.0, 20.0);
        assert_eq!(drawn::<i32>(normal, DType::I32, 8), [8, -33, 32, 21, -11, 4, -6, -25]);
        assert_eq!(drawn::<u8>(normal, DType::U8, 8), [8, 0, 32, 21, 0, 4, 0, 0]);
        let near = |got: Vec<f64>, want: &[f64], tolerance: f64| {
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < tolerance, "{got}, not {want}");
            }
        };
        let f32s: Vec<f32> = drawn(normal, DType::F32, 3);
        let want = [12.801351547241211, 25.82598114013672, 5.507812023162842];
        near(f32s.into_iter().map(f64::from).collect(), &want, 1e-5);
        let want = [
            8.96259395589357,
            -33.22745514172861,
            32.751766142901104,
            21.709488035640263,
            -11.269593017585384,
            4.93107704350781,
        ];
        near(drawn(normal, DType::F64, 6), &want, 1e-13);
        let coins = Distribution::Bernoulli(0.4);
        assert_eq!(drawn::<f32>(coins, DType::F32, 8), [0., 1., 0., 0., 0., 1., 0., 1.]);
        assert_eq!(drawn::<u8>(coins, DType::U8, 8), [1, 0, 1, 1, 0, 0, 1, 0]);
    }

    /// FNV-1a of the bytes of 1001 numbers, from the backend's definition on the CPU.
    #[test]
    fn the_backends_numbers() {
        let cases = [
            (DType::F64, Distribution::Default, 0x7debf3033953b103),
            (DType::F64, Distribution::Uniform(-2.5, 3.25), 0x2330aa67f9f40223),
            (DType::F64, Distribution::Bernoulli(0.4), 0x2299b86fccc61c58),
            (DType::F32, Distribution::Default, 0xfa1418d730b387c6),
            (DType::F32, Distribution::Uniform(-2.5, 3.25), 0xa4af60a473adcdfc),
            (DType::F32, Distribution::Bernoulli(0.4), 0x7a9dd1d863a404e8),
            (DType::Flex32, Distribution::Uniform(-2.5, 3.25), 0xa4af60a473adcdfc),
            (DType::F16, Distribution::Default, 0x8ae9e0bbb35d97d8),
            (DType::F16, Distribution::Uniform(-2.5, 3.25), 0x161d6ad47bebac93),
            (DType::F16, Distribution::Bernoulli(0.4), 0x384e05acca833069),
            (DType::BF16, Distribution::Default, 0xfaaef2b7d79ccaa3),
            (DType::BF16, Distribution::Uniform(-2.5, 3.25), 0xc330e513f1adb9f7),
            (DType::BF16, Distribution::Bernoulli(0.4), 0x2b58e0af994fe468),
            (DType::I64, Distribution::Default, 0xcd4338fdff83b060),
            (DType::I64, Distribution::Uniform(-100.0, 100.0), 0x0c477dd98a1fe49a),
            (DType::I64, Distribution::Bernoulli(0.4), 0x7b313ea365bd4ec4),
            (DType::I32, Distribution::Default, 0xdac8fea73db52eb8),
            (DType::I32, Distribution::Uniform(-100.0, 100.0), 0x45566972cdc3300e),
            (DType::I32, Distribution::Bernoulli(0.4), 0xd36893aa8b959d74),
            (DType::I16, Distribution::Default, 0x374aa03d43654c51),
            (DType::I16, Distribution::Uniform(-100.0, 100.0), 0xe406e46cd8556d90),
            (DType::I16, Distribution::Bernoulli(0.4), 0xf52347915037086c),
            (DType::I8, Distribution::Default, 0x2bb18ca3a841d6cc),
            (DType::I8, Distribution::Uniform(-100.0, 100.0), 0x5f8284e6d7042d2f),
            (DType::I8, Distribution::Bernoulli(0.4), 0x1b4200e0abfd8b8a),
            (DType::U64, Distribution::Default, 0xcd4338fdff83b060),
            (DType::U64, Distribution::Uniform(3.0, 250.0), 0xf7e04b3706b1a4f0),
            (DType::U64, Distribution::Bernoulli(0.4), 0x7b313ea365bd4ec4),
            (DType::U32, Distribution::Default, 0xdac8fea73db52eb8),
            (DType::U32, Distribution::Uniform(3.0, 250.0), 0xc022372c70e05a40),
            (DType::U32, Distribution::Bernoulli(0.4), 0xd36893aa8b959d74),
            (DType::U16, Distribution::Default, 0x374aa03d43654c51),
            (DType::U16, Distribution::Uniform(3.0, 250.0), 0xca65cbbc8a6dfa08),
            (DType::U16, Distribution::Bernoulli(0.4), 0xf52347915037086c),
            (DType::U8, Distribution::Default, 0x2bb18ca3a841d6cc),
            (DType::U8, Distribution::Uniform(3.0, 250.0), 0x67b2b77708d67392),
            (DType::U8, Distribution::Bernoulli(0.4), 0x1b4200e0abfd8b8a),
        ];
        for (dtype, distribution, want) in cases {
            let data = draw(&Shape::new([7, 11, 13]), distribution, dtype, SEED, OFFSET).unwrap();
            assert_eq!((data.dtype, &data.shape), (dtype, &Shape::new([7, 11, 13])));
            let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            let hash = data.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325u64, step);
            assert_eq!(hash, want, "{dtype:?} {distribution:?}");
        }
    }

    #[test]
    fn a_number_depends_on_its_position_and_the_offset_alone() {
        let at = |dtype, offset, len: usize| {
            draw(&Shape::new([len]), Distribution::Default, dtype, 7, offset).unwrap()
        };
        let (long, short) = (at(DType::F32, 10, 12), at(DType::F32, 11, 5));
        assert_eq!(long.as_slice::<f32>().unwrap()[4..9], *short.as_slice::<f32>().unwrap());
        let (long, short) = (at(DType::I64, u64::MAX, 4), at(DType::I64, 0, 2));
        assert_eq!(long.as_slice::<i64>().unwrap()[2..], *short.as_slice::<i64>().unwrap());
        assert_eq!(at(DType::F64, 3, 0).num_elements(), 0);
    }

    #[test]
    fn uniform_numbers_stay_inside_their_bounds() {
        for (dtype, low, high) in [
            (DType::F32, 1.0f64, 1.0f32.next_up() as f64),
            (DType::BF16, -1.0, 0.0),
            (DType::F16, 1.0, 1.001953125),
            (DType::F64, 1e6, 1e6 + 1e-9),
            (DType::BF16, 0.0, 1.0),
            (DType::I8, -128.0, 127.0),
        ] {
            let data =
                draw(&Shape::new([4000]), Distribution::Uniform(low, high), dtype, SEED, OFFSET).unwrap();
            assert!(data.iter::<f64>().all(|x| low <= x && x < high), "{dtype:?}");
        }
    }

    #[test]
    fn bounds_are_taken_in_the_dtype() {
        let same = |dtype, a: (f64, f64), b: (f64, f64)| {
            let draw =
                |(low, high)| draw(&Shape::new([64]), Distribution::Uniform(low, high), dtype, 1, 2).unwrap();
            assert_eq!(draw(a), draw(b), "{dtype:?}");
        };
        same(DType::I32, (-2.9, 5.5), (-2.0, 5.0));
        same(DType::U8, (-4.0, 300.0), (0.0, 255.0));
        same(DType::F32, (0.1, 0.2), (0.1f32.into(), 0.2f32.into()));
        same(DType::U64, (0.0, 1e30), (0.0, u64::MAX as f64));
    }

    #[test]
    fn an_interval_narrower_than_the_steps_of_the_dtype_has_one_number() {
        let narrow = Distribution::Uniform(0.99999, 1.0);
        let data = draw(&Shape::new([9]), narrow, DType::F16, 1, 0).unwrap();
        assert!(data.iter::<f32>().all(|x| x == 1.0));
        let data = draw(&Shape::new([9]), Distribution::Uniform(1.0, 1.001), DType::BF16, 1, 0).unwrap();
        assert!(data.iter::<f32>().all(|x| x == 1.0));
    }

    #[test]
    fn what_is_no_distribution_is_an_error() {
        let with = |dtype, distribution| draw(&Shape::new([0]), distribution, dtype, 0, 0).unwrap_err();
        let uniform = |dtype, low, high| with(dtype, Distribution::Uniform(low, high));
        assert_eq!(uniform(DType::F32, 1.0, 1.0), "there is no uniform distribution over [1, 1) in F32");
        uniform(DType::F32, 0.0, f64::NAN);
        uniform(DType::F32, f64::MIN, 0.0);
        uniform(DType::F32, -3e38, 3e38);
        uniform(DType::F64, f64::MIN, f64::MAX);
        uniform(DType::F16, 0.0, 1e6);
        uniform(DType::I64, 3.2, 3.9);
        uniform(DType::I64, f64::NAN, 0.5);
        with(DType::F32, Distribution::Bernoulli(1.5));
        with(DType::I8, Distribution::Bernoulli(f64::NAN));
        with(DType::F64, Distribution::Normal(0.0, f64::INFINITY));
        let bool = DType::Bool(burn_std::BoolStore::Native);
        assert!(with(bool, Distribution::Default).starts_with("a float or integer dtype"));
        let huge = draw(&Shape::new([usize::MAX, 2]), Distribution::Default, DType::F32, 0, 0);
        assert!(huge.unwrap_err().starts_with("no memory"));
        let huge = draw(&Shape::new([usize::MAX / 2]), Distribution::Default, DType::F32, 0, 0);
        assert!(huge.unwrap_err().starts_with("no memory"));
    }

    #[test]
    fn certain_coins_are_certain() {
        for dtype in [DType::F32, DType::F64, DType::I16] {
            for certain in [0.0, 1.0] {
                let coins = draw(&Shape::new([100]), Distribution::Bernoulli(certain), dtype, 3, 4).unwrap();
                assert!(coins.iter::<f64>().all(|x| x == certain));
            }
        }
    }

    #[test]
    fn numbers_have_the_right_moments() {
        let moments = |distribution, dtype| {
            let n = 1 << 15;
            let data = draw(&Shape::new([n]), distribution, dtype, SEED, OFFSET).unwrap();
            let x: Vec<f64> = data.iter().collect();
            [1, 2, 3, 4].map(|k| x.iter().map(|x| x.powi(k)).sum::<f64>() / n as f64)
        };
        let near = |got: [f64; 4], want: [f64; 4], tolerance: [f64; 4]| {
            let close = (0..4).all(|k| (got[k] - want[k]).abs() < tolerance[k]);
            assert!(close, "{got:?}, not {want:?}");
        };
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let normal = moments(Distribution::Normal(0.0, 1.0), dtype);
            near(normal, [0.0, 1.0, 0.0, 3.0], [0.03, 0.04, 0.1, 0.2]);
            let uniform = moments(Distribution::Uniform(-1.0, 1.0), dtype);
            near(uniform, [0.0, 1.0 / 3.0, 0.0, 0.2], [0.015; 4]);
        }
        for dtype in [DType::F32, DType::I32] {
            near(moments(Distribution::Bernoulli(0.3), dtype), [0.3; 4], [0.015; 4]);
        }
    }

    #[test]
    fn quarter_turns_are_exact() {
        let turns = [0.0, 0.5, 1.0, 1.5, 2.0].map(sin_cos_pi);
        assert_eq!(turns, [(0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0), (0.0, 1.0)]);
        for k in 0..1000 {
            let x = f64::from(k) / 500.0;
            let ((sin, cos), (want_sin, want_cos)) = (sin_cos_pi(x), (x * PI).sin_cos());
            assert!((sin - want_sin).abs() < 1e-15 && (cos - want_cos).abs() < 1e-15, "{x}");
        }
    }
}
