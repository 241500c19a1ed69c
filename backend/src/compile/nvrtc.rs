//! NVRTC: CUDA C++ source to a cubin for one architecture, in this process.
//!
//! The functions are bound here rather than taken from cudarc: a missing one is an error and not a panic, a status that
//! cudarc's enum does not know is no undefined behaviour, and the file that [`library`] opened is the one that is called.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use super::{Compiler, Source};
use crate::driver::library::{self, Library};
use crate::error::{Error, Result};

/// What every kernel is compiled with. `-default-device` makes unmarked functions device functions.
const OPTIONS: [&str; 2] = ["--std=c++17", "-default-device"];

/// NVRTC appends the value of this variable to every command line, so it belongs to what identifies a result.
const APPENDED: &str = "NVRTC_APPEND_FLAGS";

/// NVRTC recurses with the nesting of the source: 500 nested parentheses overflow the 2 MiB of a Rust thread, which
/// would end the process. Only pages that are touched cost memory.
const STACK_BYTES: usize = 128 << 20;

/// The run-time compiler. Loads the library at the first call.
#[derive(Debug, Default)]
pub(crate) struct Nvrtc;

impl Compiler for Nvrtc {
    fn version(&self) -> Result<(i32, i32)> {
        let api = Api::get()?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both arguments point to live integers; the function only writes them.
        api.check("nvrtcVersion", unsafe { (api.version)(&mut major, &mut minor) })?;
        Ok((major, minor))
    }

    fn fixed_options(&self) -> Vec<String> {
        let appended = std::env::var_os(APPENDED).map(|value| format!("{APPENDED}={}", value.display()));
        OPTIONS.iter().map(|&option| option.to_owned()).chain(appended).collect()
    }

    fn compile(&self, source: &Source, arch: &str) -> Result<Vec<u8>> {
        let api = Api::get()?;
        let result = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("kiln-nvrtc".into()).stack_size(STACK_BYTES);
            match thread.spawn_scoped(scope, || compile(api, source, arch)) {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // Out of threads or address space: this stack will do for most kernels.
                Err(_) => compile(api, source, arch),
            }
        });
        crate::kernels::stop_at_exit_from_now_on();
        result
    }
}

fn compile(api: &'static Api, source: &Source, arch: &str) -> Result<Vec<u8>> {
    let failed = |log: String| Error::Compile { kernel: source.name.clone(), arch: arch.into(), log };
    let text = |what: &str, value: &str| {
        CString::new(value).map_err(|_| failed(format!("the {what} contains a NUL character")))
    };
    let (name, code) = (text("name", &source.name)?, text("source", &source.text)?);
    let options = std::iter::once(format!("--gpu-architecture={arch}"))
        .chain(OPTIONS.iter().map(|&option| option.to_owned()))
        .chain(source.options.iter().cloned())
        .map(|option| text("options", &option))
        .collect::<Result<Vec<_>>>()?;
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let count = c_int::try_from(options.len()).map_err(|_| failed("too many options".into()))?;

    let mut program = Program { api, handle: null_mut() };
    // SAFETY: the strings are NUL-terminated and outlive `program`; no headers are passed, so their arrays may be
    // null; the handle is written on success only.
    let status = unsafe {
        (api.create)(&mut program.handle, code.as_ptr(), name.as_ptr(), 0, null::<*const c_char>(), null())
    };
    api.check("nvrtcCreateProgram", status)?;
    // SAFETY: the program was created above; `options` holds `count` NUL-terminated strings.
    let status = unsafe { (api.compile)(program.handle, count, options.as_ptr()) };
    let log = program.log();
    if status != 0 {
        let log = log.filter(|log| !log.is_empty()).unwrap_or_else(|| api.status_name(status));
        return Err(failed(log));
    }
    if let Some(log) = log.filter(|log| !log.is_empty()) {
        log::debug!("kernel {} for {arch}: {log}", source.name);
    }
    let cubin = program.cubin()?;
    if cubin.is_empty() {
        // Virtual architectures (compute_*) end at PTX.
        return Err(failed(format!("{arch} is not a real architecture (sm_*): NVRTC made no cubin")));
    }
    Ok(cubin)
}

