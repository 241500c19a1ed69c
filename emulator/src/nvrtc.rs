//! NVRTC's functions, with the system's C++ compiler behind them.
//!
//! A kernel is preprocessed, its CUDA words are taken out or replaced, and what is left is C++ that goes with `device.hpp`
//! into a shared library: the "cubin". Every load and store in it calls the emulator first.
#![allow(unreachable_pub)] // the functions are found by name, in the shared library

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

const DEVICE: &str = include_str!("device.hpp");
/// Where the kernel's own text begins in the preprocessed one.
const MARKER: &str = "kiln_kernel_begins_here";

/// What the preprocessor gets.
const PREPROCESS: [&str; 5] = ["-E", "-x", "c++", "-std=c++17", "-w"];
/// What the compiler gets. No contraction into fused multiply-adds: the same result on every machine.
const COMPILE: [&str; 16] = [
    "-x",
    "c++-cpp-output",
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-strict-aliasing",
    "-fwrapv",
    // Each load and store calls a function, which device.hpp defines: the race detector's own library is left out.
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "-nodefaultlibs",
];
/// What a kernel is linked with.
const LIBRARIES: [&str; 2] = ["-lm", "-lgcc"];

type Status = c_int;
const SUCCESS: Status = 0;
const INVALID_INPUT: Status = 3;
const INVALID_PROGRAM: Status = 4;
const COMPILATION: Status = 6;

/// What a "cubin" of the emulator holds.
pub(crate) struct Image<'a> {
    /// Entry points.
    pub(crate) names: Vec<String>,
    /// Whether there are barriers or warp exchanges in the text.
    pub(crate) waits: bool,
    /// A shared library.
    pub(crate) library: &'a [u8],
}

const MAGIC: &[u8; 8] = b"KILNEMU1";

impl<'a> Image<'a> {
    /// Magic, bytes of all, bytes of the head, head, library. The head is `waits` (0 or 1) and the names, one a line.
    fn write(names: &[String], waits: bool, library: &[u8]) -> Vec<u8> {
        let head = format!("{}\n{}", waits as u8, names.join("\n"));
        let total = 24 + head.len() + library.len();
        let mut image = MAGIC.to_vec();
        image.extend((total as u64).to_le_bytes());
        image.extend((head.len() as u64).to_le_bytes());
        image.extend(head.as_bytes());
        image.extend(library);
        image
    }

    /// # Safety
    /// `at` points to an image, or to at least 8 bytes of something else; it lives as long as the result.
    pub(crate) unsafe fn read(at: *const u8) -> Result<Self, String> {
        let foreign = || String::from("the image was not made by the emulated compiler");
        // SAFETY: the caller vouches for 8 bytes.
        if at.is_null() || unsafe { std::slice::from_raw_parts(at, 8) } != MAGIC {
            return Err(foreign());
        }
        let number = |offset: usize| {
            let mut bytes = [0; 8];
            // SAFETY: an image has 24 bytes at least.
            bytes.copy_from_slice(unsafe { std::slice::from_raw_parts(at.add(offset), 8) });
            u64::from_le_bytes(bytes) as usize
        };
        let (total, head) = (number(8), number(16));
        // SAFETY: `write` stored the length of the whole.
        let image = unsafe { std::slice::from_raw_parts(at, total) };
        let text =
            std::str::from_utf8(image.get(24..24 + head).ok_or_else(foreign)?).map_err(|_| foreign())?;
        let (waits, names) = text.split_once('\n').unwrap_or((text, ""));
        let names = names.lines().map(str::to_owned).collect();
        Ok(Image { names, waits: waits == "1", library: &image[24 + head..] })
    }
}

/// A folder of its own for a moment, removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn new() -> std::io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("kiln-emulator-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The image of a source.
///
/// # Errors
/// The compiler's messages.
pub(crate) fn compile(source: &str, name: &str, defines: &[String]) -> Result<Vec<u8>, String> {
    let io = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let folder = Folder::new().map_err(io("a temporary folder"))?;
    let file = |name: &str| folder.0.join(name);
    let compiler = std::env::var_os("CXX").filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".into());
    let run = |arguments: &[&str], from: &str, to: &str, libraries: &[&str]| -> Result<(), String> {
        let mut command = Command::new(&compiler);
        command.args(arguments).args(defines).arg("-o").arg(file(to)).arg(file(from));
        command.args(["-x", "none"]).args(libraries);
        let output = command.output().map_err(|error| {
            format!("the emulator needs a C++ compiler, and {} cannot be run ({error}): install g++, or name one in CXX", compiler.display())
        })?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    };
    let name: String =
        name.chars().map(|c| if c == '"' || c == '\\' || c == '\n' { '_' } else { c }).collect();
    let text = format!("{DEVICE}\nint {MARKER};\n#line 1 \"{name}\"\n{source}\n");
    fs::write(file("kernel.cpp"), text).map_err(io("writing a kernel"))?;
    run(&PREPROCESS, "kernel.cpp", "kernel.ii", &[])?;
    let text = fs::read_to_string(file("kernel.ii")).map_err(io("reading a preprocessed kernel"))?;
    let translated = translate(&text)?;
    fs::write(file("kernel.ii"), translated.text).map_err(io("writing a kernel"))?;
    run(&COMPILE, "kernel.ii", "kernel.so", &LIBRARIES)?;
    let library = fs::read(file("kernel.so")).map_err(io("reading a compiled kernel"))?;
    Ok(Image::write(&translated.names, translated.waits, &library))
}

