//! What `Cuda` gives the compiler: captured graphs are replayed as CUDA graphs.
//!
//! A graph that has run [`WARM_UP`] times is captured once, with the kernels of the eager backend, on inputs at fixed
//! addresses (its *slots*). A replay
//!
//! 1. copies into their slots those inputs that do not lie there: each new batch, but not parameters;
//! 2. writes scalars and random positions to the parameter block, in one copy (`driver/params.rs`);
//! 3. launches the graph;
//! 4. copies outputs that somebody wants out of the graph's memory, so that they stay valid when it runs again.
//!
//! An output that becomes an input of the next run (a parameter, an optimizer's state) is not copied out: the graph
//! itself writes it over that input's slot, after its last reader, and the tensor that the user gets lies in the slot.
//! So parameters keep their address although the old model is alive while the new one is recorded. A slot is
//! overwritten only if nobody else can see it: a holder of the old value gets a copy first, a reader reads a copy, and if
//! a view of it is held somewhere, the run is declined, that is, interpreted.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn_backend::{Distribution, Scalar, Shape, TensorMetadata, get_device_settings};
use burn_std::DType;
use kiln_fusion::graph::Graph as Ops;
use kiln_fusion::{Declined, DrawState, GraphCompiler, History, Run, Value, interpret_graph};
use kiln_surface::{Defaults, Kind, Op, ValueId};

use crate::Cuda;
use crate::burn::done;
use crate::device::{CudaDevice, Device};
use crate::driver::graph::Graph;
use crate::driver::launch::ScalarArg;
use crate::driver::params::{self, Use};
use crate::error::{Error, Result};
use crate::ops::{data, random};
use crate::tensor::CudaTensor;

/// Runs that are interpreted before a graph is captured: they load the kernels, choose the algorithms of the matrix
/// products, and show which outputs become inputs.
const WARM_UP: u64 = 2;

/// How long a replay waits for a reader that is about to copy a slot.
const READER_WAIT: Duration = Duration::from_millis(1);

/// A graph's executable.
#[derive(Debug)]
pub struct CudaPlan(State);

#[derive(Debug)]
enum State {
    Captured(Box<Captured>),
    /// Why the graph cannot be captured.
    Refused(String),
}

#[derive(Debug)]
struct Captured {
    device: &'static Device,
    graph: Graph,
    /// Where the graph reads its inputs.
    slots: Vec<Slot>,
    /// For each output, where the graph leaves it.
    results: Vec<Place>,
    /// What each 8 bytes of the parameter block hold.
    uses: Vec<Use>,
    block: Option<CudaTensor>,
    /// One replay after another: they share slots and parameter block.
    replaying: Mutex<()>,
}

#[derive(Debug)]
struct Slot {
    tensor: CudaTensor,
    kind: Kind,
    /// Handles of the storage that the plan itself holds.
    own: usize,
    /// Whether the graph writes it.
    carried: bool,
}

#[derive(Debug)]
enum Place {
    /// In the slot of an input.
    Slot(usize),
    /// In the graph's own memory.
    Own(CudaTensor, Kind),
}

impl GraphCompiler for Cuda {
    type Executable = CudaPlan;

    fn compile(device: &CudaDevice, history: &History, run: &Run<'_, Cuda>) -> Option<CudaPlan> {
        if history.runs < WARM_UP {
            return None;
        }
        let captured = Device::get(device.index).map_err(|e| e.to_string());
        Some(CudaPlan(match captured.and_then(|device| capture(device, history, run)) {
            Ok(captured) => State::Captured(Box::new(captured)),
            Err(reason) => {
                log::warn!(
                    "{device}: a graph of {} operations is not captured: {reason}",
                    history.graph.nodes.len()
                );
                State::Refused(reason)
            }
        }))
    }

    fn execute(plan: &CudaPlan, run: &mut Run<'_, Cuda>) -> std::result::Result<(), Declined> {
        match &plan.0 {
            State::Captured(captured) => captured.execute(run),
            State::Refused(reason) => Err(Declined(reason.clone())),
        }
    }

    /// A copy of what lies in a slot, so that the next replay need not wait for the reader.
    fn unshare(shared: Value<Cuda>) -> Value<Cuda> {
        let kind = shared.kind();
        // No slot holds quantised numbers.
        if kind == Kind::Quantized {
            return shared;
        }
        let shared = tensor(shared);
        let index = shared.device().index;
        value(kind, if shared.storage().is_slot() { done(index, "copy", copy(&shared)) } else { shared })
    }

    fn defaults(device: &CudaDevice) -> Defaults {
        let settings = get_device_settings::<Cuda>(device);
        Defaults { float: settings.float_dtype, index: settings.int_dtype }
    }

    fn reserve_draw(device: &CudaDevice, dtype: DType, len: usize) -> Option<DrawState> {
        let reserved = Device::get(device.index).and_then(|device| random::reserve(device, dtype, len));
        let (seed, offset) = done(device.index, "random", reserved);
        Some(DrawState { seed, offset })
    }

