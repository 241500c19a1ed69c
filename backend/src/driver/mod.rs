//! Every call to the CUDA driver: contexts, streams, events, modules, launches and graphs.
//!
//! Kiln keeps one primary context and one stream per device for the life of the process. All work of a device goes to
//! that stream, from whatever thread, so program order between threads that synchronise with each other is also the
//! order on the device; a tensor made on one thread can be used on another without further ado.
#![allow(unsafe_code)]

pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod params;

use cudarc::driver::sys;

use crate::error::{Error, Result};

/// The CUDA version that the driver must support.
pub(crate) const CUDA_NEEDED: (i32, i32) = (13, 0);

/// Turns a driver status into a result. `call` is the function's name.
pub(crate) fn check(call: &'static str, status: sys::CUresult) -> Result<()> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |get: unsafe fn(sys::CUresult, *mut *const std::ffi::c_char) -> sys::CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: `text` is a valid place for the pointer; the string it receives is static in the driver.
        let found = unsafe { get(status, &mut text) };
        if found != sys::CUresult::CUDA_SUCCESS || text.is_null() {
            return String::from("unknown");
        }
        // SAFETY: the driver returned a NUL-terminated string with static lifetime.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Err(Error::Cuda {
        call,
        code: status as u32,
        name: text(sys::cuGetErrorName),
        message: text(sys::cuGetErrorString),
    })
}

/// Whether a status means that the context cannot be used again in this process.
pub(crate) fn is_fatal(code: u32) -> bool {
    // Illegal address, hardware stack error, illegal instruction, misaligned address, invalid address space, invalid
    // PC, launch failed, launch timeout, ECC, assert, and a destroyed or unusable context.
    matches!(code, 201 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719)
}
