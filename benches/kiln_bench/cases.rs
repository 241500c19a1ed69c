//! The operations: inputs, the call, and what bounds it.
//!
//! Shapes are those of compare.py, which has the PyTorch side. Random inputs are normal unless they are indices.
//! Matrices are row-major; a linear layer's weight is in Burn's layout, `[in, out]` (PyTorch's is `[out, in]`).
//! Indices are 64-bit, as PyTorch's are.

use burn_backend::ops::{
    ActivationOps, AttentionModuleOptions, ConvOptions, FloatTensorOps, IntTensorOps, ModuleOps,
};
use burn_backend::{Distribution, Scalar, Shape, Slice};
use burn_std::{BoolDType, FloatDType, IntDType};
use kiln::{Cuda, CudaDevice, CudaTensor};

use crate::timing::Timer;

/// Queues the operation once; its outputs are dropped at once.
pub(crate) type Run = Box<dyn Fn()>;

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) bound: Bound,
    /// Makes the inputs.
    pub(crate) setup: fn(&CudaDevice) -> Run,
}

/// What a call must at least do.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    /// Bytes moved between device memory and the chip: each input and output once.
    Bytes(u64),
    /// Floating-point operations on 16-bit matrix units.
    Flops(u64),
    /// Floating-point operations in f32, where no matrix unit may be used.
    FlopsF32(u64),
}

/// The 50 largest of each row, with indices.
const TOPK_ROWS: Bound = Bound::Bytes(512 * (VOCABULARY as u64 * BF16 + 50 * (BF16 + I64)));

impl Bound {
    /// Bytes or operations a second.
    pub(crate) fn rate(self, us: f64) -> f64 {
        let (Bound::Bytes(n) | Bound::Flops(n) | Bound::FlopsF32(n)) = self;
        n as f64 / us * 1e6
    }

    /// A rate in words.
    pub(crate) fn show(self, rate: f64) -> String {
        match self {
            Bound::Bytes(_) => format!("{:.0} GB/s", rate / 1e9),
            Bound::Flops(_) | Bound::FlopsF32(_) => format!("{:.1} TFLOP/s", rate / 1e12),
        }
    }

    /// `bytes=N` or `flops=N`.
    pub(crate) fn describe(self) -> String {
        match self {
            Bound::Bytes(n) => format!("bytes={n}"),
            Bound::Flops(n) => format!("flops={n}"),
            Bound::FlopsF32(n) => format!("flops_f32={n}"),
        }
    }
}

fn normal<const D: usize>(device: &CudaDevice, shape: [usize; D], dtype: FloatDType) -> CudaTensor {
    Cuda::float_random(Shape::from(shape), Distribution::Normal(0.0, 1.0), device, dtype)
}

/// Indices in `[0, below)`.
fn indices<const D: usize>(device: &CudaDevice, shape: [usize; D], below: usize) -> CudaTensor {
    Cuda::int_random(Shape::from(shape), Distribution::Uniform(0.0, below as f64), device, IntDType::I64)
}

/// A case of one bf16 input.
fn unary<const D: usize>(
    device: &CudaDevice,
    shape: [usize; D],
    op: impl Fn(CudaTensor) -> CudaTensor + 'static,
) -> Run {
    let x = normal(device, shape, FloatDType::BF16);
    Box::new(move || drop(op(x.clone())))
}

/// A copy of images whose channels come last, of images of flat pixels whose channels come first.
fn channels_last(device: &CudaDevice, [batch, channels, pixels]: [usize; 3]) -> Run {
    unary(device, [batch, channels, pixels], move |x| {
        Cuda::float_reshape(Cuda::float_swap_dims(x, 1, 2), Shape::from([batch * pixels * channels]))
    })
}

fn matmul(device: &CudaDevice, [m, k, n]: [usize; 3], dtype: FloatDType) -> Run {
    let (a, b) = (normal(device, [m, k], dtype), normal(device, [k, n], dtype));
    Box::new(move || drop(Cuda::float_matmul(a.clone(), b.clone())))
}

const fn matmul_flops([m, k, n]: [u64; 3]) -> u64 {
    2 * m * k * n
}

