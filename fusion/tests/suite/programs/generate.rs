//! Random programs: [`generate`].
//!
//! An operation comes with the arguments that `kiln_surface::arguments` gives it. Then its first tensor is replaced by a
//! variable, its attributes and other operands are fitted to the shape of that, and each other operand too becomes a
//! variable where one fits or can be made to fit by views; else it is uploaded. [`infer`] judges the result; what it
//! refuses is taken as `arguments` gave it.

use burn_backend::{BoolStore, DType, FloatDType, IntDType, Scalar, Shape, Slice};
use kiln_surface::arguments::{Case, Input, Rng, UNSUPPORTED_BY_FLEX, Values, arguments};
use kiln_surface::{Defaults, Kind, Meta, Op, ValueId, infer_with};

use super::fit::bare;
use super::program::{ALL, Action, Mask, Program, Statement, Var, number};
use super::range::{Range, range};

/// Operations that burn-flex cannot run on a tensor without elements, because it has no element to start from or
/// divides by a size.
#[rustfmt::skip]
const NEEDS_ELEMENTS: &[&str] = &[
    "argmax", "argmin", "max", "min", "max_abs", "max_dim", "min_dim", "max_abs_dim", "max_dim_with_indices",
    "min_dim_with_indices", "mean", "mean_dim", "any_dim", "all_dim", "log_softmax",
];

/// The largest tensor that a program has, in elements.
const LARGEST: usize = 600;

/// Operations that most programs are made of; half of what is drawn comes from here, the rest from all of the table.
#[rustfmt::skip]
const COMMON: &[&str] = &[
    "float_add", "float_sub", "float_mul", "float_div", "float_add_scalar", "float_mul_scalar", "float_matmul",
    "float_exp", "float_tanh", "float_neg", "float_sum_dim", "float_mean_dim", "float_max_dim", "float_reshape",
    "float_transpose", "float_permute", "float_slice", "float_slice_assign", "float_expand", "float_cat", "float_select",
    "float_cast", "float_greater", "float_mask_where", "float_mask_fill", "float_random", "float_zeros", "relu",
    "sigmoid", "softmax", "linear", "layer_norm", "embedding", "int_add", "int_mul_scalar", "int_reshape", "bool_and",
    "bool_not", "bool_into_float", "float_into_int", "float_argmax", "float_swap_dims", "float_gather", "float_flip",
];

/// What programs are made of: what the backends that are compared both have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    /// Whether an operation is left out.
    pub(crate) leaves_out: fn(&str) -> bool,
    /// The dtype that takes the place of another; one that has another in its place does not occur.
    pub(crate) dtype: fn(DType) -> DType,
    /// What the backend chooses where Burn's signatures name no dtype.
    pub(crate) defaults: Defaults,
    /// The numbers of threads that are drawn from.
    pub(crate) threads: &'static [usize],
    /// Whether some programs have hundreds of operations.
    pub(crate) long: bool,
    /// Whether operations fail now and then. If not, each index names an element.
    pub(crate) fails: bool,
    /// Whether each run does the same, and ends with a step.
    pub(crate) steady: bool,
}

impl Profile {
    /// Whatever burn-flex can do.
    #[allow(dead_code, reason = "not every user runs on burn-flex")]
    pub(crate) const FLEX: Profile = Profile {
        leaves_out: |name| UNSUPPORTED_BY_FLEX.iter().any(|(unsupported, _)| *unsupported == name),
        dtype: |dtype| dtype,
        defaults: Defaults { float: FloatDType::F32, index: IntDType::I64 },
        threads: &[1, 1, 1, 1, 2, 2, 3, 4],
        long: true,
        fails: true,
        steady: false,
    };
}

/// What is known of a variable.
pub(crate) struct Known {
    pub(crate) meta: Meta,
    pub(crate) kind: Kind,
    pub(crate) range: Option<Range>,
    /// The runs in which it is there.
    runs: Mask,
    /// The thread that made it.
    thread: usize,
    alive: bool,
}

pub(crate) struct Generator {
    pub(crate) rng: Rng,
    program: Program,
    pub(crate) vars: Vec<Known>,
    pub(crate) profile: Profile,
    thread: usize,
}

