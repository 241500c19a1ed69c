//! Descriptors of the backend interface: attributes of known names, types and counts, then one value that does not change.
//!
//! Stricter than the library: an attribute is set once, in the type that it is documented with, and only with parts that
//! are finalised; nothing is read before that.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use super::convolution::{Direction, Window};
use super::engines::{Engine, proposals};
use super::{Handle, Status, get, kind, require};
use crate::driver::lock;
use crate::operands::Kind;

/// `cudnnBackendAttributeType_t`, of those that are in use.
mod of {
    pub(super) const HANDLE: u32 = 0;
    pub(super) const DATA_TYPE: u32 = 1;
    pub(super) const INT64: u32 = 3;
    pub(super) const FLOAT: u32 = 4;
    pub(super) const DOUBLE: u32 = 5;
    pub(super) const VOID_PTR: u32 = 6;
    pub(super) const CONVOLUTION_MODE: u32 = 7;
    pub(super) const HEUR_MODE: u32 = 8;
    pub(super) const NUMERICAL_NOTE: u32 = 11;
    pub(super) const DESCRIPTOR: u32 = 15;
}

/// `cudnnBackendDescriptorType_t`, of those that are in use.
mod kinds {
    pub(super) const CONVOLUTION: u32 = 1;
    pub(super) const ENGINE: u32 = 2;
    pub(super) const ENGINECFG: u32 = 3;
    pub(super) const ENGINEHEUR: u32 = 4;
    pub(super) const EXECUTION_PLAN: u32 = 5;
    pub(super) const FORWARD: u32 = 10;
    pub(super) const BACKWARD_FILTER: u32 = 11;
    pub(super) const BACKWARD_DATA: u32 = 12;
    pub(super) const OPERATIONGRAPH: u32 = 15;
    pub(super) const VARIANT_PACK: u32 = 16;
    pub(super) const TENSOR: u32 = 17;
}

/// The first of the six attributes of a convolution: both factors, the convolution, w, x and y.
fn operation(kind: u32) -> Option<(Direction, u32)> {
    match kind {
        kinds::FORWARD => Some((Direction::Forward, 700)),
        kinds::BACKWARD_DATA => Some((Direction::BackwardData, 706)),
        kinds::BACKWARD_FILTER => Some((Direction::BackwardFilter, 712)),
        _ => None,
    }
}

/// What an attribute takes: its types and the most values; `None` if the descriptor has no such attribute.
fn takes(kind: u32, name: u32) -> Option<(&'static [u32], i64)> {
    const DIMS: i64 = 5;
    let taken: (&'static [u32], i64) = match (kind, name) {
        (kinds::TENSOR, 901) | (kinds::CONVOLUTION, 100) => (&[of::DATA_TYPE], 1),
        (kinds::TENSOR, 902 | 903) | (kinds::CONVOLUTION, 102..=105) => (&[of::INT64], DIMS),
        (kinds::TENSOR, 900 | 906) | (kinds::CONVOLUTION, 106) => (&[of::INT64], 1),
        (kinds::CONVOLUTION, 101) => (&[of::CONVOLUTION_MODE], 1),
        (kinds::OPERATIONGRAPH, 800) | (kinds::EXECUTION_PLAN, 400) => (&[of::HANDLE], 1),
        (kinds::OPERATIONGRAPH, 801) | (kinds::ENGINEHEUR, 201) | (kinds::EXECUTION_PLAN, 401) => {
            (&[of::DESCRIPTOR], 1)
        }
        (kinds::ENGINEHEUR, 200) => (&[of::HEUR_MODE], 1),
        (kinds::VARIANT_PACK, 1000) => (&[of::INT64], 3),
        (kinds::VARIANT_PACK, 1001) => (&[of::VOID_PTR], 3),
        (kinds::VARIANT_PACK, 1003) => (&[of::VOID_PTR], 1),
        _ => match name.checked_sub(operation(kind)?.1)? {
            0 | 1 => (&[of::FLOAT, of::DOUBLE], 1),
            2..=5 => (&[of::DESCRIPTOR], 1),
            _ => return None,
        },
    };
    Some(taken)
}

/// Values of an attribute.
#[derive(Debug)]
enum Values {
    Numbers(Vec<i64>),
    Choice(u32),
    /// With its type.
    Factor(f64, u32),
    Places(Vec<u64>),
    Handle(usize),
    Part(Arc<Object>),
}

