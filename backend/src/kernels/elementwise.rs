//! Launcher of the elementwise family (`elementwise.cu`): chooses the case, the vector width and the index width.

use smallvec::SmallVec;

#[cfg(test)]
use super::gate::Instance;
use super::{Def, KernelSpec, WRAPPING, kernel_file};
use crate::compile::Source;
use crate::driver::launch::{FastDiv, Launch, ScalarArg, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::{Nest, Strides};
use crate::tensor::CudaTensor;

kernel_file!(pub(super) MATH, "common/math.cuh", [&WRAPPING]);
kernel_file!(pub(crate) ELEMENTWISE, "elementwise.cu", [&MATH]);

const THREADS: u64 = 256;
/// Packs that a thread of the contiguous case has in flight.
const UNROLL: u64 = 2;
const MAX_DIMS: usize = 8;
/// The output and up to three inputs.
const OPERANDS: usize = 4;

/// An elementwise operation: its name in errors, and its expression in `a`, `b`, `c`, `s0`, `s1` and `i`.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) expr: &'static str,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Pointers([u64; OPERANDS]);

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Scalars([ScalarArg; 2]);

/// Mirrors `Nest` in elementwise.cu: innermost loop first.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct NestArg {
    dims: u32,
    size32: [FastDiv; MAX_DIMS],
    size: [u64; MAX_DIMS],
    stride: [[i64; OPERANDS]; MAX_DIMS],
}

kernel_arg!(Pointers, Scalars, NestArg);

/// How an instance walks its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Contiguous,
    Rows,
    Strided,
}

#[derive(Debug, PartialEq, Eq)]
struct Variant {
    case: Case,
    /// Elements per pack.
    v: usize,
    /// Bit k: input k has one element per (inner) row.
    broadcast: u32,
    narrow_index: bool,
}

/// Elements per pack: the narrowest operand moves 16 bytes at once, within 64 bytes for the widest operand so that two
/// packs of three inputs stay in registers.
fn pack_len(elems: &[Elem]) -> usize {
    let sizes = elems.iter().map(|e| e.size_bytes());
    let (low, high) = (sizes.clone().min().unwrap_or(1), sizes.max().unwrap_or(1));
    (16 / low).min(64 / high).min(16)
}

/// `aligned(k, bytes)` tells whether operand `k`'s address is a multiple of `bytes`.
fn variant(nest: &Nest<OPERANDS>, elems: &[Elem], aligned: impl Fn(usize, usize) -> bool) -> Variant {
    let operands = elems.len();
    let inner = nest.sizes.len() - 1;
    let inner_strides = nest.strides[inner];
    let unit = |k: usize| inner_strides[k] == 1;
    let broadcast = (1..operands).filter(|&k| inner_strides[k] == 0).fold(0, |bits, k| bits | 1 << (k - 1));
    let narrow_index = nest.fits_u31();
    let strided = Variant { case: Case::Strided, v: 1, broadcast: 0, narrow_index };
    if !unit(0) || (1..operands).any(|k| !unit(k) && inner_strides[k] != 0) {
        return strided;
    }
    let mut v = pack_len(elems);
    let all_aligned = |v: usize| {
        (0..operands).filter(|&k| unit(k)).all(|k| {
            let outer_aligned = nest.strides[..inner].iter().all(|s| s[k] % v as i64 == 0);
            outer_aligned && aligned(k, (v * elems[k].size_bytes()).min(16))
        })
    };
    if inner == 0 {
        let v = if all_aligned(v) { v } else { 1 };
        return Variant { case: Case::Contiguous, v, broadcast, narrow_index };
    }
    while v > 1 && !(nest.sizes[inner].is_multiple_of(v) && all_aligned(v)) {
        v /= 2;
    }
    if v == 1 { strided } else { Variant { case: Case::Rows, v, broadcast, narrow_index } }
}

