//! What differs from the defaults of a [`Plan`], operation by operation.

use burn_backend::quantization::{BlockSize, QuantLevel};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{DType, IntDType, Scalar, Slice};

use super::Values;
use super::plan::{Plan, Window, first};

impl Plan {
    fn rank_at_least(&mut self, rank: usize) {
        while self.base.len() < rank {
            self.base.push(self.rng.between(1, 5));
        }
        self.target = self.base.clone();
    }

    fn shape(&mut self, argument: &'static str, shape: impl Into<Vec<usize>>) {
        self.shapes.insert(argument, shape.into());
    }

    fn floats(&mut self, argument: &'static str, low: f64, high: f64) {
        self.values.insert(argument, Values::Float { low, high });
    }

    fn ints(&mut self, argument: &'static str, low: i64, high: i64) {
        self.values.insert(argument, Values::Int { low, high });
    }

    /// `base` with another size in `dim`.
    fn resized(&self, size: usize) -> Vec<usize> {
        let mut shape = self.base.clone();
        shape[self.dim] = size;
        shape
    }

    /// `base` with some sizes 1, so that it broadcasts to `base`.
    fn broadcastable(&mut self) -> Vec<usize> {
        let shrink = self.rng.below(3) == 0;
        let base = self.base.clone();
        base.into_iter().map(|size| if shrink && self.rng.flag() { 1 } else { size }).collect()
    }

    /// Indices into a dimension of the given size: how many, none if it is empty; and their range and dtype.
    fn indices(&mut self, size: usize, most: usize) -> usize {
        self.ints("indices", 0, size as i64);
        let dtype = self.rng.pick(&[IntDType::I64, IntDType::I32]);
        self.dtypes.insert("indices", dtype.into());
        if size == 0 { 0 } else { self.rng.between(0, most) }
    }

