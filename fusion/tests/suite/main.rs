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

/// Held by a test while it runs: statistics, budget and plans belong to the device, which all tests share.
///
/// The test begins without plans and with statistics of its own.
pub(crate) fn serial() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let device = Default::default();
    kiln_fusion::Fusion::<burn_flex::Flex>::step(&device);
    kiln_fusion::Fusion::<burn_flex::Flex>::forget_plans(&device);
    kiln_fusion::Fusion::<burn_flex::Flex>::reset_stats(&device);
    guard
}
