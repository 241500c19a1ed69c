//! The compile gate: every kernel compiles for the architectures that it is marked for, without a GPU, and keeps to the
//! registers, shared memory, stack and spills that `limits.txt` allows it.
//!
//! Each launcher lists instances (`instances`), made of the macros that it launches with: each entry point and case, over
//! the dtypes and variants that need the most registers. nvcc compiles them, in the version that the table was measured
//! with. Without it the gate says how to install it, and passes unless `KILN_REQUIRE_NVCC=1`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Def, KernelFile, KernelSpec};
use crate::compile::Source;

mod limits;
mod nvcc;

use limits::Table;
use nvcc::{Nvcc, Usage};

/// What a kernel runs on unless it is marked otherwise.
const ARCHS: &[&str] = &["sm_80", "sm_90a"];

/// A kernel to compile.
pub(super) struct Instance {
    file: &'static str,
    entry: &'static str,
    source: Source,
    macros: Vec<&'static str>,
    archs: &'static [&'static str],
}

impl Instance {
    pub(super) fn new(file: &'static KernelFile, entry: &'static str, defs: &[(&'static str, Def)]) -> Self {
        let source = KernelSpec { file, entry, defs }.source().unwrap_or_else(|error| panic!("{error}"));
        let macros = defs.iter().map(|&(name, _)| name).collect();
        Instance { file: file.name, entry, source, macros, archs: ARCHS }
    }

    /// A kernel that other architectures do not have the instructions for.
    pub(super) fn hopper_only(mut self) -> Self {
        self.archs = &["sm_90a"];
        self
    }
}

/// Those of all launchers, without repetitions.
fn instances() -> Vec<Instance> {
    use super::{
        argwhere, attention, cross, ctc, cumulative, deform, elementwise, fft, gather, grid_sample, im2col,
        int_matmul, interpolate, layer_norm, nd, pool, quantize, quantized_move, random, reduce, scatter,
        softmax, sort, transpose,
    };
    let all = [
        argwhere::instances(),
        attention::instances(),
        cross::instances(),
        ctc::instances(),
        cumulative::instances(),
        deform::instances(),
        elementwise::instances(),
        fft::instances(),
        gather::instances(),
        grid_sample::instances(),
        im2col::instances(),
        int_matmul::instances(),
        interpolate::instances(),
        layer_norm::instances(),
        nd::instances(),
        pool::instances(),
        quantize::instances(),
        quantized_move::instances(),
        random::instances(),
        reduce::instances(),
        scatter::instances(),
        softmax::instances(),
        sort::instances(),
        transpose::instances(),
    ];
    let by_name = all.into_iter().flatten().map(|i| (i.source.name.clone(), i));
    by_name.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernels")
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty() && value != "0")
}

/// nvcc, or `None` where it is missing and need not be there.
fn compiler() -> Option<Nvcc> {
    match Nvcc::find() {
        Ok(nvcc) => Some(nvcc),
        Err(why) if is_set("KILN_REQUIRE_NVCC") || is_set("KILN_UPDATE_LIMITS") => panic!("{why}"),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

#[test]
fn every_kernel_compiles_within_its_limits() {
    let Some(nvcc) = compiler() else { return };
    let instances = instances();
    let (measured, mut problems) = nvcc.measure(&instances);
    let path = folder().join("limits.txt");
    let mut table = Table::parse(include_str!("limits.txt")).unwrap_or_else(|error| panic!("{error}"));
    if is_set("KILN_UPDATE_LIMITS") {
        assert!(problems.is_empty(), "the table is not written: {}", problems.join("\n"));
        table = table.updated(&measured);
        std::fs::write(&path, table.to_string())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    problems.extend(table.check(&measured));
    let compiled =
        instances.iter().flat_map(|i| i.archs.iter().map(|&arch| (&*i.source.name, arch))).collect();
    problems.extend(table.stale(&compiled));
    assert!(
        problems.is_empty(),
        "{} problems\n{}\nIf a change of the limits is meant:\n    KILN_UPDATE_LIMITS=1 cargo test -p kiln-backend --lib \
         kernels::gate\nwrites what was measured to {} (spills excepted: see its first lines).",
        problems.len(),
        problems.join("\n"),
        path.display()
    );
    println!("{} instances, {} compiled", instances.len(), measured.len());
}

/// The names of `extern "C"` kernels in a text.
fn entries(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    text.split("extern \"C\"")
        .skip(1)
        .map(|rest| {
            let signature = &rest[..rest.find('{').expect("a kernel has a body")];
            let bounds = signature.find("__launch_bounds__").map_or(0, |at| {
                let open = at + signature[at..].find('(').expect("launch bounds have arguments");
                let mut depth = 0;
                let end = signature[open..].find(|c: char| {
                    depth += (c == '(') as i32 - (c == ')') as i32;
                    depth == 0
                });
                open + end.expect("the parenthesis is closed") + 1
            });
            let head = &signature[bounds..];
            let head = head[..head.find('(').expect("a kernel has parameters")].trim_end();
            &head[head.rfind(|c| !is_name(c)).map_or(0, |at| at + 1)..]
        })
        .collect()
}

/// The macros `CASE_*` that a text mentions.
fn cases(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.len() > 5 && word.starts_with("CASE_"))
        .collect()
}

#[test]
fn no_kernel_is_missing_from_the_gate() {
    // A binary that was brought to another machine has no sources there.
    let Ok(files) = std::fs::read_dir(folder()) else { return println!("SKIPPED: no sources here") };
    let instances = instances();
    let mut count = 0;
    for file in files.map(|file| file.unwrap().path()) {
        if file.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        count += 1;
        let name = file.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let here: Vec<&Instance> = instances.iter().filter(|i| i.file == name).collect();
        let compiled: BTreeSet<&str> = here.iter().map(|i| i.entry).collect();
        assert_eq!(entries(&text), compiled, "entry points of {name}, and those that its launcher lists");
        let covered =
            here.iter().flat_map(|i| &i.macros).copied().filter(|m| m.starts_with("CASE_")).collect();
        assert_eq!(cases(&text), covered, "cases in {name}, and those that its launcher lists");
    }
    let files: BTreeSet<&str> = instances.iter().map(|i| i.file).collect();
    assert_eq!(files.len(), count, "{files:?} in the gate");
}

#[test]
fn entry_points_and_cases_are_found_in_a_text() {
    let text = "// one CASE_ of CASE_A, CASE_B\n#if defined(CASE_A) || defined(CASE_B)\nextern \"C\" __global__ void \
                __launch_bounds__(BLOCK, sizeof(T) == 8 ? 2 : 4)\n    first(T* y) {\n}\n#endif\nextern \"C\" __global__ \
                void second_one(int x) {}\n";
    assert_eq!(entries(text), BTreeSet::from(["first", "second_one"]));
    assert_eq!(cases(text), BTreeSet::from(["CASE_A", "CASE_B"]));
}

static SPILLING: KernelFile = KernelFile {
    name: "spilling.cu",
    // 64 values live across the barrier, in the 32 registers that two blocks of 1024 threads leave.
    text: "extern \"C\" __global__ void __launch_bounds__(1024, 2) spilling(f32* y, const f32* x) {
    f32 v[64];
#pragma unroll
    for (int k = 0; k < 64; ++k) v[k] = x[k * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 64; ++k) y[k * 1024 + threadIdx.x] = v[63 - k] * v[k];
}",
    includes: &[],
};

static BROKEN: KernelFile = KernelFile {
    name: "broken.cu",
    text: "extern \"C\" __global__ void broken(f32* y) { y[0] = undefined_name; }",
    includes: &[],
};

#[test]
fn a_kernel_that_spills_is_rejected() {
    let Some(nvcc) = compiler() else { return };
    let spilling = [Instance::new(&SPILLING, "spilling", &[]).hopper_only()];
    let (measured, problems) = nvcc.measure(&spilling);
    assert!(problems.is_empty(), "{problems:?}");
    let [(_, "sm_90a", Usage { registers: ..=32, spill: 1.., .. })] = measured[..] else {
        panic!("{measured:?}")
    };
    // Its own measurement makes no limit that it passes: spills are not written to the table.
    let problems = Table::default().updated(&measured).check(&measured);
    assert!(
        matches!(&problems[..], [only] if only.contains("spilling.cu:spilling for sm_90a: ")),
        "{problems:?}"
    );
    assert!(problems[0].contains("bytes spilled"), "{problems:?}");
}

#[test]
fn a_kernel_that_does_not_compile_is_named() {
    let Some(nvcc) = compiler() else { return };
    let broken = [Instance::new(&BROKEN, "broken", &[]).hopper_only()];
    let (measured, problems) = nvcc.measure(&broken);
    assert!(measured.is_empty());
    let text = problems.concat();
    assert!(text.contains("broken.cu:broken") && text.contains("undefined_name"), "{text}");
}
