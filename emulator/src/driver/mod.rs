//! The driver's C interface (`libcuda.so.1`), as asynchronous as CUDA allows.
//!
//! A stream is a queue, and nothing in it runs before something waits for it: a read of memory that the device has not
//! been waited for sees the past, and a buffer that is written too early shows its new contents to work that was queued
//! before. Operations run one at a time, on the thread that waits, under one execution lock; queueing does not need it.
//!
//! What an operation does wrong is a fault of the thread that queued it (see [`faults`]); the device goes on.

pub(crate) mod capture;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod faults;
pub(crate) mod handles;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod status;
pub(crate) mod stream;

use std::sync::{Mutex, MutexGuard, PoisonError};

use status::Status;

/// A panic elsewhere leaves the state usable: every critical section is small and complete.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// `at` is null or valid for a write.
pub(crate) unsafe fn put<T>(at: *mut T, value: T) -> Result<(), Status> {
    if at.is_null() {
        return Err(Status::InvalidValue);
    }
    // SAFETY: the caller vouches for the place.
    unsafe { at.write(value) };
    Ok(())
}

/// The status that a call returns.
pub(crate) fn answer(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(Status::Success)
}

#[cfg(test)]
pub(crate) mod testing {
    //! A stream of device 0 for a test, alone in the process: freeing memory runs everybody's work.

    use std::sync::{Mutex, MutexGuard};

    use super::status::Status;
    use super::{device, event, lock, memory, stream};

    static ONE: Mutex<()> = Mutex::new(());

    pub(crate) struct Bench {
        _one: MutexGuard<'static, ()>,
        pub(crate) stream: usize,
    }

    /// Makes device 0 current for the calling thread.
    pub(crate) fn enter() {
        let mut context = 0;
        // SAFETY: `context` is a valid place.
        unsafe {
            assert_eq!(device::cuInit(0), Status::Success);
            assert_eq!(device::cuDevicePrimaryCtxRetain(&mut context, 0), Status::Success);
            assert_eq!(device::cuCtxSetCurrent(context), Status::Success);
        }
    }

    pub(crate) fn new_stream() -> usize {
        let mut stream = 0;
        // SAFETY: `stream` is a valid place.
        assert_eq!(unsafe { stream::cuStreamCreate(&mut stream, 1) }, Status::Success);
        stream
    }

    pub(crate) fn alloc(bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: `address` is a valid place.
        assert_eq!(unsafe { memory::cuMemAlloc_v2(&mut address, bytes) }, Status::Success);
        address
    }

    pub(crate) fn sync(stream: usize) -> Status {
        // SAFETY: the call takes any number.
        unsafe { stream::cuStreamSynchronize(stream) }
    }

    pub(crate) fn fill(to: u64, value: u8, bytes: usize, stream: usize) -> Status {
        // SAFETY: the range is checked when the fill runs.
        unsafe { memory::cuMemsetD8Async(to, value, bytes, stream) }
    }

    impl Bench {
        pub(crate) fn new() -> Self {
            let one = lock(&ONE);
            enter();
            Bench { _one: one, stream: new_stream() }
        }

        pub(crate) fn sync(&self) {
            assert_eq!(sync(self.stream), Status::Success);
        }

        /// Page-locked memory, as a slice for the test's life.
        pub(crate) fn pinned(&self, bytes: usize) -> &'static mut [u8] {
            let mut at = std::ptr::null_mut();
            // SAFETY: `at` is a valid place; tests do not free the memory.
            unsafe {
                assert_eq!(memory::cuMemHostAlloc(&mut at, bytes, 3), Status::Success);
                std::slice::from_raw_parts_mut(at.cast(), bytes)
            }
        }

        pub(crate) fn fill(&self, to: u64, value: u8, bytes: usize) {
            assert_eq!(fill(to, value, bytes, self.stream), Status::Success);
        }

        pub(crate) fn to_device<T: Copy>(&self, to: u64, from: &[T]) {
            // SAFETY: the slice is valid, and page-locked or read before the call returns.
            let status = unsafe {
                memory::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), size_of_val(from), self.stream)
            };
            assert_eq!(status, Status::Success);
        }

        pub(crate) fn to_host<T: Copy>(&self, to: &mut [T], from: u64) {
            // SAFETY: the slice is valid, and page-locked or written before the call returns.
            let status = unsafe {
                memory::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, size_of_val(to), self.stream)
            };
            assert_eq!(status, Status::Success);
        }

        pub(crate) fn event(&self) -> usize {
            let mut made = 0;
            // SAFETY: `made` is a valid place.
            assert_eq!(unsafe { event::cuEventCreate(&mut made, 0) }, Status::Success);
            made
        }

        pub(crate) fn record(&self, event: usize) {
            // SAFETY: the call takes any numbers.
            assert_eq!(unsafe { event::cuEventRecord(event, self.stream) }, Status::Success);
        }
    }
}
