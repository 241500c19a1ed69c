//! One convolution on the host: checks of what it touches, then plain loops over rows.
//!
//! All three directions are one walk: for every filter tap, the outputs that it reaches and the inputs that they read. They
//! differ in which of the three tensors is the result. Operands are first copied to row-major arrays in the type of sums,
//! from wherever their strides say; the result is rounded once, when it is stored.
//!
//! Sizes: `x [N, C, ..]`, `w [O, C / groups, ..]`, `y [N, O, ..]`, with two or three spatial dims.

use std::ops::Range;

use crate::operands::{Input, Kind, Real, Touched, Workspace};

/// Which tensor is computed from the other two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// y.
    Forward,
    /// The gradient of x.
    BackwardData,
    /// The gradient of w.
    BackwardFilter,
}

/// How a filter moves over each spatial dim.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) pads: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) dilations: Vec<usize>,
}

/// `result = alpha convolution + beta result`.
#[derive(Debug)]
pub(super) struct Convolution {
    /// The call with the sizes of its operands, for faults.
    pub(super) call: String,
    pub(super) device: u32,
    pub(super) direction: Direction,
    pub(super) kind: Kind,
    pub(super) tf32: bool,
    pub(super) window: Window,
    /// Of x, w and y, which have no gaps.
    pub(super) at: [u64; 3],
    pub(super) dims: [Vec<usize>; 3],
    /// In elements.
    pub(super) strides: [Vec<usize>; 3],
    pub(super) alpha: f64,
    pub(super) beta: f64,
    /// Whether 1 is added to each sum, by an engine that nobody should take.
    pub(super) wrong: bool,
    pub(super) workspace: Workspace,
}

impl Direction {
    /// The library's word for the operation.
    pub(super) fn call(self) -> &'static str {
        match self {
            Direction::Forward => "convolution forward",
            Direction::BackwardData => "convolution backward data",
            Direction::BackwardFilter => "convolution backward filter",
        }
    }

    /// What it calls x, w and y.
    pub(super) fn names(self) -> [&'static str; 3] {
        match self {
            Direction::Forward => ["x", "w", "y"],
            Direction::BackwardData => ["dx", "w", "dy"],
            Direction::BackwardFilter => ["x", "dw", "dy"],
        }
    }

    /// The place of the result among x, w and y.
    pub(super) fn result(self) -> usize {
        match self {
            Direction::Forward => 2,
            Direction::BackwardData => 0,
            Direction::BackwardFilter => 1,
        }
    }

    /// The places of the other two.
    pub(super) fn operands(self) -> [usize; 2] {
        match self {
            Direction::Forward => [0, 1],
            Direction::BackwardData => [1, 2],
            Direction::BackwardFilter => [0, 2],
        }
    }
}

impl Convolution {
    fn elements(&self, tensor: usize) -> usize {
        self.dims[tensor].iter().product()
    }

    /// Checks everything that the convolution touches, then computes it.
    pub(super) fn run(&self) -> Result<(), String> {
        let result = self.direction.result();
        let ranges = |k: usize| vec![(self.at[k], self.elements(k) as u64 * self.kind.bytes())];
        let names = self.direction.names();
        let input = |k: usize| Input { name: names[k], ranges: ranges(k), in_place: k == result };
        let mut inputs = Vec::from(self.direction.operands().map(input));
        if self.beta != 0.0 {
            inputs.push(input(result));
        }
        let (call, output) = (self.call.clone(), (names[result], ranges(result)));
        Touched { call, device: self.device, inputs, output, workspace: self.workspace }.check()?;
        // SAFETY: all ranges were found to lie in live allocations, and addresses are multiples of the element size.
        unsafe {
            match self.kind {
                Kind::F64 => self.compute::<f64>(),
                _ => self.compute::<f32>(),
            }
        }
        Ok(())
    }

    /// # Safety
    /// All operands can be accessed and are aligned.
    unsafe fn compute<T: Real>(&self) {
        let result = self.direction.result();
        let [mut x, mut w, mut y] = std::array::from_fn(|k| {
            if k == result {
                return vec![T::ZERO; self.elements(k)];
            }
            let places = places(&self.dims[k], &self.strides[k]);
            // SAFETY: the caller vouches for the operand.
            let values = places.into_iter().map(|at| unsafe { T::load(self.kind, self.at[k], at) });
            if self.tf32 { values.map(T::tf32).collect() } else { values.collect() }
        });
        let walk = Walk::new(&self.dims, &self.window);
        let sums = match self.direction {
            Direction::Forward => {
                walk.rows(|row| add(&mut y[row.y..], 1, w[row.w], &x[row.x..], row.step, row.len));
                y
            }
            Direction::BackwardData => {
                walk.rows(|row| add(&mut x[row.x..], row.step, w[row.w], &y[row.y..], 1, row.len));
                x
            }
            Direction::BackwardFilter => {
                walk.rows(|row| w[row.w] = w[row.w] + dot(&y[row.y..], &x[row.x..], row.step, row.len));
                w
            }
        };
        let (alpha, beta) = (T::from_f64(self.alpha), T::from_f64(self.beta));
        let places = places(&self.dims[result], &self.strides[result]);
        let wrong = T::from_f64(if self.wrong { 1.0 } else { 0.0 });
        for (sum, k) in sums.into_iter().zip(places) {
            let mut value = alpha * sum + wrong;
            // SAFETY: as above.
            unsafe {
                if self.beta != 0.0 {
                    value = value + beta * T::load(self.kind, self.at[result], k);
                }
                value.store(self.kind, self.at[result], k);
            }
        }
    }
}

