//! Which device to train on, and why.

use std::str::FromStr;

/// What `--device` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    #[default]
    Auto,
    Cpu,
    Cuda(usize),
}

impl FromStr for Choice {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(|index| index.parse().ok()).map(Self::Cuda).ok_or(()),
        }
    }
}

/// The device that a run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Cpu,
    Cuda(usize),
}

/// Settles `choice`, given the number of CUDA devices or why there is none. The text says what was chosen and why.
///
/// # Errors
/// If the device that was asked for is not there.
pub(crate) fn select(choice: Choice, available: Result<usize, String>) -> Result<(Device, String), String> {
    let available = available.map_err(|reason| one_line(&reason)).and_then(|count| match count {
        0 => Err("no CUDA device found".to_string()),
        count => Ok(count),
    });
    match (choice, available) {
        (Choice::Cpu, _) => Ok((Device::Cpu, "cpu (burn-flex), as asked".to_string())),
        (Choice::Auto, Ok(1)) => Ok((Device::Cuda(0), "cuda:0 (kiln), the only CUDA device".to_string())),
        (Choice::Auto, Ok(count)) => {
            Ok((Device::Cuda(0), format!("cuda:0 (kiln), the first of {count} CUDA devices")))
        }
        (Choice::Auto, Err(reason)) => {
            Ok((Device::Cpu, format!("cpu (burn-flex), since CUDA is not usable: {reason}")))
        }
        (Choice::Cuda(index), Ok(count)) if index < count => {
            Ok((Device::Cuda(index), format!("cuda:{index} (kiln), as asked")))
        }
        (Choice::Cuda(index), Ok(1)) => {
            Err(format!("no device cuda:{index}; the only CUDA device is cuda:0"))
        }
        (Choice::Cuda(index), Ok(count)) => Err(format!(
            "no device cuda:{index}; there are {count} CUDA devices, cuda:0 to cuda:{}",
            count - 1
        )),
        (Choice::Cuda(index), Err(reason)) => Err(format!("cuda:{index} is not usable: {reason}")),
    }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