/// R and C of most cases.
const ROWS: usize = 16384;
const COLS: usize = 8192;
const BIG: [usize; 2] = [ROWS, COLS];
/// `R * C`.
const N: u64 = (ROWS * COLS) as u64;
const R: u64 = ROWS as u64;
const C: u64 = COLS as u64;
const BF16: u64 = 2;
const F32: u64 = 4;
const I32: u64 = 4;
const I64: u64 = 8;
/// Columns of the normalised rows and of the gathered index.
const HALF: usize = COLS / 2;
const VOCABULARY: usize = 50257;
const WIDTH: usize = 768;
/// B, C, H, W of the pooled images.
const IMAGES: [usize; 4] = [64, 64, 112, 112];

/// All cases; the ceilings come first.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    CASES.iter().chain(CONVOLUTIONS.as_flattened())
}

const CASES: &[Case] = &[
    Case {
        name: "copy",
        bound: Bound::Bytes(2 * N * BF16),
        setup: |device| unary(device, BIG, |x| Cuda::float_mul_scalar(x, Scalar::Float(1.0))),
    },
    Case {
        name: "matmul_bf16_8192",
        bound: Bound::Flops(matmul_flops([8192, 8192, 8192])),
        setup: |device| matmul(device, [8192, 8192, 8192], FloatDType::BF16),
    },
    Case {
        name: "matmul_bf16_4096",
        bound: Bound::Flops(matmul_flops([4096, 4096, 4096])),
        setup: |device| matmul(device, [4096, 4096, 4096], FloatDType::BF16),
    },
    Case {
        name: "matmul_bf16_1024",
        bound: Bound::Flops(matmul_flops([1024, 1024, 1024])),
        setup: |device| matmul(device, [1024, 1024, 1024], FloatDType::BF16),
    },
    Case {
        name: "linear_4096x4096x14336",
        bound: Bound::Flops(matmul_flops([4096, 4096, 14336])),
        setup: |device| {
            let x = normal(device, [4096, 4096], FloatDType::BF16);
            let weight = normal(device, [4096, 14336], FloatDType::BF16);
            Box::new(move || drop(Cuda::linear(x.clone(), weight.clone(), None)))
        },
    },
    Case {
        name: "matmul_f32_4096",
        bound: Bound::FlopsF32(matmul_flops([4096, 4096, 4096])),
        setup: |device| matmul(device, [4096, 4096, 4096], FloatDType::F32),
    },
    Case {
        name: "add_2e27",
        bound: Bound::Bytes(3 * N * BF16),
        setup: |device| {
            let (x, y) = (normal(device, BIG, FloatDType::BF16), normal(device, BIG, FloatDType::BF16));
            Box::new(move || drop(Cuda::float_add(x.clone(), y.clone())))
        },
    },
    Case {
        name: "gelu_2e27",
        bound: Bound::Bytes(2 * N * BF16),
        setup: |device| unary(device, BIG, Cuda::gelu),
    },
    Case {
        name: "cast_f32_2e27",
        bound: Bound::Bytes(N * (BF16 + F32)),
        setup: |device| unary(device, BIG, |x| Cuda::float_cast(x, FloatDType::F32)),
    },
    Case {
        name: "transpose_copy",
        bound: Bound::Bytes(2 * N * BF16),
        // The rows of the transposed view are not dense, so that a reshape to one dimension has to copy.
        setup: |device| {
            unary(device, BIG, |x| Cuda::float_reshape(Cuda::float_transpose(x), Shape::from([ROWS * COLS])))
        },
    },
    Case {
        name: "transpose_64x64x3136",
        bound: Bound::Bytes(2 * 64 * 64 * 3136 * BF16),
        setup: |device| channels_last(device, [64, 64, 3136]),
    },
    Case {
        name: "transpose_64x512x49",
        bound: Bound::Bytes(2 * 64 * 512 * 49 * BF16),
        setup: |device| channels_last(device, [64, 512, 49]),
    },
    Case {
        name: "permute0213_copy",
        bound: Bound::Bytes(2 * N * BF16),
        // As above: the order of the two middle dimensions cannot be one stride.
        setup: |device| {
            unary(device, [16, 2048, 32, 128], |x| {
                Cuda::float_reshape(Cuda::float_swap_dims(x, 1, 2), Shape::from([ROWS * COLS]))
            })
        },
    },
    Case {
        name: "cat_dim1",
        bound: Bound::Bytes(2 * N * BF16),
        setup: |device| {
            let [a, b] = [(); 2].map(|()| normal(device, [ROWS, HALF], FloatDType::BF16));
            Box::new(move || drop(Cuda::float_cat(vec![a.clone(), b.clone()], 1)))
        },
    },
    Case {
        name: "sum_last",
        bound: Bound::Bytes((N + R) * BF16),
        setup: |device| unary(device, BIG, |x| Cuda::float_sum_dim(x, 1)),
    },
    Case {
        name: "sum_first",
        bound: Bound::Bytes((N + C) * BF16),
        setup: |device| unary(device, BIG, |x| Cuda::float_sum_dim(x, 0)),
    },
    Case {
        name: "max_last",
        bound: Bound::Bytes((N + R) * BF16),
        setup: |device| unary(device, BIG, |x| Cuda::float_max_dim(x, 1)),
    },
    Case {
        name: "argmax_last",
        bound: Bound::Bytes(N * BF16 + R * I64),
        setup: |device| unary(device, BIG, |x| Cuda::float_argmax(x, 1, IntDType::I64)),
    },
    Case {
        name: "argmax_first",
        bound: Bound::Bytes(N * BF16 + C * I64),
        setup: |device| unary(device, BIG, |x| Cuda::float_argmax(x, 0, IntDType::I64)),
    },
    Case {
        name: "softmax_last",
        bound: Bound::Bytes(2 * N * BF16),
        setup: |device| unary(device, BIG, |x| Cuda::softmax(x, 1)),
    },
    Case {
        name: "log_softmax_last",
        bound: Bound::Bytes(2 * N * BF16),
        setup: |device| unary(device, BIG, |x| Cuda::log_softmax(x, 1)),
    },
    Case { name: "cumsum_last_f32", bound: Bound::Bytes(2 * N * F32), setup: |device| cumsum(device, 1) },
    Case { name: "cumsum_first_f32", bound: Bound::Bytes(2 * N * F32), setup: |device| cumsum(device, 0) },
    Case {
        name: "sort_64x65536_f32",
        // Values and 64-bit indices, of the default dtype in PyTorch.
        bound: Bound::Bytes((64 << 16) * (2 * F32 + I64)),
        setup: |device| sort(device, [64, 1 << 16]),
    },
    Case {
        name: "sort_16384x1024_f32",
        bound: Bound::Bytes((1 << 24) * (2 * F32 + I64)),
        setup: |device| sort(device, [1 << 14, 1 << 10]),
    },
    Case {
        name: "sort_262144x64_f32",
        bound: Bound::Bytes((1 << 24) * (2 * F32 + I64)),
        setup: |device| sort(device, [1 << 18, 1 << 6]),
    },
    Case {
        name: "topk50_64x131072_f32",
        bound: Bound::Bytes((64 << 17) * F32),
        setup: |device| {
            let x = normal(device, [64, 1 << 17], FloatDType::F32);
            Box::new(move || drop(Cuda::float_topk(x.clone(), 1, 50)))
        },
    },
    Case {
        name: "layer_norm_fwd",
        // x and y have N / 2 elements each, gamma and beta C / 2.
        bound: Bound::Bytes((N + C) * BF16),
        setup: |device| {
            let x = normal(device, [ROWS, HALF], FloatDType::BF16);
            let (gamma, beta) =
                (normal(device, [HALF], FloatDType::BF16), normal(device, [HALF], FloatDType::BF16));
            Box::new(move || drop(Cuda::layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), 1e-5)))
        },
    },
    Case {
        name: "layer_norm_bwd",
        // x, the output's gradient and the input's have N / 2 elements each; gamma, its gradient and beta's C / 2.
        bound: Bound::Bytes((3 * N / 2 + 3 * C / 2) * BF16),
        setup: |device| {
            let [x, grad] = [(); 2].map(|()| normal(device, [ROWS, HALF], FloatDType::BF16));
            let gamma = normal(device, [HALF], FloatDType::BF16);
            Box::new(move || drop(Cuda::layer_norm_backward(grad.clone(), x.clone(), gamma.clone(), 1e-5)))
        },
    },
    Case {
        name: "gather_last",
        // Every line of x is touched: half of its elements are asked for, at random.
        bound: Bound::Bytes(N * BF16 + N / 2 * (I64 + BF16)),
        setup: |device| {
            let x = normal(device, BIG, FloatDType::BF16);
            let index = indices(device, [ROWS, HALF], COLS);
            Box::new(move || drop(Cuda::float_gather(1, x.clone(), index.clone())))
        },
    },
    Case {
        name: "scatter_add_last_f32",
        // x is read and y written as a whole; the updates and their indices are half as many.
        bound: Bound::Bytes(2 * N * F32 + N / 2 * (I64 + F32)),
        setup: |device| scatter_add(device, COLS),
    },
    Case {
        name: "scatter_add_repeated_f32",
        bound: Bound::Bytes(2 * N * F32 + N / 2 * (I64 + F32)),
        setup: |device| scatter_add(device, 64),
    },
    Case {
        name: "index_select_rows",
        // Of R draws, 1 - 1/e of the rows are drawn; the others are never read.
        bound: Bound::Bytes((N * 632 / 1000 + N) * BF16 + R * I64),
        setup: |device| {
            let x = normal(device, BIG, FloatDType::BF16);
            let index = indices(device, [ROWS], ROWS);
            Box::new(move || drop(Cuda::float_select(x.clone(), 0, index.clone())))
        },
    },
    Case {
        name: "embedding_fwd",
        // 16,384 draws touch about 14,000 of the 50,257 rows.
        bound: Bound::Bytes((14_000 + R) * WIDTH as u64 * BF16 + R * I64),
        setup: |device| {
            let table = normal(device, [VOCABULARY, WIDTH], FloatDType::BF16);
            let ids = indices(device, [1, ROWS], VOCABULARY);
            Box::new(move || drop(Cuda::embedding(table.clone(), ids.clone())))
        },
    },
    Case {
        name: "embedding_bwd",
        // Every row of the table's gradient is written, as is each row of the output's read.
        bound: Bound::Bytes((VOCABULARY as u64 + R) * WIDTH as u64 * BF16 + R * I64),
        setup: |device| {
            let table = normal(device, [VOCABULARY, WIDTH], FloatDType::BF16);
            let output_grad = normal(device, [1, ROWS, WIDTH], FloatDType::BF16);
            let ids = indices(device, [1, ROWS], VOCABULARY);
            Box::new(move || drop(Cuda::embedding_backward(table.clone(), output_grad.clone(), ids.clone())))
        },
    },
    Case {
        name: "sort_2e24_f32",
        // Keys and indices, once; a radix sort moves them once for each of its passes.
        bound: Bound::Bytes((1 << 24) * (2 * F32 + I64)),
        setup: |device| sort(device, [1, 1 << 24]),
    },
    Case {
        name: "sort_rows_f32",
        bound: Bound::Bytes((1 << 24) * (2 * F32 + I64)),
        setup: |device| sort(device, [4096, 4096]),
    },
    Case {
        name: "topk50_rows",
        bound: TOPK_ROWS,
        setup: |device| {
            unary(device, [512, VOCABULARY], |x| {
                let indices = Cuda::float_argtopk(x.clone(), 1, 50, IntDType::I64);
                Cuda::float_gather(1, x, indices)
            })
        },
    },
    Case {
        // `Tensor::topk_with_indices`, which sorts whole rows.
        name: "topk_with_indices_rows",
        bound: TOPK_ROWS,
        setup: |device| {
            unary(device, [512, VOCABULARY], |x| {
                let (values, indices) = Cuda::float_sort_with_indices(x, 1, true, IntDType::I64);
                drop(indices);
                Cuda::float_slice(values, &[Slice::full(), Slice::new(0, Some(50), 1)])
            })
        },
    },
    Case {
        name: "where_mask",
        bound: Bound::Bytes(N * (2 * BF16 + 1)),
        setup: |device| {
            let x = normal(device, BIG, FloatDType::BF16);
            let noise = normal(device, BIG, FloatDType::BF16);
            let mask = Cuda::float_greater_elem(noise, Scalar::Float(0.0), BoolDType::Native);
            Box::new(move || drop(Cuda::float_mask_fill(x.clone(), mask.clone(), Scalar::Float(0.0))))
        },
    },
    Case {
        name: "rand_2e27_f32",
        bound: Bound::Bytes(N * F32),
        setup: |device| {
            let device = *device;
            Box::new(move || {
                drop(Cuda::float_random(Shape::from(BIG), Distribution::Default, &device, FloatDType::F32));
            })
        },
    },
    Case {
        name: "max_pool3_s2_fwd",
        // 112 x 112 -> 56 x 56.
        bound: Bound::Bytes((64 * 64 * 112 * 112 + 64 * 64 * 56 * 56) * BF16),
        setup: |device| unary(device, IMAGES, |x| Cuda::max_pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1], false)),
    },
    Case {
        name: "max_pool3_s2_bwd",
        bound: Bound::Bytes((64 * 64 * 112 * 112 + 64 * 64 * 56 * 56) * BF16 + 64 * 64 * 56 * 56 * I32),
        setup: |device| {
            let x = normal(device, IMAGES, FloatDType::BF16);
            let output_grad = normal(device, [64, 64, 56, 56], FloatDType::BF16);
            let pooled = Cuda::max_pool2d_with_indices(x.clone(), [3, 3], [2, 2], [1, 1], [1, 1], false);
            let indices = pooled.indices;
            Box::new(move || {
                let gradient = Cuda::max_pool2d_with_indices_backward(
                    x.clone(),
                    [3, 3],
                    [2, 2],
                    [1, 1],
                    [1, 1],
                    false,
                    output_grad.clone(),
                    indices.clone(),
                );
                drop(gradient.x_grad);
            })
        },
    },
    Case {
        name: "adaptive_avg_pool1",
        bound: Bound::Bytes(64 * 2048 * 50 * BF16),
        setup: |device| unary(device, [64, 2048, 7, 7], |x| Cuda::adaptive_avg_pool2d(x, [1, 1])),
    },
    Case {
        name: "conv3d_3x3x3_fwd",
        bound: Bound::Flops(2 * 4 * 16 * 56 * 56 * 64 * 64 * 27),
        setup: |device| {
            let x = normal(device, [4, 64, 16, 56, 56], FloatDType::BF16);
            let w = normal(device, [64, 64, 3, 3, 3], FloatDType::BF16);
            let options = ConvOptions::new([1; 3], [1; 3], [1; 3], 1);
            Box::new(move || drop(Cuda::conv3d(x.clone(), w.clone(), None, options.clone())))
        },
    },
    Case {
        name: "attention_fwd",
        bound: Bound::Flops(4 * 4 * 16 * 2048 * 2048 * 64),
        setup: |device| attention(device, false),
    },
    Case {
        name: "attention_causal_fwd",
        bound: Bound::Flops(2 * 4 * 16 * 2048 * 2048 * 64),
        setup: |device| attention(device, true),
    },
];