    /// What differs from the defaults for an operation.
    pub(super) fn recipe(&mut self, name: &str) {
        let bare = ["float_", "int_", "bool_", "q_"].iter().find_map(|prefix| name.strip_prefix(prefix));
        if name.starts_with("q_") || name.contains("quantize") {
            // Burn's quantised data cannot be empty: its scales would have nothing to be aligned behind.
            self.base.iter_mut().for_each(|size| *size = (*size).max(1));
            self.target = self.base.clone();
        }
        self.ranges(bare.unwrap_or(name), name);
        match bare.unwrap_or(name) {
            "add"
            | "sub"
            | "mul"
            | "div"
            | "remainder"
            | "powf"
            | "powi"
            | "atan2"
            | "equal"
            | "not_equal"
            | "greater"
            | "greater_equal"
            | "lower"
            | "lower_equal"
            | "and"
            | "or"
            | "xor"
            | "bitwise_and"
            | "bitwise_or"
            | "bitwise_xor"
            | "bitwise_left_shift"
            | "bitwise_right_shift" => {
                let (lhs, rhs) = (self.broadcastable(), self.broadcastable());
                self.shape("lhs", lhs);
                self.shape("rhs", rhs);
            }
            "cross" => {
                self.base[self.dim] = 3;
            }
            "matmul" => {
                let [m, k, n] = std::array::from_fn(|_| self.rng.between(1, 6));
                self.base.truncate(2);
                let (mut lhs, mut rhs) = (self.broadcastable(), self.broadcastable());
                lhs.extend([m, k]);
                rhs.extend([k, n]);
                self.shape("lhs", lhs);
                self.shape("rhs", rhs);
            }
            "transpose" => self.rank_at_least(2),
            "swap_dims" => {
                let other = self.rng.below(self.base.len());
                self.numbers.insert("dim1", self.dim);
                self.numbers.insert("dim2", other);
            }
            "permute" | "flip" => {
                let mut axes: Vec<usize> = (0..self.base.len()).collect();
                for i in (1..axes.len()).rev() {
                    axes.swap(i, self.rng.below(i + 1));
                }
                if bare == Some("flip") {
                    axes.truncate(self.rng.between(0, self.base.len()));
                }
                self.axes = axes;
            }
            "reshape" => {
                let mut target = self.base.clone();
                if target.len() > 1 && self.rng.flag() {
                    let last = target.pop().unwrap_or(1);
                    let at = self.rng.below(target.len());
                    target[at] *= last;
                }
                if self.rng.flag() {
                    target.insert(0, 1);
                }
                self.target = target;
            }
            "expand" => {
                let from = self.broadcastable();
                let mut target = self.base.clone();
                if self.rng.flag() && target.len() < 4 {
                    target.insert(0, self.rng.between(1, 3));
                }
                self.shape("tensor", from);
                self.target = target;
            }
            "gather" | "scatter_add" | "scatter_or" => {
                let count = self.indices(self.base[self.dim], 6);
                let shape = self.resized(count);
                self.shape("indices", shape.clone());
                self.shape("value", shape);
            }
            "select" | "select_add" | "select_or" => {
                let count = self.indices(self.base[self.dim], 6);
                let shape = self.resized(count);
                self.shape("indices", [count]);
                self.shape("value", shape);
            }
            "gather_nd" | "scatter_nd" => {
                let named = self.rng.between(1, self.base.len());
                let smallest = self.base[..named].iter().copied().min().unwrap_or(0);
                let mut rows = self.indices(smallest, 5);
                let updates = [IndexingUpdateOp::Add, IndexingUpdateOp::Mul, IndexingUpdateOp::Min];
                self.update = self.rng.pick(&updates);
                if rows == 1 {
                    self.update = IndexingUpdateOp::Assign;
                }
                let mut indices = vec![];
                if rows > 0 && self.rng.flag() {
                    indices.push(1);
                    rows = rows.max(1);
                }
                indices.push(rows);
                let mut values = indices.clone();
                indices.push(named);
                values.extend_from_slice(&self.base[named..]);
                self.shape("indices", indices);
                self.shape("values", values);
            }
            "slice" | "slice_assign" => {
                for at in 0..self.rng.between(0, self.base.len()) {
                    let size = self.base[at] as isize;
                    let mut bound = || self.rng.between(0, 2 * size as usize + 2) as isize - size - 1;
                    let (start, end) = (bound(), bound());
                    let end = (self.rng.below(3) > 0).then_some(end);
                    // Reads may go past the end, and are cut there; a start past it is no slice of anything.
                    let start = start.min((size - 1).max(0));
                    let step = self.rng.pick(&[1, 1, 1, 2, 3, -1, -2]);
                    self.slices.push(Slice::new(start, end, step));
                }
                let sizes = self.base.iter().enumerate();
                let part: Vec<usize> = sizes
                    .map(|(at, &size)| self.slices.get(at).map_or(size, |slice| slice.output_size(size)))
                    .collect();
                self.shape("value", part);
            }
            "mask_where" | "mask_fill" => {
                let mask = self.broadcastable();
                self.shape("mask", mask);
            }
            "cat" => {
                let count = self.rng.between(1, 3);
                self.parts = (0..count)
                    .map(|_| {
                        let size = self.rng.between(1, 4);
                        self.resized(size)
                    })
                    .collect();
            }
            "topk" | "argtopk" => {
                let k = self.rng.between(self.base[self.dim].min(1), self.base[self.dim]);
                self.numbers.insert("k", k);
            }
            "unfold" => {
                self.base[self.dim] = self.base[self.dim].max(1);
                let size = self.rng.between(1, self.base[self.dim]);
                self.numbers.insert("size", size);
                let step = self.rng.between(1, 3);
                self.numbers.insert("step", step);
            }
            "repeat_dim" => {
                let times = self.rng.between(1, 3);
                self.numbers.insert("times", times);
            }
            "arange_step" => {
                let step = self.rng.between(1, 4);
                self.numbers.insert("step", step);
            }
            "quantize" | "quantize_dynamic" | "dequantize" => {
                if self.rng.flag() {
                    let last = self.base.len() - 1;
                    self.base[last] = 4 * self.rng.between(1, 3);
                    self.scheme = self.scheme.with_level(QuantLevel::Block(BlockSize::new([4])));
                }
                let elements: usize = self.base.iter().product();
                let block = matches!(self.scheme.level, QuantLevel::Block(_));
                self.shape("qparams", [if block { elements / 4 } else { 1 }]);
                self.floats("qparams", 0.01, 0.02);
            }
            "softmax" | "log_softmax" | "softmin" => {}
            "prelu" => {
                let alpha = self.broadcastable();
                self.shape("alpha", alpha);
            }
            _ => self.module_recipe(name),
        }
    }

