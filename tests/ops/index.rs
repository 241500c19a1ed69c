//! Moving elements: views, copies of views, gather and scatter, slices, concatenation, casts, creation.

use burn_backend::{Backend, BoolDType, DType, FloatDType, IntDType, Scalar, Shape, Slice};

use crate::Family;
use crate::harness::values::{self, int_limits, round_to, wrap};
use crate::harness::{
    Arg, BOOL, Body, Dense, Domain, FLOATS, INTS, Inputs, Rng, Step, Tolerance, Value, Values,
};
use crate::harness::{family::large, shape, tolerance::epsilon};

/// Every dtype.
fn all() -> impl Iterator<Item = DType> {
    FLOATS.into_iter().chain(INTS).chain([BOOL])
}

/// A view that is read, and then used after a copy of it was changed.
#[derive(Debug)]
pub(crate) struct ReadView;
impl Body for ReadView {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).any();
        let len = match &x {
            Value::Float(t) => burn_backend::TensorMetadata::shape(t),
            Value::Int(t) => burn_backend::TensorMetadata::shape(t),
            Value::Bool(t) => burn_backend::TensorMetadata::shape(t),
        };
        let flat = x.clone().reshape(&[len.num_elements()]);
        vec![x, flat]
    }
}

/// `unfold`, `repeat_dim`, `swap_dims` of any kind of tensor.
#[derive(Debug)]
pub(crate) enum Rearrange {
    Unfold(usize, usize, usize),
    Repeat(usize, usize),
    Swap(usize, usize),
    Transpose,
}
impl Body for Rearrange {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).any();
        vec![match *self {
            Rearrange::Unfold(dim, size, step) => {
                per_kind!(x; float_unfold int_unfold bool_unfold; dim, size, step)
            }
            Rearrange::Repeat(dim, times) => {
                per_kind!(x; float_repeat_dim int_repeat_dim bool_repeat_dim; dim, times)
            }
            Rearrange::Swap(a, b) => per_kind!(x; float_swap_dims int_swap_dims bool_swap_dims; a, b),
            Rearrange::Transpose => per_kind!(x; float_transpose int_transpose bool_transpose;),
        }]
    }
}

#[derive(Debug)]
pub(crate) struct Cat(usize);
impl Body for Cat {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        vec![match &inputs[0] {
            Value::Float(_) => {
                Value::Float(B::float_cat(inputs.into_iter().map(Value::float).collect(), self.0))
            }
            Value::Int(_) => Value::Int(B::int_cat(inputs.into_iter().map(Value::int).collect(), self.0)),
            Value::Bool(_) => Value::Bool(B::bool_cat(inputs.into_iter().map(Value::bool).collect(), self.0)),
        }]
    }
}

#[derive(Debug)]
pub(crate) struct SliceAssign(Vec<Slice>);
impl Body for SliceAssign {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let x = inputs.any();
        let held = x.clone();
        let changed = match x {
            Value::Float(x) => Value::Float(B::float_slice_assign(x, &self.0, inputs.float())),
            Value::Int(x) => Value::Int(B::int_slice_assign(x, &self.0, inputs.int())),
            Value::Bool(x) => Value::Bool(B::bool_slice_assign(x, &self.0, inputs.bool())),
        };
        vec![changed, held]
    }
}

/// The share of an op's cases; integers come in eight dtypes.
fn share(dtype: DType, of_float: f64) -> f64 {
    if dtype.is_float() || dtype.is_bool() { of_float } else { 0.3 * of_float }
}

/// Of a gradient that is only moved, and summed where a view repeats elements.
fn moved(dtype: DType, out: &[usize]) -> Option<Tolerance> {
    dtype.is_float().then(|| Tolerance::chain(dtype, 8, 4 * out.iter().product::<usize>()))
}

fn layout(dtype: DType) {
    let mut family = Family::new("layout", dtype);
    family.cases("views and reshape", share(dtype, 2.0), |family, rng| {
        let shape = shape::any(rng, large());
        let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
        family.check_with(&args, &ReadView, None, Tolerance::exact(), moved(dtype, &shape));
    });
    family.cases("unfold, repeat, swap_dims, transpose", share(dtype, 2.0), |family, rng| {
        let rank = rng.range(2, 6);
        let shape = shape::filled(rng, rank, false);
        let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
        let dim = rng.below(rank);
        let body = match rng.below(4) {
            0 => Rearrange::Transpose,
            1 => Rearrange::Swap(dim, rng.below(rank)),
            2 => Rearrange::Repeat(dim, rng.range(1, 4)),
            // One dimension more.
            _ if rank < 6 => Rearrange::Unfold(dim, rng.range(1, shape[dim]), rng.range(1, 3)),
            _ => Rearrange::Transpose,
        };
        family.check_with(&args, &body, None, Tolerance::exact(), moved(dtype, &shape));
    });
    family.cases("cat", share(dtype, 1.5), |family, rng| {
        let shape = shape::any(rng, large());
        let dim = rng.below(shape.len());
        let mut args = Vec::new();
        for _ in 0..rng.range(1, 5) {
            let mut part = shape.clone();
            part[dim] = rng.pick(&[1, 2, 3, 8, 17, 0]).min(part[dim] + 1);
            args.push(Arg::random(rng, &part, dtype, Domain::Normal));
        }
        family.check_with(&args, &Cat(dim), None, Tolerance::exact(), moved(dtype, &shape));
    });
    family.finish();
}

