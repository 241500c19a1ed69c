//! A family of cases: runs them, counts them, shrinks those that fail, and reports every failure at the end.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use burn_backend::{Backend, DType, TensorData};
use burn_flex::Flex;

use super::count::{Counts, Covered};
use super::report::{Failure, Wrong, command};
use super::rng::Tape;
use super::settings::{Settings, key};
use super::shrink::{Budget, shrink};
use super::{Arg, Body, Dense, Rng, Tolerance, Value, grad, reference_dtype, same};

/// Failures shown of each op; its other cases are then left out.
const SHOWN_PER_OP: usize = 2;
/// What shrinking one case may cost.
const PER_CASE: Budget = Budget { runs: 600, time: Duration::from_secs(10) };
/// What shrinking all cases of a family may cost.
const PER_FAMILY: Duration = Duration::from_secs(60);
/// Runs of a failed case that tell whether it always fails.
const REPEATS: usize = 3;

/// The cases of an op and dtype whose share is 1.
pub(crate) fn cases() -> usize {
    Settings::of_environment().cases
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

thread_local! {
    /// Whether panics of this thread are caught and looked at, and need not be printed.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` and gives the message if it panics.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !CATCHING.get() {
                print(info);
            }
        }));
    });
    let outer = CATCHING.replace(true);
    let result = catch_unwind(AssertUnwindSafe(f)).map_err(|panic| panic_text(&*panic));
    CATCHING.set(outer);
    result
}

/// Tests run in parallel; those that watch memory or faults of the whole device run alone.
static DEVICE: RwLock<()> = RwLock::new(());

/// Held by a test that may run beside others, for no longer than it has to: one that must run alone waits for it, and all
/// others wait for that one. A test holds one only.
pub(crate) fn shared() -> RwLockReadGuard<'static, ()> {
    DEVICE.read().unwrap_or_else(|e| e.into_inner())
}

/// Whether the device is the emulated one.
pub(crate) fn emulated() -> bool {
    std::env::var_os("KILN_EMULATOR").is_some()
}

/// What `f` gives, and how many launches the first device has seen meanwhile; for a test that runs [`alone`].
pub(crate) fn launches<R>(f: impl FnOnce() -> R) -> (R, u64) {
    let count = || kiln::CudaDevice::new(0).launch_stats().expect("an open device").kernels;
    let before = count();
    let result = f();
    (result, count() - before)
}

/// Held by a test that must run alone.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    DEVICE.write().unwrap_or_else(|e| e.into_inner())
}

/// Beside others, of which none draws from the device's random numbers meanwhile.
pub(crate) type Drawing = (MutexGuard<'static, ()>, RwLockReadGuard<'static, ()>);

/// Held by a test that draws from the device's random numbers, whose seed and offset all threads share.
pub(crate) fn drawing() -> Drawing {
    static DRAWS: Mutex<()> = Mutex::new(());
    (DRAWS.lock().unwrap_or_else(PoisonError::into_inner), shared())
}

/// How a case holds the device: never looked at, dropped with it. Between cases, a test that must run alone may come.
#[allow(dead_code)]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Drawing(Drawing),
}

/// How a comparison went.
type Outcome = Result<(), (Wrong, String)>;

/// Cases of one kind on the backend `S`; [`Family::finish`] fails the test if any of them failed.
pub(crate) struct Family<S: Backend> {
    name: &'static str,
    dtype: DType,
    settings: Settings,
    module: String,
    op: String,
    /// While a case is run again, nothing is counted.
    counting: bool,
    counts: Counts,
    /// The first failure of the case that runs.
    failure: Option<Failure>,
    failures: Vec<String>,
    lost: bool,
    shrinking: Duration,
    backend: PhantomData<S>,
    turn: fn() -> Turn,
}