    /// The ranges of values and scalars, by what the function is defined on.
    fn ranges(&mut self, bare: &str, name: &str) {
        let low = if self.unsigned() { 0 } else { -8 };
        for argument in ["tensor", "lhs", "rhs", "data", "value", "values"] {
            if name.starts_with("int_") || name.starts_with("bitwise_") {
                self.ints(argument, low, 8);
            }
        }
        let integer = |value: i64| if low == 0 { Scalar::UInt(value as u64) } else { Scalar::Int(value) };
        let exact = name.starts_with("int_") || name.starts_with("bitwise_");
        let two = if exact { integer(2) } else { Scalar::Float(1.75) };
        let one = if exact { integer(1) } else { Scalar::Float(0.25) };
        for argument in ["rhs", "max", "value", "fill_value", "alpha"] {
            self.scalar_values.insert(argument, two);
        }
        for argument in ["min", "beta", "negative_slope"] {
            self.scalar_values.insert(argument, one);
        }
        if name.starts_with("bool_") {
            let flag = Scalar::Bool(self.rng.flag());
            self.scalar_values.insert("rhs", flag);
            self.scalar_values.insert("value", flag);
        }
        if name.starts_with("q_")
            && matches!(bare, "log" | "log1p" | "sqrt" | "powf" | "powf_scalar" | "recip")
        {
            for argument in ["tensor", "lhs", "rhs"] {
                self.values.insert(argument, Values::Quantized { low: 1 });
            }
        }
        if name.starts_with("q_") && matches!(bare, "div" | "powi") {
            self.values.insert("rhs", Values::Quantized { low: 1 });
        }
        match (name, bare) {
            ("q_powi", _) | ("float_powi", _) => self.ints("rhs", 0, 3),
            ("int_powi", _) => self.ints("rhs", 0, 3),
            ("int_div" | "int_remainder", _) => self.ints("rhs", 1, 6),
            ("bitwise_left_shift" | "bitwise_right_shift", _) => self.ints("rhs", 0, 4),
            ("float_div" | "float_remainder", _) => self.floats("rhs", 0.5, 2.0),
            ("float_powf", _) => {
                self.floats("lhs", 0.25, 2.0);
                self.floats("rhs", -2.0, 2.0);
            }
            ("float_atan2", _) => self.floats("rhs", 0.25, 2.0),
            ("float_log" | "float_log1p" | "float_sqrt" | "float_recip", _) => {
                self.floats("tensor", 0.25, 4.0)
            }
            ("float_powf_scalar" | "float_powf_scalar_impl", _) => self.floats("tensor", 0.25, 2.0),
            ("float_acos" | "float_asin" | "float_atanh", _) => self.floats("tensor", -0.9, 0.9),
            ("float_acosh", _) => self.floats("tensor", 1.25, 4.0),
            ("int_scatter_nd", _) => self.ints("values", low.max(-1), 2),
            // The sizes allow a product of thousands of elements.
            ("int_prod" | "int_prod_dim" | "int_cumprod", _) => self.ints("tensor", low.max(-1), 2),
            // Burn's backends have these for the wide dtypes only.
            ("int_matmul" | "int_argmax" | "int_argmin" | "int_mean", _) => {
                self.int = self.rng.pick(&[IntDType::I64, IntDType::I32]);
            }
            ("float_tan", _) => self.floats("tensor", -1.2, 1.2),
            ("float_prod" | "float_prod_dim" | "float_cumprod", _) => self.floats("tensor", 0.5, 1.5),
            _ => {}
        }
    }

