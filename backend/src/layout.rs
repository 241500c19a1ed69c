//! Where the elements of a tensor lie in its storage: shape, strides and offset, all in elements. Pure arithmetic.
//!
//! A view (permute, expand, slice, flip, reshape where the strides allow it) is a new [`Layout`] over the same
//! storage. Strides are signed: a flipped dimension has a negative one, an expanded dimension has stride 0. The
//! offset is that of the element with all indices 0, which for a flipped view is not the lowest address.

use burn_backend::{Shape, Slice};
use smallvec::SmallVec;

/// Strides in elements, one per dimension.
pub(crate) type Strides = SmallVec<[i64; 6]>;

/// Shape, strides and offset of a tensor, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    strides: Strides,
    offset: i64,
}

/// The number of elements of `shape`, or `None` when it, or its size in bytes, does not fit into an `i64`.
///
/// A dimension of size 0 makes the product 0 whatever the others are.
pub(crate) fn checked_len(shape: &[usize], elem_bytes: usize) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let len = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let size_bytes = len.checked_mul(elem_bytes)?;
    i64::try_from(size_bytes).ok().map(|_| len)
}

/// Row-major strides of `shape`.
pub(crate) fn row_major(shape: &[usize]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(0, shape.len());
    let mut step = 1i64;
    for d in (0..shape.len()).rev() {
        strides[d] = step;
        step = step.wrapping_mul(shape[d].max(1) as i64);
    }
    strides
}

impl Layout {
    /// The row-major layout of `shape` from offset 0. The caller has checked its size.
    pub fn contiguous(shape: Shape) -> Self {
        let strides = row_major(shape.as_slice());
        Layout { shape, strides, offset: 0 }
    }

    pub(crate) fn new(shape: Shape, strides: Strides, offset: i64) -> Self {
        debug_assert_eq!(shape.num_dims(), strides.len());
        Layout { shape, strides, offset }
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The sizes of the dimensions.
    pub fn dims(&self) -> &[usize] {
        self.shape.as_slice()
    }

    /// The strides in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// The offset of the element with all indices 0, in elements.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.strides.len()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.dims().contains(&0)
    }

    /// Whether the elements lie without gaps in row-major order, from whatever offset.
    ///
    /// Strides of dimensions of size 1 do not count, and an empty tensor is contiguous.
    pub fn is_contiguous(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut step = 1i64;
        for (&size, &stride) in self.dims().iter().zip(&self.strides).rev() {
            if size != 1 {
                if stride != step {
                    return false;
                }
                step *= size as i64;
            }
        }
        true
    }

    /// The dimensions from the outermost to the innermost in memory: by the length of their strides, equal ones as they
    /// stand. Those of size 1, which have no place there, come first.
    pub(crate) fn memory_order(&self) -> SmallVec<[usize; 6]> {
        let mut order: SmallVec<[usize; 6]> = (0..self.rank()).collect();
        order.sort_by_key(|&d| if self.dims()[d] == 1 { (0, 0) } else { (1, -self.strides[d].abs()) });
        order
    }

    /// Whether elements share a place because a dimension repeats them.
    pub(crate) fn repeats(&self) -> bool {
        self.dims().iter().zip(&self.strides).any(|(&size, &stride)| size != 1 && stride == 0)
    }

    /// A layout of the same shape whose elements lie without gaps from offset 0 on, in the order of these; row-major where
    /// these have none because they repeat.
    pub(crate) fn packed(&self) -> Self {
        let mut packed = Layout::contiguous(self.shape.clone());
        if self.repeats() || self.is_contiguous() {
            return packed;
        }
        let mut step = 1i64;
        for d in self.memory_order().into_iter().rev() {
            packed.strides[d] = step;
            step *= self.dims()[d] as i64;
        }
        packed
    }

    /// Whether both have one shape, and lead from each element to the next alike, from whatever offset. Strides of
    /// dimensions of size 1 do not count.
    pub(crate) fn steps_as(&self, other: &Layout) -> bool {
        let mut dims = self.dims().iter().zip(self.strides.iter().zip(&other.strides));
        self.shape == other.shape && (self.is_empty() || dims.all(|(&size, (a, b))| size == 1 || a == b))
    }

    /// Whether the elements lie without gaps, in whatever order of the dimensions and from whatever offset.
    pub(crate) fn is_packed(&self) -> bool {
        self.is_contiguous() || self.steps_as(&self.packed())
    }

