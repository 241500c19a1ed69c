//! What the capture did: counts, and why traces ended and plans missed.

use std::collections::BTreeMap;
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

/// Counts since the device was opened, or since [`Stats`] were last reset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Operations recorded.
    pub recorded: u64,
    /// Operations recorded that continued a known sequence.
    pub followed: u64,
    /// Traces that ran, by what cut them.
    pub cuts: BTreeMap<Cut, u64>,
    /// Operations in the traces that ran.
    pub ran: u64,
    /// Traces that a known plan served.
    pub hits: u64,
    /// Traces that none served, by reason.
    pub misses: BTreeMap<Miss, u64>,
    /// Runs by an executable.
    pub executed: u64,
    /// Runs that an executable declined, by reason.
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
}

impl Stats {
    /// Traces that ran.
    pub fn runs(&self) -> u64 {
        self.cuts.values().sum()
    }

    pub(crate) fn cut(&mut self, cut: Cut) {
        *self.cuts.entry(cut).or_default() += 1;
    }

    pub(crate) fn miss(&mut self, miss: Miss) {
        *self.misses.entry(miss).or_default() += 1;
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { recorded, followed, ran, hits, executed, donated, .. } = self;
        writeln!(
            f,
            "operations recorded {recorded}, of which {followed} followed a known sequence; run {ran}"
        )?;
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
        write!(f, "foreign reads {foreign_reads}, of which {waits} waited and {timeouts} timed out")
    }
}
