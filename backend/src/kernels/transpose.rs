//! Launcher of the transposing copy (`transpose.cu`): when it is taken, the tile, and the packs of both sides.

#[cfg(test)]
use super::gate::Instance;
use super::{Def, KernelSpec, kernel_file};
use crate::driver::launch::{FastDiv, Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::Nest;
use crate::tensor::CudaTensor;

kernel_file!(TRANSPOSE, "transpose.cu");

const THREADS: u32 = 256;
const MAX_OUTER: usize = 6;
/// Neither side of a matrix is shorter: below that a row is less than a sector of 32 bytes in most dtypes, which the
/// elementwise kernel's neighbours find in the cache.
const SIDE_MIN: usize = 8;
/// A tile is filled to this part at least, on average. A block takes about as long for an empty tile as for a full one, so
/// that emptier ones move no more than the elementwise kernel does.
const FILLED_MIN: usize = 8;

/// Mirrors `Transpose` in transpose.cu: innermost outer loop first.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct TransposeArg {
    x: u64,
    y: u64,
    out_y: i64,
    in_x: i64,
    tiles_x: FastDiv,
    tiles_y: FastDiv,
    outer: u32,
    size: [FastDiv; MAX_OUTER],
    out_outer: [i64; MAX_OUTER],
    in_outer: [i64; MAX_OUTER],
}

kernel_arg!(TransposeArg);

/// Elements of a tile along x and y. A row of the target has 128 bytes, which fill the banks of shared memory once and are
/// whole lines; a row of the source has as many, and 64 elements at least, so that each thread has 32 bytes or more on the
/// way: 64 KiB in a multiprocessor that is full of threads.
fn tile(bytes: usize) -> (usize, usize) {
    (128 / bytes, (128 / bytes).max(64))
}

/// A copy as matrices to be transposed, which the outer loops enumerate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    /// The loop along which the target's elements are neighbours, and that of the source's.
    x: usize,
    y: usize,
    /// Elements per load along y, and per store along x.
    vl: usize,
    vs: usize,
    tiles_x: u32,
    tiles_y: u32,
    /// Tiles in all.
    blocks: u32,
}

/// How to copy `bytes` per element from `nest`'s second operand to its first, at these addresses; `None` where the
/// elementwise kernel is the better one: where no two loops are to be exchanged, or they are too short.
fn plan(nest: &Nest<2>, bytes: usize, out: u64, from: u64) -> Option<Plan> {
    let unit = |k: usize| nest.strides.iter().position(|s| s[k] == 1);
    let (x, y) = (unit(0)?, unit(1)?);
    // A source that repeats one element along x (stride 0) is read with packs of y by the elementwise kernel.
    if x == y || [0, 1].contains(&nest.strides[x][1]) || nest.sizes.len() > MAX_OUTER + 2 {
        return None;
    }
    let (size_x, size_y) = (nest.sizes[x], nest.sizes[y]);
    let (tile_x, tile_y) = tile(bytes);
    let (tiles_x, tiles_y) = (size_x.div_ceil(tile_x), size_y.div_ceil(tile_y));
    let filled = (size_x * size_y) as f64 / (tiles_x * tile_x * tiles_y * tile_y) as f64;
    if size_x.min(size_y) < SIDE_MIN || filled * (FILLED_MIN as f64) < 1.0 {
        return None;
    }
    let outer = (0..nest.sizes.len()).filter(|&d| d != x && d != y).map(|d| nest.sizes[d]);
    let tiles = outer.chain([tiles_x, tiles_y]).try_fold(1usize, |n, size| n.checked_mul(size))?;
    let blocks = u32::try_from(tiles).ok().filter(|&n| n < 1 << 31)?;
    // The widest pack of up to 16 bytes whose multiples are all that lead to one on operand `k`: its address, the size along
    // its rows, and the strides of the other loops.
    let pack = |k: usize, along: usize, address: u64| {
        let mut v = 16 / bytes;
        let fits = |v: usize| {
            nest.sizes[along].is_multiple_of(v)
                && address.is_multiple_of((v * bytes) as u64)
                && nest.strides.iter().enumerate().all(|(d, s)| d == along || s[k] % v as i64 == 0)
        };
        while v > 1 && !fits(v) {
            v /= 2;
        }
        v
    };
    Some(Plan {
        x,
        y,
        vl: pack(1, y, from),
        vs: pack(0, x, out),
        tiles_x: tiles_x as u32,
        tiles_y: tiles_y as u32,
        blocks,
    })
}

