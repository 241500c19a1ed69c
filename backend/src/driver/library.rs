//! Finds the CUDA libraries and opens them by full path, before cudarc does.
//!
//! cudarc opens fixed bare names, unversioned ones first, wherever the dynamic loader finds them, and panics when there
//! are none. Here the wanted file is found by a stated order and opened first; the loader then answers cudarc's
//! `lib*.so.13` with the file that is already open. An unversioned `lib*.so` elsewhere on the loader's path would still
//! win, so what cudarc really took is compared afterwards. NVRTC and cuDNN are called through [`symbol`] instead and need no
//! such check. The order for NVRTC, cuBLASLt and cuDNN ([`candidates`]):
//!
//! 1. `KILN_CUDA_PATH`: when set, the library comes from there or not at all;
//! 2. the per-user folder that the remedy in the error message fills;
//! 3. the dynamic loader's own search;
//! 4. `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`.
//!
//! Nothing is loaded from the working directory: relative entries of `KILN_CUDA_PATH` are an error, and those of
//! `LD_LIBRARY_PATH` (an empty one means the working directory) are passed over. An open library is never closed.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, OsString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, Result};

/// `--upgrade` matters: without it pip leaves a half-filled target folder as it is and still reports success.
macro_rules! install {
    ($($more:literal)?) => {
        concat!(
            "Install it with: python3 -m pip install --upgrade --target ~/.local/share/kiln/cuda nvidia-cuda-nvrtc==13.0.88 nvidia-cublas==13.1.0.3",
            $($more)?
        )
    };
}
const FIX_PATH: &str = "KILN_CUDA_PATH is set, so no other place was searched: correct it or unset it";
const DRIVER: &str =
    "The NVIDIA driver is missing: install it (in a container: start it with access to the GPU)";
const LOADER: &str = "the dynamic loader's search path";

/// A CUDA library that Kiln calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    /// The driver API.
    Cuda,
    /// The run-time compiler.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions; optional.
    Cudnn,
}

impl Library {
    fn words(self) -> &'static str {
        match self {
            Library::Cuda => "the NVIDIA driver library libcuda",
            Library::Nvrtc => "the CUDA run-time compiler NVRTC",
            Library::CublasLt => "the CUDA matrix library cuBLASLt",
            Library::Cudnn => "the CUDA convolution library cuDNN",
        }
    }

    /// The major version that the bindings are made for; libraries of another one are passed over. libcuda's file name
    /// tells none.
    fn major(self) -> Option<&'static str> {
        match self {
            Library::Cuda => None,
            Library::Nvrtc | Library::CublasLt => Some("13"),
            Library::Cudnn => Some("9"),
        }
    }

    /// Where NVIDIA's Python packages of CUDA 13 keep it, in `site-packages` as under `pip --target`.
    fn python_folder(self) -> &'static str {
        if self == Library::Cudnn { "nvidia/cudnn/lib" } else { "nvidia/cu13/lib" }
    }

    /// File names, the preferred one first. cudarc knows more (`libnvrtc64_12.so`, ...), which exist on no Linux.
    /// A plain `libcuda.so` is left out: alone it is the linker's stub.
    fn names(self) -> &'static [&'static str] {
        match self {
            Library::Cuda => &["libcuda.so.1"],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so"],
            Library::CublasLt => &["libcublasLt.so.13", "libcublasLt.so"],
            Library::Cudnn => &["libcudnn.so.9", "libcudnn.so"],
        }
    }

    /// What to do where it is missing. cuDNN comes with the others, since pip clears the folder that all of them share.
    fn remedy(self) -> &'static str {
        match self {
            Library::Cuda => DRIVER,
            Library::Nvrtc | Library::CublasLt => install!(),
            Library::Cudnn => install!(" nvidia-cudnn-cu13==9.19.0.56"),
        }
    }

    /// A function that every version has; its address tells which file is in use.
    fn probe(self) -> &'static str {
        match self {
            Library::Cuda => "cuInit",
            Library::Nvrtc => "nvrtcVersion",
            Library::CublasLt => "cublasLtGetVersion",
            Library::Cudnn => "cudnnGetVersion",
        }
    }

    /// The names that cudarc builds its file names from; none when cudarc is not used for this library.
    fn cudarc_names(self) -> &'static [&'static str] {
        match self {
            Library::Cuda => &["cuda", "nvcuda"],
            Library::CublasLt => &["cublasLt"],
            Library::Nvrtc | Library::Cudnn => &[],
        }
    }
}

