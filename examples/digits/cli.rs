//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use super::device::Choice;

pub(crate) const HELP: &str = "\
Trains a small convolutional network to read handwritten digits.

Usage: digits [OPTIONS]

  --device DEVICE    auto, cpu, cuda or cuda:N; auto takes CUDA when it is usable [auto]
  --fusion           record whole steps and run them as graphs, instead of one operation after the other
  --epochs N         train up to epoch N, counted from the start of the run [20; 5 with --mnist]
  --batch-size N     images per step [64]
  --lr X             learning rate [0.004]
  --seed N           decides split, initial weights and order of the images [1]
  --artifacts DIR    where logs and checkpoints go [target/digits-run]
  --resume           continue the run in the artifacts folder from its latest checkpoint
  --mnist DIR        read the four MNIST files in DIR, plain or .gz, instead of the 8x8 digits
  --plain            one line per epoch, even in a terminal
  --help             this text
";

/// The options as given; what was not given is `None`, so that a resumed run can keep its own.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub(crate) device: Choice,
    pub(crate) fusion: bool,
    pub(crate) epochs: Option<usize>,
    pub(crate) batch_size: Option<usize>,
    pub(crate) learning_rate: Option<f64>,
    pub(crate) seed: Option<u64>,
    pub(crate) artifacts: Option<PathBuf>,
    pub(crate) resume: bool,
    pub(crate) mnist: Option<PathBuf>,
    pub(crate) plain: bool,
    pub(crate) help: bool,
}

/// Reads `--name value` and `--name=value`; of an option given twice the last counts.
///
/// # Errors
/// One line that says which argument is wrong.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Options, String> {
    let mut options = Options::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let (name, mut attached) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(OsString::from(value))),
            _ => (text.as_ref(), None),
        };
        let mut value =
            || attached.take().or_else(|| arguments.next()).ok_or_else(|| format!("{name} needs a value"));
        match name {
            "--device" => options.device = parsed(name, value()?, "one of auto, cpu, cuda and cuda:N")?,
            "--epochs" => options.epochs = Some(at_least_one(name, value()?)?),
            "--batch-size" => options.batch_size = Some(at_least_one(name, value()?)?),
            "--lr" => {
                let rate: f64 = parsed(name, value()?, "a number")?;
                if !(rate > 0.0 && rate.is_finite()) {
                    return Err(format!("{name}: {rate} is not above 0"));
                }
                options.learning_rate = Some(rate);
            }
            "--seed" => options.seed = Some(parsed(name, value()?, "a number from 0 to 2^64-1")?),
            "--artifacts" => options.artifacts = Some(value()?.into()),
            "--mnist" => options.mnist = Some(value()?.into()),
            "--fusion" => options.fusion = true,
            "--resume" => options.resume = true,
            "--plain" => options.plain = true,
            "--help" | "-h" => options.help = true,
            _ => return Err(format!("unknown argument '{name}'")),
        }
        if let Some(value) = attached {
            return Err(format!("{name} takes no value, but was given '{}'", value.to_string_lossy()));
        }
    }
    Ok(options)
}

fn at_least_one(name: &str, value: OsString) -> Result<usize, String> {
    match parsed(name, value, "a whole number")? {
        0 => Err(format!("{name}: must be 1 or more")),
        number => Ok(number),
    }
}

fn parsed<T: FromStr>(name: &str, value: OsString, kind: &str) -> Result<T, String> {
    let text = value.to_string_lossy();
    text.parse().map_err(|_| format!("{name}: '{text}' is not {kind}"))
}
