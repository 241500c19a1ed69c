//! Random programs: the generator of `kiln-fusion`'s tests, on `Cuda`.
//!
//! - `Cuda` against burn-flex, operation by operation: a program runs on `Cuda`, and burn-flex computes each operation from
//!   the operands that `Cuda` had ([`observe`], [`compare`]). Then the program runs again with nobody watching, on its
//!   threads, and must give the same bits.
//! - `Fusion<Cuda>` against `Cuda`, to the bit, whatever a program does. (Atomics add floats only along lines that are
//!   longer than a program's; of what depends on products, see [`of_products`].)
//! - Replays against `Cuda`: programs whose runs differ in data and scalars only, so that known graphs are replayed.
//!
//! `KILN_PROGRAMS` sets how many programs each test makes, and `KILN_PROGRAM` the seed of the first; alone, it runs and
//! prints the one with that seed. A program that mismatches is reduced.

mod compare;
mod observe;
mod profile;
mod rule;
mod wrong;

#[path = "../../../fusion/tests/suite/programs/difference.rs"]
mod difference;
#[path = "../../../fusion/tests/suite/programs/execute.rs"]
mod execute;
#[path = "../../../fusion/tests/suite/programs/fit.rs"]
mod fit;
#[path = "../../../fusion/tests/suite/programs/generate.rs"]
mod generate;
#[path = "../../../fusion/tests/suite/programs/program.rs"]
mod program;
#[path = "../../../fusion/tests/suite/programs/range.rs"]
mod range;
#[path = "../../../fusion/tests/suite/programs/subject.rs"]
mod subject;

use std::collections::HashSet;
use std::sync::Once;
use std::time::{Duration, Instant};

use kiln::fusion::{Budget, Stats};
use kiln::{Cuda, CudaDevice, Fusion};
use kiln_surface::{Meta, Op};

use crate::harness::family::{cases, caught, drawing, emulated, shared};
use crate::harness::report::command;
use crate::ops::whole_device::recorded::turn;
use compare::{Tally, verify};
use difference::difference;
use execute::{RUNS_PROGRAM, Running, Seen, execute, seed_of};
use generate::{Profile, generate};
use observe::Observer;
use program::{Action, Program, RUNS};

type Captured = Fusion<Cuda>;

/// What reducing one program may take.
const REDUCING: Duration = Duration::from_secs(120);

/// Mismatches after which a test ends.
const SHOWN: usize = 3;

/// How many programs a test makes if `KILN_PROGRAMS` does not say it: 60 for 5 cases of an op.
fn usual() -> u64 {
    12 * cases() as u64
}

/// What is put in the place of an operation before a program runs on the backend under test; only for the test that
/// mismatches are found.
type Spoil = fn(&Op) -> Op;

fn as_it_is(op: &Op) -> Op {
    op.clone()
}

fn spoilt(program: &Program, spoil: Spoil) -> Program {
    let mut program = program.clone();
    for statement in &mut program.statements {
        if let Action::Op { op, .. } = &mut statement.action {
            *op = spoil(op);
        }
    }
    program
}

/// What another program has left behind is not this one's.
fn forget_faults(device: &CudaDevice) {
    let _ = <Cuda as burn_backend::Backend>::sync(device);
}

/// For each statement whether what it shows depends on a product. cuBLASLt chooses its algorithm by the alignment of the
/// operands too, and a captured graph has them elsewhere; on the emulated device there is one algorithm.
fn of_products(program: &Program) -> Vec<bool> {
    let mut inexact: HashSet<program::Var> = HashSet::new();
    let statements = program.statements.iter().map(|statement| {
        let product = match &statement.action {
            Action::Op { op, .. } => ["matmul", "linear", "conv"].iter().any(|name| op.name().contains(name)),
            _ => false,
        };
        let inexact_now = product || statement.action.uses().iter().any(|var| inexact.contains(var));
        if inexact_now {
            inexact.extend(statement.action.makes());
        }
        inexact_now
    });
    statements.collect()
}