/// Opens `library` if this process has not yet, and returns its file. A failure may be retried.
///
/// # Errors
/// `LibraryMissing` if no candidate can be opened, `LibraryShadowed` if cudarc would call another file, `Argument` for
/// a relative entry in `KILN_CUDA_PATH`.
pub(crate) fn load(library: Library) -> Result<&'static Path> {
    Ok(&loaded(library)?.path)
}

/// The function `name` of `library`, which is loaded if need be. `T` is its function pointer type.
///
/// # Safety
/// `T` must be the pointer type of that function's C signature.
pub(crate) unsafe fn symbol<T: Copy>(library: Library, name: &'static str) -> Result<T> {
    let loaded = loaded(library)?;
    // SAFETY: the caller promises the type; the library is never closed, so the copied pointer stays valid.
    let found = unsafe { loaded.handle.get::<T>(name) };
    found.map(|symbol| *symbol).map_err(|error| Error::Cuda {
        call: name,
        code: 0,
        name: "missing symbol".into(),
        message: format!("{} does not have it ({error})", loaded.path.display()),
    })
}

/// An open library.
struct Loaded {
    path: PathBuf,
    handle: Handle,
    /// What it would look for by bare name: NVRTC's built-in headers, cuDNN's parts.
    _parts: Vec<Handle>,
}

fn loaded(library: Library) -> Result<&'static Loaded> {
    static LOADED: [OnceLock<Loaded>; 4] = [const { OnceLock::new() }; 4];
    static LOADING: Mutex<()> = Mutex::new(());

    let slot = &LOADED[library as usize];
    if let Some(loaded) = slot.get() {
        return Ok(loaded);
    }
    let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(loaded) = slot.get() {
        return Ok(loaded);
    }
    let loaded = open(library, &Environment::of_process())?;
    log::info!("{} loaded from {}", library.words(), loaded.path.display());
    Ok(slot.get_or_init(|| loaded))
}

/// The variables that the search reads; an empty value counts as unset.
#[derive(Debug, Default, Clone)]
struct Environment {
    kiln_cuda_path: Option<OsString>,
    ld_library_path: Option<OsString>,
    xdg_data_home: Option<OsString>,
    home: Option<OsString>,
    cuda_home: Option<OsString>,
    cuda_path: Option<OsString>,
}

impl Environment {
    fn of_process() -> Self {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            kiln_cuda_path: var("KILN_CUDA_PATH"),
            ld_library_path: var("LD_LIBRARY_PATH"),
            xdg_data_home: var("XDG_DATA_HOME"),
            home: var("HOME"),
            cuda_home: var("CUDA_HOME"),
            cuda_path: var("CUDA_PATH"),
        }
    }

    /// Entries of `LD_LIBRARY_PATH`, which the loader splits at `;` too.
    fn loader_folders(&self) -> impl Iterator<Item = &Path> {
        let value = self.ld_library_path.as_deref().map(OsStr::as_bytes);
        let entries = value.into_iter().flat_map(|v| v.split(|&b| b == b':' || b == b';'));
        entries.map(|entry| Path::new(OsStr::from_bytes(entry)))
    }
}

/// A place to open a library from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Candidate {
    /// This file.
    File(PathBuf),
    /// Whatever the dynamic loader finds under this name.
    ByName(&'static str),
}