/// The program of a seed.
pub(crate) fn generate(seed: u64, profile: &Profile) -> Program {
    let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x6b69_6c6e);
    let threads = rng.pick(profile.threads);
    let program = Program {
        seed,
        threads,
        lockstep: rng.below(3) == 0,
        fresh_threads: rng.below(4) == 0,
        budget: (rng.below(12) == 0).then(|| rng.between(2, 12)).filter(|_| !profile.steady),
        compiles: rng.below(4) == 0,
        statements: Vec::new(),
    };
    let ops = match rng.below(16) {
        0 if profile.long => rng.between(100, 200),
        1..4 if profile.long => rng.between(40, 100),
        _ => rng.between(5, 40),
    };
    let mut generator = Generator { rng, program, vars: Vec::new(), profile: *profile, thread: 0 };
    for _ in 0..generator.rng.between(1, 4) {
        generator.any_upload();
    }
    let mut fails_at = (generator.rng.below(25) == 0).then(|| generator.rng.below(ops));
    fails_at = fails_at.filter(|_| profile.fails);
    let mut made = 0;
    while made < ops {
        if fails_at.take_if(|at| *at <= made).is_some() {
            generator.failing();
        }
        generator.between_ops();
        made += generator.operation();
    }
    generator.end();
    generator.program
}

impl Generator {
    pub(crate) fn chance(&mut self, one_in: usize) -> bool {
        self.rng.below(one_in) == 0
    }

    fn seed(&mut self) -> u64 {
        self.rng.below(1 << 40) as u64
    }

    fn push(&mut self, runs: Mask, action: Action) {
        self.program.statements.push(Statement { thread: self.thread, runs, action });
    }

    fn new_var(&mut self, meta: Meta, kind: Kind, range: Option<Range>, runs: Mask) -> Var {
        self.vars.push(Known { meta, kind, range, runs, thread: self.thread, alive: true });
        self.vars.len() as Var - 1
    }

    fn upload(&mut self, input: Input, runs: Mask) -> Var {
        let kind = kind_of(input.meta.dtype);
        let to = self.new_var(input.meta.clone(), kind, Some(Range::of(input.values)), runs);
        let seed = self.seed();
        self.push(runs, Action::Upload { to, input, seed });
        to
    }

    /// A shape of rank 1 to 6, with sizes of 0 now and then.
    fn shape(&mut self) -> Vec<usize> {
        let rank = self.rng.pick(&[1, 1, 2, 2, 2, 3, 3, 4, 5, 6]);
        let sizes: &[usize] = if rank < 4 { &[1, 2, 3, 4, 5, 7, 8] } else { &[1, 1, 2, 3] };
        let mut shape: Vec<usize> = (0..rank).map(|_| self.rng.pick(sizes)).collect();
        if self.chance(20) {
            shape[self.rng.below(rank)] = 0;
        }
        shape
    }

    fn any_upload(&mut self) {
        let shape = self.shape();
        let floats = [DType::F32, DType::F32, DType::F64, DType::F16, DType::BF16];
        let ints =
            [DType::I64, DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8];
        let (dtype, values) = match self.rng.below(8) {
            0 | 1 => {
                let dtype = self.rng.pick(&ints);
                (dtype, Values::Int { low: if dtype.is_uint() { 0 } else { -8 }, high: 8 })
            }
            2 => (DType::Bool(self.rng.pick(&[BoolStore::Native, BoolStore::U8])), Values::Bool),
            _ => (self.rng.pick(&floats), Values::Float { low: -2.0, high: 2.0 }),
        };
        let dtype = (self.profile.dtype)(dtype);
        self.upload(Input { meta: Meta::new(Shape::from(shape), dtype), values }, ALL);
    }

    /// What happens besides operations.
    fn between_ops(&mut self) {
        if self.program.threads > 1 && self.chance(9) {
            self.thread = self.rng.below(self.program.threads);
        }
        let runs = self.some_runs(6);
        match self.rng.below(40) {
            0 => self.any_upload(),
            1..3 => {
                if let Some(from) = self.any_var(|_| true) {
                    let Known { meta, kind, range, runs, .. } = &self.vars[from as usize];
                    let (meta, kind, range, runs) = (meta.clone(), *kind, *range, *runs);
                    let to = self.new_var(meta, kind, range, runs);
                    self.push(runs, Action::Clone { from, to });
                }
            }
            3 | 4 => {
                if let Some(var) = self.any_var(|_| true) {
                    let runs = self.vars[var as usize].runs & runs;
                    self.vars[var as usize].alive = false;
                    if runs != 0 {
                        self.push(runs, Action::Drop(var));
                    }
                }
            }
            5 => self.read(),
            6 if self.chance(2) => self.push(runs, Action::Step),
            7 if self.chance(3) => self.push(runs, Action::Sync),
            8 if self.program.threads > 1 => {
                let micros = self.rng.between(1, 200) as u64;
                self.push(runs, Action::Pause { micros });
            }
            _ => {}
        }
    }