impl<S: Backend> Family<S> {
    /// A family as users know it (reduce, matmul, ..) and the dtype that its cases are counted under.
    #[track_caller]
    pub(crate) fn new(name: &'static str, dtype: DType) -> Self {
        Family::with(name, dtype, Settings::of_environment(), || Turn::Shared(shared()), Location::caller())
    }

    /// For cases that draw from the device's random numbers.
    #[track_caller]
    pub(crate) fn drawing(name: &'static str, dtype: DType) -> Self {
        Family::with(name, dtype, Settings::of_environment(), || Turn::Drawing(drawing()), Location::caller())
    }

    /// With settings of its own, for the harness's tests.
    #[track_caller]
    pub(crate) fn of(settings: Settings, name: &'static str, dtype: DType) -> Self {
        Family::with(name, dtype, settings, || Turn::Shared(shared()), Location::caller())
    }

    fn with(name: &'static str, dtype: DType, settings: Settings, turn: fn() -> Turn, at: &Location) -> Self {
        let module = Path::new(at.file()).file_stem().map(|s| s.to_string_lossy().into_owned());
        Family {
            name,
            dtype,
            settings,
            module: module.unwrap_or_default(),
            op: String::new(),
            counting: true,
            counts: Counts::default(),
            failure: None,
            failures: Vec::new(),
            lost: false,
            shrinking: PER_FAMILY,
            backend: PhantomData,
            turn,
        }
    }

    fn key(&self) -> String {
        key(self.name, self.dtype.name(), &self.op)
    }

    /// Runs `f` for `share` of the run's number of cases (at least one), each with its own generator. A case is what
    /// `f` makes of the generator's choices and nothing else, so that it can be run again.
    pub(crate) fn cases(&mut self, op: &str, share: f64, mut f: impl FnMut(&mut Self, &mut Rng)) {
        self.op = op.into();
        let key = self.key();
        let all = ((self.settings.cases as f64 * share).ceil() as usize).max(1);
        let cases = match &self.settings.only {
            None => 0..all,
            Some(only) if only.key == key => only.case..only.case + 1,
            Some(_) => 0..0,
        };
        let mut failed: Vec<String> = Vec::new();
        for case in cases {
            if failed.len() >= SHOWN_PER_OP || self.lost {
                break;
            }
            let names = format!("{} {}", self.name, self.dtype.name());
            let rng = Rng::of_case(self.settings.seed, &names, op, case);
            let (tape, failure) = self.run_case(&mut f, rng);
            let Some(failure) = failure else { continue };
            let (text, notes) = self.simplest(&mut f, tape, failure);
            if !failed.contains(&text) {
                let again = self.settings.again(&key, case);
                self.failures.push(format!(
                    "{} {} / {op}, case {case} of seed {}: {text}{notes}    again: {again} {}\n",
                    self.name,
                    self.dtype.name(),
                    self.settings.seed,
                    command(&self.module),
                ));
            }
            failed.push(text);
        }
    }

    /// One run of a case: what was chosen, and the first failure.
    fn run_case(&mut self, f: &mut impl FnMut(&mut Self, &mut Rng), mut rng: Rng) -> (Tape, Option<Failure>) {
        self.failure = None;
        let _turn = (self.turn)();
        if let Err(text) = caught(|| f(self, &mut rng)) {
            self.fail(&[], String::new(), Wrong::Test, format!("the test's own code failed: {text}"));
        }
        (rng.into_tape(), self.failure.take())
    }

