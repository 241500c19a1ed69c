//! CUDA source to code for one GPU architecture, once: in memory, else from disk, else compiled.
//!
//! [`KernelCompiler`] is what the rest of the crate sees. [`Nvrtc`] is the compiler behind it and [`DiskCache`] what it
//! remembers between processes; both can be replaced or left out.
//!
//! ```text
//! get(source, arch) -> key = hash of all that the result depends on
//!     slot of the key: the first caller fills it, others wait for it
//!         disk cache, else compiler, then written to the disk cache
//! ```

mod cache;
mod nvrtc;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

pub(crate) use cache::DiskCache;
pub(crate) use nvrtc::Nvrtc;

use crate::error::{Error, Result};

/// A kernel to compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// What messages call it, for example `elementwise/add_f32`; no part of the result's identity.
    pub(crate) name: String,
    /// CUDA C++ that includes nothing.
    pub(crate) text: String,
    /// Options beside the architecture and the compiler's fixed ones.
    pub(crate) options: Vec<String>,
}

/// Turns a source into a cubin.
pub(crate) trait Compiler: Send + Sync {
    /// Major and minor version.
    fn version(&self) -> Result<(i32, i32)>;

    /// What goes into every compilation unasked and changes its result.
    fn fixed_options(&self) -> Vec<String> {
        Vec::new()
    }

    /// The cubin of `source` for `arch`, for example `sm_90a`. Called from several threads at once.
    ///
    /// # Errors
    /// `Compile` with the compiler's log.
    fn compile(&self, source: &Source, arch: &str) -> Result<Vec<u8>>;
}

/// The SHA-256 of all that a cubin depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Raise it when the meaning of an ingredient changes.
    const FORMAT: u32 = 1;

    fn new(source: &Source, arch: &str, compiler: &dyn Compiler) -> Result<Self> {
        let (major, minor) = compiler.version()?;
        let mut hash = Sha256::new();
        // Each part with its length before it, so that no two lists of parts give the same bytes.
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(&Self::FORMAT.to_le_bytes());
        part(&major.to_le_bytes());
        part(&minor.to_le_bytes());
        part(arch.as_bytes());
        part(source.text.as_bytes());
        for options in [&compiler.fixed_options(), &source.options] {
            part(&(options.len() as u64).to_le_bytes());
            options.iter().for_each(|option| part(option.as_bytes()));
        }
        Ok(Self(hash.finalize().into()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the kernel compiler did since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompileStats {
    /// Requests answered from memory, those that waited for a compilation in flight included.
    pub memory_hits: u64,
    /// Requests answered from disk.
    pub disk_hits: u64,
    /// Requests that had to be compiled.
    pub misses: u64,
    /// Those of `misses` that failed.
    pub failures: u64,
    /// Time spent compiling, summed over threads.
    pub compile_time: Duration,
}

/// The threads to give to [`KernelCompiler::new`].
pub(crate) fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8))
}

/// Compiles each kernel once and remembers the results for the life of the process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct KernelCompiler {
    shared: Arc<Shared>,
}

/// Filled by the first caller, whom all others of the same key wait for.
type Slot = Arc<OnceLock<Result<Arc<[u8]>>>>;

struct Shared {
    compiler: Arc<dyn Compiler>,
    cache: Option<DiskCache>,
    threads: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slots: HashMap<Key, Slot>,
    /// What [`KernelCompiler::prefetch`] asked for and no thread has taken up.
    queue: VecDeque<(Source, String)>,
    /// Threads that work on the queue; each ends when it is empty.
    workers: usize,
    /// Compilations that run now, on whatever thread.
    running: usize,
    /// The process ends: nothing new is compiled.
    stopped: bool,
    stats: CompileStats,
}

impl KernelCompiler {
    /// `threads` bounds the background threads of [`prefetch`](Self::prefetch).
    pub(crate) fn new(compiler: Arc<dyn Compiler>, cache: Option<DiskCache>, threads: usize) -> Self {
        let state = Mutex::new(State::default());
        Self { shared: Arc::new(Shared { compiler, cache, threads: threads.max(1), state }) }
    }

    /// The cubin of `source` for `arch`. Never waits for anything but this kernel's own compilation.
    ///
    /// # Errors
    /// `Compile` if it does not compile: for all callers that waited, while a later call tries again. What the compiler
    /// itself needs may be missing, too.
    pub(crate) fn get(&self, source: &Source, arch: &str) -> Result<Arc<[u8]>> {
        self.shared.get(source, arch)
    }

