//! A family of cases: runs them, counts them, and reports every failure at the end.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use burn_backend::{Backend, DType, TensorData};
use burn_flex::Flex;

use super::{Arg, Body, Dense, Rng, Tolerance, Value, grad, reference_dtype, same};

/// Failures shown of each op; its other cases are then left out.
const SHOWN_PER_OP: usize = 2;

/// What an environment variable says, if it is a number.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seed of the run.
pub(crate) fn seed() -> u64 {
    number("KILN_TEST_SEED").unwrap_or(1)
}

/// The cases of each op and dtype.
pub(crate) fn cases() -> usize {
    number("KILN_TEST_CASES").map_or(20, |n| n as usize)
}

/// Whether large tensors are in.
pub(crate) fn large() -> bool {
    cases() >= 10
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_else(|| "a panic".into())
}

/// Runs `f` and gives the message if it panics.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| panic_text(&*panic))
}

/// Tests run in parallel; those that watch memory, random numbers or faults of the whole device run alone.
static DEVICE: RwLock<()> = RwLock::new(());

/// Held by a test that may run beside others. A test holds one only.
pub(crate) fn shared() -> RwLockReadGuard<'static, ()> {
    DEVICE.read().unwrap_or_else(|e| e.into_inner())
}

/// Held by a test that must run alone.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    DEVICE.write().unwrap_or_else(|e| e.into_inner())
}

/// Cases of one kind on the backend `S`; [`Family::finish`] fails the test if any of them failed.
pub(crate) struct Family<S: Backend> {
    name: String,
    op: String,
    case: usize,
    op_failures: usize,
    counted: usize,
    with_views: usize,
    with_gradient: usize,
    empty_or_odd: usize,
    failures: Vec<String>,
    lost: bool,
    backend: PhantomData<S>,
    _shared: RwLockReadGuard<'static, ()>,
}

