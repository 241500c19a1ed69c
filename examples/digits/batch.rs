//! Batches of images as tensors, and the loader that hands them to the training loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

use super::data::{Images, shuffled};

/// N images and their classes on one device.
#[derive(Clone, Debug)]
pub(crate) struct Batch<B: Backend> {
    /// `[N, 1, side, side]`, values 0 to 1.
    pub(crate) images: Tensor<B, 4>,
    /// `[N]`
    pub(crate) labels: Tensor<B, 1, Int>,
}

impl<B: Backend> Batch<B> {
    /// Uploads the images at `indices`, in that order.
    pub(crate) fn new(images: &Images, indices: &[usize], device: &B::Device) -> Self {
        let shape = [indices.len(), 1, images.side, images.side];
        let pixels: Vec<f32> = indices.iter().flat_map(|&i| images.scaled(i)).collect();
        let labels: Vec<i32> = indices.iter().map(|&i| i32::from(images.labels[i])).collect();
        Self {
            images: Tensor::from_data(TensorData::new(pixels, shape), device),
            labels: Tensor::from_data(TensorData::new(labels, [indices.len()]), device),
        }
    }
}

/// All of `images` in batches, in the order of the images. The last batch may be short.
pub(crate) fn in_order<B: Backend>(
    images: &Images,
    batch_size: usize,
    device: &B::Device,
) -> impl Iterator<Item = Batch<B>> {
    let indices: Vec<usize> = (0..images.len()).collect();
    (0..images.len()).step_by(batch_size).map(move |start| {
        let end = (start + batch_size).min(indices.len());
        Batch::new(images, &indices[start..end], device)
    })
}

/// A loader whose shuffled order depends on the seed and the number of the epoch alone.
///
/// Burn's own loader draws each epoch's order from a generator that starts anew with the program, so a resumed run
/// would see the orders of its first epochs again. Here a run resumed at epoch 5 sees what an unbroken run would.
pub(crate) struct EpochLoader<B: Backend> {
    images: Arc<Images>,
    /// The images this loader serves, before shuffling.
    indices: Vec<usize>,
    batch_size: usize,
    /// `None` keeps the order of the images.
    seed: Option<u64>,
    /// The epoch that the next call of `iter` serves.
    epoch: AtomicU64,
    device: B::Device,
}

impl<B: Backend> EpochLoader<B> {
    /// A loader whose first pass over the images is number `first_epoch`.
    pub(crate) fn new(
        images: Arc<Images>,
        batch_size: usize,
        seed: Option<u64>,
        first_epoch: usize,
        device: B::Device,
    ) -> Self {
        let indices = (0..images.len()).collect();
        Self { images, indices, batch_size, seed, epoch: AtomicU64::new(first_epoch as u64), device }
    }

    fn with(&self, indices: &[usize], device: &B::Device) -> Arc<Self> {
        Arc::new(Self {
            images: self.images.clone(),
            indices: indices.to_vec(),
            batch_size: self.batch_size,
            seed: self.seed,
            epoch: AtomicU64::new(self.epoch.load(Ordering::Relaxed)),
            device: device.clone(),
        })
    }
}

impl<B: Backend> DataLoader<B, Batch<B>> for EpochLoader<B> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch<B>> + 'a> {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        let order = match self.seed {
            // The factor keeps (seed, epoch) and (seed + 1, epoch - 1) apart.
            Some(seed) => {
                let seed = seed ^ epoch.wrapping_mul(0xd1b5_4a32_d192_ed03);
                shuffled(self.indices.len(), seed).into_iter().map(|i| self.indices[i]).collect()
            }
            None => self.indices.clone(),
        };
        Box::new(EpochIterator { loader: self, order, served: 0 })
    }

    fn num_items(&self) -> usize {
        self.indices.len()
    }

    fn to_device(&self, device: &B::Device) -> Arc<dyn DataLoader<B, Batch<B>>> {
        self.with(&self.indices, device)
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B, Batch<B>>> {
        self.with(&self.indices[start..end], &self.device)
    }
}

struct EpochIterator<'a, B: Backend> {
    loader: &'a EpochLoader<B>,
    order: Vec<usize>,
    served: usize,
}

impl<B: Backend> Iterator for EpochIterator<'_, B> {
    type Item = Batch<B>;

    fn next(&mut self) -> Option<Batch<B>> {
        let rest = &self.order[self.served..];
        let indices = &rest[..rest.len().min(self.loader.batch_size)];
        if indices.is_empty() {
            return None;
        }
        let batch = Batch::new(&self.loader.images, indices, &self.loader.device);
        self.served += indices.len();
        Some(batch)
    }
}

impl<B: Backend> DataLoaderIterator<Batch<B>> for EpochIterator<'_, B> {
    fn progress(&self) -> Progress {
        Progress::new(self.served, self.order.len())
    }
}