    /// All runs, or one time in `one_in` only some.
    fn some_runs(&mut self, one_in: usize) -> Mask {
        if !self.profile.steady && self.chance(one_in) {
            self.rng.between(1, usize::from(ALL) - 1) as Mask
        } else {
            ALL
        }
    }

    fn read(&mut self) {
        let Some(var) = self.any_var(|_| true) else { return };
        let runs = self.vars[var as usize].runs & self.some_runs(5);
        if runs == 0 {
            return;
        }
        let meta = &self.vars[var as usize].meta;
        if matches!(meta.dtype, DType::Bool(_)) && !meta.shape.contains(&0) && self.chance(3) {
            let dtype = self.rng.pick(&[IntDType::I64, IntDType::I32]);
            return self.push(runs, Action::Argwhere { var, dtype });
        }
        if self.chance(5) {
            let others: Vec<Var> =
                (0..4).filter_map(|_| self.any_var(|known| known.runs & runs == runs)).collect();
            let mut vars: Vec<Var> = others.into_iter().chain([var]).collect();
            vars.sort_unstable();
            vars.dedup();
            return self.push(runs, Action::ReadAll(vars));
        }
        let consume = self.chance(3);
        if consume {
            self.vars[var as usize].alive = false;
        }
        self.push(runs, Action::Read { var, consume });
    }

    /// Reads what is left, or leaves it to be dropped.
    fn end(&mut self) {
        if self.chance(4) {
            let runs = self.some_runs(3);
            self.push(runs, Action::Step);
        }
        let left: Vec<Var> =
            (0..self.vars.len() as Var).filter(|var| self.vars[*var as usize].alive).collect();
        for var in left {
            if self.program.threads > 1 && self.chance(10) {
                self.thread = self.rng.below(self.program.threads);
            }
            let runs = self.vars[var as usize].runs & self.some_runs(6);
            if runs != 0 && !self.chance(8) {
                let consume = self.chance(2);
                self.push(runs, Action::Read { var, consume });
            }
        }
        if self.chance(2) || self.profile.steady {
            self.push(ALL, Action::Step);
        }
    }

    /// A variable that is there, a recent one rather than an old one and one of this thread rather than another's.
    pub(crate) fn any_var(&mut self, fits: impl Fn(&Known) -> bool) -> Option<Var> {
        let own = self.chance(4);
        let thread = self.thread;
        let mut found: Vec<Var> = (0..self.vars.len() as Var)
            .filter(|var| {
                let known = &self.vars[*var as usize];
                known.alive && (own || known.thread == thread) && fits(known)
            })
            .collect();
        if found.len() > 6 && !self.chance(4) {
            found.drain(..found.len() - 6);
        }
        (!found.is_empty()).then(|| self.rng.pick(&found))
    }

    /// An operation that fails when it runs, and whatever depends on it with it.
    fn failing(&mut self) {
        let names = ["int_div", "int_remainder", "float_select", "int_gather"];
        let name = self.rng.pick(&names);
        let mut case = loop {
            let seed = self.seed();
            let case = arguments(name, seed).expect("an operation of the table");
            if !case.has_zero_size()
                && case.inputs.iter().all(|input| input.meta.shape.num_elements() <= LARGEST)
            {
                break case;
            }
        };
        let last = case.inputs.len() - 1;
        let wrong = if name.starts_with("int_d") || name.starts_with("int_r") { 0 } else { 99 };
        case.inputs[last].values = Values::Int { low: wrong, high: wrong + 1 };
        self.finish(case, Vec::new(), true);
    }

