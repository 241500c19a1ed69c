//! What the capture did: counts, and why traces ended and plans missed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// What made a trace run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cut {
    /// It equalled a known plan, and its thread went on.
    Plan,
    /// It left a longer known plan, so the shorter one that it had passed was run.
    LeftPlan,
    /// Its own thread read a value.
    Read,
    /// Another thread read a value when the trace equalled a known plan.
    ForeignPlan,
    /// Another thread read a value; cut before the first use of the next upload, or at a known plan's end.
    ForeignBoundary,
    /// Another thread read a value; cut where the trace stood.
    ForeignEnd,
    /// `sync`, or memory was to be given back.
    Sync,
    /// A step marker.
    Step,
    /// It reached the limit of operations or bytes.
    Budget,
    /// Its thread had ended.
    ThreadEnd,
}

/// Why a trace that ran had no plan that served it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Miss {
    /// Some operation, shape, dtype or attribute was new.
    NewOperations,
    /// All operations had been seen, but no trace had ended there.
    NewEnd,
    /// A plan was there, but more values were wanted than it gives.
    MoreOutputs,
}

/// A trace that ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The number of operations.
    pub operations: u32,
    /// What made it run.
    pub cut: Cut,
    /// Why no plan served it; `None` for a hit.
    pub miss: Option<Miss>,
    /// How many of the first operations continued a known sequence.
    pub followed: u32,
    /// The operation that did not, if one was new.
    pub first_new: Option<&'static str>,
    /// Whether an executable ran it.
    pub executed: bool,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trace { operations, cut, followed, executed, .. } = self;
        write!(f, "{operations} operations, cut by {cut:?}, ")?;
        match (self.miss, self.first_new) {
            (None, _) => f.write_str("hit")?,
            (Some(miss), None) => write!(f, "missed for {miss:?}")?,
            (Some(miss), Some(op)) => write!(f, "missed for {miss:?}: operation {followed}, {op}, is new")?,
        }
        f.write_str(if *executed { ", by an executable" } else { ", interpreted" })
    }
}

/// What the capture has done: counts since the device was opened, or since they were last reset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Operations in the traces that ran.
    pub recorded: u64,
    /// Those of them that continued a known sequence.
    pub followed: u64,
    /// Traces that ran, by what cut them.
    pub cuts: BTreeMap<Cut, u64>,
    /// Traces that a known plan served.
    pub hits: u64,
    /// Traces that none served, by reason.
    pub misses: BTreeMap<Miss, u64>,
    /// Traces that an executable ran.
    pub executed: u64,
    /// Traces that an executable declined, by reason.
    pub declined: BTreeMap<String, u64>,
    /// Inputs whose memory was free to be overwritten, since nobody else held them.
    pub donated: u64,
    /// Reads of a value that another thread had recorded and nobody had run.
    pub foreign_reads: u64,
    /// Foreign reads that waited for the owner to finish a known plan.
    pub waits: u64,
    /// Those of them that gave up and cut the trace.
    pub timeouts: u64,
    /// Operations that failed when they ran.
    pub failures: u64,
    /// The last [`Stats::RECENT`] traces that ran, the latest last.
    pub recent: VecDeque<Trace>,
}

impl Stats {
    /// How many traces [`Stats::recent`] keeps.
    pub const RECENT: usize = 32;

    /// Traces that ran.
    pub fn runs(&self) -> u64 {
        self.cuts.values().sum()
    }

    pub(crate) fn run(&mut self, trace: Trace) {
        self.recorded += u64::from(trace.operations);
        *self.cuts.entry(trace.cut).or_default() += 1;
        match trace.miss {
            Some(miss) => *self.misses.entry(miss).or_default() += 1,
            None => self.hits += 1,
        }
        self.executed += u64::from(trace.executed);
        if self.recent.len() == Self::RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(trace);
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { recorded, followed, hits, executed, donated, .. } = self;
        writeln!(f, "operations {recorded}, of which {followed} continued a known sequence")?;
        let misses: u64 = self.misses.values().sum();
        writeln!(f, "traces run {}: {hits} hits, {misses} misses; {executed} by an executable", self.runs())?;
        for (cut, count) in &self.cuts {
            writeln!(f, "  cut by {cut:?}: {count}")?;
        }
        for (miss, count) in &self.misses {
            writeln!(f, "  missed for {miss:?}: {count}")?;
        }
        for (reason, count) in &self.declined {
            writeln!(f, "  declined: {reason}: {count}")?;
        }
        let Stats { foreign_reads, waits, timeouts, failures, .. } = self;
        writeln!(f, "inputs donated {donated}; operations failed {failures}")?;
        write!(f, "foreign reads {foreign_reads}, of which {waits} waited and {timeouts} timed out")?;
        let recent: Vec<&Trace> = self.recent.iter().collect();
        for equal in recent.chunk_by(|a, b| a == b) {
            match equal.len() {
                1 => write!(f, "\n  {}", equal[0])?,
                count => write!(f, "\n  {count} times {}", equal[0])?,
            }
        }
        Ok(())
    }
}
