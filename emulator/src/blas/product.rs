//! One (batched) product on the host: checks of what it touches, then a blocked multiplication.

use crate::operands::{Input, Kind, Ranges, Real, Touched, Workspace, sorted};

/// The call's name in faults.
const CALL: &str = "cublasLtMatmul";

/// A column-major matrix; strides are in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matrix {
    pub(super) kind: Kind,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) ld: u64,
    /// From one matrix of the batch to the next.
    pub(super) stride: i64,
}

/// Matrices in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) at: u64,
    pub(super) matrix: Matrix,
    pub(super) count: u64,
}

/// A vector over the rows of the result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bias {
    pub(super) at: u64,
    pub(super) kind: Kind,
    pub(super) stride: i64,
}

/// `d = alpha a b + beta c + bias`.
#[derive(Debug)]
pub(super) struct Product {
    pub(super) device: u32,
    pub(super) tf32: bool,
    /// Whether two halves of the inner dimension are summed apart.
    pub(super) split: bool,
    pub(super) transposed: [bool; 2],
    pub(super) a: Batch,
    pub(super) b: Batch,
    pub(super) c: Option<Batch>,
    pub(super) d: Batch,
    pub(super) bias: Option<Bias>,
    pub(super) alpha: f64,
    pub(super) beta: f64,
    pub(super) workspace: Workspace,
}

impl Batch {
    /// The address of one matrix.
    fn matrix_at(&self, index: u64) -> u64 {
        let elements = self.matrix.stride.wrapping_mul(index as i64);
        self.at.wrapping_add_signed(elements.wrapping_mul(self.matrix.kind.bytes() as i64))
    }

    /// Start and bytes of all that belongs to the matrices, by address; the gaps between columns do not.
    fn ranges(&self) -> Ranges {
        let Matrix { kind, rows, cols, ld, stride } = self.matrix;
        let matrices = if stride == 0 { 1 } else { self.count };
        let mut ranges = Vec::new();
        for index in 0..matrices {
            let at = self.matrix_at(index);
            if ld == rows || cols == 1 {
                ranges.push((at, rows * cols * kind.bytes()));
            } else {
                ranges.extend((0..cols).map(|col| (at + col * ld * kind.bytes(), rows * kind.bytes())));
            }
        }
        sorted(ranges)
    }
}

impl Product {
    /// Checks everything that the product touches, then computes it.
    pub(super) fn run(&self) -> Result<(), String> {
        let (m, n) = (self.d.matrix.rows as usize, self.d.matrix.cols as usize);
        let k = if self.transposed[0] { self.a.matrix.rows } else { self.a.matrix.cols } as usize;
        let input = |name, ranges| Input { name, ranges, in_place: false };
        let mut inputs = vec![input("A", self.a.ranges()), input("B", self.b.ranges())];
        if let Some(c) = &self.c {
            inputs.push(Input { name: "C", ranges: c.ranges(), in_place: c.at == self.d.at });
        }
        if let Some(bias) = &self.bias {
            let rows = Matrix { kind: bias.kind, rows: m as u64, cols: 1, ld: m as u64, stride: bias.stride };
            inputs.push(input("bias", Batch { at: bias.at, matrix: rows, count: self.d.count }.ranges()));
        }
        let call = format!("{CALL} ({m}x{n}x{k})");
        let output = ("D", self.d.ranges());
        Touched { call, device: self.device, inputs, output, workspace: self.workspace }.check()?;
        // SAFETY: all ranges were found to lie in live allocations, and addresses are multiples of the element size.
        unsafe {
            match self.a.matrix.kind {
                Kind::F64 => self.compute::<f64>(m, n, k),
                _ => self.compute::<f32>(m, n, k),
            }
        }
        Ok(())
    }

    /// # Safety
    /// All operands can be accessed and are aligned.
    unsafe fn compute<T: Tiles>(&self, m: usize, n: usize, k: usize) {
        // Element (row, inner) of the first and (inner, column) of the second factor.
        let steps = |matrix: &Matrix, turned: bool| {
            if turned { (matrix.ld as usize, 1) } else { (1, matrix.ld as usize) }
        };
        let (a_outer, a_inner) = steps(&self.a.matrix, self.transposed[0]);
        let (b_inner, b_outer) = steps(&self.b.matrix, self.transposed[1]);
        let halves = if self.split && k > 1 { vec![(0, k / 2), (k / 2, k)] } else { vec![(0, k)] };
        let (mut a, mut b) = (Vec::<T>::new(), Vec::<T>::new());
        let tiles = m.div_ceil(ROWS) * n.div_ceil(COLS);
        let mut sums = vec![T::ZERO; tiles * TILE];
        let mut part = vec![T::ZERO; if halves.len() > 1 { tiles * TILE } else { 0 }];
        for index in 0..self.d.count {
            let packed = |batch: &Batch| index > 0 && batch.matrix.stride == 0;
            if !packed(&self.a) {
                // SAFETY: the caller vouches for the operand.
                unsafe { self.pack(&mut a, &self.a, index, (m, a_outer), (k, a_inner), ROWS) };
            }
            if !packed(&self.b) {
                // SAFETY: as above.
                unsafe { self.pack(&mut b, &self.b, index, (n, b_outer), (k, b_inner), COLS) };
            }
            for (half, &(from, to)) in halves.iter().enumerate() {
                let into = if half == 0 { &mut sums } else { &mut part };
                into.fill(T::ZERO);
                multiply(&a, &b, (m, n, k), (from, to), into);
            }
            for (sum, part) in sums.iter_mut().zip(&part) {
                *sum = *sum + *part;
            }
            // SAFETY: as above.
            unsafe { self.finish(&sums, index, m, n) };
        }
    }

