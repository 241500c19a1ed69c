//! What a backend gives the compiler: [`GraphCompiler`].

use std::sync::Arc;

use burn_backend::{Backend, Distribution, Scalar, Shape, TensorMetadata, get_device_settings};
use burn_std::DType;
use kiln_surface::{Defaults, Kind, Meta};

use crate::capture::tensor::Handle;
use crate::error::Failure;
use crate::graph::Graph;
use crate::random;

/// A tensor of a backend, of any kind.
#[derive(Debug, Clone)]
pub enum Value<B: Backend> {
    /// A float tensor.
    Float(B::FloatTensorPrimitive),
    /// An integer tensor.
    Int(B::IntTensorPrimitive),
    /// A boolean tensor.
    Bool(B::BoolTensorPrimitive),
    /// A quantised tensor.
    Quantized(B::QuantizedTensorPrimitive),
}

impl<B: Backend> Value<B> {
    /// Which of Burn's tensor types it is.
    pub fn kind(&self) -> Kind {
        match self {
            Value::Float(_) => Kind::Float,
            Value::Int(_) => Kind::Int,
            Value::Bool(_) => Kind::Bool,
            Value::Quantized(_) => Kind::Quantized,
        }
    }

    /// The float tensor.
    ///
    /// # Panics
    /// If it is of another kind.
    pub fn float(self) -> B::FloatTensorPrimitive {
        match self {
            Value::Float(tensor) => tensor,
            other => panic!("a float tensor is needed, this one is {:?}", other.kind()),
        }
    }

    /// The integer tensor.
    ///
    /// # Panics
    /// If it is of another kind.
    pub fn int(self) -> B::IntTensorPrimitive {
        match self {
            Value::Int(tensor) => tensor,
            other => panic!("an integer tensor is needed, this one is {:?}", other.kind()),
        }
    }

    /// The boolean tensor.
    ///
    /// # Panics
    /// If it is of another kind.
    pub fn bool(self) -> B::BoolTensorPrimitive {
        match self {
            Value::Bool(tensor) => tensor,
            other => panic!("a boolean tensor is needed, this one is {:?}", other.kind()),
        }
    }

    /// The quantised tensor.
    ///
    /// # Panics
    /// If it is of another kind.
    pub fn quantized(self) -> B::QuantizedTensorPrimitive {
        match self {
            Value::Quantized(tensor) => tensor,
            other => panic!("a quantised tensor is needed, this one is {:?}", other.kind()),
        }
    }

    /// Shape and dtype.
    pub fn meta(&self) -> Meta {
        let (shape, dtype) = match self {
            Value::Float(t) => (t.shape(), t.dtype()),
            Value::Int(t) => (t.shape(), t.dtype()),
            Value::Bool(t) => (t.shape(), t.dtype()),
            Value::Quantized(t) => (t.shape(), t.dtype()),
        };
        Meta { shape, dtype }
    }
}

/// The numbers a random operation draws: all elements are a function of seed, offset and position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrawState {
    /// The seed of the device at the call.
    pub seed: u64,
    /// The first counter that belongs to the operation.
    pub offset: u64,
}

/// A backend whose operations can be captured, and perhaps compiled.
///
/// All methods have defaults that interpret: [`Fusion<B>`](crate::Fusion) then runs a captured graph operation by
/// operation on `B`. For a backend of another crate use [`Interpret`](crate::Interpret).
pub trait GraphCompiler: Backend {
    /// What [`GraphCompiler::compile`] makes of a graph; `()` for a backend that only interprets.
    type Executable: Send + Sync + 'static;

    /// Makes an executable of a graph, or `None` to interpret it this time. Asked before each run until it has given
    /// one; `run` is that run, whose inputs may be looked at.
    fn compile(_device: &Self::Device, _history: &History, _run: &Run<'_, Self>) -> Option<Self::Executable> {
        None
    }

    /// Runs an executable: reads the inputs of `run`, and sets those of its outputs that are
    /// [wanted](Run::wanted).
    ///
    /// # Errors
    /// [`Declined`] when this run does not fit the executable; nothing may have been changed then, and the graph is
    /// interpreted.
    fn execute(_executable: &Self::Executable, _run: &mut Run<'_, Self>) -> Result<(), Declined> {
        Err(Declined("this backend has no executables".into()))
    }