fn attention(device: &CudaDevice, is_causal: bool) -> Run {
    let [q, k, v] = [0; 3].map(|_| normal(device, [4, 16, 2048, 64], FloatDType::BF16));
    let options = AttentionModuleOptions { is_causal, ..Default::default() };
    Box::new(move || drop(Cuda::attention(q.clone(), k.clone(), v.clone(), None, None, options)))
}

/// Images, input channels, size, output channels, kernel and stride of ResNet-50's convolutions, each with its three passes.
macro_rules! convolutions {
    ($($name:literal: $channels:literal $size:literal $out:literal $kernel:literal $stride:literal;)*) => {
        const CONVOLUTIONS: &[[Case; 3]] = &[$({
            const CONV: Conv = Conv { channels: $channels, size: $size, out: $out, kernel: $kernel, stride: $stride };
            [
                Case {
                    name: concat!("conv_", $name, "_fwd"),
                    bound: CONV.flops(),
                    setup: |device| {
                        CONV.faster(device, |x, weight, _| drop(Cuda::conv2d(x, weight, None, CONV.options())))
                    },
                },
                Case {
                    name: concat!("conv_", $name, "_dx"),
                    bound: CONV.flops(),
                    setup: |device| {
                        CONV.faster(device, |x, weight, dy| {
                            drop(Cuda::conv2d_x_backward(x, weight, dy, CONV.options()));
                        })
                    },
                },
                Case {
                    name: concat!("conv_", $name, "_dw"),
                    bound: CONV.flops(),
                    setup: |device| {
                        CONV.faster(device, |x, weight, dy| {
                            drop(Cuda::conv2d_weight_backward(x, weight, dy, CONV.options()));
                        })
                    },
                },
            ]
        }),*];
    };
}