type Status = c_int;
/// `nvrtcProgram`: a pointer to an incomplete type.
type Handle = *mut std::ffi::c_void;

/// The functions in use, with the signatures of nvrtc.h.
struct Api {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Handle) -> Status,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    status_name: unsafe extern "C" fn(Status) -> *const c_char,
}

impl Api {
    fn get() -> Result<&'static Self> {
        static API: OnceLock<Api> = OnceLock::new();
        if let Some(api) = API.get() {
            return Ok(api);
        }
        let api = Self {
            // SAFETY: the field's type is nvrtcVersion's signature.
            version: unsafe { library::symbol(Library::Nvrtc, "nvrtcVersion") }?,
            // SAFETY: the field's type is nvrtcCreateProgram's signature.
            create: unsafe { library::symbol(Library::Nvrtc, "nvrtcCreateProgram") }?,
            // SAFETY: the field's type is nvrtcDestroyProgram's signature.
            destroy: unsafe { library::symbol(Library::Nvrtc, "nvrtcDestroyProgram") }?,
            // SAFETY: the field's type is nvrtcCompileProgram's signature.
            compile: unsafe { library::symbol(Library::Nvrtc, "nvrtcCompileProgram") }?,
            // SAFETY: the field's type is nvrtcGetProgramLogSize's signature.
            log_size: unsafe { library::symbol(Library::Nvrtc, "nvrtcGetProgramLogSize") }?,
            // SAFETY: the field's type is nvrtcGetProgramLog's signature.
            log: unsafe { library::symbol(Library::Nvrtc, "nvrtcGetProgramLog") }?,
            // SAFETY: the field's type is nvrtcGetCUBINSize's signature.
            cubin_size: unsafe { library::symbol(Library::Nvrtc, "nvrtcGetCUBINSize") }?,
            // SAFETY: the field's type is nvrtcGetCUBIN's signature.
            cubin: unsafe { library::symbol(Library::Nvrtc, "nvrtcGetCUBIN") }?,
            // SAFETY: the field's type is nvrtcGetErrorString's signature.
            status_name: unsafe { library::symbol(Library::Nvrtc, "nvrtcGetErrorString") }?,
        };
        Ok(API.get_or_init(|| api))
    }

    fn status_name(&self, status: Status) -> String {
        // SAFETY: any status may be passed.
        let name = unsafe { (self.status_name)(status) };
        if name.is_null() {
            return format!("status {status}");
        }
        // SAFETY: not null, and the function's strings are static.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    fn check(&self, call: &'static str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let message = "the CUDA run-time compiler reported it".into();
        Err(Error::Cuda { call, code: status.cast_unsigned(), name: self.status_name(status), message })
    }
}

/// A program, destroyed when dropped.
struct Program {
    api: &'static Api,
    handle: Handle,
}

impl Program {
    /// What the compiler wrote; empty when it had nothing to say.
    fn log(&self) -> Option<String> {
        let mut size = 0;
        // SAFETY: the program is alive; `size` is written only.
        let status = unsafe { (self.api.log_size)(self.handle, &mut size) };
        let mut log = vec![0u8; if status == 0 { size } else { return None }];
        // SAFETY: the program is alive and `log` has the size that it asked for, terminator included.
        let status = unsafe { (self.api.log)(self.handle, log.as_mut_ptr().cast()) };
        (status == 0).then(|| String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is alive; `size` is written only.
        self.api.check("nvrtcGetCUBINSize", unsafe { (self.api.cubin_size)(self.handle, &mut size) })?;
        let mut cubin = vec![0u8; size];
        if size > 0 {
            // SAFETY: the program is alive and `cubin` has the size that it asked for.
            let status = unsafe { (self.api.cubin)(self.handle, cubin.as_mut_ptr().cast()) };
            self.api.check("nvrtcGetCUBIN", status)?;
        }
        Ok(cubin)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle came from nvrtcCreateProgram and is not used again. A failure leaks, at worst.
            let _ = unsafe { (self.api.destroy)(&mut self.handle) };
        }
    }
}
