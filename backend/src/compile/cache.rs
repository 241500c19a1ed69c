//! Compiled kernels on disk, shared by all of a user's processes.
//!
//! One file per kernel, named by the hash of everything that went into it ([`Key`]). An entry is written under a unique
//! temporary name and renamed, so readers see a whole one or none, and whoever renames last wins with equal content.
//! Every byte of an entry is covered by a check on reading: what a crash or a bad disk left is compiled again and
//! replaced. Nothing here can fail a program: a cache that cannot be used says so once in the log and is then passed over.
//!
//! Cubins run on the GPU with the user's rights, so a folder that others could write to is refused.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::Key;

/// The layout of an entry: magic, version, key, payload length, SHA-256 of the payload, payload. Little endian.
const MAGIC: [u8; 8] = *b"KILNCUBN";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 8 + 4 + 32 + 8 + 32;

const ENTRY: &str = "cubin";
const TEMPORARY: &str = "tmp";

/// When a write takes the folder over this size, the entries used longest ago go until three quarters are left.
const MAX_BYTES: u64 = 1 << 30;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A folder of compiled kernels.
#[derive(Debug)]
pub(crate) struct DiskCache {
    folder: PathBuf,
    max_bytes: u64,
    /// The size of all entries as of the last scan plus what was written here since; `None` before the first scan.
    /// Locked while scanning, so one thread cleans up.
    size_bytes: Mutex<Option<u64>>,
    /// A write failed: entries are still read, none are written.
    read_only: AtomicBool,
    warned: AtomicBool,
    /// Replaced in tests to stand for a full disk.
    write: fn(&mut File, &[u8]) -> io::Result<()>,
}

impl DiskCache {
    /// The cache where the environment puts it: `$KILN_CACHE_DIR`, `$XDG_CACHE_HOME/kiln` or `~/.cache/kiln`, in the
    /// folder `kernels`. `None`, after a warning, if there is no place or it is not safe.
    pub(crate) fn from_env() -> Option<Self> {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let Some(base) = location(var("KILN_CACHE_DIR"), var("XDG_CACHE_HOME"), var("HOME")) else {
            log::warn!(
                "compiled kernels are not kept on disk: none of KILN_CACHE_DIR, XDG_CACHE_HOME and HOME is set"
            );
            return None;
        };
        // The base is checked too: who can write there can put another folder in the place of ours.
        let opened = make_private(&base).and_then(|()| Self::open(&base.join("kernels")));
        opened.inspect_err(|why| log::warn!("compiled kernels are not kept on disk: {why}")).ok()
    }