/// Every candidate for `library` in the order of preference (module documentation). Looks at no file.
fn candidates(library: Library, env: &Environment) -> Result<Vec<Candidate>> {
    let names = library.names();
    let files = |folder: &Path| -> Vec<Candidate> {
        names.iter().map(|name| Candidate::File(folder.join(name))).collect()
    };
    let absolute =
        |value: &Option<OsString>| value.as_ref().map(PathBuf::from).filter(|path| path.is_absolute());
    let python = |folder: &Path| folder.join(library.python_folder());
    let by_loader = || names.iter().map(|name| Candidate::ByName(name));
    let mut all = Vec::new();

    if library == Library::Cuda {
        // Only the driver's own installation knows where its library is.
        all.extend(by_loader());
        return Ok(all);
    }
    for entry in env.kiln_cuda_path.iter().flat_map(std::env::split_paths) {
        if entry.as_os_str().is_empty() {
            continue;
        }
        if !entry.is_absolute() {
            return Err(Error::Argument {
                op: "KILN_CUDA_PATH",
                detail: format!(
                    "{:?} is a relative path; libraries are not loaded from the working directory, so write it in full",
                    entry.display().to_string()
                ),
            });
        }
        for folder in [entry.clone(), entry.join("lib64"), entry.join("lib"), python(&entry)] {
            all.extend(files(&folder));
        }
    }
    if !all.is_empty() {
        return Ok(all);
    }
    // Both homes, since the remedy's command names the second whatever XDG_DATA_HOME says.
    let data_homes =
        [absolute(&env.xdg_data_home), absolute(&env.home).map(|home| home.join(".local/share"))];
    for home in data_homes.into_iter().flatten() {
        all.extend(files(&python(&home.join("kiln/cuda"))));
    }
    for folder in env.loader_folders().filter(|folder| folder.is_absolute()) {
        all.extend(files(folder));
    }
    all.extend(by_loader());
    let toolkits = [absolute(&env.cuda_home), absolute(&env.cuda_path), Some("/usr/local/cuda".into())];
    for toolkit in toolkits.into_iter().flatten() {
        all.extend(files(&toolkit.join("lib64")));
    }
    Ok(all)
}

/// Opens the first candidate that works.
fn open(library: Library, env: &Environment) -> Result<Loaded> {
    let mut searched: Vec<String> = Vec::new();
    let mut note = |place: String| {
        if !searched.contains(&place) {
            searched.push(place);
        }
    };
    for candidate in candidates(library, env)? {
        let opened = match &candidate {
            Candidate::File(path) if !path.is_file() => {
                note(path.parent().unwrap_or(path).display().to_string());
                continue;
            }
            Candidate::File(path) => match other_major(library, path) {
                Some(other) => Err(other),
                None => open_file(path).map_err(|error| format!("{} ({error})", path.display())),
            },
            Candidate::ByName(name) => match in_working_dir(env, &[name]) {
                Some(file) => {
                    Err(format!("{} (a relative entry of LD_LIBRARY_PATH: not used)", file.display()))
                }
                None => open_file(Path::new(name)).map_err(|error| loader_note(name, &error)),
            },
        };
        let found = opened.and_then(|handle| {
            let path = match (&candidate, library_file(&handle, library.probe())) {
                (_, None) => return Err(format!("{candidate:?} (has no function {})", library.probe())),
                (Candidate::File(path), _) => path.clone(),
                (Candidate::ByName(_), Some(file)) => file,
            };
            match other_major(library, &path) {
                Some(other) => Err(other),
                None => Ok((path, handle)),
            }
        });
        let found = found.and_then(|(path, handle)| {
            let parts = match library {
                Library::Nvrtc => open_builtins(&handle, &path).into_iter().collect(),
                Library::Cudnn => open_parts(env, &handle, &path)?,
                Library::Cuda | Library::CublasLt => Vec::new(),
            };
            Ok((path, handle, parts))
        });
        let (path, handle, parts) = match found {
            Ok(found) => found,
            Err(place) => {
                note(place);
                continue;
            }
        };
        let path = same_as_cudarc(library, env, path, &handle)?;
        return Ok(Loaded { path, handle, _parts: parts });
    }
    let forced = library != Library::Cuda && env.kiln_cuda_path.is_some();
    let remedy = if forced { FIX_PATH } else { library.remedy() };
    let names = library.names().iter().map(|&name| name.to_owned()).collect();
    Err(Error::LibraryMissing { library: library.words(), names, searched, remedy })
}

/// The loader's "no such file" is the plain case; anything else is worth repeating.
fn loader_note(name: &str, error: &str) -> String {
    let plain = error.contains("cannot open shared object file: No such file") && error.contains(name);
    if plain { LOADER.into() } else { format!("{LOADER} ({error})") }
}