/// Sides of matrices around the tiles and packs of a transposing copy, and some that are too short for it.
const SIDES: [usize; 22] =
    [0, 1, 3, 7, 8, 9, 15, 16, 24, 31, 32, 33, 48, 49, 63, 64, 65, 98, 127, 128, 129, 132];

/// A range of a dimension of `size`, and the size that it is a range of: sometimes with a step, sometimes from the end.
fn range_of(rng: &mut Rng, size: usize, step: isize) -> (Slice, usize) {
    let start = rng.pick(&[0, 0, 1, 2, 4, 8]);
    let end = start + (size.max(1) - 1) * step.unsigned_abs() + size.min(1);
    (Slice::new(start as isize, Some(end as isize), step), end + rng.pick(&[0, 0, 1, 3, 4, 8]))
}

/// Values through views whose dimensions of stride 1 are not the last one: up to four dimensions around or between two long
/// ones, cut out of a larger tensor.
fn across(rng: &mut Rng, dtype: DType) -> Arg {
    rng.part(|rng| {
        let rank = rng.range(2, 6);
        // In the order of memory; the last one is the source's.
        let mut sizes: Vec<usize> = (0..rank).map(|_| rng.pick(&[1, 2, 3])).collect();
        while sizes.iter().product::<usize>() > 9 {
            let d = rng.below(rank);
            sizes[d] = 1;
        }
        let side = rng.below(rank - 1);
        (sizes[side], sizes[rank - 1]) = (rng.pick(&SIDES), rng.pick(&SIDES));
        let (mut base, mut slices) = (sizes.clone(), Vec::new());
        if rng.one_in(2) {
            for (d, size) in base.iter_mut().enumerate() {
                let step = if d == rank - 1 { 1 } else { rng.pick(&[1, 1, 1, 2, -1]) };
                let (slice, whole) = range_of(rng, *size, step);
                *size = if sizes[d] > 3 || rng.one_in(3) { whole } else { *size };
                slices.push(if *size == whole { slice } else { Slice::new(0, Some(sizes[d] as isize), 1) });
            }
        }
        let mut axes = rng.permutation(rank);
        let (from, last) = (axes.iter().position(|&a| a == side).expect("an axis"), rank - 1);
        axes.swap(from, last);
        let shape = axes.iter().map(|&a| sizes[a]).collect();
        let mut views = vec![Step::Permute(axes)];
        if !slices.is_empty() {
            views.insert(0, Step::Slice(slices));
        }
        Arg { base: values::dense(rng, &base, dtype, Domain::Normal), dtype, views, shape }
    })
}

fn transposes(dtype: DType) {
    let mut family = Family::new("layout", dtype);
    family.cases("transposed copies", share(dtype, 2.0), |family, rng| {
        let arg = across(rng, dtype);
        let gradient = moved(dtype, &arg.shape);
        family.check_with(&[arg], &ReadView, None, Tolerance::exact(), gradient);
    });
    family.cases("transposed copies into a view", share(dtype, 2.0), |family, rng| {
        let value = across(rng, dtype);
        let (slices, shape): (Vec<_>, Vec<_>) = value.shape.iter().map(|&n| range_of(rng, n, 1)).unzip();
        let args = [Arg::plain(rng, &shape, dtype, Domain::Normal), value];
        family.check_with(&args, &SliceAssign(slices), None, Tolerance::exact(), moved(dtype, &shape));
    });
    family.finish();
}