    /// The lowest and the highest offset that an element has, or `None` for an empty tensor.
    pub fn span(&self) -> Option<(i64, i64)> {
        if self.is_empty() {
            return None;
        }
        let (mut low, mut high) = (self.offset, self.offset);
        for (&size, &stride) in self.dims().iter().zip(&self.strides) {
            let reach = (size as i64 - 1) * stride;
            if reach < 0 { low += reach } else { high += reach }
        }
        Some((low, high))
    }

    /// Dimensions in the order of `axes`, each named once.
    pub fn permute(&self, axes: &[usize]) -> Option<Self> {
        if axes.len() != self.rank() {
            return None;
        }
        let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, axes.len());
        for &a in axes {
            if a >= axes.len() || std::mem::replace(&mut seen[a], true) {
                return None;
            }
        }
        let shape: Vec<usize> = axes.iter().map(|&a| self.dims()[a]).collect();
        let strides = axes.iter().map(|&a| self.strides[a]).collect();
        Some(Layout { shape: Shape::from(shape), strides, offset: self.offset })
    }

    /// Two dimensions exchanged.
    pub fn swap_dims(&self, a: usize, b: usize) -> Option<Self> {
        if a >= self.rank() || b >= self.rank() {
            return None;
        }
        let mut out = self.clone();
        out.shape.as_mut_slice().swap(a, b);
        out.strides.swap(a, b);
        Some(out)
    }

    /// Dimensions of size 1 stretched to those of `target`; new dimensions are added in front.
    pub fn expand(&self, target: &[usize]) -> Option<Self> {
        let strides = self.expanded_strides(target)?;
        Some(Layout { shape: Shape::from(target.to_vec()), strides, offset: self.offset })
    }

    /// The strides of [`Layout::expand`]: 0 in stretched dimensions.
    pub(crate) fn expanded_strides(&self, target: &[usize]) -> Option<Strides> {
        if self.dims() == target {
            return Some(self.strides.clone());
        }
        let extra = target.len().checked_sub(self.rank())?;
        let mut strides: Strides = SmallVec::from_elem(0, target.len());
        for d in 0..self.rank() {
            let (from, to) = (self.dims()[d], target[extra + d]);
            strides[extra + d] = match () {
                () if from == to => self.strides[d],
                () if from == 1 => 0,
                () => return None,
            };
        }
        Some(strides)
    }

    /// Dimensions reversed.
    pub fn flip(&self, axes: &[usize]) -> Option<Self> {
        let mut out = self.clone();
        for &d in axes {
            if d >= self.rank() {
                return None;
            }
            out.offset += (self.dims()[d].max(1) as i64 - 1) * out.strides[d];
            out.strides[d] = -out.strides[d];
        }
        Some(out)
    }

    /// A range of each of the first `slices.len()` dimensions. A negative step walks the range from its end, as in
    /// Burn. `None` when there are more slices than dimensions.
    pub fn slice(&self, slices: &[Slice]) -> Option<Self> {
        if slices.len() > self.rank() {
            return None;
        }
        let mut out = self.clone();
        for (d, slice) in slices.iter().enumerate() {
            let size = self.dims()[d];
            let range = slice.to_range(size);
            let len = slice.output_size(size);
            out.shape.as_mut_slice()[d] = len;
            if len > 0 {
                let first = if slice.step < 0 { range.end - 1 } else { range.start };
                out.offset += first as i64 * self.strides[d];
            }
            // With one element or none the stride is never used, and a huge step must not overflow.
            out.strides[d] = if len > 1 { self.strides[d] * slice.step as i64 } else { self.strides[d] };
        }
        Some(out)
    }

    /// A dimension's range `[start, start + len)`.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Self {
        debug_assert!(start + len <= self.dims()[dim]);
        let mut out = self.clone();
        out.shape.as_mut_slice()[dim] = len;
        out.offset += start as i64 * self.strides[dim];
        out
    }

    /// The same elements in row-major order under another shape, if that needs no copy.
    pub fn reshape(&self, target: &[usize]) -> Option<Self> {
        debug_assert_eq!(self.len(), target.iter().product::<usize>());
        let shape = Shape::from(target.to_vec());
        if self.is_empty() || self.is_contiguous() {
            return Some(Layout { strides: row_major(target), shape, offset: self.offset });
        }
        // Walk groups of source dimensions and groups of target dimensions that hold the same number of elements.
        // Inside a group, the source dimensions must merge into one.
        let source: SmallVec<[(usize, i64); 6]> =
            self.dims().iter().copied().zip(self.strides.iter().copied()).filter(|&(d, _)| d != 1).collect();
        let mut strides: Strides = SmallVec::from_elem(0, target.len());
        let (mut s, mut t) = (0, 0);
        while s < source.len() {
            let first = s;
            let mut from = source[s].0;
            let start = t;
            let mut to = 1;
            while to != from {
                if from < to {
                    s += 1;
                    from *= source.get(s)?.0;
                } else {
                    to *= target.get(t)?;
                    t += 1;
                }
            }
            for k in first..s {
                if source[k].1 != source[k + 1].1 * source[k + 1].0 as i64 {
                    return None;
                }
            }
            let mut step = source[s].1;
            for k in (start..t).rev() {
                strides[k] = step;
                step *= target[k] as i64;
            }
            s += 1;
        }
        Some(Layout { shape, strides, offset: self.offset })
    }

    /// Windows of `size` every `step` elements along `dim`; the window becomes a new last dimension.
    pub fn unfold(&self, dim: usize, size: usize, step: usize) -> Option<Self> {
        let len = *self.dims().get(dim)?;
        if step == 0 || size > len {
            return None;
        }
        let mut dims = self.dims().to_vec();
        dims[dim] = (len - size) / step + 1;
        dims.push(size);
        let mut strides = self.strides.clone();
        strides.push(self.strides[dim]);
        strides[dim] *= step as i64;
        Some(Layout { shape: Shape::from(dims), strides, offset: self.offset })
    }
}