    /// Shapes of the module operations.
    fn module_recipe(&mut self, name: &str) {
        let batch = self.rng.pick(&[1, 1, 1, 2, 2, 2, 3, 0]);
        match name {
            "embedding" | "embedding_backward" => {
                let [length, rows, width] = std::array::from_fn(|_| self.rng.between(1, 5));
                self.indices(rows, 1);
                self.shape("weights", [rows, width]);
                self.shape("indices", [batch, length]);
                self.shape("output_grad", [batch, length, width]);
            }
            "linear" | "linear_x_backward" | "linear_weight_backward" | "linear_bias_backward" => {
                let [rows, inner, outer] = std::array::from_fn(|_| self.rng.between(1, 6));
                let lead: Vec<usize> =
                    (0..self.rng.below(3)).map(|_| self.rng.between(1, 3)).chain([rows]).collect();
                let with = |width: usize| -> Vec<usize> { lead.iter().copied().chain([width]).collect() };
                self.shape("x", with(inner));
                self.shape("output_grad", with(outer));
                self.shape("weight", [inner, outer]);
                self.shape("bias", [outer]);
            }
            "attention" => {
                let [heads, queries, keys, width, values] = std::array::from_fn(|_| self.rng.between(1, 5));
                self.shape("query", [batch, heads, queries, width]);
                self.shape("key", [batch, heads, keys, width]);
                self.shape("value", [batch, heads, keys, values]);
                let scores = self.rng.pick(&[
                    [batch, heads, queries, keys],
                    [1, 1, queries, keys],
                    [batch, 1, 1, keys],
                ]);
                self.shape("mask", scores);
                self.shape("attn_bias", scores);
            }
            "layer_norm" => {
                let width = self.base[self.base.len() - 1];
                self.shape("gamma", [width]);
                self.shape("beta", [width]);
            }
            "ctc_loss" | "ctc_loss_backward" => {
                let [length, classes] = [self.rng.between(4, 6), self.rng.between(3, 5)];
                let targets = self.rng.between(1, 2);
                self.int = IntDType::I64;
                self.shape("log_probs", [length, batch, classes]);
                self.shape("targets", [batch, targets]);
                self.shape("input_lengths", [batch]);
                self.shape("target_lengths", [batch]);
                self.shape("grad_loss", [batch]);
                self.floats("log_probs", -3.0, -0.5);
                self.ints("targets", 1, classes as i64);
                self.ints("input_lengths", length as i64, length as i64 + 1);
                self.ints("target_lengths", targets as i64, targets as i64 + 1);
                self.numbers.insert("blank", 0);
            }
            "rfft" => {
                self.base[self.dim] = self.rng.pick(&[1, 2, 4, 8, 16]);
                if self.rng.flag() {
                    self.base[self.dim] = self.rng.between(1, 9);
                    // burn-flex takes the next power of two.
                    self.length = Some(self.rng.pick(&[1, 2, 4, 8, 16]));
                }
            }
            "irfft" => {
                self.base[self.dim] = self.rng.pick(&[2, 3, 5, 9]);
                if self.rng.flag() {
                    self.length = Some(self.rng.pick(&[1, 2, 4, 8, 16]));
                }
            }
            "float_grid_sample_2d" => {
                let [channels, height, width, rows, columns] =
                    std::array::from_fn(|_| self.rng.between(1, 6));
                self.shape("tensor", [batch, channels, height, width]);
                self.shape("grid", [batch, rows, columns, 2]);
                self.floats("grid", -1.2, 1.2);
            }
            _ if name.contains("conv_transpose") => self.conv_transpose_recipe(name, batch),
            _ if name.contains("conv") => self.conv_recipe(name, batch),
            _ if name.contains("pool") || name.starts_with("interpolate") || name == "unfold4d" => {
                self.pool_recipe(name, batch);
            }
            _ => {}
        }
    }

    /// A window over three sizes, which it fits.
    fn slide(&mut self) -> [usize; 3] {
        let rng = &mut self.rng;
        let window = &mut self.window;
        window.kernel = std::array::from_fn(|_| rng.between(1, 3));
        window.stride = std::array::from_fn(|_| rng.between(1, 3));
        window.dilation = std::array::from_fn(|_| rng.between(1, 2));
        window.padding = std::array::from_fn(|i| rng.between(0, window.kernel[i] / 2));
        std::array::from_fn(|i| window.dilation[i] * (window.kernel[i] - 1) + 1 + rng.below(5))
    }

