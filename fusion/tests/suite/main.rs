//! `Fusion<Flex>` against `Flex`, in one binary.

mod allocator;
mod capture;
mod errors;
mod extension;
mod probe;
mod programs;
mod rules;
mod threads;
mod traps;

/// Held by a test while it runs, see [`serial`].
pub(crate) struct Serial(#[expect(dead_code, reason = "held, not read")] std::sync::MutexGuard<'static, ()>);

/// Statistics, budget and plans belong to the device, which all tests share: one test at a time, which begins without
/// plans and with statistics of its own.
pub(crate) fn serial() -> Serial {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let device = Default::default();
    kiln_fusion::Fusion::<burn_flex::Flex>::step(&device);
    kiln_fusion::Fusion::<burn_flex::Flex>::forget_plans(&device);
    kiln_fusion::Fusion::<burn_flex::Flex>::reset_stats(&device);
    Serial(guard)
}

impl Drop for Serial {
    /// The test's thread ends after the next test has begun, and would leave it what is still recorded.
    fn drop(&mut self) {
        kiln_fusion::Fusion::<burn_flex::Flex>::step(&Default::default());
    }
}