    fn draw_float(
        shape: Shape,
        distribution: Distribution,
        device: &CudaDevice,
        dtype: DType,
        state: DrawState,
    ) -> CudaTensor {
        draw(shape, distribution, device, dtype, state)
    }

    fn draw_int(
        shape: Shape,
        distribution: Distribution,
        device: &CudaDevice,
        dtype: DType,
        state: DrawState,
    ) -> CudaTensor {
        draw(shape, distribution, device, dtype, state)
    }
}

fn draw(
    shape: Shape,
    distribution: Distribution,
    device: &CudaDevice,
    dtype: DType,
    state: DrawState,
) -> CudaTensor {
    // Under capture the state is the number of the draw, and its words are in slots.
    let number = state.offset as usize;
    let (seed, offset) = match params::take(Use::Seed { draw: number }) {
        Some(seed) => {
            let offset = params::take(Use::Offset { draw: number }).unwrap_or(seed);
            (ScalarArg::slot(seed), ScalarArg::slot(offset))
        }
        None => (ScalarArg::bits(state.seed), ScalarArg::bits(state.offset)),
    };
    let tensor = Device::get(device.index)
        .and_then(|device| random::random_at(device, shape, distribution, dtype, seed, offset));
    done(device.index, "random", tensor)
}

fn value(kind: Kind, tensor: CudaTensor) -> Value<Cuda> {
    match kind {
        Kind::Float => Value::Float(tensor),
        Kind::Int => Value::Int(tensor),
        Kind::Bool => Value::Bool(tensor),
        Kind::Quantized => unreachable!("graphs with such inputs or outputs are not captured"),
    }
}

fn tensor(value: Value<Cuda>) -> CudaTensor {
    match value {
        Value::Float(t) | Value::Int(t) | Value::Bool(t) => t,
        Value::Quantized(_) => unreachable!("graphs with such inputs or outputs are not captured"),
    }
}

/// A fresh tensor with the same elements, in the same order of memory: last bits of sums depend on that.
fn copy(source: &CudaTensor) -> Result<CudaTensor> {
    let target = source.empty_like("copy")?.into_layout(source.layout().packed());
    data::copy(&target, source)?;
    Ok(target)
}

fn capture(
    device: &'static Device,
    history: &History,
    run: &Run<'_, Cuda>,
) -> std::result::Result<Captured, String> {
    let ops: &Ops = &history.graph;
    // Markers take the scalars' places.
    let mut markers: Vec<Option<Scalar>> = vec![None; ops.scalars as usize];
    for node in &ops.nodes {
        if let Op::extension(call) = &node.op {
            return Err(format!("{} is an extension", call.name));
        }
        node.op.scalars(&mut |slot| {
            let like = match slot.kind {
                kiln_surface::ScalarKind::Float => Scalar::Float(0.0),
                kiln_surface::ScalarKind::Int => Scalar::Int(0),
                kiln_surface::ScalarKind::UInt => Scalar::UInt(0),
                kiln_surface::ScalarKind::Bool => Scalar::Bool(false),
            };
            markers[slot.index as usize] = params::marker(like, slot.index as usize);
        });
    }
    let markers: Option<Vec<Scalar>> = markers.into_iter().collect();
    let markers = markers.ok_or("a bool scalar is a parameter, or there are too many scalars")?;
    let draws: Vec<DrawState> = (0..ops.draws).map(|k| DrawState { seed: 0, offset: k.into() }).collect();

    let quantized = |id: &ValueId| ops.value(*id).kind == Kind::Quantized;
    if ops.inputs().any(|id| quantized(&id)) || ops.outputs.iter().any(quantized) {
        return Err("quantised tensors go in or come out".into());
    }
    let text = |error: Error| error.to_string();
    let inputs: Vec<_> = ops.inputs().collect();
    let mut slots = Vec::with_capacity(inputs.len());
    for (k, id) in inputs.iter().enumerate() {
        let info = ops.value(*id);
        let tensor = CudaTensor::empty(device, info.meta.shape.clone(), info.meta.dtype, "graph input");
        let mut tensor = tensor.map_err(text)?;
        let seen = run.input(k).map_err(|failure| failure.to_string())?;
        let layout = self::tensor(seen).layout().packed();
        if layout.shape() == tensor.layout().shape() {
            tensor = tensor.into_layout(layout);
        }
        let carried = history.carried.iter().any(|&(_, input)| input as usize == k);
        slots.push(Slot { tensor, kind: info.kind, own: 0, carried });
    }
    // An operation may use a scalar in more than one kernel.
    let capacity = 2 * (markers.len() + draws.len());
    let block = match capacity {
        0 => None,
        _ => Some(CudaTensor::empty(device, [capacity], DType::U64, "graph parameters").map_err(text)?),
    };
    let base = block.as_ref().map_or(0, CudaTensor::ptr);
    let arguments = slots.iter().map(|slot| value(slot.kind, slot.tensor.clone())).collect();
    let (captured, uses) = params::with_slots(base, capacity, || {
        Graph::capture(device, || -> std::result::Result<Vec<Place>, String> {
            let outputs =
                interpret_graph::<Cuda>(ops, arguments, &markers, &draws).map_err(|e| e.to_string())?;
            leave(outputs, &slots, &history.carried).map_err(|e| e.to_string())
        })
    });
    let (results, graph) = captured.map_err(text)?;
    let results = results?;
    let uses = uses.ok_or("it has too many parameters")?;
    for index in 0..markers.len() {
        if !uses.iter().any(|used| matches!(used, Use::Scalar { index: k, .. } if *k == index)) {
            return Err(format!("scalar {index} does not reach a kernel as it is"));
        }
    }
    for slot in &mut slots {
        slot.tensor.storage().set_slot();
        slot.own = Arc::strong_count(slot.tensor.storage());
    }
    Ok(Captured { device, graph, slots, results, uses, block, replaying: Mutex::new(()) })
}

