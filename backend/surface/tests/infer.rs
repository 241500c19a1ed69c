//! Shapes and dtypes of `infer` against those that burn-flex gives, for every operation and many random arguments.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_backend::quantization::QuantizationParametersPrimitive;
use burn_backend::{TensorMetadata, TensorPrimitive};
use burn_flex::Flex;
use burn_std::device::Device as _;
use kiln_surface::arguments::{Case, Rng, UNSUPPORTED_BY_FLEX, arguments};
use kiln_surface::burn::*;
use kiln_surface::{
    Attribute, Cost, Kind, Meta, Op, PrimId, ValueId, cost, infer, is_view, with_backend_methods,
};

/// Seeds tried for each operation.
const SEEDS: u64 = 100;

/// Operations that burn-flex cannot run on a tensor without elements, because it has no element to start from or
/// divides by a size.
#[rustfmt::skip]
const NEEDS_ELEMENTS: &[&str] = &[
    "float_argmax", "float_argmin", "float_max", "float_min", "float_max_abs", "float_max_dim", "float_min_dim",
    "float_max_abs_dim", "float_max_dim_with_indices", "float_min_dim_with_indices", "float_mean_dim", "float_any_dim",
    "float_all_dim", "int_argmax", "int_argmin", "int_max", "int_min", "int_max_abs", "int_max_dim", "int_min_dim",
    "int_max_abs_dim", "int_max_dim_with_indices", "int_min_dim_with_indices", "int_mean", "int_mean_dim",
    "int_any_dim", "int_all_dim", "bool_any_dim", "bool_all_dim", "log_softmax",
];

/// Operations not run on a batch without matrices: burn-flex broadcasts it to matrices and reads memory that is not
/// there, which ends the process.
const CRASHES_WITHOUT_ELEMENTS: &[&str] = &["float_matmul", "int_matmul", "q_matmul"];

/// Operations whose boolean result burn-flex tags with the integer dtype U8; `infer` says that it stays boolean.
const LOSES_BOOL: &[&str] = &["bool_gather", "bool_select", "bool_select_or"];

#[derive(Clone)]
enum Tensor {
    Float(FloatTensor<Flex>),
    Int(IntTensor<Flex>),
    Bool(BoolTensor<Flex>),
    Quantized(QuantizedTensor<Flex>),
}

impl Tensor {
    fn meta(&self) -> Meta {
        match self {
            Self::Float(tensor) => Meta::new(tensor.shape(), tensor.dtype()),
            Self::Int(tensor) => Meta::new(tensor.shape(), tensor.dtype()),
            Self::Bool(tensor) => Meta::new(tensor.shape(), tensor.dtype()),
            Self::Quantized(tensor) => Meta::new(tensor.shape(), tensor.dtype()),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Float(_) => Kind::Float,
            Self::Int(_) => Kind::Int,
            Self::Bool(_) => Kind::Bool,
            Self::Quantized(_) => Kind::Quantized,
        }
    }

    fn float(self) -> FloatTensor<Flex> {
        let Self::Float(tensor) = self else { panic!("a float tensor") };
        tensor
    }

    fn int(self) -> IntTensor<Flex> {
        let Self::Int(tensor) = self else { panic!("an int tensor") };
        tensor
    }

    fn bool(self) -> BoolTensor<Flex> {
        let Self::Bool(tensor) = self else { panic!("a bool tensor") };
        tensor
    }

    fn quantized(self) -> QuantizedTensor<Flex> {
        let Self::Quantized(tensor) = self else { panic!("a quantised tensor") };
        tensor
    }
}

/// The argument for a field: `values` and `scalars` hold what the case names by number.
#[rustfmt::skip]
macro_rules! argument {
    (F, $field:ident, $values:ident, $scalars:ident) => { $values($field).float() };
    (I, $field:ident, $values:ident, $scalars:ident) => { $values($field).int() };
    (B, $field:ident, $values:ident, $scalars:ident) => { $values($field).bool() };
    (Q, $field:ident, $values:ident, $scalars:ident) => { $values($field).quantized() };
    (OptF, $field:ident, $values:ident, $scalars:ident) => { $field.as_ref().map(|value| $values(value).float()) };
    (OptB, $field:ident, $values:ident, $scalars:ident) => { $field.as_ref().map(|value| $values(value).bool()) };
    (VecF, $field:ident, $values:ident, $scalars:ident) => { $field.iter().map(|value| $values(value).float()).collect() };
    (VecI, $field:ident, $values:ident, $scalars:ident) => { $field.iter().map(|value| $values(value).int()).collect() };
    (VecB, $field:ident, $values:ident, $scalars:ident) => { $field.iter().map(|value| $values(value).bool()).collect() };
    (VecQ, $field:ident, $values:ident, $scalars:ident) => { $field.iter().map(|value| $values(value).quantized()).collect() };
    (Prim, $field:ident, $values:ident, $scalars:ident) => {
        match $field {
            PrimId::Float(value) => TensorPrimitive::Float($values(value).float()),
            PrimId::Quantized(value) => TensorPrimitive::QFloat($values(value).quantized()),
        }
    };
    (QParams, $field:ident, $values:ident, $scalars:ident) => {
        QuantizationParametersPrimitive { scales: $values($field).float() }
    };
    (Device, $field:ident, $values:ident, $scalars:ident) => { &Device::<Flex>::from_id(*$field) };
    (Scalar, $field:ident, $values:ident, $scalars:ident) => { $scalars[$field.index as usize] };
    (Distribution, $field:ident, $values:ident, $scalars:ident) => { $field.distribution };
    ($tag:ident, $field:ident, $values:ident, $scalars:ident) => { $field.arg() };
}

