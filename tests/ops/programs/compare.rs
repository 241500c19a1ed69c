//! [`verify`]: each operation of a run against burn-flex, from the operands that it had.

use std::collections::{BTreeMap, HashMap};

use burn_backend::{DType, Scalar, Shape, TensorData};
use burn_flex::{Flex, FlexDevice};
use kiln::CudaDevice;
use kiln::fusion::GraphCompiler;
use kiln_surface::{Meta, Op, ValueId, infer_with};

use super::difference::{same as same_bits, show};
use super::execute::{Seen, call, read};
use super::fit::bare;
use super::observe::{Call, value};
use super::program::{Action, Program, Var};
use super::rule::Rule;
use crate::harness::count::{Counts, class};
use crate::harness::family::caught;
use crate::harness::{Covered, Dense, plain, same, shape};

/// What was compared.
#[derive(Default)]
pub(crate) struct Tally {
    compared: u64,
    /// Operands for which nothing is defined.
    undefined: u64,
    /// burn-flex panics.
    without_reference: BTreeMap<&'static str, (u64, String)>,
    names: BTreeMap<&'static str, u64>,
    counts: BTreeMap<&'static str, (Option<DType>, Counts)>,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { compared, undefined, without_reference, names, .. } = self;
        write!(f, "{compared} calls of {} operations compared, ", names.len())?;
        write!(f, "{undefined} with operands that define no result")?;
        without_reference
            .iter()
            .try_for_each(|(name, (count, why))| write!(f, "\n  {count} of {name} without reference: {why}"))
    }
}

impl Tally {
    fn count(&mut self, op: &Op, call: &Call) {
        self.compared += 1;
        *self.names.entry(op.name()).or_default() += 1;
        let all = call.operands.iter().chain(&call.results);
        let Some(dtype) = all.clone().map(|data| data.dtype).next() else { return };
        let edge = all.flat_map(|data| data.shape.to_vec()).any(|n| n == 0 || n % 2 == 1 && n > 1);
        let (at, counts) = self.counts.entry(class(dtype)).or_default();
        *at = Some(dtype);
        counts.add(Covered { edge, ..Covered::default() });
    }

    /// Adds the comparisons to the report of the op tests.
    pub(crate) fn report(&self) {
        for (dtype, counts) in self.counts.values() {
            counts.report("programs", dtype.expect("it was counted with one"), 0);
        }
    }

    /// Most calls could be compared.
    pub(crate) fn compared_most(&self) {
        let others = self.undefined + self.without_reference.values().map(|(count, _)| count).sum::<u64>();
        assert!(self.compared > 4 * others, "{self}");
    }
}

/// What is wrong with a run, if anything is: with an upload, a copy, an operation, a read, or with a variable that has
/// changed since it was made.
pub(crate) fn verify(program: &Program, calls: &[Call], seen: &[Seen], tally: &mut Tally) -> Option<String> {
    let calls: HashMap<usize, &Call> = calls.iter().map(|call| (call.statement, call)).collect();
    let mut known: HashMap<Var, TensorData> = HashMap::new();
    for (index, statement) in program.statements.iter().enumerate() {
        if statement.runs & 1 == 0 {
            continue;
        }
        let checked = match &statement.action {
            Action::Upload { to, input, seed } => {
                known.insert(*to, input.data(*seed));
                Ok(())
            }
            Action::Clone { from, to } => {
                known.insert(*to, known[from].clone());
                Ok(())
            }
            Action::Read { var, .. } => was_read(&seen[index], vec![&known[var]]),
            Action::ReadAll(vars) => {
                let mut all: Vec<_> = vars.iter().map(|var| &known[var]).collect();
                all.sort_by_key(|data| match data.dtype {
                    dtype if dtype.is_float() => 0,
                    DType::Bool(_) => 2,
                    _ => 1,
                });
                was_read(&seen[index], all)
            }
            Action::Argwhere { var, dtype } => {
                was_read(&seen[index], vec![&argwhere(&known[var], (*dtype).into())])
            }
            Action::Op { op, to, .. } => match calls.get(&index) {
                Some(call) => {
                    let checked = unchanged(op, call, &known).and_then(|()| operation(op, call, tally));
                    known.extend(to.iter().copied().zip(call.results.iter().cloned()));
                    checked
                }
                None => Err(format!("{:?}", seen[index])),
            },
            Action::Sync if !matches!(seen[index], Seen::Nothing) => Err(format!("{:?}", seen[index])),
            Action::Drop(_) | Action::Step | Action::Sync | Action::Pause { .. } => Ok(()),
        };
        if let Err(wrong) = checked {
            let operands = calls.get(&index).map_or(String::new(), |call| {
                let lines =
                    call.operands.iter().map(|data| format!("\n    of {}", show(std::slice::from_ref(data))));
                lines.collect()
            });
            return Some(format!("{statement}\n    {wrong}{operands}"));
        }
    }
    None
}