/// Within the capture: brings outputs to where a replay leaves them.
fn leave(outputs: Vec<Value<Cuda>>, slots: &[Slot], carried: &[(u32, u32)]) -> Result<Vec<Place>> {
    // What lies in a slot must leave it before the slot is overwritten.
    let mut own = Vec::with_capacity(outputs.len());
    for output in outputs {
        let kind = output.kind();
        let output = tensor(output);
        let in_slot = slots.iter().any(|slot| Arc::ptr_eq(slot.tensor.storage(), output.storage()));
        own.push((if in_slot || !output.layout().is_packed() { copy(&output)? } else { output }, kind));
    }
    let mut places = Vec::with_capacity(own.len());
    for (k, (output, kind)) in own.into_iter().enumerate() {
        let input = carried.iter().find(|&&(o, _)| o as usize == k).map(|&(_, input)| input as usize);
        match input {
            Some(input)
                if slots[input].tensor.dims() == output.dims()
                    && slots[input].tensor.dtype() == output.dtype() =>
            {
                data::copy(&slots[input].tensor, &output)?;
                places.push(Place::Slot(input));
            }
            _ => places.push(Place::Own(output, kind)),
        }
    }
    Ok(places)
}

impl Captured {
    fn execute(&self, run: &mut Run<'_, Cuda>) -> std::result::Result<(), Declined> {
        let _one_at_a_time = self.replaying.lock().unwrap_or_else(|e| e.into_inner());
        let declined = |reason: &str| Err(Declined(reason.into()));
        // First look, then touch: a run that is declined must find everything as it was.
        let mut inputs = Vec::with_capacity(self.slots.len());
        for (k, slot) in self.slots.iter().enumerate() {
            let Ok(input) = run.input(k) else { return declined("an input failed") };
            let input = tensor(input);
            let in_slot = Arc::ptr_eq(input.storage(), slot.tensor.storage());
            // The value itself, and the one in the tensor's handle, which `input` is a second handle of.
            let seen = slot.own + 2 * usize::from(in_slot);
            let deadline = Instant::now() + READER_WAIT;
            while Arc::strong_count(slot.tensor.storage()) > seen {
                if Instant::now() > deadline {
                    return declined("a view of an earlier result is held");
                }
                std::thread::yield_now();
            }
            if in_slot && input.layout() != slot.tensor.layout() {
                return declined("an input is a view of an earlier result");
            }
            inputs.push((input, in_slot));
        }
        let replayed = self.replay(run, inputs);
        match replayed {
            Ok(()) => Ok(()),
            Err(error) => panic!("cuda:{}: replay of a captured graph: {error}", self.device.index),
        }
    }

    fn replay(&self, run: &mut Run<'_, Cuda>, inputs: Vec<(CudaTensor, bool)>) -> Result<()> {
        for (k, (slot, (input, in_slot))) in self.slots.iter().zip(inputs).enumerate() {
            if !in_slot {
                data::copy(&slot.tensor, &input)?;
            } else if slot.carried && !run.donated(k) {
                // Somebody holds the old value: they get it elsewhere.
                run.replace(k, value(slot.kind, copy(&input)?));
            }
        }
        if let Some(block) = &self.block {
            let words: Vec<u64> = self
                .uses
                .iter()
                .map(|used| match *used {
                    Use::Scalar { index, elem } => elem.scalar_bits(run.scalars()[index]),
                    Use::Seed { draw } => run.draws()[draw].seed,
                    Use::Offset { draw } => run.draws()[draw].offset,
                })
                .collect();
            data::upload_words(block, &words)?;
        }
        self.graph.launch()?;
        for (k, place) in self.results.iter().enumerate() {
            if !run.wanted(k) {
                continue;
            }
            match place {
                Place::Slot(input) => {
                    let slot = &self.slots[*input];
                    run.set(k, value(slot.kind, slot.tensor.clone()));
                }
                Place::Own(output, kind) => run.set(k, value(*kind, copy(output)?)),
            }
        }
        Ok(())
    }
}
