//! Fitting the arguments of an operation to a variable: `Generator::fitted`.

use burn_backend::quantization::QuantLevel;
use burn_backend::{DType, Shape, Slice};
use kiln_surface::arguments::{Case, Values};
use kiln_surface::{Axes, Kind, Meta, Op, infer_with, with_backend_methods};

use super::generate::{Generator, Known, kind_of};
use super::program::Var;

impl Generator {
    /// What the operation of a case gives.
    pub(crate) fn inferred(&self, case: &Case) -> Option<Vec<Meta>> {
        let meta = |value: kiln_surface::ValueId| &case.inputs[value.0 as usize].meta;
        infer_with(&case.op, &meta, &self.profile.defaults).ok().map(|outs| outs.into_vec())
    }

    /// The case with a variable as its first tensor.
    pub(crate) fn fitted(&mut self, name: &str, case: &Case) -> Option<(Case, Var)> {
        let first = case.inputs.first()?.clone();
        let kind = kind_of(first.meta.dtype);
        let fixed = dtype_is_fixed(name);
        let fits = |known: &Known| {
            known.kind == kind
                && match kind {
                    Kind::Int if fixed => known.meta.dtype == first.meta.dtype,
                    Kind::Quantized => simple(known.meta.dtype) && simple(first.meta.dtype),
                    _ => true,
                }
        };
        let var = self.any_var(fits)?;
        if !self.in_range(name, 0, &first, self.vars[var as usize].range) {
            return None;
        }
        let meta = self.vars[var as usize].meta.clone();
        let shape = meta.shape.to_vec();
        let mut case = case.clone();
        // Operands of one dtype stay so.
        for input in &mut case.inputs {
            let is_index = kind == Kind::Int && input.values != first.values && name.contains("gather");
            if input.meta.dtype == first.meta.dtype && !is_index {
                input.meta.dtype = meta.dtype;
                if let Values::Int { low, .. } = &mut input.values
                    && meta.dtype.is_uint()
                {
                    *low = (*low).max(0);
                }
            }
        }
        case.inputs[0].meta.shape = meta.shape.clone();
        self.reshape_operands(bare(name), &mut case, &first.meta.shape, &shape)?;
        self.inferred(&case).map(|_| (case, var))
    }

    /// Fits attributes and other operands to a first tensor of another shape, or gives up.
    fn reshape_operands(&mut self, bare: &str, case: &mut Case, was: &Shape, shape: &[usize]) -> Option<()> {
        let dim = self.rng.below(shape.len().max(1));
        let size = *shape.get(dim)?;
        let slices = self.slices(shape);
        self.fit_attributes(bare, &mut case.op, shape, dim, &slices);
        let mut shapes = self.other_shapes(bare, case, was, shape, dim, &slices)?;
        let others = &mut case.inputs[1..];
        shapes.truncate(others.len());
        if shapes.len() != others.len() {
            return None;
        }
        for (input, shape) in others.iter_mut().zip(shapes) {
            input.meta.shape = Shape::from(shape);
        }
        if matches!(bare, "gather" | "scatter_add" | "scatter_or" | "select" | "select_add" | "select_or") {
            others[0].values = Values::Int { low: 0, high: size as i64 };
        }
        if bare.starts_with("embedding") && !self.profile.fails {
            let rows = shape.first().copied().filter(|rows| *rows > 0)?;
            for input in others.iter_mut().filter(|input| kind_of(input.meta.dtype) == Kind::Int) {
                input.values = Values::Int { low: 0, high: rows as i64 };
            }
        }
        Some(())
    }

    fn fit_attributes(&mut self, bare: &str, op: &mut Op, shape: &[usize], dim: usize, slices: &Vec<Slice>) {
        let (rank, size) = (shape.len(), shape[dim]);
        let numbers: Vec<(&str, usize)> = match bare {
            "topk" => vec![("k", self.rng.between(size.min(1), size))],
            "unfold" if size > 0 => {
                vec![("size", self.rng.between(1, size)), ("step", self.rng.between(1, 3))]
            }
            "swap_dims" => vec![("dim1", dim), ("dim2", self.rng.below(rank))],
            _ => vec![],
        };
        let mut target = shape.to_vec();
        match bare {
            "reshape" => target = self.factors(shape.iter().product()),
            "expand" => {
                for size in target.iter_mut().filter(|size| **size == 1) {
                    *size = self.rng.pick(&[1, 2, 3]);
                }
                if rank < 6 && self.rng.flag() {
                    target.insert(0, self.rng.between(1, 3));
                }
            }
            _ => {}
        }
        let mut axes: Vec<usize> = (0..rank).collect();
        (1..rank).rev().for_each(|i| axes.swap(i, self.rng.below(i + 1)));
        if bare == "flip" {
            axes.truncate(self.rng.between(0, rank));
        }
        attributes(op, &mut |name, attribute| match attribute {
            Attribute::Number(number) => {
                let given = numbers.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
                if let Some(value) = given.or((name == "dim").then_some(dim)) {
                    *number = value;
                }
            }
            Attribute::Shape(shape) => *shape = Shape::from(target.clone()),
            Attribute::Axes(field) => *field = Axes::from_slice(&axes),
            Attribute::Slices(field) => field.clone_from(slices),
        });
    }

