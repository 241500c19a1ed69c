//! Mismatches are found and reduced: programs run on a backend with a wrong operation.

use kiln_surface::Op;

use super::compare::Tally;
use super::generate::{Profile, generate};
use super::program::{Action, Program};
use super::{against_eager, against_flex, as_it_is, profile, report};

fn negates(op: &Op) -> bool {
    matches!(op, Op::float_neg { .. })
}

fn without_sign(op: &Op) -> Op {
    match op {
        Op::float_neg { tensor } => Op::float_abs { tensor: *tensor },
        op => op.clone(),
    }
}

/// Checks programs that negate until one mismatches, and reduces it.
fn found(profile: &Profile, check: &mut dyn FnMut(&Program) -> Option<String>) -> (Program, String) {
    let negating = (0..).map(|seed| generate(seed, profile)).filter(|program| {
        let ops = program.statements.iter().filter_map(|statement| match &statement.action {
            Action::Op { op, .. } => Some(op),
            _ => None,
        });
        program.threads == 1 && program.ops() < 20 && ops.clone().any(negates)
    });
    for program in negating.take(8) {
        if let Some(wrong) = check(&program) {
            let text = report(&program, &wrong, check);
            return (program, text);
        }
    }
    panic!("eight programs with a wrong operation were not found wrong");
}

/// The statements of the reduced program: what the report has between its two parts.
fn reduced(text: &str) -> Vec<&str> {
    let (_, text) = text.split_once("reduced:\n").expect("a report has a reduced program");
    text.lines().skip(1).take_while(|line| line.starts_with("  t0")).collect()
}

fn check(program: &Program, text: &str) {
    assert!(text.contains(&format!("KILN_PROGRAM={} cargo test", program.seed)), "{text}");
    let reduced = reduced(text);
    assert!(reduced.iter().any(|line| line.contains("float_neg")), "{text}");
    // What it needs, and a read.
    assert!(reduced.len() <= 8 && reduced.len() < program.statements.len(), "{text}");
}

#[test]
fn a_wrong_operation_is_found_and_the_program_reduced() {
    let mut wrong = |program: &Program| against_flex(program, &mut Tally::default(), without_sign);
    let (program, text) = found(&profile::eager(), &mut wrong);
    check(&program, &text);
    assert!(against_flex(&program, &mut Tally::default(), as_it_is).is_none());
}

#[test]
fn a_wrong_captured_operation_is_found_and_the_program_reduced() {
    let mut wrong = |program: &Program| against_eager(program, without_sign).0;
    let (program, text) = found(&profile::replayed(), &mut wrong);
    check(&program, &text);
    assert!(against_eager(&program, as_it_is).0.is_none());
}
