//! Running a program on a backend: [`execute`].

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, Condvar, Mutex};
use std::time::Duration;

use burn_backend::quantization::QuantizationParametersPrimitive;
use burn_backend::{Scalar, TensorData, TensorPrimitive, try_read_sync};
use kiln_fusion::{DrawState, Value};
use kiln_surface::burn::*;
use kiln_surface::{Attribute, Meta, Op, PrimId, ValueId, with_backend_methods};

use super::program::{Action, Mask, Program, Var, vary};
use super::subject::Subject;

/// What a statement shows.
#[derive(Debug, Clone)]
pub(crate) enum Seen {
    /// It is not one that shows anything, or not in this run.
    Nothing,
    /// Shapes and dtypes of the results of an operation.
    Metas(Vec<Meta>),
    /// Values read.
    Data(Vec<TensorData>),
    /// The values read depend on an operation that failed.
    Failed(String),
    /// An operation failed at the call.
    Refused(String),
}

/// How a program runs.
pub(crate) struct Running<'a, B: Subject> {
    /// How often, each time with other data and other scalars.
    pub(crate) runs: u32,
    /// On as many threads as the program has, or else on this one in program order.
    pub(crate) threaded: bool,
    /// Called at the end of a step.
    pub(crate) step: &'a (dyn Fn() + Sync),
    /// Called before each run.
    pub(crate) begin: &'a (dyn Fn(u32) + Sync),
    /// Sees what operations are called with and what they give.
    pub(crate) watch: Option<&'a dyn Watch<B>>,
}

/// Sees operations.
pub(crate) trait Watch<B: Subject>: Sync {
    /// The statement is about to call its operation.
    fn before(&self, statement: usize, run: u32, operands: &[Value<B>]);

    /// It has. `draws` is the state of the random numbers before.
    fn after(&self, statement: usize, run: u32, scalars: &[Scalar], draws: DrawState, results: &[Value<B>]);
}

/// A variable: a tensor, or none if an operation that it depends on has failed.
type Slot<B> = Option<Option<Value<B>>>;

/// What the threads of a run share.
struct Shared<'a, B: Subject> {
    program: &'a Program,
    running: &'a Running<'a, B>,
    device: &'a B::Device,
    variables: Vec<Mutex<Slot<B>>>,
    /// For each statement those of other threads that it waits for.
    waits_for: Vec<Vec<usize>>,
    done: Mutex<Vec<bool>>,
    progress: Condvar,
    seen: Mutex<Vec<Seen>>,
    draws: Mutex<DrawState>,
    run: Mutex<u32>,
}

thread_local! {
    /// Whether a panic may be that of an operation, which need not be printed.
    pub(crate) static RUNS_PROGRAM: Cell<bool> = const { Cell::new(false) };
}

fn quietly<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
    })
}

/// Runs a program and returns what each statement showed in each run.
pub(crate) fn execute<B: Subject>(
    program: &Program,
    device: &B::Device,
    running: &Running<'_, B>,
) -> Vec<Vec<Seen>> {
    let Running { runs, threaded, step, begin, .. } = *running;
    let variables = program.statements.iter().flat_map(|statement| statement.action.makes()).max();
    let shared = Shared::<B> {
        program,
        running,
        device,
        variables: (0..variables.map_or(0, |last| last + 1)).map(|_| Mutex::new(None)).collect(),
        waits_for: if threaded { waits_for(program) } else { Vec::new() },
        done: Mutex::default(),
        progress: Condvar::new(),
        seen: Mutex::default(),
        draws: Mutex::default(),
        run: Mutex::new(0),
    };
    let threads = if threaded { program.threads } else { 1 };
    let mut all = Vec::new();
    let prepare = |run: u32| {
        begin(run);
        *shared.run.lock().unwrap() = run;
        *shared.draws.lock().unwrap() = DrawState { seed: seed_of(program, run), offset: 0 };
        *shared.done.lock().unwrap() = vec![false; program.statements.len()];
        *shared.seen.lock().unwrap() = vec![Seen::Nothing; program.statements.len()];
        shared.variables.iter().for_each(|variable| *variable.lock().unwrap() = None);
    };
    let mut collect = || all.push(std::mem::take(&mut *shared.seen.lock().unwrap()));
    let barrier = Barrier::new(threads);
    if threads == 1 || program.fresh_threads {
        for run in 0..runs {
            prepare(run);
            std::thread::scope(|scope| {
                let others = (1..threads).map(|thread| {
                    let shared = &shared;
                    scope.spawn(move || shared.part(thread, run))
                });
                let others: Vec<_> = others.collect();
                shared.part(0, run);
                others.into_iter().for_each(|other| other.join().expect("a part of a program"));
            });
            collect();
        }
    } else {
        std::thread::scope(|scope| {
            for thread in 1..threads {
                let (shared, barrier) = (&shared, &barrier);
                scope.spawn(move || {
                    for run in 0..runs {
                        barrier.wait();
                        shared.part(thread, run);
                        barrier.wait();
                    }
                    step();
                });
            }
            for run in 0..runs {
                prepare(run);
                barrier.wait();
                shared.part(0, run);
                barrier.wait();
                collect();
            }
        });
    }
    shared.variables.iter().for_each(|variable| *variable.lock().unwrap() = None);
    step();
    all
}

