//! The graph: pure data that the passes, the interpreter and the code generator work on.
//!
//! A graph is a list of nodes in program order over numbered values. It holds no tensors, no device memory and no
//! scalar values: scalars and random draws are parameters, given anew at each run.

mod dot;
mod parse;
mod print;
#[cfg(test)]
mod tests;
mod text;
mod verify;

use kiln_surface::{Kind, Meta, Op, ValueId};
use smallvec::SmallVec;

pub use parse::ParseError;
pub use verify::{VerifyError, Violation};

/// Nodes over values, in an order in which they can run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// All values, by [`ValueId`].
    pub values: Vec<ValueInfo>,
    /// The operations, in program order.
    pub nodes: Vec<Node>,
    /// The values that are wanted, in rising order, without repetition.
    pub outputs: Vec<ValueId>,
    /// How many scalars a run gives.
    pub scalars: u32,
    /// How many random draws a run gives.
    pub draws: u32,
}

/// What is known of a value.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueInfo {
    /// Shape and dtype.
    pub meta: Meta,
    /// Which of Burn's tensor types it has.
    pub kind: Kind,
    /// Where it comes from.
    pub def: Def,
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Def {
    /// From outside the graph.
    Input,
    /// Output number `output` of node number `node`.
    Node {
        /// The index in [`Graph::nodes`].
        node: u32,
        /// The position in [`Node::outputs`].
        output: u32,
    },
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it does, with its operands and attributes.
    pub op: Op,
    /// What it gives.
    pub outputs: SmallVec<[ValueId; 2]>,
}

impl Graph {
    /// What is known of `value`.
    pub fn value(&self, value: ValueId) -> &ValueInfo {
        &self.values[value.0 as usize]
    }

    /// The values from outside, in rising order.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> + '_ {
        let ids = self.values.iter().enumerate().filter(|(_, value)| value.def == Def::Input);
        ids.map(|(id, _)| ValueId(id as u32))
    }

    /// For each value, how often the nodes read it.
    pub fn uses(&self) -> Vec<u32> {
        let mut uses = vec![0; self.values.len()];
        for node in &self.nodes {
            node.op.inputs(&mut |value| uses[value.0 as usize] += 1);
        }
        uses
    }
}