/// The tensors of a result.
#[rustfmt::skip]
macro_rules! results {
    (F, $out:expr) => { vec![Tensor::Float($out)] };
    (I, $out:expr) => { vec![Tensor::Int($out)] };
    (B, $out:expr) => { vec![Tensor::Bool($out)] };
    (Q, $out:expr) => { vec![Tensor::Quantized($out)] };
    (Prim, $out:expr) => {
        vec![match $out {
            TensorPrimitive::Float(tensor) => Tensor::Float(tensor),
            TensorPrimitive::QFloat(tensor) => Tensor::Quantized(tensor),
        }]
    };
    (FI, $out:expr) => {{
        let (values, indices) = $out;
        vec![Tensor::Float(values), Tensor::Int(indices)]
    }};
    (II, $out:expr) => {{
        let (values, indices) = $out;
        vec![Tensor::Int(values), Tensor::Int(indices)]
    }};
    (QI, $out:expr) => {{
        let (values, indices) = $out;
        vec![Tensor::Quantized(values), Tensor::Int(indices)]
    }};
    (FF, $out:expr) => {{
        let (first, second) = $out;
        vec![Tensor::Float(first), Tensor::Float(second)]
    }};
    (MaxPool1d, $out:expr) => {{
        let out = $out;
        vec![Tensor::Float(out.output), Tensor::Int(out.indices)]
    }};
    (MaxPool2d, $out:expr) => {{
        let out = $out;
        vec![Tensor::Float(out.output), Tensor::Int(out.indices)]
    }};
    (MaxPool1dGrad, $out:expr) => { vec![Tensor::Float($out.x_grad)] };
    (MaxPool2dGrad, $out:expr) => { vec![Tensor::Float($out.x_grad)] };
    (DeformGrad, $out:expr) => {{
        let out = $out;
        let always = [out.x_grad, out.offset_grad, out.weight_grad];
        always.into_iter().chain(out.mask_grad).chain(out.bias_grad).map(Tensor::Float).collect::<Vec<_>>()
    }};
}