/// The shape that two shapes broadcast to: sizes are equal or one of them is 1 (so 0 against 1 gives 0); missing
/// dimensions count as 1 in front.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Option<Shape> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], d: usize| (d + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    (0..rank)
        .map(|d| match (size(a, d), size(b, d)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect::<Option<Vec<_>>>()
        .map(Shape::from)
}

/// A loop nest over several operands at once: sizes, and for each operand a stride per loop. Outermost first.
///
/// Loops of size 1 are dropped, and neighbours that every operand walks as one are merged; so contiguous operands of
/// any shape end as a single loop of stride 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nest<const N: usize> {
    pub(crate) sizes: SmallVec<[usize; 8]>,
    pub(crate) strides: SmallVec<[[i64; N]; 8]>,
}

impl<const N: usize> Nest<N> {
    /// The nest that walks `shape` in row-major order; `strides[k]` are operand `k`'s.
    pub(crate) fn new(shape: &[usize], strides: [&[i64]; N]) -> Self {
        let mut nest: Nest<N> = Nest { sizes: SmallVec::new(), strides: SmallVec::new() };
        for d in 0..shape.len() {
            if shape[d] == 1 {
                continue;
            }
            let step: [i64; N] = std::array::from_fn(|k| strides[k][d]);
            match (nest.sizes.last_mut(), nest.strides.last_mut()) {
                (Some(outer), Some(outer_step))
                    if (0..N).all(|k| step[k].checked_mul(shape[d] as i64) == Some(outer_step[k])) =>
                {
                    *outer *= shape[d];
                    *outer_step = step;
                }
                _ => {
                    nest.sizes.push(shape[d]);
                    nest.strides.push(step);
                }
            }
        }
        if nest.sizes.is_empty() {
            nest.sizes.push(1);
            nest.strides.push([1; N]);
        }
        nest
    }

