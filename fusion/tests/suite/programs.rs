//! Random programs: `Fusion<Flex>` gives what Flex gives, to the bit, whatever a program does and however often.
//!
//! A [`program::Program`] is made from a seed ([`generate`]) and runs four times with other data and other scalars
//! ([`execute`]): on burn-flex operation by operation, and captured, on as many threads as it has. What each of its
//! reads gives must be equal, a failure included. `KILN_PROGRAMS` sets how many there are, and `KILN_PROGRAM` the seed of
//! the first; alone, it runs and prints the one with that seed.

mod backend;
mod difference;
mod execute;
mod fit;
mod found;
mod generate;
mod program;
mod range;
mod subject;
mod totals;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn_backend::Backend;
use burn_flex::{Flex, FlexDevice};
use kiln_fusion::{Budget, Fusion, Stats};

use backend::{Own, OwnDevice};
use difference::difference;
use execute::{RUNS_PROGRAM, Running, Seen, execute, seed_of};
use generate::Profile;
use program::{Program, RUNS};
use totals::Totals;

type Captured = Fusion<Own>;

/// How many programs the test makes if `KILN_PROGRAMS` does not say it.
const PROGRAMS: u64 = 10_000;

/// Programs that run at the same time, each on a device of its own.
const WORKERS: u16 = 2;

/// A program that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(60);

fn captured(program: &Program, device: &OwnDevice) -> (Vec<Vec<Seen>>, Stats) {
    let nodes = program.budget.unwrap_or(Budget::default().nodes);
    Captured::forget_plans(device);
    device.set_compiles(program.compiles);
    Captured::set_budget(device, Budget { nodes, ..Budget::default() });
    Captured::reset_stats(device);
    let running = Running {
        runs: RUNS,
        threaded: true,
        step: &|| Captured::step(device),
        begin: &|run| Captured::seed(device, seed_of(program, run)),
        watch: None,
    };
    let got = execute::<Captured>(program, device, &running);
    (got, Captured::stats(device))
}

/// Runs a program both ways; what is wrong, if anything is.
fn check(program: &Program, device: &OwnDevice) -> (Option<String>, Vec<Vec<Seen>>, Stats) {
    let plain = Running { runs: RUNS, threaded: false, step: &|| {}, begin: &|_| {}, watch: None };
    let want = execute::<Flex>(program, &FlexDevice, &plain);
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

fn generate(seed: u64) -> Program {
    generate::generate(seed, &Profile::FLEX)
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
type InHand = Arc<Vec<Mutex<Option<(u64, Instant)>>>>;

/// Ends the process when a program takes too long, after printing it.
fn watch(running: InHand) {
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
    let running: InHand = Arc::new((0..WORKERS).map(|_| Mutex::new(None)).collect());
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
