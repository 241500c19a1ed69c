//! Measures Kiln's operations by name: device time, rate, and the share of a measured ceiling.
//!
//! ```text
//! kiln-bench [NAME...]   a table; a NAME is a prefix, none means all
//! kiln-bench --list      the names
//! kiln-bench --device    what the device is; fails if none can be used
//! kiln-bench --serve     for each line NAME on stdin, one line `NAME us=...` of one round on stdout (compare.py)
//! ```
//!
//! `KILN_BENCH_CONV=cudnn` or `columns` has all convolutions computed in that way; `fastest` is the default.
//! `KILN_BENCH_LOG` set to anything has what the backend logs written to stderr: how convolutions were chosen, for one.
//!
//! - `cases`: the operations, their inputs and what they are bound by
//! - `timing`: rounds of queued launches between two events
//! - `host`: what one operation costs the host

mod cases;
mod host;
mod timing;

use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use cases::{Bound, Case, Run, cases};
use kiln::{ConvAlgorithm, CudaDevice};
use timing::Timer;

/// Rounds in the table; the median counts.
const ROUNDS: usize = 5;
/// The case that stands for the device's copy bandwidth.
const COPY: &str = "copy";
/// The case that stands for the device's 16-bit matrix rate.
const MATMUL: &str = "matmul_bf16_8192";
const HOST_COST: &str = "host_cost";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    // cargo bench passes --bench.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes every record to stderr.
struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        eprintln!("{} {}: {}", record.level(), record.target(), record.args());
    }

    fn flush(&self) {}
}

/// Whether everything that was asked for could be measured.
fn run(args: &[String]) -> Result<bool, Failure> {
    if std::env::var_os("KILN_BENCH_LOG").is_some() {
        log::set_logger(&Log)?;
        log::set_max_level(log::LevelFilter::Debug);
    }
    let device = CudaDevice::new(0);
    CudaDevice::set_conv_algorithm(match std::env::var("KILN_BENCH_CONV").as_deref() {
        Ok("cudnn") => ConvAlgorithm::Cudnn,
        Ok("columns") => ConvAlgorithm::Columns,
        Ok("fastest") | Err(_) => ConvAlgorithm::Fastest,
        Ok(other) => return Err(format!("KILN_BENCH_CONV={other} is none of cudnn, columns, fastest").into()),
    });
    match args {
        [flag] if flag == "--list" => {
            names().for_each(|name| println!("{name}"));
            Ok(true)
        }
        [flag] if flag == "--device" => {
            println!("{}", describe(&device)?);
            Ok(true)
        }
        [flag] if flag == "--serve" => serve(&device).map(|()| true),
        names if names.iter().any(|name| name.starts_with('-')) => {
            Err("usage: kiln-bench [NAME...] | --list | --device | --serve".into())
        }
        names => table(&device, names),
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    cases().map(|case| case.name).chain([HOST_COST])
}

fn describe(device: &CudaDevice) -> Result<String, Failure> {
    CudaDevice::availability()?;
    let props = device.props()?;
    let (major, minor) = props.compute_capability;
    let cudnn = CudaDevice::cudnn_version().map_or("no cuDNN".into(), |version| format!("cuDNN {version}"));
    Ok(format!(
        "{device}: {}, compute capability {major}.{minor}, {} multiprocessors, {cudnn}",
        props.name, props.sm_count
    ))
}

/// A case with its inputs on the device.
fn prepare(case: &Case, device: &CudaDevice) -> Result<Run, String> {
    guarded(|| (case.setup)(device))
}

/// An operation that fails panics: that ends the case, not the program. The panic's text goes to stderr as well.
fn guarded<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("panicked");
        text.replace('\n', " ")
    })
}

fn measure(case: &Case, device: &CudaDevice, timer: &Timer) -> Result<f64, String> {
    let run = prepare(case, device)?;
    let launches = guarded(|| timer.launches(&run))??;
    let rounds: Result<Vec<f64>, String> =
        (0..ROUNDS).map(|_| guarded(|| timer.round(&run, launches))?).collect();
    Ok(timing::median(rounds?))
}