fn was_read(seen: &Seen, want: Vec<&TensorData>) -> Result<(), String> {
    let Seen::Data(got) = seen else { return Err(format!("{seen:?}")) };
    let equal = got.len() == want.len() && got.iter().zip(&want).all(|(got, want)| same_bits(want, got));
    let want: Vec<TensorData> = want.into_iter().cloned().collect();
    if equal { Ok(()) } else { Err(format!("read {}\n    instead of {}", show(got), show(&want))) }
}

/// Operands are what they were when they were made.
fn unchanged(op: &Op, call: &Call, known: &HashMap<Var, TensorData>) -> Result<(), String> {
    let mut vars = Vec::new();
    op.inputs(&mut |value| vars.push(value.0));
    let mut operands = vars.into_iter().zip(&call.operands);
    match operands.find(|(var, data)| !same_bits(&known[var], data)) {
        None => Ok(()),
        Some((var, data)) => {
            let (now, was) = (show(std::slice::from_ref(data)), show(std::slice::from_ref(&known[&var])));
            Err(format!("%{var} is {now}\n    and was {was}"))
        }
    }
}

fn argwhere(data: &TensorData, dtype: DType) -> TensorData {
    let dims = data.shape.to_vec();
    let dense = Dense::of(data);
    let all = dense.as_ints().iter().enumerate().filter(|(_, x)| **x != 0);
    let found: Vec<i64> = all.flat_map(|(at, _)| shape::unravel(at, &dims)).map(|k| k as i64).collect();
    let count = found.len() / dims.len().max(1);
    TensorData::new(found, Shape::new([count, dims.len()])).convert_dtype(dtype)
}

/// One operation against burn-flex, or against plain loops where burn-flex has other rules.
fn operation(op: &Op, call: &Call, tally: &mut Tally) -> Result<(), String> {
    let mut metas = HashMap::new();
    let mut operands = call.operands.iter();
    op.inputs(&mut |value| {
        let data = operands.next().expect("data for each operand");
        metas.insert(value, Meta::new(data.shape.clone(), data.dtype));
    });
    let defaults = <kiln::Cuda as GraphCompiler>::defaults(&CudaDevice::new(0));
    let outs = infer_with(op, &|value: ValueId| &metas[&value], &defaults).map_err(|e| e.to_string())?;
    for (got, want) in call.results.iter().zip(&outs) {
        if got.shape != want.shape || got.dtype != want.dtype {
            return Err(format!("gave {:?} {:?} instead of {want:?}", got.dtype, got.shape));
        }
    }
    let rule = Rule::of(op);
    if !rule.defined(&call.operands) {
        tally.undefined += 1;
        return Ok(());
    }
    let want = match by_rule(op, call).map_or_else(|| by_flex(op, call, &rule), Ok) {
        Ok(want) if rule.comparable(&want) => want,
        Ok(_) => {
            tally.undefined += 1;
            return Ok(());
        }
        Err(why) => {
            tally.without_reference.entry(op.name()).or_insert((0, why)).0 += 1;
            return Ok(());
        }
    };
    tally.count(op, call);
    let ties = bare(op.name()).contains("sort") || bare(op.name()).contains("topk");
    for (k, (got, want)) in call.results.iter().zip(&want).enumerate() {
        // Of equals any may come first.
        if ties && !got.dtype.is_float() && (k == 1 || op.name().ends_with("argsort")) {
            continue;
        }
        let tolerance = rule.tolerance(got.dtype, &call.operands);
        let mut got = Dense::of(got);
        if bare(op.name()).starts_with("remainder") {
            turn_over(&mut got, want, call);
        }
        same(&got, want, call.results[k].dtype, tolerance).map_err(|wrong| format!("output {k}: {wrong}"))?;
    }
    Ok(())
}

