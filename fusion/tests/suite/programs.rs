//! Random programs: `Fusion<Flex>` gives what Flex gives, to the bit, whatever a program does and however often.
//!
//! A [`program::Program`] is made from a seed ([`generate`]) and runs four times with other data and other scalars
//! ([`execute`]): on burn-flex operation by operation, and captured, on as many threads as it has. What each of its
//! reads gives must be equal, a failure included. `KILN_PROGRAMS` sets how many there are, and `KILN_PROGRAM` runs the
//! one with that seed.

mod backend;
mod execute;
mod found;
mod generate;
mod program;
mod range;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn_backend::{Backend, DType, TensorData};
use burn_flex::{Flex, FlexDevice};
use burn_std::{bf16, f16};
use kiln_fusion::{Budget, Cut, Fusion, Stats};
use kiln_surface::Op;
use kiln_surface::arguments::UNSUPPORTED_BY_FLEX;

use backend::{Own, OwnDevice};
use execute::{RUNS_PROGRAM, Seen, execute, seed_of};
use generate::generate;
use program::{Action, Program, RUNS};

type Captured = Fusion<Own>;

/// How many programs the test makes if `KILN_PROGRAMS` does not say it.
const PROGRAMS: u64 = 10_000;

/// Programs that run at the same time, each on a device of its own.
const WORKERS: u16 = 2;

/// A program that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(60);

/// What all programs together did.
#[derive(Default)]
struct Totals {
    programs: u64,
    ops: u64,
    stats: Stats,
    with_foreign_reads: u64,
    with_failures: u64,
    reads: u64,
    failed_reads: u64,
    floats: u64,
    nans: u64,
    names: BTreeMap<&'static str, u64>,
    dtypes: BTreeSet<String>,
    ranks: BTreeSet<usize>,
}

impl Totals {
    fn count(&mut self, program: &Program, want: &[Vec<Seen>], stats: &Stats) {
        self.programs += 1;
        self.ops += program.ops() as u64;
        self.with_foreign_reads += u64::from(stats.foreign_reads > 0);
        self.with_failures += u64::from(stats.failures > 0);
        for statement in &program.statements {
            if let Action::Op { op, .. } = &statement.action {
                *self.names.entry(op.name()).or_default() += 1;
            }
        }
        for seen in want.iter().flatten() {
            match seen {
                Seen::Data(data) => {
                    self.reads += 1;
                    for data in data {
                        self.dtypes.insert(format!("{:?}", data.dtype).split('(').next().unwrap_or("").into());
                        self.ranks.insert(data.shape.rank());
                        if matches!(data.dtype, DType::F32) {
                            let values = data.as_slice::<f32>().expect("the dtype was looked at");
                            self.floats += values.len() as u64;
                            self.nans += values.iter().filter(|value| value.is_nan()).count() as u64;
                        }
                    }
                }
                Seen::Failed(_) => self.failed_reads += 1,
                _ => {}
            }
        }
        self.add(stats);
    }

    fn add(&mut self, stats: &Stats) {
        let sum = &mut self.stats;
        sum.recorded += stats.recorded;
        sum.followed += stats.followed;
        sum.hits += stats.hits;
        sum.donated += stats.donated;
        sum.foreign_reads += stats.foreign_reads;
        sum.waits += stats.waits;
        sum.timeouts += stats.timeouts;
        sum.failures += stats.failures;
        stats.cuts.iter().for_each(|(cut, count)| *sum.cuts.entry(*cut).or_default() += count);
        stats.misses.iter().for_each(|(miss, count)| *sum.misses.entry(*miss).or_default() += count);
    }

    /// What all workers together did.
    fn merge(&mut self, other: Totals) {
        self.programs += other.programs;
        self.ops += other.ops;
        self.with_foreign_reads += other.with_foreign_reads;
        self.with_failures += other.with_failures;
        self.reads += other.reads;
        self.failed_reads += other.failed_reads;
        self.floats += other.floats;
        self.nans += other.nans;
        other.names.iter().for_each(|(name, count)| *self.names.entry(name).or_default() += count);
        self.dtypes.extend(other.dtypes);
        self.ranks.extend(other.ranks);
        self.add(&other.stats);
    }
}

