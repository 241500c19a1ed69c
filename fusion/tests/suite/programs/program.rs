//! [`Program`]: statements over numbered variables, pure data that can be printed and cut down.

use std::collections::HashSet;
use std::fmt;

use burn_backend::{IntDType, Scalar};
use kiln_surface::arguments::Input;
use kiln_surface::{Op, ScalarSlot, ValueId};

/// How often a program runs, each time with other data and other scalars.
pub(crate) const RUNS: u32 = 4;

/// The runs that a statement takes part in, a bit for each.
pub(crate) type Mask = u8;
pub(crate) const ALL: Mask = (1 << RUNS) - 1;

/// A variable holds a tensor from the statement that makes it to the one that consumes it, or to the end.
pub(crate) type Var = u32;

#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// What it was generated from.
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    /// Whether each statement waits for the one before it, and not only for those that its variables depend on.
    pub(crate) lockstep: bool,
    /// Whether each run has threads of its own.
    pub(crate) fresh_threads: bool,
    /// The budget of a trace in operations, if it is not the default.
    pub(crate) budget: Option<usize>,
    /// Whether the backend has executables.
    pub(crate) compiles: bool,
    pub(crate) statements: Vec<Statement>,
}

#[derive(Debug, Clone)]
pub(crate) struct Statement {
    pub(crate) thread: usize,
    pub(crate) runs: Mask,
    pub(crate) action: Action,
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Data from the host; each run has its own.
    Upload {
        to: Var,
        input: Input,
        seed: u64,
    },
    /// An operation whose values are variables and whose scalars are numbered from 0; runs vary them.
    Op {
        op: Op,
        scalars: Vec<Scalar>,
        consumes: Vec<Var>,
        to: Vec<Var>,
    },
    /// Another handle of a tensor.
    Clone {
        from: Var,
        to: Var,
    },
    Drop(Var),
    Read {
        var: Var,
        consume: bool,
    },
    /// All in one transaction.
    ReadAll(Vec<Var>),
    /// Reads which elements are true.
    Argwhere {
        var: Var,
        dtype: IntDType,
    },
    /// Marks the end of a step.
    Step,
    Sync,
    /// Lets other threads go ahead.
    Pause {
        micros: u64,
    },
}

impl Action {
    /// The variables that must be there.
    pub(crate) fn uses(&self) -> Vec<Var> {
        match self {
            Action::Op { op, .. } => {
                let mut vars = Vec::new();
                op.inputs(&mut |value| vars.push(value.0));
                vars
            }
            Action::Clone { from: var, .. }
            | Action::Drop(var)
            | Action::Read { var, .. }
            | Action::Argwhere { var, .. } => vec![*var],
            Action::ReadAll(vars) => vars.clone(),
            Action::Upload { .. } | Action::Step | Action::Sync | Action::Pause { .. } => Vec::new(),
        }
    }

    /// The variables that are there afterwards and were not before.
    pub(crate) fn makes(&self) -> &[Var] {
        match self {
            Action::Upload { to, .. } | Action::Clone { to, .. } => std::slice::from_ref(to),
            Action::Op { to, .. } => to,
            _ => &[],
        }
    }
}

/// The value of a scalar in a run.
pub(crate) fn vary(scalar: Scalar, run: u32) -> Scalar {
    match scalar {
        Scalar::Float(value) => Scalar::Float(value + 0.11 * f64::from(run)),
        Scalar::Int(value) => Scalar::Int(value + i64::from(run % 3)),
        Scalar::UInt(value) => Scalar::UInt(value + u64::from(run % 3)),
        Scalar::Bool(value) => Scalar::Bool(value ^ (run % 2 == 1)),
    }
}

impl Program {
    pub(crate) fn ops(&self) -> usize {
        self.statements.iter().filter(|statement| matches!(statement.action, Action::Op { .. })).count()
    }

