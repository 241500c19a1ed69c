//! Known sequences of operations, as a tree, and the plans that end in it.
//!
//! A [`Step`] is an operation in its context: the path from the root is the dataflow in program order. A trace follows
//! the tree while it is recorded, comparing each operation with the one that came next last time; shapes are inferred
//! only for an operation that is new. Where a trace has run, the step holds a [`Plan`], so that a trace that comes by
//! again finds all that is known of it without any work on graphs.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use kiln_surface::{Kind, Meta, Op, ValueId};
use smallvec::SmallVec;

use super::device::lock;
use super::tensor::Handle;
use crate::compiler::GraphCompiler;
use crate::graph::{Def, Graph, Node, ValueInfo};

/// What is known of the results of an operation.
pub(crate) type Results = SmallVec<[(Meta, Kind); 1]>;

/// One operation after all those before it.
pub(crate) struct Step<B: GraphCompiler> {
    parent: Weak<Step<B>>,
    /// Counts from the root, this step included.
    pub(crate) counts: Counts,
    /// The operation; `None` at the root.
    pub(crate) op: Option<Op>,
    /// Inputs of the graph that this operation is the first to read, in order; their numbers precede the outputs'.
    pub(crate) leaves: SmallVec<[(Meta, Kind); 1]>,
    /// What it gives.
    pub(crate) outs: Results,
    first_child: OnceLock<Arc<Step<B>>>,
    next_sibling: OnceLock<Arc<Step<B>>>,
    children: AtomicU32,
    /// Whether a plan ends here or further on.
    planned: AtomicBool,
    has_plan: AtomicBool,
    plan: Mutex<Option<Arc<Plan<B>>>>,
}

/// How much a trace holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) nodes: u32,
    pub(crate) values: u32,
    pub(crate) scalars: u32,
    pub(crate) draws: u32,
    pub(crate) bytes: u64,
}

/// What is known of a trace that has run before.
pub(crate) struct Plan<B: GraphCompiler> {
    /// Unlike that of any other plan.
    pub(crate) id: u64,
    /// Pairs of an output and the input that it was in a later run: parameters and optimizer states.
    pub(crate) carried: Mutex<Vec<(u32, u32)>>,
    pub(crate) graph: Arc<Graph>,
    pub(crate) inputs: Vec<ValueId>,
    /// Whether a value is an output of the graph.
    pub(crate) is_output: Vec<bool>,
    /// How often each value is read; reading a value for the last time frees it.
    pub(crate) uses: Vec<u32>,
    /// Whether a node's results are needed for the graph's outputs.
    pub(crate) needed: Vec<bool>,
    pub(crate) runs: AtomicU64,
    pub(crate) executable: OnceLock<B::Executable>,
}

/// Known operations of a device, of some 400 bytes each, after which all are forgotten.
pub(crate) const MAX_STEPS: usize = 1 << 18;

/// More continuations than this after one step mean that something varies from run to run that should not.
const MAX_CHILDREN: u32 = 256;

/// As [`MAX_CHILDREN`], for the first operations of traces: a program that reads often begins often.
const MAX_BEGINNINGS: u32 = 2048;

impl<B: GraphCompiler> Step<B> {
    pub(crate) fn root() -> Arc<Self> {
        Arc::new(Step {
            parent: Weak::new(),
            counts: Counts::default(),
            op: None,
            leaves: SmallVec::new(),
            outs: SmallVec::new(),
            first_child: OnceLock::new(),
            next_sibling: OnceLock::new(),
            children: AtomicU32::new(0),
            planned: AtomicBool::new(false),
            has_plan: AtomicBool::new(false),
            plan: Mutex::new(None),
        })
    }

    fn is(&self, op: &Op, leaves: &[Arc<Handle<B>>]) -> bool {
        self.op.as_ref() == Some(op)
            && self.leaves.len() == leaves.len()
            && self
                .leaves
                .iter()
                .zip(leaves)
                .all(|(known, leaf)| known.0 == leaf.meta && known.1 == leaf.kind)
    }

    /// The known continuation with `op`.
    pub(crate) fn child(&self, op: &Op, leaves: &[Arc<Handle<B>>]) -> Option<&Arc<Self>> {
        let mut next = self.first_child.get();
        while let Some(step) = next {
            if step.is(op, leaves) {
                return Some(step);
            }
            next = step.next_sibling.get();
        }
        None
    }

    /// Adds a continuation, or finds the equal one that another thread has added meanwhile.
    pub(crate) fn add_child(
        self: &Arc<Self>,
        op: Op,
        leaves: &[Arc<Handle<B>>],
        outs: Results,
        counts: Counts,
    ) -> Arc<Self> {
        let new = Arc::new(Step {
            parent: Arc::downgrade(self),
            counts,
            op: Some(op.clone()),
            leaves: leaves.iter().map(|leaf| (leaf.meta.clone(), leaf.kind)).collect(),
            outs,
            first_child: OnceLock::new(),
            next_sibling: OnceLock::new(),
            children: AtomicU32::new(0),
            planned: AtomicBool::new(false),
            has_plan: AtomicBool::new(false),
            plan: Mutex::new(None),
        });
        let mut slot = &self.first_child;
        loop {
            let step = slot.get_or_init(|| new.clone());
            if Arc::ptr_eq(step, &new) {
                self.children.fetch_add(1, Ordering::Relaxed);
                return new;
            }
            if step.is(&op, leaves) {
                return step.clone();
            }
            slot = &step.next_sibling;
        }
    }

