//! One convolution on the host: checks of what it touches, then plain loops over rows.
//!
//! All three directions are one walk: for every filter tap, the outputs that it reaches and the inputs that they read. They
//! differ in which of the three tensors is the result. Operands are first copied to arrays without gaps, in the type of
//! sums; the result is rounded once, when it is stored.
//!
//! Shapes: `x [N, C, ..]`, `w [O, C / groups, ..]`, `y [N, O, ..]`, with two or three spatial dims.

use std::ops::Range;

use crate::operands::{Input, Kind, Ranges, Real, Touched, Workspace, sorted};

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

/// Sizes and strides in elements. No stride is 0, unless the dim has one element.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) dims: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// How a filter moves over each spatial dim.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) pads: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) dilations: Vec<usize>,
    pub(super) groups: usize,
}

/// A tensor in memory.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub(super) name: &'static str,
    pub(super) at: u64,
    pub(super) shape: Shape,
}

/// `result = alpha convolution + beta added + bias`.
#[derive(Debug)]
pub(super) struct Convolution {
    /// The call with the sizes of its operands, for faults.
    pub(super) call: String,
    pub(super) device: u32,
    pub(super) direction: Direction,
    pub(super) kind: Kind,
    pub(super) tf32: bool,
    pub(super) window: Window,
    /// x, w and y.
    pub(super) tensors: [Tensor; 3],
    pub(super) alpha: f64,
    /// With its factor; lies in memory like the result.
    pub(super) added: Option<(Tensor, f64)>,
    /// A value for each channel of the result.
    pub(super) bias: Option<Tensor>,
    pub(super) workspace: Workspace,
}

impl Direction {
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

impl Shape {
    /// The shape of an array without gaps.
    pub(super) fn packed(dims: &[usize]) -> Self {
        let mut strides = vec![1; dims.len()];
        for k in (1..dims.len()).rev() {
            strides[k - 1] = strides[k] * dims[k];
        }
        Shape { dims: dims.to_vec(), strides }
    }

    pub(super) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Calls with the first element of each row (of the last dim), in order.
    fn each_row(&self, mut call: impl FnMut(usize)) {
        let outer = self.dims.len() - 1;
        let mut index = vec![0; outer];
        let mut at = 0;
        for _ in 0..self.dims[..outer].iter().product() {
            call(at);
            for k in (0..outer).rev() {
                index[k] += 1;
                at += self.strides[k];
                if index[k] < self.dims[k] {
                    break;
                }
                at -= index[k] * self.strides[k];
                index[k] = 0;
            }
        }
    }
}

impl Tensor {
    /// All that belongs to the tensor; gaps do not.
    fn ranges(&self, kind: Kind) -> Ranges {
        let mut dims: Vec<_> =
            self.shape.strides.iter().copied().zip(self.shape.dims.iter().copied()).collect();
        dims.retain(|&(_, size)| size > 1);
        dims.sort_unstable();
        // Dims that lie in memory without a gap are one.
        let (mut run, mut joined) = (1, 0);
        while let Some(&(stride, size)) = dims.get(joined)
            && stride == run
        {
            run *= size;
            joined += 1;
        }
        let (mut strides, mut dims): (Vec<_>, Vec<_>) = dims[joined..].iter().copied().unzip();
        strides.push(1);
        dims.push(run);
        let outer = Shape { dims, strides };
        let mut ranges = Vec::new();
        outer.each_row(|first| {
            ranges.push((self.at + first as u64 * kind.bytes(), run as u64 * kind.bytes()));
        });
        sorted(ranges)
    }

    /// All elements, without gaps.
    ///
    /// # Safety
    /// The tensor can be read and is aligned.
    unsafe fn load<T: Real>(&self, kind: Kind) -> Vec<T> {
        let mut values = Vec::with_capacity(self.shape.elements());
        let last = self.shape.dims.len() - 1;
        let (width, step) = (self.shape.dims[last], self.shape.strides[last]);
        self.shape.each_row(|first| {
            // SAFETY: the caller vouches for the tensor, of which these are elements.
            values.extend((0..width).map(|k| unsafe { T::load(kind, self.at, first + k * step) }));
        });
        values
    }
}

impl Convolution {
    /// The same with three spatial dims, of which the last has the most outputs, so that rows are long.
    pub(super) fn arranged(mut self) -> Self {
        let Window { pads, strides, dilations, .. } = &mut self.window;
        let mut window = [pads, strides, dilations];
        let mut shapes = self.tensors.each_mut().map(|tensor| &mut tensor.shape);
        if window[0].len() == 2 {
            window.iter_mut().zip([0, 1, 1]).for_each(|(values, one)| values.insert(0, one));
            for shape in &mut shapes {
                shape.dims.insert(2, 1);
                shape.strides.insert(2, 1);
            }
        }
        let longest = (0..3).max_by_key(|dim| shapes[2].dims[dim + 2]).unwrap_or(2);
        window.iter_mut().for_each(|values| values.swap(longest, 2));
        for shape in shapes {
            shape.dims.swap(longest + 2, 4);
            shape.strides.swap(longest + 2, 4);
        }
        self
    }

