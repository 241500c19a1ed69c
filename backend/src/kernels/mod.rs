//! The kernels: a `.cu` file and its typed launcher each, and the table of what has been loaded.
//!
//! A `.cu` file is a template: types and constants come as macros from a [`KernelSpec`], so one file serves every
//! dtype. An instance is compiled by NVRTC at first use (see `compile`), loaded, and kept.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock, RwLock};

use cudarc::driver::sys;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use crate::compile::{self, CompileStats, DiskCache, KernelCompiler, Nvrtc, Source};
use crate::device::Device;
use crate::driver::context::RelaxedCapture;
use crate::driver::launch::Kernel;
use crate::dtype::Elem;
use crate::error::Result;

pub(crate) mod argwhere;
pub(crate) mod attention;
pub(crate) mod cross;
pub(crate) mod ctc;
pub(crate) mod cumulative;
pub(crate) mod deform;
pub(crate) mod elementwise;
pub(crate) mod fft;
#[cfg(test)]
mod gate;
pub(crate) mod gather;
pub(crate) mod grid_sample;
pub(crate) mod im2col;
pub(crate) mod int_matmul;
pub(crate) mod interpolate;
pub(crate) mod layer_norm;
pub(crate) mod nd;
pub(crate) mod pool;
pub(crate) mod quantize;
pub(crate) mod quantized_move;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod scatter;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod transpose;

/// A `.cu` or `.cuh` file, embedded.
#[derive(Debug)]
pub(crate) struct KernelFile {
    /// Path below `kernels/`.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// Files that come before it (after the prelude).
    pub(crate) includes: &'static [&'static KernelFile],
}

/// `kernel_file!(REDUCE, "reduce.cu", [&COMMON_REDUCE])` embeds a file beside the calling one.
macro_rules! kernel_file {
    ($vis:vis $ident:ident, $name:literal $(, [$($include:expr),* $(,)?])?) => {
        $vis static $ident: $crate::kernels::KernelFile = $crate::kernels::KernelFile {
            name: $name,
            text: include_str!($name),
            includes: &[$($($include),*)?],
        };
    };
}
pub(crate) use kernel_file;

kernel_file!(PRELUDE, "common/prelude.cuh");
kernel_file!(pub(crate) COMMON_REDUCE, "common/reduce.cuh");
kernel_file!(pub(crate) COMMON_SOFTMAX, "common/softmax.cuh");
kernel_file!(pub(crate) WRAPPING, "common/wrapping.cuh");
kernel_file!(pub(crate) LOOPS, "common/loops.cuh");
kernel_file!(pub(crate) TAPS, "common/taps.cuh");
kernel_file!(pub(crate) QUANTIZED, "common/quantized.cuh");

/// The value of a macro.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Def {
    Type(Elem),
    Int(i64),
    Text(&'static str),
}

/// Equal texts; nearly always the same constant, so the addresses tell.
fn same_text(a: &'static str, b: &'static str) -> bool {
    std::ptr::eq(a, b) || a == b
}

impl PartialEq for Def {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Def::Type(a), Def::Type(b)) => a == b,
            (Def::Int(a), Def::Int(b)) => a == b,
            (Def::Text(a), Def::Text(b)) => same_text(a, b),
            _ => false,
        }
    }
}

impl Eq for Def {}

impl Hash for Def {
    // Text is hashed by address: the same text at two addresses costs a second entry, not a wrong one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Def::Type(elem) => (*elem as u8).hash(state),
            Def::Int(value) => value.hash(state),
            Def::Text(text) => text.as_ptr().hash(state),
        }
    }
}

/// An instance of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelSpec<'a> {
    pub(crate) file: &'static KernelFile,
    /// The `extern "C"` function.
    pub(crate) entry: &'static str,
    /// Macros, in the order in which they are defined.
    pub(crate) defs: &'a [(&'static str, Def)],
}