    /// The program without some statements, and without those that need what they make.
    pub(crate) fn without(&self, cut: std::ops::Range<usize>) -> Program {
        let mut gone: HashSet<Var> = HashSet::new();
        let mut statements = Vec::new();
        for (index, statement) in self.statements.iter().enumerate() {
            let mut statement = statement.clone();
            if let Action::ReadAll(vars) = &mut statement.action {
                vars.retain(|var| !gone.contains(var));
            }
            if cut.contains(&index) || statement.action.uses().iter().any(|var| gone.contains(var)) {
                gone.extend(statement.action.makes());
            } else {
                statements.push(statement);
            }
        }
        Program { statements, ..self.clone() }
    }

    /// A smaller program for which `fails` holds as well.
    pub(crate) fn reduced(&self, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
        let mut best = self.clone();
        let mut size = best.statements.len().div_ceil(2);
        while size > 0 {
            let mut end = best.statements.len();
            while end > 0 {
                let start = end.saturating_sub(size);
                let smaller = best.without(start..end);
                if fails(&smaller) {
                    best = smaller;
                }
                end = start.min(best.statements.len());
            }
            size /= 2;
        }
        best
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Program { seed, threads, lockstep, fresh_threads, budget, compiles, statements } = self;
        write!(f, "program {seed}: {threads} threads")?;
        write!(f, "{}", if *lockstep { ", in lockstep" } else { "" })?;
        write!(f, "{}", if *fresh_threads { ", new ones for each run" } else { "" })?;
        write!(f, "{}", if *compiles { ", compiled" } else { "" })?;
        writeln!(
            f,
            "{}",
            budget.map_or(String::new(), |nodes| format!(", at most {nodes} operations a trace"))
        )?;
        statements.iter().try_for_each(|statement| writeln!(f, "{statement}"))
    }
}

fn list(vars: &[Var]) -> String {
    vars.iter().map(|var| format!("%{var}")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  t{} ", self.thread)?;
        if self.runs != ALL {
            let runs: Vec<_> =
                (0..RUNS).filter(|run| self.runs >> run & 1 == 1).map(|r| r.to_string()).collect();
            write!(f, "[only runs {}] ", runs.join(" "))?;
        }
        match &self.action {
            Action::Upload { to, input, seed } => {
                let meta = &input.meta;
                write!(f, "%{to} = upload {:?} {:?} {:?} #{seed}", meta.dtype, &meta.shape[..], input.values)
            }
            Action::Op { op, scalars, consumes, to } => {
                // Operands as the debug text of an operation has them, but shorter.
                let text = format!("{op:?}").replace("ValueId(", "(%");
                write!(f, "{} = {text}", list(to))?;
                if !scalars.is_empty() {
                    write!(f, " scalars {scalars:?}")?;
                }
                if !consumes.is_empty() {
                    write!(f, " consumes {}", list(consumes))?;
                }
                Ok(())
            }
            Action::Clone { from, to } => write!(f, "%{to} = clone %{from}"),
            Action::Drop(var) => write!(f, "drop %{var}"),
            Action::Read { var, consume } => {
                write!(f, "read %{var}{}", if *consume { ", the last" } else { "" })
            }
            Action::ReadAll(vars) => write!(f, "read together {}", list(vars)),
            Action::Argwhere { var, dtype } => write!(f, "argwhere %{var} {dtype:?}"),
            Action::Step => write!(f, "step"),
            Action::Sync => write!(f, "sync"),
            Action::Pause { micros } => write!(f, "pause {micros} us"),
        }
    }
}

/// Numbers an operation's tensors as variables, and its scalars from 0.
pub(crate) fn number(op: &mut Op, operands: &[Var]) {
    let mut operand = operands.iter();
    op.map_inputs(&mut |_| ValueId(*operand.next().expect("a variable for each operand")));
    let mut index = 0..;
    op.map_scalars(&mut |slot| ScalarSlot { index: index.next().unwrap_or(0), ..slot });
}
