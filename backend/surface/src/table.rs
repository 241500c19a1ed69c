//! The table: one line for each method of Burn's operation traits.
//!
//! [`with_backend_methods!`](crate::with_backend_methods) hands the table to a macro of the caller, which expands it
//! into whatever needs all methods: an enum, a trait implementation that delegates, an interpreter. A line names the
//! method, its arguments as Burn names them (less a leading underscore), a tag for the type of each, and a tag for the
//! type of the result. [`arg_type!`](crate::arg_type) and [`ret_type!`](crate::ret_type) turn a tag back into Burn's
//! type.
//!
//! In each trait, `node` holds the methods that a graph can record: tensors and static attributes in, tensors out.
//! `host` holds the rest, which move data between host and device, ask for the device, or mark gradients. The ten
//! methods of the `Backend` trait itself have generic parameters and no tensors; a consumer writes them by hand, and
//! [`BACKEND_METHODS`] names them.
//!
//! The table is compared with the sources of the pinned Burn by a test (`tests/burn_traits.rs`), which also prints the
//! lines for another version.
//!
//! # Tags of arguments
//!
//! | tag | Burn's type |
//! |---|---|
//! | `F` `I` `B` `Q` | `FloatTensor<B>`, `IntTensor<B>`, `BoolTensor<B>`, `QuantizedTensor<B>` |
//! | `RefF` `RefI` `RefB` `RefQ` | `&` of the same |
//! | `OptF` `OptB` | `Option<FloatTensor<B>>`, `Option<BoolTensor<B>>` |
//! | `VecF` `VecI` `VecB` `VecQ` | `Vec<FloatTensor<B>>` and so on |
//! | `Prim` | `TensorPrimitive<B>` |
//! | `QParams` | `QuantizationParametersPrimitive<B>` |
//! | `Transaction` | `TransactionPrimitive<B>` |
//! | `Device` | `&Device<B>` |
//! | `Data` | `TensorData` |
//! | `Scalar` | `Scalar`: its value is a parameter of a graph |
//! | `Exponent` | `Scalar`: the exponent of an integer power, part of a graph |
//! | `Shape` | `Shape` |
//! | `Axes` | `&[usize]` |
//! | `Slices` | `&[Slice]` |
//! | `usize` `bool` `f64` | the same |
//! | `OptUsize` | `Option<usize>` |
//! | `Pair` | `[usize; 2]` |
//! | `Range` | `Range<i64>` |
//! | `Distribution` | `Distribution` |
//! | `FloatDType` `IntDType` `BoolDType` | the same |
//! | `Update` | `IndexingUpdateOp` |
//! | `Scheme` | `&QuantScheme` |
//! | `Conv1` `Conv2` `Conv3` | `ConvOptions<N>` |
//! | `ConvT1` `ConvT2` `ConvT3` | `ConvTransposeOptions<N>` |
//! | `Deform` | `DeformConvOptions<2>` |
//! | `Interp` | `InterpolateOptions` |
//! | `GridSample` | `GridSampleOptions` |
//! | `Unfold` | `UnfoldOptions` |
//! | `Attention` | `AttentionModuleOptions` |
//!
//! # Tags of results
//!
//! | tag | Burn's type |
//! |---|---|
//! | `F` `I` `B` `Q` `Prim` | as above |
//! | `FI` `II` `QI` `FF` | the tuple of two tensors |
//! | `bool` | `bool` |
//! | `Device` | `Device<B>` |
//! | `ReadData` | `impl Future<Output = Result<TensorData, ExecutionError>> + Send` |
//! | `ReadInt` | `impl Future<Output = IntTensor<B>> + 'static + Send` |
//! | `ReadTransaction` | `impl Future<Output = Result<TransactionPrimitiveData, ExecutionError>> + Send` |
//! | `MaxPool1d` `MaxPool2d` | `MaxPool1dWithIndices<B>`, `MaxPool2dWithIndices<B>` |
//! | `MaxPool1dGrad` `MaxPool2dGrad` | `MaxPool1dBackward<B>`, `MaxPool2dBackward<B>` |
//! | `DeformGrad` | `DeformConv2dBackward<B>` |

/// The methods of the `Backend` trait itself, which a consumer of the table writes by hand.
pub const BACKEND_METHODS: [&str; 10] = [
    "ad_enabled",
    "memory_persistent_allocations",
    "memory_cleanup",
    "name",
    "seed",
    "sync",
    "staging",
    "supports_dtype",
    "dtype_usage",
    "device_count",
];