impl KernelSpec<'_> {
    fn key(&self) -> u64 {
        let mut hasher = FxHasher::default();
        (std::ptr::from_ref(self.file).addr(), self.entry.as_ptr().addr()).hash(&mut hasher);
        for (_, def) in self.defs {
            def.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The text to compile, and a name for messages.
    pub(crate) fn source(&self) -> Result<Source> {
        fn append(text: &mut String, file: &'static KernelFile, seen: &mut Vec<&'static str>) -> Result<()> {
            if seen.contains(&file.name) {
                return Ok(());
            }
            seen.push(file.name);
            for include in file.includes {
                append(text, include, seen)?;
            }
            let part: Cow<'static, str> = compile::kernel_text(file.name, file.text)?;
            text.push_str(&part);
            text.push('\n');
            Ok(())
        }
        let mut text = String::new();
        let mut seen = Vec::new();
        append(&mut text, &PRELUDE, &mut seen)?;
        for include in self.file.includes {
            append(&mut text, include, &mut seen)?;
        }
        let mut name = format!("{}:{}", self.file.name, self.entry);
        for (key, def) in self.defs {
            let value = match def {
                Def::Type(elem) => elem.name().to_string(),
                Def::Int(value) => value.to_string(),
                Def::Text(text) => text.to_string(),
            };
            text.push_str(&format!("#define {key} {value}\n"));
            name.push_str(&format!(" {key}={value}"));
        }
        append(&mut text, self.file, &mut seen)?;
        Ok(Source { name, text, options: Vec::new() })
    }
}

struct Loaded {
    file: &'static KernelFile,
    entry: &'static str,
    defs: SmallVec<[(&'static str, Def); 12]>,
    kernel: Kernel,
}

impl Loaded {
    fn is(&self, spec: &KernelSpec) -> bool {
        std::ptr::eq(self.file, spec.file)
            && same_text(self.entry, spec.entry)
            && self.defs.len() == spec.defs.len()
            && self.defs.iter().zip(spec.defs).all(|(a, b)| same_text(a.0, b.0) && a.1 == b.1)
    }
}

/// The kernels that a device has loaded.
#[derive(Default)]
pub(crate) struct Kernels {
    loaded: RwLock<FxHashMap<u64, SmallVec<[Loaded; 1]>>>,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.loaded.read().map_or(0, |l| l.len());
        f.debug_struct("Kernels").field("loaded", &count).finish()
    }
}

/// The process's compiler: kernels of all devices, one disk cache.
fn compiler() -> &'static KernelCompiler {
    static COMPILER: OnceLock<KernelCompiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        KernelCompiler::new(Arc::new(Nvrtc), DiskCache::from_env(), compile::default_threads())
    })
}

/// What the process's kernel compiler has done.
pub(crate) fn compile_stats() -> CompileStats {
    compiler().stats()
}

/// Starts to compile what nearly every f32 program uses, in the background, while the program still loads its data.
pub(crate) fn prefetch_common(arch: &str) {
    use crate::ops::elementwise as ew;
    const F: Elem = Elem::F32;
    let f32_ops: [(&elementwise::Op, &[Elem]); 14] = [
        (&ew::FILL, &[F]),
        (&ew::ADD, &[F; 3]),
        (&ew::SUB, &[F; 3]),
        (&ew::MUL, &[F; 3]),
        (&ew::DIV, &[F; 3]),
        (&ew::ADD_SCALAR, &[F; 2]),
        (&ew::SUB_SCALAR, &[F; 2]),
        (&ew::MUL_SCALAR, &[F; 2]),
        (&ew::DIV_SCALAR, &[F; 2]),
        (&ew::NEG, &[F; 2]),
        (&ew::EXP, &[F; 2]),
        (&ew::SQRT, &[F; 2]),
        (&ew::RELU, &[F; 2]),
        (&ew::RELU_BACKWARD, &[F; 3]),
    ];
    stop_at_exit();
    // A source that cannot be read is reported when the kernel is used.
    let sources = f32_ops.iter().filter_map(|(op, elems)| elementwise::contiguous_source(op, elems).ok());
    compiler().prefetch(sources, arch);
}

/// Makes a program that ends wait for what is being compiled: NVRTC is torn down when the process exits, and a
/// compilation that is still running then crashes it.
///
/// Handlers run in reverse order, and NVRTC registers more of its own during its first compilation. So the main thread
/// waits before all handlers, if it opened a device, and a handler is registered after that compilation.
#[allow(unsafe_code)]
fn stop_at_exit() {
    struct Stop {
        process: u32,
    }
    impl Drop for Stop {
        fn drop(&mut self) {
            // SAFETY: takes nothing and has no effect.
            let thread = unsafe { libc::gettid() };
            // The main thread has its process's number. The child of a fork has another, and none of the threads.
            if u32::try_from(thread) == Ok(self.process) {
                compiler().stop();
            }
        }
    }
    thread_local!(static STOP: Stop = Stop { process: std::process::id() });
    STOP.with(|_| ());
}