/// The macros of an instance.
fn defs(bytes: usize, vl: usize, vs: usize) -> [(&'static str, Def); 7] {
    let (tile_x, tile_y) = tile(bytes);
    let unsigned = match bytes {
        1 => Elem::U8,
        2 => Elem::U16,
        4 => Elem::U32,
        _ => Elem::U64,
    };
    [
        ("T", Def::Type(unsigned)),
        ("UNIT", Def::Type(if bytes == 8 { Elem::U64 } else { Elem::U32 })),
        ("ROWS", Def::Int((4 / bytes).max(1) as i64)),
        ("VL", Def::Int(vl as i64)),
        ("VS", Def::Int(vs as i64)),
        ("TILE_X", Def::Int(tile_x as i64)),
        ("TILE_Y", Def::Int(tile_y as i64)),
    ]
}

fn arg(nest: &Nest<2>, plan: &Plan) -> TransposeArg {
    let mut arg = TransposeArg {
        x: nest.sizes[plan.x] as u64,
        y: nest.sizes[plan.y] as u64,
        out_y: nest.strides[plan.y][0],
        in_x: nest.strides[plan.x][1],
        tiles_x: FastDiv::new(plan.tiles_x),
        tiles_y: FastDiv::new(plan.tiles_y),
        outer: 0,
        size: [FastDiv::default(); MAX_OUTER],
        out_outer: [0; MAX_OUTER],
        in_outer: [0; MAX_OUTER],
    };
    for d in (0..nest.sizes.len()).rev().filter(|&d| d != plan.x && d != plan.y) {
        let at = arg.outer as usize;
        // Fewer than 2^31: `plan` has counted the blocks.
        arg.size[at] = FastDiv::new(nest.sizes[d] as u32);
        [arg.out_outer[at], arg.in_outer[at]] = nest.strides[d];
        arg.outer += 1;
    }
    arg
}

/// Copies `source`, which broadcasts to `target`'s shape and has its element type, into `target`; the two do not overlap.
/// False, and nothing is done, when this is no transpose, or one of matrices that are too small for tiles.
pub(crate) fn transpose(target: &CudaTensor, source: &CudaTensor) -> Result<bool> {
    debug_assert!(target.elem() == source.elem());
    if target.is_empty() {
        return Ok(false);
    }
    let strides =
        source.layout().expanded_strides(target.dims()).expect("the op checked that shapes broadcast");
    let nest = Nest::new(target.dims(), [target.layout().strides(), &strides]);
    let bytes = target.elem().size_bytes();
    let Some(plan) = plan(&nest, bytes, target.ptr(), source.ptr()) else { return Ok(false) };
    let (device, defs) = (target.device(), defs(bytes, plan.vl, plan.vs));
    let kernel = device.kernel(&KernelSpec { file: &TRANSPOSE, entry: "transpose", defs: &defs })?;
    let launch = Launch::new(device, kernel).op("copy").write(target).read(source).arg(arg(&nest, &plan));
    launch.run([plan.blocks, 1, 1], THREADS, 0)?;
    Ok(true)
}

/// What the compile gate compiles: the widest packs, single elements, and each against the other.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for bytes in [1, 2, 4, 8] {
        let widest = 16 / bytes;
        for (vl, vs) in [(widest, widest), (1, widest), (widest, 1), (1, 1), (widest / 2, widest / 2)] {
            all.push(Instance::new(&TRANSPOSE, "transpose", &defs(bytes, vl, vs)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use burn_backend::Shape;

    fn layout(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::from(dims.to_vec()))
    }

    /// Of a copy of `source` into a row-major target; both begin at multiples of 16 bytes plus their offsets.
    fn choose(source: &Layout, bytes: usize) -> Option<Plan> {
        into(&layout(source.dims()), source, bytes)
    }

    fn into(target: &Layout, source: &Layout, bytes: usize) -> Option<Plan> {
        let nest = Nest::new(target.dims(), [target.strides(), source.strides()]);
        let address = |l: &Layout| 4096 + l.offset() as u64 * bytes as u64;
        plan(&nest, bytes, address(target), address(source))
    }

    fn permuted(dims: &[usize], axes: &[usize]) -> Layout {
        layout(dims).permute(axes).unwrap()
    }

    /// Loads and stores in elements, and the blocks.
    fn packs(plan: Option<Plan>) -> (usize, usize, u32) {
        plan.map(|p| (p.vl, p.vs, p.blocks)).expect("a transpose")
    }

    #[test]
    fn a_transposed_matrix_moves_in_16_bytes_on_both_sides() {
        let t = permuted(&[16384, 8192], &[1, 0]);
        assert_eq!(packs(choose(&t, 2)), (8, 8, 256 * 128));
        assert_eq!(packs(choose(&t, 1)), (16, 16, 128 * 64));
        assert_eq!(packs(choose(&t, 4)), (4, 4, 512 * 128));
        assert_eq!(packs(choose(&t, 8)), (2, 2, 1024 * 128));
    }

    #[test]
    fn images_go_to_channels_last_and_back_with_the_packs_that_each_side_allows() {
        for (pixels, v) in [(7usize, 1), (14, 4), (28, 8), (56, 8)] {
            let hw = pixels * pixels;
            let (tiles, channels) = (64 * hw.div_ceil(64) as u32 * 4, 256);
            let to = permuted(&[64, channels, pixels, pixels], &[0, 2, 3, 1]);
            assert_eq!(packs(choose(&to, 2)), (v, 8, tiles), "{hw}");
            let back = permuted(&[64, pixels, pixels, channels], &[0, 3, 1, 2]);
            assert_eq!(packs(choose(&back, 2)), (8, v, tiles), "{hw}");
        }
        // Three channels fill no row.
        assert_eq!(choose(&permuted(&[64, 3, 224, 224], &[0, 2, 3, 1]), 2), None);
        assert_eq!(choose(&permuted(&[64, 224, 224, 3], &[0, 3, 1, 2]), 2), None);
    }

    #[test]
    fn what_is_no_transpose_is_left_to_the_elementwise_kernel() {
        assert_eq!(choose(&layout(&[64, 64]), 2), None, "in order");
        assert_eq!(choose(&permuted(&[16, 2048, 32, 128], &[0, 2, 1, 3]), 2), None, "rows stay whole");
        assert_eq!(choose(&layout(&[64, 1]).expand(&[64, 64]).unwrap(), 2), None, "rows of one element");
        assert_eq!(choose(&layout(&[64, 1, 64]).expand(&[64, 64, 64]).unwrap(), 2), None);
        let repeated = layout(&[64, 1]).expand(&[64, 64]).unwrap().permute(&[1, 0]).unwrap();
        assert_eq!(choose(&repeated, 2), None, "one row, repeated");
        assert_eq!(choose(&layout(&[64, 64]).flip(&[1]).unwrap(), 2), None, "reversed rows");
        assert_eq!(choose(&layout(&[100]).unfold(0, 32, 1).unwrap(), 2), None, "windows");
        let steps =
            layout(&[64, 128]).slice(&[burn_backend::Slice::full(), burn_backend::Slice::new(0, None, 2)]);
        let steps = steps.unwrap().permute(&[1, 0]).unwrap();
        assert_eq!(choose(&steps, 2), None, "no neighbours in the source");
        assert_eq!(
            into(&permuted(&[64, 64], &[1, 0]), &permuted(&[64, 64], &[1, 0]), 2),
            None,
            "the same order"
        );
    }

    #[test]
    fn short_sides_and_empty_tiles_are_left_to_the_elementwise_kernel() {
        let matrices =
            |x: usize, y: usize, bytes| choose(&permuted(&[1000, x, y], &[0, 2, 1]), bytes).is_some();
        assert!(matrices(8, 64, 2) && matrices(64, 8, 2) && matrices(16, 32, 2) && matrices(23, 23, 2));
        assert!(!matrices(7, 64, 2) && !matrices(64, 7, 2) && !matrices(16, 31, 2) && !matrices(8, 65, 2));
        assert!(matrices(16, 128, 1) && !matrices(16, 127, 1));
        assert!(matrices(8, 32, 4) && !matrices(8, 31, 4) && matrices(8, 16, 8) && !matrices(8, 15, 8));
    }

    #[test]
    fn offsets_and_strides_narrow_the_packs_of_their_side() {
        let view = layout(&[128, 136]).narrow(1, 4, 128).permute(&[1, 0]).unwrap();
        assert_eq!(packs(choose(&view, 2)), (4, 8, 4), "an offset of 8 bytes");
        let view = layout(&[128, 129]).narrow(1, 0, 128).permute(&[1, 0]).unwrap();
        assert_eq!(packs(choose(&view, 2)), (1, 8, 4), "rows of odd length");
        let view = layout(&[3, 128, 64]).narrow(2, 2, 62).permute(&[0, 2, 1]).unwrap();
        assert_eq!(packs(choose(&view, 4)), (2, 4, 12), "rows of 62, from the third element on");
        let target = layout(&[128, 130]).narrow(1, 1, 128);
        assert_eq!(
            packs(into(&target, &permuted(&[128, 128], &[1, 0]), 2)),
            (8, 1, 4),
            "a target at an odd offset"
        );
        let flipped = layout(&[128, 64]).flip(&[0]).unwrap().permute(&[1, 0]).unwrap();
        assert_eq!(packs(choose(&flipped, 4)), (4, 4, 4), "rows in the other order");
    }

    #[test]
    fn six_outer_loops_and_fewer_than_2_31_blocks_fit_a_launch() {
        // Reversed, no two loops are one.
        let reversed = |dims: &[usize]| permuted(dims, &(0..dims.len()).rev().collect::<Vec<_>>());
        assert_eq!(packs(choose(&reversed(&[64, 2, 2, 2, 2, 2, 2, 64]), 2)), (8, 8, 64));
        assert_eq!(choose(&reversed(&[64, 2, 2, 2, 2, 2, 2, 2, 64]), 2), None);
        let many = layout(&[1, 64, 64]).expand(&[1 << 31, 64, 64]).unwrap().permute(&[0, 2, 1]).unwrap();
        assert_eq!(choose(&many, 2), None);
    }

    #[test]
    fn the_arguments_name_the_loops_from_within() {
        // out[a, b, y, c, x] = in[a, x, b, c, y], of sizes 2, 3, 70, 5, 80.
        let source = permuted(&[2, 80, 3, 5, 70], &[0, 2, 4, 3, 1]);
        let target = layout(source.dims());
        let nest = Nest::new(target.dims(), [target.strides(), source.strides()]);
        let plan = plan(&nest, 2, 0, 0).unwrap();
        let got = arg(&nest, &plan);
        assert_eq!((got.x, got.y, got.out_y, got.in_x), (80, 70, 400, 1050));
        assert_eq!(
            (got.outer, &got.out_outer[..3], &got.in_outer[..3]),
            (3, &[80, 28000, 84000][..], &[70, 350, 84000][..])
        );
        assert_eq!(got.size[..3], [5, 3, 2].map(FastDiv::new));
        assert_eq!((plan.tiles_x, plan.tiles_y, plan.blocks), (2, 2, 120));
    }
}
