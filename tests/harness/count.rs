//! How many comparisons ran, and what they covered.

use std::fs::OpenOptions;
use std::io::Write;

use burn_backend::DType;

use super::values::{Values, int_limits};
use super::{Arg, Dense};

/// What one comparison covered.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Covered {
    /// An arg is a view.
    pub(crate) views: bool,
    /// Gradients were compared.
    pub(crate) gradient: bool,
    /// A size is 0, or odd and above 1.
    pub(crate) edge: bool,
    /// NaN, an infinity, -0, a subnormal number or a limit of the dtype is among the inputs.
    pub(crate) special: bool,
}

impl Covered {
    pub(crate) fn of(args: &[Arg], outputs: &[Dense], gradient: bool) -> Self {
        let mut sizes = args.iter().map(|a| &a.shape).chain(outputs.iter().map(|o| &o.shape)).flatten();
        Covered {
            views: args.iter().any(|a| !a.views.is_empty()),
            gradient,
            edge: sizes.any(|&n| n == 0 || n % 2 == 1 && n > 1),
            special: args.iter().any(is_special),
        }
    }
}

fn is_special(arg: &Arg) -> bool {
    match &arg.base.values {
        Values::Float(v) => {
            let info = arg.dtype.finfo().expect("a float dtype");
            v.iter().any(|&x| {
                !x.is_finite()
                    || x.abs() >= info.max
                    || x == 0.0 && x.is_sign_negative()
                    || x != 0.0 && x.abs() < info.min_positive
            })
        }
        Values::Int(_) if arg.dtype.is_bool() => false,
        Values::Int(v) => {
            let (low, high) = int_limits(arg.dtype);
            v.iter().any(|&x| x == high || x == low && low < 0)
        }
    }
}

/// The class that a dtype is counted under.
pub(crate) fn class(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 => dtype.name(),
        _ if dtype.is_bool() => "bool",
        _ if int_limits(dtype).0 < 0 => "int",
        _ => "uint",
    }
}

/// The comparisons of a family.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) cases: usize,
    pub(crate) views: usize,
    pub(crate) gradients: usize,
    pub(crate) edge: usize,
    pub(crate) special: usize,
}

impl Counts {
    pub(crate) fn add(&mut self, covered: Covered) {
        self.cases += 1;
        self.views += covered.views as usize;
        self.gradients += covered.gradient as usize;
        self.edge += covered.edge as usize;
        self.special += covered.special as usize;
    }

    /// In words, with shares.
    pub(crate) fn line(&self) -> String {
        let share = |n: usize| format!("{n} ({}%)", 100 * n / self.cases.max(1));
        format!(
            "{} cases, {} with views, {} with gradients, {} with empty or odd sizes, {} with special values",
            self.cases,
            share(self.views),
            share(self.gradients),
            share(self.edge),
            share(self.special)
        )
    }

    /// `family class cases views gradients edge special seed`, separated by tabs.
    pub(crate) fn row(&self, family: &str, dtype: DType, seed: u64) -> String {
        let Counts { cases, views, gradients, edge, special } = self;
        let class = class(dtype);
        format!("{family}\t{class}\t{cases}\t{views}\t{gradients}\t{edge}\t{special}\t{seed}\n")
    }

    /// Appends the row to the file that `KILN_TEST_REPORT` names: one write, so that tests and binaries can share it.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub(crate) fn report(&self, family: &str, dtype: DType, seed: u64) {
        let Some(path) = std::env::var_os("KILN_TEST_REPORT").filter(|path| !path.is_empty()) else { return };
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(self.row(family, dtype, seed).as_bytes()))
            .unwrap_or_else(|error| panic!("KILN_TEST_REPORT={}: {error}", path.display()));
    }
}
