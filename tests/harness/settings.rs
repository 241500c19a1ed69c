//! What the environment says about a run.

/// The case that `KILN_TEST_ONLY` names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Only {
    /// Family, dtype and op, as [`key`] makes them.
    pub(crate) key: String,
    pub(crate) case: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    /// `KILN_TEST_SEED`: changes the inputs.
    pub(crate) seed: u64,
    /// `KILN_TEST_CASES`: the cases of an op and dtype whose share is 1.
    pub(crate) cases: usize,
    /// `KILN_TEST_ONLY`: nothing but this case runs.
    pub(crate) only: Option<Only>,
}

impl Settings {
    pub(crate) fn of_environment() -> Self {
        Settings::parse(|name| std::env::var(name).ok())
    }

    /// From the values of variables.
    ///
    /// # Panics
    /// If `KILN_TEST_ONLY` is no case: a run of other cases than those asked for would mislead.
    pub(crate) fn parse(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name| variable(name)?.parse().ok();
        let only = variable("KILN_TEST_ONLY").filter(|text| !text.is_empty()).map(|text| {
            let parts = text.rsplit_once(':').and_then(|(key, case)| Some((key, case.parse().ok()?)));
            let (key, case) =
                parts.unwrap_or_else(|| panic!("KILN_TEST_ONLY={text} is not FAMILY/DTYPE/OP:CASE"));
            Only { key: key.into(), case }
        });
        Settings {
            seed: number("KILN_TEST_SEED").unwrap_or(1),
            cases: number("KILN_TEST_CASES").map_or(20, |n| n as usize),
            only,
        }
    }

    /// The shell's words before a command that runs this case again.
    pub(crate) fn again(&self, key: &str, case: usize) -> String {
        format!("KILN_TEST_SEED={} KILN_TEST_CASES={} KILN_TEST_ONLY={key}:{case}", self.seed, self.cases)
    }
}

/// Family, dtype and op in letters that a shell leaves alone.
pub(crate) fn key(family: &str, dtype: &str, op: &str) -> String {
    let plain = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
    };
    [family, dtype, op].map(plain).join("/")
}
