//! Every way a Kiln operation can fail.
//!
//! Variants hold values; the sentence is made when the error is printed. What the host can detect is returned from
//! the call (and becomes a panic at Burn's trait boundary, whose methods return no `Result`); what the device detects
//! comes back from the next read or `sync`.

use std::path::PathBuf;

use burn_backend::TensorMetadata;
use burn_std::DType;

use crate::tensor::CudaTensor;

/// The result of a Kiln operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed Kiln operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A CUDA library could not be loaded.
    #[error("{library} was not found. Looked for {names} in: {searched}. {remedy}", names = .names.join(", "), searched = list(.searched))]
    LibraryMissing {
        /// The library, in words.
        library: &'static str,
        /// File names that were tried.
        names: Vec<String>,
        /// Places that were searched.
        searched: Vec<String>,
        /// The one thing to do about it.
        remedy: &'static str,
    },
    /// Another file than the wanted one would be used.
    #[error("{library}: {loaded} would be used instead of {wanted}; remove it from the library search path (LD_LIBRARY_PATH)", loaded = .loaded.display(), wanted = .wanted.display())]
    LibraryShadowed {
        /// The library, in words.
        library: &'static str,
        /// The file that would be used.
        loaded: PathBuf,
        /// The file that is wanted.
        wanted: PathBuf,
    },
    /// The driver works but sees no GPU.
    #[error("no NVIDIA GPU is visible to the driver (CUDA_VISIBLE_DEVICES is {visible})")]
    NoDevice {
        /// The value of `CUDA_VISIBLE_DEVICES`.
        visible: String,
    },
    /// The device index does not exist.
    #[error("cuda:{index} does not exist: this machine has {count} CUDA device(s), numbered from 0")]
    DeviceIndex {
        /// The index asked for.
        index: usize,
        /// The number of devices.
        count: usize,
    },
    /// The GPU is older than the kernels support.
    #[error("cuda:{index} ({name}) has compute capability {major}.{minor}; Kiln needs 8.0 or newer")]
    DeviceTooOld {
        /// Device index.
        index: usize,
        /// Device name.
        name: String,
        /// Compute capability, major.
        major: i32,
        /// Compute capability, minor.
        minor: i32,
    },
    /// The driver is older than the CUDA version Kiln is written for.
    #[error(
        "the NVIDIA driver supports CUDA {found_major}.{found_minor}, Kiln needs {needed_major}.{needed_minor}: update the driver"
    )]
    DriverTooOld {
        /// CUDA version of the driver, major.
        found_major: i32,
        /// CUDA version of the driver, minor.
        found_minor: i32,
        /// CUDA version needed, major.
        needed_major: i32,
        /// CUDA version needed, minor.
        needed_minor: i32,
    },
    /// A call to a CUDA library failed.
    #[error("{call} failed with {name} ({code}): {message}")]
    Cuda {
        /// The function.
        call: &'static str,
        /// Its status.
        code: u32,
        /// The status's name.
        name: String,
        /// What the library says about it.
        message: String,
    },
    /// A launch was rejected by the driver.
    #[error(
        "{kernel}: the launch with grid {grid:?}, block {block:?} and {shared_bytes} B of shared memory was rejected: {source}"
    )]
    Launch {
        /// Entry point.
        kernel: String,
        /// Blocks in x, y, z.
        grid: [u32; 3],
        /// Threads in x, y, z.
        block: [u32; 3],
        /// Dynamic shared memory.
        shared_bytes: u32,
        /// The driver's error.
        source: Box<Error>,
    },
    /// The device's context is dead: an earlier fault cannot be recovered from in this process.
    #[error("cuda:{index} can no longer be used in this process: {cause}")]
    ContextDead {
        /// Device index.
        index: usize,
        /// The error that killed it.
        cause: Box<Error>,
    },
    /// A kernel did not compile.
    #[error("kernel {kernel} did not compile for {arch}:\n{log}")]
    Compile {
        /// Source name.
        kernel: String,
        /// Target architecture.
        arch: String,
        /// The compiler's log.
        log: String,
    },
    /// Device memory is exhausted.
    #[error("out of memory on {device}: {requested} asked for, {free} free of {total} on the device; Kiln holds {live} in {live_count} live blocks and {reserved} reserved in all (largest live blocks: {largest})",
        requested = bytes(*.requested_bytes), free = bytes(*.free_bytes), total = bytes(*.total_bytes), live = bytes(*.live_bytes), reserved = bytes(*.reserved_bytes), largest = .largest_bytes.iter().map(|b| bytes(*b)).collect::<Vec<_>>().join(", "))]
    OutOfMemory {
        /// The device, in words.
        device: String,
        /// Bytes asked for.
        requested_bytes: u64,
        /// Bytes free on the device.
        free_bytes: u64,
        /// Bytes of the device.
        total_bytes: u64,
        /// Bytes in live blocks.
        live_bytes: u64,
        /// Bytes taken from the driver.
        reserved_bytes: u64,
        /// Live blocks.
        live_count: u64,
        /// Sizes of the largest live blocks, largest first.
        largest_bytes: Vec<u64>,
    },
    /// A number of elements or bytes does not fit.
    #[error("{op}: shape {shape:?} of {dtype:?} has more bytes than can be addressed")]
    TooLarge {
        /// Operation.
        op: &'static str,
        /// Shape.
        shape: Vec<usize>,
        /// Element type.
        dtype: DType,
    },
    /// What failed inside an operation that was given sound operands: memory, a launch, a library call.
    #[error("{}{source}; shapes {shapes:?}, dtypes {dtypes:?}", op_of(.op, .source))]
    In {
        /// Operation, or the kernel where a launch has no name of its own.
        op: &'static str,
        /// The shapes of the tensors concerned.
        shapes: Vec<Vec<usize>>,
        /// Their dtypes.
        dtypes: Vec<DType>,
        /// What failed.
        source: Box<Error>,
    },
    /// Shapes that do not fit together.
    #[error("{op}: {detail}; shapes {shapes:?}")]
    Shape {
        /// Operation.
        op: &'static str,
        /// What is wrong.
        detail: String,
        /// The shapes of the operands.
        shapes: Vec<Vec<usize>>,
    },
    /// Dtypes that do not fit together or are not supported by the operation.
    #[error("{op}: {detail}; dtypes {dtypes:?}")]
    DType {
        /// Operation.
        op: &'static str,
        /// What is wrong.
        detail: String,
        /// The dtypes of the operands.
        dtypes: Vec<DType>,
    },
    /// Operands on different devices.
    #[error("{op}: operands are on cuda:{lhs} and cuda:{rhs}; move one with to_device first")]
    Device {
        /// Operation.
        op: &'static str,
        /// Device of the first.
        lhs: usize,
        /// Device of the other.
        rhs: usize,
    },
    /// A parameter outside its range.
    #[error("{op}: {detail}")]
    Argument {
        /// Operation.
        op: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// A kernel met an index outside the tensor. The index was clamped, so the values that depend on it are wrong.
    #[error("{op}: index {index} is out of range for a dimension of size {size}")]
    IndexOutOfRange {
        /// Operation.
        op: String,
        /// The index.
        index: i64,
        /// The size of the dimension.
        size: i64,
    },
    /// Something that would wait for the device was asked for while its stream is being captured.
    #[error("{op}: not possible while the stream of cuda:{device} is captured into a graph")]
    Capturing {
        /// Operation.
        op: &'static str,
        /// Device index.
        device: usize,
    },
}