    /// An operation, with what it needs; returns how many were added.
    fn operation(&mut self) -> usize {
        let before = self.program.ops();
        for _ in 0..8 {
            let name = if self.rng.flag() { self.rng.pick(COMMON) } else { self.rng.pick(Op::NAMES) };
            if (self.profile.leaves_out)(name) {
                continue;
            }
            // Threads that run freely draw in no order.
            if name.ends_with("_random") && !self.program.lockstep && self.thread > 0 {
                continue;
            }
            let seed = self.seed();
            let mut case = arguments(name, seed).expect("an operation of the table");
            for input in &mut case.inputs {
                input.meta.dtype = (self.profile.dtype)(input.meta.dtype);
            }
            let fitted = if self.chance(8) { None } else { self.fitted(name, &case) };
            let (case, first) = match fitted {
                Some((case, var)) => (case, vec![var]),
                None => (case, Vec::new()),
            };
            if self.acceptable(name, &case) {
                self.finish(case, first, false);
                break;
            }
        }
        self.program.ops() - before
    }

    fn acceptable(&mut self, name: &str, case: &Case) -> bool {
        let small = |meta: &Meta| meta.shape.iter().product::<usize>() <= LARGEST && meta.shape.rank() <= 6;
        if !case.inputs.iter().all(|input| small(&input.meta)) {
            return false;
        }
        let Some(outs) = self.inferred(case) else { return false };
        let dtype = |meta: &Meta| (self.profile.dtype)(meta.dtype) == meta.dtype;
        if !outs.iter().all(|meta| small(meta) && dtype(meta)) {
            return false;
        }
        // burn-flex broadcasts a batch without matrices to matrices, and reads memory that is not there.
        let empty = case.has_zero_size() || outs.iter().any(|out| out.shape.contains(&0));
        let multiplies = name.ends_with("matmul") || name.starts_with("linear");
        !(empty && (multiplies || NEEDS_ELEMENTS.contains(&bare(name))))
    }

    /// Whether values in a range may be read as an operand.
    pub(crate) fn in_range(
        &mut self,
        name: &str,
        position: usize,
        wanted: &Input,
        have: Option<Range>,
    ) -> bool {
        let strict = match wanted.values {
            Values::Float { low, high } => {
                let usual = (low, high) == (-2.0, 2.0);
                let strict = (name == "float_grid_sample_2d" || name.starts_with("deform")) && position > 0;
                strict || name.starts_with("ctc") || (!usual && !self.chance(6))
            }
            Values::Int { low, high } => {
                !matches!((low, high), (-8 | 0, 8)) || !self.profile.fails && has_indices(name)
            }
            Values::Bool => false,
            Values::Quantized { low } => low > -127 && !self.chance(6),
        };
        !strict || have.is_some_and(|have| have.within(&Range::of(wanted.values)))
    }

    /// Adds a case whose first operands are given, and makes or finds the others.
    fn finish(&mut self, case: Case, given: Vec<Var>, fails: bool) {
        let Case { mut op, inputs, scalars } = case;
        let name = op.name();
        let mut runs = self.some_runs(20);
        let mut operands = Vec::new();
        for (position, input) in inputs.iter().enumerate() {
            let var = match given.get(position) {
                Some(var) => *var,
                None if fails => self.upload(input.clone(), runs),
                None => self.operand(name, position, input, runs),
            };
            runs &= self.vars[var as usize].runs;
            operands.push(var);
        }
        if runs == 0 {
            return;
        }
        let mut consumes: Vec<Var> = operands.iter().copied().filter(|_| self.chance(3)).collect();
        consumes.sort_unstable();
        consumes.dedup();
        self.emit(&mut op, &operands, scalars, consumes, runs);
    }

    fn emit(
        &mut self,
        op: &mut Op,
        operands: &[Var],
        scalars: Vec<Scalar>,
        consumes: Vec<Var>,
        runs: Mask,
    ) -> Vec<Var> {
        number(op, operands);
        let meta = |value: ValueId| &self.vars[value.0 as usize].meta;
        let outs = infer_with(op, &meta, &self.profile.defaults).expect("it was inferred before");
        let ranges: Vec<Option<Range>> = operands.iter().map(|var| self.vars[*var as usize].range).collect();
        let first = operands.first().map(|var| self.vars[*var as usize].meta.clone());
        consumes.iter().for_each(|var| self.vars[*var as usize].alive = false);
        let kinds = op.outputs();
        let mut to = Vec::new();
        for (position, (meta, kind)) in outs.into_iter().zip(kinds).enumerate() {
            let range = range(op, position, &ranges, first.as_ref(), &scalars, meta.dtype);
            to.push(self.new_var(meta, *kind, range, runs));
        }
        self.push(runs, Action::Op { op: op.clone(), scalars, consumes, to: to.clone() });
        to
    }