    /// Starts to compile `sources` in the background. Failures show when the kernel is asked for.
    pub(crate) fn prefetch(&self, sources: impl IntoIterator<Item = Source>, arch: &str) {
        let mut state = self.shared.state();
        state.queue.extend(sources.into_iter().map(|source| (source, arch.to_owned())));
        let wanted = self.shared.threads.min(state.workers + state.queue.len());
        while state.workers < wanted {
            let shared = Arc::clone(&self.shared);
            let spawned =
                std::thread::Builder::new().name("kiln-compile".into()).spawn(move || shared.work());
            if let Err(error) = spawned {
                log::debug!("no thread for compiling ahead: {error}");
                break;
            }
            state.workers += 1;
        }
        if state.workers == 0 {
            state.queue.clear();
        }
    }

    /// Compiles nothing new from now on, and waits, for at most ten seconds, for what is running.
    pub(crate) fn stop(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let mut state = self.shared.state();
            state.stopped = true;
            state.queue.clear();
            if state.running == 0 || Instant::now() > end {
                return;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What happened so far.
    pub(crate) fn stats(&self) -> CompileStats {
        self.shared.state().stats
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock, and every state in between is a valid one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, source: &Source, arch: &str) -> Result<Arc<[u8]>> {
        let key = Key::new(source, arch, &*self.compiler)?;
        let slot = Arc::clone(self.state().slots.entry(key).or_default());
        let mut filled_here = false;
        let result = slot.get_or_init(|| {
            filled_here = true;
            // A panic that left here would wake the waiters one by one, each to panic in turn.
            catch_unwind(AssertUnwindSafe(|| self.build(&key, source, arch))).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                let log = format!("the compiler panicked: {text}");
                Err(Error::Compile { kernel: source.name.clone(), arch: arch.into(), log })
            })
        });
        let mut state = self.state();
        match result {
            Ok(_) if !filled_here => state.stats.memory_hits += 1,
            Ok(_) => {}
            Err(_) => {
                state.stats.failures += u64::from(filled_here);
                // Unless a later call has put a new slot there.
                if state.slots.get(&key).is_some_and(|current| Arc::ptr_eq(current, &slot)) {
                    state.slots.remove(&key);
                }
            }
        }
        result.clone()
    }

    fn build(&self, key: &Key, source: &Source, arch: &str) -> Result<Arc<[u8]>> {
        if let Some(cubin) = self.cache.as_ref().and_then(|cache| cache.load(key)) {
            self.state().stats.disk_hits += 1;
            return Ok(cubin.into());
        }
        let mut state = self.state();
        if state.stopped {
            let log = "the process is ending".into();
            return Err(Error::Compile { kernel: source.name.clone(), arch: arch.into(), log });
        }
        state.stats.misses += 1;
        state.running += 1;
        drop(state);
        let start = Instant::now();
        let compiled = catch_unwind(AssertUnwindSafe(|| self.compiler.compile(source, arch)));
        let elapsed = start.elapsed();
        let mut state = self.state();
        state.stats.compile_time += elapsed;
        state.running -= 1;
        drop(state);
        let compiled = compiled.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let cubin = compiled?;
        log::debug!("compiled {} for {arch} in {:.0} ms", source.name, elapsed.as_secs_f64() * 1e3);
        if let Some(cache) = &self.cache {
            cache.store(key, &cubin);
        }
        Ok(cubin.into())
    }

    /// A background thread: takes up one kernel after the other until there are no more.
    fn work(&self) {
        loop {
            let mut state = self.state();
            let Some((source, arch)) = state.queue.pop_front() else {
                state.workers -= 1;
                return;
            };
            drop(state);
            // The caller who needs the kernel gets the error. A panic of `version` must not end the thread uncounted.
            let _ = catch_unwind(AssertUnwindSafe(|| self.get(&source, &arch)));
        }
    }
}

/// The text of kernel file `name`: `embedded`, or for development the file of that name in `KILN_KERNEL_DIR`.
///
/// # Errors
/// `Argument` if the variable is set and the file cannot be read.
pub(crate) fn kernel_text(name: &str, embedded: &'static str) -> Result<Cow<'static, str>> {
    let folder = std::env::var_os("KILN_KERNEL_DIR").filter(|folder| !folder.is_empty());
    kernel_text_from(folder.as_deref(), name, embedded)
}

fn kernel_text_from(folder: Option<&OsStr>, name: &str, embedded: &'static str) -> Result<Cow<'static, str>> {
    static WARNED: Once = Once::new();

    let Some(folder) = folder else { return Ok(Cow::Borrowed(embedded)) };
    let path = Path::new(folder).join(name);
    WARNED.call_once(|| {
        log::warn!("KILN_KERNEL_DIR is set: kernels come from {}, not from this build", folder.display());
    });
    std::fs::read_to_string(&path).map(Cow::Owned).map_err(|error| Error::Argument {
        op: "KILN_KERNEL_DIR",
        detail: format!("{} cannot be read ({error})", path.display()),
    })
}