    /// Copies a factor to panels of `width` rows (or columns): all inner indices of a panel one after the other.
    ///
    /// # Safety
    /// The operand can be read and is aligned.
    unsafe fn pack<T: Real>(
        &self,
        into: &mut Vec<T>,
        from: &Batch,
        index: u64,
        (outer, outer_step): (usize, usize),
        (inner, inner_step): (usize, usize),
        width: usize,
    ) {
        into.clear();
        into.resize(outer.div_ceil(width) * width * inner, T::ZERO);
        let at = from.matrix_at(index);
        let kind = from.matrix.kind;
        for (panel, values) in into.chunks_exact_mut(width * inner).enumerate() {
            let first = panel * width;
            let some = width.min(outer - first);
            for (k, row) in values.chunks_exact_mut(width).enumerate() {
                for (i, value) in row[..some].iter_mut().enumerate() {
                    // SAFETY: the caller vouches for the operand, of which this is an element.
                    *value = unsafe { T::load(kind, at, (first + i) * outer_step + k * inner_step) };
                }
            }
        }
        if self.tf32 {
            into.iter_mut().for_each(|value| *value = value.tf32());
        }
    }

    /// Scales, adds and stores one matrix of the result.
    ///
    /// # Safety
    /// Result, C and bias can be accessed and are aligned.
    unsafe fn finish<T: Real>(&self, sums: &[T], index: u64, m: usize, n: usize) {
        let (alpha, beta) = (T::from_f64(self.alpha), T::from_f64(self.beta));
        let d_at = self.d.matrix_at(index);
        let panels = m.div_ceil(ROWS);
        for col in 0..n {
            for row in 0..m {
                let tile = col / COLS * panels + row / ROWS;
                let mut value = alpha * sums[tile * TILE + col % COLS * ROWS + row % ROWS];
                if let Some(c) = &self.c {
                    let element = col * c.matrix.ld as usize + row;
                    // SAFETY: the caller vouches for the operand, of which this is an element.
                    value = value + beta * unsafe { T::load(c.matrix.kind, c.matrix_at(index), element) };
                }
                if let Some(bias) = &self.bias {
                    let bytes = bias.stride.wrapping_mul(index as i64) * bias.kind.bytes() as i64;
                    // SAFETY: as above.
                    value = value + unsafe { T::load(bias.kind, bias.at.wrapping_add_signed(bytes), row) };
                }
                // SAFETY: as above.
                unsafe { value.store(self.d.matrix.kind, d_at, col * self.d.matrix.ld as usize + row) };
            }
        }
    }
}

/// A tile of the result: rows of the first factor's panels, columns of the second's.
const ROWS: usize = 16;
const COLS: usize = 6;
const TILE: usize = ROWS * COLS;
/// Inner indices and panels that stay in the caches.
const INNER_BLOCK: usize = 256;
const PANEL_BLOCK: usize = 8;

/// Arithmetic with a multiplication of tiles of its own.
trait Tiles: Real {
    /// [`add_tile`] with the processor's vectors: fused, so that the sum is rounded once.
    ///
    /// # Safety
    /// The processor has AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    unsafe fn add_tile_fused(a: &[[Self; ROWS]], b: &[[Self; COLS]], tile: &mut [[Self; ROWS]]);
}

impl Tiles for f32 {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn add_tile_fused(a: &[[Self; ROWS]], b: &[[Self; COLS]], tile: &mut [[Self; ROWS]]) {
        use std::arch::x86_64::*;
        // Two vectors of each column at a time: as many sums as there are registers for.
        for part in (0..ROWS).step_by(2 * 8) {
            // SAFETY: every pointer leads to 8 elements of a row of `ROWS`.
            unsafe {
                let mut sums = [[_mm256_loadu_ps(tile[0].as_ptr()); 2]; COLS];
                for j in 0..COLS {
                    let column = tile[j].as_ptr().add(part);
                    sums[j] = [_mm256_loadu_ps(column), _mm256_loadu_ps(column.add(8))];
                }
                for (a, b) in a.iter().zip(b) {
                    let column = a.as_ptr().add(part);
                    let left = [_mm256_loadu_ps(column), _mm256_loadu_ps(column.add(8))];
                    for j in 0..COLS {
                        let right = _mm256_set1_ps(b[j]);
                        sums[j] = [
                            _mm256_fmadd_ps(left[0], right, sums[j][0]),
                            _mm256_fmadd_ps(left[1], right, sums[j][1]),
                        ];
                    }
                }
                for j in 0..COLS {
                    let column = tile[j].as_mut_ptr().add(part);
                    _mm256_storeu_ps(column, sums[j][0]);
                    _mm256_storeu_ps(column.add(8), sums[j][1]);
                }
            }
        }
    }
}