struct Translated {
    text: String,
    names: Vec<String>,
    waits: bool,
}

/// Takes CUDA's words out of preprocessed text, and appends a way into each kernel.
fn translate(text: &str) -> Result<Translated, String> {
    let (device, kernel) = text.split_once(MARKER).ok_or("the preprocessed text has lost its marker")?;
    let waits = [
        "kiln_state.barrier(",
        "__syncwarp",
        "__shfl",
        "__ballot",
        "__any_sync",
        "__all_sync",
        "__reduce_add_sync",
    ];
    let waits = waits.iter().any(|word| kernel.contains(word));
    let mut out = format!("{device}{MARKER}");
    let (mut rest, mut entries) = (kernel, Vec::new());
    loop {
        let next = ["__global__", "__launch_bounds__", "__shared__"];
        let Some((at, word)) = next.iter().filter_map(|word| Some((rest.find(word)?, *word))).min() else {
            break;
        };
        out.push_str(&rest[..at]);
        rest = &rest[at + word.len()..];
        match word {
            "__global__" => entries.push(entry(rest)?),
            "__launch_bounds__" => rest = parenthesised(rest)?.1,
            _ => {
                let (declaration, after) = rest.split_once(';').ok_or("a __shared__ without an end")?;
                out.push_str(&shared(declaration)?);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    for (name, bound) in &entries {
        out.push_str(&format!(
            "\nextern \"C\" __attribute__((no_sanitize(\"thread\"))) void kiln_info_{name}(KilnInfo* out) {{ kiln_info({name}, {bound}, out); }}\
             \nextern \"C\" __attribute__((no_sanitize(\"thread\"))) void kiln_run_{name}(void** a) {{ kiln_run({name}, a); }}\n"
        ));
    }
    Ok(Translated { text: out, names: entries.into_iter().map(|(name, _)| name).collect(), waits })
}

/// Name and thread bound of the kernel whose declaration goes on with this text.
fn entry(text: &str) -> Result<(String, String), String> {
    let head: String =
        text.lines().filter(|line| !line.starts_with('#')).take(12).collect::<Vec<_>>().join(" ");
    let (bound, head) = match head.split_once("__launch_bounds__") {
        Some((before, after)) if !before.contains('(') => {
            let (bound, after) = parenthesised(after)?;
            // A second argument is the wanted number of blocks on a multiprocessor.
            let first = bound.split(',').next().unwrap_or(bound);
            (first.trim().to_owned(), after.to_owned())
        }
        _ => ("1024".to_owned(), head),
    };
    let name = head.split('(').next().and_then(|before| before.split_whitespace().last());
    let name = name.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'));
    Ok((name.ok_or("a __global__ without a name")?.to_owned(), bound))
}

/// What is in the parentheses that the text begins with, and what follows them.
fn parenthesised(text: &str) -> Result<(&str, &str), String> {
    let open = text.find('(').ok_or("a __launch_bounds__ without an argument")?;
    let mut depth = 0;
    for (at, c) in text.char_indices().skip(open) {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return Ok((&text[open + 1..at], &text[at + 1..])),
            ')' => depth -= 1,
            _ => {}
        }
    }
    Err("a __launch_bounds__ without an end".into())
}

/// `T a[2][3], b` becomes storage and a reference to it for each name (device.hpp, `KilnShared`).
fn shared(declaration: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut kind = None;
    let mut depth = 0;
    let split = |c: char| {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    for declarator in declaration.split(split) {
        let (name, sizes) = match declarator.find('[') {
            Some(at) => (&declarator[..at], &declarator[at..]),
            None => (declarator, ""),
        };
        let name = name.trim();
        let (before, name) = match kind {
            Some(_) => ("", name),
            None => name.rsplit_once(char::is_whitespace).ok_or("a __shared__ without a name")?,
        };
        let kind: &str = kind.get_or_insert(before.trim());
        if kind.is_empty() || kind.starts_with("extern") {
            return Err("dynamic shared memory is not supported by the emulator".into());
        }
        out.push_str(&format!(
            " typedef {kind} kiln_type_{name}{sizes}; static KilnShared<kiln_type_{name}> kiln_storage_{name}; \
             kiln_type_{name}& {name} = kiln_shared(kiln_storage_{name});"
        ));
    }
    Ok(out)
}

/// A program under compilation.
struct Program {
    source: String,
    name: String,
    log: CString,
    image: Vec<u8>,
}

/// # Safety
/// `at` is null or a C string.
unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the caller passes a C string.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// The version: 13, and as minor version a hash of what the emulated compiler is, so that no cache keeps what an earlier
/// one made.
///
/// # Safety
/// As NVRTC's: both are valid places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> Status {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    hash.update(DEVICE);
    hash.update(include_str!("nvrtc.rs"));
    let bytes = hash.finalize();
    let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
    // SAFETY: the caller passes valid places.
    unsafe { (*major, *minor) = (13, number as c_int) };
    SUCCESS
}

/// # Safety
/// As NVRTC's; headers are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut *mut c_void,
    source: *const c_char,
    name: *const c_char,
    headers: c_int,
    _header_texts: *const *const c_char,
    _header_names: *const *const c_char,
) -> Status {
    if headers != 0 || source.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: the caller passes C strings.
    let (source, name) = unsafe { (text(source), text(name)) };
    let made = Box::new(Program { source, name, log: CString::default(), image: Vec::new() });
    // SAFETY: the caller passes a valid place.
    unsafe { *program = Box::into_raw(made).cast() };
    SUCCESS
}

/// # Safety
/// As NVRTC's: a program that `nvrtcCreateProgram` made, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut c_void) -> Status {
    // SAFETY: the caller passes a valid place, and in it a program.
    unsafe {
        if (*program).is_null() {
            return INVALID_PROGRAM;
        }
        drop(Box::from_raw((*program).cast::<Program>()));
        *program = std::ptr::null_mut();
    }
    SUCCESS
}