/// Where a captured product may have other last bits: what both showed must be there, of the same shapes and dtypes.
fn without_products(program: &Program, seen: &mut [Vec<Seen>]) {
    if emulated() {
        return;
    }
    for (index, _) in of_products(program).iter().enumerate().filter(|(_, inexact)| **inexact) {
        for run in seen.iter_mut() {
            let Seen::Data(data) = &run[index] else { continue };
            // What `argwhere` finds has a shape that depends on values.
            let argwhere = matches!(program.statements[index].action, Action::Argwhere { .. });
            let metas =
                data.iter().filter(|_| !argwhere).map(|data| Meta::new(data.shape.clone(), data.dtype));
            run[index] = Seen::Metas(metas.collect());
        }
    }
}

/// The first statement that showed another thing than it should have.
fn first_difference(program: &Program, want: &[Vec<Seen>], got: &[Vec<Seen>]) -> Option<String> {
    let runs = want.iter().zip(got).enumerate();
    runs.flat_map(|(run, (want, got))| {
        let statements = want.iter().zip(got).enumerate();
        statements.filter_map(move |(index, (want, got))| {
            let wrong = match got {
                Seen::Failed(message) => Some(format!("failed: {message}")),
                _ => difference(want, got),
            };
            wrong.map(|wrong| format!("  run {run}, {}\n    {wrong}", program.statements[index]))
        })
    })
    .next()
}

/// Runs a program on `Cuda`; what is wrong with an operation by burn-flex, or with a run that nobody watches.
fn against_flex(program: &Program, tally: &mut Tally, spoil: Spoil) -> Option<String> {
    let _device = shared();
    let device = CudaDevice::new(0);
    forget_faults(&device);
    let subject = spoilt(program, spoil);
    let observer = Observer::new(program);
    let watched = Running { runs: 1, threaded: false, step: &|| {}, begin: &|_| {}, watch: Some(&observer) };
    let seen = execute::<Cuda>(&subject, &device, &watched);
    if let Some(wrong) = verify(program, &observer.calls(), &seen[0], tally) {
        return Some(wrong);
    }
    let free = Running { runs: 1, threaded: true, step: &|| {}, begin: &|_| {}, watch: None };
    let again = execute::<Cuda>(&subject, &device, &free);
    first_difference(program, &seen, &again).map(|wrong| format!("{wrong}\n    when nobody watched"))
}

/// Runs a program on `Cuda` and captured; what is wrong, and what the capture did.
fn against_eager(program: &Program, spoil: Spoil) -> (Option<String>, Stats) {
    let draws = program.statements.iter().any(|statement| match &statement.action {
        Action::Op { op, .. } => op.draw().is_some(),
        _ => false,
    });
    // The captured program takes the device's random numbers, whose seed and offset all tests share.
    let _turn = turn();
    let _device = if draws { (Some(drawing()), None) } else { (None, Some(shared())) };
    let device = CudaDevice::new(0);
    forget_faults(&device);
    let eager = Running { runs: RUNS, threaded: false, step: &|| {}, begin: &|_| {}, watch: None };
    let mut want = execute::<Cuda>(program, &device, &eager);
    let nodes = program.budget.unwrap_or(Budget::default().nodes);
    Captured::forget_plans(&device);
    Captured::set_budget(&device, Budget { nodes, ..Budget::default() });
    Captured::reset_stats(&device);
    let captured = Running {
        runs: RUNS,
        threaded: true,
        step: &|| Captured::step(&device),
        begin: &|run| {
            if draws {
                <Captured as burn_backend::Backend>::seed(&device, seed_of(program, run));
            }
        },
        watch: None,
    };
    let mut got = execute::<Captured>(&spoilt(program, spoil), &device, &captured);
    let stats = Captured::stats(&device);
    Captured::set_budget(&device, Budget::default());
    Captured::forget_plans(&device);
    without_products(program, &mut want);
    without_products(program, &mut got);
    (first_difference(program, &want, &got), stats)
}

/// A mismatch, with a smaller program that shows one as well.
fn report(program: &Program, wrong: &str, check: &mut dyn FnMut(&Program) -> Option<String>) -> String {
    let began = Instant::now();
    let mut last = wrong.to_string();
    let reduced = program.reduced(&mut |smaller| {
        // What depends on timing shows itself only now and then.
        let tries = if smaller.threads > 1 { 3 } else { 1 };
        (0..tries).any(|_| began.elapsed() < REDUCING && check(smaller).map(|wrong| last = wrong).is_some())
    });
    format!(
        "{program}{wrong}\n\nreduced:\n{reduced}{last}\n\nKILN_PROGRAM={} {}",
        program.seed,
        command("programs")
    )
}

