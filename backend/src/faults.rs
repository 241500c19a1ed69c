//! Indices out of range, found by kernels while they run.
//!
//! A kernel that gathers or scatters gets a ticket and an entry of a table in host memory that the device can write.
//! When it meets an index outside the tensor it clamps it, fills the entry, and goes on: nothing traps and the context
//! lives. The host looks at the table after it has waited for the device.
//!
//! Each storage knows the range of tickets that its values depend on ([`Range`], joined by every launch from what it
//! reads to what it writes). A read of a tensor whose range holds a fault is an error, each time; `sync` reports each
//! fault once. Ranges are a conservative stand-in for sets: ticket numbers of ops between two others that a value
//! depends on count as well. They do not grow without end, since tickets that were checked clean are dropped.
//!
//! A copy on another device gets a ticket there ([`Faults::inherit`]), which stands for the range that the values depend
//! on where they came from, until a wait has looked there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::error::Error;

/// Entries of the table: operations between two waits that can each report a fault of their own.
const ENTRIES: usize = 1024;
/// Faults that are remembered; the oldest are forgotten first.
const REMEMBERED: usize = 4096;

/// Mirrors `Fault` in the prelude.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Entry {
    index: i64,
    size: i64,
    ticket: u32,
    unused: u32,
}

/// What a kernel gets. Mirrors `FaultTable` in the prelude.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FaultTable {
    any: u64,
    entry: u64,
    ticket: u32,
    high: u32,
}

impl FaultTable {
    pub(crate) fn ticket(&self) -> u64 {
        (self.high as u64) << 32 | self.ticket as u64
    }

    /// The dependence on this operation alone.
    pub(crate) fn range(&self) -> Range {
        Range { first: self.ticket(), last: self.ticket() }
    }
}

/// Tickets `first..=last`; none when `last` is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Range {
    pub(crate) fn is_none(&self) -> bool {
        self.last == 0
    }

    pub(crate) fn join(self, other: Range) -> Range {
        match (self.is_none(), other.is_none()) {
            (true, _) => other,
            (_, true) => self,
            _ => Range { first: self.first.min(other.first), last: self.last.max(other.last) },
        }
    }
}

/// The faults of one device.
pub(crate) struct Faults {
    /// Host-mapped memory: one `u32` (any), padding to 16 bytes, then the entries. 0 when it could not be allocated.
    table: usize,
    /// The next ticket; 1 is the first.
    next: AtomicU64,
    /// All tickets below are checked.
    checked: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// Ticket and operation that each entry was last given to.
    given: Vec<(u64, &'static str)>,
    /// Faults by ticket, and whether they have been reported.
    found: BTreeMap<u64, (Error, bool)>,
    /// Operations of captured graphs, which may run again: never clean for good.
    captured: BTreeMap<u64, &'static str>,
    /// Copies from other devices whose values depend on faults there, until they have arrived.
    inherited: BTreeMap<u64, (&'static Faults, Range)>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults")
            .field("next", &self.next)
            .field("checked", &self.checked)
            .finish_non_exhaustive()
    }
}

impl State {
    fn note(&mut self, ticket: u64, error: Error) {
        self.found.entry(ticket).or_insert((error, false));
        while self.found.len() > REMEMBERED {
            self.found.pop_first();
        }
    }

    fn operation(&self, ticket: u64) -> &'static str {
        let (given, op) = self.given[(ticket % ENTRIES as u64) as usize];
        match self.captured.get(&ticket) {
            Some(op) => op,
            None if given == ticket => op,
            // The slot has gone to another operation: 1,024 more ran without a wait.
            None => "an earlier gather or scatter",
        }
    }
}

/// A ticket that has been given out; while it lives, no wait begins.
pub(crate) struct Open<'a> {
    pub(crate) table: FaultTable,
    _state: MutexGuard<'a, State>,
}

impl Faults {
    /// Bytes of the table.
    pub(crate) const TABLE_BYTES: usize = 16 + ENTRIES * size_of::<Entry>();