/// Calls a macro with the table of all methods of Burn's operation traits.
///
/// `with_backend_methods! { callback! { context } }` becomes `callback! { context table }`. The
/// [module](crate::table) explains the tags.
///
/// ```
/// macro_rules! count {
///     ($(trait $trait:ident {
///         node { $($node:ident ($($arg:ident: $tag:ident),*) -> $ret:ident;)* }
///         host { $($host:ident ($($host_arg:ident: $host_tag:ident),*) -> $host_ret:ident;)* }
///     })*) => {
///         [$(stringify!($trait),)*].len() + [$($(stringify!($node),)* $(stringify!($host),)*)*].len()
///     };
/// }
/// let traits_and_methods = kiln_surface::with_backend_methods! { count! {} };
/// assert_eq!(traits_and_methods, 7 + 418);
/// ```
#[rustfmt::skip]
#[macro_export]
macro_rules! with_backend_methods {
    ($callback:ident! { $($context:tt)* }) => {
        $callback! {
            $($context)*
            trait FloatTensorOps {
                node {
                    float_random(shape: Shape, distribution: Distribution, device: Device, dtype: FloatDType) -> F;
                    float_zeros(shape: Shape, device: Device, dtype: FloatDType) -> F;
                    float_ones(shape: Shape, device: Device, dtype: FloatDType) -> F;
                    float_full(shape: Shape, fill_value: Scalar, device: Device, dtype: FloatDType) -> F;
                    float_to_device(tensor: F, device: Device) -> F;
                    float_into_int(tensor: F, out_dtype: IntDType) -> I;
                    float_empty(shape: Shape, device: Device, dtype: FloatDType) -> F;
                    float_repeat_dim(tensor: F, dim: usize, times: usize) -> F;
                    float_add(lhs: F, rhs: F) -> F;
                    float_add_scalar(lhs: F, rhs: Scalar) -> F;
                    float_clamp_min(tensor: F, min: Scalar) -> F;
                    float_clamp_max(tensor: F, max: Scalar) -> F;
                    float_clamp(tensor: F, min: Scalar, max: Scalar) -> F;
                    float_sub(lhs: F, rhs: F) -> F;
                    float_sub_scalar(lhs: F, rhs: Scalar) -> F;
                    float_mul(lhs: F, rhs: F) -> F;
                    float_mul_scalar(lhs: F, rhs: Scalar) -> F;
                    float_div(lhs: F, rhs: F) -> F;
                    float_div_scalar(lhs: F, rhs: Scalar) -> F;
                    float_remainder(lhs: F, rhs: F) -> F;
                    float_remainder_scalar(lhs: F, rhs: Scalar) -> F;
                    float_matmul(lhs: F, rhs: F) -> F;
                    float_cross(lhs: F, rhs: F, dim: usize) -> F;
                    float_neg(tensor: F) -> F;
                    float_recip(tensor: F) -> F;
                    float_transpose(tensor: F) -> F;
                    float_swap_dims(tensor: F, dim1: usize, dim2: usize) -> F;
                    float_permute(tensor: F, axes: Axes) -> F;
                    float_flip(tensor: F, axes: Axes) -> F;
                    float_reshape(tensor: F, shape: Shape) -> F;
                    float_gather(dim: usize, tensor: F, indices: I) -> F;
                    float_scatter_add(dim: usize, tensor: F, indices: I, value: F) -> F;
                    float_scatter_nd(data: F, indices: I, values: F, reduction: Update) -> F;
                    float_gather_nd(data: F, indices: I) -> F;
                    float_select(tensor: F, dim: usize, indices: I) -> F;
                    float_select_add(tensor: F, dim: usize, indices: I, value: F) -> F;
                    float_slice(tensor: F, slices: Slices) -> F;
                    float_slice_assign(tensor: F, slices: Slices, value: F) -> F;
                    float_mask_where(tensor: F, mask: B, value: F) -> F;
                    float_mask_fill(tensor: F, mask: B, value: Scalar) -> F;
                    float_equal(lhs: F, rhs: F, out_dtype: BoolDType) -> B;
                    float_not_equal(lhs: F, rhs: F, out_dtype: BoolDType) -> B;
                    float_equal_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> B;
                    float_not_equal_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> B;
                    float_greater(lhs: F, rhs: F, out_dtype: BoolDType) -> B;
                    float_greater_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> B;
                    float_greater_equal(lhs: F, rhs: F, out_dtype: BoolDType) -> B;
                    float_greater_equal_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> B;
                    float_lower(lhs: F, rhs: F, out_dtype: BoolDType) -> B;
                    float_lower_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> B;
                    float_lower_equal(lhs: F, rhs: F, out_dtype: BoolDType) -> B;
                    float_lower_equal_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> B;
                    float_sum(tensor: F) -> F;
                    float_sum_dim(tensor: F, dim: usize) -> F;
                    float_prod(tensor: F) -> F;
                    float_prod_dim(tensor: F, dim: usize) -> F;
                    float_mean(tensor: F) -> F;
                    float_mean_dim(tensor: F, dim: usize) -> F;
                    float_cumsum(tensor: F, dim: usize) -> F;
                    float_cumprod(tensor: F, dim: usize) -> F;
                    float_cummin(tensor: F, dim: usize) -> F;
                    float_cummax(tensor: F, dim: usize) -> F;
                    float_cast(tensor: F, dtype: FloatDType) -> F;
                    float_exp(tensor: F) -> F;
                    float_log(tensor: F) -> F;
                    float_log1p(tensor: F) -> F;
                    float_powf(lhs: F, rhs: F) -> F;
                    float_powi(lhs: F, rhs: I) -> F;
                    float_powi_scalar(lhs: F, rhs: Exponent) -> F;
                    float_powi_scalar_impl(lhs: F, rhs: Exponent) -> F;
                    float_powf_scalar(tensor: F, value: Scalar) -> F;
                    float_powf_scalar_impl(tensor: F, value: Scalar) -> F;
                    float_sqrt(tensor: F) -> F;
                    float_abs(tensor: F) -> F;
                    float_cos(tensor: F) -> F;
                    float_sin(tensor: F) -> F;
                    float_tan(tensor: F) -> F;
                    float_cosh(tensor: F) -> F;
                    float_sinh(tensor: F) -> F;
                    float_tanh(tensor: F) -> F;
                    float_acos(tensor: F) -> F;
                    float_acosh(tensor: F) -> F;
                    float_asin(tensor: F) -> F;
                    float_asinh(tensor: F) -> F;
                    float_atan(tensor: F) -> F;
                    float_atanh(tensor: F) -> F;
                    float_atan2(lhs: F, rhs: F) -> F;
                    float_round(tensor: F) -> F;
                    float_floor(tensor: F) -> F;
                    float_ceil(tensor: F) -> F;
                    float_trunc(tensor: F) -> F;
                    float_erf(tensor: F) -> F;
                    float_cat(tensors: VecF, dim: usize) -> F;
                    float_argmax(tensor: F, dim: usize, out_dtype: IntDType) -> I;
                    float_argtopk(tensor: F, dim: usize, k: usize, out_dtype: IntDType) -> I;
                    float_topk(tensor: F, dim: usize, k: usize) -> F;
                    float_argmin(tensor: F, dim: usize, out_dtype: IntDType) -> I;
                    float_max(tensor: F) -> F;
                    float_max_dim(tensor: F, dim: usize) -> F;
                    float_max_dim_with_indices(tensor: F, dim: usize, indices_dtype: IntDType) -> FI;
                    float_min(tensor: F) -> F;
                    float_min_dim(tensor: F, dim: usize) -> F;
                    float_min_dim_with_indices(tensor: F, dim: usize, indices_dtype: IntDType) -> FI;
                    float_max_abs(tensor: F) -> F;
                    float_max_abs_dim(tensor: F, dim: usize) -> F;
                    float_any(tensor: F, out_dtype: BoolDType) -> B;
                    float_any_dim(tensor: F, dim: usize, out_dtype: BoolDType) -> B;
                    float_all(tensor: F, out_dtype: BoolDType) -> B;
                    float_all_dim(tensor: F, dim: usize, out_dtype: BoolDType) -> B;
                    float_sign(tensor: F) -> F;
                    float_expand(tensor: F, shape: Shape) -> F;
                    float_sort(tensor: F, dim: usize, descending: bool) -> F;
                    float_sort_with_indices(tensor: F, dim: usize, descending: bool, indices_dtype: IntDType) -> FI;
                    float_argsort(tensor: F, dim: usize, descending: bool, out_dtype: IntDType) -> I;
                    float_grid_sample_2d(tensor: F, grid: F, options: GridSample) -> F;
                    float_unfold(tensor: F, dim: usize, size: usize, step: usize) -> F;
                    float_is_nan(tensor: F, out_dtype: BoolDType) -> B;
                    float_is_inf(tensor: F, out_dtype: BoolDType) -> B;
                }
                host {
                    float_from_data(data: Data, device: Device) -> F;
                    float_into_data(tensor: F) -> ReadData;
                    float_device(tensor: RefF) -> Device;
                    float_detach(tensor: F) -> F;
                    float_set_require_grad(tensor: F, require_grad: bool) -> F;
                    float_is_require_grad(tensor: RefF) -> bool;
                }
            }
            trait IntTensorOps {
                node {
                    int_empty(shape: Shape, device: Device, dtype: IntDType) -> I;
                    int_to_device(tensor: I, device: Device) -> I;
                    int_reshape(tensor: I, shape: Shape) -> I;
                    int_slice(tensor: I, slices: Slices) -> I;
                    int_slice_assign(tensor: I, slices: Slices, value: I) -> I;
                    int_into_float(tensor: I, out_dtype: FloatDType) -> F;
                    int_mask_where(tensor: I, mask: B, value: I) -> I;
                    int_mask_fill(tensor: I, mask: B, value: Scalar) -> I;
                    int_gather(dim: usize, tensor: I, indices: I) -> I;
                    int_scatter_add(dim: usize, tensor: I, indices: I, value: I) -> I;
                    int_scatter_nd(data: I, indices: I, values: I, reduction: Update) -> I;
                    int_gather_nd(data: I, indices: I) -> I;
                    int_select(tensor: I, dim: usize, indices: I) -> I;
                    int_select_add(tensor: I, dim: usize, indices: I, value: I) -> I;
                    int_repeat_dim(tensor: I, dim: usize, times: usize) -> I;
                    int_cat(tensors: VecI, dim: usize) -> I;
                    int_equal(lhs: I, rhs: I, out_dtype: BoolDType) -> B;
                    int_not_equal(lhs: I, rhs: I, out_dtype: BoolDType) -> B;
                    int_equal_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> B;
                    int_not_equal_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> B;
                    int_greater(lhs: I, rhs: I, out_dtype: BoolDType) -> B;
                    int_greater_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> B;
                    int_greater_equal(lhs: I, rhs: I, out_dtype: BoolDType) -> B;
                    int_greater_equal_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> B;
                    int_lower(lhs: I, rhs: I, out_dtype: BoolDType) -> B;
                    int_lower_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> B;
                    int_lower_equal(lhs: I, rhs: I, out_dtype: BoolDType) -> B;
                    int_lower_equal_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> B;
                    int_add(lhs: I, rhs: I) -> I;
                    int_add_scalar(lhs: I, rhs: Scalar) -> I;
                    int_powi(lhs: I, rhs: I) -> I;
                    int_powi_scalar(lhs: I, rhs: Exponent) -> I;
                    int_powi_scalar_impl(lhs: I, rhs: Exponent) -> I;
                    int_clamp_min(tensor: I, min: Scalar) -> I;
                    int_clamp_max(tensor: I, max: Scalar) -> I;
                    int_clamp(tensor: I, min: Scalar, max: Scalar) -> I;
                    int_sub(lhs: I, rhs: I) -> I;
                    int_sub_scalar(lhs: I, rhs: Scalar) -> I;
                    int_mul(lhs: I, rhs: I) -> I;
                    int_mul_scalar(lhs: I, rhs: Scalar) -> I;
                    int_div(lhs: I, rhs: I) -> I;
                    int_div_scalar(lhs: I, rhs: Scalar) -> I;
                    int_remainder(lhs: I, rhs: I) -> I;
                    int_remainder_scalar(lhs: I, rhs: Scalar) -> I;
                    int_matmul(lhs: I, rhs: I) -> I;
                    int_neg(tensor: I) -> I;
                    int_zeros(shape: Shape, device: Device, dtype: IntDType) -> I;
                    int_ones(shape: Shape, device: Device, dtype: IntDType) -> I;
                    int_full(shape: Shape, fill_value: Scalar, device: Device, dtype: IntDType) -> I;
                    int_sum(tensor: I) -> I;
                    int_sum_dim(tensor: I, dim: usize) -> I;
                    int_prod(tensor: I) -> I;
                    int_prod_dim(tensor: I, dim: usize) -> I;
                    int_mean(tensor: I) -> I;
                    int_mean_dim(tensor: I, dim: usize) -> I;
                    int_cumsum(tensor: I, dim: usize) -> I;
                    int_cumprod(tensor: I, dim: usize) -> I;
                    int_cummin(tensor: I, dim: usize) -> I;
                    int_cummax(tensor: I, dim: usize) -> I;
                    int_argmax(tensor: I, dim: usize) -> I;
                    int_argtopk(tensor: I, dim: usize, k: usize) -> I;
                    int_topk(tensor: I, dim: usize, k: usize) -> I;
                    int_argmin(tensor: I, dim: usize) -> I;
                    int_max(tensor: I) -> I;
                    int_max_dim(tensor: I, dim: usize) -> I;
                    int_max_dim_with_indices(tensor: I, dim: usize) -> II;
                    int_max_abs(tensor: I) -> I;
                    int_max_abs_dim(tensor: I, dim: usize) -> I;
                    int_min(tensor: I) -> I;
                    int_min_dim(tensor: I, dim: usize) -> I;
                    int_min_dim_with_indices(tensor: I, dim: usize) -> II;
                    int_abs(tensor: I) -> I;
                    int_transpose(tensor: I) -> I;
                    int_swap_dims(tensor: I, dim1: usize, dim2: usize) -> I;
                    int_permute(tensor: I, axes: Axes) -> I;
                    int_flip(tensor: I, axes: Axes) -> I;
                    int_random(shape: Shape, distribution: Distribution, device: Device, dtype: IntDType) -> I;
                    int_arange_step(range: Range, step: usize, device: Device, dtype: IntDType) -> I;
                    int_arange(range: Range, device: Device, dtype: IntDType) -> I;
                    int_any(tensor: I, out_dtype: BoolDType) -> B;
                    int_any_dim(tensor: I, dim: usize, out_dtype: BoolDType) -> B;
                    int_all(tensor: I, out_dtype: BoolDType) -> B;
                    int_all_dim(tensor: I, dim: usize, out_dtype: BoolDType) -> B;
                    int_sign(tensor: I) -> I;
                    int_expand(tensor: I, shape: Shape) -> I;
                    int_sort(tensor: I, dim: usize, descending: bool) -> I;
                    int_sort_with_indices(tensor: I, dim: usize, descending: bool) -> II;
                    int_argsort(tensor: I, dim: usize, descending: bool) -> I;
                    bitwise_and(lhs: I, rhs: I) -> I;
                    bitwise_and_scalar(lhs: I, rhs: Scalar) -> I;
                    bitwise_or(lhs: I, rhs: I) -> I;
                    bitwise_or_scalar(lhs: I, rhs: Scalar) -> I;
                    bitwise_xor(lhs: I, rhs: I) -> I;
                    bitwise_xor_scalar(lhs: I, rhs: Scalar) -> I;
                    bitwise_not(tensor: I) -> I;
                    bitwise_left_shift(lhs: I, rhs: I) -> I;
                    bitwise_left_shift_scalar(lhs: I, rhs: Scalar) -> I;
                    bitwise_right_shift(lhs: I, rhs: I) -> I;
                    bitwise_right_shift_scalar(lhs: I, rhs: Scalar) -> I;
                    int_cast(tensor: I, dtype: IntDType) -> I;
                    int_unfold(tensor: I, dim: usize, size: usize, step: usize) -> I;
                }
                host {
                    int_into_data(tensor: I) -> ReadData;
                    int_from_data(data: Data, device: Device) -> I;
                    int_device(tensor: RefI) -> Device;
                }
            }
            trait BoolTensorOps {
                node {
                    bool_empty(shape: Shape, device: Device, dtype: BoolDType) -> B;
                    bool_zeros(shape: Shape, device: Device, dtype: BoolDType) -> B;
                    bool_ones(shape: Shape, device: Device, dtype: BoolDType) -> B;
                    bool_into_int(tensor: B, out_dtype: IntDType) -> I;
                    bool_into_float(tensor: B, out_dtype: FloatDType) -> F;
                    bool_to_device(tensor: B, device: Device) -> B;
                    bool_reshape(tensor: B, shape: Shape) -> B;
                    bool_slice(tensor: B, slices: Slices) -> B;
                    bool_slice_assign(tensor: B, slices: Slices, value: B) -> B;
                    bool_mask_where(tensor: B, mask: B, value: B) -> B;
                    bool_mask_fill(tensor: B, mask: B, value: Scalar) -> B;
                    bool_gather(dim: usize, tensor: B, indices: I) -> B;
                    bool_scatter_or(dim: usize, tensor: B, indices: I, value: B) -> B;
                    bool_select(tensor: B, dim: usize, indices: I) -> B;
                    bool_select_or(tensor: B, dim: usize, indices: I, value: B) -> B;
                    bool_repeat_dim(tensor: B, dim: usize, times: usize) -> B;
                    bool_cat(tensors: VecB, dim: usize) -> B;
                    bool_equal(lhs: B, rhs: B) -> B;
                    bool_not_equal(lhs: B, rhs: B) -> B;
                    bool_equal_elem(lhs: B, rhs: Scalar) -> B;
                    bool_not_equal_elem(lhs: B, rhs: Scalar) -> B;
                    bool_not(tensor: B) -> B;
                    bool_and(lhs: B, rhs: B) -> B;
                    bool_or(lhs: B, rhs: B) -> B;
                    bool_xor(lhs: B, rhs: B) -> B;
                    bool_transpose(tensor: B) -> B;
                    bool_swap_dims(tensor: B, dim1: usize, dim2: usize) -> B;
                    bool_permute(tensor: B, axes: Axes) -> B;
                    bool_flip(tensor: B, axes: Axes) -> B;
                    bool_any(tensor: B) -> B;
                    bool_any_dim(tensor: B, dim: usize) -> B;
                    bool_all(tensor: B) -> B;
                    bool_all_dim(tensor: B, dim: usize) -> B;
                    bool_expand(tensor: B, shape: Shape) -> B;
                    bool_unfold(tensor: B, dim: usize, size: usize, step: usize) -> B;
                }
                host {
                    bool_into_data(tensor: B) -> ReadData;
                    bool_from_data(data: Data, device: Device) -> B;
                    bool_device(tensor: RefB) -> Device;
                    bool_argwhere(tensor: B, out_dtype: IntDType) -> ReadInt;
                }
            }
            trait ModuleOps {
                node {
                    embedding(weights: F, indices: I) -> F;
                    embedding_backward(weights: F, output_grad: F, indices: I) -> F;
                    linear(x: F, weight: F, bias: OptF) -> F;
                    linear_x_backward(weight: F, output_grad: F) -> F;
                    linear_weight_backward(x: F, output_grad: F) -> F;
                    linear_bias_backward(output_grad: F) -> F;
                    conv1d(x: F, weight: F, bias: OptF, options: Conv1) -> F;
                    conv1d_x_backward(x: F, weight: F, output_grad: F, options: Conv1) -> F;
                    conv1d_weight_backward(x: F, weight: F, output_grad: F, options: Conv1) -> F;
                    conv1d_bias_backward(x: F, bias: F, output_grad: F) -> F;
                    conv2d(x: F, weight: F, bias: OptF, options: Conv2) -> F;
                    conv2d_x_backward(x: F, weight: F, output_grad: F, options: Conv2) -> F;
                    conv2d_weight_backward(x: F, weight: F, output_grad: F, options: Conv2) -> F;
                    conv2d_bias_backward(x: F, bias: F, output_grad: F) -> F;
                    deform_conv2d(x: F, offset: F, weight: F, mask: OptF, bias: OptF, options: Deform) -> F;
                    deform_conv2d_backward(x: F, offset: F, weight: F, mask: OptF, bias: OptF, output_grad: F, options: Deform) -> DeformGrad;
                    conv3d(x: F, weight: F, bias: OptF, options: Conv3) -> F;
                    conv3d_x_backward(x: F, weight: F, output_grad: F, options: Conv3) -> F;
                    conv3d_weight_backward(x: F, weight: F, output_grad: F, options: Conv3) -> F;
                    conv3d_bias_backward(x: F, bias: F, output_grad: F) -> F;
                    conv_transpose1d(x: F, weight: F, bias: OptF, options: ConvT1) -> F;
                    conv_transpose1d_x_backward(weight: F, output_grad: F, options: ConvT1) -> F;
                    conv_transpose1d_weight_backward(x: F, weight: F, output_grad: F, options: ConvT1) -> F;
                    conv_transpose1d_bias_backward(x: F, bias: F, output_grad: F) -> F;
                    conv_transpose2d(x: F, weight: F, bias: OptF, options: ConvT2) -> F;
                    conv_transpose2d_x_backward(weight: F, output_grad: F, options: ConvT2) -> F;
                    conv_transpose2d_weight_backward(x: F, weight: F, output_grad: F, options: ConvT2) -> F;
                    conv_transpose2d_bias_backward(x: F, bias: F, output_grad: F) -> F;
                    conv_transpose3d(x: F, weight: F, bias: OptF, options: ConvT3) -> F;
                    conv_transpose3d_x_backward(weight: F, output_grad: F, options: ConvT3) -> F;
                    conv_transpose3d_weight_backward(x: F, weight: F, output_grad: F, options: ConvT3) -> F;
                    conv_transpose3d_bias_backward(x: F, bias: F, output_grad: F) -> F;
                    unfold4d(x: F, kernel_size: Pair, options: Unfold) -> F;
                    avg_pool1d(x: F, kernel_size: usize, stride: usize, padding: usize, count_include_pad: bool, ceil_mode: bool) -> F;
                    avg_pool1d_backward(x: F, grad: F, kernel_size: usize, stride: usize, padding: usize, count_include_pad: bool, ceil_mode: bool) -> F;
                    avg_pool2d(x: F, kernel_size: Pair, stride: Pair, padding: Pair, count_include_pad: bool, ceil_mode: bool) -> F;
                    avg_pool2d_backward(x: F, grad: F, kernel_size: Pair, stride: Pair, padding: Pair, count_include_pad: bool, ceil_mode: bool) -> F;
                    adaptive_avg_pool2d(x: F, output_size: Pair) -> F;
                    adaptive_avg_pool2d_backward(x: F, grad: F) -> F;
                    adaptive_avg_pool1d(x: F, output_size: usize) -> F;
                    adaptive_avg_pool1d_backward(x: F, grad: F) -> F;
                    max_pool1d(x: F, kernel_size: usize, stride: usize, padding: usize, dilation: usize, ceil_mode: bool) -> F;
                    max_pool1d_with_indices(x: F, kernel_size: usize, stride: usize, padding: usize, dilation: usize, ceil_mode: bool) -> MaxPool1d;
                    max_pool1d_with_indices_backward(x: F, kernel_size: usize, stride: usize, padding: usize, dilation: usize, ceil_mode: bool, output_grad: F, indices: I) -> MaxPool1dGrad;
                    max_pool2d(x: F, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool) -> F;
                    max_pool2d_with_indices(x: F, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool) -> MaxPool2d;
                    max_pool2d_with_indices_backward(x: F, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool, output_grad: F, indices: I) -> MaxPool2dGrad;
                    interpolate(x: F, output_size: Pair, options: Interp) -> F;
                    interpolate_backward(x: F, grad: F, output_size: Pair, options: Interp) -> F;
                    attention(query: F, key: F, value: F, mask: OptB, attn_bias: OptF, options: Attention) -> F;
                    layer_norm(tensor: F, gamma: F, beta: OptF, epsilon: f64) -> F;
                    ctc_loss(log_probs: F, targets: I, input_lengths: I, target_lengths: I, blank: usize) -> F;
                    ctc_loss_backward(log_probs: F, targets: I, input_lengths: I, target_lengths: I, grad_loss: F, blank: usize) -> F;
                    rfft(signal: F, dim: usize, n: OptUsize) -> FF;
                    irfft(spectrum_re: F, spectrum_im: F, dim: usize, n: OptUsize) -> F;
                }
                host {
                    has_ctc_loss_backward() -> bool;
                }
            }
            trait ActivationOps {
                node {
                    leaky_relu(tensor: F, negative_slope: Scalar) -> F;
                    relu(tensor: F) -> F;
                    relu_backward(output: F, grad: F) -> F;
                    gelu(tensor: F) -> F;
                    prelu(tensor: F, alpha: F) -> F;
                    gelu_backward(x: F, grad: F) -> F;
                    sigmoid(tensor: F) -> F;
                    sigmoid_backward(output: F, grad: F) -> F;
                    hard_sigmoid(tensor: F, alpha: Scalar, beta: Scalar) -> F;
                    log_sigmoid(tensor: F) -> F;
                    softmax(tensor: F, dim: usize) -> F;
                    log_softmax(tensor: F, dim: usize) -> F;
                    softmin(tensor: F, dim: usize) -> F;
                    log_sigmoid_backward(x: F, grad: F) -> F;
                }
                host {
                }
            }
            trait QTensorOps {
                node {
                    quantize(tensor: F, scheme: Scheme, qparams: QParams) -> Q;
                    quantize_dynamic(tensor: F, scheme: Scheme) -> Q;
                    dequantize(tensor: Q, dtype: FloatDType) -> F;
                    q_to_device(tensor: Q, device: Device) -> Q;
                    q_reshape(tensor: Q, shape: Shape) -> Q;
                    q_expand(tensor: Q, shape: Shape) -> Q;
                    q_transpose(tensor: Q) -> Q;
                    q_swap_dims(tensor: Q, dim1: usize, dim2: usize) -> Q;
                    q_permute(tensor: Q, axes: Axes) -> Q;
                    q_flip(tensor: Q, axes: Axes) -> Q;
                    q_select(tensor: Q, dim: usize, indices: I) -> Q;
                    q_slice(tensor: Q, slices: Slices) -> Q;
                    q_gather(dim: usize, tensor: Q, indices: I) -> Q;
                    q_repeat_dim(tensor: Q, dim: usize, times: usize) -> Q;
                    q_add(lhs: Q, rhs: Q) -> Prim;
                    q_add_scalar(lhs: Q, rhs: Scalar) -> Prim;
                    q_clamp_min(tensor: Q, min: Scalar) -> Prim;
                    q_clamp_max(tensor: Q, max: Scalar) -> Prim;
                    q_clamp(tensor: Q, min: Scalar, max: Scalar) -> Prim;
                    q_sub(lhs: Q, rhs: Q) -> Prim;
                    q_sub_scalar(lhs: Q, rhs: Scalar) -> Prim;
                    q_mul(lhs: Q, rhs: Q) -> Prim;
                    q_mul_scalar(lhs: Q, rhs: Scalar) -> Prim;
                    q_div(lhs: Q, rhs: Q) -> Prim;
                    q_div_scalar(lhs: Q, rhs: Scalar) -> Prim;
                    q_matmul(lhs: Prim, rhs: Prim) -> Prim;
                    q_neg(tensor: Q) -> Prim;
                    q_recip(tensor: Q) -> Prim;
                    q_sum(tensor: Q) -> Prim;
                    q_sum_dim(tensor: Q, dim: usize) -> Prim;
                    q_prod(tensor: Q) -> Prim;
                    q_prod_dim(tensor: Q, dim: usize) -> Prim;
                    q_mean(tensor: Q) -> Prim;
                    q_mean_dim(tensor: Q, dim: usize) -> Prim;
                    q_cumsum(tensor: Q, dim: usize) -> Prim;
                    q_cumprod(tensor: Q, dim: usize) -> Prim;
                    q_cummin(tensor: Q, dim: usize) -> Prim;
                    q_cummax(tensor: Q, dim: usize) -> Prim;
                    q_exp(tensor: Q) -> Prim;
                    q_log(tensor: Q) -> Prim;
                    q_log1p(tensor: Q) -> Prim;
                    q_powf(lhs: Q, rhs: Q) -> Prim;
                    q_powi(lhs: Q, rhs: I) -> Prim;
                    q_powi_scalar(lhs: Q, rhs: Exponent) -> Prim;
                    q_powf_scalar(tensor: Q, value: Scalar) -> Prim;
                    q_sqrt(tensor: Q) -> Prim;
                    q_abs(tensor: Q) -> Q;
                    q_cos(tensor: Q) -> Prim;
                    q_sin(tensor: Q) -> Prim;
                    q_tan(tensor: Q) -> Prim;
                    q_cosh(tensor: Q) -> Prim;
                    q_sinh(tensor: Q) -> Prim;
                    q_tanh(tensor: Q) -> Prim;
                    q_erf(tensor: Q) -> Prim;
                    q_cat(tensors: VecQ, dim: usize) -> Q;
                    q_argmax(tensor: Q, dim: usize, out_dtype: IntDType) -> I;
                    q_argtopk(tensor: Q, dim: usize, k: usize, out_dtype: IntDType) -> I;
                    q_topk(tensor: Q, dim: usize, k: usize) -> Q;
                    q_argmin(tensor: Q, dim: usize, out_dtype: IntDType) -> I;
                    q_max(tensor: Q) -> Q;
                    q_max_dim(tensor: Q, dim: usize) -> Q;
                    q_max_dim_with_indices(tensor: Q, dim: usize, out_dtype: IntDType) -> QI;
                    q_min(tensor: Q) -> Q;
                    q_min_dim(tensor: Q, dim: usize) -> Q;
                    q_min_dim_with_indices(tensor: Q, dim: usize, out_dtype: IntDType) -> QI;
                    q_max_abs(tensor: Q) -> Q;
                    q_max_abs_dim(tensor: Q, dim: usize) -> Q;
                    q_any(tensor: Q, out_dtype: BoolDType) -> B;
                    q_any_dim(tensor: Q, dim: usize, out_dtype: BoolDType) -> B;
                    q_all(tensor: Q, out_dtype: BoolDType) -> B;
                    q_all_dim(tensor: Q, dim: usize, out_dtype: BoolDType) -> B;
                    q_sort(tensor: Q, dim: usize, descending: bool) -> Q;
                    q_sort_with_indices(tensor: Q, dim: usize, descending: bool, out_dtype: IntDType) -> QI;
                    q_argsort(tensor: Q, dim: usize, descending: bool, out_dtype: IntDType) -> I;
                }
                host {
                    q_from_data(data: Data, device: Device) -> Q;
                    q_device(tensor: RefQ) -> Device;
                    q_into_data(tensor: Q) -> ReadData;
                    q_detach(tensor: Q) -> Q;
                    q_set_require_grad(tensor: Q, require_grad: bool) -> Q;
                    q_is_require_grad(tensor: RefQ) -> bool;
                }
            }
            trait TransactionOps {
                node {
                }
                host {
                    tr_execute(transaction: Transaction) -> ReadTransaction;
                }
            }
        }
    };
}

