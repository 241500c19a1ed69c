//! Random programs: `Fusion<Flex>` gives what Flex gives, to the bit, whatever a program does and however often.
//!
//! A [`program::Program`] is made from a seed ([`generate`]) and runs four times with other data and other scalars
//! ([`execute`]): on burn-flex operation by operation, and captured, on as many threads as it has. What each of its
//! reads gives must be equal, a failure included. `KILN_PROGRAMS` sets how many there are, and `KILN_PROGRAM` the seed of
//! the first; alone, it runs and prints the one with that seed.

mod backend;
mod execute;
mod fit;
mod found;
mod generate;
mod program;
mod range;
mod totals;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn_backend::{Backend, DType, TensorData};
use burn_flex::{Flex, FlexDevice};
use burn_std::{bf16, f16};
use kiln_fusion::{Budget, Fusion, Stats};
use kiln_surface::Meta;

use backend::{Own, OwnDevice};
use execute::{RUNS_PROGRAM, Seen, execute, seed_of};
use generate::generate;
use program::Program;
use totals::Totals;

type Captured = Fusion<Own>;

/// How many programs the test makes if `KILN_PROGRAMS` does not say it.
const PROGRAMS: u64 = 10_000;

/// Programs that run at the same time, each on a device of its own.
const WORKERS: u16 = 2;

/// A program that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(60);

/// Whether two tensors are equal to the bit, but that any NaN is any other.
fn same(a: &TensorData, b: &TensorData) -> bool {
    fn all<T: burn_backend::Element>(a: &TensorData, b: &TensorData, same: impl Fn(&T, &T) -> bool) -> bool {
        let (Ok(a), Ok(b)) = (a.as_slice::<T>(), b.as_slice::<T>()) else { return false };
        a.iter().zip(b).all(|(a, b)| same(a, b))
    }
    if a.shape != b.shape || !(a.dtype == b.dtype || booleans(a.dtype, b.dtype)) {
        return false;
    }
    if a.bytes == b.bytes {
        return true;
    }
    match a.dtype {
        DType::F64 => all::<f64>(a, b, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
        DType::F32 => all::<f32>(a, b, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
        DType::F16 => all::<f16>(a, b, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
        DType::BF16 => all::<bf16>(a, b, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
        _ => false,
    }
}

/// Whether the dtypes may be those of one boolean tensor. burn-flex calls what it gathers from one a tensor of U8, and
/// which operand's dtype an operation passes on depends on which of them it may overwrite.
fn booleans(a: DType, b: DType) -> bool {
    let stored = |dtype| matches!(dtype, DType::U8 | DType::Bool(_));
    stored(a) && stored(b) && (a != DType::U8 || b != DType::U8)
}

/// What is wrong with what a statement showed, if anything is.
fn difference(want: &Seen, got: &Seen) -> Option<String> {
    match (want, got) {
        (_, Seen::Refused(message)) => Some(format!("the call panicked: {message}")),
        (Seen::Data(want), Seen::Data(got)) => {
            let equal = want.len() == got.len() && want.iter().zip(got).all(|(want, got)| same(want, got));
            (!equal).then(|| format!("read\n      {}\n    instead of\n      {}", show(got), show(want)))
        }
        (Seen::Failed(_), Seen::Failed(_)) => None,
        (Seen::Failed(_), Seen::Data(got)) => Some(format!("read {} after a failure", show(got))),
        (Seen::Data(want), Seen::Failed(message)) => {
            Some(format!("failed: {message}; instead of {}", show(want)))
        }
        (Seen::Metas(want), Seen::Metas(got)) => {
            let equal = |(want, got): (&Meta, &Meta)| {
                want.shape == got.shape && (want.dtype == got.dtype || booleans(want.dtype, got.dtype))
            };
            (!want.iter().zip(got).all(equal)).then(|| format!("gave {got:?} instead of {want:?}"))
        }
        // What depends on a failure is recorded all the same, and one of the call itself waits for the read.
        (Seen::Nothing, Seen::Nothing) | (Seen::Nothing | Seen::Refused(_), Seen::Metas(_)) => None,
        _ => Some(format!("showed {got:?} instead of {want:?}")),
    }
}

fn show(data: &[TensorData]) -> String {
    let all: Vec<_> =
        data.iter().map(|data| format!("{:?} {:?} {data}", data.dtype, &data.shape[..])).collect();
    all.join(", ")
}

fn captured(program: &Program, device: &OwnDevice) -> (Vec<Vec<Seen>>, Stats) {
    let nodes = program.budget.unwrap_or(Budget::default().nodes);
    Captured::forget_plans(device);
    device.set_compiles(program.compiles);
    Captured::set_budget(device, Budget { nodes, ..Budget::default() });
    Captured::reset_stats(device);
    let got = execute::<Captured>(program, device, true, &|| Captured::step(device), &|run| {
        Captured::seed(device, seed_of(program, run));
    });
    (got, Captured::stats(device))
}

/// Runs a program both ways; what is wrong, if anything is.
fn check(program: &Program, device: &OwnDevice) -> (Option<String>, Vec<Vec<Seen>>, Stats) {
    let want = execute::<Flex>(program, &FlexDevice, false, &|| {}, &|_| {});
    let (got, stats) = captured(program, device);
    let runs = want.iter().zip(&got).enumerate();
    let wrong = runs
        .flat_map(|(run, (want, got))| {
            let statements = want.iter().zip(got).enumerate();
            statements.filter_map(move |(index, (want, got))| {
                difference(want, got)
                    .map(|wrong| format!("  run {run}, {}\n    {wrong}", program.statements[index]))
            })
        })
        .next();
    (wrong, want, stats)
}

/// A mismatch, with a smaller program that shows one as well.
fn report(program: &Program, wrong: &str, device: &OwnDevice) -> String {
    let began = Instant::now();
    let mut last = wrong.to_string();
    let reduced = program.reduced(&mut |smaller| {
        // What depends on timing shows itself only now and then.
        let tries = if smaller.threads > 1 { 8 } else { 1 };
        (0..tries).any(|_| {
            if began.elapsed() > LONGEST / 2 {
                return false;
            }
            check(smaller, device).0.map(|wrong| last = wrong).is_some()
        })
    });
    format!(
        "{program}{wrong}\n\nreduced:\n{reduced}{last}\n\n\
         KILN_PROGRAM={} cargo test -p kiln-fusion --test suite programs -- --nocapture",
        program.seed
    )
}

fn hide_expected_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // burn-flex may panic on a thread of its own.
        let file = info.location().map_or("", |location| location.file());
        let expected = RUNS_PROGRAM.get() && !file.contains("programs") || file.contains("burn-flex");
        if !expected {
            hook(info);
        }
    }));
}

