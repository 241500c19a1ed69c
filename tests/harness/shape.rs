//! Random shapes, and random views that end in a given shape.

use burn_backend::tensor::Device;
use burn_backend::{Backend, Slice};

use super::{Rng, Value};

/// Sizes around the widths of vector accesses, warps and blocks.
const SIZES: [usize; 23] =
    [1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 63, 65, 127, 129, 255, 256, 257, 1025];

/// A shape of 1 to 6 dimensions: mostly small, sometimes empty, sometimes beyond one block or 2^16 rows.
pub(crate) fn any(rng: &mut Rng, large: bool) -> Vec<usize> {
    let rank = rng.part(|rng| rng.range(1, 6));
    of_rank(rng, rank, large)
}

/// As [`any`] with this many dimensions.
pub(crate) fn of_rank(rng: &mut Rng, rank: usize, large: bool) -> Vec<usize> {
    rng.part(|rng| {
        if rng.one_in(32) && large {
            let mut shape = vec![1; rank];
            match rank {
                1 => shape[0] = rng.pick(&[65_537, 131_075, 200_003]),
                _ => {
                    let d = rng.below(rank - 1);
                    shape[d] = rng.pick(&[65_537, 65_539]);
                    shape[rank - 1] = rng.range(1, 3);
                }
            }
            return shape;
        }
        let limit = if rng.one_in(16) && large { 60_000 } else { 2_000 };
        let (empty, mut len) = (rng.one_in(20), 1);
        let mut shape = vec![1; rank];
        for d in rng.permutation(rank) {
            let fits: Vec<usize> = SIZES.iter().copied().filter(|s| s * len <= limit).collect();
            shape[d] = rng.pick(&fits);
            len *= shape[d];
        }
        if empty {
            let d = rng.below(rank);
            shape[d] = 0;
        }
        shape
    })
}

/// A shape with one dimension that no block covers, and which it is.
pub(crate) fn long(rng: &mut Rng) -> (Vec<usize>, usize) {
    let n = rng.pick(&[4_097, 16_391, 33_003, 70_001]);
    match rng.below(4) {
        0 => (vec![n], 0),
        1 => (vec![2, n], 1),
        2 => (vec![n, 2], 0),
        _ => (vec![2, n, 3], 1),
    }
}

/// A shape of more dimensions than one launch has loops.
pub(crate) fn many(rng: &mut Rng) -> Vec<usize> {
    rng.part(|rng| {
        let mut shape = vec![2; rng.range(9, 10)];
        let d = rng.below(shape.len());
        shape[d] = 3;
        shape
    })
}

/// A shape without empty dimensions.
pub(crate) fn filled(rng: &mut Rng, rank: usize, large: bool) -> Vec<usize> {
    of_rank(rng, rank, large).into_iter().map(|d| d.max(1)).collect()
}

/// Two shapes that broadcast to the first result.
pub(crate) fn broadcast_pair(rng: &mut Rng, large: bool) -> (Vec<usize>, Vec<usize>, Vec<usize>) {
    let out = any(rng, large);
    let (mut a, mut b) = (out.clone(), out.clone());
    rng.part(|rng| {
        if rng.one_in(2) {
            for d in 0..out.len() {
                match rng.below(4) {
                    2 => a[d] = 1,
                    3 => b[d] = 1,
                    _ => {}
                }
            }
        }
    });
    let out = a.iter().zip(&b).map(|(&x, &y)| if x == 1 { y } else { x }).collect();
    (out, a, b)
}