/// A convolution of 64 square bf16 images, padded by half its kernel.
struct Conv {
    channels: usize,
    size: usize,
    out: usize,
    kernel: usize,
    stride: usize,
}

impl Conv {
    const IMAGES: usize = 64;

    const fn out_size(&self) -> usize {
        (self.size + self.kernel / 2 * 2 - self.kernel) / self.stride + 1
    }

    const fn flops(&self) -> Bound {
        let products = self.out * self.channels * self.kernel * self.kernel;
        Bound::Flops((2 * Conv::IMAGES * products * self.out_size() * self.out_size()) as u64)
    }

    fn options(&self) -> ConvOptions<2> {
        let [stride, padding] = [self.stride, self.kernel / 2].map(|n| [n, n]);
        ConvOptions::new(stride, padding, [1, 1], 1)
    }

    /// A pass on x, the weight and the output's gradient, in the faster of two orders of memory, as compare.py takes
    /// PyTorch's: row-major images, or channels last, as one convolution leaves them to the next. The weight is row-major.
    fn faster(&self, device: &CudaDevice, pass: fn(CudaTensor, CudaTensor, CudaTensor)) -> Run {
        let bf16 = |shape: [usize; 4]| normal(device, shape, FloatDType::BF16);
        let weight = bf16([self.out, self.channels, self.kernel, self.kernel]);
        let (size, out_size) = (self.size, self.out_size());
        let runs = [false, true].map(|channels_last| -> Run {
            let images = |channels: usize, size: usize| match channels_last {
                false => bf16([Conv::IMAGES, channels, size, size]),
                true => Cuda::float_permute(bf16([Conv::IMAGES, size, size, channels]), &[0, 3, 1, 2]),
            };
            let (x, weight, dy) = (images(self.channels, size), weight.clone(), images(self.out, out_size));
            Box::new(move || pass(x.clone(), weight.clone(), dy.clone()))
        });
        let timer = Timer::new(device).expect("the device is there");
        let us = |run: &Run| {
            let launches = timer.launches(run)?;
            timer.round(run, launches.min(20))
        };
        let [rows, last] = runs.each_ref().map(|run| us(run).expect("a time"));
        let [first, second] = runs;
        if rows < last { first } else { second }
    }
}