/// Images to channels last and back, tiles that are just full or have one row more, and more than 2^16 rows on either side.
fn transposes_of_known_shapes(dtype: DType) {
    let mut family = Family::new("layout", dtype);
    let tiles = [16, 32, 64, 128].map(|n| vec![n + 1, n - 1]);
    let images = [[2, 64, 49], [1, 130, 196], [2, 49, 72], [1, 100, 64]].map(|shape| shape.to_vec());
    let long = [vec![65_541, 9], vec![9, 65_541]].into_iter().filter(|_| dtype.size() < 4);
    for shape in tiles.into_iter().chain(images).chain(long) {
        family.cases(&format!("transpose of {shape:?}"), 0.0, |family, rng| {
            let arg = Arg::plain(rng, &shape, dtype, Domain::Special);
            let mut axes: Vec<usize> = (0..shape.len()).collect();
            axes.swap(shape.len() - 1, shape.len() - 2);
            let shape = axes.iter().map(|&a| shape[a]).collect();
            let arg = Arg { views: vec![Step::Permute(axes)], shape, ..arg };
            family.check_with(&[arg], &ReadView, None, Tolerance::exact(), None);
        });
    }
    family.finish();
}

fn slice_assign(dtype: DType) {
    let mut family = Family::new("index", dtype);
    family.cases("slice_assign", share(dtype, 1.5), |family, rng| {
        let shape = shape::any(rng, large());
        let (mut slices, mut part) = (Vec::new(), Vec::new());
        for &size in &shape {
            let start = rng.below(size + 1);
            let end = rng.range(start, size);
            // The reference takes only whole ranges with a step of 1 on some paths, so most steps are 1.
            let step = rng.pick(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, -1, -2]);
            let slice = Slice::new(start as isize, Some(end as isize), step);
            part.push(slice.output_size(size));
            slices.push(slice);
        }
        let args = [&shape, &part].map(|s| Arg::random(rng, s, dtype, Domain::Normal));
        family.check_with(&args, &SliceAssign(slices), None, Tolerance::exact(), moved(dtype, &shape));
    });
    family.finish();
}

/// Indexed reads and writes along a dimension.
#[derive(Debug)]
pub(crate) struct Indexed(&'static str, usize);
impl Body for Indexed {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, at, dim) = (inputs.any(), inputs.int(), self.1);
        vec![match (self.0, x) {
            ("gather", Value::Float(x)) => Value::Float(B::float_gather(dim, x, at)),
            ("gather", Value::Int(x)) => Value::Int(B::int_gather(dim, x, at)),
            ("gather", Value::Bool(x)) => Value::Bool(B::bool_gather(dim, x, at)),
            ("select", x) => per_kind!(x; float_select int_select bool_select; dim, at),
            ("scatter", Value::Float(x)) => Value::Float(B::float_scatter_add(dim, x, at, inputs.float())),
            ("scatter", Value::Int(x)) => Value::Int(B::int_scatter_add(dim, x, at, inputs.int())),
            ("scatter", Value::Bool(x)) => Value::Bool(B::bool_scatter_or(dim, x, at, inputs.bool())),
            (_, Value::Float(x)) => Value::Float(B::float_select_add(x, dim, at, inputs.float())),
            (_, Value::Int(x)) => Value::Int(B::int_select_add(x, dim, at, inputs.int())),
            (_, Value::Bool(x)) => Value::Bool(B::bool_select_or(x, dim, at, inputs.bool())),
        }]
    }
}

fn indexed(dtype: DType) {
    let mut family = Family::new("index", dtype);
    for op in ["gather", "scatter", "select", "select_add"] {
        family.cases(op, share(dtype, 1.5), |family, rng| {
            let mut shape = shape::any(rng, large());
            let (rank, dim) = (shape.len(), rng.below(shape.len()));
            shape[dim] = shape[dim].max(1);
            let mut index = if matches!(op, "gather" | "scatter") { shape.clone() } else { vec![0] };
            let d = if index.len() == rank { dim } else { 0 };
            index[d] = rng.pick(&[1, 3, 8, 33, 0]);
            let index_dtype = rng.pick(&[DType::I32, DType::I64]);
            let mut update = shape.clone();
            update[dim] = index[d];
            let x = Arg::random(rng, &shape, dtype, Domain::Normal);
            let at = Arg::random(rng, &index, index_dtype, Domain::Index(shape[dim]));
            // Small enough for sums of 8 bits.
            let values = if dtype.is_float() { Domain::Normal } else { Domain::Index(3) };
            let args = [x, at, Arg::random(rng, &update, dtype, values)];
            let adds = matches!(op, "scatter" | "select_add");
            let args = if adds { &args[..] } else { &args[..2] };
            let tolerance = match dtype {
                // Repeated indices: atomic additions in the dtype, in any order.
                _ if adds && dtype.is_float() => Tolerance::chain(dtype, 1 + index[d] / 2, index[d]),
                _ => Tolerance::exact(),
            };
            // Repeated indices, and views that repeat elements, sum gradients.
            let gradient = dtype
                .is_float()
                .then(|| Tolerance::chain(dtype, 8 + index[d], 4 * shape.iter().product::<usize>()));
            family.check_with(args, &Indexed(op, dim), None, tolerance, gradient);
        });
    }
    family.finish();
}

