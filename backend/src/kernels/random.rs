//! Launcher of `random.cu`, and the same numbers on the CPU.
//!
//! `common/philox.cuh` defines which numbers a tensor gets.

#[cfg(test)]
use super::gate::Instance;
use super::gather::{THREADS, blocks};
use super::{Def, KernelFile, KernelSpec, kernel_file};
use crate::driver::launch::{Launch, ScalarArg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(PHILOX, "common/philox.cuh");
kernel_file!(RANDOM, "random.cu", [&PHILOX]);

/// The file that other kernels include to draw numbers.
#[allow(dead_code)]
pub(crate) static COMMON_PHILOX: &KernelFile = &PHILOX;

/// Blocks per multiprocessor: enough threads to fill it, each with work for several packs, so that what a thread
/// prepares once does not count.
const BLOCKS_PER_SM: u64 = 16;

/// A distribution, with its two parameters in the form in which they travel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Case {
    /// `low`, `high`: bits of an f64, or for integers 64-bit integers.
    Uniform(u64, u64),
    Normal {
        mean: f64,
        std: f64,
    },
    Bernoulli(f64),
    /// Integers: any value.
    Bits,
}

impl Case {
    fn macro_name(self) -> &'static str {
        match self {
            Case::Uniform(..) => "CASE_UNIFORM",
            Case::Normal { .. } => "CASE_NORMAL",
            Case::Bernoulli(_) => "CASE_BERNOULLI",
            Case::Bits => "CASE_BITS",
        }
    }
}