/// What a finalised descriptor is.
#[derive(Debug)]
pub(super) enum Object {
    Tensor(Tensor),
    Convolution(Kind, Window),
    Operation(Arc<Operation>),
    Graph(usize, Arc<Operation>),
    Heuristics(usize, Arc<Operation>, Vec<&'static Engine>),
    Config(usize, Arc<Operation>, &'static Engine),
    Engine(&'static Engine),
    Plan(usize, Arc<Operation>, &'static Engine),
    Pack(Pack),
}

#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub(super) kind: Kind,
    pub(super) dims: Vec<usize>,
    /// In elements.
    pub(super) strides: Vec<usize>,
    pub(super) id: i64,
    pub(super) alignment: u64,
}

/// A convolution of tensors that fit together.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) direction: Direction,
    pub(super) window: Window,
    /// x, w and y.
    pub(super) tensors: [Tensor; 3],
    pub(super) alpha: f64,
    pub(super) beta: f64,
}

/// Where a call finds its tensors, by number, and its workspace.
#[derive(Debug)]
pub(super) struct Pack {
    pub(super) places: Vec<(i64, u64)>,
    pub(super) workspace: u64,
}

#[derive(Debug)]
enum State {
    Open(HashMap<u32, Values>),
    Done(Arc<Object>),
}

#[derive(Debug)]
pub(super) struct Descriptor {
    kind: u32,
    state: Mutex<State>,
}

/// What a descriptor has become.
pub(super) fn finalized(handle: usize) -> Result<Arc<Object>, Status> {
    match &*lock(&get::<Descriptor>(handle)?.state) {
        State::Done(object) => Ok(object.clone()),
        State::Open(_) => Err(Status::NotInitialized),
    }
}

/// # Safety
/// `from` leads to `count` values.
unsafe fn copied<T: Copy>(from: *const c_void, count: i64) -> Vec<T> {
    // SAFETY: the caller vouches for the array.
    (0..count as usize).map(|k| unsafe { from.cast::<T>().add(k).read_unaligned() }).collect()
}

impl Descriptor {
    pub(super) fn new(kind: u32) -> Result<Self, Status> {
        let known = (kinds::CONVOLUTION..=kinds::EXECUTION_PLAN).contains(&kind)
            || (kinds::FORWARD..=kinds::BACKWARD_DATA).contains(&kind)
            || (kinds::OPERATIONGRAPH..=kinds::TENSOR).contains(&kind);
        require(known, Status::NotSupported)?;
        Ok(Descriptor { kind, state: Mutex::new(State::Open(HashMap::new())) })
    }

    /// # Safety
    /// `from` is null or leads to `count` values of the type `of`.
    pub(super) unsafe fn set(
        &self,
        name: u32,
        of: u32,
        count: i64,
        from: *const c_void,
    ) -> Result<(), Status> {
        let (types, most) = takes(self.kind, name).ok_or(Status::BadParam)?;
        require(types.contains(&of) && (1..=most).contains(&count) && !from.is_null(), Status::BadParam)?;
        // SAFETY: the caller vouches for the array.
        let values = unsafe {
            match of {
                of::INT64 => Values::Numbers(copied(from, count)),
                of::DATA_TYPE | of::CONVOLUTION_MODE | of::HEUR_MODE => Values::Choice(copied(from, 1)[0]),
                of::FLOAT => Values::Factor(f64::from(copied::<f32>(from, 1)[0]), of),
                of::DOUBLE => Values::Factor(copied(from, 1)[0], of),
                of::VOID_PTR => Values::Places(copied(from, count)),
                of::HANDLE => {
                    let handle = copied(from, 1)[0];
                    get::<Handle>(handle)?;
                    Values::Handle(handle)
                }
                _ => Values::Part(finalized(copied(from, 1)[0])?),
            }
        };
        match &mut *lock(&self.state) {
            State::Open(attributes) => require(attributes.insert(name, values).is_none(), Status::BadParam),
            State::Done(_) => Err(Status::BadParam),
        }
    }

    pub(super) fn finalize(&self) -> Result<(), Status> {
        let mut state = lock(&self.state);
        let State::Open(attributes) = &*state else { return Err(Status::BadParam) };
        let object = Attributes(attributes).object(self.kind)?;
        *state = State::Done(Arc::new(object));
        Ok(())
    }

    /// Becomes what another descriptor gives.
    fn fill(handle: usize, kind: u32, object: Object) -> Result<(), Status> {
        let descriptor = get::<Descriptor>(handle)?;
        require(descriptor.kind == kind, Status::BadParam)?;
        let mut state = lock(&descriptor.state);
        require(matches!(&*state, State::Open(_)), Status::BadParam)?;
        *state = State::Done(Arc::new(object));
        Ok(())
    }

    /// # Safety
    /// `count` is null or valid for a write; `to` is null or has room for `wanted` values of the type `of`.
    pub(super) unsafe fn read(
        &self,
        name: u32,
        of: u32,
        wanted: i64,
        count: *mut i64,
        to: *mut c_void,
    ) -> Result<(), Status> {
        let State::Done(object) = &*lock(&self.state) else { return Err(Status::NotInitialized) };
        let (object, room) = (object.clone(), if to.is_null() { 0 } else { wanted.max(0) as usize });
        // SAFETY: the caller vouches for the places.
        let (own, all) = unsafe {
            let descriptor = |k: usize| to.cast::<usize>().add(k).read_unaligned();
            match (&*object, name) {
                (Object::Heuristics(handle, operation, engines), 202) => {
                    for (k, engine) in engines.iter().enumerate().take(room) {
                        require(of == of::DESCRIPTOR, Status::BadParam)?;
                        let config = Object::Config(*handle, operation.clone(), engine);
                        Descriptor::fill(descriptor(k), kinds::ENGINECFG, config)?;
                    }
                    (of::DESCRIPTOR, engines.len())
                }
                (Object::Config(_, _, engine), 300) => {
                    require(of == of::DESCRIPTOR && room == 1, Status::BadParam)?;
                    Descriptor::fill(descriptor(0), kinds::ENGINE, Object::Engine(engine))?;
                    (of::DESCRIPTOR, 1)
                }
                (Object::Engine(engine), 1301) => {
                    require(of == of::INT64 && room == 1, Status::BadParam)?;
                    to.cast::<i64>().write_unaligned(engine.index);
                    (of::INT64, 1)
                }
                (Object::Engine(engine), 1303) => {
                    require(of == of::NUMERICAL_NOTE, Status::BadParam)?;
                    for (k, note) in engine.notes.iter().enumerate().take(room) {
                        to.cast::<u32>().add(k).write_unaligned(*note);
                    }
                    (of::NUMERICAL_NOTE, engine.notes.len())
                }
                (Object::Plan(_, operation, engine), 402) => {
                    require(of == of::INT64 && room == 1, Status::BadParam)?;
                    to.cast::<i64>().write_unaligned(engine.workspace(operation) as i64);
                    (of::INT64, 1)
                }
                _ => return Err(Status::BadParam),
            }
        };
        require(own == of && !count.is_null(), Status::BadParam)?;
        // SAFETY: as above.
        unsafe { count.write(all as i64) };
        Ok(())
    }
}

/// Attributes that are being made into an object: all of them must be there.
struct Attributes<'a>(&'a HashMap<u32, Values>);

impl Attributes<'_> {
    fn numbers(&self, name: u32, least: i64) -> Result<Vec<usize>, Status> {
        let Some(Values::Numbers(numbers)) = self.0.get(&name) else { return Err(Status::BadParam) };
        let positive = |&n: &i64| if n < least { Err(Status::BadParam) } else { Ok(n as usize) };
        numbers.iter().map(positive).collect()
    }