/// The seed of the random numbers in a run.
pub(crate) fn seed_of(program: &Program, run: u32) -> u64 {
    program.seed.wrapping_mul(31).wrapping_add(u64::from(run))
}

/// For each statement the last ones of other threads that touch its variables, or the one before it.
fn waits_for(program: &Program) -> Vec<Vec<usize>> {
    let mut last: Vec<Option<usize>> = Vec::new();
    let statements = program.statements.iter().enumerate();
    statements
        .map(|(index, statement)| {
            let mut waits = Vec::new();
            if program.lockstep && index > 0 {
                waits.push(index - 1);
            }
            let touched = statement.action.uses().into_iter().chain(statement.action.makes().iter().copied());
            for var in touched {
                last.resize(last.len().max(var as usize + 1), None);
                waits.extend(last[var as usize].replace(index));
            }
            waits.retain(|&other| program.statements[other].thread != statement.thread);
            waits
        })
        .collect()
}

impl<B: Subject> Shared<'_, B> {
    /// The statements of one thread, or all of them in one go.
    fn part(&self, thread: usize, run: u32) {
        let threaded = self.running.threaded;
        RUNS_PROGRAM.set(true);
        let mask: Mask = 1 << run;
        for (index, statement) in self.program.statements.iter().enumerate() {
            if threaded && statement.thread != thread {
                continue;
            }
            if threaded && self.program.threads > 1 {
                let mut done = self.done.lock().unwrap();
                while self.waits_for[index].iter().any(|&other| !done[other]) {
                    done = self.progress.wait(done).unwrap();
                }
            }
            if statement.runs & mask != 0 {
                let seen = self.statement(index, &statement.action, run);
                if !matches!(seen, Seen::Nothing) {
                    self.seen.lock().unwrap()[index] = seen;
                }
            }
            if threaded && self.program.threads > 1 {
                self.done.lock().unwrap()[index] = true;
                self.progress.notify_all();
            }
        }
    }

    fn get(&self, var: Var) -> Option<Value<B>> {
        self.variables[var as usize].lock().unwrap().as_ref().expect("a variable that is there").clone()
    }

    fn take(&self, var: Var) -> Option<Value<B>> {
        self.variables[var as usize].lock().unwrap().take().expect("a variable that is there")
    }

    fn set(&self, var: Var, value: Option<Value<B>>) {
        *self.variables[var as usize].lock().unwrap() = Some(value);
    }

    fn statement(&self, index: usize, action: &Action, run: u32) -> Seen {
        match action {
            Action::Upload { to, input, seed } => {
                let data = input.data(seed.wrapping_add(u64::from(run)));
                let value = match input.meta.dtype {
                    DType::QFloat(_) => Value::Quantized(B::q_from_data(data, self.device)),
                    DType::Bool(_) => Value::Bool(B::bool_from_data(data, self.device)),
                    dtype if dtype.is_float() => Value::Float(B::float_from_data(data, self.device)),
                    _ => Value::Int(B::int_from_data(data, self.device)),
                };
                self.set(*to, Some(value));
                Seen::Nothing
            }
            Action::Op { .. } => self.op(index, action, run),
            Action::Clone { from, to } => {
                self.set(*to, self.get(*from));
                Seen::Nothing
            }
            Action::Drop(var) => {
                drop(self.take(*var));
                Seen::Nothing
            }
            Action::Read { var, consume } => {
                let value = if *consume { self.take(*var) } else { self.get(*var) };
                match value.map(read::<B>) {
                    Some(Ok(data)) => Seen::Data(vec![data]),
                    Some(Err(error)) => Seen::Failed(error.to_string()),
                    None => Seen::Failed("an operation failed".into()),
                }
            }
            Action::ReadAll(vars) => {
                let values: Option<Vec<Value<B>>> = vars.iter().map(|var| self.get(*var)).collect();
                match values.map(read_all::<B>) {
                    Some(Ok(data)) => Seen::Data(data),
                    Some(Err(error)) => Seen::Failed(error.to_string()),
                    None => Seen::Failed("an operation failed".into()),
                }
            }
            Action::Argwhere { var, dtype } => {
                let Some(value) = self.get(*var) else { return Seen::Failed("an operation failed".into()) };
                // It has no way to return an error, so it panics.
                let found = quietly(|| try_read_sync(B::bool_argwhere(value.bool(), *dtype)));
                match found.map(|found| read::<B>(Value::Int(found.expect("a thread may block")))) {
                    Ok(Ok(data)) => Seen::Data(vec![data]),
                    Ok(Err(error)) => Seen::Failed(error.to_string()),
                    Err(panic) => Seen::Failed(panic),
                }
            }
            Action::Step => {
                (self.running.step)();
                Seen::Nothing
            }
            Action::Sync => match B::sync(self.device) {
                Ok(()) => Seen::Nothing,
                Err(error) => Seen::Failed(error.to_string()),
            },
            Action::Pause { micros } => {
                if self.running.threaded {
                    std::thread::sleep(Duration::from_micros(*micros));
                }
                Seen::Nothing
            }
        }
    }

    fn op(&self, index: usize, action: &Action, run: u32) -> Seen {
        let Action::Op { op, scalars, consumes, to } = action else { unreachable!("it is an operation") };
        let mut operands = Vec::new();
        op.inputs(&mut |value| operands.push(value.0));
        let mut values = Vec::new();
        for (position, var) in operands.iter().enumerate() {
            let last = !operands[position + 1..].contains(var) && consumes.contains(var);
            values.push(if last { self.take(*var) } else { self.get(*var) });
        }
        let Some(values) = values.into_iter().collect::<Option<Vec<_>>>() else {
            to.iter().for_each(|var| self.set(*var, None));
            return Seen::Nothing;
        };
        let scalars: Vec<Scalar> = scalars.iter().map(|scalar| vary(*scalar, run)).collect();
        let watch = self.running.watch;
        if let Some(watch) = watch {
            watch.before(index, run, &values);
        }
        let mut state = DrawState::default();
        let called = match op.draw() {
            Some(_) => {
                let mut draws = self.draws.lock().unwrap();
                state = *draws;
                quietly(|| call(op, values, &scalars, self.device, &mut draws))
            }
            None => quietly(|| call(op, values, &scalars, self.device, &mut DrawState::default())),
        };
        match called {
            Ok(results) => {
                assert_eq!(results.len(), to.len(), "{op:?} gives as many results as it says");
                let metas = results.iter().map(Value::meta).collect();
                if let Some(watch) = watch {
                    watch.after(index, run, &scalars, state, &results);
                }
                to.iter().zip(results).for_each(|(var, result)| self.set(*var, Some(result)));
                Seen::Metas(metas)
            }
            Err(message) => {
                to.iter().for_each(|var| self.set(*var, None));
                Seen::Refused(message)
            }
        }
    }
}

