//! MNIST, or any data set in its format, from a local folder of four idx files.
//!
//! An idx file is a big-endian header (two zero bytes, type 8 for unsigned bytes, the rank, one u32 per dimension)
//! followed by the bytes, last dimension fastest.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

use super::data::{CLASSES, Images, Split};

/// More than five times MNIST's largest file, so that a crafted .gz cannot fill the memory.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// What is wrong with the bytes of an idx file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IdxError {
    /// Shorter than its own header.
    NoHeader,
    /// The first four bytes are not 0, 0, 8 and this rank.
    Magic { rank: u8, found: [u8; 4] },
    /// The header's dimensions ask for more or fewer bytes than there are.
    Length { dims: Vec<usize>, bytes: usize },
}

impl fmt::Display for IdxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeader => write!(f, "shorter than an idx header"),
            Self::Magic { rank, found } => {
                write!(
                    f,
                    "starts with {found:02x?}, not with [00, 00, 08, {rank:02x}] as idx bytes of rank {rank} do"
                )
            }
            Self::Length { dims, bytes } => {
                write!(f, "truncated or corrupt: the header says {dims:?}, but {bytes} bytes follow")
            }
        }
    }
}

/// Checks the header of an idx file of unsigned bytes and returns its dimensions and the bytes after it.
///
/// # Errors
/// [`IdxError`] when `file` is anything else, or not of rank `RANK`.
pub(crate) fn parse_idx<const RANK: usize>(file: &[u8]) -> Result<([usize; RANK], &[u8]), IdxError> {
    let (magic, rest) = file.split_first_chunk::<4>().ok_or(IdxError::NoHeader)?;
    let rank = RANK as u8;
    if *magic != [0, 0, 8, rank] {
        return Err(IdxError::Magic { rank, found: *magic });
    }
    let (header, data) = rest.split_at_checked(4 * RANK).ok_or(IdxError::NoHeader)?;
    let mut dims = [0; RANK];
    for (dim, bytes) in dims.iter_mut().zip(header.as_chunks::<4>().0) {
        *dim = u32::from_be_bytes(*bytes) as usize;
    }
    let size = dims.iter().try_fold(1usize, |size, &dim| size.checked_mul(dim));
    if size != Some(data.len()) {
        return Err(IdxError::Length { dims: dims.to_vec(), bytes: data.len() });
    }
    Ok((dims, data))
}

/// Reads `train-*` and `t10k-*` images and labels from `folder`, each plain or with `.gz` at the end of its name.
///
/// # Errors
/// One line that names the file and what is wrong with it.
pub(crate) fn load(folder: &Path) -> Result<Split, String> {
    if !folder.is_dir() {
        return Err(format!("{}: no such folder", folder.display()));
    }
    let (train, test) = (images(folder, "train")?, images(folder, "t10k")?);
    if train.side != test.side {
        return Err(format!(
            "{}: training images are {} pixels wide, test images {}",
            folder.display(),
            train.side,
            test.side
        ));
    }
    Ok(Split { name: "mnist", train, test })
}

fn images(folder: &Path, part: &str) -> Result<Images, String> {
    let (path, file) = read(folder, part, "images", 3)?;
    let wrong = |what: String| format!("{}: {what}", path.display());
    let ([count, rows, columns], pixels) = parse_idx::<3>(&file).map_err(|e| wrong(e.to_string()))?;
    if count == 0 || rows != columns || rows < 4 {
        return Err(wrong(format!(
            "{count} images of {rows}x{columns}; square ones of 4x4 or more are needed"
        )));
    }

    let (path, file) = read(folder, part, "labels", 1)?;
    let wrong = |what: String| format!("{}: {what}", path.display());
    let ([labels], classes) = parse_idx::<1>(&file).map_err(|e| wrong(e.to_string()))?;
    if labels != count {
        return Err(wrong(format!("{labels} labels for {count} images")));
    }
    if let Some(class) = classes.iter().find(|&&class| usize::from(class) >= CLASSES) {
        return Err(wrong(format!("label {class}; the classes are 0 to {}", CLASSES - 1)));
    }
    Ok(Images { side: rows, max_pixel: u8::MAX, pixels: pixels.to_vec(), labels: classes.to_vec() })
}

/// Finds and reads one file, under the name it was published with or the one most unpackers give it.
fn read(folder: &Path, part: &str, what: &str, rank: usize) -> Result<(PathBuf, Vec<u8>), String> {
    let names = [format!("{part}-{what}-idx{rank}-ubyte"), format!("{part}-{what}.idx{rank}-ubyte")];
    let candidates = names.iter().flat_map(|name| [folder.join(name), folder.join(format!("{name}.gz"))]);
    let Some(path) = candidates.into_iter().find(|path| path.is_file()) else {
        return Err(format!("{}: no {} here, plain or .gz", folder.display(), names[0]));
    };
    let wrong = |what: String| format!("{}: {what}", path.display());

    let file = BufReader::new(File::open(&path).map_err(|e| wrong(e.to_string()))?);
    let mut bytes = Vec::new();
    let limit = MAX_FILE_BYTES + 1;
    let read = if path.extension().is_some_and(|extension| extension == "gz") {
        GzDecoder::new(file).take(limit).read_to_end(&mut bytes)
    } else {
        file.take(limit).read_to_end(&mut bytes)
    };
    read.map_err(|e| wrong(format!("truncated or corrupt: {e}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(format!("more than {} MiB of data", MAX_FILE_BYTES >> 20)));
    }
    Ok((path, bytes))
}
