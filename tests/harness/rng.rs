//! A seeded generator that writes down what it chose, so that a failing case can be run again with simpler choices.
//!
//! 0 is the simplest choice everywhere: the smallest size, no view, the first of a list. A [`Tape`] holds the choices of
//! a case; each shape, view and argument keeps its own in a part of it, so that one can shrink without shifting what the
//! others read. The elements of a tensor cost one choice, the seed of a generator that writes nothing down.
//! (After MacIver and Donaldson, "Test-case reduction via test-case generation", ECOOP 2020.)

/// The choices of a case, and those of its parts in the order they were made.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tape {
    pub(crate) choices: Vec<u64>,
    pub(crate) parts: Vec<Tape>,
}

/// Where choices come from. The numbers are SplitMix64's (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014).
#[derive(Debug, Clone)]
enum Source {
    /// Random, written down.
    Recorded(u64),
    /// Taken from a tape: reduced where they are out of range, 0 past its end.
    Replayed(Tape),
    /// Random, not written down.
    Free(u64),
    /// 0, 1, 2, ..: the elements of the simplest tensor.
    Counting(u64),
}

#[derive(Debug, Clone)]
pub(crate) struct Rng {
    source: Source,
    made: Tape,
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    fn from(source: Source) -> Self {
        Rng { source, made: Tape::default() }
    }

    pub(crate) fn new(seed: u64) -> Self {
        Rng::from(Source::Free(seed))
    }

    /// The generator of one case: the run's seed, the names of family and op, and the case's number.
    pub(crate) fn of_case(seed: u64, family: &str, op: &str, case: usize) -> Self {
        // FNV-1a over the names.
        let names = family.bytes().chain([0]).chain(op.bytes());
        let hash = names.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3));
        let mut state = seed ^ hash ^ (case as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        split_mix(&mut state);
        Rng::from(Source::Recorded(state))
    }

    /// Chooses again what is on the tape.
    pub(crate) fn replay(tape: Tape) -> Self {
        Rng::from(Source::Replayed(tape))
    }

    /// What was chosen.
    pub(crate) fn into_tape(self) -> Tape {
        self.made
    }

    /// A choice below `n`, or of 64 bits if `n` is 0.
    fn choose(&mut self, n: u64) -> u64 {
        let reduced = |x: u64| if n == 0 { x } else { x % n };
        let chosen = match &mut self.source {
            Source::Free(state) => return reduced(split_mix(state)),
            Source::Counting(count) => {
                *count += 1;
                return reduced(*count - 1);
            }
            Source::Recorded(state) => reduced(split_mix(state)),
            Source::Replayed(tape) => {
                reduced(tape.choices.get(self.made.choices.len()).copied().unwrap_or(0))
            }
        };
        self.made.choices.push(chosen);
        chosen
    }

    /// Makes the choices of `f` a part of their own.
    pub(crate) fn part<R>(&mut self, f: impl FnOnce(&mut Rng) -> R) -> R {
        let mut part = match &mut self.source {
            Source::Recorded(state) => Rng::from(Source::Recorded(split_mix(state))),
            Source::Replayed(tape) => {
                Rng::replay(tape.parts.get(self.made.parts.len()).cloned().unwrap_or_default())
            }
            Source::Free(_) | Source::Counting(_) => return f(self),
        };
        let result = f(&mut part);
        self.made.parts.push(part.made);
        result
    }

    /// A generator for the elements of a tensor.
    pub(crate) fn elements(&mut self) -> Rng {
        Rng::from(match self.choose(0) {
            0 => Source::Counting(0),
            seed => Source::Free(seed),
        })
    }

    /// The number of the element, if this one draws those of the simplest tensor.
    pub(crate) fn counted(&mut self) -> Option<usize> {
        matches!(self.source, Source::Counting(_)).then(|| self.choose(0) as usize)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.choose(0)
    }

    /// Below `n`, which is at least 1.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.choose(n as u64) as usize
    }

    /// In `low..=high`.
    pub(crate) fn range(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// The first is the simplest.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// In `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        self.choose(1 << 53) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Standard normal (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// The numbers below `n` in random order; as they are if each choice is 0.
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        self.part(|rng| {
            let mut order: Vec<usize> = (0..n).collect();
            for k in 1..n {
                order.swap(k, k - rng.below(k + 1));
            }
            order
        })
    }
}