convolutions! {
    "3x224_64_k7s2": 3 224 64 7 2;
    "64x56_64_k1s1": 64 56 64 1 1;
    "64x56_64_k3s1": 64 56 64 3 1;
    "64x56_256_k1s1": 64 56 256 1 1;
    "256x56_128_k1s1": 256 56 128 1 1;
    "128x56_128_k3s2": 128 56 128 3 2;
    "128x28_128_k3s1": 128 28 128 3 1;
    "512x28_256_k1s1": 512 28 256 1 1;
    "256x14_256_k3s1": 256 14 256 3 1;
    "1024x14_512_k1s1": 1024 14 512 1 1;
    "512x7_512_k3s1": 512 7 512 3 1;
    "512x7_2048_k1s1": 512 7 2048 1 1;
}

fn scatter_add(device: &CudaDevice, below: usize) -> Run {
    let x = normal(device, BIG, FloatDType::F32);
    let updates = normal(device, [ROWS, HALF], FloatDType::F32);
    let index = indices(device, [ROWS, HALF], below);
    Box::new(move || drop(Cuda::float_scatter_add(1, x.clone(), index.clone(), updates.clone())))
}

fn sort(device: &CudaDevice, shape: [usize; 2]) -> Run {
    let x = normal(device, shape, FloatDType::F32);
    Box::new(move || drop(Cuda::float_sort_with_indices(x.clone(), 1, false, IntDType::I64)))
}

fn cumsum(device: &CudaDevice, dim: usize) -> Run {
    let x = normal(device, BIG, FloatDType::F32);
    Box::new(move || drop(Cuda::float_cumsum(x.clone(), dim)))
}
