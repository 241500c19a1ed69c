//! The op tests on the emulated CUDA device: the whole backend, its kernels included, without a GPU.
//!
//! `cargo test --test emulated`; `kiln-emulator` says what it checks. Every tensor has its own allocation
//! (`KILN_ALLOCATOR=exact`), so that its bounds are known; one test runs a part again with the caching allocator.

#[macro_use]
mod harness;

#[ctor::ctor]
fn emulate() {
    kiln_emulator::start(&[("KILN_ALLOCATOR", "exact"), ("KILN_TEST_CASES", "5")]);
}

/// Memory that is cut up, joined and used again, as outside of tests: reuse that comes too early shows as wrong values.
#[test]
fn the_caching_allocator_gives_the_same() {
    let executable = std::env::current_exe().expect("a process has an executable");
    let mut command = std::process::Command::new(executable);
    command.args(["aliasing::", "devices::", "models::", "whole_device::"]);
    command.env("KILN_ALLOCATOR", "caching").env_remove("KILN_TEST_REPORT").env_remove("KILN_TEST_ONLY");
    let output = command.output().expect("the test binary can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let ran = text.lines().find(|line| line.starts_with("test result: ok.")).expect("libtest's last line");
    assert!(!ran.starts_with("test result: ok. 0 passed"), "{ran}");
    println!("with the caching allocator: {ran}");
}

/// The backend under test.
type Subject = kiln::Cuda;
type Family = harness::Family<Subject>;

mod ops;
#[path = "emulated/rejected.rs"]
mod rejected;
#[path = "emulated/without_cudnn.rs"]
mod without_cudnn;