/// For each worker the seed of the program that it runs, and since when.
type Running = Arc<Vec<Mutex<Option<(u64, Instant)>>>>;

/// Ends the process when a program takes too long, after printing it.
fn watch(running: Running) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            for slot in running.iter() {
                if let Some((seed, since)) = *slot.lock().unwrap()
                    && since.elapsed() > LONGEST * 2
                {
                    eprintln!("{}hangs", generate(seed));
                    std::process::exit(1);
                }
            }
        }
    });
}

#[test]
fn random_programs_give_what_flex_gives() {
    hide_expected_panics();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let only = number("KILN_PROGRAM");
    let first = only.unwrap_or(0);
    let count = number("KILN_PROGRAMS").unwrap_or(if only.is_some() { 1 } else { PROGRAMS });
    if count == 1 {
        println!("{}", generate(first));
    }
    let began = Instant::now();
    let next = AtomicU64::new(first);
    let running: Running = Arc::new((0..WORKERS).map(|_| Mutex::new(None)).collect());
    watch(running.clone());
    let wrong: Mutex<Vec<String>> = Mutex::default();
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (running, next, wrong, totals) = (&running, &next, &wrong, &totals);
            scope.spawn(move || {
                let device = OwnDevice::new(worker);
                let mut mine = Totals::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || wrong.lock().unwrap().len() >= 3 {
                        break;
                    }
                    *running[usize::from(worker)].lock().unwrap() = Some((seed, Instant::now()));
                    let program = generate(seed);
                    let (difference, want, stats) = check(&program, &device);
                    if let Some(difference) = difference {
                        let text = report(&program, &difference, &device);
                        wrong.lock().unwrap().push(text);
                    }
                    mine.count(&program, &want, &stats);
                }
                *running[usize::from(worker)].lock().unwrap() = None;
                totals.lock().unwrap().merge(mine);
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    totals.print(began.elapsed());
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} programs differ; the first:\n{}", wrong.len(), wrong[0]);
    if count >= 1000 {
        totals.all_happened();
    }
}
