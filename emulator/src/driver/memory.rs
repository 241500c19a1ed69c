//! Allocations, copies and fills.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

use super::status::Status;
use super::stream::{Queued, Work, resolve, run_device};
use super::{answer, capture, device, faults, lock, put};
use crate::memory::{self, Place};

/// Live allocations: place and bytes by address.
static BLOCKS: Mutex<BTreeMap<u64, (Place, usize)>> = Mutex::new(BTreeMap::new());

/// Where an address lies; `None` for pageable host memory.
fn place_of(address: u64) -> Option<Place> {
    let blocks = lock(&BLOCKS);
    let (&start, &(place, bytes)) = blocks.range(..=address).next_back()?;
    (address - start < bytes as u64).then_some(place)
}

/// Whether a kernel or library call on `device` can use the address. Unknown addresses pass: checks of the range say
/// more about them.
pub(crate) fn reachable(address: u64, device: u32) -> bool {
    !matches!(place_of(address), Some(Place::Device(other)) if other != device)
}

fn allocate(place: Place, bytes: usize) -> Result<u64, Status> {
    if bytes == 0 {
        return Err(Status::InvalidValue);
    }
    capture::permit()?;
    let address = memory::alloc(place, bytes).ok_or(Status::OutOfMemory)?;
    lock(&BLOCKS).insert(address, (place, bytes));
    Ok(address)
}

/// Takes the block at `address` out of the books, if it is one of the kind.
fn take(address: u64, kind: impl Fn(Place) -> bool) -> Result<Place, Status> {
    capture::permit()?;
    let mut blocks = lock(&BLOCKS);
    match blocks.get(&address) {
        Some(&(place, _)) if kind(place) => {
            blocks.remove(&address);
            Ok(place)
        }
        _ => Err(Status::InvalidValue),
    }
}

fn give_back(place: Place, address: u64) -> Result<(), Status> {
    memory::free(place, address).map_err(|text| {
        faults::record(faults::thread(), text);
        Status::InvalidValue
    })
}

/// Free and total bytes of the current context's device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status {
    let find = || {
        let (left, all) = memory::info(device::current()?);
        // SAFETY: the caller passes valid places or null.
        unsafe { put(free, left as usize).and(put(total, all as usize)) }
    };
    answer(find())
}

/// Memory of the current context's device, with no values in it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Status {
    let make = || {
        let device = device::current()?;
        if address.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller passes a valid place.
        unsafe { put(address, allocate(Place::Device(device), bytes)?) }
    };
    answer(make())
}

/// Waits for the whole device that the memory is of, then frees it. Faults met meanwhile are not reported here.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemFree_v2(address: u64) -> Status {
    let free = || {
        device::current()?;
        if address == 0 {
            return Ok(());
        }
        let place = take(address, |place| place != Place::Host)?;
        if let Place::Device(device) = place {
            run_device(device);
        }
        give_back(place, address)
    };
    answer(free())
}

/// Page-locked host memory that every device can address. Copies from and to it are asynchronous.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: u32) -> Status {
    let make = || {
        device::current()?;
        if at.is_null() || flags > 7 {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller passes a valid place.
        unsafe { put(at, allocate(Place::Host, bytes)? as *mut c_void) }
    };
    answer(make())
}

/// Frees page-locked memory at once: CUDA does not promise to wait for work that uses it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemFreeHost(at: *mut c_void) -> Status {
    let free = || {
        device::current()?;
        let place = take(at as u64, |place| place == Place::Host)?;
        give_back(place, at as u64)
    };
    answer(free())
}

/// A copy between host and device. From or to page-locked memory it is only queued, and meets that memory as it is when
/// it runs; pageable memory is copied before the call returns, in its turn, and not at all during a capture.
fn copy_host(
    what: &'static str,
    to: u64,
    from: u64,
    bytes: usize,
    host: u64,
    stream: usize,
) -> Result<(), Status> {
    let stream = resolve(stream)?;
    if host == 0 && bytes > 0 {
        return Err(Status::InvalidValue);
    }
    let pageable = bytes > 0 && place_of(host).is_none() && !memory::is_host(host);
    if pageable && let Some(capture) = stream.capture() {
        return Err(capture.refuse());
    }
    let check_to = !(pageable && host == to);
    let check_from = !(pageable && host == from);
    let queued = stream.enqueue(Work::Copy { what, to, from, bytes, check_to, check_from })?;
    match queued {
        Queued::At(number) if pageable => {
            stream.run_until(number);
            if host == to { faults::deliver() } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// Queues a copy to the device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: usize,
) -> Status {
    answer(copy_host("cuMemcpyHtoDAsync", to, from as u64, bytes, from as u64, stream))
}

/// Queues a copy to the host. To pageable memory it waits, and the calling thread is told of its faults.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: usize,
) -> Status {
    answer(copy_host("cuMemcpyDtoHAsync", to as u64, from, bytes, to as u64, stream))
}

/// Queues a copy on the device or between devices.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    stream: usize,
) -> Status {
    let work = Work::Copy { what: "cuMemcpyDtoDAsync", to, from, bytes, check_to: true, check_from: true };
    answer(resolve(stream).and_then(|stream| stream.enqueue(work).map(|_| ())))
}

/// Queues a copy between the devices of two contexts.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: usize,
    from: u64,
    from_context: usize,
    bytes: usize,
    stream: usize,
) -> Status {
    let copy = || {
        let stream = resolve(stream)?;
        for (address, context) in [(to, to_context), (from, from_context)] {
            let device = device::of(context)?;
            if bytes > 0 && !reachable(address, device) {
                return Err(Status::InvalidValue);
            }
        }
        let work =
            Work::Copy { what: "cuMemcpyPeerAsync", to, from, bytes, check_to: true, check_from: true };
        stream.enqueue(work).map(|_| ())
    };
    answer(copy())
}

/// Queues a fill with one byte.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: usize) -> Status {
    answer(resolve(stream).and_then(|stream| stream.enqueue(Work::Fill { to, value, bytes }).map(|_| ())))
}