impl Error {
    /// Adds operation, shapes and dtypes to an error of the driver or a library; others name theirs already.
    pub(crate) fn within(self, op: &'static str, tensors: &[&CudaTensor]) -> Error {
        match self {
            source @ (Error::Cuda { .. } | Error::Launch { .. } | Error::OutOfMemory { .. }) => Error::In {
                op,
                shapes: tensors.iter().map(|t| t.dims().to_vec()).collect(),
                dtypes: tensors.iter().map(|t| t.dtype()).collect(),
                source: Box::new(source),
            },
            other => other,
        }
    }

    /// Whether it is for want of memory, in whatever operation.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        match self {
            Error::OutOfMemory { .. } => true,
            Error::In { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }

    /// What a failed backend method says: its name, unless the error begins with it, and the error. What is no failure of
    /// the method that noticed it stands alone: an index that another operation met, a device that is lost.
    pub(crate) fn in_method(&self, method: &str) -> String {
        let text = self.to_string();
        let plain = ["float_", "int_", "bool_", "q_"].iter().find_map(|kind| method.strip_prefix(kind));
        let op = text.split(':').next().unwrap_or_default();
        let known = op == method || Some(op) == plain;
        match self {
            Error::IndexOutOfRange { .. } | Error::ContextDead { .. } => text,
            _ if known => text,
            _ => format!("{method}: {text}"),
        }
    }
}

/// `op: `, or nothing where it is the kernel that the error of a launch begins with.
fn op_of(op: &str, source: &Error) -> String {
    match source {
        Error::Launch { kernel, .. } if kernel == op => String::new(),
        _ => format!("{op}: "),
    }
}

fn list(items: &[String]) -> String {
    if items.is_empty() { "the system's library path".into() } else { items.join(", ") }
}

/// `1536` -> `1.5 KiB`.
fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}
