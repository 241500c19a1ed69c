//! Handles: numbers that stand for objects in a table, so that a stale one is an error and nothing worse.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

type Table = HashMap<usize, Arc<dyn Any + Send + Sync>>;

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

/// Numbers are never used again, and look like no address.
static NEXT: AtomicUsize = AtomicUsize::new(0x4b_0001);

/// `count` numbers that nothing else has.
pub(crate) fn reserve(count: usize) -> usize {
    NEXT.fetch_add(count, Ordering::Relaxed)
}

/// A new handle of an object.
pub(crate) fn insert<T: Send + Sync + 'static>(object: Arc<T>) -> usize {
    let handle = reserve(1);
    TABLE.write().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    handle
}

/// The object, if the handle is one of its kind and lives.
pub(crate) fn get<T: Send + Sync + 'static>(handle: usize) -> Option<Arc<T>> {
    let object = TABLE.read().unwrap_or_else(PoisonError::into_inner).get(&handle)?.clone();
    object.downcast().ok()
}

/// Ends a handle; the object lives on where it is still in use.
pub(crate) fn remove<T: Send + Sync + 'static>(handle: usize) -> Option<Arc<T>> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if !table.get(&handle)?.is::<T>() {
        return None;
    }
    table.remove(&handle)?.downcast().ok()
}