fn table(device: &CudaDevice, prefixes: &[String]) -> Result<bool, Failure> {
    let wanted = |name: &str| prefixes.is_empty() || prefixes.iter().any(|prefix| name.starts_with(prefix));
    if let Some(unknown) =
        prefixes.iter().find(|prefix| !names().any(|name| name.starts_with(prefix.as_str())))
    {
        return Err(format!("no operation begins with {unknown} (--list names them)").into());
    }
    println!("{}", describe(device)?);
    let timer = Timer::new(device)?;
    let (mut copy, mut matmul) = (None, None);
    let mut complete = true;
    println!("{:<24} {:>11} {:>15}  share of bound", "operation", "us", "rate");
    // The ceilings come first in the list, so that every later line can be divided by them.
    for case in cases() {
        let chosen = wanted(case.name);
        let ceiling = match case.bound {
            Bound::Bytes(_) => COPY,
            Bound::Flops(_) => MATMUL,
            Bound::FlopsF32(_) => "",
        };
        let needed =
            case.name == ceiling && cases().any(|c| wanted(c.name) && same_kind(c.bound, case.bound));
        if !chosen && !needed {
            continue;
        }
        let us = match measure(case, device, &timer) {
            Ok(us) => us,
            Err(why) => {
                println!("{:<24} {why}", case.name);
                complete = false;
                continue;
            }
        };
        let rate = case.bound.rate(us);
        match case.name {
            COPY => copy = Some(rate),
            MATMUL => matmul = Some(rate),
            _ => {}
        }
        let share = match (case.bound, copy, matmul) {
            (Bound::Bytes(_), Some(top), _) => format!("{:.2} of {COPY}", rate / top),
            (Bound::Flops(_), _, Some(top)) => format!("{:.2} of {MATMUL}", rate / top),
            _ => "-".into(),
        };
        println!("{:<24} {us:>11.2} {:>15}  {share}", case.name, case.bound.show(rate));
    }
    if wanted(HOST_COST) {
        println!("{}", host::measure(device)?);
    }
    Ok(complete)
}

fn same_kind(a: Bound, b: Bound) -> bool {
    std::mem::discriminant(&a) == std::mem::discriminant(&b)
}

/// Answers requests until stdin ends. The inputs of the last case stay on the device until another is asked for.
fn serve(device: &CudaDevice) -> Result<(), Failure> {
    println!("ready {}", describe(device)?);
    let timer = Timer::new(device)?;
    let mut current: Option<(&'static str, Run, u32)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let name = line.trim();
        let answer = match name {
            "" => continue,
            HOST_COST => {
                current = None;
                guarded(|| host::measure(device)).and_then(|cost| cost.map_err(|e| e.to_string()))
            }
            // Frees the inputs and gives the memory back, for the other process on the device.
            "drop" => {
                current = None;
                device.empty_cache().map(|bytes| format!("drop bytes={bytes}")).map_err(|e| e.to_string())
            }
            _ => answer(name, device, &timer, &mut current),
        };
        println!("{}", answer.unwrap_or_else(|why| format!("{name} error={why}")));
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn answer(
    name: &str,
    device: &CudaDevice,
    timer: &Timer,
    current: &mut Option<(&'static str, Run, u32)>,
) -> Result<String, String> {
    let case = cases().find(|case| case.name == name).ok_or("there is no such case")?;
    if current.as_ref().is_none_or(|(held, ..)| *held != case.name) {
        *current = None;
        let run = prepare(case, device)?;
        let launches = guarded(|| timer.launches(&run))??;
        *current = Some((case.name, run, launches));
    }
    let Some((_, run, launches)) = current.as_ref() else { return Err("not prepared".into()) };
    let us = guarded(|| timer.round(run, *launches))??;
    Ok(format!("{name} us={us:.3} launches={launches} {}", case.bound.describe()))
}