/// What is wrong with the major version in the name of the file behind `path`, if it is not ours: `libnvrtc.so` may lead
/// to `libnvrtc.so.12.4.127`. Names without a version tell nothing.
fn other_major(library: Library, path: &Path) -> Option<String> {
    let needed = library.major()?;
    let file = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
    let major = version.split('.').next()?;
    (major != needed).then(|| format!("{} (version {major}, needed is {needed})", path.display()))
}

/// The file that the dynamic loader would take for one of `names` through an empty or relative entry of
/// `LD_LIBRARY_PATH`.
fn in_working_dir(env: &Environment, names: &[impl AsRef<Path>]) -> Option<PathBuf> {
    const VARIANTS: [&str; 4] =
        ["", "glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2"];
    let folders = env.loader_folders().filter(|folder| !folder.is_absolute());
    folders
        .flat_map(|folder| VARIANTS.map(|variant| Path::new(".").join(folder).join(variant)))
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
        .find(|file| file.exists())
        .map(|file| std::path::absolute(&file).unwrap_or(file))
}

/// NVRTC 13.0 opens its built-ins by bare name and has no run path, so they are opened from beside it first. Their
/// name has the compiler's full version.
fn open_builtins(nvrtc: &Handle, path: &Path) -> Option<Handle> {
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: the type is nvrtcVersion's signature in nvrtc.h, unchanged since CUDA 7.
    let version = unsafe { nvrtc.get::<Version>("nvrtcVersion") }.ok()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both arguments point to live integers; the function only writes them.
    let status = unsafe { version(&mut major, &mut minor) };
    if status != 0 {
        return None;
    }
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = format!("libnvrtc-builtins.so.{major}.{minor}");
    let files = [&real, path].into_iter().filter_map(|file| Some(file.parent()?.join(&name)));
    files.into_iter().filter(|file| file.is_file()).find_map(|file| {
        open_file(&file).inspect_err(|error| log::warn!("{} cannot be opened: {error}", file.display())).ok()
    })
}

/// cuDNN 9 opens its parts by bare name at its first call, and ends the process if one is missing: they are opened from
/// beside it first, or found by the loader. One that is made for another CUDA would look for that one's cuBLASLt.
fn open_parts(env: &Environment, cudnn: &Handle, path: &Path) -> std::result::Result<Vec<Handle>, String> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let open = |part: &str| {
        let name = format!("libcudnn_{part}.so.9");
        let mut beside = [path, &real].into_iter().filter_map(|file| Some(file.parent()?.join(&name)));
        let opened = match beside.find(|file| file.is_file()) {
            Some(file) => open_file(&file),
            None if in_working_dir(env, &[&name]).is_some() => {
                Err("found through a relative entry of LD_LIBRARY_PATH".into())
            }
            None => open_file(Path::new(&name)),
        };
        opened.map_err(|error| format!("{} (its part {name}: {error})", path.display()))
    };
    let parts = ["graph", "ops", "cnn", "heuristic", "engines_precompiled", "engines_runtime_compiled"];
    let parts = parts.into_iter().map(open).collect::<std::result::Result<_, _>>()?;
    type Version = unsafe extern "C" fn() -> usize;
    // SAFETY: the type is cudnnGetCudartVersion's signature in cudnn_graph.h.
    let version = unsafe { cudnn.get::<Version>("cudnnGetCudartVersion") };
    // SAFETY: takes nothing and has no effect.
    let cuda = version.map(|version| unsafe { version() } / 1000).unwrap_or_default();
    if Library::CublasLt.major().is_none_or(|major| major != cuda.to_string()) {
        return Err(format!("{} (made for CUDA {cuda})", path.display()));
    }
    Ok(parts)
}

/// Opens a library for good: `RTLD_NOW`, so that what is missing shows here and not at a call.
fn open_file(path: &Path) -> std::result::Result<Handle, String> {
    // SAFETY: initialisers of NVIDIA's libraries may run on any thread; `path` is absolute or a bare name that
    // `in_working_dir` let pass.
    let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    handle.map_err(|error| match std::error::Error::source(&error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    })
}

/// The file that `probe` of an open library lies in.
fn library_file(handle: &Handle, probe: &str) -> Option<PathBuf> {
    // SAFETY: the symbol is only used as an address.
    let address = unsafe { handle.get::<*const c_void>(probe) };
    file_of(*address.ok()?)
}