#[derive(Debug)]
pub(crate) struct Cast(DType);
impl Body for Cast {
    fn dtype(&self) -> Option<DType> {
        Some(self.0)
    }

    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let to = self.0;
        vec![match Inputs::new(inputs).any() {
            Value::Float(x) if to.is_float() => Value::Float(B::float_cast(x, to.into())),
            Value::Float(x) => Value::Int(B::float_into_int(x, to.into())),
            Value::Int(x) if to.is_float() => Value::Float(B::int_into_float(x, to.into())),
            Value::Int(x) => Value::Int(B::int_cast(x, to.into())),
            Value::Bool(x) if to.is_float() => Value::Float(B::bool_into_float(x, to.into())),
            Value::Bool(x) => Value::Int(B::bool_into_int(x, to.into())),
        }]
    }
}

/// Additions along the last dimension: in the order of the values, bit for bit, and rounded once.
fn scattered_in_order(dtype: DType) {
    let mut family = Family::new("index", dtype);
    family.cases("scatter in order", share(dtype, 1.0), |family, rng| {
        let size = rng.pick(&[1, 31, 1000, 1024, 1025, 2049, 6144, 6145, 8190, 12288, 12289]);
        let count = size / 8 + rng.pick(&[0, 1, 31, 128, 129, 600]);
        let places = rng.pick(&[1, 2, 64, size]).min(size);
        let lines: &[usize] = rng.pick(&[&[1], &[3], &[2, 2]]);
        let shape = |last: usize| [lines, &[last]].concat();
        let at_dtype = rng.pick(&[DType::I32, DType::I64]);
        let x = Arg::random(rng, &shape(size), dtype, Domain::Normal);
        let at = Arg::random(rng, &shape(count), at_dtype, Domain::Index(places));
        let args = [x, at, Arg::random(rng, &shape(count), dtype, Domain::Normal)];
        let [x, at, values] = [&args[0], &args[1], &args[2]].map(Arg::dense);
        let round = |sum: f64| if dtype == DType::F64 { sum } else { sum as f32 as f64 };
        let mut sums = x.as_floats().to_vec();
        for (k, line) in sums.chunks_mut(size).enumerate() {
            let (at, values) =
                (&at.as_ints()[k * count..][..count], &values.as_floats()[k * count..][..count]);
            // Of 32 in a row, those with one place are added up first.
            for (at, values) in at.chunks(32).zip(values.chunks(32)) {
                let mut terms: Vec<(usize, f64)> = Vec::new();
                for (&at, &value) in at.iter().zip(values) {
                    match terms.iter_mut().find(|term| term.0 == at as usize) {
                        Some(term) => term.1 = round(term.1 + value),
                        None => terms.push((at as usize, value)),
                    }
                }
                for (at, term) in terms {
                    line[at] = round(line[at] + term);
                }
            }
        }
        let sums = sums.into_iter().map(|sum| round_to(sum, dtype)).collect();
        // Lines that do not fit into shared memory are added in other ways.
        let fits = size <= if dtype == DType::F64 { 6144 } else { 12288 };
        let tolerance = if fits { Tolerance::exact() } else { Tolerance::chain(dtype, 1 + count, count) };
        let body = Indexed("scatter", lines.len());
        family.check_values(&args, &body, &[Dense::floats(&shape(size), sums)], tolerance);
    });
    family.finish();
}

/// What a cast gives: floats round to nearest, float to integer saturates towards zero with NaN as 0, integers wrap.
fn cast_of(x: &Dense, to: DType) -> Dense {
    let (low, high) = int_limits(to);
    let saturate = |v: f64| if v.is_nan() { 0 } else { (v as i128).clamp(low, high) };
    let values = match &x.values {
        Values::Float(v) if to.is_float() => Values::Float(v.clone()),
        Values::Float(v) => Values::Int(v.iter().map(|&v| saturate(v)).collect()),
        Values::Int(v) if to.is_float() => Values::Float(v.iter().map(|&v| v as f64).collect()),
        Values::Int(v) => Values::Int(v.iter().map(|&v| wrap(v, to)).collect()),
    };
    Dense { shape: x.shape.clone(), values }
}

