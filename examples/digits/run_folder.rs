//! The folder of a run: `config.json`, burn-train's logs in `train/` and `valid/`, and its checkpoints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use burn::config::Config;

use super::train::RunConfig;

const CONFIG: &str = "config.json";
const CHECKPOINTS: &str = "checkpoint";
/// Everything else that burn-train writes.
const LOGS: [&str; 3] = ["train", "valid", "experiment.log"];

/// The path of a part (`model`, `optim` or `scheduler`) of a checkpoint, without its extension.
pub(crate) fn checkpoint_path(folder: &Path, part: &str, epoch: usize) -> PathBuf {
    folder.join(CHECKPOINTS).join(format!("{part}-{epoch}"))
}

/// Makes `folder` ready for a new run: creates it, or removes the earlier run that it holds.
///
/// # Errors
/// If the folder holds anything but a run, which is left alone, or cannot be written.
pub(crate) fn start(folder: &Path, config: &RunConfig) -> Result<(), String> {
    let failed = |e: io::Error| format!("{}: {e}", folder.display());
    if folder.exists() {
        if !folder.is_dir() {
            return Err(format!("{}: not a folder", folder.display()));
        }
        let empty = fs::read_dir(folder).map_err(failed)?.next().is_none();
        if !empty && load_config(folder).is_err() {
            return Err(format!(
                "{}: holds something else than a run of this program; name an empty or a new folder",
                folder.display()
            ));
        }
        for name in LOGS.into_iter().chain([CHECKPOINTS]) {
            remove(&folder.join(name)).map_err(failed)?;
        }
    }
    fs::create_dir_all(folder.join(CHECKPOINTS)).map_err(failed)?;
    config.save(folder.join(CONFIG)).map_err(failed)
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// What the run in `folder` was started with.
///
/// # Errors
/// If there is no run in `folder`.
pub(crate) fn load_config(folder: &Path) -> Result<RunConfig, String> {
    RunConfig::load(folder.join(CONFIG)).map_err(|_| format!("{}: no run to resume here", folder.display()))
}

/// Writes down the settings that a resumed run goes on with.
///
/// # Errors
/// If the folder cannot be written.
pub(crate) fn save_config(folder: &Path, config: &RunConfig) -> Result<(), String> {
    config.save(folder.join(CONFIG)).map_err(|e| format!("{}: {e}", folder.display()))
}

/// The epochs that have a checkpoint, the latest first.
pub(crate) fn checkpoints(folder: &Path) -> Vec<usize> {
    let Ok(entries) = fs::read_dir(folder.join(CHECKPOINTS)) else { return Vec::new() };
    let epoch = |entry: fs::DirEntry| {
        entry.file_name().to_str()?.strip_prefix("model-")?.strip_suffix(".mpk")?.parse().ok()
    };
    let mut epochs: Vec<usize> = entries.flatten().filter_map(epoch).collect();
    epochs.sort_unstable_by(|a, b| b.cmp(a));
    epochs
}
