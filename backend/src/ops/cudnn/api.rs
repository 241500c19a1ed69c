//! cuDNN's functions, taken from the file that [`library`] opened.
//!
//! They are bound here rather than called through cudarc, which opens the first file that the dynamic loader finds under
//! a bare name: where two cuDNNs are installed, that was the other one, whose calls then failed inside. A status is a
//! plain number, since one that cudarc's enum does not know would be undefined behaviour.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use crate::driver::library::{self, Library};
use crate::error::{Error, Result};

/// `cudnnStatus_t`; 0 is success.
type Status = u32;

/// A pointer to one of the library's objects.
pub(super) type Object = *mut c_void;

macro_rules! api {
    ($($name:ident: $function:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions in use, with the signatures of cudnn_graph.h; enums are passed as numbers.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn load() -> Result<Self> {
                Ok(Api {
                    // SAFETY: the field's type is the function's signature.
                    $($name: unsafe { library::symbol(Library::Cudnn, $function) }?,)*
                })
            }
        }
    };
}

api! {
    version: "cudnnGetVersion"() -> usize;
    status_name: "cudnnGetErrorString"(Status) -> *const c_char;
    last_error: "cudnnGetLastErrorString"(*mut c_char, usize);
    create: "cudnnCreate"(*mut Object) -> Status;
    set_stream: "cudnnSetStream"(Object, Object) -> Status;
    create_descriptor: "cudnnBackendCreateDescriptor"(u32, *mut Object) -> Status;
    destroy_descriptor: "cudnnBackendDestroyDescriptor"(Object) -> Status;
    set_attribute: "cudnnBackendSetAttribute"(Object, u32, u32, i64, *const c_void) -> Status;
    get_attribute: "cudnnBackendGetAttribute"(Object, u32, u32, i64, *mut i64, *mut c_void) -> Status;
    finalize: "cudnnBackendFinalize"(Object) -> Status;
    execute: "cudnnBackendExecute"(Object, Object, Object) -> Status;
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// Loads the library at the first call.
    pub(super) fn get() -> Result<&'static Self> {
        static API: OnceLock<Api> = OnceLock::new();
        if let Some(api) = API.get() {
            return Ok(api);
        }
        let api = Api::load()?;
        Ok(API.get_or_init(|| api))
    }

    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: any status may be passed.
        let name = unsafe { (self.status_name)(status) };
        let mut text = [0u8; 1024];
        // SAFETY: at most so many bytes are written, with a NUL at their end.
        unsafe { (self.last_error)(text.as_mut_ptr().cast(), text.len()) };
        let message = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
        let name = if name.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: not null, and the function's strings are static.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        let message = match message.trim() {
            "" => "the library says no more".into(),
            message => message.to_owned(),
        };
        Err(Error::Cuda { call, code: status, name, message })
    }
}