/// # Safety
/// `program` is one of `nvrtcCreateProgram`, in use by this thread only.
unsafe fn borrow<'a>(program: *mut c_void) -> &'a mut Program {
    // SAFETY: the caller's promise.
    unsafe { &mut *program.cast::<Program>() }
}

/// # Safety
/// As NVRTC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: *mut c_void,
    count: c_int,
    options: *const *const c_char,
) -> Status {
    // SAFETY: the caller passes a program and `count` C strings.
    let (program, options) = unsafe {
        let options: Vec<String> = (0..count as usize).map(|k| text(*options.add(k))).collect();
        (borrow(program), options)
    };
    let real = |o: &String| o.strip_prefix("--gpu-architecture=").is_none_or(|arch| arch.starts_with("sm_"));
    if !options.iter().all(real) {
        return INVALID_INPUT;
    }
    let defines: Vec<String> = options.into_iter().filter(|o| o.starts_with("-D")).collect();
    match compile(&program.source, &program.name, &defines) {
        Ok(image) => {
            program.image = image;
            SUCCESS
        }
        Err(log) => {
            program.log = CString::new(log.replace('\0', " ")).unwrap_or_default();
            COMPILATION
        }
    }
}

/// # Safety
/// As NVRTC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(program: *mut c_void, size: *mut usize) -> Status {
    // SAFETY: the caller passes a program and a valid place.
    unsafe { *size = borrow(program).log.as_bytes_with_nul().len() };
    SUCCESS
}

/// # Safety
/// As NVRTC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLog(program: *mut c_void, log: *mut c_char) -> Status {
    // SAFETY: the caller passes a program and as many bytes as its log has.
    unsafe {
        let bytes = borrow(program).log.as_bytes_with_nul();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), log.cast(), bytes.len());
    }
    SUCCESS
}

/// # Safety
/// As NVRTC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBINSize(program: *mut c_void, size: *mut usize) -> Status {
    // SAFETY: the caller passes a program and a valid place.
    unsafe { *size = borrow(program).image.len() };
    SUCCESS
}

/// # Safety
/// As NVRTC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBIN(program: *mut c_void, cubin: *mut c_char) -> Status {
    // SAFETY: the caller passes a program and as many bytes as its image has.
    unsafe {
        let image = &borrow(program).image;
        std::ptr::copy_nonoverlapping(image.as_ptr(), cubin.cast(), image.len());
    }
    SUCCESS
}

/// A static text.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(status: Status) -> *const c_char {
    match status {
        SUCCESS => c"NVRTC_SUCCESS",
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR unknown",
    }
    .as_ptr()
}
