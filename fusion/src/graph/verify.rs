//! What holds for every graph; a pass that breaks it has a fault.
//!
//! - Each value is an input or one output of one node, and both sides say so.
//! - A node reads values that are inputs or come from nodes before it.
//! - Values have the kinds that the operation takes and gives, their dtypes fit the kinds, and shapes and dtypes are
//!   those that [`infer_with`] gives.
//! - Scalars and draws are below the counts of the graph.
//! - What is returned is in rising order without repetition.

use kiln_surface::{Defaults, InferError, Kind, Meta, Op, PrimId, Reason, ValueId, infer_with};
use thiserror::Error;

use super::text::{Shown, Text};
use super::{Def, Graph, Node, ValueInfo};

/// A graph that breaks a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct VerifyError {
    /// The node, if the rule is about one.
    pub node: Option<usize>,
    /// The name of its operation.
    pub op: Option<&'static str>,
    /// The rule that is broken.
    pub reason: Violation,
}

impl std::fmt::Display for VerifyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let (Some(node), Some(op)) = (self.node, self.op) {
            write!(f, "node {node}, {op}: ")?;
        }
        self.reason.fmt(f)
    }
}

impl std::error::Error for VerifyError {}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Violation {
    /// A number beyond the graph's values is read, given or returned.
    #[error("there is no value {}", Shown(.0))]
    NoSuchValue(ValueId),
    /// A value is read that a later node gives, or none.
    #[error("{argument} reads {} before it is defined", Shown(.value))]
    ReadTooEarly {
        /// The argument that reads it.
        argument: &'static str,
        /// The value.
        value: ValueId,
    },
    /// The definition of a value names a node that does not give it, or another one than gives it.
    #[error("{} is defined as {def:?}, which does not agree with the nodes", Shown(.value))]
    Def {
        /// The value.
        value: ValueId,
        /// Its definition.
        def: Def,
    },
    /// A node gives another number of tensors than its operation.
    #[error("{found} outputs, not {expected}")]
    OutputCount {
        /// What the operation gives.
        expected: usize,
        /// What the node gives.
        found: usize,
    },
    /// A value has another kind than the operation takes or gives.
    #[error("{argument} is {} {}, not {}", Shown(.found), Shown(.value), Shown(.expected))]
    Kind {
        /// The argument; `output` for what the operation gives.
        argument: &'static str,
        /// The value.
        value: ValueId,
        /// What the operation takes or gives.
        expected: Kind,
        /// What the value is.
        found: Kind,
    },
    /// A value has a dtype that its kind does not have.
    #[error("{} is {} of dtype {}", Shown(.value), Shown(&.info.kind), Shown(&.info.meta.dtype))]
    DType {
        /// The value.
        value: ValueId,
        /// What is known of it.
        info: Box<ValueInfo>,
    },
    /// A value that no memory holds: its size in bytes passes `isize::MAX`.
    #[error("{} is too large: {}", Shown(.value), Shown(&**.meta))]
    Size {
        /// The value.
        value: ValueId,
        /// Shape and dtype.
        meta: Box<Meta>,
    },
    /// A value has another shape or dtype than the operation gives.
    #[error("{} is {}, not {}", Shown(.value), Shown(&**.found), Shown(&**.expected))]
    Meta {
        /// The value.
        value: ValueId,
        /// What the operation gives.
        expected: Box<Meta>,
        /// What the value has.
        found: Box<Meta>,
    },
    /// The operation does not take such inputs.
    #[error("{0}")]
    Infer(Box<InferError>),
    /// A scalar beyond the graph's count.
    #[error("scalar {index} of {count}")]
    Scalar {
        /// The scalar read.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// A draw beyond the graph's count.
    #[error("draw {index} of {count}")]
    Draw {
        /// The draw taken.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// A returned value that does not follow the one before it.
    #[error("{} is returned out of order or twice", Shown(.0))]
    Return(ValueId),
}

impl Graph {
    /// Checks all rules, with the dtypes that burn-flex chooses where Burn names none.
    ///
    /// # Errors
    /// [`VerifyError`] with the first rule that is broken.
    pub fn verify(&self) -> Result<(), VerifyError> {
        self.verify_with(&Defaults::default())
    }

    /// Checks all rules, with the dtypes that a backend chooses where Burn names none.
    ///
    /// An operation that [`infer_with`] refuses is an error, except an extension, whose outputs may be anything.
    ///
    /// # Errors
    /// [`VerifyError`] with the first rule that is broken.
    pub fn verify_with(&self, defaults: &Defaults) -> Result<(), VerifyError> {
        let of_graph = |reason| VerifyError { node: None, op: None, reason };
        for (id, info) in self.values.iter().enumerate() {
            self.verify_value(ValueId(id as u32), info).map_err(of_graph)?;
        }
        let mut defined: Vec<bool> = self.values.iter().map(|value| value.def == Def::Input).collect();
        for (index, node) in self.nodes.iter().enumerate() {
            let of_node = |reason| VerifyError { node: Some(index), op: Some(node.op.name()), reason };
            self.verify_inputs(&node.op, &defined).map_err(of_node)?;
            self.verify_outputs(index, node).map_err(of_node)?;
            self.verify_metas(node, defaults).map_err(of_node)?;
            node.outputs.iter().for_each(|output| defined[output.0 as usize] = true);
        }
        for (k, &output) in self.outputs.iter().enumerate() {
            self.get(output).map_err(of_graph)?;
            if k > 0 && self.outputs[k - 1] >= output {
                return Err(of_graph(Violation::Return(output)));
            }
        }
        Ok(())
    }

    fn get(&self, value: ValueId) -> Result<&ValueInfo, Violation> {
        self.values.get(value.0 as usize).ok_or(Violation::NoSuchValue(value))
    }

    /// That a value makes sense by itself, and that its node knows it.
    fn verify_value(&self, value: ValueId, info: &ValueInfo) -> Result<(), Violation> {
        let ValueInfo { meta, kind, def } = info;
        let dtype_fits = match kind {
            Kind::Float => meta.dtype.is_float(),
            Kind::Int => meta.dtype.is_int() || meta.dtype.is_uint(),
            // Burn also takes the integer types that booleans are stored in.
            Kind::Bool => meta.dtype.is_bool() || BOOL_STORES.contains(&meta.dtype),
            Kind::Quantized => matches!(meta.dtype, burn_backend::DType::QFloat(_)),
        };
        if !dtype_fits {
            return Err(Violation::DType { value, info: Box::new(info.clone()) });
        }
        let sizes = meta.shape.iter().map(|&size| size.max(1));
        let bytes = sizes.chain([meta.dtype.size().max(1)]).try_fold(1usize, usize::checked_mul);
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(Violation::Size { value, meta: Box::new(meta.clone()) });
        }
        if let Def::Node { node, output } = *def {
            let outputs = self.nodes.get(node as usize).map(|node| &node.outputs);
            if outputs.and_then(|outputs| outputs.get(output as usize)) != Some(&value) {
                return Err(Violation::Def { value, def: *def });
            }
        }
        Ok(())
    }

    /// That what an operation reads is there, and of the right kind.
    fn verify_inputs(&self, op: &Op, defined: &[bool]) -> Result<(), Violation> {
        let mut result = Ok(());
        tensors(op, &mut |argument, expected, value| {
            let check = || {
                let found = self.get(value)?.kind;
                if !defined[value.0 as usize] {
                    return Err(Violation::ReadTooEarly { argument, value });
                }
                match expected {
                    Some(expected) if expected != found => {
                        Err(Violation::Kind { argument, value, expected, found })
                    }
                    _ => Ok(()),
                }
            };
            if result.is_ok() {
                result = check();
            }
        });
        op.scalars(&mut |slot| {
            if result.is_ok() && slot.index >= self.scalars {
                result = Err(Violation::Scalar { index: slot.index, count: self.scalars });
            }
        });
        result?;
        match op.draw() {
            Some(draw) if draw.index >= self.draws => {
                Err(Violation::Draw { index: draw.index, count: self.draws })
            }
            _ => Ok(()),
        }
    }

    /// That a node gives as many values as its operation, of the same kinds, and that they know it.
    fn verify_outputs(&self, index: usize, node: &Node) -> Result<(), Violation> {
        let expected = (!matches!(node.op, Op::extension(_))).then(|| node.op.outputs());
        if let Some(expected) = expected
            && expected.len() != node.outputs.len()
        {
            return Err(Violation::OutputCount { expected: expected.len(), found: node.outputs.len() });
        }
        for (output, &value) in node.outputs.iter().enumerate() {
            let ValueInfo { kind: found, def, .. } = *self.get(value)?;
            if def != (Def::Node { node: index as u32, output: output as u32 }) {
                return Err(Violation::Def { value, def });
            }
            let quantized = found == Kind::Quantized && gives_primitive(&node.op);
            if let Some(&expected) = expected.map(|expected| &expected[output])
                && expected != found
                && !quantized
            {
                return Err(Violation::Kind { argument: "output", value, expected, found });
            }
        }
        Ok(())
    }

    /// That shapes and dtypes are what the operation gives.
    fn verify_metas(&self, node: &Node, defaults: &Defaults) -> Result<(), Violation> {
        let expected = match infer_with(&node.op, &|value| &self.value(value).meta, defaults) {
            Ok(expected) => expected,
            Err(InferError { reason: Reason::Extension, .. }) => return Ok(()),
            Err(error) => return Err(Violation::Infer(Box::new(error))),
        };
        for (&value, expected) in node.outputs.iter().zip(expected) {
            let ValueInfo { meta: found, kind, .. } = self.value(value);
            // Where a primitive comes out quantised, the dtype that is inferred is the float's.
            let dtype_free = *kind == Kind::Quantized && gives_primitive(&node.op);
            if found.shape != expected.shape || found.dtype != expected.dtype && !dtype_free {
                let (expected, found) = (Box::new(expected), Box::new(found.clone()));
                return Err(Violation::Meta { value, expected, found });
            }
        }
        Ok(())
    }
}

const BOOL_STORES: [burn_backend::DType; 2] = [burn_backend::DType::U8, burn_backend::DType::U32];

/// The kind that an argument takes, by its tag; `None` for what is no tensor.
macro_rules! argument_kind {
    (F, $field:ident) => {
        Some(Kind::Float)
    };
    (OptF, $field:ident) => {
        Some(Kind::Float)
    };
    (VecF, $field:ident) => {
        Some(Kind::Float)
    };
    (QParams, $field:ident) => {
        Some(Kind::Float)
    };
    (I, $field:ident) => {
        Some(Kind::Int)
    };
    (VecI, $field:ident) => {
        Some(Kind::Int)
    };
    (B, $field:ident) => {
        Some(Kind::Bool)
    };
    (OptB, $field:ident) => {
        Some(Kind::Bool)
    };
    (VecB, $field:ident) => {
        Some(Kind::Bool)
    };
    (Q, $field:ident) => {
        Some(Kind::Quantized)
    };
    (VecQ, $field:ident) => {
        Some(Kind::Quantized)
    };
    (Prim, $field:ident) => {
        match $field {
            PrimId::Float(_) => Some(Kind::Float),
            PrimId::Quantized(_) => Some(Kind::Quantized),
        }
    };
    ($other:ident, $field:ident) => {
        None
    };
}

macro_rules! is_primitive {
    (Prim) => {
        true
    };
    ($other:ident) => {
        false
    };
}

macro_rules! by_tag {
    ($(trait $trait:ident {
        node { $($op:ident ($($field:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        /// Calls `f` with each tensor that is read: the argument, its kind unless any will do, and the value.
        fn tensors(op: &Op, f: &mut dyn FnMut(&'static str, Option<Kind>, ValueId)) {
            match op {
                $($(Op::$op { $($field),* } => {
                    $(
                        let kind = argument_kind!($tag, $field);
                        $field.values(&mut |value| f(stringify!($field), kind, value));
                    )*
                })*)*
                Op::extension(extension) => {
                    extension.inputs.iter().for_each(|&value| f("inputs", None, value));
                }
            }
        }

        /// Whether Burn's method gives a `TensorPrimitive`.
        fn gives_primitive(op: &Op) -> bool {
            match op {
                $($(Op::$op { .. } => is_primitive!($ret),)*)*
                Op::extension(_) => false,
            }
        }
    };
}
kiln_surface::with_backend_methods! { by_tag! {} }

#[cfg(test)]
mod tests {
    use burn_backend::{FloatDType, IntDType};

    use super::*;

    const TEXT: &str = "\
graph scalars=1 draws=1
%0: float f32[2, 3] = input
%5: bool bool[2, 3] = input
%1: float f32[2, 3] = float_mask_fill(tensor=%0, mask=%5, value=s0:float)
%2: float f32[2, 1], %3: int i64[2, 1] = float_max_dim_with_indices(tensor=%1, dim=1, indices_dtype=i64)
%4: float f32[4] = float_random(shape=[4], distribution=default@r0, device=device(0, 0), dtype=f32)
return %2, %4
";

    fn graph() -> Graph {
        TEXT.parse().unwrap()
    }

    /// The error after a change to `TEXT`.
    fn changed(from: &str, to: &str) -> VerifyError {
        assert_eq!(TEXT.matches(from).count(), 1, "{from}");
        TEXT.replace(from, to).parse::<Graph>().unwrap().verify().unwrap_err()
    }

    fn assert_changed(from: &str, to: &str, want: &str) {
        assert_eq!(changed(from, to).to_string(), want);
    }

    #[test]
    fn a_good_graph() {
        assert_eq!(graph().verify(), Ok(()));
        assert_eq!(Graph::default().verify(), Ok(()));
    }

    #[test]
    fn values_exist() {
        assert_changed("tensor=%0", "tensor=%9", "node 0, float_mask_fill: there is no value %9");
        assert_changed("return %2, %4", "return %2, %9", "there is no value %9");
        let mut graph = graph();
        graph.nodes[2].outputs[0] = ValueId(9);
        graph.values[4].def = Def::Input;
        assert_eq!(graph.verify().unwrap_err().to_string(), "node 2, float_random: there is no value %9");
    }

    #[test]
    fn values_are_read_after_they_are_defined() {
        let want = VerifyError {
            node: Some(0),
            op: Some("float_mask_fill"),
            reason: Violation::ReadTooEarly { argument: "tensor", value: ValueId(1) },
        };
        assert_eq!(changed("tensor=%0", "tensor=%1"), want);
        let want = "node 0, float_mask_fill: tensor reads %2 before it is defined";
        assert_changed("tensor=%0", "tensor=%2", want);
    }

    #[test]
    fn definitions_agree_with_nodes() {
        let broken = |change: fn(&mut Graph)| {
            let mut graph = graph();
            change(&mut graph);
            graph.verify().unwrap_err().to_string()
        };
        let want = "%1 is defined as Node { node: 7, output: 0 }, which does not agree with the nodes";
        assert_eq!(broken(|graph| graph.values[1].def = Def::Node { node: 7, output: 0 }), want);
        let want = "%1 is defined as Node { node: 0, output: 1 }, which does not agree with the nodes";
        assert_eq!(broken(|graph| graph.values[1].def = Def::Node { node: 0, output: 1 }), want);
        let want = "node 0, float_mask_fill: %1 is defined as Input, which does not agree with the nodes";
        assert_eq!(broken(|graph| graph.values[1].def = Def::Input), want);
        // A node that gives the value of another.
        let error = broken(|graph| graph.nodes[2].outputs = graph.nodes[0].outputs.clone());
        assert_eq!(
            error,
            "%4 is defined as Node { node: 2, output: 0 }, which does not agree with the nodes"
        );
    }

    #[test]
    fn kinds_fit() {
        assert_changed("mask=%5", "mask=%0", "node 0, float_mask_fill: mask is float %0, not bool");
        let want = "node 1, float_max_dim_with_indices: output is float %3, not int";
        assert_changed("%3: int i64", "%3: float f32", want);
        let want = "node 1, float_max_dim_with_indices: 1 outputs, not 2";
        let text = TEXT.replace(", %3: int i64[2, 1]", "").replace("%5", "%3");
        assert_eq!(text.parse::<Graph>().unwrap().verify().unwrap_err().to_string(), want);
        assert_changed("%0: float f32", "%0: float i64", "%0 is float of dtype i64");
        assert_changed("%5: bool bool[", "%5: bool f32[", "%5 is bool of dtype f32");
    }

    #[test]
    fn metas_are_those_of_the_operation() {
        let want = "node 0, float_mask_fill: %1 is f32[2, 4], not f32[2, 3]";
        assert_changed("%1: float f32[2, 3]", "%1: float f32[2, 4]", want);
        let want = "node 2, float_random: %4 is f16[4], not f32[4]";
        assert_changed("%4: float f32", "%4: float f16", want);
        assert!(matches!(changed("dim=1", "dim=2").reason, Violation::Infer(_)));
        let huge = "%0 is too large: f32[9223372036854775807, 3]";
        assert_changed("%0: float f32[2, 3]", "%0: float f32[9223372036854775807, 3]", huge);
    }

    #[test]
    fn dtypes_are_the_backends() {
        let text = "graph scalars=0 draws=0\n%0: int i64[3] = input\n%1: int i32[1] = int_argmax(tensor=%0, dim=0)\n\
                    return %1\n";
        let graph: Graph = text.parse().unwrap();
        assert_eq!(graph.verify().unwrap_err().to_string(), "node 0, int_argmax: %1 is i32[1], not i64[1]");
        let defaults = Defaults { float: FloatDType::F32, index: IntDType::I32 };
        assert_eq!(graph.verify_with(&defaults), Ok(()));
    }

    #[test]
    fn parameters_are_counted() {
        assert_changed("s0:float", "s1:float", "node 0, float_mask_fill: scalar 1 of 1");
        assert_changed("@r0", "@r2", "node 2, float_random: draw 2 of 1");
    }

    #[test]
    fn returned_values_rise() {
        assert_changed("return %2, %4", "return %4, %2", "%2 is returned out of order or twice");
        assert_changed("return %2, %4", "return %2, %2", "%2 is returned out of order or twice");
    }

    #[test]
    fn primitives_may_be_quantised() {
        let text = "\
graph scalars=1 draws=0
%0: quantized qfloat{value=q8s, param=f32, store=native, level=tensor, mode=symmetric}[4, 4] = input
%1: quantized qfloat{value=q8s, param=f32, store=native, level=tensor, mode=symmetric}[4, 4] = q_add(lhs=%0, rhs=%0)
%2: float f32[4, 4] = q_matmul(lhs=%0:quantized, rhs=%1:quantized)
return %2
";
        assert_eq!(text.parse::<Graph>().unwrap().verify(), Ok(()));
        let int = text.replace("%2: float f32", "%2: int i32").parse::<Graph>().unwrap();
        assert_eq!(int.verify().unwrap_err().to_string(), "node 1, q_matmul: output is int %2, not float");
        let float = text.replace("rhs=%1:quantized", "rhs=%1:float").parse::<Graph>().unwrap();
        assert_eq!(
            float.verify().unwrap_err().to_string(),
            "node 1, q_matmul: rhs is quantized %1, not float"
        );
        let shape = text.replace("[4, 4] = q_add", "[4, 5] = q_add").parse::<Graph>().unwrap();
        assert!(matches!(shape.verify().unwrap_err().reason, Violation::Meta { .. }));
    }

    #[test]
    fn an_extension_gives_what_it_likes() {
        let text = "\
graph scalars=1 draws=0
%0: int i32[4] = input
%1: bool bool[9], %2: float f16[] = extension(name=\"x\", attributes=\"\", inputs=[%0], scalars=[s0:float])
return %1, %2
";
        assert_eq!(text.parse::<Graph>().unwrap().verify(), Ok(()));
        let scalar = text.replace("s0:float", "s5:float").parse::<Graph>().unwrap();
        assert_eq!(scalar.verify().unwrap_err().to_string(), "node 0, extension: scalar 5 of 1");
    }
}