fn defs(elem: Elem, case: Case) -> [(&'static str, Def); 2] {
    [("T", Def::Type(elem)), (case.macro_name(), Def::Int(1))]
}

/// Values that one counter gives.
pub(crate) fn per_counter(elem: Elem) -> u64 {
    match elem {
        Elem::F32 | Elem::F16 | Elem::BF16 => 4,
        _ => 2,
    }
}

/// Counters that `n` values use up.
pub(crate) fn counters(elem: Elem, n: usize) -> u64 {
    (n as u64).div_ceil(per_counter(elem))
}

/// Fills the row-major `y`. The offset is `offset_base + offset`.
pub(crate) fn random(
    y: &CudaTensor,
    case: Case,
    seed: ScalarArg,
    offset: ScalarArg,
    offset_base: u64,
) -> Result<()> {
    debug_assert!(y.layout().is_contiguous() && y.aligned_to(16));
    let (s0, s1) = match case {
        Case::Uniform(low, high) => (low, high),
        Case::Normal { mean, std } => (mean.to_bits(), std.to_bits()),
        Case::Bernoulli(p) => (p.to_bits(), 0),
        Case::Bits => (0, 0),
    };
    let device = y.device();
    let defs = defs(y.elem(), case);
    let kernel = device.kernel(&KernelSpec { file: &RANDOM, entry: "random_fill", defs: &defs })?;
    let n = y.len() as u64;
    let packs = n.div_ceil(16 / y.elem().size_bytes() as u64);
    let most = device.props.sm_count as u64 * BLOCKS_PER_SM;
    Launch::new(device, kernel)
        .write(y)
        .arg(n)
        .scalar(seed)
        .scalar(offset)
        .arg(offset_base)
        .scalar(ScalarArg::bits(s0))
        .scalar(ScalarArg::bits(s1))
        .run([blocks(packs).min(most as u32), 1, 1], THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let cases = [Case::Uniform(0, 1), Case::Normal { mean: 0., std: 1. }, Case::Bernoulli(0.5), Case::Bits];
    let floats = [Elem::F32, Elem::F64, Elem::F16, Elem::BF16];
    let ints = [Elem::I64, Elem::I32, Elem::I16, Elem::U8];
    let of = |elem, case| Instance::new(&RANDOM, "random_fill", &defs(elem, case));
    let float = floats.iter().flat_map(|&elem| cases[..3].iter().map(move |&case| of(elem, case)));
    let int = ints.iter().flat_map(|&elem| cases.iter().map(move |&case| of(elem, case)));
    float.chain(int).collect()
}

/// The definition of `common/philox.cuh` on the CPU: bit for bit, but for the logarithm, sine and cosine of normal
/// numbers, and for the last bit of a 16-bit float that those decide.
#[allow(dead_code)] // what GPU tests compare with
pub(crate) mod cpu {
    use half::{bf16, f16};

    use super::{Case, Elem};

    /// An element's value: a float of the dtype, or an integer of the dtype as its low bits.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub(crate) enum Value {
        Float(f64),
        Int(i128),
    }

    /// Philox4x32-10 (Salmon et al., SC 2011).
    pub(crate) fn philox([mut c0, mut c1, mut c2, mut c3]: [u32; 4], [mut k0, mut k1]: [u32; 2]) -> [u32; 4] {
        for _ in 0..10 {
            let (p0, p1) = (0xD251_1F53u64 * c0 as u64, 0xCD9E_8D57u64 * c2 as u64);
            (c0, c1, c2, c3) =
                ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
            k0 = k0.wrapping_add(0x9E37_79B9);
            k1 = k1.wrapping_add(0xBB67_AE85);
        }
        [c0, c1, c2, c3]
    }

    fn lanes(counter: u64, seed: u64) -> [u32; 4] {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let [c0, c1] = halves(counter);
        philox([c0, c1, 0, 0], halves(seed))
    }

    /// The 32-bit word of element `i` of a narrow float tensor.
    pub(crate) fn narrow_word(seed: u64, offset: u64, i: u64) -> u32 {
        lanes(offset.wrapping_add(i / 4), seed)[(i % 4) as usize]
    }

    /// The 64-bit word of element `i` of an f64 or integer tensor.
    pub(crate) fn wide_word(seed: u64, offset: u64, i: u64) -> u64 {
        let lanes = lanes(offset.wrapping_add(i / 2), seed);
        let k = (i % 2) as usize * 2;
        lanes[k] as u64 | (lanes[k + 1] as u64) << 32
    }

    fn uniform_f32(word: u32) -> f32 {
        (word >> 8) as f32 * 2f32.powi(-24)
    }

    fn uniform_f64(word: u64) -> f64 {
        (word >> 11) as f64 * 2f64.powi(-53)
    }

    /// Rounds a value computed in f32 to a narrow float type.
    fn rounded(elem: Elem, x: f32) -> f32 {
        match elem {
            Elem::F16 => f16::from_f32(x).to_f32(),
            Elem::BF16 => bf16::from_f32(x).to_f32(),
            _ => x,
        }
    }

    /// The largest value of a narrow float type below `x`, which is one of its values.
    fn below(elem: Elem, x: f32) -> f32 {
        let bits_below = |bits: u16| match bits {
            0 | 0x8000 => 0x8001,
            _ if bits & 0x8000 != 0 => bits + 1,
            _ => bits - 1,
        };
        match elem {
            Elem::F16 => f16::from_bits(bits_below(f16::from_f32(x).to_bits())).to_f32(),
            Elem::BF16 => bf16::from_bits(bits_below(bf16::from_f32(x).to_bits())).to_f32(),
            _ => x.next_down(),
        }
    }

    fn normal_f32(a: u32, b: u32) -> [f32; 2] {
        let r = (-2.0 * (a as f32).mul_add(2f32.powi(-32), 2f32.powi(-33)).ln()).sqrt();
        let angle = b as f32 * 2f32.powi(-31) * std::f32::consts::PI;
        [r * angle.cos(), r * angle.sin()]
    }

    fn normal_f64(a: u64, b: u64) -> [f64; 2] {
        let r = (-2.0 * (((a >> 11) + 1) as f64 * 2f64.powi(-53)).ln()).sqrt();
        let angle = (b >> 11) as f64 * 2f64.powi(-52) * std::f64::consts::PI;
        [r * angle.cos(), r * angle.sin()]
    }

    fn int(elem: Elem, bits: u64) -> Value {
        Value::Int(match elem {
            Elem::I64 => bits as i64 as i128,
            Elem::I32 => bits as i32 as i128,
            Elem::I16 => bits as i16 as i128,
            Elem::I8 => bits as i8 as i128,
            Elem::U32 => bits as u32 as i128,
            Elem::U16 => bits as u16 as i128,
            Elem::U8 => bits as u8 as i128,
            _ => bits as i128,
        })
    }

    /// A float cut to an integer type: saturating, NaN to 0.
    fn cut(elem: Elem, x: f64) -> Value {
        Value::Int(match elem {
            Elem::I64 => x as i64 as i128,
            Elem::I32 => x as i32 as i128,
            Elem::I16 => x as i16 as i128,
            Elem::I8 => x as i8 as i128,
            Elem::U32 => x as u32 as i128,
            Elem::U16 => x as u16 as i128,
            Elem::U8 => x as u8 as i128,
            _ => x as u64 as i128,
        })
    }

    /// Element `i` of a tensor of `elem` drawn at `(seed, offset)`.
    pub(crate) fn element(elem: Elem, case: Case, seed: u64, offset: u64, i: u64) -> Value {
        let (even, odd) = (i & !1, i | 1);
        if matches!(elem, Elem::F32 | Elem::F16 | Elem::BF16) {
            let word = |i| narrow_word(seed, offset, i);
            return Value::Float(match case {
                Case::Uniform(low, high) => {
                    let [low, high] = [low, high].map(|x| {
                        let x = f64::from_bits(x);
                        match elem {
                            Elem::F16 => f16::from_f64(x).to_f32(),
                            Elem::BF16 => bf16::from_f64(x).to_f32(),
                            _ => x as f32,
                        }
                    });
                    rounded(elem, uniform_f32(word(i)).mul_add(high - low, low))
                        .max(low)
                        .min(below(elem, high)) as f64
                }
                Case::Normal { mean, std } => {
                    let z = normal_f32(word(even), word(odd))[(i % 2) as usize];
                    rounded(elem, z.mul_add(std as f32, mean as f32)) as f64
                }
                Case::Bernoulli(p) => ((word(i) as u64) < (p * 2f64.powi(32)).ceil() as u64) as u8 as f64,
                Case::Bits => unreachable!("integers only"),
            });
        }
        let word = |i| wide_word(seed, offset, i);
        match case {
            Case::Uniform(low, high) if elem == Elem::F64 => {
                let (low, high) = (f64::from_bits(low), f64::from_bits(high));
                Value::Float(uniform_f64(word(i)).mul_add(high - low, low).max(low).min(high.next_down()))
            }
            Case::Uniform(low, high) => {
                let width = high.wrapping_sub(low) as u128;
                int(elem, low.wrapping_add(((word(i) as u128 * width) >> 64) as u64))
            }
            Case::Normal { mean, std } => {
                let x = normal_f64(word(even), word(odd))[(i % 2) as usize].mul_add(std, mean);
                if elem == Elem::F64 { Value::Float(x) } else { cut(elem, x) }
            }
            Case::Bernoulli(p) => {
                let one = uniform_f64(word(i)) < p;
                if elem == Elem::F64 { Value::Float(one as u8 as f64) } else { Value::Int(one as i128) }
            }
            Case::Bits => int(elem, word(i)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cpu::{Value, element, narrow_word, philox, wide_word};
    use super::*;

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
    fn an_element_depends_on_its_position_and_the_offset_alone() {
        assert_eq!(narrow_word(7, 10, 5), narrow_word(7, 11, 1));
        assert_eq!(wide_word(7, 10, 5), wide_word(7, 12, 1));
        assert_eq!(narrow_word(7, u64::MAX, 4), narrow_word(7, 0, 0));
    }

    #[test]
    fn counters_cover_every_value() {
        assert_eq!((counters(Elem::F32, 0), counters(Elem::BF16, 1), counters(Elem::F16, 5)), (0, 1, 2));
        assert_eq!((counters(Elem::F64, 5), counters(Elem::I8, 4)), (3, 2));
    }

    const SEED: u64 = 0x0123_4567_89ab_cdef;
    const OFFSET: u64 = u64::MAX - 1;

    fn draw(elem: Elem, case: Case, n: u64) -> Vec<Value> {
        (0..n).map(|i| element(elem, case, SEED, OFFSET, i)).collect()
    }

    /// What random.cu gives when its text is compiled for the CPU, over the wrap of the counter.
    #[test]
    fn the_twin_gives_the_kernels_numbers() {
        let uniform = Case::Uniform((-2.5f64).to_bits(), 3.25f64.to_bits());
        let f32s: [u32; 9] = [
            0x3e2280a5, 0xbfb78279, 0x3fe24c18, 0x3ffb1bb0, 0xbccc4980, 0xbfa2d90f, 0x3f83c405, 0xbffe3e28,
            0x3fd1e662,
        ];
        assert_eq!(draw(Elem::F32, uniform, 9), f32s.map(|b| Value::Float(f32::from_bits(b) as f64)));
        let bf16s: [u16; 9] = [0x3e23, 0xbfb8, 0x3fe2, 0x3ffb, 0xbccc, 0xbfa3, 0x3f84, 0xbffe, 0x3fd2];
        assert_eq!(
            draw(Elem::BF16, uniform, 9),
            bf16s.map(|b| Value::Float(half::bf16::from_bits(b).to_f64()))
        );
        let f16s: [u16; 9] = [0x3114, 0xbdbc, 0x3f12, 0x3fd9, 0xa662, 0xbd17, 0x3c1e, 0xbff2, 0x3e8f];
        assert_eq!(draw(Elem::F16, uniform, 9), f16s.map(|b| Value::Float(half::f16::from_bits(b).to_f64())));
        let f64s: [u64; 4] = [0xbff6f04f26cd75fe, 0x3fff637620084981, 0xbff45b2192e46625, 0xbfffc7c4d6cf8780];
        assert_eq!(draw(Elem::F64, uniform, 4), f64s.map(|b| Value::Float(f64::from_bits(b))));
        let ints = |elem, low: i64, high: i64| draw(elem, Case::Uniform(low as u64, high as u64), 4);
        assert_eq!(ints(Elem::I8, -100, 100), [-63, 55, -58, -83].map(Value::Int));
        assert_eq!(ints(Elem::U16, 3, 60000), [11129, 46558, 12813, 5363].map(Value::Int));
        assert_eq!(
            ints(Elem::I64, -(1 << 62), 1 << 62)[..2],
            [-2901222477282717303, 2545301918041905840].map(Value::Int)
        );
        assert_eq!(draw(Elem::I16, Case::Bits, 5), [-23790, 13664, -20427, -13803, 8750].map(Value::Int));
        let normal = Case::Normal { mean: 3.0, std: 20.0 };
        assert_eq!(draw(Elem::I32, normal, 5), [8, -33, 32, 21, -11].map(Value::Int));
        let near = |elem, tolerance: f64, want: [f64; 3]| {
            for (got, want) in draw(elem, normal, 3).into_iter().zip(want) {
                assert!(
                    matches!(got, Value::Float(x) if (x - want).abs() < tolerance),
                    "{got:?}, not {want}"
                );
            }
        };
        near(Elem::F32, 1e-4, [12.801351547241211, 25.82598114013672, 5.507812023162842]);
        near(Elem::F64, 1e-12, [8.96259395589357, -33.22745514172861, 32.751766142901104]);
        let coins = Case::Bernoulli(0.4);
        assert_eq!(draw(Elem::F32, coins, 8), [0., 1., 0., 0., 0., 1., 0., 1.].map(Value::Float));
        assert_eq!(draw(Elem::U8, coins, 8), [1, 0, 1, 1, 0, 0, 1, 0].map(Value::Int));
    }

    #[test]
    fn uniform_numbers_stay_inside_their_bounds() {
        for (elem, low, high) in [
            (Elem::F32, 1.0f64, 1.0f32.next_up() as f64),
            (Elem::BF16, -1.0, 0.0),
            (Elem::F16, 1.0, 1.001953125),
            (Elem::F64, 1e6, 1e6 + 1e-9),
            (Elem::BF16, 0.0, 1.0),
        ] {
            for x in draw(elem, Case::Uniform(low.to_bits(), high.to_bits()), 4000) {
                assert!(matches!(x, Value::Float(x) if low <= x && x < high), "{elem:?}: {x:?}");
            }
        }
    }

    #[test]
    fn certain_coins_are_certain() {
        assert!(draw(Elem::F32, Case::Bernoulli(0.0), 100).iter().all(|x| *x == Value::Float(0.0)));
        assert!(draw(Elem::F32, Case::Bernoulli(1.0), 100).iter().all(|x| *x == Value::Float(1.0)));
    }

    #[test]
    fn normal_numbers_have_the_right_moments() {
        let n = 1 << 15;
        let z: Vec<f64> = draw(Elem::F32, Case::Normal { mean: 0.0, std: 1.0 }, n)
            .into_iter()
            .map(|z| match z {
                Value::Float(z) => z,
                Value::Int(_) => f64::NAN,
            })
            .collect();
        let moment = |k: i32| z.iter().map(|z| z.powi(k)).sum::<f64>() / n as f64;
        assert!(moment(1).abs() < 0.03 && (moment(2) - 1.0).abs() < 0.04 && moment(3).abs() < 0.1);
        assert!((moment(4) - 3.0).abs() < 0.2, "{}", moment(4));
    }
}