    /// Shrinks a failed case. Gives the simplest failure's text, and notes on how it was found.
    fn simplest(
        &mut self,
        f: &mut impl FnMut(&mut Self, &mut Rng),
        tape: Tape,
        failure: Failure,
    ) -> (String, String) {
        let begun = Instant::now();
        self.counting = false;
        let (size, wrong) = (failure.size(), failure.wrong);
        let mut simplest = failure;
        let mut repeat = |family: &mut Self, tape: Tape| {
            if family.lost {
                return None;
            }
            let (made, failure) = family.run_case(f, Rng::replay(tape));
            failure.filter(|failure| failure.wrong == wrong).map(|failure| (made, failure))
        };
        let mut repeats = 0;
        while repeats < REPEATS && !self.lost && repeat(self, tape.clone()).is_some() {
            repeats += 1;
        }
        let notes = if self.lost {
            "    the device is lost: this case was not shrunk, and the next ones were left out\n".into()
        } else if repeats < REPEATS {
            format!("    flaky: run again with the same inputs, it failed {repeats} times and then did not\n")
        } else {
            let budget = Budget { time: PER_CASE.time.min(self.shrinking), ..PER_CASE };
            let (_, runs) = shrink(tape, budget, |tape| {
                let (made, failure) = repeat(self, tape)?;
                simplest = failure;
                Some(made)
            });
            let now = if simplest.size() == size { "the sizes stayed" } else { &format!("from {size}") };
            let lost = if self.lost { "; then the device was lost" } else { "" };
            format!("    shrunk in {runs} runs: {now}{lost}\n")
        };
        self.counting = true;
        self.shrinking = self.shrinking.saturating_sub(begun.elapsed());
        (simplest.text(), notes)
    }

    /// Runs the body here and on Flex in f64.
    pub(crate) fn check(&mut self, args: &[Arg], body: &impl Body, tolerance: Tolerance) {
        self.check_with(args, body, None, tolerance, None);
    }

    /// Runs the body here and compares with these values.
    pub(crate) fn check_values(
        &mut self,
        args: &[Arg],
        body: &impl Body,
        expected: &[Dense],
        tolerance: Tolerance,
    ) {
        self.check_with(args, body, Some(expected), tolerance, None);
    }

    /// Runs the body forward and backward under Burn's `Autodiff`, here and on Flex in f64.
    pub(crate) fn check_gradient(&mut self, args: &[Arg], body: &impl Body, tolerance: Tolerance) {
        let outcome = self.gradient(args, body, tolerance);
        self.record(args, body, Covered::of(args, &[], true), outcome);
    }

    /// [`Family::check`] and [`Family::check_gradient`] in one case, with the tolerance of each.
    pub(crate) fn check_both(
        &mut self,
        args: &[Arg],
        body: &impl Body,
        tolerance: Tolerance,
        gradient: Tolerance,
    ) {
        self.check_with(args, body, None, tolerance, Some(gradient));
    }

    /// Runs the body here, compares with these values or else with Flex in f64, and then compares the gradients if there
    /// is a tolerance for them. Without elements there is no gradient to compare.
    pub(crate) fn check_with(
        &mut self,
        args: &[Arg],
        body: &impl Body,
        expected: Option<&[Dense]>,
        tolerance: Tolerance,
        gradient: Option<Tolerance>,
    ) {
        let reference = match expected {
            Some(expected) => Ok(expected.to_vec()),
            None => caught(|| run::<Flex>(args, body, |arg| arg.reference(reference_dtype(arg.dtype))))
                .map(|outputs| outputs.iter().map(Dense::of).collect()),
        };
        let expected = match reference {
            Ok(expected) => expected,
            Err(text) => {
                let outcome = Err((Wrong::Reference, format!("the reference failed: {text}")));
                return self.record(args, body, Covered::of(args, &[], false), outcome);
            }
        };
        let gradient = gradient
            .filter(|_| args.iter().all(|arg| !arg.base.shape.contains(&0) && !arg.shape.contains(&0)));
        let covered = Covered::of(args, &expected, gradient.is_some());
        let mut outcome = self.forward(args, body, &expected, tolerance);
        if let Some(tolerance) = gradient.filter(|_| outcome.is_ok()) {
            outcome = self.gradient(args, body, tolerance);
        }
        self.record(args, body, covered, outcome);
    }

    /// Counts a case that does its own comparison.
    pub(crate) fn expect(&mut self, args: &[Arg], covered: Covered, outcome: Result<(), String>) {
        self.count(covered);
        if let Err(text) = outcome {
            self.fail(args, String::new(), Wrong::Values, text);
        }
    }

