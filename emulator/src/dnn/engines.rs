//! Engines: those that compute a convolution, and those that a program must not take.
//!
//! What an engine's notes tell of (`cudnnBackendNumericalNote_t`) is exaggerated: its sums are visibly wrong. They come
//! first, so that a program that does not look takes them.

use super::Status;
use super::convolution::Direction;
use super::descriptor::Operation;
use crate::operands::Kind;

const TENSOR_CORE: u32 = 0;
const DOWN_CONVERT_INPUTS: u32 = 1;
const REDUCED_PRECISION_REDUCTION: u32 = 2;
const FFT: u32 = 3;
const NONDETERMINISTIC: u32 = 4;
const WINOGRAD: u32 = 5;
const WINOGRAD_TILE_4X4: u32 = 6;
const STRICT_NAN_PROP: u32 = 9;

/// What becomes of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// It needs so many tables of a filter's elements as workspace.
    Right(u64),
    /// It adds 1 to each sum.
    Wrong,
    /// There are no plans of it.
    Unsupported,
    /// It needs more memory than there is.
    Huge,
    /// It cannot be executed.
    Fails,
}

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) index: i64,
    pub(super) notes: &'static [u32],
    nature: Nature,
}

const fn engine(index: i64, notes: &'static [u32], nature: Nature) -> Engine {
    Engine { index, notes, nature }
}

static INSTANT: [Engine; 11] = [
    engine(25, &[REDUCED_PRECISION_REDUCTION, NONDETERMINISTIC], Nature::Wrong),
    engine(20, &[NONDETERMINISTIC], Nature::Wrong),
    engine(4, &[FFT], Nature::Wrong),
    engine(6, &[TENSOR_CORE, WINOGRAD], Nature::Wrong),
    engine(7, &[WINOGRAD, WINOGRAD_TILE_4X4], Nature::Wrong),
    engine(8, &[DOWN_CONVERT_INPUTS], Nature::Wrong),
    engine(50, &[], Nature::Unsupported),
    engine(51, &[], Nature::Huge),
    engine(52, &[], Nature::Fails),
    engine(62, &[TENSOR_CORE], Nature::Right(1)),
    engine(1, &[], Nature::Right(2)),
];

static FALLBACK: [Engine; 2] =
    [engine(1, &[], Nature::Right(3)), engine(0, &[STRICT_NAN_PROP], Nature::Right(0))];

/// For a mode of the heuristics (`cudnnBackendHeurMode_t`): tensor cores round f32, and are not for f64.
pub(super) fn proposals(operation: &Operation, mode: u32) -> Result<Vec<&'static Engine>, Status> {
    let all: &'static [Engine] = match mode {
        0 => &INSTANT,
        2 => &FALLBACK,
        _ => return Err(Status::NotSupported),
    };
    let double = operation.tensors[0].kind == Kind::F64;
    Ok(all.iter().filter(|engine| !(double && engine.notes.contains(&TENSOR_CORE))).collect())
}

impl Engine {
    pub(super) fn has_plans(&self) -> bool {
        self.nature != Nature::Unsupported
    }

    /// Bytes; not the same for any two that need some.
    pub(super) fn workspace(&self, operation: &Operation) -> u64 {
        let table =
            (4 * operation.tensors[1].dims[1..].iter().product::<usize>() as u64).next_multiple_of(256);
        let times = match operation.direction {
            Direction::Forward => 1,
            Direction::BackwardData => 5,
            Direction::BackwardFilter => 7,
        };
        match self.nature {
            Nature::Right(tables) => tables * times * table,
            Nature::Huge => 1 << 40,
            _ => 0,
        }
    }

    pub(super) fn fails(&self) -> bool {
        matches!(self.nature, Nature::Fails | Nature::Huge)
    }

    pub(super) fn is_wrong(&self) -> bool {
        self.nature == Nature::Wrong
    }

    /// Whether operands in F32 are rounded.
    pub(super) fn tf32(&self) -> bool {
        self.notes.contains(&TENSOR_CORE)
    }
}