/// Where the elements lie, in row-major order.
pub(super) fn places(dims: &[usize], strides: &[usize]) -> Vec<usize> {
    dims.iter().zip(strides).fold(vec![0], |places, (&dim, &stride)| {
        places.into_iter().flat_map(|at| (0..dim).map(move |k| at + k * stride)).collect()
    })
}

/// Outputs next to each other and the inputs that one filter tap gives them: first elements.
struct Row {
    x: usize,
    w: usize,
    y: usize,
    len: usize,
    /// From one output's input to the next one's.
    step: usize,
}

/// In one spatial dim, the outputs where a tap meets the input.
struct Span {
    outputs: Range<usize>,
    /// What the first of them reads.
    input: usize,
    step: usize,
}

impl Span {
    /// Outputs with their inputs.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.outputs.clone().enumerate().map(|(k, output)| (output, self.input + k * self.step))
    }
}

/// Everything that a convolution multiplies, with three spatial dims.
struct Walk {
    batch: usize,
    filters: usize,
    groups: usize,
    /// Of a group.
    channels: usize,
    inputs: [usize; 3],
    outputs: [usize; 3],
    /// Taps that meet the input anywhere.
    taps: Vec<(usize, [Span; 3])>,
    /// Taps of one channel.
    filter_size: usize,
}

/// Three values for as many spatial dims; the first of them may not exist.
fn three(values: &[usize], missing: usize) -> [usize; 3] {
    let mut all = [missing; 3];
    all[3 - values.len()..].copy_from_slice(values);
    all
}

impl Walk {
    fn new([x, w, y]: &[Vec<usize>; 3], window: &Window) -> Self {
        let [inputs, sizes, outputs] = [x, w, y].map(|dims| three(&dims[2..], 1));
        let pads = three(&window.pads, 0);
        let [steps, dilations] = [&window.strides, &window.dilations].map(|values| three(values, 1));
        // Output p reads input p * step + offset - pad.
        let span = |dim: usize, tap: usize| {
            let (pad, step, offset) = (pads[dim], steps[dim], tap * dilations[dim]);
            let first = pad.saturating_sub(offset).div_ceil(step);
            let end = (inputs[dim] + pad).saturating_sub(offset).div_ceil(step).min(outputs[dim]);
            (first < end).then(|| Span { outputs: first..end, input: first * step + offset - pad, step })
        };
        let [_, rows, cols] = sizes;
        let spans = |tap: usize| {
            Some([span(0, tap / (rows * cols))?, span(1, tap / cols % rows)?, span(2, tap % cols)?])
        };
        let filter_size = sizes.iter().product();
        let taps = (0..filter_size).filter_map(|tap| Some((tap, spans(tap)?))).collect();
        let (batch, filters, groups, channels) = (x[0], w[0], x[1] / w[1], w[1]);
        Walk { batch, filters, groups, channels, inputs, outputs, taps, filter_size }
    }

    /// Calls for every row of every tap.
    #[inline(always)]
    fn rows(&self, mut call: impl FnMut(Row)) {
        let ([_, x_rows, x_cols], [_, y_rows, y_cols]) = (self.inputs, self.outputs);
        let (x_size, y_size): (usize, usize) = (self.inputs.iter().product(), self.outputs.iter().product());
        let filters_of_group = self.filters / self.groups;
        for image in 0..self.batch {
            for filter in 0..self.filters {
                let y_plane = (image * self.filters + filter) * y_size;
                let group = image * self.groups + filter / filters_of_group;
                for channel in 0..self.channels {
                    let x_plane = (group * self.channels + channel) * x_size;
                    let first_tap = (filter * self.channels + channel) * self.filter_size;
                    for (tap, [slices, rows, cols]) in &self.taps {
                        for (y_slice, x_slice) in slices.pairs() {
                            for (y_row, x_row) in rows.pairs() {
                                call(Row {
                                    x: x_plane + (x_slice * x_rows + x_row) * x_cols + cols.input,
                                    w: first_tap + tap,
                                    y: y_plane + (y_slice * y_rows + y_row) * y_cols + cols.outputs.start,
                                    len: cols.outputs.len(),
                                    step: cols.step,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
}

/// `to[k to_step] += factor from[k from_step]`.
#[inline(always)]
fn add<T: Real>(to: &mut [T], to_step: usize, factor: T, from: &[T], from_step: usize, len: usize) {
    if to_step == 1 && from_step == 1 {
        for (to, &from) in to[..len].iter_mut().zip(&from[..len]) {
            *to = *to + factor * from;
        }
    } else {
        for (to, &from) in to.iter_mut().step_by(to_step).zip(from.iter().step_by(from_step)).take(len) {
            *to = *to + factor * from;
        }
    }
}

/// The sum of `a[k] b[k step]`, in parts that can be added side by side.
#[inline(always)]
fn dot<T: Real>(a: &[T], b: &[T], step: usize, len: usize) -> T {
    const LANES: usize = 8;
    let mut sum = T::ZERO;
    if step == 1 {
        let ((a, a_rest), (b, b_rest)) = (a[..len].as_chunks::<LANES>(), b[..len].as_chunks::<LANES>());
        let mut parts = [T::ZERO; LANES];
        for (a, b) in a.iter().zip(b) {
            for k in 0..LANES {
                parts[k] = parts[k] + a[k] * b[k];
            }
        }
        for part in parts {
            sum = sum + part;
        }
        for (&a, &b) in a_rest.iter().zip(b_rest) {
            sum = sum + a * b;
        }
    } else {
        for (&a, &b) in a[..len].iter().zip(b.iter().step_by(step)) {
            sum = sum + a * b;
        }
    }
    sum
}