/// The file that is mapped at `address`.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr takes any address and writes `info` only.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: all of Dl_info is valid when zeroed, or dladdr has written it.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr's name is a C string that lives as long as the library, and libraries are not closed meanwhile.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    Some(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}

/// The file that cudarc opens for a library; `None` if it finds none.
macro_rules! file_of_cudarc {
    ($($sys:ident)::+, $probe:expr) => {
        // SAFETY: opens and closes libraries whose initialisers may run on any thread.
        if unsafe { $($sys)::+::is_culib_present() } {
            // SAFETY: as above; the library was there a moment ago, so this does not panic.
            let culib = unsafe { $($sys)::+::culib() };
            // SAFETY: the symbol is only used as an address.
            unsafe { culib.get::<*const c_void>($probe) }.ok().and_then(|address| file_of(*address))
        } else {
            None
        }
    };
}

/// Makes cudarc open its copy of `library` and compares: returns the file in use.
///
/// Without `KILN_CUDA_PATH` another file of the right major version is as good and is what gets used; with it, it is
/// an error, which lasts as long as the process since cudarc keeps its handle.
fn same_as_cudarc(library: Library, env: &Environment, path: PathBuf, handle: &Handle) -> Result<PathBuf> {
    let names = library.cudarc_names().iter().flat_map(|name| cudarc::get_lib_name_candidates(name));
    // From our own name on, the loader answers with the file that is open.
    let before_ours: Vec<String> = names.take_while(|name| name != library.names()[0]).collect();
    let shadowed =
        |loaded: PathBuf| Error::LibraryShadowed { library: library.words(), loaded, wanted: path.clone() };
    if let Some(file) = in_working_dir(env, &before_ours) {
        return Err(shadowed(file));
    }
    let taken = match library {
        Library::Nvrtc | Library::Cudnn => return Ok(path),
        Library::Cuda => file_of_cudarc!(cudarc::driver::sys, library.probe()),
        Library::CublasLt => file_of_cudarc!(cudarc::cublaslt::sys, library.probe()),
    };
    let Some(taken) = taken else {
        let searched = vec![format!("{} (cudarc does not find it under this name)", path.display())];
        return Err(Error::LibraryMissing {
            library: library.words(),
            names: before_ours,
            searched,
            remedy: library.remedy(),
        });
    };
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let ours = library_file(handle, library.probe()).unwrap_or_else(|| path.clone());
    if real(&taken) == real(&ours) {
        return Ok(path);
    }
    // A second libcuda is a stub or the leftover of another driver: never as good.
    if library == Library::Cuda || env.kiln_cuda_path.is_some() || other_major(library, &taken).is_some() {
        return Err(shadowed(taken));
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn os(text: &str) -> Option<OsString> {
        Some(text.into())
    }

    fn full() -> Environment {
        Environment {
            kiln_cuda_path: None,
            ld_library_path: os("/ld1::relative:/ld2:"),
            xdg_data_home: os("/data"),
            home: os("/home/me"),
            cuda_home: os("/cuda-home"),
            cuda_path: os("relative/cuda"),
        }
    }

    /// The candidates as text, only those with the preferred name.
    fn listed(library: Library, env: &Environment) -> Vec<String> {
        let name = library.names()[0];
        let all = candidates(library, env).unwrap();
        let shown = all.iter().map(|candidate| match candidate {
            Candidate::File(path) => path.display().to_string(),
            Candidate::ByName(name) => (*name).to_owned(),
        });
        shown.filter(|text| text.ends_with(name)).collect()
    }

    #[test]
    fn order_of_the_search() {
        let expected = [
            "/data/kiln/cuda/nvidia/cu13/lib/libnvrtc.so.13",
            "/home/me/.local/share/kiln/cuda/nvidia/cu13/lib/libnvrtc.so.13",
            "/ld1/libnvrtc.so.13",
            "/ld2/libnvrtc.so.13",
            "libnvrtc.so.13",
            "/cuda-home/lib64/libnvrtc.so.13",
            "/usr/local/cuda/lib64/libnvrtc.so.13",
        ];
        assert_eq!(listed(Library::Nvrtc, &full()), expected);
        let none = Environment::default();
        assert_eq!(listed(Library::Nvrtc, &none), ["libnvrtc.so.13", "/usr/local/cuda/lib64/libnvrtc.so.13"]);
    }

    /// Symptom: not found in images that have only versioned names, or only unversioned ones.
    #[test]
    fn both_names_are_tried_in_each_folder() {
        let all = candidates(Library::CublasLt, &Environment::default()).unwrap();
        let file = |name: &str| Candidate::File(Path::new("/usr/local/cuda/lib64").join(name));
        let by_name = [Candidate::ByName("libcublasLt.so.13"), Candidate::ByName("libcublasLt.so")];
        assert_eq!(all[..2], by_name);
        assert_eq!(all[2..], [file("libcublasLt.so.13"), file("libcublasLt.so")]);
    }

    #[test]
    fn cudnn_has_a_folder_of_its_own_among_python_packages() {
        let env = Environment { kiln_cuda_path: os("/a"), ..Environment::default() };
        let folders = ["/a", "/a/lib64", "/a/lib", "/a/nvidia/cudnn/lib"];
        assert_eq!(listed(Library::Cudnn, &env), folders.map(|folder| format!("{folder}/libcudnn.so.9")));
    }

    #[test]
    fn kiln_cuda_path_excludes_all_else() {
        let env = Environment { kiln_cuda_path: os("/a::/b:"), ..full() };
        let expected = [
            "/a",
            "/a/lib64",
            "/a/lib",
            "/a/nvidia/cu13/lib",
            "/b",
            "/b/lib64",
            "/b/lib",
            "/b/nvidia/cu13/lib",
        ];
        assert_eq!(listed(Library::Nvrtc, &env), expected.map(|folder| format!("{folder}/libnvrtc.so.13")));
        assert_eq!(listed(Library::Cuda, &env), ["libcuda.so.1"]);
    }

    #[test]
    fn relative_kiln_cuda_path_is_an_error() {
        for path in ["here", "./here", "/a:here", "../x"] {
            let env = Environment { kiln_cuda_path: os(path), ..full() };
            let error = candidates(Library::Nvrtc, &env).unwrap_err().to_string();
            assert!(error.starts_with("KILN_CUDA_PATH") && error.contains("relative"), "{error}");
        }
    }

    #[test]
    fn missing_library_says_where_it_was_looked_for() {
        let env = Environment { kiln_cuda_path: os("/nonexistent/kiln"), ..Environment::default() };
        let error = open(Library::Nvrtc, &env).err().unwrap().to_string();
        for part in ["NVRTC", "libnvrtc.so.13", "/nonexistent/kiln/nvidia/cu13/lib", "KILN_CUDA_PATH"] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }

    #[test]
    fn file_that_is_no_library_is_named_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("kiln-library-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("libnvrtc.so.13"), "not a library").unwrap();
        fs::write(folder.join("libnvrtc.so.12"), "older").unwrap();
        std::os::unix::fs::symlink("libnvrtc.so.12", folder.join("libnvrtc.so")).unwrap();
        let env = Environment { kiln_cuda_path: Some(folder.clone().into()), ..Environment::default() };
        let error = open(Library::Nvrtc, &env).err().unwrap().to_string();
        fs::remove_dir_all(&folder).unwrap();
        assert!(error.contains("libnvrtc.so.13 (") && error.contains("file too short"), "{error}");
        assert!(error.contains("libnvrtc.so (version 12, needed is 13)"), "{error}");
    }

    #[test]
    fn relative_entries_of_the_loader_path_are_noticed() {
        let name = format!("kiln-working-dir-{}", std::process::id());
        fs::create_dir_all(&name).unwrap();
        let in_dir = |path: &str, name: &str| {
            in_working_dir(&Environment { ld_library_path: os(path), ..Environment::default() }, &[name])
        };
        let found = ["", ":/a", "/a:", "/a::/b", ".", "/a;.", "./"].map(|path| in_dir(path, &name));
        let not_found = in_dir("/a:/b", &name);
        fs::remove_dir(&name).unwrap();
        for path in found {
            let path = path.unwrap();
            assert!(path.is_absolute() && path.ends_with(&name), "{}", path.display());
        }
        assert_eq!(not_found, None);
        assert_eq!(in_dir(":", "libnvrtc.so"), None);
    }
}
