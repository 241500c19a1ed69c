//! Launcher of `ctc.cu`.

use burn_std::DType;

use super::elementwise::MATH;
#[cfg(test)]
use super::gate::Instance;
use super::gather::THREADS;
use super::{COMMON_REDUCE, Def, KernelSpec, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(CTC, "ctc.cu", [&COMMON_REDUCE, &MATH]);

/// States whose rows stay in shared memory (`SHORT` in ctc.cu).
const SHORT: usize = 1024;

/// Mirrors `Problem` in ctc.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Problem {
    steps: u64,
    batch: u64,
    classes: u64,
    width: u32,
    blank: u32,
}
kernel_arg!(Problem);

/// What both kernels read; all row-major, lengths and targets of i64.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) log_probs: &'a CudaTensor,
    pub(crate) targets: &'a CudaTensor,
    pub(crate) input_lengths: &'a CudaTensor,
    pub(crate) target_lengths: &'a CudaTensor,
    pub(crate) blank: usize,
}

impl Inputs<'_> {
    fn problem(&self) -> Problem {
        let dims = self.log_probs.dims();
        Problem {
            steps: dims[0] as u64,
            batch: dims[1] as u64,
            classes: dims[2] as u64,
            width: 2 * self.targets.dims()[1] as u32 + 1,
            blank: self.blank as u32,
        }
    }

    fn acc(&self) -> DType {
        if self.log_probs.elem() == Elem::F64 { DType::F64 } else { DType::F32 }
    }

    /// The labels' workspace, and that of rows which do not fit shared memory.
    fn workspaces(&self, op: &'static str) -> Result<[CudaTensor; 2]> {
        let Problem { batch, width, .. } = self.problem();
        let (device, batch, width) = (self.log_probs.device(), batch as usize, width as usize);
        let long = if width > SHORT { width } else { 0 };
        Ok([
            CudaTensor::empty(device, vec![batch, 3, width], DType::I32, op)?,
            CudaTensor::empty(device, vec![batch, 4, long], self.acc(), op)?,
        ])
    }
}

fn defs(case: &'static str, elem: Elem) -> [(&'static str, Def); 2] {
    [("T", Def::Type(elem)), (case, Def::Int(1))]
}

/// `loss [N]`; there is at least one sequence and one step.
pub(crate) fn loss(op: &'static str, loss: &CudaTensor, inputs: Inputs) -> Result<()> {
    let (device, problem) = (loss.device(), inputs.problem());
    let kernel =
        device.kernel(&KernelSpec { file: &CTC, entry: "ctc", defs: &defs("CASE_LOSS", loss.elem()) })?;
    let [label, rows] = inputs.workspaces(op)?;
    Launch::new(device, kernel)
        .write(loss)
        .write(&label)
        .write(&rows)
        .read(inputs.log_probs)
        .read(inputs.targets)
        .read(inputs.input_lengths)
        .read(inputs.target_lengths)
        .arg(problem)
        .faults(op)
        .run([problem.batch as u32, 1, 1], THREADS as u32, 0)
}

/// The gradient of [`loss`]: `dx [T, N, C]`, zeros before, for the gradient `dy [N]`.
pub(crate) fn backward(op: &'static str, dx: &CudaTensor, dy: &CudaTensor, inputs: Inputs) -> Result<()> {
    let (device, problem) = (dx.device(), inputs.problem());
    let defs = defs("CASE_BACKWARD", dx.elem());
    let kernel = device.kernel(&KernelSpec { file: &CTC, entry: "ctc", defs: &defs })?;
    let [label, rows] = inputs.workspaces(op)?;
    let shape = vec![problem.batch as usize, problem.steps as usize, problem.width as usize];
    let alpha = CudaTensor::empty(device, shape, inputs.acc(), op)?;
    Launch::new(device, kernel)
        .update(dx)
        .write(&label)
        .write(&rows)
        .write(&alpha)
        .read(inputs.log_probs)
        .read(inputs.targets)
        .read(inputs.input_lengths)
        .read(inputs.target_lengths)
        .read(dy)
        .arg(problem)
        .faults(op)
        .run([problem.batch as u32, 1, 1], THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::BF16] {
        for case in ["CASE_LOSS", "CASE_BACKWARD"] {
            all.push(Instance::new(&CTC, "ctc", &defs(case, elem)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_file_agrees_on_the_short_rows() {
        assert!(CTC.text.contains(&format!("#define SHORT {SHORT}\n")));
    }
}