/// Waits for the values of a tensor.
pub(crate) fn read<B: Subject>(value: Value<B>) -> Result<TensorData, ExecutionError> {
    let data = match value {
        Value::Float(tensor) => try_read_sync(B::float_into_data(tensor)),
        Value::Int(tensor) => try_read_sync(B::int_into_data(tensor)),
        Value::Bool(tensor) => try_read_sync(B::bool_into_data(tensor)),
        Value::Quantized(tensor) => try_read_sync(B::q_into_data(tensor)),
    };
    data.expect("a thread may block")
}

/// The data in the order of floats, quantised, integers, booleans.
fn read_all<B: Subject>(values: Vec<Value<B>>) -> Result<Vec<TensorData>, ExecutionError> {
    let (mut floats, mut quantized, mut ints, mut bools) = (vec![], vec![], vec![], vec![]);
    for value in values {
        match value {
            Value::Float(tensor) => floats.push(tensor),
            Value::Quantized(tensor) => quantized.push(tensor),
            Value::Int(tensor) => ints.push(tensor),
            Value::Bool(tensor) => bools.push(tensor),
        }
    }
    let transaction = TransactionPrimitive::new(floats, quantized, ints, bools);
    let data = try_read_sync(B::tr_execute(transaction)).expect("a thread may block")?;
    let all = [data.read_floats, data.read_qfloats, data.read_ints, data.read_bools];
    Ok(all.into_iter().flatten().collect())
}