    fn forward(&self, args: &[Arg], body: &impl Body, expected: &[Dense], tolerance: Tolerance) -> Outcome {
        let got = caught(|| run::<S>(args, body, |arg| arg.value(arg.dtype, &Default::default())));
        let got = got.map_err(|text| (Wrong::Error, text))?;
        let wrong = |text| Err((Wrong::Values, text));
        if got.len() != expected.len() {
            return wrong(format!("{} outputs, expected {}", got.len(), expected.len()));
        }
        let float = args.iter().map(|a| a.dtype).find(DType::is_float);
        for (k, (got, expected)) in got.iter().zip(expected).enumerate() {
            let which = if k > 0 { format!("output {k}: ") } else { String::new() };
            let dtype = body.dtype().or(float.filter(|_| got.dtype.is_float()));
            if let Some(dtype) = dtype.filter(|&dtype| dtype != got.dtype) {
                return wrong(format!("{which}dtype {:?}, expected {dtype:?}", got.dtype));
            }
            if let Err(difference) = same(&Dense::of(got), expected, got.dtype, tolerance) {
                return wrong(format!("{which}{difference}"));
            }
        }
        Ok(())
    }

    /// The loss is a weighted sum of the first output; gradients are those of the float args before their views.
    fn gradient(&self, args: &[Arg], body: &impl Body, tolerance: Tolerance) -> Outcome {
        let expected = caught(|| grad::run::<Flex>(args, body, reference_dtype))
            .map_err(|text| (Wrong::Reference, format!("the reference of the gradient failed: {text}")))?;
        let got = caught(|| grad::run::<S>(args, body, |dtype| dtype))
            .map_err(|text| (Wrong::Error, format!("under Autodiff: {text}")))?;
        for (k, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let which = match k {
                0 => "forward under Autodiff: ".into(),
                _ => format!("gradient of float arg {}: ", k - 1),
            };
            let compared = match (got, expected) {
                (None, None) => Ok(()),
                (Some(got), Some(expected)) => {
                    same(&Dense::of(got), &Dense::of(expected), got.dtype, tolerance)
                }
                (got, _) => Err(format!("there: {}, expected: {}", got.is_some(), got.is_none())),
            };
            compared.map_err(|difference| (Wrong::Values, format!("{which}{difference}")))?;
        }
        Ok(())
    }

    fn record(&mut self, args: &[Arg], body: &impl Body, covered: Covered, outcome: Outcome) {
        self.count(covered);
        if let Err((wrong, what)) = outcome {
            self.fail(args, format!("{body:?}"), wrong, what);
        }
    }

    fn count(&mut self, covered: Covered) {
        if self.counting {
            self.counts.add(covered);
        }
    }

    fn fail(&mut self, args: &[Arg], body: String, wrong: Wrong, what: String) {
        self.lost |= what.contains("can no longer be used in this process");
        self.failure.get_or_insert_with(|| Failure { wrong, what, args: args.to_vec(), body });
    }

    /// Prints the counts, and appends them to the report.
    ///
    /// # Panics
    /// With all failures, if there are any.
    pub(crate) fn finish(self) {
        println!("{} {}: {}", self.name, self.dtype.name(), self.counts.line());
        self.counts.report(self.name, self.dtype, self.settings.seed);
        let failures = self.failures.len();
        assert!(failures == 0, "{failures} failures\n{}", self.failures.concat());
    }

    /// The failures and counts so far, for the harness's own tests.
    pub(crate) fn into_parts(self) -> (Vec<String>, Counts) {
        (self.failures, self.counts)
    }
}

/// The outputs of a body on one backend.
fn run<B: Backend>(args: &[Arg], body: &impl Body, value: impl Fn(&Arg) -> Value<B>) -> Vec<TensorData> {
    body.run(args.iter().map(value).collect()).into_iter().map(Value::read).collect()
}