/// One view.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Permute(Vec<usize>),
    Slice(Vec<Slice>),
    Flip(Vec<usize>),
    Expand(Vec<usize>),
    Reshape(Vec<usize>),
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Permute(axes) => write!(f, "permute {axes:?}"),
            Step::Flip(axes) => write!(f, "flip {axes:?}"),
            Step::Expand(shape) => write!(f, "expand {shape:?}"),
            Step::Reshape(shape) => write!(f, "reshape {shape:?}"),
            Step::Slice(slices) => {
                let one = |s: &Slice| {
                    let end = s.end.map(|end| end.to_string()).unwrap_or_default();
                    let step = if s.step == 1 { String::new() } else { format!(" by {}", s.step) };
                    format!("{}..{end}{step}", s.start)
                };
                write!(f, "slice [{}]", slices.iter().map(one).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// A chain of views, in the order they are applied.
pub(crate) type Views = Vec<Step>;

/// Applies the chain with the backend's own methods.
pub(crate) fn apply<B: Backend>(mut value: Value<B>, views: &Views) -> Value<B> {
    for step in views {
        value = match step {
            Step::Permute(axes) => value.permute(axes),
            Step::Slice(slices) => value.slice(slices),
            Step::Flip(axes) => value.flip(axes),
            Step::Expand(shape) => value.expand(shape),
            Step::Reshape(shape) => value.reshape(shape),
        };
    }
    value
}

/// A random chain that ends in `shape`, and the shape that it starts from. Often there is no view at all.
pub(crate) fn views_to(rng: &mut Rng, shape: &[usize]) -> (Vec<usize>, Views) {
    let (mut base, mut views) = (shape.to_vec(), Views::new());
    for _ in 0..rng.below(4) {
        let Some((before, step)) = rng.part(|rng| step_to(rng, &base)) else { continue };
        if before.iter().product::<usize>() > 4 * shape.iter().product::<usize>() + 4_096 {
            continue;
        }
        base = before;
        views.push(step);
    }
    views.reverse();
    (base, views)
}

/// One view whose result has shape `to`, and the shape that it is a view of; `None` if it would change nothing.
fn step_to(rng: &mut Rng, to: &[usize]) -> Option<(Vec<usize>, Step)> {
    let rank = to.len();
    Some(match rng.below(6) {
        0 => {
            let axes = rng.permutation(rank);
            if axes.is_sorted() {
                return None;
            }
            let mut from = vec![0; rank];
            for (k, &a) in axes.iter().enumerate() {
                from[a] = to[k];
            }
            (from, Step::Permute(axes))
        }
        1 => {
            let axes: Vec<usize> = (0..rank).filter(|_| rng.one_in(2)).collect();
            if axes.is_empty() {
                return None;
            }
            (to.to_vec(), Step::Flip(axes))
        }
        2 => {
            let mut from = to.to_vec();
            let d = rng.below(rank);
            if from[d] == 1 {
                return None;
            }
            from[d] = 1;
            (from, Step::Expand(to.to_vec()))
        }
        3 if rank < 6 => {
            // One dimension more, of size 1 or split off from another.
            let mut from = to.to_vec();
            let d = rng.below(rank);
            match (2..=7).find(|k| to[d] > 0 && to[d].is_multiple_of(*k)) {
                Some(k) if rng.one_in(2) => {
                    from[d] /= k;
                    from.insert(d + 1, k);
                }
                _ => from.insert(d, 1),
            }
            (from, Step::Reshape(to.to_vec()))
        }
        _ => {
            let (mut from, mut slices) = (to.to_vec(), Vec::new());
            for size in &mut from {
                let (start, tail) = (rng.below(4), rng.below(3));
                let step = rng.pick(&[1, 1, 1, 1, 2, 3, -1, -2]);
                let step = if *size == 0 { 1 } else { step };
                let reach = size.saturating_sub(1) * isize::unsigned_abs(step) + (*size).min(1);
                slices.push(Slice::new(start as isize, Some((start + reach) as isize), step));
                *size = start + reach + tail;
            }
            if from == to && slices.iter().all(|s| s.step == 1) {
                return None;
            }
            (from, Step::Slice(slices))
        }
    })
}

/// Reads a value through a chain of views by index arithmetic alone, to check the generator.
pub(crate) fn index_through(views: &Views, base: &[usize], shape: &[usize], at: &[usize]) -> Vec<usize> {
    let mut shapes = vec![base.to_vec()];
    for step in views {
        let last = &shapes[shapes.len() - 1];
        shapes.push(match step {
            Step::Permute(axes) => axes.iter().map(|&a| last[a]).collect(),
            Step::Flip(_) => last.clone(),
            Step::Expand(to) | Step::Reshape(to) => to.clone(),
            Step::Slice(slices) => slices.iter().zip(last).map(|(s, &n)| s.output_size(n)).collect(),
        });
    }
    assert_eq!(shapes[shapes.len() - 1], shape, "the chain {views:?} ends in another shape");
    let mut at = at.to_vec();
    for (k, step) in views.iter().enumerate().rev() {
        let from = &shapes[k];
        at = match step {
            Step::Permute(axes) => {
                let mut before = vec![0; at.len()];
                for (i, &a) in axes.iter().enumerate() {
                    before[a] = at[i];
                }
                before
            }
            Step::Flip(axes) => {
                (0..at.len()).map(|d| if axes.contains(&d) { from[d] - 1 - at[d] } else { at[d] }).collect()
            }
            Step::Expand(_) => (0..at.len()).map(|d| if from[d] == 1 { 0 } else { at[d] }).collect(),
            Step::Reshape(to) => unravel(ravel(&at, to), from),
            Step::Slice(slices) => (0..at.len())
                .map(|d| {
                    let (start, end) = (slices[d].start, slices[d].end.expect("ranges have ends"));
                    let first = if slices[d].step < 0 { end - 1 } else { start };
                    (first + at[d] as isize * slices[d].step) as usize
                })
                .collect(),
        };
    }
    at
}

/// The row-major position of an index.
pub(crate) fn ravel(at: &[usize], shape: &[usize]) -> usize {
    at.iter().zip(shape).fold(0, |n, (&i, &size)| n * size + i)
}

/// The index at a row-major position.
pub(crate) fn unravel(mut position: usize, shape: &[usize]) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        at[d] = position % shape[d].max(1);
        position /= shape[d].max(1);
    }
    at
}

/// The device of a backend that tests use.
pub(crate) fn device<B: Backend>() -> Device<B> {
    Device::<B>::default()
}