/// The second half of [`stop_at_exit`]; does nothing but the first time.
#[allow(unsafe_code)]
pub(crate) fn stop_at_exit_from_now_on() {
    static PROCESS: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    extern "C" fn stop() {
        // As above, of a fork.
        if PROCESS.get() == Some(&std::process::id()) {
            compiler().stop();
        }
    }
    PROCESS.get_or_init(|| {
        // SAFETY: the handler is a plain function that neither unwinds nor depends on anything that is destroyed before.
        if unsafe { libc::atexit(stop) } != 0 {
            log::debug!("no handler at exit");
        }
        std::process::id()
    });
}

impl Device {
    /// The compiled instance; compiles and loads it at first use.
    ///
    /// # Errors
    /// `Error::Compile`, `Error::LibraryMissing` (NVRTC), or a driver error from loading.
    pub(crate) fn kernel(&self, spec: &KernelSpec) -> Result<Kernel> {
        let key = spec.key();
        {
            let loaded = self.kernels.loaded.read().unwrap_or_else(|e| e.into_inner());
            if let Some(hit) = loaded.get(&key).and_then(|l| l.iter().find(|l| l.is(spec))) {
                return Ok(hit.kernel);
            }
        }
        let cubin = compiler().get(&spec.source()?, &self.arch)?;
        let kernel = self.load(&cubin, spec.entry)?;
        let mut loaded = self.kernels.loaded.write().unwrap_or_else(|e| e.into_inner());
        let entry = match loaded.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(SmallVec::new()),
        };
        // Another thread may have been faster; its kernel is as good, and this one stays loaded unused.
        if let Some(hit) = entry.iter().find(|l| l.is(spec)) {
            return Ok(hit.kernel);
        }
        let defs = spec.defs.iter().copied().collect();
        entry.push(Loaded { file: spec.file, entry: spec.entry, defs, kernel });
        Ok(kernel)
    }

    #[allow(unsafe_code)]
    fn load(&self, cubin: &Arc<[u8]>, entry: &'static str) -> Result<Kernel> {
        self.enter()?;
        let _relaxed = RelaxedCapture::enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: `module` is a valid place; the image is a whole cubin, which the driver copies.
        let status = unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) };
        crate::driver::check("cuModuleLoadData", status)?;
        let name = std::ffi::CString::new(entry).expect("entry points have no NUL");
        let mut function = std::ptr::null_mut();
        // SAFETY: the module was just loaded and is never unloaded; the name is NUL-terminated.
        let status = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
        crate::driver::check("cuModuleGetFunction", status)?;
        Ok(Kernel { function, name: entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    kernel_file!(SAMPLE, "elementwise.cu", [&COMMON_REDUCE]);

    #[test]
    fn the_text_has_prelude_includes_macros_and_file_in_this_order() {
        let defs = [("T", Def::Type(Elem::BF16)), ("V", Def::Int(8)), ("EXPR", Def::Text("a + b"))];
        let source = KernelSpec { file: &SAMPLE, entry: "elementwise", defs: &defs }.source().unwrap();
        let at = |what: &str| source.text.find(what).unwrap_or_else(|| panic!("{what} is missing"));
        assert!(at("struct ScalarArg") < at("block_reduce"));
        assert!(at("block_reduce") < at("#define T bf16\n#define V 8\n#define EXPR a + b\n"));
        assert!(at("#define EXPR") < at("evaluate("));
        assert_eq!(source.text.matches("struct ScalarArg {").count(), 1);
        assert_eq!(source.name, "elementwise.cu:elementwise T=bf16 V=8 EXPR=a + b");
    }

    #[test]
    fn specs_that_differ_anywhere_are_different_kernels() {
        let spec = |entry, defs| KernelSpec { file: &SAMPLE, entry, defs };
        let a = [("T", Def::Type(Elem::F32)), ("V", Def::Int(4))];
        let b = [("T", Def::Type(Elem::F32)), ("V", Def::Int(8))];
        let loaded = Loaded {
            file: &SAMPLE,
            entry: "elementwise",
            defs: a.iter().copied().collect(),
            kernel: Kernel { function: std::ptr::null_mut(), name: "" },
        };
        assert!(loaded.is(&spec("elementwise", &a)));
        assert!(!loaded.is(&spec("elementwise", &b)));
        assert!(!loaded.is(&spec("other", &a)));
        assert_ne!(spec("elementwise", &a).key(), spec("elementwise", &b).key());
    }
}
