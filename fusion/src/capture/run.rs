//! Running a trace, or a part of one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use burn_backend::Scalar;
use kiln_surface::ValueId;

use super::device::lock;
use super::plans::{Plan, Step};
use super::tensor::{Handle, Stage};
use crate::compiler::{DrawState, GraphCompiler, History, Run};
use crate::error::Failure;
use crate::explain::{Cut, Miss, Trace};
use crate::graph::{Def, Graph};
use crate::interpret::{Env, interpret};

/// Recorded operations that have been taken out of their trace, to be run once.
pub(crate) struct Job<B: GraphCompiler> {
    /// Keeps the steps.
    pub(crate) _root: Arc<Step<B>>,
    pub(crate) end: Arc<Step<B>>,
    pub(crate) values: Vec<Arc<Handle<B>>>,
    pub(crate) scalars: Vec<Scalar>,
    pub(crate) draws: Vec<DrawState>,
    pub(crate) cut: Cut,
    /// Why no plan can serve it, as far as its operations tell.
    pub(crate) miss: Option<Miss>,
    pub(crate) followed: u32,
    pub(crate) done: bool,
}

impl<B: GraphCompiler> Job<B> {
    /// Runs the operations and makes the values known that somebody still holds.
    pub(crate) fn run(mut self) {
        let device = self.values[0].device;
        let wanted = |handle: &Arc<Handle<B>>| Arc::strong_count(handle) > 1;
        let (plan, miss) = self.plan(wanted);
        for value in &plan.inputs {
            let input = &self.values[value.0 as usize];
            if input.stage() != Stage::Done {
                device.wait_until(|| input.stage() == Stage::Done);
            }
        }
        let donated = plan.inputs.iter().filter(|value| !wanted(&self.values[value.0 as usize])).count();
        let (executed, declined) = self.execute(&plan);
        let failures = if executed { 0 } else { self.interpret(&plan) };
        self.done = true;
        for (output, value) in plan.graph.outputs.iter().enumerate() {
            self.values[value.0 as usize].set_made(plan.id, output as u32);
        }
        plan.runs.fetch_add(1, Ordering::Relaxed);

        let mut stats = lock(&device.stats);
        stats.followed += u64::from(self.followed);
        stats.run(Trace {
            operations: self.end.counts.nodes,
            cut: self.cut,
            miss,
            first_new: match miss {
                Some(Miss::NewOperations) => {
                    plan.graph.nodes.get(self.followed as usize).map(|n| n.op.name())
                }
                _ => None,
            },
            followed: self.followed,
            executed,
        });
        if let Some(reason) = declined {
            *stats.declined.entry(reason).or_default() += 1;
        }
        stats.donated += donated as u64;
        stats.failures += failures;
        drop(stats);
        device.notify();
    }

    /// The plan that serves the values that are wanted now.
    fn plan(&self, wanted: impl Fn(&Arc<Handle<B>>) -> bool) -> (Arc<Plan<B>>, Option<Miss>) {
        let known = self.end.plan();
        let live = |graph: &Graph| -> Vec<usize> {
            let made = graph.values.iter().enumerate().filter(|(_, value)| value.def != Def::Input);
            made.map(|(index, _)| index).filter(|&index| wanted(&self.values[index])).collect()
        };
        let Some(known) = known else {
            let mut graph = self.end.graph(Vec::new());
            graph.outputs = live(&graph).into_iter().map(|index| ValueId(index as u32)).collect();
            let plan = Arc::new(Plan::new(graph));
            self.end.set_plan(plan.clone());
            return (plan, Some(self.miss.unwrap_or(Miss::NewEnd)));
        };
        let live = live(&known.graph);
        if live.iter().all(|&index| known.is_output[index]) {
            return (known, None);
        }
        let mut graph = Graph::clone(&known.graph);
        graph.outputs.extend(live.into_iter().map(|index| ValueId(index as u32)));
        graph.outputs.sort_unstable();
        graph.outputs.dedup();
        let plan = Arc::new(Plan::new(graph));
        self.end.set_plan(plan.clone());
        (plan, Some(Miss::MoreOutputs))
    }

    /// Runs the plan's executable, if there is one and it takes this run.
    fn execute(&self, plan: &Plan<B>) -> (bool, Option<String>) {
        if plan.inputs.iter().any(|value| self.values[value.0 as usize].is_failed()) {
            return (false, None); // the interpreter passes failures on
        }
        let device = &self.values[0].device.device;
        let handle = |value: &ValueId| &self.values[value.0 as usize];
        let mut run = Run {
            inputs: plan.inputs.iter().map(handle).collect(),
            outputs: plan.graph.outputs.iter().map(handle).collect(),
            scalars: &self.scalars,
            draws: &self.draws,
            results: plan.graph.outputs.iter().map(|_| None).collect(),
        };
        let executable = match plan.executable.get() {
            Some(executable) => executable,
            None => match B::compile(device, &self.history(plan), &run) {
                Some(new) => plan.executable.get_or_init(|| new),
                None => return (false, None),
            },
        };
        match B::execute(executable, &mut run) {
            Ok(()) => {
                for (output, result) in run.outputs.iter().zip(run.results) {
                    if let Some(value) = result {
                        output.set(Ok(value));
                    }
                }
                self.fail_unset(&plan.graph, "the executable did not give this value");
                (true, None)
            }
            Err(declined) => (false, Some(declined.0)),
        }
    }

    /// What is known of a plan's runs, this one's inputs included.
    fn history(&self, plan: &Plan<B>) -> History {
        for (input, value) in plan.inputs.iter().enumerate() {
            if let Some(output) = self.values[value.0 as usize].made_by(plan.id) {
                plan.carry(output, input as u32);
            }
        }
        History {
            graph: plan.graph.clone(),
            runs: plan.runs.load(Ordering::Relaxed),
            carried: lock(&plan.carried).clone(),
        }
    }

    fn interpret(&self, plan: &Plan<B>) -> u64 {
        let mut env = Env::new(&plan.graph, &plan.uses, &self.scalars, &self.draws);
        for value in &plan.inputs {
            let input = &self.values[value.0 as usize];
            // With no other handle left, nobody can ask for the value again.
            let last = Arc::strong_count(input) == 1;
            env.set(*value, if last { input.take() } else { input.value() });
        }
        let failures = interpret::<B>(&plan.graph, &plan.needed, &mut env, |value: ValueId, result| {
            let output = &self.values[value.0 as usize];
            if Arc::strong_count(output) > 1 {
                output.set(result.clone());
            }
        });
        self.fail_unset(&plan.graph, "the value was not computed");
        failures
    }

    /// No reader may wait for ever, whatever goes wrong.
    fn fail_unset(&self, graph: &Graph, message: &str) {
        for (handle, value) in self.values.iter().zip(&graph.values) {
            if value.def == Def::Input || handle.stage() == Stage::Done || Arc::strong_count(handle) == 1 {
                continue;
            }
            let failure = Failure {
                op: "trace".into(),
                inputs: vec![handle.meta.clone()],
                position: 0,
                trace_len: self.end.counts.nodes as usize,
                message: message.into(),
            };
            handle.set(Err(Arc::new(failure)));
        }
    }
}

impl<B: GraphCompiler> Drop for Job<B> {
    fn drop(&mut self) {
        if !self.done {
            self.fail_unset(&self.end.graph(Vec::new()), "the trace was not run to its end");
            if let Some(value) = self.values.first() {
                value.device.notify();
            }
        }
    }
}