    /// The shapes of the operands after the first, perhaps of more than there are.
    fn other_shapes(
        &mut self,
        bare: &str,
        case: &Case,
        was: &Shape,
        shape: &[usize],
        dim: usize,
        slices: &[Slice],
    ) -> Option<Vec<Vec<usize>>> {
        let (rank, size) = (shape.len(), shape[dim]);
        let others = &case.inputs[1..];
        let resized = |size: usize| -> Vec<usize> {
            let mut shape = shape.to_vec();
            shape[dim] = size;
            shape
        };
        let count = if size == 0 { 0 } else { self.rng.between(0, 5) };
        Some(match bare {
            "gather" | "scatter_add" | "scatter_or" => vec![resized(count); 2],
            "select" | "select_add" | "select_or" => vec![vec![count], resized(count)],
            "slice_assign" => {
                let sizes = shape.iter().enumerate();
                vec![sizes.map(|(at, &size)| slices.get(at).map_or(size, |s| s.output_size(size))).collect()]
            }
            "cat" => others.iter().map(|_| resized(self.rng.between(1, 3))).collect(),
            "matmul" if rank > 1 => {
                let mut rhs = self.shrunk(shape);
                rhs[rank - 2] = shape[rank - 1];
                rhs[rank - 1] = self.rng.between(1, 5);
                vec![rhs]
            }
            "layer_norm" => vec![vec![shape[rank - 1]]; 2],
            "linear" => {
                let width = self.rng.between(1, 5);
                vec![vec![shape[rank - 1], width], vec![width]]
            }
            "linear_weight_backward" => {
                let mut output_grad = shape.to_vec();
                output_grad[rank - 1] = self.rng.between(1, 5);
                vec![output_grad]
            }
            "gather_nd" | "scatter_nd" | "rfft" | "irfft" => return None,
            _ if bare.contains("conv") => return None,
            // Operands that equal or broadcast to the first one still do.
            _ => {
                let mut shapes = Vec::new();
                for input in others {
                    let sizes = input.meta.shape.iter().zip(was.iter());
                    if input.meta.shape.rank() != was.rank()
                        || !sizes.into_iter().all(|(a, b)| a == b || *a == 1)
                    {
                        return None;
                    }
                    let equal = input.meta.shape == *was;
                    shapes.push(if equal { shape.to_vec() } else { self.shrunk(shape) });
                }
                shapes
            }
        })
    }

    /// A shape that broadcasts to the given one.
    fn shrunk(&mut self, shape: &[usize]) -> Vec<usize> {
        shape.iter().map(|&size| if self.rng.flag() { 1 } else { size }).collect()
    }

    /// A shape with as many elements.
    fn factors(&mut self, mut elements: usize) -> Vec<usize> {
        let mut shape = Vec::new();
        if elements == 0 {
            return vec![self.rng.between(1, 3), 0];
        }
        while elements > 1 && shape.len() < 5 {
            let factor = (2..=elements).find(|factor| elements.is_multiple_of(*factor)).unwrap_or(elements);
            let factor = if self.rng.flag() { factor } else { elements / factor };
            let factor = if self.chance(4) { elements } else { factor };
            elements /= factor;
            shape.push(factor);
        }
        if elements > 1 || shape.is_empty() || (shape.len() < 6 && self.chance(4)) {
            shape.push(elements);
        }
        shape
    }

    fn slices(&mut self, shape: &[usize]) -> Vec<Slice> {
        let count = self.rng.between(0, shape.len());
        let sizes = shape[..count].iter();
        sizes
            .map(|&size| {
                let size = size as isize;
                let mut bound = || self.rng.between(0, 2 * size as usize + 1) as isize - size;
                let (start, end) = (bound().min((size - 1).max(0)), bound());
                let end = self.rng.flag().then_some(end);
                Slice::new(start, end, self.rng.pick(&[1, 1, 1, 1, 2, -1]))
            })
            .collect()
    }
}

/// A quantised dtype with one scale for the tensor; most operations take no other.
fn simple(dtype: DType) -> bool {
    matches!(dtype, DType::QFloat(scheme) if scheme.level == QuantLevel::Tensor)
}

/// Operations that burn-flex has for wide integers only.
fn dtype_is_fixed(name: &str) -> bool {
    matches!(name, "int_matmul" | "int_argmax" | "int_argmin" | "int_mean" | "ctc_loss")
}

/// The name without its kind.
pub(crate) fn bare(name: &str) -> &str {
    ["float_", "int_", "bool_", "q_"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// Attributes that depend on the shape of the first tensor.
enum Attribute<'a> {
    Number(&'a mut usize),
    Shape(&'a mut Shape),
    Axes(&'a mut Axes),
    Slices(&'a mut Vec<Slice>),
}

#[rustfmt::skip]
macro_rules! attribute {
    (usize, $field:ident, $f:ident) => { $f(stringify!($field), Attribute::Number($field)) };
    (Shape, $field:ident, $f:ident) => { $f(stringify!($field), Attribute::Shape($field)) };
    (Axes, $field:ident, $f:ident) => { $f(stringify!($field), Attribute::Axes($field)) };
    (Slices, $field:ident, $f:ident) => { $f(stringify!($field), Attribute::Slices($field)) };
    ($tag:ident, $field:ident, $f:ident) => { let _ = $field; };
}

macro_rules! define_attributes {
    ($(trait $trait:ident {
        node { $($op:ident ($($field:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        fn attributes(op: &mut Op, f: &mut dyn FnMut(&str, Attribute<'_>)) {
            match op {
                $($(Op::$op { $($field),* } => { $(attribute!($tag, $field, f);)* })*)*
                Op::extension(_) => {}
            }
        }
    };
}
with_backend_methods! { define_attributes! {} }