fn cast(from: DType) {
    let mut family = Family::new("cast", from);
    for to in all().filter(|to| !to.is_bool()) {
        family.cases(&format!("to {}", to.name()), share(from, 0.6), |family, rng| {
            let shape = shape::any(rng, false);
            let mut domain = rng.pick(&[Domain::Normal, Domain::Special, Domain::Beyond(to)]);
            if domain == Domain::Beyond(to) && (!from.is_float() || to.is_float()) {
                domain = Domain::Special;
            }
            let args = [Arg::random(rng, &shape, from, domain)];
            let expected = cast_of(&args[0].dense(), to);
            // 64-bit integers reach 16-bit floats through f32 or f64: one unit for the second rounding.
            let twice = !from.is_float() && to.is_float();
            let tolerance = if twice { Tolerance::rounded(to) } else { Tolerance::exact() };
            let differentiable = from.is_float() && to.is_float() && domain == Domain::Normal;
            let widest = if epsilon(to) > epsilon(from) { to } else { from };
            let gradient = differentiable.then(|| Tolerance::chain(widest, 2, shape.iter().product()));
            family.check_with(&args, &Cast(to), Some(&[expected]), tolerance, gradient);
        });
        family.cases(&format!("to {} of many dimensions", to.name()), 0.1, |family, rng| {
            let shape = shape::many(rng);
            let args = [Arg::reversed(rng, &shape, from, Domain::Whole)];
            let expected = cast_of(&args[0].dense(), to);
            family.check_values(&args, &Cast(to), &[expected], Tolerance::exact());
        });
    }
    family.finish();
}

/// Creation ops; no input.
#[derive(Debug)]
pub(crate) struct Create(&'static str, Vec<usize>, DType);
impl Body for Create {
    fn run<B: Backend>(&self, _inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (device, shape, dtype) = (Default::default(), Shape::from(self.1.clone()), self.2);
        if dtype.is_float() {
            let to: FloatDType = dtype.into();
            return vec![Value::Float(match self.0 {
                "zeros" => B::float_zeros(shape, &device, to),
                "ones" => B::float_ones(shape, &device, to),
                _ => B::float_full(shape, Scalar::Float(2.5), &device, to),
            })];
        }
        if dtype.is_bool() {
            return vec![Value::Bool(match self.0 {
                "zeros" => B::bool_zeros(shape, &device, BoolDType::Native),
                _ => B::bool_ones(shape, &device, BoolDType::Native),
            })];
        }
        let to: IntDType = dtype.into();
        vec![Value::Int(match self.0 {
            "zeros" => B::int_zeros(shape, &device, to),
            "ones" => B::int_ones(shape, &device, to),
            "arange" => B::int_arange(3..self.1[0] as i64, &device, to),
            "arange_step" => B::int_arange_step(0..self.1[0] as i64, 3, &device, to),
            _ => B::int_full(shape, Scalar::Int(7), &device, to),
        })]
    }
}

fn creation(dtype: DType) {
    let mut family = Family::new("layout", dtype);
    for op in ["zeros", "ones", "full", "arange", "arange_step"] {
        if op.starts_with("arange") && (dtype.is_float() || dtype.is_bool())
            || op == "full" && dtype.is_bool()
        {
            continue;
        }
        family.cases(op, share(dtype, 0.4), |family, rng: &mut Rng| {
            let shape = match op {
                "arange" | "arange_step" => vec![rng.range(0, 127)],
                _ => shape::any(rng, false),
            };
            let steps = |start: i128, by: i128| {
                let values: Vec<_> =
                    (0..).map(|k| start + k * by).take_while(|&v| v < shape[0] as i128).collect();
                Dense::ints(&[values.len()], values)
            };
            let value = match op {
                "zeros" => 0.0,
                "ones" => 1.0,
                _ if dtype.is_float() => 2.5,
                _ => 7.0,
            };
            let len = shape.iter().product();
            let expected = match op {
                "arange" => steps(3, 1),
                "arange_step" => steps(0, 3),
                _ if dtype.is_float() => Dense::floats(&shape, vec![value; len]),
                _ => Dense::ints(&shape, vec![value as i128; len]),
            };
            family.check_values(&[], &Create(op, shape, dtype), &[expected], Tolerance::exact());
        });
    }
    family.finish();
}

crate::per_dtype!(layout: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool);
crate::per_dtype!(transposes: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool);
crate::per_dtype!(transposes_of_known_shapes: f64 bf16 i32 u8);
crate::per_dtype!(slice_assign: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool);
crate::per_dtype!(indexed: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool);
crate::per_dtype!(scattered_in_order: f32 f64 f16 bf16);
crate::per_dtype!(cast: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool);
crate::per_dtype!(creation: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool);