/// Panics of operations are looked at, and need not be printed: a captured one is tried, and a graph may be given up.
fn hide_expected_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let here = info.location().is_some_and(|location| location.file().contains("programs"));
            if !RUNS_PROGRAM.get() || here {
                print(info);
            }
        }));
    });
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Checks programs of a kind, and returns how many.
fn programs(profile: &Profile, mut check: impl FnMut(&Program) -> Option<String>) -> u64 {
    hide_expected_panics();
    let only = number("KILN_PROGRAM");
    let first = only.unwrap_or(0);
    let count = number("KILN_PROGRAMS").unwrap_or(if only.is_some() { 1 } else { usual() });
    let mut check = |program: &Program| match caught(|| check(program)) {
        Ok(wrong) => wrong,
        Err(panic) => Some(format!("  panicked: {panic}")),
    };
    let mut wrong = Vec::new();
    for seed in first..first + count {
        let program = generate(seed, profile);
        if count == 1 {
            println!("{program}");
        }
        if let Some(difference) = check(&program) {
            wrong.push(report(&program, &difference, &mut check));
            if wrong.len() == SHOWN {
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{} programs differ:\n{}", wrong.len(), wrong.join("\n"));
    count
}

#[test]
fn operations_of_random_programs_give_what_flex_gives() {
    let (began, mut tally) = (Instant::now(), Tally::default());
    let count = programs(&profile::eager(), |program| against_flex(program, &mut tally, as_it_is));
    println!("{count} programs in {:.0} s: {tally}", began.elapsed().as_secs_f64());
    tally.report();
    if count >= 20 {
        tally.compared_most();
    }
}

/// What captures of a kind of programs did.
#[derive(Default)]
struct Captures {
    programs: u64,
    replaying: u64,
    runs: u64,
    executed: u64,
    ops: u64,
    declined: std::collections::BTreeMap<String, u64>,
}

impl Captures {
    fn add(&mut self, program: &Program, stats: &Stats) {
        self.programs += 1;
        self.replaying += u64::from(stats.executed > 0);
        self.runs += stats.runs();
        self.executed += stats.executed;
        self.ops += program.ops() as u64;
        for (why, count) in &stats.declined {
            *self.declined.entry(why.clone()).or_default() += count;
        }
    }
}

impl std::fmt::Display for Captures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Captures { programs, replaying, runs, executed, ops, declined } = self;
        let share = |part: u64, whole: u64| 100 * part / whole.max(1);
        write!(f, "{programs} programs of {ops} operations, {RUNS} runs each; ")?;
        write!(f, "{replaying} programs ({}%) and ", share(*replaying, *programs))?;
        write!(f, "{executed} of {runs} graphs ({}%) were replayed", share(*executed, *runs))?;
        declined.iter().try_for_each(|(why, count)| write!(f, "\n  declined {count} times: {why}"))
    }
}

#[test]
fn captured_random_programs_give_what_eager_ones_give() {
    let (began, mut captures) = (Instant::now(), Captures::default());
    programs(&profile::captured(), |program| {
        let (wrong, stats) = against_eager(program, as_it_is);
        captures.add(program, &stats);
        wrong
    });
    println!("{captures}, in {:.0} s", began.elapsed().as_secs_f64());
    if captures.programs >= 20 {
        assert!(captures.executed > 0, "nothing was replayed");
    }
}

#[test]
fn replayed_random_programs_give_what_fresh_ones_give() {
    let (began, mut captures) = (Instant::now(), Captures::default());
    programs(&profile::replayed(), |program| {
        let (wrong, stats) = against_eager(program, as_it_is);
        captures.add(program, &stats);
        wrong
    });
    println!("{captures}, in {:.0} s", began.elapsed().as_secs_f64());
    if captures.programs >= 20 {
        let enough = captures.replaying * 2 >= captures.programs && captures.executed * 4 >= captures.runs;
        assert!(enough, "few graphs were replayed: {captures}");
    }
}