    pub(crate) fn children(&self) -> u32 {
        self.children.load(Ordering::Relaxed)
    }

    /// How many continuations there may be before all plans are forgotten.
    pub(crate) fn max_children(&self) -> u32 {
        if self.op.is_none() { MAX_BEGINNINGS } else { MAX_CHILDREN }
    }

    /// Whether a plan ends here.
    pub(crate) fn has_plan(&self) -> bool {
        self.has_plan.load(Ordering::Acquire)
    }

    /// Whether a plan ends here or further on.
    pub(crate) fn planned(&self) -> bool {
        self.planned.load(Ordering::Acquire)
    }

    /// Whether a plan ends further on.
    pub(crate) fn planned_further(&self) -> bool {
        let mut next = self.first_child.get();
        while let Some(step) = next {
            if step.planned() {
                return true;
            }
            next = step.next_sibling.get();
        }
        false
    }

    pub(crate) fn plan(&self) -> Option<Arc<Plan<B>>> {
        lock(&self.plan).clone()
    }

    /// Makes `plan` end here.
    pub(crate) fn set_plan(self: &Arc<Self>, plan: Arc<Plan<B>>) {
        *lock(&self.plan) = Some(plan);
        self.has_plan.store(true, Ordering::Release);
        let mut step = self.clone();
        while !step.planned.swap(true, Ordering::AcqRel) {
            match step.parent.upgrade() {
                Some(parent) => step = parent,
                None => break,
            }
        }
    }

    /// The steps from after `depth` nodes up to this one, in order.
    pub(crate) fn path_from(self: &Arc<Self>, depth: u32) -> Vec<Arc<Self>> {
        let mut path = Vec::new();
        let mut step = self.clone();
        while step.counts.nodes > depth {
            let parent = step.parent.upgrade().expect("a trace keeps the root, and the root its steps");
            path.push(std::mem::replace(&mut step, parent));
        }
        path.reverse();
        path
    }

    /// The step after `depth` nodes on the way here.
    pub(crate) fn ancestor(self: &Arc<Self>, depth: u32) -> Arc<Self> {
        let mut step = self.clone();
        while step.counts.nodes > depth {
            step = step.parent.upgrade().expect("a trace keeps the root, and the root its steps");
        }
        step
    }

    /// The graph of the operations up to here.
    pub(crate) fn graph(self: &Arc<Self>, outputs: Vec<ValueId>) -> Graph {
        let mut graph =
            Graph { outputs, scalars: self.counts.scalars, draws: self.counts.draws, ..Graph::default() };
        for step in self.path_from(0) {
            let op = step.op.clone().expect("only the root has none");
            for (meta, kind) in &step.leaves {
                graph.values.push(ValueInfo { meta: meta.clone(), kind: *kind, def: Def::Input });
            }
            let node = graph.nodes.len() as u32;
            let mut outputs = SmallVec::new();
            for (output, (meta, kind)) in step.outs.iter().enumerate() {
                outputs.push(ValueId(graph.values.len() as u32));
                let def = Def::Node { node, output: output as u32 };
                graph.values.push(ValueInfo { meta: meta.clone(), kind: *kind, def });
            }
            graph.nodes.push(Node { op, outputs });
        }
        graph
    }
}

impl<B: GraphCompiler> Drop for Step<B> {
    /// Without recursion: a tree is as deep as its longest trace.
    fn drop(&mut self) {
        let mut rest: Vec<Arc<Step<B>>> = Vec::new();
        rest.extend(self.first_child.take());
        rest.extend(self.next_sibling.take());
        while let Some(step) = rest.pop() {
            if let Some(mut step) = Arc::into_inner(step) {
                rest.extend(step.first_child.take());
                rest.extend(step.next_sibling.take());
            }
        }
    }
}

impl<B: GraphCompiler> Plan<B> {
    pub(crate) fn new(graph: Graph) -> Self {
        let mut wanted = vec![false; graph.values.len()];
        for output in &graph.outputs {
            wanted[output.0 as usize] = true;
        }
        let mut needed = vec![false; graph.nodes.len()];
        for (node, needed) in graph.nodes.iter().zip(&mut needed).rev() {
            *needed = node.outputs.iter().any(|value| wanted[value.0 as usize]);
            if *needed {
                node.op.inputs(&mut |value| wanted[value.0 as usize] = true);
            }
        }
        let mut uses = vec![0; graph.values.len()];
        for (node, _) in graph.nodes.iter().zip(&needed).filter(|(_, needed)| **needed) {
            node.op.inputs(&mut |value| uses[value.0 as usize] += 1);
        }
        let mut is_output = vec![false; graph.values.len()];
        for output in &graph.outputs {
            is_output[output.0 as usize] = true;
        }
        let inputs = graph.inputs().collect();
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Plan {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            carried: Mutex::default(),
            graph: Arc::new(graph),
            inputs,
            is_output,
            uses,
            needed,
            runs: AtomicU64::new(0),
            executable: OnceLock::new(),
        }
    }

    /// Notes that input number `input` is what an earlier run gave as output number `output`.
    pub(crate) fn carry(&self, output: u32, input: u32) {
        let mut carried = lock(&self.carried);
        if !carried.iter().any(|&(o, i)| o == output || i == input) {
            carried.push((output, input));
        }
    }
}