#[rustfmt::skip]
macro_rules! argument {
    (F, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $next($field).float() };
    (I, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $next($field).int() };
    (B, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $next($field).bool() };
    (Q, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $next($field).quantized() };
    (OptF, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $field.as_ref().map(|value| $next(value).float()) };
    (OptB, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $field.as_ref().map(|value| $next(value).bool()) };
    (VecF, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $field.iter().map(|value| $next(value).float()).collect() };
    (VecI, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $field.iter().map(|value| $next(value).int()).collect() };
    (VecB, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $field.iter().map(|value| $next(value).bool()).collect() };
    (VecQ, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $field.iter().map(|value| $next(value).quantized()).collect() };
    (Prim, $field:ident, $next:ident, $scalars:ident, $device:ident) => {
        match $field {
            PrimId::Float(value) => TensorPrimitive::Float($next(value).float()),
            PrimId::Quantized(value) => TensorPrimitive::QFloat($next(value).quantized()),
        }
    };
    (QParams, $field:ident, $next:ident, $scalars:ident, $device:ident) => {
        QuantizationParametersPrimitive { scales: $next($field).float() }
    };
    (Device, $field:ident, $next:ident, $scalars:ident, $device:ident) => {{ let _ = $field; $device }};
    (Scalar, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $scalars[$field.index as usize] };
    ($tag:ident, $field:ident, $next:ident, $scalars:ident, $device:ident) => { $field.arg() };
}

#[rustfmt::skip]
macro_rules! results {
    (F, $out:expr) => { vec![Value::Float($out)] };
    (I, $out:expr) => { vec![Value::Int($out)] };
    (B, $out:expr) => { vec![Value::Bool($out)] };
    (Q, $out:expr) => { vec![Value::Quantized($out)] };
    (Prim, $out:expr) => {
        vec![match $out {
            TensorPrimitive::Float(tensor) => Value::Float(tensor),
            TensorPrimitive::QFloat(tensor) => Value::Quantized(tensor),
        }]
    };
    (FI, $out:expr) => {{ let (a, b) = $out; vec![Value::Float(a), Value::Int(b)] }};
    (II, $out:expr) => {{ let (a, b) = $out; vec![Value::Int(a), Value::Int(b)] }};
    (QI, $out:expr) => {{ let (a, b) = $out; vec![Value::Quantized(a), Value::Int(b)] }};
    (FF, $out:expr) => {{ let (a, b) = $out; vec![Value::Float(a), Value::Float(b)] }};
    (MaxPool1d, $out:expr) => {{ let out = $out; vec![Value::Float(out.output), Value::Int(out.indices)] }};
    (MaxPool2d, $out:expr) => {{ let out = $out; vec![Value::Float(out.output), Value::Int(out.indices)] }};
    (MaxPool1dGrad, $out:expr) => { vec![Value::Float($out.x_grad)] };
    (MaxPool2dGrad, $out:expr) => { vec![Value::Float($out.x_grad)] };
    (DeformGrad, $out:expr) => {{
        let out = $out;
        let always = [out.x_grad, out.offset_grad, out.weight_grad];
        always.into_iter().chain(out.mask_grad).chain(out.bias_grad).map(Value::Float).collect()
    }};
}

/// A call of the backend's method; random operations are Kiln's.
macro_rules! method {
    (float_random, $trait:ident, $ret:ident, $context:tt, $($field:ident: $tag:ident),*) => {
        random!($context, Float, random_float, $($field),*)
    };
    (int_random, $trait:ident, $ret:ident, $context:tt, $($field:ident: $tag:ident),*) => {
        random!($context, Int, random_int, $($field),*)
    };
    ($op:ident, $trait:ident, $ret:ident, [$next:ident $scalars:ident $device:ident $draws:ident],
        $($field:ident: $tag:ident),*) => {
        results!($ret, <B as $trait<B>>::$op($(argument!($tag, $field, $next, $scalars, $device)),*))
    };
}

macro_rules! random {
    ([$next:ident $scalars:ident $device:ident $draws:ident], $kind:ident, $random:ident,
        $shape:ident, $distribution:ident, $placed:ident, $dtype:ident) => {{
        let _ = $placed;
        let (shape, distribution) = ($shape.clone(), $distribution.distribution);
        vec![Value::$kind(B::$random(shape, distribution, $device, *$dtype, $draws))]
    }};
}

macro_rules! define_call {
    ($(trait $trait:ident {
        node { $($op:ident ($($field:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        /// Calls the method of the backend; `values` are the operands in order.
        pub(crate) fn call<B: Subject>(
            op: &Op,
            values: Vec<Value<B>>,
            scalars: &[Scalar],
            device: &B::Device,
            draws: &mut DrawState,
        ) -> Vec<Value<B>> {
            let mut values = values.into_iter();
            let mut next = |_: &ValueId| values.next().expect("a value for each operand");
            match op {
                $($(Op::$op { $($field),* } => {
                    method!($op, $trait, $ret, [next scalars device draws], $($field: $tag),*)
                })*)*
                Op::extension(_) => unreachable!("programs have none"),
            }
        }
    };
}
with_backend_methods! { define_call! {} }