    fn number(&self, name: u32, least: i64) -> Result<usize, Status> {
        Ok(self.numbers(name, least)?[0])
    }

    fn choice(&self, name: u32) -> Result<u32, Status> {
        let Some(Values::Choice(choice)) = self.0.get(&name) else { return Err(Status::BadParam) };
        Ok(*choice)
    }

    fn handle(&self, name: u32) -> Result<usize, Status> {
        let Some(Values::Handle(handle)) = self.0.get(&name) else { return Err(Status::BadParam) };
        Ok(*handle)
    }

    fn part(&self, name: u32) -> Result<&Object, Status> {
        let Some(Values::Part(object)) = self.0.get(&name) else { return Err(Status::BadParam) };
        Ok(object)
    }

    fn object(&self, kind: u32) -> Result<Object, Status> {
        match kind {
            kinds::TENSOR => self.tensor().map(Object::Tensor),
            kinds::CONVOLUTION => self.convolution(),
            kinds::FORWARD | kinds::BACKWARD_DATA | kinds::BACKWARD_FILTER => {
                self.operation(kind).map(|operation| Object::Operation(Arc::new(operation)))
            }
            kinds::OPERATIONGRAPH => {
                let Object::Operation(operation) = self.part(801)? else { return Err(Status::BadParam) };
                Ok(Object::Graph(self.handle(800)?, operation.clone()))
            }
            kinds::ENGINEHEUR => {
                let Object::Graph(handle, operation) = self.part(201)? else { return Err(Status::BadParam) };
                let engines = proposals(operation, self.choice(200)?)?;
                Ok(Object::Heuristics(*handle, operation.clone(), engines))
            }
            kinds::EXECUTION_PLAN => {
                let Object::Config(handle, operation, engine) = self.part(401)? else {
                    return Err(Status::BadParam);
                };
                require(self.handle(400)? == *handle, Status::BadParam)?;
                require(engine.has_plans(), Status::NotSupported)?;
                Ok(Object::Plan(*handle, operation.clone(), engine))
            }
            kinds::VARIANT_PACK => {
                let (Some(Values::Numbers(ids)), Some(Values::Places(at)), Some(Values::Places(space))) =
                    (self.0.get(&1000), self.0.get(&1001), self.0.get(&1003))
                else {
                    return Err(Status::BadParam);
                };
                require(ids.len() == at.len(), Status::BadParam)?;
                let places = ids.iter().copied().zip(at.iter().copied()).collect();
                Ok(Object::Pack(Pack { places, workspace: space[0] }))
            }
            // These are filled by others.
            _ => Err(Status::BadParam),
        }
    }