    /// `table` is zeroed host memory of [`Faults::TABLE_BYTES`] that the device can write, for the process's life.
    pub(crate) fn new(table: usize) -> Self {
        Faults {
            table,
            next: AtomicU64::new(1),
            checked: AtomicU64::new(1),
            state: Mutex::new(State {
                given: vec![(0, ""); ENTRIES],
                found: BTreeMap::new(),
                captured: BTreeMap::new(),
                inherited: BTreeMap::new(),
            }),
        }
    }

    fn entry(&self, ticket: u64) -> usize {
        self.table + 16 + (ticket % ENTRIES as u64) as usize * size_of::<Entry>()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A ticket and an entry for one launch of `op`, to be dropped once the launch is queued.
    pub(crate) fn open(&self, op: &'static str) -> Open<'_> {
        let mut state = self.lock();
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        state.given[(ticket % ENTRIES as u64) as usize] = (ticket, op);
        let table = FaultTable {
            any: self.table as u64,
            entry: self.entry(ticket) as u64,
            ticket: ticket as u32,
            high: (ticket >> 32) as u32,
        };
        Open { table, _state: state }
    }

    /// The dependence of a copy of values that depend on `range` of another device's faults. The copy is queued.
    pub(crate) fn inherit(&self, from: &'static Faults, range: Range) -> Range {
        let mut state = self.lock();
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        state.given[(ticket % ENTRIES as u64) as usize] = (ticket, "to_device");
        state.inherited.insert(ticket, (from, range));
        Range { first: ticket, last: ticket }
    }

    /// The first fault of a range, here or where its values came from, when the device has passed the work. Ranges say
    /// too much, so they can lead in a circle: `seen` holds the copies that were looked at, by device.
    fn find(&self, range: Range, seen: &mut BTreeSet<(usize, u64)>) -> Option<Error> {
        self.collect();
        let tickets = range.first..=range.last;
        let inherited: Vec<_> = {
            let state = self.lock();
            if let Some((_, (error, _))) = state.found.range(tickets.clone()).next() {
                return Some(error.clone());
            }
            state.inherited.range(tickets).map(|(&ticket, from)| (ticket, *from)).collect()
        };
        let fresh: Vec<_> =
            inherited.into_iter().filter(|(ticket, _)| seen.insert((self.table, *ticket))).collect();
        fresh.into_iter().find_map(|(_, (from, range))| from.find(range, seen))
    }

    /// Makes tickets those of a graph, which may run again.
    pub(crate) fn capture(&self, tickets: &[u64]) {
        let mut state = self.lock();
        for &ticket in tickets {
            let op = state.operation(ticket);
            state.captured.insert(ticket, op);
        }
    }

    /// A graph with these tickets is about to run again: what an earlier run met is forgotten.
    pub(crate) fn rerun(&self, tickets: &[u64]) {
        let mut state = self.lock();
        for ticket in tickets {
            state.found.remove(ticket);
        }
    }

    /// The graph with these tickets is gone.
    pub(crate) fn release(&self, tickets: &[u64]) {
        let mut state = self.lock();
        for ticket in tickets {
            state.captured.remove(ticket);
        }
    }

    /// What a wait that begins now will have checked.
    pub(crate) fn begin_wait(&self) -> u64 {
        let _no_launch = self.lock();
        self.next.load(Ordering::Relaxed)
    }

    /// Collects what the kernels wrote; called when the device has passed all work with tickets below `upto`.
    pub(crate) fn end_wait(&self, upto: u64) {
        self.collect();
        // No two devices' locks are held at once: each may inherit from the other.
        let arrived: Vec<_> =
            self.lock().inherited.range(..upto).map(|(&ticket, from)| (ticket, *from)).collect();
        for (ticket, (from, range)) in arrived {
            let error = from.find(range, &mut BTreeSet::new());
            let mut state = self.lock();
            if let Some(error) = error {
                state.note(ticket, error);
            }
            state.inherited.remove(&ticket);
        }
        self.checked.fetch_max(upto, Ordering::Relaxed);
    }

    /// Takes the entries that kernels have filled.
    #[allow(unsafe_code)]
    fn collect(&self) {
        let any = self.table as *mut u32;
        let mut messages = Vec::new();
        // SAFETY: the table lives as long as the process, and `any` is its first word.
        if unsafe { any.read_volatile() } != 0 {
            let mut state = self.lock();
            // SAFETY: as above; cleared before the scan, so that a fault noted during it is found by the next wait.
            unsafe { any.write_volatile(0) };
            for slot in 0..ENTRIES {
                let at = (self.table + 16 + slot * size_of::<Entry>()) as *mut Entry;
                // SAFETY: the slot lies inside the table.
                let entry = unsafe { at.read_volatile() };
                if entry.ticket == 0 {
                    continue;
                }
                // SAFETY: as above. A kernel that runs now and still writes this entry sets `any` again afterwards.
                unsafe { at.write_volatile(Entry { index: 0, size: 0, ticket: 0, unused: 0 }) };
                let given = state.given[slot].0;
                let ticket = if given as u32 == entry.ticket {
                    given
                } else {
                    (given & !0xffff_ffff) | entry.ticket as u64
                };
                let op = state.operation(ticket);
                let error = Error::IndexOutOfRange { op: op.into(), index: entry.index, size: entry.size };
                messages.push(error.to_string());
                state.note(ticket, error);
            }
        }
        // With no lock held: a logger may do anything.
        for message in messages {
            log::error!("{message}");
        }
    }

    /// The part of a dependence that is not known to be clean.
    pub(crate) fn prune(&self, range: Range) -> Range {
        if range.is_none() || range.last >= self.checked.load(Ordering::Relaxed) {
            return range;
        }
        let state = self.lock();
        let tickets = range.first..=range.last;
        if state.found.range(tickets.clone()).next().is_some()
            || state.captured.range(tickets.clone()).next().is_some()
            || state.inherited.range(tickets).next().is_some()
        {
            return range;
        }
        Range::default()
    }

    /// The first fault that a value with this dependence has; it counts as reported from now on.
    pub(crate) fn report(&self, range: Range) -> Option<Error> {
        if range.is_none() {
            return None;
        }
        let mut state = self.lock();
        let (error, reported) = state.found.range_mut(range.first..=range.last).next()?.1;
        *reported = true;
        Some(error.clone())
    }

    /// The first fault that no read and no `sync` has reported; it and all others count as reported from now on.
    pub(crate) fn take_unreported(&self) -> Option<Error> {
        let mut state = self.lock();
        let mut first = None;
        for (error, reported) in state.found.values_mut() {
            if !std::mem::replace(reported, true) {
                first.get_or_insert_with(|| error.clone());
            }
        }
        first
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    fn faults() -> Faults {
        Faults::new(vec![0u64; Faults::TABLE_BYTES.div_ceil(8)].leak().as_mut_ptr() as usize)
    }

    /// What `checked_index` does on the device.
    fn device_fault(table: &FaultTable, index: i64, size: i64) {
        let entry = Entry { index, size, ticket: table.ticket, unused: 0 };
        // SAFETY: the table is leaked memory, and the tests are single-threaded.
        unsafe { (table.entry as *mut Entry).write_volatile(entry) };
        // SAFETY: as above.
        unsafe { (table.any as *mut u32).write_volatile(1) };
    }

    #[test]
    fn a_fault_poisons_what_depends_on_it_and_nothing_else() {
        let faults = faults();
        let [good, bad, later] = ["gather", "select", "gather"].map(|op| faults.open(op).table);
        let upto = faults.begin_wait();
        device_fault(&bad, 12, 10);
        faults.end_wait(upto);
        assert!(faults.report(good.range()).is_none());
        assert!(faults.report(later.range()).is_none());
        for _ in 0..2 {
            let text = faults.report(bad.range().join(later.range())).unwrap().to_string();
            assert_eq!(text, "select: index 12 is out of range for a dimension of size 10");
        }
        assert!(faults.take_unreported().is_none(), "sync does not repeat what a read has reported");
        assert!(faults.report(bad.range()).is_some(), "reads go on reporting it");
    }

    #[test]
    fn dependences_checked_clean_are_dropped() {
        let faults = faults();
        let a = faults.open("gather").table.range();
        assert_eq!(faults.prune(a), a, "not yet checked");
        faults.end_wait(faults.begin_wait());
        assert!(faults.prune(a).is_none());
        let bad = faults.open("gather").table;
        device_fault(&bad, -1, 4);
        faults.end_wait(faults.begin_wait());
        assert_eq!(faults.prune(bad.range()), bad.range());
    }

    #[test]
    fn two_faults_between_waits_are_both_found() {
        let faults = faults();
        let tables: Vec<_> = (0..ENTRIES).map(|_| faults.open("select").table).collect();
        device_fault(&tables[3], 7, 5);
        device_fault(&tables[900], 8, 5);
        faults.end_wait(faults.begin_wait());
        assert!(faults.report(tables[3].range()).unwrap().to_string().contains("index 7"));
        assert!(faults.report(tables[900].range()).unwrap().to_string().contains("index 8"));
    }

    #[test]
    fn sync_reports_what_no_read_has() {
        let faults = faults();
        let bad = faults.open("scatter_add").table;
        device_fault(&bad, 5, 5);
        faults.end_wait(faults.begin_wait());
        assert!(faults.take_unreported().unwrap().to_string().contains("scatter_add"));
        assert!(faults.take_unreported().is_none(), "once");
        assert!(faults.report(bad.range()).is_some(), "reads go on reporting it");
    }

    #[test]
    fn faults_go_with_values_to_another_device() {
        let [a, b, c] = [faults(), faults(), faults()].map(|faults| &*Box::leak(Box::new(faults)));
        let [bad, good] = ["gather", "select"].map(|op| a.open(op).table);
        let here = [bad, good].map(|table| b.inherit(a, table.range()));
        let far = c.inherit(b, here[0]);
        let later = b.open("gather").table.range();
        device_fault(&bad, 6, 2);
        assert_eq!(b.prune(here[1]), here[1], "not yet arrived");
        c.end_wait(c.begin_wait());
        assert!(c.report(far).unwrap().to_string().contains("gather: index 6"), "through two devices");
        b.end_wait(b.begin_wait());
        for _ in 0..2 {
            assert!(b.report(here[0].join(later)).unwrap().to_string().contains("gather: index 6"));
        }
        assert!(b.report(here[1]).is_none() && b.prune(here[1]).is_none());
        assert!(a.take_unreported().is_some(), "where it happened it is still to be reported");
    }

    #[test]
    fn devices_that_inherit_from_each_other_come_to_an_end() {
        let [a, b] = [faults(), faults()].map(|faults| &*Box::leak(Box::new(faults)));
        let everything = Range { first: 1, last: 9 };
        let (there, back) = (b.inherit(a, everything), a.inherit(b, everything));
        a.end_wait(a.begin_wait());
        b.end_wait(b.begin_wait());
        assert!(a.report(back).is_none() && b.report(there).is_none());
    }

    #[test]
    fn the_tickets_of_a_graph_are_never_clean_for_good() {
        let faults = faults();
        let table = faults.open("gather").table;
        faults.capture(&[table.ticket()]);
        faults.end_wait(faults.begin_wait());
        assert_eq!(faults.prune(table.range()), table.range(), "it may run again");
        device_fault(&table, 9, 3);
        faults.end_wait(faults.begin_wait());
        assert!(faults.report(table.range()).is_some());
        faults.rerun(&[table.ticket()]);
        faults.end_wait(faults.begin_wait());
        assert!(faults.report(table.range()).is_none(), "a sound run follows a faulty one");
        faults.release(&[table.ticket()]);
        assert!(faults.prune(table.range()).is_none());
    }
}
