//! A graph as a drawing for Graphviz.

use std::fmt::{self, Display, Formatter, Write};

use kiln_surface::{Op, ValueId};

use super::print::ValueText;
use super::text::{Shown, fields};
use super::{Def, Graph};

impl Graph {
    /// The graph in Graphviz's language: `dot -Tsvg` draws it.
    ///
    /// Inputs are ellipses, nodes are boxes with their attributes and what they give, and returned values are double
    /// octagons. An edge bears the position of the operand in the node, its name and the value.
    pub fn to_dot(&self) -> String {
        Dot(self).to_string()
    }

    /// The name of what gives a value.
    fn source(&self, id: ValueId) -> String {
        match self.values.get(id.0 as usize).map(|value| value.def) {
            Some(Def::Input) => format!("input{}", id.0),
            Some(Def::Node { node, .. }) => format!("node{node}"),
            None => format!("missing{}", id.0),
        }
    }
}

struct Dot<'a>(&'a Graph);

impl Display for Dot<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Dot(graph) = self;
        f.write_str(
            "digraph {\n    node [shape=box, fontname=monospace];\n    edge [fontname=monospace];\n",
        )?;
        for id in graph.inputs() {
            let label = Quoted(format!("input\n{}", ValueText(graph, id)));
            writeln!(f, "    {} [label={label}, shape=ellipse];", graph.source(id))?;
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            let (attributes, operands) = split(&node.op);
            let mut label = format!("{index}: {}", node.op.name());
            let outputs = node.outputs.iter().map(|&id| ValueText(graph, id).to_string());
            for line in attributes.into_iter().chain(outputs) {
                write!(label, "\n{line}")?;
            }
            writeln!(f, "    node{index} [label={}];", Quoted(label))?;
            for (position, (name, id)) in operands.into_iter().enumerate() {
                let label = Quoted(format!("{position}: {name}={}", Shown(&id)));
                writeln!(f, "    {} -> node{index} [label={label}];", graph.source(id))?;
            }
        }
        for (index, &id) in graph.outputs.iter().enumerate() {
            let label = Quoted(format!("return {}", Shown(&id)));
            writeln!(f, "    output{index} [label={label}, shape=doubleoctagon];")?;
            writeln!(f, "    {} -> output{index};", graph.source(id))?;
        }
        f.write_str("}\n")
    }
}

/// What stands in an operation: attributes as text, and the tensors with the names of their arguments.
fn split(op: &Op) -> (Vec<String>, Vec<(&'static str, ValueId)>) {
    let (mut attributes, mut operands) = (Vec::new(), Vec::new());
    fields(op, &mut |name, field| {
        let before = operands.len();
        field.values(&mut |id| operands.push((name, id)));
        if operands.len() == before {
            attributes.push(format!("{name}={}", Shown(field)));
        }
    });
    (attributes, operands)
}

/// A string of Graphviz's language.
struct Quoted(String);

impl Display for Quoted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_graph() {
        let text = "\
graph scalars=1 draws=0
%0: float f32[2, 3] = input
%1: float f32[2, 3] = float_sub(lhs=%0, rhs=%0)
%2: float f32[4, 3] = float_cat(tensors=[%1, %0], dim=0)
%3: float f32[1] = extension(name=\"a\\n\", attributes=\"\", inputs=[%2], scalars=[s0:float])
return %2, %3
";
        let graph: Graph = text.parse().unwrap();
        let want = r#"digraph {
    node [shape=box, fontname=monospace];
    edge [fontname=monospace];
    input0 [label="input\n%0: float f32[2, 3]", shape=ellipse];
    node0 [label="0: float_sub\n%1: float f32[2, 3]"];
    input0 -> node0 [label="0: lhs=%0"];
    input0 -> node0 [label="1: rhs=%0"];
    node1 [label="1: float_cat\ndim=0\n%2: float f32[4, 3]"];
    node0 -> node1 [label="0: tensors=%1"];
    input0 -> node1 [label="1: tensors=%0"];
    node2 [label="2: extension\nname=\"a\\n\"\nattributes=\"\"\nscalars=[s0:float]\n%3: float f32[1]"];
    node1 -> node2 [label="0: inputs=%2"];
    output0 [label="return %2", shape=doubleoctagon];
    node1 -> output0;
    output1 [label="return %3", shape=doubleoctagon];
    node2 -> output1;
}
"#;
        assert_eq!(graph.to_dot(), want);
    }
}