    /// The same value in memory that no executable will overwrite, for a reader who takes his time. Called before a
    /// value goes to the host.
    fn unshare(value: Value<Self>) -> Value<Self> {
        value
    }

    /// The dtypes that the backend chooses where Burn's signature names none: the device's default float, as Burn's own
    /// definitions of quantised operations take it, and burn-flex's indices.
    fn defaults(device: &Self::Device) -> Defaults {
        Defaults { float: get_device_settings::<Self>(device).float_dtype, ..Defaults::default() }
    }

    /// Takes the next random numbers of the device for `len` elements; `None` lets `Fusion` keep the count.
    fn reserve_draw(_device: &Self::Device, _dtype: DType, _len: usize) -> Option<DrawState> {
        None
    }

    /// A float tensor of the random numbers at `state`.
    fn draw_float(
        shape: Shape,
        distribution: Distribution,
        device: &Self::Device,
        dtype: DType,
        state: DrawState,
    ) -> Self::FloatTensorPrimitive {
        Self::float_from_data(host_draw(shape, distribution, dtype, state), device)
    }

    /// An integer tensor of the random numbers at `state`.
    fn draw_int(
        shape: Shape,
        distribution: Distribution,
        device: &Self::Device,
        dtype: DType,
        state: DrawState,
    ) -> Self::IntTensorPrimitive {
        Self::int_from_data(host_draw(shape, distribution, dtype, state), device)
    }
}

fn host_draw(
    shape: Shape,
    distribution: Distribution,
    dtype: DType,
    state: DrawState,
) -> burn_backend::TensorData {
    match random::draw(&shape, distribution, dtype, state.seed, state.offset) {
        Ok(data) => data,
        Err(error) => panic!("random: {error}"),
    }
}

/// A graph and what its runs have shown.
#[derive(Debug, Clone)]
pub struct History {
    /// The graph.
    pub graph: Arc<Graph>,
    /// How often it has run.
    pub runs: u64,
    /// Pairs of an output and an input, by their positions in [`Graph::outputs`] and [`Graph::inputs`]: what a run gave
    /// as the one was the other in a later run. No output and no input occurs twice.
    pub carried: Vec<(u32, u32)>,
}

/// Why an executable does not run this time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declined(pub String);

/// One run of a graph, as an executable sees it. Inputs and outputs are numbered as the graph orders them.
pub struct Run<'a, B: GraphCompiler> {
    pub(crate) inputs: Vec<&'a Arc<Handle<B>>>,
    pub(crate) outputs: Vec<&'a Arc<Handle<B>>>,
    pub(crate) scalars: &'a [Scalar],
    pub(crate) draws: &'a [DrawState],
    pub(crate) results: Vec<Option<Value<B>>>,
}

impl<B: GraphCompiler> Run<'_, B> {
    /// The values of the graph's scalars.
    pub fn scalars(&self) -> &[Scalar] {
        self.scalars
    }

    /// The states of the graph's random draws.
    pub fn draws(&self) -> &[DrawState] {
        self.draws
    }

    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Input number `k`.
    ///
    /// # Errors
    /// The failure of the operation that was to make it.
    pub fn input(&self, k: usize) -> Result<Value<B>, Arc<Failure>> {
        self.inputs[k].value()
    }

    /// Whether nobody but this run can see input number `k`, so that its memory may be overwritten.
    pub fn donated(&self, k: usize) -> bool {
        Arc::strong_count(self.inputs[k]) == 1
    }

    /// Input number `k`, taken from the tensor that held it; only for a [donated](Run::donated) one.
    ///
    /// # Errors
    /// The failure of the operation that was to make it.
    pub fn take(&mut self, k: usize) -> Result<Value<B>, Arc<Failure>> {
        if self.donated(k) { self.inputs[k].take() } else { self.inputs[k].value() }
    }

    /// Gives those who still hold input number `k` an equal value in other memory.
    pub fn replace(&mut self, k: usize, value: Value<B>) {
        self.inputs[k].set(Ok(value));
    }

    /// Whether somebody still holds output number `k`.
    pub fn wanted(&self, k: usize) -> bool {
        Arc::strong_count(self.outputs[k]) > 1
    }

    /// Sets output number `k`.
    pub fn set(&mut self, k: usize, value: Value<B>) {
        self.results[k] = Some(value);
    }
}

impl GraphCompiler for burn_flex::Flex {
    type Executable = ();
}
