//! Status codes with their names and texts.

use std::ffi::{CStr, c_char};

use super::{answer, faults, put};

macro_rules! statuses {
    ($($name:ident = $code:literal, $symbol:literal, $text:literal;)+) => {
        /// `CUresult`: the codes that this driver returns.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Status {
            $($name = $code,)+
        }

        /// Name and text of a code.
        fn words(code: u32) -> Option<(&'static CStr, &'static CStr)> {
            match code {
                $($code => Some(($symbol, $text)),)+
                _ => None,
            }
        }
    };
}

statuses! {
    Success = 0, c"CUDA_SUCCESS", c"no error";
    InvalidValue = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OutOfMemory = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NotInitialized = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    NoDevice = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    InvalidDevice = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    InvalidImage = 200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid";
    InvalidContext = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    InvalidHandle = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    IllegalState = 401, c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state";
    NotFound = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NotReady = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    LaunchOutOfResources = 701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch";
    PeerAccessAlreadyEnabled = 704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled";
    CaptureUnsupported = 900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing";
    CaptureInvalidated = 901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture";
    CapturedEvent = 907, c"CUDA_ERROR_CAPTURED_EVENT", c"operation not permitted on an event last recorded in a capturing stream";
    CaptureWrongThread = 908, c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", c"attempt to terminate a thread-local capture sequence from another thread";
    Unknown = 999, c"CUDA_ERROR_UNKNOWN", c"unknown error";
}

/// The name of a status.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGetErrorName(code: u32, text: *mut *const c_char) -> Status {
    let found = words(code).map(|(name, _)| name.as_ptr());
    // SAFETY: the caller passes a valid place or null.
    answer(
        unsafe { put(text, found.unwrap_or(std::ptr::null())) }
            .and(found.map(|_| ()).ok_or(Status::InvalidValue)),
    )
}

/// The text of a status. For `CUDA_ERROR_UNKNOWN` it says what was wrong with the work that the calling thread was last
/// told of.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGetErrorString(code: u32, text: *mut *const c_char) -> Status {
    let told = if code == Status::Unknown as u32 { faults::last_told() } else { None };
    let found = told.or(words(code).map(|(_, text)| text)).map(CStr::as_ptr);
    // SAFETY: the caller passes a valid place or null.
    answer(
        unsafe { put(text, found.unwrap_or(std::ptr::null())) }
            .and(found.map(|_| ()).ok_or(Status::InvalidValue)),
    )
}
