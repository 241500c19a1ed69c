//! A failed comparison, in words.

use std::path::Path;

use super::{Arg, Values};

/// What went wrong: a simpler case must fail in the same way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wrong {
    /// The outputs, or the gradients.
    Values,
    /// The op, with an error.
    Error,
    /// The reference: the case is at fault.
    Reference,
    /// The test's own code.
    Test,
}

/// A failed comparison.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) wrong: Wrong,
    pub(crate) what: String,
    pub(crate) args: Vec<Arg>,
    /// The body with its parameters.
    pub(crate) body: String,
}

/// Values of an arg are shown if they are no more than this.
const SHOWN_VALUES: usize = 24;

impl Failure {
    /// What failed and with what: the lines about the body and each arg.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n", self.what);
        if !self.body.is_empty() {
            text += &format!("    body: {}\n", self.body);
        }
        for (k, arg) in self.args.iter().enumerate() {
            text += &format!("    arg {k}: {}", shape(arg));
            if !arg.views.is_empty() {
                text += &format!(" from {:?}", arg.base.shape);
                arg.views.iter().for_each(|step| text += &format!(" {step}"));
            }
            if arg.base.len() <= SHOWN_VALUES {
                match &arg.base.values {
                    Values::Float(v) => text += &format!(", values {v:?}"),
                    Values::Int(v) => text += &format!(", values {v:?}"),
                }
            }
            text.push('\n');
        }
        text
    }

    /// The shapes of the args.
    pub(crate) fn size(&self) -> String {
        self.args.iter().map(shape).collect::<Vec<_>>().join(", ")
    }
}

fn shape(arg: &Arg) -> String {
    let views = match arg.views.len() {
        0 => String::new(),
        1 => " through 1 view".into(),
        n => format!(" through {n} views"),
    };
    format!("{} {:?}{views}", arg.dtype.name(), arg.shape)
}

/// The command that runs a test of this binary. `module` stands for the test's name where the thread has another.
pub(crate) fn command(module: &str) -> String {
    let exe = std::env::current_exe().ok();
    let stem = exe.as_deref().and_then(Path::file_stem).map(|s| s.to_string_lossy().into_owned());
    let stem = stem.unwrap_or_default();
    // Cargo adds a hash of 16 digits.
    let binary = match stem.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => name,
        _ => &stem,
    };
    let release = if cfg!(debug_assertions) { "" } else { " --release" };
    let feature = if cfg!(feature = "gpu") { " --features gpu" } else { "" };
    // With one test thread, libtest runs tests on the main thread.
    let thread = std::thread::current();
    let filter = match thread.name() {
        Some(name) if name != "main" => format!("--exact {name}"),
        _ => format!("{module}::"),
    };
    format!("cargo test{release}{feature} --test {binary} -- {filter}")
}