/// Burn's type of an argument with the given tag, for a backend.
///
/// `arg_type!(RefF, B)` is `&FloatTensor<B>`. Lifetimes are elided, so the macro fits the signature of a method.
#[rustfmt::skip]
#[macro_export]
macro_rules! arg_type {
    (F, $b:ty) => { $crate::burn::FloatTensor<$b> };
    (I, $b:ty) => { $crate::burn::IntTensor<$b> };
    (B, $b:ty) => { $crate::burn::BoolTensor<$b> };
    (Q, $b:ty) => { $crate::burn::QuantizedTensor<$b> };
    (RefF, $b:ty) => { &$crate::burn::FloatTensor<$b> };
    (RefI, $b:ty) => { &$crate::burn::IntTensor<$b> };
    (RefB, $b:ty) => { &$crate::burn::BoolTensor<$b> };
    (RefQ, $b:ty) => { &$crate::burn::QuantizedTensor<$b> };
    (OptF, $b:ty) => { ::core::option::Option<$crate::burn::FloatTensor<$b>> };
    (OptB, $b:ty) => { ::core::option::Option<$crate::burn::BoolTensor<$b>> };
    (VecF, $b:ty) => { ::std::vec::Vec<$crate::burn::FloatTensor<$b>> };
    (VecI, $b:ty) => { ::std::vec::Vec<$crate::burn::IntTensor<$b>> };
    (VecB, $b:ty) => { ::std::vec::Vec<$crate::burn::BoolTensor<$b>> };
    (VecQ, $b:ty) => { ::std::vec::Vec<$crate::burn::QuantizedTensor<$b>> };
    (Prim, $b:ty) => { $crate::burn::TensorPrimitive<$b> };
    (QParams, $b:ty) => { $crate::burn::QuantizationParametersPrimitive<$b> };
    (Transaction, $b:ty) => { $crate::burn::TransactionPrimitive<$b> };
    (Device, $b:ty) => { &$crate::burn::Device<$b> };
    (Data, $b:ty) => { $crate::burn::TensorData };
    (Scalar, $b:ty) => { $crate::burn::Scalar };
    (Exponent, $b:ty) => { $crate::burn::Scalar };
    (Shape, $b:ty) => { $crate::burn::Shape };
    (Axes, $b:ty) => { &[::core::primitive::usize] };
    (Slices, $b:ty) => { &[$crate::burn::Slice] };
    (usize, $b:ty) => { ::core::primitive::usize };
    (bool, $b:ty) => { ::core::primitive::bool };
    (f64, $b:ty) => { ::core::primitive::f64 };
    (OptUsize, $b:ty) => { ::core::option::Option<::core::primitive::usize> };
    (Pair, $b:ty) => { [::core::primitive::usize; 2] };
    (Range, $b:ty) => { ::core::ops::Range<::core::primitive::i64> };
    (Distribution, $b:ty) => { $crate::burn::Distribution };
    (FloatDType, $b:ty) => { $crate::burn::FloatDType };
    (IntDType, $b:ty) => { $crate::burn::IntDType };
    (BoolDType, $b:ty) => { $crate::burn::BoolDType };
    (Update, $b:ty) => { $crate::burn::IndexingUpdateOp };
    (Scheme, $b:ty) => { &$crate::burn::QuantScheme };
    (Conv1, $b:ty) => { $crate::burn::ConvOptions<1> };
    (Conv2, $b:ty) => { $crate::burn::ConvOptions<2> };
    (Conv3, $b:ty) => { $crate::burn::ConvOptions<3> };
    (ConvT1, $b:ty) => { $crate::burn::ConvTransposeOptions<1> };
    (ConvT2, $b:ty) => { $crate::burn::ConvTransposeOptions<2> };
    (ConvT3, $b:ty) => { $crate::burn::ConvTransposeOptions<3> };
    (Deform, $b:ty) => { $crate::burn::DeformConvOptions<2> };
    (Interp, $b:ty) => { $crate::burn::InterpolateOptions };
    (GridSample, $b:ty) => { $crate::burn::GridSampleOptions };
    (Unfold, $b:ty) => { $crate::burn::UnfoldOptions };
    (Attention, $b:ty) => { $crate::burn::AttentionModuleOptions };
}