impl Tiles for f64 {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn add_tile_fused(a: &[[Self; ROWS]], b: &[[Self; COLS]], tile: &mut [[Self; ROWS]]) {
        use std::arch::x86_64::*;
        // Two vectors of each column at a time: as many sums as there are registers for.
        for part in (0..ROWS).step_by(2 * 4) {
            // SAFETY: every pointer leads to 4 elements of a row of `ROWS`.
            unsafe {
                let mut sums = [[_mm256_loadu_pd(tile[0].as_ptr()); 2]; COLS];
                for j in 0..COLS {
                    let column = tile[j].as_ptr().add(part);
                    sums[j] = [_mm256_loadu_pd(column), _mm256_loadu_pd(column.add(4))];
                }
                for (a, b) in a.iter().zip(b) {
                    let column = a.as_ptr().add(part);
                    let left = [_mm256_loadu_pd(column), _mm256_loadu_pd(column.add(4))];
                    for j in 0..COLS {
                        let right = _mm256_set1_pd(b[j]);
                        sums[j] = [
                            _mm256_fmadd_pd(left[0], right, sums[j][0]),
                            _mm256_fmadd_pd(left[1], right, sums[j][1]),
                        ];
                    }
                }
                for j in 0..COLS {
                    let column = tile[j].as_mut_ptr().add(part);
                    _mm256_storeu_pd(column, sums[j][0]);
                    _mm256_storeu_pd(column.add(4), sums[j][1]);
                }
            }
        }
    }
}

/// Adds the products of inner indices `from..to` to the tiles. Factors are packed; tiles are in order of columns, each
/// column-major.
fn multiply<T: Tiles>(
    a: &[T],
    b: &[T],
    (m, n, k): (usize, usize, usize),
    (from, to): (usize, usize),
    tiles: &mut [T],
) {
    let (row_panels, col_panels) = (m.div_ceil(ROWS), n.div_ceil(COLS));
    let (a, b) = (a.as_chunks::<ROWS>().0, b.as_chunks::<COLS>().0);
    let tiles = tiles.as_chunks_mut::<ROWS>().0;
    #[cfg(target_arch = "x86_64")]
    let fused = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
    for start in (from..to).step_by(INNER_BLOCK) {
        let end = to.min(start + INNER_BLOCK);
        for first in (0..row_panels).step_by(PANEL_BLOCK) {
            for col in 0..col_panels {
                let right = &b[col * k + start..col * k + end];
                for row in first..row_panels.min(first + PANEL_BLOCK) {
                    let left = &a[row * k + start..row * k + end];
                    let tile = &mut tiles[(col * row_panels + row) * COLS..][..COLS];
                    #[cfg(target_arch = "x86_64")]
                    if fused {
                        // SAFETY: the processor was asked.
                        unsafe { T::add_tile_fused(left, right, tile) };
                        continue;
                    }
                    add_tile(left, right, tile);
                }
            }
        }
    }
}

fn add_tile<T: Real>(a: &[[T; ROWS]], b: &[[T; COLS]], tile: &mut [[T; ROWS]]) {
    for (a, b) in a.iter().zip(b) {
        for (column, &right) in tile.iter_mut().zip(b) {
            for (sum, &left) in column.iter_mut().zip(a) {
                *sum = *sum + left * right;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums<T: Tiles>(fused: bool) -> Vec<f64>
    where
        f64: From<T>,
    {
        let value = |k: usize| T::from_f64((k * 37 % 15) as f64 - 6.0);
        let a: Vec<_> = (0..50).map(|l| std::array::from_fn(|i| value(l * ROWS + i))).collect();
        let b: Vec<_> = (0..50).map(|l| std::array::from_fn(|j| value(l * COLS + j + 5))).collect();
        let mut tile: [[T; ROWS]; COLS] = std::array::from_fn(|j| std::array::from_fn(|i| value(i * j)));
        if fused {
            // SAFETY: the caller asked the processor.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                T::add_tile_fused(&a, &b, &mut tile);
            }
        } else {
            add_tile(&a, &b, &mut tile);
        }
        tile.iter().flatten().map(|&sum| sum.into()).collect()
    }

    #[test]
    fn both_kinds_of_tiles_agree() {
        assert_eq!(sums::<f32>(false), sums::<f64>(false));
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            assert_eq!(sums::<f32>(true), sums::<f32>(false));
            assert_eq!(sums::<f64>(true), sums::<f64>(false));
        }
    }
}