/// `out[i] = op(inputs[i].., scalars)`, where each input's shape broadcasts to `out`'s. `out` may be an input itself; it is
/// row-major if the operation knows its index.
/// `scalar_elem` gives the scalars' compute type.
pub(crate) fn elementwise(
    op: &'static Op,
    out: &CudaTensor,
    inputs: &[&CudaTensor],
    scalars: [ScalarArg; 2],
    scalar_elem: Elem,
) -> Result<()> {
    debug_assert!(inputs.len() < OPERANDS);
    if out.is_empty() {
        return Ok(());
    }
    let shape = out.dims();
    let expanded: SmallVec<[Strides; 3]> = inputs
        .iter()
        .map(|t| t.layout().expanded_strides(shape).expect("the op checked that shapes broadcast"))
        .collect();
    let strides = |k: usize| match k {
        0 => out.layout().strides(),
        // An operand that is not there must not keep loops apart.
        k => expanded.get(k - 1).map_or(out.layout().strides(), |s| s),
    };
    let all = [strides(0), strides(1), strides(2), strides(3)];
    let nest = match out.layout() {
        rows if rows.is_contiguous() => Nest::new(shape, all),
        // Neighbours in the output's memory are written together.
        other => {
            let order = other.memory_order();
            let ordered = all.map(|strides| order.iter().map(|&d| strides[d]).collect::<Strides>());
            let shape: SmallVec<[usize; 6]> = order.iter().map(|&d| shape[d]).collect();
            Nest::new(&shape, ordered.each_ref().map(|strides| &strides[..]))
        }
    };
    let mut pointers = [out.ptr(), 0, 0, 0];
    for (at, tensor) in pointers[1..].iter_mut().zip(inputs) {
        *at = tensor.ptr();
    }
    let call = Call { op, out, inputs, scalars: Scalars(scalars), scalar_elem };
    call.split(nest, pointers)
}

struct Call<'a> {
    op: &'static Op,
    out: &'a CudaTensor,
    inputs: &'a [&'a CudaTensor],
    scalars: Scalars,
    scalar_elem: Elem,
}

impl Call<'_> {
    /// Loops that a kernel does not take are walked here: more than [`MAX_DIMS`] are left only by exotic views.
    fn split(&self, nest: Nest<OPERANDS>, pointers: [u64; OPERANDS]) -> Result<()> {
        if nest.sizes.len() <= MAX_DIMS {
            return self.launch(&nest, pointers);
        }
        let rest = Nest { sizes: nest.sizes[1..].into(), strides: nest.strides[1..].into() };
        for i in 0..nest.sizes[0] as i64 {
            let at = |k: usize| {
                let size = self.elem(k).map_or(0, |e| e.size_bytes() as i64);
                pointers[k].wrapping_add_signed(i * nest.strides[0][k] * size)
            };
            self.split(rest.clone(), [at(0), at(1), at(2), at(3)])?;
        }
        Ok(())
    }

    fn elem(&self, operand: usize) -> Option<Elem> {
        match operand {
            0 => Some(self.out.elem()),
            k => self.inputs.get(k - 1).map(|t| t.elem()),
        }
    }

    fn launch(&self, nest: &Nest<OPERANDS>, pointers: [u64; OPERANDS]) -> Result<()> {
        let elems: SmallVec<[Elem; OPERANDS]> =
            (0..=self.inputs.len()).filter_map(|k| self.elem(k)).collect();
        let variant = variant(nest, &elems, |k, bytes| pointers[k].is_multiple_of(bytes as u64));
        let defs = defs(self.op, &elems, self.scalar_elem, &variant);
        let device = self.out.device();
        let kernel = device.kernel(&KernelSpec { file: &ELEMENTWISE, entry: "elementwise", defs: &defs })?;
        let len = nest.sizes.iter().map(|&s| s as u64).product::<u64>();
        let launch = Launch::new(device, kernel)
            .op(self.op.name)
            .arg(Pointers(pointers))
            .arg(self.scalars)
            .uses(&[self.out], self.inputs);
        if variant.case == Case::Contiguous {
            let per_block = THREADS * UNROLL * variant.v as u64;
            let blocks = len.div_ceil(per_block);
            return launch.arg(len).arg(variant.broadcast).run([blocks as u32, 1, 1], THREADS as u32, 0);
        }
        let packs = len / variant.v as u64;
        // Beyond 2^31 blocks the threads loop.
        let blocks = packs.div_ceil(THREADS).min(i32::MAX as u64);
        launch.arg(packs).arg(variant.broadcast).arg(nest_arg(nest, variant.v)).run(
            [blocks as u32, 1, 1],
            THREADS as u32,
            0,
        )
    }
}