/// Burn's type of a result with the given tag, for a backend.
#[rustfmt::skip]
#[macro_export]
macro_rules! ret_type {
    (F, $b:ty) => { $crate::burn::FloatTensor<$b> };
    (I, $b:ty) => { $crate::burn::IntTensor<$b> };
    (B, $b:ty) => { $crate::burn::BoolTensor<$b> };
    (Q, $b:ty) => { $crate::burn::QuantizedTensor<$b> };
    (Prim, $b:ty) => { $crate::burn::TensorPrimitive<$b> };
    (FI, $b:ty) => { ($crate::burn::FloatTensor<$b>, $crate::burn::IntTensor<$b>) };
    (II, $b:ty) => { ($crate::burn::IntTensor<$b>, $crate::burn::IntTensor<$b>) };
    (QI, $b:ty) => { ($crate::burn::QuantizedTensor<$b>, $crate::burn::IntTensor<$b>) };
    (FF, $b:ty) => { ($crate::burn::FloatTensor<$b>, $crate::burn::FloatTensor<$b>) };
    (bool, $b:ty) => { ::core::primitive::bool };
    (Device, $b:ty) => { $crate::burn::Device<$b> };
    (ReadData, $b:ty) => {
        impl ::core::future::Future<
            Output = ::core::result::Result<$crate::burn::TensorData, $crate::burn::ExecutionError>,
        > + ::core::marker::Send
    };
    (ReadInt, $b:ty) => {
        impl ::core::future::Future<Output = $crate::burn::IntTensor<$b>> + 'static + ::core::marker::Send
    };
    (ReadTransaction, $b:ty) => {
        impl ::core::future::Future<
            Output = ::core::result::Result<
                $crate::burn::TransactionPrimitiveData,
                $crate::burn::ExecutionError,
            >,
        > + ::core::marker::Send
    };
    (MaxPool1d, $b:ty) => { $crate::burn::MaxPool1dWithIndices<$b> };
    (MaxPool2d, $b:ty) => { $crate::burn::MaxPool2dWithIndices<$b> };
    (MaxPool1dGrad, $b:ty) => { $crate::burn::MaxPool1dBackward<$b> };
    (MaxPool2dGrad, $b:ty) => { $crate::burn::MaxPool2dBackward<$b> };
    (DeformGrad, $b:ty) => { $crate::burn::DeformConv2dBackward<$b> };
}