impl<S: Backend> Family<S> {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Family {
            name: name.into(),
            op: String::new(),
            case: 0,
            op_failures: 0,
            counted: 0,
            with_views: 0,
            with_gradient: 0,
            empty_or_odd: 0,
            failures: Vec::new(),
            lost: false,
            backend: PhantomData,
            _shared: shared(),
        }
    }

    /// Runs `f` for `share` of the run's number of cases (at least one), each with its own generator.
    pub(crate) fn cases(&mut self, op: &str, share: f64, mut f: impl FnMut(&mut Self, &mut Rng)) {
        self.op = op.into();
        self.op_failures = 0;
        for case in 0..((cases() as f64 * share).ceil() as usize).max(1) {
            if self.op_failures >= SHOWN_PER_OP || self.lost {
                break;
            }
            self.case = case;
            let mut rng = Rng::of_case(seed(), &self.name, op, case);
            f(self, &mut rng);
        }
    }

    /// Runs the body here and on Flex in f64.
    pub(crate) fn check(&mut self, args: &[Arg], body: &impl Body, tolerance: Tolerance) {
        match caught(|| run::<Flex>(args, body, |arg| arg.reference(reference_dtype(arg.dtype)))) {
            Ok(expected) => {
                let expected: Vec<_> = expected.iter().map(Dense::of).collect();
                self.check_values(args, body, &expected, tolerance);
            }
            Err(text) => self.fail(args, &format!("the reference failed: {text}")),
        }
    }

    /// Runs the body here and compares with these values.
    pub(crate) fn check_values(
        &mut self,
        args: &[Arg],
        body: &impl Body,
        expected: &[Dense],
        tolerance: Tolerance,
    ) {
        self.count(args, expected);
        let got = match caught(|| run::<S>(args, body, |arg| arg.value(arg.dtype, &Default::default()))) {
            Ok(got) => got,
            Err(text) => return self.fail(args, &text),
        };
        if got.len() != expected.len() {
            return self.fail(args, &format!("{} outputs, expected {}", got.len(), expected.len()));
        }
        let float = args.iter().map(|a| a.dtype).find(DType::is_float);
        for (k, (got, expected)) in got.iter().zip(expected).enumerate() {
            let which = if k > 0 { format!("output {k}: ") } else { String::new() };
            if let Some(float) = float
                && got.dtype.is_float()
                && got.dtype != float
            {
                return self.fail(args, &format!("{which}dtype {:?}, expected {float:?}", got.dtype));
            }
            if let Err(difference) = same(&Dense::of(got), expected, got.dtype, tolerance) {
                return self.fail(args, &format!("{which}{difference}"));
            }
        }
    }

    /// Runs the body forward and backward under Burn's `Autodiff`, here and on Flex in f64.
    ///
    /// The loss is a weighted sum of the first output; gradients are those of the float args before their views.
    pub(crate) fn check_gradient(&mut self, args: &[Arg], body: &impl Body, tolerance: Tolerance) {
        self.count(args, &[]);
        self.with_gradient += 1;
        let expected = match caught(|| grad::run::<Flex>(args, body, reference_dtype)) {
            Ok(expected) => expected,
            Err(text) => return self.fail(args, &format!("the reference failed: {text}")),
        };
        let got = match caught(|| grad::run::<S>(args, body, |dtype| dtype)) {
            Ok(got) => got,
            Err(text) => return self.fail(args, &text),
        };
        for (k, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let which =
                if k == 0 { "forward: ".into() } else { format!("gradient of float arg {}: ", k - 1) };
            match (got, expected) {
                (None, None) => {}
                (Some(got), Some(expected)) => {
                    let difference = same(&Dense::of(got), &Dense::of(expected), got.dtype, tolerance);
                    if let Err(difference) = difference {
                        return self.fail(args, &format!("{which}{difference}"));
                    }
                }
                _ => {
                    let there = got.is_some();
                    return self.fail(args, &format!("{which}there: {there}, expected: {}", !there));
                }
            }
        }
    }

    /// Counts a case that does its own comparison.
    pub(crate) fn expect(&mut self, args: &[Arg], outcome: Result<(), String>) {
        self.count(args, &[]);
        if let Err(text) = outcome {
            self.fail(args, &text);
        }
    }

    fn count(&mut self, args: &[Arg], outputs: &[Dense]) {
        self.counted += 1;
        self.with_views += args.iter().any(|a| !a.views.is_empty()) as usize;
        let mut shapes = args.iter().map(|a| &a.shape).chain(outputs.iter().map(|o| &o.shape));
        let special = |s: &Vec<usize>| s.contains(&0) || s.last().is_some_and(|n| n % 4 != 0);
        self.empty_or_odd += shapes.any(special) as usize;
    }

    fn fail(&mut self, args: &[Arg], what: &str) {
        self.op_failures += 1;
        self.lost |= what.contains("can no longer be used in this process");
        let mut text = format!("{} / {} case {}: {what}\n", self.name, self.op, self.case);
        for (k, arg) in args.iter().enumerate() {
            let views =
                if arg.views.is_empty() { String::new() } else { format!(" of {:?}", arg.base.shape) };
            text += &format!("    arg {k}: {} {:?}{views}", arg.dtype.name(), arg.shape);
            arg.views.iter().for_each(|step| text += &format!(" {step:?}"));
            text.push('\n');
        }
        let thread = std::thread::current();
        text += &format!(
            "    again: KILN_TEST_SEED={} KILN_TEST_CASES={} cargo test --features gpu --test gpu -- --exact {}\n",
            seed(),
            cases(),
            thread.name().unwrap_or("?"),
        );
        self.failures.push(text);
    }

    /// Prints the counts.
    ///
    /// # Panics
    /// With all failures, if there are any.
    pub(crate) fn finish(self) {
        println!(
            "{}: {} cases, {} with views, {} with gradient, {} with empty or odd sizes",
            self.name, self.counted, self.with_views, self.with_gradient, self.empty_or_odd
        );
        let failures = self.failures.len();
        assert!(failures == 0, "{failures} failures\n{}", self.failures.concat());
    }

    /// The failures so far, for the harness's own tests.
    pub(crate) fn into_failures(self) -> Vec<String> {
        self.failures
    }
}

/// The outputs of a body on one backend.
fn run<B: Backend>(args: &[Arg], body: &impl Body, value: impl Fn(&Arg) -> Value<B>) -> Vec<TensorData> {
    body.run(args.iter().map(value).collect()).into_iter().map(Value::read).collect()
}