    fn result(&self) -> &Tensor {
        &self.tensors[self.direction.result()]
    }

    /// Checks everything that the convolution touches, then computes it.
    pub(super) fn run(&self) -> Result<(), String> {
        let result = self.result();
        let input = |tensor: &Tensor, in_place| {
            let ranges = tensor.ranges(self.kind);
            Input { name: tensor.name, ranges, in_place }
        };
        let mut inputs = Vec::from(self.direction.operands().map(|k| input(&self.tensors[k], false)));
        inputs.extend(self.added.iter().map(|(added, _)| input(added, added.at == result.at)));
        inputs.extend(self.bias.iter().map(|bias| input(bias, false)));
        let (call, output) = (self.call.clone(), (result.name, result.ranges(self.kind)));
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
            let tensor = &self.tensors[k];
            if k == result {
                return vec![T::ZERO; tensor.shape.elements()];
            }
            // SAFETY: the caller vouches for the operand.
            let values = unsafe { tensor.load::<T>(self.kind) };
            if self.tf32 { values.into_iter().map(T::tf32).collect() } else { values }
        });
        let [x_dims, w_dims, y_dims] = [0, 1, 2].map(|k| &self.tensors[k].shape.dims[..]);
        let walk = Walk::new(x_dims, w_dims, y_dims, &self.window);
        let step = self.window.strides[2];
        let sums = match self.direction {
            Direction::Forward => {
                walk.rows(|row| add(&mut y[row.y..], 1, w[row.w], &x[row.x..], step, row.len));
                y
            }
            Direction::BackwardData => {
                walk.rows(|row| add(&mut x[row.x..], step, w[row.w], &y[row.y..], 1, row.len));
                x
            }
            Direction::BackwardFilter => {
                walk.rows(|row| w[row.w] = w[row.w] + dot(&y[row.y..], &x[row.x..], step, row.len));
                w
            }
        };
        // SAFETY: as above.
        unsafe { self.finish(&sums) };
    }

    /// Scales, adds and stores the result.
    ///
    /// # Safety
    /// All operands can be accessed and are aligned.
    unsafe fn finish<T: Real>(&self, sums: &[T]) {
        let Tensor { at, shape, .. } = self.result();
        // SAFETY: the caller vouches for the operand.
        let bias = self.bias.as_ref().map(|bias| unsafe { bias.load::<T>(self.kind) });
        let added = self.added.as_ref().map(|(tensor, factor)| (tensor.at, T::from_f64(*factor)));
        let alpha = T::from_f64(self.alpha);
        let last = shape.dims.len() - 1;
        let (width, step) = (shape.dims[last], shape.strides[last]);
        let rows_of_channel: usize = shape.dims[2..last].iter().product();
        let mut rows = sums.chunks_exact(width).enumerate();
        shape.each_row(|first| {
            let Some((number, row)) = rows.next() else { return };
            let bias = bias.as_ref().map(|bias| bias[number / rows_of_channel % shape.dims[1]]);
            for (k, &sum) in row.iter().enumerate() {
                let element = first + k * step;
                let mut value = alpha * sum;
                if let Some((at, factor)) = added {
                    // SAFETY: as above; this is an element.
                    value = value + factor * unsafe { T::load(self.kind, at, element) };
                }
                if let Some(bias) = bias {
                    value = value + bias;
                }
                // SAFETY: as above.
                unsafe { value.store(self.kind, *at, element) };
            }
        });
    }
}

/// Outputs next to each other and the inputs that one filter tap gives them: first elements in arrays without gaps.
struct Row {
    x: usize,
    w: usize,
    y: usize,
    len: usize,
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

impl Walk {
    fn new(x: &[usize], w: &[usize], y: &[usize], window: &Window) -> Self {
        let [inputs, sizes, outputs] = [x, w, y].map(|dims| [dims[2], dims[3], dims[4]]);
        // Output p reads input p * step + offset - pad.
        let span = |dim: usize, tap: usize| {
            let (pad, step, offset) = (window.pads[dim], window.strides[dim], tap * window.dilations[dim]);
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
        let (batch, filters, groups, channels) = (x[0], w[0], window.groups, w[1]);
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
