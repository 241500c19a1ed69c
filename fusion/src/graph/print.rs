//! The text form of a graph: a header, then a line for each input, each node and what is returned.
//!
//! ```text
//! graph scalars=1 draws=0
//! %0: float f32[2, 3] = input
//! %1: float f32[2, 3] = float_add_scalar(lhs=%0, rhs=s0:float)
//! %2: float f32[2, 1], %3: int i64[2, 1] = float_max_dim_with_indices(tensor=%1, dim=1, indices_dtype=i64)
//! return %2, %3
//! ```
//!
//! The inputs come first, by number, then the nodes in program order. [`super::text`] has the forms of operands and
//! attributes. Parsing gives back an equal graph, if each value is defined once; [`Graph::verify`] sees to that.

use std::fmt::{self, Display, Formatter, Write};

use kiln_surface::{Op, ValueId};

use super::text::{Shown, fields};
use super::{Def, Graph};

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph scalars={} draws={}", self.scalars, self.draws)?;
        for id in self.inputs() {
            writeln!(f, "{} = input", ValueText(self, id))?;
        }
        for node in &self.nodes {
            for (k, &id) in node.outputs.iter().enumerate() {
                write!(f, "{}{}", if k > 0 { ", " } else { "" }, ValueText(self, id))?;
            }
            f.write_str(if node.outputs.is_empty() { "" } else { " = " })?;
            writeln!(f, "{}", OpText(&node.op))?;
        }
        self.print_strays(f)?;
        f.write_str("return")?;
        for (k, id) in self.outputs.iter().enumerate() {
            write!(f, "{}{}", if k > 0 { ", " } else { " " }, Shown(id))?;
        }
        f.write_char('\n')
    }
}

impl Graph {
    /// Comments on the values of a broken graph whose nodes do not know them.
    fn print_strays(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (id, value) in self.values.iter().enumerate() {
            let Def::Node { node, output } = value.def else { continue };
            let id = ValueId(id as u32);
            let defining = self.nodes.get(node as usize);
            if defining.and_then(|node| node.outputs.get(output as usize)) != Some(&id) {
                writeln!(f, "# {} should be output {output} of node {node}", ValueText(self, id))?;
            }
        }
        Ok(())
    }
}

/// A value of a graph as text: `%1: float f32[2]`.
pub(super) struct ValueText<'a>(pub(super) &'a Graph, pub(super) ValueId);

impl Display for ValueText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(graph, id) = self;
        match graph.values.get(id.0 as usize) {
            Some(value) => write!(f, "{}: {} {}", Shown(id), Shown(&value.kind), Shown(&value.meta)),
            None => write!(f, "{}: ?", Shown(id)),
        }
    }
}

/// An operation as text: `float_add(lhs=%0, rhs=%1)`.
pub(super) struct OpText<'a>(pub(super) &'a Op);

impl Display for OpText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.0.name())?;
        let (mut comma, mut result) = ("", Ok(()));
        fields(self.0, &mut |name, field| {
            if result.is_ok() {
                result = write!(f, "{comma}{name}={}", Shown(field));
            }
            comma = ", ";
        });
        result?;
        f.write_char(')')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
graph scalars=2 draws=1
%0: float f32[4, 1, 8, 8] = input
%1: float f32[3, 1, 3, 3] = input
%9: bool bool8[4, 1, 1, 1] = input
%10: quantized qfloat{value=q8s, param=f32, store=packed_u32(0), level=block[1, 32], mode=symmetric}[2, 32] = input
%2: float f32[4, 3, 3, 3] = conv2d(x=%0, weight=%1, bias=none, options={stride=[2, 2], padding=[0, 0], \
dilation=[1, 1], groups=1})
%3: float f32[4, 3, 3, 3] = float_clamp(tensor=%2, min=s0:float, max=s1:int)
%4: float f32[2, 3, 3, 3] = float_slice(tensor=%3, slices=[1..3;1, 0..;-1])
%5: float f32[2, 3, 3, 3] = float_random(shape=[2, 3, 3, 3], distribution=normal(0, 0.1)@r0, device=device(0, 1), \
dtype=f32)
%6: float f32[2, 3, 3, 3] = float_powi_scalar(lhs=%5, rhs=-2:int)
%7: float f32[2, 3, 3, 1], %8: int i64[2, 3, 3, 1] = float_max_dim_with_indices(tensor=%6, dim=3, indices_dtype=i64)
%12: float f32[2, 2] = q_matmul(lhs=%10:quantized, rhs=%11:float)
%11: float f32[32, 2] = extension(name=\"swizzle\", attributes=\"a \\\"b\\\"\\n\", inputs=[%7, %4], scalars=[s1:uint])
extension(name=\"\", attributes=\"\", inputs=[], scalars=[])
return %7, %8, %12
";

    #[test]
    fn a_small_graph() {
        let graph: Graph = TEXT.parse().unwrap();
        assert_eq!(graph.nodes.len(), 9);
        assert_eq!(graph.to_string(), TEXT);
    }

    #[test]
    fn floats_print_short() {
        let texts = [0.0, -0.0, 1.0, 0.1, 1e-5, 1e300, f64::NEG_INFINITY, f64::NAN, -f64::NAN]
            .map(|value| Shown(&value).to_string());
        let want = ["0", "-0", "1", "0.1", "1e-5", "1e300", "-inf", "nan", "nan(0xfff8000000000000)"];
        assert_eq!(texts, want);
    }

    #[test]
    fn a_broken_graph_prints() {
        let mut graph: Graph = TEXT.parse().unwrap();
        graph.nodes[0].outputs[0] = ValueId(77);
        let text = graph.to_string();
        assert!(text.contains("\n%77: ? = conv2d("), "{text}");
        assert!(text.contains("\n# %2: float f32[4, 3, 3, 3] should be output 0 of node 0\n"), "{text}");
    }
}
