//! Launchers of `attention.cu`: what attention does around its matrix products.

use smallvec::SmallVec;

#[cfg(test)]
use super::gate::Instance;
use super::{COMMON_REDUCE, COMMON_SOFTMAX, Def, KernelSpec, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(ATTENTION, "attention.cu", [&COMMON_REDUCE, &COMMON_SOFTMAX]);

/// Mirrors `Attention` in attention.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct AttentionArg {
    rows: u64,
    heads: i64,
    queries: i64,
    keys: i64,
    width: i64,
    first: i64,
    shift: i64,
    mask: [i64; 4],
    bias: [i64; 4],
    o: [i64; 4],
    v: [i64; 4],
    scale: f64,
    cap: f64,
    causal: u32,
}
kernel_arg!(AttentionArg);

/// What becomes of the scores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scores {
    pub(crate) scale: f64,
    pub(crate) softcap: Option<f64>,
    /// Query `first + i` of this part sees keys up to itself plus this.
    pub(crate) causal: Option<i64>,
    pub(crate) first: usize,
}

/// How a row is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Registers { group: usize, n: usize },
    Loop,
}

/// Keys of a thread: 16 in f32 leave a block of 256 threads registers for all of them, 8 in f64.
fn most_keys(elem: Elem) -> usize {
    if elem == Elem::F64 { 8 } else { 16 }
}

/// Threads of a block: one row each, or four rows of a warp.
const ROW_BLOCK: usize = 256;
const WARPS_BLOCK: usize = 128;
const LOOP_BLOCK: usize = 512;

impl Case {
    fn new(keys: usize, elem: Elem) -> Case {
        let n = |group: usize| keys.div_ceil(group).next_power_of_two().max(1);
        // A warp exchanges by shuffles alone, but has few loads in flight beyond eight of a thread.
        match (n(32), n(ROW_BLOCK)) {
            (n, _) if n <= 8 => Case::Registers { group: 32, n },
            (_, n) if n <= most_keys(elem) => Case::Registers { group: ROW_BLOCK, n },
            _ => Case::Loop,
        }
    }

    fn block(self) -> usize {
        match self {
            Case::Registers { group: 32, .. } => WARPS_BLOCK,
            Case::Registers { group, .. } => group,
            Case::Loop => LOOP_BLOCK,
        }
    }

    fn rows(self) -> u64 {
        match self {
            Case::Registers { group, .. } => (self.block() / group) as u64,
            Case::Loop => 1,
        }
    }