    /// A variable for an operand: one that fits, one made to fit, or an upload.
    fn operand(&mut self, name: &str, position: usize, input: &Input, runs: Mask) -> Var {
        let kind = kind_of(input.meta.dtype);
        if !self.chance(8) {
            let there = |known: &Known| known.kind == kind && known.runs & runs == runs;
            if let Some(var) = self.any_var(|known| there(known) && known.meta == input.meta)
                && self.in_range(name, position, input, self.vars[var as usize].range)
            {
                return var;
            }
            let other = kind != Kind::Quantized && self.rng.flag();
            if other
                && let Some(var) = self.any_var(|known| {
                    there(known) && known.meta.dtype == input.meta.dtype && !known.meta.shape.contains(&0)
                })
                && self.in_range(name, position, input, self.vars[var as usize].range)
            {
                return self.made_to_fit(var, kind, &input.meta.shape, runs);
            }
        }
        self.upload(input.clone(), runs)
    }

    /// Gives a tensor another shape: flat, repeated, cut, and folded again.
    fn made_to_fit(&mut self, var: Var, kind: Kind, shape: &Shape, runs: Mask) -> Var {
        let have = self.vars[var as usize].meta.shape.num_elements();
        let need = shape.num_elements();
        // Only what is made here is consumed here: the tensor itself may be another operand.
        let mine = self.vars.len() as Var;
        let mut var = self.view(var, mine, kind, runs, |tensor| View::Reshape(tensor, Shape::new([have])));
        if need > have {
            var = self.view(var, mine, kind, runs, |tensor| View::Repeat(tensor, need.div_ceil(have)));
        }
        if need != have {
            var = self.view(var, mine, kind, runs, |tensor| {
                View::Slice(tensor, Slice::new(0, Some(need as isize), 1))
            });
        }
        self.view(var, mine, kind, runs, |tensor| View::Reshape(tensor, shape.clone()))
    }

    fn view(&mut self, var: Var, mine: Var, kind: Kind, runs: Mask, view: impl Fn(ValueId) -> View) -> Var {
        let mut op = view(ValueId(0)).op(kind);
        let consumes = if var >= mine && self.chance(3) { vec![var] } else { vec![] };
        let runs = runs & self.vars[var as usize].runs;
        self.emit(&mut op, &[var], Vec::new(), consumes, runs)[0]
    }
}

enum View {
    Reshape(ValueId, Shape),
    Repeat(ValueId, usize),
    Slice(ValueId, Slice),
}

impl View {
    fn op(self, kind: Kind) -> Op {
        match (self, kind) {
            (View::Reshape(tensor, shape), Kind::Float) => Op::float_reshape { tensor, shape },
            (View::Reshape(tensor, shape), Kind::Int) => Op::int_reshape { tensor, shape },
            (View::Reshape(tensor, shape), _) => Op::bool_reshape { tensor, shape },
            (View::Repeat(tensor, times), Kind::Float) => Op::float_repeat_dim { tensor, dim: 0, times },
            (View::Repeat(tensor, times), Kind::Int) => Op::int_repeat_dim { tensor, dim: 0, times },
            (View::Repeat(tensor, times), _) => Op::bool_repeat_dim { tensor, dim: 0, times },
            (View::Slice(tensor, slice), Kind::Float) => Op::float_slice { tensor, slices: vec![slice] },
            (View::Slice(tensor, slice), Kind::Int) => Op::int_slice { tensor, slices: vec![slice] },
            (View::Slice(tensor, slice), _) => Op::bool_slice { tensor, slices: vec![slice] },
        }
    }
}

/// Whether an operand of the operation is indices.
fn has_indices(name: &str) -> bool {
    ["select", "gather", "scatter", "embedding"].iter().any(|part| name.contains(part))
}

pub(crate) fn kind_of(dtype: DType) -> Kind {
    match dtype {
        DType::QFloat(_) => Kind::Quantized,
        DType::Bool(_) => Kind::Bool,
        dtype if dtype.is_float() => Kind::Float,
        _ => Kind::Int,
    }
}