/// Whether two tensors are equal to the bit, but that any NaN is any other.
fn same(a: &TensorData, b: &TensorData) -> bool {
    fn all<T: burn_backend::Element>(a: &TensorData, b: &TensorData, same: impl Fn(&T, &T) -> bool) -> bool {
        let (Ok(a), Ok(b)) = (a.as_slice::<T>(), b.as_slice::<T>()) else { return false };
        a.iter().zip(b).all(|(a, b)| same(a, b))
    }
    if a.dtype != b.dtype || a.shape != b.shape {
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

/// What is wrong with what a statement showed, if anything is.
fn difference(want: &Seen, got: &Seen) -> Option<String> {
    match (want, got) {
        (_, Seen::Refused(message)) => Some(format!("the call panicked: {message}")),
        (Seen::Data(want), Seen::Data(got)) => {
            let equal = want.len() == got.len() && want.iter().zip(got).all(|(want, got)| same(want, got));
            (!equal).then(|| format!("read\n      {got:?}\n    instead of\n      {want:?}"))
        }
        (Seen::Failed(_), Seen::Failed(_)) => None,
        (Seen::Failed(_), Seen::Data(got)) => Some(format!("read {got:?} after a failure")),
        (Seen::Data(want), Seen::Failed(message)) => Some(format!("failed: {message}; instead of {want:?}")),
        // A backend's own metadata may differ from what it reads back; capture follows `infer`.
        (Seen::Metas(want), Seen::Metas(got)) => {
            let same = want.iter().zip(got).all(|(want, got)| want.shape == got.shape);
            (!same).then(|| format!("gave {got:?} instead of {want:?}"))
        }
        _ => None,
    }
}

fn captured(program: &Program, device: &OwnDevice) -> (Vec<Vec<Seen>>, Stats) {
    let nodes = program.budget.unwrap_or(Budget::default().nodes);
    Captured::forget_plans(device);
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

/// Ends the process when a program takes too long, after printing it.
fn watch(running: Arc<Vec<Mutex<Option<(u64, Instant)>>>>) {
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
    let (first, count) = match number("KILN_PROGRAM") {
        Some(seed) => {
            println!("{}", generate(seed));
            (seed, 1)
        }
        None => (0, number("KILN_PROGRAMS").unwrap_or(PROGRAMS)),
    };
    let began = Instant::now();
    let next = AtomicU64::new(first);
    let running: Arc<Vec<_>> = Arc::new((0..WORKERS).map(|_| Mutex::new(None)).collect());
    watch(running.clone());
    let wrong: Mutex<Vec<String>> = Mutex::default();
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (running, next, wrong, totals) = (&running, &next, &wrong, &totals);
            scope.spawn(move || {
                let device = OwnDevice(worker);
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
    print(&totals, began.elapsed());
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} programs differ; the first:\n{}", wrong.len(), wrong[0]);
    if count >= 1000 {
        all_happened(&totals);
    }
}

fn print(totals: &Totals, took: Duration) {
    let Totals { programs, ops, stats, reads, failed_reads, nans, floats, .. } = totals;
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    println!("{programs} programs of {ops} operations, {RUNS} runs each, in {:.0} s", took.as_secs_f64());
    println!("{reads} reads, {failed_reads} of failed values; NaN in {:.1}% of f32", share(*nans, *floats));
    println!("{:.1}% of traces hit a plan", share(stats.hits, stats.runs()));
    let (foreign, failing) = (totals.with_foreign_reads, totals.with_failures);
    println!("programs with foreign reads {foreign}, with failures {failing}");
    println!("{stats}");
    let all = Op::NAMES.len() - UNSUPPORTED_BY_FLEX.len();
    println!("{} of {all} operations; dtypes {:?}; ranks {:?}", totals.names.len(), totals.dtypes, totals.ranks);
    let mut rare: Vec<_> = totals.names.iter().collect();
    rare.sort_by_key(|(_, count)| **count);
    println!("least frequent: {:?}", &rare[..rare.len().min(8)]);
}

/// The programs did what they are to show.
fn all_happened(totals: &Totals) {
    let stats = &totals.stats;
    let supported = Op::NAMES.iter().filter(|name| !UNSUPPORTED_BY_FLEX.iter().any(|(other, _)| other == *name));
    let missing: Vec<_> = supported.filter(|name| !totals.names.contains_key(**name)).collect();
    assert!(missing.is_empty(), "no program has {missing:?}");
    let cuts = [
        Cut::Plan,
        Cut::LeftPlan,
        Cut::Read,
        Cut::ForeignPlan,
        Cut::ForeignBoundary,
        Cut::ForeignEnd,
        Cut::Sync,
        Cut::Step,
        Cut::Budget,
        Cut::ThreadEnd,
    ];
    for cut in cuts {
        assert!(stats.cuts.get(&cut).is_some_and(|count| *count > 0), "no trace was cut by {cut:?}");
    }
    assert!(stats.hits > 0 && stats.donated > 0 && stats.foreign_reads > 0, "{stats}");
    assert!(stats.failures > 0 && totals.failed_reads > 0, "{stats}");
    assert!(totals.with_foreign_reads * 10 >= totals.programs, "{} have foreign reads", totals.with_foreign_reads);
}