    /// The cache in `folder`, which is created for this user alone if it does not exist. The error is a sentence.
    pub(crate) fn open(folder: &Path) -> Result<Self, String> {
        make_private(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            max_bytes: MAX_BYTES,
            size_bytes: Mutex::new(None),
            read_only: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            write: |file, bytes| file.write_all(bytes),
        })
    }

    /// The entry of `key`, if there is a sound one.
    pub(crate) fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.entry(key);
        let bytes = File::open(&path).and_then(|mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            // Marks the entry as used. Once a day is enough for the order of removal.
            let now = SystemTime::now();
            let modified = file.metadata()?.modified()?;
            if now.duration_since(modified).is_ok_and(|age| age > DAY) {
                let _ = file.set_modified(now);
            }
            Ok(bytes)
        });
        match bytes {
            Ok(bytes) => match unpack(key, bytes) {
                Some(payload) => Some(payload),
                None => {
                    log::debug!("{} is damaged and will be replaced", path.display());
                    None
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.warn("read", &path, &error);
                None
            }
        }
    }

    /// Keeps `payload` as the entry of `key`, or gives up with one warning.
    pub(crate) fn store(&self, key: &Key, payload: &[u8]) {
        if self.read_only.load(Ordering::Relaxed) {
            return;
        }
        let path = self.entry(key);
        if let Err(error) = self.replace(&path, &pack(key, payload)) {
            self.read_only.store(true, Ordering::Relaxed);
            self.warn("written", &path, &error);
            return;
        }
        self.limit((HEADER_BYTES + payload.len()) as u64);
    }

    /// Whether the one warning was given.
    #[cfg(test)]
    pub(super) fn warned(&self) -> bool {
        self.warned.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn set_write(&mut self, write: fn(&mut File, &[u8]) -> io::Result<()>) {
        self.write = write;
    }

    #[cfg(test)]
    pub(super) fn set_max_bytes(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
    }

    fn entry(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{key}.{ENTRY}"))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // The process id alone is not unique: containers with their own numbering can share the folder.
        let unique = RandomState::new().hash_one((std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        let temporary = path.with_extension(format!("{unique:016x}.{TEMPORARY}"));
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        // Not synced: after a power loss the hash tells whether the content made it.
        let written = (self.write)(&mut file, bytes).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Counts a new entry and cleans up when it is the first of this process or takes the folder over its limit.
    fn limit(&self, new_bytes: u64) {
        let mut size_bytes = self.size_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *size_bytes = match *size_bytes {
            Some(known) if known.saturating_add(new_bytes) <= self.max_bytes => Some(known + new_bytes),
            _ => self.clean_up().ok().or(Some(0)),
        };
    }

    /// Removes temporary files that a killed process left and, above the limit, the oldest entries. Returns what is left.
    fn clean_up(&self) -> io::Result<u64> {
        let now = SystemTime::now();
        let mut entries = Vec::new();
        for item in fs::read_dir(&self.folder)? {
            let path = item?.path();
            // Another process may be cleaning up too.
            let Ok(data) = path.symlink_metadata() else { continue };
            let Ok(modified) = data.modified() else { continue };
            let extension = path.extension().unwrap_or_default();
            if extension == TEMPORARY && now.duration_since(modified).is_ok_and(|age| age > DAY) {
                let _ = fs::remove_file(&path);
            } else if extension == ENTRY && data.is_file() {
                entries.push((modified, data.len(), path));
            }
        }
        let mut left: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        if left > self.max_bytes {
            entries.sort();
            for (_, bytes, path) in entries {
                if left <= self.max_bytes / 4 * 3 {
                    break;
                }
                let _ = fs::remove_file(path);
                left -= bytes;
            }
        }
        Ok(left)
    }

    fn warn(&self, what: &str, path: &Path, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{} cannot be {what} ({error}): going on without it; kernels may be compiled again in the next process",
                path.display()
            );
        }
    }
}

/// Relative XDG paths are invalid by that specification; a relative `KILN_CACHE_DIR` is taken at its word.
fn location(kiln: Option<PathBuf>, xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let xdg = xdg.filter(|path| path.is_absolute()).map(|path| path.join("kiln"));
    let home = home.filter(|path| path.is_absolute()).map(|path| path.join(".cache/kiln"));
    kiln.map(|path| std::path::absolute(&path).unwrap_or(path)).or(xdg).or(home)
}

/// Creates `folder` for this user alone, or checks that an existing one belongs to it and that others cannot write there.
fn make_private(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    // What exists already is no error and keeps its mode.
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| format!("{shown} cannot be created ({error})"))?;
    let data = fs::metadata(folder).map_err(|error| format!("{shown} cannot be looked at ({error})"))?;
    let user = user_id().ok_or("the user's id cannot be read from /proc/self/status")?;
    if data.uid() != user {
        return Err(format!("{shown} belongs to user {}, this process runs as user {user}", data.uid()));
    }
    if data.mode() & 0o022 != 0 {
        let mode = data.mode() & 0o7777;
        return Err(format!("{shown} can be written to by others (mode {mode:o}): chmod go-w it"));
    }
    Ok(())
}

/// The effective user id, as the file system sees it.
fn user_id() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // Real, effective, saved, file system.
    ids.split_whitespace().nth(3)?.parse().ok()
}

fn header(key: &Key, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&key.0);
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&Sha256::digest(payload));
    bytes
}

fn pack(key: &Key, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(key, payload);
    bytes.extend_from_slice(payload);
    bytes
}

/// The payload, if the bytes are what [`pack`] makes for `key`.
fn unpack(key: &Key, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let payload = bytes.get(HEADER_BYTES..)?;
    // Building the header again checks every byte of it.
    if !bytes.starts_with(&header(key, payload)) {
        return None;
    }
    bytes.drain(..HEADER_BYTES);
    Some(bytes)
}
