//! A CUDA device in software, for tests: kernels and everything around them run on a machine without a GPU.
//!
//! The crate is a shared library that answers for four: the driver (`libcuda.so.1`), the run-time compiler
//! (`libnvrtc.so.13`), the matrix library (`libcublasLt.so.13`) and the convolution library (`libcudnn.so.9`). A program
//! that opens those under their names, as `kiln-backend` does, runs unchanged; [`start`] sees to the names. What it gets
//! is a slow device with sharp eyes:
//!
//! - Kernels are compiled by the system's C++ compiler (`nvrtc`), and a block's threads are fibers (`exec`): shared memory,
//!   barriers, warp exchanges, votes, atomics and 16-bit floats work as in CUDA. Inline PTX, tensor cores and asynchronous
//!   copies do not exist.
//! - Every access is checked (`memory`): outside of an allocation or a shared variable, freed, never written, or racing
//!   with another thread of the launch. Barriers that not all threads reach are noticed.
//! - Streams are lazy (`driver`): work runs as late as CUDA allows, so that memory which is reused too early is seen.
//! - A fault ends its launch and is reported, with what happened and where, by the next call that waits, as
//!   `CUDA_ERROR_UNKNOWN`; the device goes on.
//!
//! Environment: `KILN_EMULATOR_DEVICES` (2), `KILN_EMULATOR_SMS` (8) and `KILN_EMULATOR_SEED` (1, the order in which threads run);
//! `KILN_EMULATOR_REJECT=ENTRY:N` rejects a launch (`driver/faults.rs`).
//!
//! What it does not tell: speed, the exact rounding of the device's own functions, and orders of memory accesses that only
//! hardware produces.
#![allow(unsafe_code)]

mod blas;
mod dnn;
mod driver;
pub(crate) mod exec;
pub(crate) mod memory;
pub(crate) mod nvrtc;
pub(crate) mod operands;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// The number of devices.
pub(crate) fn device_count() -> u32 {
    let wanted = std::env::var("KILN_EMULATOR_DEVICES").ok().and_then(|count| count.parse().ok());
    wanted.unwrap_or(2).clamp(1, memory::MAX_DEVICES)
}

/// The names that programs open. Those without a version are here lest the loader find an installed library under them.
const NAMES: [&str; 14] = [
    "libcuda.so.1",
    "libcuda.so",
    "libnvrtc.so.13",
    "libnvrtc.so",
    "libcublasLt.so.13",
    "libcublasLt.so",
    "libcudnn.so.9",
    "libcudnn.so",
    "libcudnn_graph.so.9",
    "libcudnn_ops.so.9",
    "libcudnn_cnn.so.9",
    "libcudnn_heuristic.so.9",
    "libcudnn_engines_precompiled.so.9",
    "libcudnn_engines_runtime_compiled.so.9",
];
/// Set in a process that runs on the emulator.
const ACTIVE: &str = "KILN_EMULATOR";

/// Makes this process run on the emulated device: starts it again, with the same arguments, where the loader finds the
/// emulator under the names of NVIDIA's libraries. To be called before `main` does anything (a test binary: from a
/// constructor); in the process that was started again it returns at once.
///
/// Variables that are not set yet are set from `defaults`.
///
/// # Panics
/// When the emulator's library is not beside the executable, where Cargo puts it for a package that depends on this one.
pub fn start(defaults: &[(&str, &str)]) {
    if std::env::var_os(ACTIVE).is_some() {
        return;
    }
    let executable = std::env::current_exe().expect("a process has an executable");
    let library = library_beside(&executable).unwrap_or_else(|| {
        panic!("libkiln_emulator.so is not beside {}", executable.display());
    });
    let folder = executable.with_file_name("kiln-emulator");
    std::fs::create_dir_all(&folder).expect("the folder of test binaries can be written");
    for name in NAMES {
        link(&library, &folder.join(name));
    }
    let mut loader = OsString::from(&folder);
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH").filter(|path| !path.is_empty()) {
        loader.push(":");
        loader.push(path);
    }
    let mut command = std::process::Command::new(&executable);
    command.args(std::env::args_os().skip(1));
    command.env(ACTIVE, "1").env("LD_LIBRARY_PATH", loader).env("KILN_CUDA_PATH", &folder);
    let cache = folder.join("cache");
    let own = [("KILN_CACHE_DIR", cache.as_os_str())];
    let given = defaults.iter().map(|&(name, value)| (name, value.as_ref()));
    for (name, value) in own.into_iter().chain(given) {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    panic!("starting {} again: {}", executable.display(), command.exec());
}

/// The emulator's library in the executable's folder, or in `deps` below it.
fn library_beside(executable: &Path) -> Option<PathBuf> {
    let folder = executable.parent()?;
    let places = [folder.join("libkiln_emulator.so"), folder.join("deps/libkiln_emulator.so")];
    places.into_iter().find(|path| path.is_file())
}

/// Makes `link` lead to `target`; other processes may do the same now.
fn link(target: &Path, link: &Path) {
    if std::fs::read_link(link).is_ok_and(|to| to == target) {
        return;
    }
    let fresh = link.with_extension(format!("{}", std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(target, &fresh).expect("links can be made beside test binaries");
    std::fs::rename(&fresh, link).expect("links can be renamed");
}