    /// Of two or three spatial dims, at most 2^31 - 1 elements, and without gaps.
    fn tensor(&self) -> Result<Tensor, Status> {
        let kind = kind(self.choice(901)?)?;
        let (dims, strides) = (self.numbers(902, 1)?, self.numbers(903, 1)?);
        require(dims.len() >= 4 && strides.len() == dims.len(), Status::NotSupported)?;
        let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        require(elements.is_some_and(|count| count <= i32::MAX as usize), Status::NotSupported)?;
        let rows = packed(&dims, (0..dims.len()).collect());
        let channels_last = packed(&dims, [0].into_iter().chain(2..dims.len()).chain([1]).collect());
        require(strides == rows || strides == channels_last, Status::NotSupported)?;
        let Some(Values::Numbers(id)) = self.0.get(&906) else { return Err(Status::BadParam) };
        let alignment = self.number(900, 1)? as u64;
        require(alignment.is_power_of_two() && alignment >= kind.bytes(), Status::BadParam)?;
        Ok(Tensor { kind, dims, strides, id: id[0], alignment })
    }

    fn convolution(&self) -> Result<Object, Status> {
        let spatial = self.number(106, 1)?;
        require((2..=3).contains(&spatial) && self.choice(101)? == 1, Status::NotSupported)?;
        let (pads, after) = (self.numbers(105, 0)?, self.numbers(104, 0)?);
        require(pads == after, Status::NotSupported)?;
        let window = Window { pads, strides: self.numbers(103, 1)?, dilations: self.numbers(102, 1)? };
        let lengths = [&window.pads, &window.strides, &window.dilations].map(Vec::len);
        require(lengths == [spatial; 3], Status::BadParam)?;
        Ok(Object::Convolution(kind(self.choice(100)?)?, window))
    }

    fn operation(&self, kind: u32) -> Result<Operation, Status> {
        let (direction, first) = operation(kind).ok_or(Status::BadParam)?;
        let Object::Convolution(compute, window) = self.part(first + 2)? else {
            return Err(Status::BadParam);
        };
        let tensor = |at: u32| match self.part(first + at)? {
            Object::Tensor(tensor) => Ok(tensor.clone()),
            _ => Err(Status::BadParam),
        };
        let (x, w, y) = (tensor(4)?, tensor(3)?, tensor(5)?);
        require(x.kind == w.kind && x.kind == y.kind, Status::BadParam)?;
        require(x.id != w.id && x.id != y.id && w.id != y.id, Status::BadParam)?;
        let sums = if x.kind == Kind::F64 { Kind::F64 } else { Kind::F32 };
        require(*compute == sums, Status::NotSupported)?;
        let factor = |name: u32| match self.0.get(&name) {
            Some(Values::Factor(value, of)) => {
                require((*of == of::DOUBLE) == (sums == Kind::F64), Status::BadParam)?;
                Ok(*value)
            }
            _ => Err(Status::BadParam),
        };
        fit(window, [&x.dims, &w.dims, &y.dims])?;
        let (alpha, beta) = (factor(first)?, factor(first + 1)?);
        Ok(Operation { direction, window: window.clone(), tensors: [x, w, y], alpha, beta })
    }
}

/// Strides of sizes that lie without gaps, the outermost dim first.
fn packed(dims: &[usize], outer_to_inner: Vec<usize>) -> Vec<usize> {
    let (mut strides, mut step) = (vec![1; dims.len()], 1);
    for d in outer_to_inner.into_iter().rev() {
        strides[d] = step;
        step *= dims[d];
    }
    strides
}

/// Whether sizes of x, w and y belong to one convolution.
fn fit(window: &Window, [x, w, y]: [&[usize]; 3]) -> Result<(), Status> {
    let (rank, spatial) = (x.len(), window.pads.len());
    require(w.len() == rank && y.len() == rank && spatial + 2 == rank, Status::BadParam)?;
    require(x[0] == y[0] && w[0] == y[1], Status::BadParam)?;
    require(x[1].is_multiple_of(w[1]) && w[0].is_multiple_of(x[1] / w[1]), Status::BadParam)?;
    for k in 0..spatial {
        let reach = (w[k + 2] - 1) * window.dilations[k] + 1;
        let room = x[k + 2] + 2 * window.pads[k];
        require(room >= reach && y[k + 2] == 1 + (room - reach) / window.strides[k], Status::BadParam)?;
    }
    Ok(())
}
