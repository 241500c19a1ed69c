//! [`Totals`]: what programs did, to see that they show something.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use burn_backend::DType;
use kiln_fusion::{Cut, Stats};
use kiln_surface::Op;
use kiln_surface::arguments::UNSUPPORTED_BY_FLEX;

use super::execute::Seen;
use super::program::{Action, Program, RUNS};

/// What all programs together did.
#[derive(Default)]
pub(crate) struct Totals {
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
    pub(crate) fn count(&mut self, program: &Program, want: &[Vec<Seen>], stats: &Stats) {
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
                        self.dtypes
                            .insert(format!("{:?}", data.dtype).split('(').next().unwrap_or("").into());
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
        sum.executed += stats.executed;
        stats.declined.iter().for_each(|(why, count)| *sum.declined.entry(why.clone()).or_default() += count);
        stats.cuts.iter().for_each(|(cut, count)| *sum.cuts.entry(*cut).or_default() += count);
        stats.misses.iter().for_each(|(miss, count)| *sum.misses.entry(*miss).or_default() += count);
    }

    /// What all workers together did.
    pub(crate) fn merge(&mut self, other: Totals) {
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

    /// Prints them.
    pub(crate) fn print(&self, took: Duration) {
        let Totals { programs, ops, stats, reads, failed_reads, nans, floats, .. } = self;
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        println!("{programs} programs of {ops} operations, {RUNS} runs each, in {:.0} s", took.as_secs_f64());
        println!(
            "{reads} reads, {failed_reads} of failed values; NaN in {:.1}% of f32",
            share(*nans, *floats)
        );
        let prefixes = [Cut::LeftPlan, Cut::ForeignPlan, Cut::ForeignBoundary, Cut::Budget];
        let prefixes: u64 = prefixes.iter().filter_map(|cut| stats.cuts.get(cut)).sum();
        println!(
            "{:.1}% of traces hit a plan, {:.1}% were cut before what their thread had recorded ended",
            share(stats.hits, stats.runs()),
            share(prefixes, stats.runs())
        );
        let (foreign, failing) = (self.with_foreign_reads, self.with_failures);
        println!("programs with foreign reads {foreign}, with failures {failing}");
        println!("{stats}");
        let all = Op::NAMES.len() - UNSUPPORTED_BY_FLEX.len();
        println!(
            "{} of {all} operations; dtypes {:?}; ranks {:?}",
            self.names.len(),
            self.dtypes,
            self.ranks
        );
        let mut rare: Vec<_> = self.names.iter().collect();
        rare.sort_by_key(|(_, count)| **count);
        println!("least frequent: {:?}", &rare[..rare.len().min(8)]);
    }

    /// The programs did what they are to show.
    pub(crate) fn all_happened(&self) {
        let stats = &self.stats;
        let supported =
            Op::NAMES.iter().filter(|name| !UNSUPPORTED_BY_FLEX.iter().any(|(other, _)| other == *name));
        let missing: Vec<_> = supported.filter(|name| !self.names.contains_key(**name)).collect();
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
        assert!(stats.executed > 0 && !stats.declined.is_empty(), "{stats}");
        assert!(stats.failures > 0 && self.failed_reads > 0, "{stats}");
        assert!(
            self.with_foreign_reads * 10 >= self.programs,
            "{} have foreign reads",
            self.with_foreign_reads
        );
    }
}