macro_rules! define_run {
    ($(trait $trait:ident {
        node { $($op:ident ($($field:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        /// Calls the method of burn-flex.
        fn run(op: &Op, values: &dyn Fn(&ValueId) -> Tensor, scalars: &[Scalar]) -> Vec<Tensor> {
            match op {
                $($(Op::$op { $($field),* } => {
                    results!($ret, <Flex as $trait<Flex>>::$op($(argument!($tag, $field, values, scalars)),*))
                })*)*
                Op::extension(_) => unreachable!("has no arguments"),
            }
        }
    };
}
with_backend_methods! { define_run! {} }

fn tensors(case: &Case) -> Vec<Tensor> {
    let device = Default::default();
    let made = case.inputs.iter().enumerate().map(|(seed, input)| {
        let data = input.data(seed as u64);
        match input.meta.dtype {
            DType::QFloat(_) => Tensor::Quantized(Flex::q_from_data(data, &device)),
            DType::Bool(_) => Tensor::Bool(Flex::bool_from_data(data, &device)),
            dtype if dtype.is_float() => Tensor::Float(Flex::float_from_data(data, &device)),
            _ => Tensor::Int(Flex::int_from_data(data, &device)),
        }
    });
    made.collect()
}

thread_local! {
    /// Whether a panic is expected and need not be printed.
    static CALLING_FLEX: Cell<bool> = const { Cell::new(false) };
}

#[test]
fn infer_gives_what_flex_gives() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !CALLING_FLEX.get() {
            default_hook(info);
        }
    }));
    let mut wrong = Vec::new();
    for name in Op::NAMES {
        if UNSUPPORTED_BY_FLEX.iter().any(|(unsupported, _)| unsupported == name) {
            continue;
        }
        for seed in 0..SEEDS {
            let case = arguments(name, seed).expect("every operation has arguments");
            if case.has_zero_size() && CRASHES_WITHOUT_ELEMENTS.contains(name) {
                continue;
            }
            let inputs = tensors(&case);
            let metas: Vec<Meta> = inputs.iter().map(Tensor::meta).collect();
            for (meta, input) in metas.iter().zip(&case.inputs) {
                assert_eq!(*meta, input.meta, "{name}: an input is not as the case says");
            }
            let inferred = infer(&case.op, &|value| &metas[value.0 as usize]);
            let run =
                AssertUnwindSafe(|| run(&case.op, &|value| inputs[value.0 as usize].clone(), &case.scalars));
            if let Ok(outputs) = &inferred {
                let cost = cost(&case.op, &|value| &metas[value.0 as usize], outputs);
                assert!(!is_view(&case.op) || cost == Cost::default(), "{name}: a view costs nothing");
            }
            CALLING_FLEX.set(true);
            let outputs = catch_unwind(run);
            CALLING_FLEX.set(false);
            match (outputs, inferred) {
                (Ok(outputs), Ok(inferred)) => {
                    let kinds: Vec<Kind> = outputs.iter().map(Tensor::kind).collect();
                    let mut outputs: Vec<Meta> = outputs.iter().map(Tensor::meta).collect();
                    if LOSES_BOOL.contains(name) && outputs[0].dtype == DType::U8 {
                        outputs[0].dtype = metas[0].dtype;
                    }
                    if outputs[..] != inferred[..] || kinds != case.op.outputs() {
                        wrong.push(format!(
                            "{:?} {metas:?}\n    gives {outputs:?}\n    infer {inferred:?}",
                            case.op
                        ));
                    }
                }
                (Ok(outputs), Err(error)) => {
                    let outputs: Vec<Meta> = outputs.iter().map(Tensor::meta).collect();
                    wrong.push(format!("{:?}\n    gives {outputs:?}\n    infer {error}", case.op));
                }
                (Err(_), Ok(_)) if case.has_zero_size() && NEEDS_ELEMENTS.contains(name) => {}
                (Err(panic), _) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or(panic.downcast_ref::<&str>().map(|text| text.to_string()));
                    wrong.push(format!("{:?} {metas:?}\n    panics {text:?}", case.op));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn an_op_names_its_operands_in_order() {
    for name in Op::NAMES {
        for seed in 0..SEEDS {
            let mut case = arguments(name, seed).expect("every operation has arguments");
            let (mut values, mut scalars) = (Vec::new(), Vec::new());
            case.op.inputs(&mut |value| values.push(value.0));
            case.op.scalars(&mut |slot| scalars.push((slot.index, slot.kind)));
            assert_eq!(values, (0..case.inputs.len() as u32).collect::<Vec<_>>(), "{name}");
            let given = case.scalars.iter().enumerate().map(|(index, &scalar)| (index as u32, scalar.into()));
            assert_eq!(scalars, given.collect::<Vec<_>>(), "{name}");
            assert_eq!(case.op.draw().is_some(), name.ends_with("_random"), "{name}");

            case.op.map_inputs(&mut |value| ValueId(value.0 + 10));
            let mut moved = Vec::new();
            case.op.inputs(&mut |value| moved.push(value.0 - 10));
            assert_eq!(moved, values, "{name}");
            assert_eq!(case.op.name(), *name);
        }
    }
}

#[test]
fn infer_refuses_nonsense_without_a_panic() {
    let mut rng = Rng::new(1);
    let mut refused = 0;
    for name in Op::NAMES {
        for seed in 0..SEEDS {
            let case = arguments(name, seed).expect("every operation has arguments");
            let mut metas: Vec<Meta> = case.inputs.into_iter().map(|input| input.meta).collect();
            for meta in &mut metas {
                match rng.below(3) {
                    0 => {}
                    1 => {
                        let sizes = [0, 1, 2, 3, 8, 1 << 31, 1 << 62, usize::MAX];
                        let rank = rng.below(6);
                        meta.shape = (0..rank).map(|_| rng.pick(&sizes)).collect::<Vec<_>>().into();
                    }
                    _ if !meta.shape.is_empty() => {
                        let dim = rng.below(meta.shape.rank());
                        meta.shape[dim] = rng.pick(&[0, 1, 5, usize::MAX]);
                    }
                    _ => {}
                }
            }
            refused += usize::from(infer(&case.op, &|value| &metas[value.0 as usize]).is_err());
        }
    }
    assert!(refused > 1000, "only {refused} of the cases were nonsense");
}
