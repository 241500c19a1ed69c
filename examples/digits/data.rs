//! Images with labels, and the data set kept in this folder: 1,797 handwritten digits of 8x8 pixels.
//!
//! Pixels stay bytes until a batch is built, so that MNIST takes 47 MB and not 188.

use std::io::Read;

use flate2::read::GzDecoder;

/// Classes 0 to 9, in every data set this program reads.
pub(crate) const CLASSES: usize = 10;

const DIGITS_CSV_GZ: &[u8] = include_bytes!("data/digits.csv.gz");
const DIGITS_SIDE: usize = 8;
/// Each pixel counts the set ones in a 4x4 block of the original scan.
const DIGITS_MAX_PIXEL: u8 = 16;

/// Square grey images with one label each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Images {
    /// Width and height in pixels.
    pub(crate) side: usize,
    /// The pixel value that stands for 1.0.
    pub(crate) max_pixel: u8,
    /// `len() * side * side` values, one image after the other, rows from top to bottom.
    pub(crate) pixels: Vec<u8>,
    /// One class per image, each below [`CLASSES`].
    pub(crate) labels: Vec<u8>,
}

impl Images {
    /// Number of images.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Pixels of image `index`, scaled to 0..=1.
    pub(crate) fn scaled(&self, index: usize) -> impl Iterator<Item = f32> + '_ {
        let size = self.side * self.side;
        let max = f32::from(self.max_pixel);
        self.pixels[index * size..][..size].iter().map(move |&pixel| f32::from(pixel) / max)
    }

    /// The images at `indices`, in that order.
    fn select(&self, indices: &[usize]) -> Self {
        let size = self.side * self.side;
        Self {
            side: self.side,
            max_pixel: self.max_pixel,
            pixels: indices.iter().flat_map(|&i| &self.pixels[i * size..][..size]).copied().collect(),
            labels: indices.iter().map(|&i| self.labels[i]).collect(),
        }
    }
}

/// A data set in two parts that share no image.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Split {
    /// What a run folder records, so that a run is not resumed on other data: `digits` or `mnist`.
    pub(crate) name: &'static str,
    pub(crate) train: Images,
    pub(crate) test: Images,
}

/// The 8x8 digits, 1,437 to train on and 360 to test on, drawn by `seed`.
///
/// # Errors
/// If the file compiled into the program is damaged.
pub(crate) fn digits(seed: u64) -> Result<Split, String> {
    let images = all_digits()?;
    let (train, test) = split_indices(images.len(), seed);
    Ok(Split { name: "digits", train: images.select(&train), test: images.select(&test) })
}

/// All 1,797 images in the order of the file.
pub(crate) fn all_digits() -> Result<Images, String> {
    let mut csv = String::new();
    GzDecoder::new(DIGITS_CSV_GZ).read_to_string(&mut csv).map_err(|e| format!("digits.csv.gz: {e}"))?;
    parse_digits(&csv)
}

/// Reads lines of 64 pixels (0 to 16) and a class.
fn parse_digits(csv: &str) -> Result<Images, String> {
    let size = DIGITS_SIDE * DIGITS_SIDE;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for (number, line) in csv.lines().enumerate() {
        let values: Option<Vec<u8>> = line.split(',').map(|value| value.parse().ok()).collect();
        match values.as_deref().and_then(<[u8]>::split_last) {
            Some((&label, image))
                if image.len() == size
                    && usize::from(label) < CLASSES
                    && image.iter().all(|&pixel| pixel <= DIGITS_MAX_PIXEL) =>
            {
                pixels.extend_from_slice(image);
                labels.push(label);
            }
            _ => return Err(format!("digits.csv.gz: line {} is not 64 pixels and a class", number + 1)),
        }
    }
    Ok(Images { side: DIGITS_SIDE, max_pixel: DIGITS_MAX_PIXEL, pixels, labels })
}

/// Shuffles `0..len` and cuts it at 80 %, rounded down: (train, test).
pub(crate) fn split_indices(len: usize, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let mut train = shuffled(len, seed);
    let test = train.split_off(len * 4 / 5);
    (train, test)
}

/// A permutation of `0..len` that depends on `seed` alone, the same on every platform.
pub(crate) fn shuffled(len: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    let mut random = SplitMix64(seed);
    for last in (1..len).rev() {
        order.swap(last, random.below(last + 1));
    }
    order
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, biased by less than `bound / 2^64`.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}