    fn defs(self, elem: Elem) -> SmallVec<[(&'static str, Def); 5]> {
        let int = |x: usize| Def::Int(x as i64);
        let mut defs: SmallVec<[(&'static str, Def); 5]> =
            SmallVec::from_slice(&[("T", Def::Type(elem)), ("BLOCK", int(self.block()))]);
        match self {
            Case::Registers { group, n } => {
                defs.extend([("CASE_REGISTERS", int(1)), ("GROUP", int(group)), ("N", int(n))])
            }
            Case::Loop => defs.push(("CASE_LOOP", int(1))),
        }
        defs
    }
}

fn repair_defs(elem: Elem) -> [(&'static str, Def); 3] {
    [("T", Def::Type(elem)), ("BLOCK", Def::Int(ROW_BLOCK as i64)), ("CASE_REPAIR", Def::Int(1))]
}

fn strides(tensor: Option<&CudaTensor>) -> [i64; 4] {
    tensor.map_or([0; 4], |t| t.layout().strides().try_into().expect("four dimensions"))
}

/// `p [B, H, R, K]` from row-major scores of that shape, which are overwritten; `p` may be the scores. `mask` and `bias`
/// have that shape and any strides.
pub(crate) fn softmax(
    p: &CudaTensor,
    scores: &CudaTensor,
    mask: Option<&CudaTensor>,
    bias: Option<&CudaTensor>,
    how: Scores,
) -> Result<()> {
    debug_assert!(p.layout().is_contiguous() && scores.layout().is_contiguous() && p.dims() == scores.dims());
    let &[batch, heads, queries, keys] = p.dims() else { unreachable!("four dimensions") };
    let rows = (batch * heads * queries) as u64;
    if p.is_empty() {
        return Ok(());
    }
    let arg = AttentionArg {
        rows,
        heads: heads as i64,
        queries: queries as i64,
        keys: keys as i64,
        width: 0,
        first: how.first as i64,
        shift: how.causal.unwrap_or(0),
        mask: strides(mask),
        bias: strides(bias),
        o: [0; 4],
        v: [0; 4],
        scale: how.scale,
        cap: how.softcap.unwrap_or(0.0),
        causal: how.causal.is_some() as u32,
    };
    let case = Case::new(keys, p.elem());
    let defs = case.defs(p.elem());
    let device = p.device();
    let kernel = device.kernel(&KernelSpec { file: &ATTENTION, entry: "attention_softmax", defs: &defs })?;
    let mut launch = Launch::new(device, kernel).op("attention").write(p).update(scores);
    for operand in [mask, bias] {
        launch = match operand {
            Some(operand) => launch.read(operand),
            None => launch.null(),
        };
    }
    let blocks = rows.div_ceil(case.rows());
    launch.arg(arg).run([blocks as u32, 1, 1], case.block() as u32, 0)
}

/// Sums anew what is not finite in `o [B, H, R, D]`, without the keys of which `p [B, H, R, K]` is 0. `v [B, H, K, D]`
/// and `o` may have any strides.
pub(crate) fn repair(o: &CudaTensor, p: &CudaTensor, v: &CudaTensor) -> Result<()> {
    let &[batch, heads, queries, width] = o.dims() else { unreachable!("four dimensions") };
    let arg = AttentionArg {
        rows: (batch * heads * queries) as u64,
        heads: heads as i64,
        queries: queries as i64,
        keys: p.dims()[3] as i64,
        width: width as i64,
        first: 0,
        shift: 0,
        mask: [0; 4],
        bias: [0; 4],
        o: strides(Some(o)),
        v: strides(Some(v)),
        scale: 1.0,
        cap: 0.0,
        causal: 0,
    };
    let device = o.device();
    let defs = repair_defs(o.elem());
    let kernel = device.kernel(&KernelSpec { file: &ATTENTION, entry: "attention_repair", defs: &defs })?;
    let blocks = (o.len() as u64).div_ceil(ROW_BLOCK as u64).min(i32::MAX as u64);
    Launch::new(device, kernel).op("attention").update(o).read(p).read(v).arg(arg).run(
        [blocks as u32, 1, 1],
        ROW_BLOCK as u32,
        0,
    )
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::BF16] {
        let fullest = [
            Case::Registers { group: 32, n: 8 },
            Case::Registers { group: ROW_BLOCK, n: most_keys(elem) },
            Case::Loop,
        ];
        all.extend(fullest.map(|case| Instance::new(&ATTENTION, "attention_softmax", &case.defs(elem))));
        all.push(Instance::new(&ATTENTION, "attention_repair", &repair_defs(elem)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_in_registers_while_they_fit() {
        assert_eq!(Case::new(0, Elem::F32), Case::Registers { group: 32, n: 1 });
        assert_eq!(Case::new(33, Elem::F32), Case::Registers { group: 32, n: 2 });
        assert_eq!(Case::new(256, Elem::BF16), Case::Registers { group: 32, n: 8 });
        assert_eq!(Case::new(257, Elem::BF16), Case::Registers { group: ROW_BLOCK, n: 2 });
        assert_eq!(Case::new(4096, Elem::F32), Case::Registers { group: ROW_BLOCK, n: 16 });
        assert_eq!(Case::new(4096, Elem::F64), Case::Loop);
        assert_eq!(Case::new(4097, Elem::F32), Case::Loop);
    }
}