    /// Whether every index and every offset relative to an operand's start stays below 2^31.
    pub(crate) fn fits_u31(&self) -> bool {
        const LIMIT: i64 = i32::MAX as i64;
        let len = self.sizes.iter().try_fold(1i64, |n, &s| n.checked_mul(s as i64));
        let reach = |k: usize, negative: bool| {
            self.sizes
                .iter()
                .zip(&self.strides)
                .filter(|(_, st)| (st[k] < 0) == negative)
                .try_fold(0i64, |n, (&s, st)| n.checked_add((s as i64 - 1).checked_mul(st[k].abs())?))
        };
        len.is_some_and(|n| n <= LIMIT)
            && (0..N).all(|k| [false, true].into_iter().all(|neg| reach(k, neg).is_some_and(|r| r <= LIMIT)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::from(dims.to_vec()))
    }

    #[test]
    fn a_packed_layout_keeps_the_order_of_memory() {
        let channels_last = layout(&[2, 5, 7, 3]).permute(&[0, 3, 1, 2]).unwrap();
        assert!(channels_last.is_packed() && channels_last.packed() == channels_last);
        let later = channels_last.narrow(0, 1, 1);
        assert!(later.is_packed() && later.offset() > 0 && later.packed().offset() == 0);
        let gaps = channels_last.narrow(2, 1, 3).flip(&[3]).unwrap();
        assert!(!gaps.is_packed() && gaps.packed().is_packed());
        assert_eq!((gaps.packed().strides(), gaps.packed().offset()), (&[63, 1, 21, 3][..], 0));
        // A dimension of one element has any stride.
        let one = layout(&[4, 6]).permute(&[1, 0]).unwrap().reshape(&[6, 1, 4]).unwrap();
        assert!(one.is_packed());
        assert_eq!(one.memory_order().as_slice(), [1, 2, 0]);
        let windows = layout(&[10]).unfold(0, 4, 2).unwrap();
        assert!(windows.packed().is_contiguous() && !windows.is_packed());
        let repeated = layout(&[4, 1]).expand(&[4, 6]).unwrap().permute(&[1, 0]).unwrap();
        assert!(!repeated.is_packed() && repeated.packed().is_contiguous());
        let empty = layout(&[0, 3]).permute(&[1, 0]).unwrap();
        assert!(empty.packed().is_contiguous() && empty.is_packed());
    }

    /// Every element's offset, in row-major order of the indices: the definition that the rest is checked against.
    fn offsets(l: &Layout) -> Vec<i64> {
        let mut out = vec![l.offset()];
        for (&size, &stride) in l.dims().iter().zip(l.strides()) {
            out = out.iter().flat_map(|&o| (0..size as i64).map(move |i| o + i * stride)).collect();
        }
        out
    }

    #[test]
    fn shape_product_overflow_is_found() {
        assert_eq!(checked_len(&[usize::MAX, 2], 1), None);
        assert_eq!(checked_len(&[1 << 62], 4), None);
        assert_eq!(checked_len(&[usize::MAX, 0, 7], 8), Some(0));
        assert_eq!(checked_len(&[3, 5], 4), Some(15));
        assert_eq!(checked_len(&[], 4), Some(1));
    }

    #[test]
    fn contiguity_ignores_size_one_strides_and_includes_permutes() {
        assert!(layout(&[2, 3]).is_contiguous());
        assert!(!layout(&[2, 3]).permute(&[1, 0]).unwrap().is_contiguous());
        assert!(layout(&[1, 3]).permute(&[1, 0]).unwrap().is_contiguous());
        let sliced = layout(&[4, 8]).narrow(0, 1, 1).narrow(1, 2, 3);
        assert!(sliced.is_contiguous(), "one row, whatever its leftover stride");
        assert_eq!(sliced.offset(), 10);
        assert!(layout(&[0, 3]).permute(&[1, 0]).unwrap().is_contiguous());
    }

    #[test]
    fn views_address_the_elements_they_name() {
        let l = layout(&[2, 3, 4]);
        assert_eq!(offsets(&l.permute(&[2, 0, 1]).unwrap())[..4], [0, 4, 8, 12]);
        assert_eq!(offsets(&l.flip(&[2]).unwrap())[..4], [3, 2, 1, 0]);
        let s =
            l.slice(&[Slice::new(1, None, 1), Slice::new(0, None, -2), Slice::new(1, Some(3), 1)]).unwrap();
        assert_eq!(s.dims(), [1, 2, 2]);
        assert_eq!(offsets(&s), [21, 22, 13, 14]);
        let e = layout(&[3, 1]).expand(&[2, 3, 2]).unwrap();
        assert_eq!(offsets(&e), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
        let u = layout(&[5]).unfold(0, 3, 2).unwrap();
        assert_eq!(offsets(&u), [0, 1, 2, 2, 3, 4]);
    }

    #[test]
    fn bad_views_are_refused() {
        let l = layout(&[2, 3]);
        assert_eq!(l.permute(&[0, 0]), None);
        assert_eq!(l.permute(&[0]), None);
        assert_eq!(l.permute(&[0, 2]), None);
        assert_eq!(l.expand(&[4, 3]), None);
        assert_eq!(l.expand(&[3]), None);
        assert_eq!(l.flip(&[2]), None);
        assert_eq!(l.swap_dims(0, 2), None);
        assert_eq!(l.unfold(0, 3, 1), None);
        assert_eq!(l.slice(&[Slice::full(), Slice::full(), Slice::full()]), None);
    }

    #[test]
    fn empty_slices_stay_inside_the_storage() {
        let l = layout(&[4]).slice(&[Slice::new(4, None, 1)]).unwrap();
        assert_eq!((l.len(), l.offset(), l.span()), (0, 0, None));
        let l = layout(&[4]).slice(&[Slice::new(3, Some(1), 1)]).unwrap();
        assert!(l.is_empty());
    }

    #[test]
    fn reshape_without_copy_keeps_every_offset() {
        let views = [
            layout(&[4, 6]),
            layout(&[4, 6]).permute(&[1, 0]).unwrap(),
            layout(&[4, 6]).narrow(1, 0, 3),
            layout(&[2, 2, 6]).narrow(2, 1, 4),
            layout(&[6, 1, 4]).permute(&[2, 1, 0]).unwrap(),
            layout(&[4, 1]).expand(&[4, 6]).unwrap(),
            layout(&[8, 3]).flip(&[0]).unwrap(),
        ];
        let mut copied = 0;
        for l in &views {
            let n = l.len();
            let targets = [
                vec![n],
                vec![2, n / 2],
                vec![n / 3, 3],
                vec![1, n, 1],
                vec![2, n / 12, 6],
                vec![n / 4, 2, 2],
            ];
            for t in targets.iter().filter(|t| t.iter().product::<usize>() == n) {
                match l.reshape(t) {
                    Some(r) => assert_eq!(offsets(&r), offsets(l), "{l:?} as {t:?}"),
                    None => copied += 1,
                }
            }
        }
        assert!(copied > 0, "some of these need a copy");
        let split = layout(&[6, 4]).permute(&[1, 0]).unwrap().reshape(&[4, 2, 3]).unwrap();
        assert_eq!(split.strides(), [1, 12, 4]);
    }

    #[test]
    fn span_covers_flipped_views() {
        let l = layout(&[2, 3]).flip(&[0, 1]).unwrap();
        assert_eq!(l.span(), Some((0, 5)));
        assert_eq!(l.offset(), 5);
    }

    #[test]
    fn broadcasting_takes_zero_over_one() {
        let shape = |a: &[usize], b: &[usize]| broadcast(a, b).map(|s| s.to_vec());
        assert_eq!(shape(&[0], &[1]), Some(vec![0]));
        assert_eq!(shape(&[1], &[0]), Some(vec![0]));
        assert_eq!(shape(&[3, 1], &[4]), Some(vec![3, 4]));
        assert_eq!(shape(&[3], &[4]), None);
        assert_eq!(shape(&[0], &[2]), None);
    }

    #[test]
    fn nests_merge_what_all_operands_walk_as_one() {
        let shape = [2, 1, 3, 4];
        let c = layout(&shape);
        let nest = Nest::new(&shape, [c.strides(), c.strides()]);
        assert_eq!((nest.sizes.as_slice(), nest.strides.as_slice()), (&[24][..], &[[1, 1]][..]));
        let bias = layout(&[4]).expand(&shape).unwrap();
        let nest = Nest::new(&shape, [c.strides(), bias.strides()]);
        assert_eq!(nest.sizes.as_slice(), [6, 4]);
        assert_eq!(nest.strides.as_slice(), [[4, 0], [1, 1]]);
        let scalar = layout(&[1]).expand(&shape).unwrap();
        let nest = Nest::new(&shape, [c.strides(), scalar.strides()]);
        assert_eq!((nest.sizes.as_slice(), nest.strides.as_slice()), (&[24][..], &[[1, 0]][..]));
        assert_eq!(Nest::new(&[], [&[]]).sizes.as_slice(), [1]);
    }

    #[test]
    fn large_nests_ask_for_64_bit_indices() {
        let fits = |dims: &[usize], strides: &[i64]| Nest::new(dims, [strides]).fits_u31();
        assert!(fits(&[1 << 30], &[1]));
        assert!(!fits(&[1 << 31], &[1]));
        assert!(!fits(&[1 << 16, 2], &[1 << 16, 1]));
        assert!(!fits(&[1 << 16, 2], &[-(1 << 16), 1]));
        assert!(!fits(&[2, 2], &[i64::MAX, 1]));
        assert!(!fits(&[usize::MAX / 4], &[0]));
    }
}