/// The macros of an instance. `elems` are the output's and the inputs'.
fn defs(op: &Op, elems: &[Elem], scalar_elem: Elem, variant: &Variant) -> [(&'static str, Def); 10] {
    let ty = |k: usize| Def::Type(elems.get(k).copied().unwrap_or(Elem::U8));
    // The contiguous case has one index width only.
    let narrow = variant.narrow_index && variant.case != Case::Contiguous;
    let case = match variant.case {
        Case::Contiguous => "CASE_CONTIGUOUS",
        Case::Rows => "CASE_ROWS",
        Case::Strided => "CASE_STRIDED",
    };
    [
        ("N_IN", Def::Int(elems.len() as i64 - 1)),
        ("OUT_T", ty(0)),
        ("A_T", ty(1)),
        ("B_T", ty(2)),
        ("C_T", ty(3)),
        ("S_T", Def::Text(scalar_elem.compute_name())),
        ("V", Def::Int(variant.v as i64)),
        (case, Def::Int(variant.case as i64)),
        ("INDEX", Def::Text(if narrow { "u32" } else { "u64" })),
        ("EXPR", Def::Text(op.expr)),
    ]
}

/// The source of an instance over aligned contiguous operands, to be compiled ahead of its first use.
pub(crate) fn contiguous_source(op: &Op, elems: &[Elem]) -> Result<Source> {
    let variant = Variant { case: Case::Contiguous, v: pack_len(elems), broadcast: 0, narrow_index: true };
    let scalar_elem = elems.get(1).copied().unwrap_or(elems[0]);
    let defs = defs(op, elems, scalar_elem, &variant);
    KernelSpec { file: &ELEMENTWISE, entry: "elementwise", defs: &defs }.source()
}

/// The nest as the kernel takes it: innermost loop first, and that one in packs of `v`.
fn nest_arg(nest: &Nest<OPERANDS>, v: usize) -> NestArg {
    let mut arg = NestArg {
        dims: nest.sizes.len() as u32,
        size32: [FastDiv::default(); MAX_DIMS],
        size: [1; MAX_DIMS],
        stride: [[0; OPERANDS]; MAX_DIMS],
    };
    for (d, (&size, strides)) in nest.sizes.iter().zip(&nest.strides).rev().enumerate() {
        let (size, stride) =
            if d == 0 { (size / v, strides.map(|s| s * v as i64)) } else { (size, *strides) };
        arg.size[d] = size as u64;
        // Sizes of 2^31 and more go with 64-bit indices, which do not use this field.
        arg.size32[d] =
            u32::try_from(size).ok().filter(|&s| s < 1 << 31).map_or(FastDiv::default(), FastDiv::new);
        arg.stride[d] = stride;
    }
    arg
}

/// What the compile gate compiles: every operation over contiguous operands, and the other cases with operations from
/// one to three inputs.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    use crate::ops::elementwise::{self as ew, examples};
    use Elem::{B8, BF16, F16, F32, F64, I32, I64, U8};
    let mut all = Vec::new();
    let mut add = |op: &Op, elems: &[Elem], case: Case, v: usize, narrow_index: bool| {
        let scalar_elem = elems.get(1).copied().unwrap_or(elems[0]);
        let variant = Variant { case, v, broadcast: 0, narrow_index };
        all.push(Instance::new(&ELEMENTWISE, "elementwise", &defs(op, elems, scalar_elem, &variant)));
    };
    for op in ew::ALL {
        for elem in examples::dtypes(op) {
            // What only compares or moves needs no more registers in one type of a width than in another.
            if op.expr.contains("m_") || [F32, I64, B8].contains(&elem) {
                let elems = examples::operands(op, elem);
                add(op, &elems, Case::Contiguous, pack_len(&elems), true);
            }
        }
    }
    let varied: [(&Op, &[Elem]); 16] = [
        (&ew::FILL, &[F32]),
        (&ew::COPY, &[F32; 2]),
        (&ew::COPY, &[U8; 2]),
        (&ew::SIN, &[F64; 2]),
        (&ew::CLAMP, &[BF16; 2]),
        (&ew::ADD, &[F32; 3]),
        (&ew::ADD, &[F64; 3]),
        (&ew::ADD, &[F16; 3]),
        (&ew::ADD, &[BF16; 3]),
        (&ew::ADD, &[I64; 3]),
        (&ew::ADD, &[U8; 3]),
        (&ew::POW, &[F32; 3]),
        (&ew::POW, &[F64; 3]),
        (&ew::GELU_BACKWARD, &[BF16; 3]),
        (&ew::MASK_WHERE, &[F32, F32, B8, F32]),
        (&ew::MASK_WHERE, &[F64, F64, B8, F64]),
    ];
    for (op, elems) in varied {
        let v = pack_len(elems);
        add(op, elems, Case::Contiguous, v, true);
        add(op, elems, Case::Contiguous, 1, true);
        for narrow_index in [true, false] {
            add(op, elems, Case::Rows, v, narrow_index);
            add(op, elems, Case::Strided, 1, narrow_index);
        }
    }
    // Casts, between the widest and the narrowest too.
    for (to, from) in [
        (F32, F64),
        (F64, F32),
        (BF16, F32),
        (F32, BF16),
        (BF16, F64),
        (F16, F64),
        (F64, U8),
        (U8, F64),
        (I64, F32),
        (F32, I64),
        (I64, F64),
        (U8, I64),
        (I32, BF16),
        (F32, B8),
        (B8, F32),
    ] {
        add(&ew::COPY, &[to, from], Case::Contiguous, pack_len(&[to, from]), true);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use burn_backend::Shape;

    fn choose(shape: &[usize], inputs: &[&Layout], elems: &[Elem], align: usize) -> Variant {
        let out = Layout::contiguous(Shape::from(shape.to_vec()));
        let expanded: Vec<Layout> = inputs.iter().map(|l| l.expand(shape).unwrap()).collect();
        let strides = |k: usize| expanded.get(k).map_or(out.strides(), |l| l.strides());
        let nest = Nest::new(shape, [out.strides(), strides(0), strides(1), strides(2)]);
        variant(&nest, elems, |_, bytes| align.is_multiple_of(bytes))
    }

    fn layout(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::from(dims.to_vec()))
    }

    #[test]
    fn contiguous_operands_move_16_bytes_at_once() {
        let a = layout(&[64, 48]);
        let got = choose(&[64, 48], &[&a, &a], &[Elem::BF16; 3], 16);
        assert_eq!(got, Variant { case: Case::Contiguous, v: 8, broadcast: 0, narrow_index: true });
        assert_eq!(choose(&[64, 48], &[&a, &a], &[Elem::F32; 3], 16).v, 4);
        assert_eq!(choose(&[64, 48], &[&a], &[Elem::B8, Elem::F32], 16).v, 16);
        assert_eq!(choose(&[64, 48], &[&a], &[Elem::B8, Elem::F64], 16).v, 8);
    }

    #[test]
    fn an_unaligned_address_gives_single_elements() {
        let a = layout(&[64, 48]);
        assert_eq!(choose(&[64, 48], &[&a], &[Elem::F32; 2], 4).v, 1);
    }

    #[test]
    fn a_scalar_operand_stays_contiguous_and_a_bias_makes_rows() {
        let (a, one, bias, column) = (layout(&[64, 48]), layout(&[1, 1]), layout(&[48]), layout(&[64, 1]));
        let got = choose(&[64, 48], &[&a, &one], &[Elem::F32; 3], 16);
        assert_eq!((got.case, got.broadcast), (Case::Contiguous, 2));
        let got = choose(&[64, 48], &[&a, &bias], &[Elem::F32; 3], 16);
        assert_eq!((got.case, got.v, got.broadcast), (Case::Rows, 4, 0));
        let got = choose(&[64, 48], &[&column, &a], &[Elem::F32; 3], 16);
        assert_eq!((got.case, got.v, got.broadcast), (Case::Rows, 4, 1));
    }

    #[test]
    fn rows_take_the_widest_pack_that_divides_every_row_and_stride() {
        let (a, bias) = (layout(&[64, 6]), layout(&[6]));
        assert_eq!(choose(&[64, 6], &[&a, &bias], &[Elem::F32; 3], 16).v, 2);
        let (a, bias) = (layout(&[64, 7]), layout(&[7]));
        assert_eq!(choose(&[64, 7], &[&a, &bias], &[Elem::F32; 3], 16).case, Case::Strided);
        // A row stride of 50 allows packs of 2 only, though rows have 48 elements.
        let view = layout(&[64, 50]).narrow(1, 0, 48);
        assert_eq!(choose(&[64, 48], &[&view], &[Elem::F32; 2], 16).v, 2);
        let transposed = layout(&[48, 64]).permute(&[1, 0]).unwrap();
        assert_eq!(choose(&[64, 48], &[&transposed], &[Elem::F32; 2], 16).case, Case::Strided);
    }

    #[test]
    fn packs_divide_the_inner_loop_only() {
        let nest = Nest::new(&[6, 8], [&[8, 1], &[0, 1], &[8, 1], &[8, 1]]);
        let arg = nest_arg(&nest, 4);
        assert_eq!((arg.dims, &arg.size[..3]), (2, &[2, 6, 1][..]));
        assert_eq!((arg.stride[0][..2].to_vec(), arg.stride[1][..2].to_vec()), (vec![4, 4], vec![8, 0]));
    }
}