    /// The sizes that the window gives.
    fn slid(&self, sizes: [usize; 3], ceil_mode: bool) -> [usize; 3] {
        let Window { kernel, stride, padding, dilation, .. } = self.window;
        std::array::from_fn(|i| {
            let slack = sizes[i] + 2 * padding[i] - (dilation[i] * (kernel[i] - 1) + 1);
            1 + if ceil_mode { slack.div_ceil(stride[i]) } else { slack / stride[i] }
        })
    }

    fn conv_recipe(&mut self, name: &str, batch: usize) {
        let rank = if name.contains('1') {
            1
        } else if name.contains('2') {
            2
        } else {
            3
        };
        let sizes = self.slide();
        let out = self.slid(sizes, false);
        let groups = self.rng.between(1, 2);
        let deform = name.starts_with("deform");
        let offset_groups = if deform { self.rng.between(1, 2) } else { 1 };
        self.window.groups = groups;
        self.window.offset_groups = offset_groups;
        let inputs = self.rng.between(1, 2) * if deform { offset_groups } else { 1 };
        let outputs = groups * self.rng.between(1, 2);
        let kernel = self.window.kernel;
        let with = |lead: [usize; 2], sizes: [usize; 3]| [&lead[..], &sizes[..rank]].concat();
        self.shape("x", with([batch, inputs * groups], sizes));
        self.shape("weight", with([outputs, inputs], kernel));
        self.shape("bias", [outputs]);
        self.shape("output_grad", with([batch, outputs], out));
        let taps = offset_groups * kernel[0] * kernel[1];
        self.shape("offset", with([batch, 2 * taps], out));
        self.shape("mask", with([batch, taps], out));
        self.floats("offset", -0.5, 0.5);
        self.floats("mask", 0.0, 1.0);
    }

    fn conv_transpose_recipe(&mut self, name: &str, batch: usize) {
        let rank = if name.contains('1') {
            1
        } else if name.contains('2') {
            2
        } else {
            3
        };
        let out = self.slide();
        let groups = self.rng.between(1, 2);
        self.window.groups = groups;
        let Window { kernel, stride, padding, dilation, .. } = self.window;
        let sizes = self.slid(out, false);
        // What the convolution of the output leaves over is the output padding.
        self.window.padding_out = std::array::from_fn(|i| {
            (out[i] + 2 * padding[i] - (dilation[i] * (kernel[i] - 1) + 1)) % stride[i]
        });
        let inputs = groups * self.rng.between(1, 2);
        let outputs = self.rng.between(1, 2);
        let with = |lead: [usize; 2], sizes: [usize; 3]| [&lead[..], &sizes[..rank]].concat();
        self.shape("x", with([batch, inputs], sizes));
        self.shape("weight", with([inputs, outputs], kernel));
        self.shape("bias", [outputs * groups]);
        self.shape("output_grad", with([batch, outputs * groups], out));
    }

    fn pool_recipe(&mut self, name: &str, batch: usize) {
        let rank = if name.contains('1') { 1 } else { 2 };
        let channels = self.rng.between(1, 3);
        let sizes = self.slide();
        if name.starts_with("avg") {
            self.window.dilation = [1; 3];
        }
        self.window.ceil_mode = self.rng.flag();
        let mut out = self.slid(sizes, self.window.ceil_mode);
        if name.starts_with("adaptive") || name.starts_with("interpolate") {
            out = std::array::from_fn(|_| self.rng.between(1, 6));
        }
        let with = |sizes: [usize; 3]| [&[batch, channels], &sizes[..rank]].concat();
        self.shape("x", with(sizes));
        self.shape("grad", with(out));
        self.shape("output_grad", with(out));
        self.shape("indices", with(out));
        let positions: usize = sizes[..rank].iter().product();
        self.indices(positions, 1);
        self.dtypes.insert("indices", DType::I64);
        let Window { kernel, stride, padding, dilation, .. } = self.window;
        let options = [
            ("kernel_size", kernel),
            ("stride", stride),
            ("padding", padding),
            ("dilation", dilation),
            ("output_size", out),
        ];
        for (argument, option) in options {
            self.numbers.insert(argument, option[0]);
            self.pairs.insert(argument, first(option));
        }
    }
}
