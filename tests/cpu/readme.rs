//! What the README says about the code is what the code does.

use std::collections::BTreeSet;

const README: &str = include_str!("../../README.md");
/// Where methods are marked as unsupported.
const SOURCES: [&str; 8] = [
    include_str!("../../backend/src/burn/activation.rs"),
    include_str!("../../backend/src/burn/bool.rs"),
    include_str!("../../backend/src/burn/float.rs"),
    include_str!("../../backend/src/burn/int.rs"),
    include_str!("../../backend/src/burn/mod.rs"),
    include_str!("../../backend/src/burn/module.rs"),
    include_str!("../../backend/src/burn/quantized.rs"),
    include_str!("../../backend/src/burn/transaction.rs"),
];

#[test]
fn the_readme_lists_every_unsupported_method_and_no_other() {
    let calls = SOURCES.iter().flat_map(|source| source.split("unsupported!(").skip(1));
    let code: BTreeSet<&str> = calls.filter_map(|call| call.split(')').next()).collect();

    // The rows of the table in that section: | `Trait` | `method`, `method` |
    let section = README.split("### Not supported yet").nth(1).expect("the section is there");
    let section = section.split("\n#").next().unwrap_or(section);
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let methods = rows.filter_map(|row| row.split('|').nth(2));
    let readme: BTreeSet<&str> = methods.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();

    assert!(
        code.len() > 1 || readme.is_empty(),
        "no method was found in the code: has the macro been renamed?"
    );
    assert_eq!(readme, code);
}
