//! The table of limits (`limits.txt`): its text, and what of a measurement breaks it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::nvcc::Usage;

const HEADER: &str = "\
# What each kernel may use, for each architecture that it is compiled for:
#     registers/shared/stack/spill | instance
# registers of a thread; bytes of static shared memory of a block; bytes of a thread's stack; bytes of its spill stores
# and loads. Written by
#     KILN_UPDATE_LIMITS=1 cargo test -p kiln-backend --lib kernels::gate
# which rounds registers up to a multiple of 8, in which the hardware hands them out, so occupancy stays the measured one.
# Spills are never written: a kernel that must spill gets its bytes by hand, and a reason, at the end of its line after
# \" ; \".
";

/// The limits of a kernel on one architecture.
type Limit = Usage;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Row {
    limits: BTreeMap<String, Limit>,
    /// Why it may spill.
    reason: Option<String>,
}

/// Limits by the name of the instance.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Table(BTreeMap<String, Row>);

/// The name of an instance, the architecture, and what it uses.
pub(super) type Measured<'a> = (&'a str, &'static str, Usage);

impl Table {
    pub(super) fn parse(text: &str) -> Result<Table, String> {
        let mut table = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: &str| format!("limits.txt:{}: {what}: {line}", number + 1);
            let (limits, name) = line.split_once(" | ").ok_or_else(|| wrong("no instance"))?;
            let (name, reason) = match name.rsplit_once(" ; ") {
                Some((name, reason)) => (name, Some(reason.to_owned())),
                None => (name, None),
            };
            let mut row = Row { limits: BTreeMap::new(), reason };
            for limit in limits.split(", ") {
                let (arch, numbers) = limit.trim().split_once(' ').ok_or_else(|| wrong("no architecture"))?;
                let numbers: Result<Vec<u32>, _> = numbers.trim().split('/').map(str::parse).collect();
                let Ok([registers, shared, stack, spill]) = numbers.as_deref() else {
                    return Err(wrong("four numbers are needed"));
                };
                let limit = Limit { registers: *registers, shared: *shared, stack: *stack, spill: *spill };
                if limit.spill > 0 && row.reason.as_ref().is_none_or(|reason| reason.trim().is_empty()) {
                    return Err(wrong("spills without a reason"));
                }
                row.limits.insert(arch.to_owned(), limit);
            }
            if table.insert(name.to_owned(), row).is_some() {
                return Err(wrong("twice in the table"));
            }
        }
        Ok(Table(table))
    }

    /// What breaks a limit or has none.
    pub(super) fn check(&self, measured: &[Measured]) -> Vec<String> {
        let mut problems = Vec::new();
        for &(name, arch, used) in measured {
            let Some(limit) = self.0.get(name).and_then(|row| row.limits.get(arch)) else {
                problems.push(format!("{name} for {arch}: no limit; measured {used}"));
                continue;
            };
            for (what, used, limit) in [
                ("registers", used.registers, limit.registers),
                ("bytes of shared memory", used.shared, limit.shared),
                ("bytes of stack", used.stack, limit.stack),
                ("bytes spilled", used.spill, limit.spill),
            ] {
                if used > limit {
                    problems.push(format!("{name} for {arch}: {used} {what}, at most {limit} allowed"));
                }
            }
        }
        problems
    }

    /// Rows for what nobody compiles. `instances`: each name with an architecture it is compiled for.
    pub(super) fn stale(&self, instances: &BTreeSet<(&str, &str)>) -> Vec<String> {
        let limits = self.0.iter().flat_map(|(name, row)| row.limits.keys().map(move |arch| (name, arch)));
        limits
            .filter(|(name, arch)| !instances.contains(&(name.as_str(), arch.as_str())))
            .map(|(name, arch)| format!("{name} for {arch}: a limit, but no launcher lists the instance"))
            .collect()
    }

    /// The table of what was measured, with the spills and reasons of this one.
    pub(super) fn updated(&self, measured: &[Measured]) -> Table {
        let mut table: BTreeMap<String, Row> = BTreeMap::new();
        for &(name, arch, used) in measured {
            let old = self.0.get(name);
            let spill = old.and_then(|row| row.limits.get(arch)).map_or(0, |limit| limit.spill);
            let row = table.entry(name.to_owned()).or_default();
            row.reason = old.and_then(|row| row.reason.clone());
            // No kernel can have more than 255.
            let registers = used.registers.next_multiple_of(8).min(255);
            row.limits.insert(arch.to_owned(), Limit { registers, spill, ..used });
        }
        Table(table)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEADER)?;
        for (name, row) in &self.0 {
            let limits = row
                .limits
                .iter()
                .map(|(arch, l)| format!("{arch} {}/{}/{}/{}", l.registers, l.shared, l.stack, l.spill));
            write!(f, "{} | {name}", limits.collect::<Vec<_>>().join(", "))?;
            match &row.reason {
                Some(reason) => writeln!(f, " ; {reason}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(registers: u32, shared: u32, stack: u32, spill: u32) -> Usage {
        Usage { registers, shared, stack, spill }
    }

    const TEXT: &str = "# a comment\nsm_80 40/0/0/0, sm_90a 32/128/0/0 | a.cu:a EXPR=a | b\n\
                        sm_90a 168/0/16/8 | b.cu:b T=f32 ; for a reason\n";

    #[test]
    fn the_text_keeps_all_that_the_table_says() {
        let table = Table::parse(TEXT).unwrap();
        assert_eq!(table.0["a.cu:a EXPR=a | b"].limits["sm_90a"], usage(32, 128, 0, 0));
        assert_eq!(table.0["b.cu:b T=f32"].reason.as_deref(), Some("for a reason"));
        assert_eq!(Table::parse(&table.to_string()).unwrap(), table);
    }

    #[test]
    fn lines_that_say_nothing_are_errors() {
        for line in [
            "sm_80 40/0/0/0",
            "sm_80 40/0/0 | a",
            "40/0/0/0 | a",
            "sm_80 x/0/0/0 | a",
            "sm_80 40/0/0/8 | a",
            "sm_80 40/0/0/8 | a ; ",
            "sm_80 8/0/0/0 | a\nsm_80 8/0/0/0 | a",
        ] {
            assert!(Table::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn each_number_over_its_limit_is_named() {
        let table = Table::parse(TEXT).unwrap();
        let name = "a.cu:a EXPR=a | b";
        assert!(
            table
                .check(&[(name, "sm_80", usage(40, 0, 0, 0)), (name, "sm_90a", usage(1, 128, 0, 0))])
                .is_empty()
        );
        assert_eq!(
            table.check(&[(name, "sm_90a", usage(33, 129, 4, 8))]),
            [
                "a.cu:a EXPR=a | b for sm_90a: 33 registers, at most 32 allowed",
                "a.cu:a EXPR=a | b for sm_90a: 129 bytes of shared memory, at most 128 allowed",
                "a.cu:a EXPR=a | b for sm_90a: 4 bytes of stack, at most 0 allowed",
                "a.cu:a EXPR=a | b for sm_90a: 8 bytes spilled, at most 0 allowed",
            ]
        );
        assert!(table.check(&[("b.cu:b T=f32", "sm_90a", usage(168, 0, 16, 8))]).is_empty());
    }

    #[test]
    fn limits_and_instances_belong_together() {
        let table = Table::parse(TEXT).unwrap();
        // A kernel for Hopper alone has no limit for others.
        let problems = table.check(&[("b.cu:b T=f32", "sm_80", usage(8, 0, 0, 0))]);
        assert!(
            matches!(&problems[..], [p] if p.contains("b.cu:b T=f32 for sm_80: no limit")),
            "{problems:?}"
        );
        let (a, b) = ("a.cu:a EXPR=a | b", "b.cu:b T=f32");
        assert!(table.stale(&BTreeSet::from([(a, "sm_80"), (a, "sm_90a"), (b, "sm_90a")])).is_empty());
        let problems = table.stale(&BTreeSet::from([(a, "sm_80"), (b, "sm_90a")]));
        assert!(
            matches!(&problems[..], [p] if p.starts_with("a.cu:a EXPR=a | b for sm_90a: ")),
            "{problems:?}"
        );
    }

    #[test]
    fn an_update_rounds_registers_up_and_leaves_spills_alone() {
        let table = Table::parse(TEXT).unwrap();
        let b = "b.cu:b T=f32";
        let updated =
            table.updated(&[("new", "sm_80", usage(255, 4, 0, 4)), (b, "sm_90a", usage(65, 0, 0, 64))]);
        assert_eq!(updated.0["new"].limits["sm_80"], usage(255, 4, 0, 0));
        assert_eq!(updated.0[b].limits["sm_90a"], usage(72, 0, 0, 8));
        assert_eq!(updated.0[b].reason.as_deref(), Some("for a reason"));
        assert!(!updated.0.contains_key("a.cu:a EXPR=a | b"));
    }
}