/// A remainder of almost the divisor is one of almost nothing.
fn turn_over(got: &mut Dense, want: &Dense, call: &Call) {
    let crate::harness::Values::Float(values) = &mut got.values else { return };
    let crate::harness::Values::Float(want) = &want.values else { return };
    let divisors = match call.scalars.first() {
        Some(scalar) => vec![number(*scalar)],
        None => Dense::of(&call.operands[1]).as_floats().to_vec(),
    };
    for (got, want) in values.iter_mut().zip(want) {
        let off = (*got - want).abs();
        if divisors.iter().any(|by| (off - by.abs()).abs() <= 0.02 * by.abs()) {
            *got = *want;
        }
    }
}

fn number(scalar: Scalar) -> f64 {
    match scalar {
        Scalar::Float(x) => x,
        Scalar::Int(x) => x as f64,
        Scalar::UInt(x) => x as f64,
        Scalar::Bool(x) => f64::from(u8::from(x)),
    }
}

fn by_flex(op: &Op, call: &Call, rule: &Rule) -> Result<Vec<Dense>, String> {
    let operands = call.operands.iter().map(|data| match data.dtype {
        dtype if dtype.is_float() && !rule.native() => data.clone().convert_dtype(DType::F64),
        _ => data.clone(),
    });
    let operands: Vec<TensorData> = operands.collect();
    caught(|| {
        let values = operands.into_iter().map(|data| value::<Flex>(data, &FlexDevice)).collect();
        let results = self::call::<Flex>(op, values, &call.scalars, &FlexDevice, &mut call.draws.clone());
        results.into_iter().map(|result| Dense::of(&read::<Flex>(result).expect("burn-flex reads"))).collect()
    })
}

/// Integer arithmetic by Kiln's rules.
fn by_rule(op: &Op, call: &Call) -> Option<Vec<Dense>> {
    let name = op.name();
    let name = name.strip_prefix("bitwise_").or(name.strip_prefix("int_"))?;
    let (name, scalar) = match name.strip_suffix("_scalar").or(name.strip_suffix("_elem")) {
        Some(name) => (name, true),
        None => (name, false),
    };
    let name = match name {
        "left_shift" => "shl",
        "right_shift" => "shr",
        "add" | "sub" | "mul" | "div" | "remainder" | "and" | "or" | "xor" | "equal" | "not_equal"
        | "greater" | "greater_equal" | "lower" | "lower_equal" => name,
        _ => return None,
    };
    let a = Dense::of(call.operands.first()?);
    let dtype = call.operands[0].dtype;
    let f = |a, b| plain::int_binary(name, dtype, a, b);
    Some(vec![if scalar {
        let by = match *call.scalars.first()? {
            Scalar::Int(x) => i128::from(x),
            Scalar::UInt(x) => i128::from(x),
            _ => return None,
        };
        plain::map(&a, |a| f(a, by))
    } else {
        plain::zip(&a, &Dense::of(call.operands.get(1)?), f)
    }])
}
