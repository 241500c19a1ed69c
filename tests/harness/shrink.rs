//! Makes a failing case simple: edits its tape and keeps what still fails, until no edit does.

use std::time::{Duration, Instant};

use super::rng::Tape;

/// How much may be spent on one case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) runs: usize,
    pub(crate) time: Duration,
}

impl Tape {
    /// What shrinking makes smaller: how many choices are not the simplest, then their sum, then how late they come.
    fn weight(&self) -> (usize, u64, usize) {
        let mut weight = (0, 0u64, 0);
        for (k, &choice) in self.choices.iter().enumerate().filter(|(_, c)| **c > 0) {
            // A seed of elements is simple or not; its size says nothing.
            weight = (weight.0 + 1, weight.1.saturating_add(choice.min(1 << 40)), weight.2 + k);
        }
        let add =
            |a: (usize, u64, usize), b: (usize, u64, usize)| (a.0 + b.0, a.1.saturating_add(b.1), a.2 + b.2);
        self.parts.iter().map(Tape::weight).fold(weight, add)
    }

    /// The tapes in this one, itself first, each before its parts.
    fn nodes(&self) -> usize {
        1 + self.parts.iter().map(Tape::nodes).sum::<usize>()
    }

    fn node(&mut self, index: &mut usize) -> Option<&mut Tape> {
        if *index == 0 {
            return Some(self);
        }
        *index -= 1;
        self.parts.iter_mut().find_map(|part| part.node(index))
    }

    /// With `edit` made to the tape of this number in [`Tape::nodes`].
    fn edited(&self, mut index: usize, edit: impl FnOnce(&mut Tape)) -> Tape {
        let mut tape = self.clone();
        if let Some(node) = tape.node(&mut index) {
            edit(node);
        }
        tape
    }

    /// The tapes that differ from this one by one edit, from the largest edits to the smallest.
    fn edits(&self) -> Vec<Tape> {
        let mut all = Vec::new();
        for index in 0..self.nodes() {
            all.push(self.edited(index, |node| *node = Tape::default()));
        }
        let at = |mut index: usize| self.clone().node(&mut index).cloned().unwrap_or_default();
        for index in 0..self.nodes() {
            for part in 0..at(index).parts.len() {
                all.push(self.edited(index, |node| drop(node.parts.remove(part))));
            }
        }
        for index in 0..self.nodes() {
            let choices = at(index).choices;
            for (k, &choice) in choices.iter().enumerate().filter(|(_, c)| **c > 0) {
                all.push(self.edited(index, |node| node.choices[k] = 0));
                // The seeds of elements are random and stay so.
                for smaller in [choice / 2, choice - 1].into_iter().filter(|_| choice < 1 << 40) {
                    all.push(self.edited(index, |node| node.choices[k] = smaller));
                }
            }
            for length in [8, 4, 2, 1] {
                for start in 0..(choices.len() + 1).saturating_sub(length) {
                    all.push(self.edited(index, |node| drop(node.choices.drain(start..start + length))));
                }
            }
        }
        all
    }
}

/// The simplest tape that is found to fail, and how many runs that took. `fails` runs a tape and gives the one that was
/// made, if the case fails in the same way.
pub(crate) fn shrink(
    start: Tape,
    budget: Budget,
    mut fails: impl FnMut(Tape) -> Option<Tape>,
) -> (Tape, usize) {
    let (begun, mut runs, mut best) = (Instant::now(), 0, start);
    let mut from = 0;
    'again: loop {
        let edits = best.edits();
        // Where one edit succeeded the next may, so the search goes on from there.
        for k in 0..edits.len() {
            let at = (from + k) % edits.len();
            if edits[at].weight() >= best.weight() {
                continue;
            }
            if runs >= budget.runs || begun.elapsed() >= budget.time {
                return (best, runs);
            }
            runs += 1;
            if let Some(made) = fails(edits[at].clone())
                && made.weight() < best.weight()
            {
                (best, from) = (made, at);
                continue 'again;
            }
        }
        return (best, runs);
    }
}
