//! Quantised tensors: values and scales bit for bit as burn-flex has them, and moved without a change.
//!
//! Flex stores every value as i8 and scales as f32, and quantises blocks anew whenever they are moved. Where its values are
//! not the definition, plain loops are: the values and a scale for each, moved as integers and floats.

use burn_backend::ops::{FloatTensorOps, IntTensorOps, QTensorOps};
use burn_backend::quantization::{
    QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue, QuantizationParametersPrimitive,
    QuantizedBytes,
};
use burn_backend::tensor::{FloatTensor, QuantizedTensor};
use burn_backend::{
    Backend, BackendTypes, DType, FloatDType, IntDType, QTensorPrimitive, Shape, TensorData, TensorMetadata,
    TensorPrimitive, bf16, f16, read_sync,
};
use burn_flex::Flex;
use kiln::{Cuda, CudaDevice, CudaQTensor};

use crate::Family;
use crate::harness::family::{alone, caught, shared};
use crate::harness::shape::{self, Step, Views, apply};
use crate::harness::{Arg, Covered, Dense, Domain, FLOATS, Rng, Tolerance, Value, same, views_to};

const VALUES: [QuantValue; 6] =
    [QuantValue::Q8S, QuantValue::Q8F, QuantValue::Q4S, QuantValue::Q4F, QuantValue::Q2S, QuantValue::Q2F];

fn device() -> CudaDevice {
    CudaDevice::default()
}

/// Values and the bits of the scales, as Burn reads them.
fn decoded(data: &TensorData) -> (Vec<i8>, Vec<u32>) {
    let DType::QFloat(scheme) = data.dtype else { panic!("{:?} is not quantised", data.dtype) };
    if data.shape.contains(&0) {
        return (vec![], vec![]); // where Burn's own reading fails: an empty vector has no address that suits it
    }
    let bytes =
        QuantizedBytes { bytes: data.bytes.clone(), scheme, num_elements: data.shape.iter().product() };
    let (values, parameters) = bytes.into_vec_i8();
    (values, parameters.scales.iter().map(|s: &f32| s.to_bits()).collect())
}

fn read<B: Backend>(x: QuantizedTensor<B>) -> TensorData {
    read_sync(B::q_into_data(x)).unwrap_or_else(|error| panic!("reading a result failed: {error}"))
}

fn floats<B: Backend>(x: FloatTensor<B>) -> TensorData {
    Value::<B>::Float(x).read()
}

fn block_elements(scheme: &QuantScheme) -> Option<usize> {
    match scheme.level {
        QuantLevel::Tensor => None,
        QuantLevel::Block(block) => Some(block.num_elements()),
    }
}

fn differ<T: PartialEq + std::fmt::Debug>(what: &str, got: &[T], expected: &[T]) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{what}: {} of them, expected {}", got.len(), expected.len()));
    }
    match (0..got.len()).find(|&k| got[k] != expected[k]) {
        Some(k) => Err(format!("{what} {k} is {:?}, expected {:?}", got[k], expected[k])),
        None => Ok(()),
    }
}

/// Compares with another backend's tensor; `DType`s differ by the store alone.
fn same_quantized(got: &TensorData, expected: &TensorData) -> Result<(), String> {
    differ("dimension", got.shape.as_slice(), expected.shape.as_slice())?;
    let (got, expected) = (decoded(got), decoded(expected));
    differ("value", &got.0, &expected.0)?;
    differ("scale", &got.1, &expected.1)
}

/// A scheme for tensors of this shape: blocks divide it.
fn scheme(rng: &mut Rng, len: usize) -> QuantScheme {
    let store = rng.pick(&[QuantStore::PackedU32(0), QuantStore::Native]);
    let base = QuantScheme::default().with_value(rng.pick(&VALUES)).with_store(store);
    let sizes = [4, 32, 8, 16, 2, 1, 3, 5, 6, 7, 9, 15, 20, 64, 100];
    let fitting: Vec<u8> =
        sizes.into_iter().filter(|&s| len > 0 && len.is_multiple_of(usize::from(s))).collect();
    if fitting.is_empty() || rng.one_in(3) {
        return base;
    }
    let size = rng.pick(&fitting);
    // A block of two dimensions means as many elements.
    let block = if size.is_multiple_of(2) && rng.one_in(2) { vec![2, size / 2] } else { vec![size] };
    base.with_level(QuantLevel::block(block))
}

/// Sizes that blocks divide more often than not.
fn shape_of(rng: &mut Rng) -> Vec<usize> {
    let mut shape = shape::any(rng, false);
    if rng.one_in(2) {
        let last = shape.len() - 1;
        shape[last] = rng.pick(&[32, 4, 8, 16, 64, 96]);
    }
    shape
}

fn float_dtypes() -> [FloatDType; 4] {
    FLOATS.map(FloatDType::from)
}

/// One check of a case on tensors that are args' values here and on Flex.
fn case(family: &mut Family, args: &[Arg], check: impl FnOnce() -> Result<(), String>) {
    let outcome = caught(check).unwrap_or_else(Err);
    family.expect(args, Covered::of(args, &[], false), outcome);
}

/// What both backends have, and what it is turned back to.
fn compare(
    scheme: QuantScheme,
    got: QuantizedTensor<Cuda>,
    expected: QuantizedTensor<Flex>,
) -> Result<(), String> {
    if got.dtype() != DType::QFloat(scheme) || *got.scheme() != scheme {
        return Err(format!("dtype {:?}", got.dtype()));
    }
    same_quantized(&read::<Cuda>(got.clone()), &read::<Flex>(expected.clone()))
        .map_err(|text| format!("{scheme:?}: {text}"))?;
    for dtype in float_dtypes() {
        let got = floats::<Cuda>(Cuda::dequantize(got.clone(), dtype));
        let expected = floats::<Flex>(Flex::dequantize(expected.clone(), dtype));
        differ(&format!("{scheme:?}: byte of {dtype:?}"), got.as_bytes(), expected.as_bytes())?;
    }
    Ok(())
}

fn quantize(dtype: DType) {
    let mut family = Family::new("quantized", dtype);
    family.cases("quantize_dynamic", 2.4, |family, rng| {
        let shape = shape_of(rng);
        let domain = rng.pick(&[Domain::Normal, Domain::Whole, Domain::Special]);
        let args = [Arg::random(rng, &shape, dtype, domain)];
        let scheme = scheme(rng, shape.iter().product());
        case(family, &args, || {
            let got = Cuda::quantize_dynamic(args[0].value::<Cuda>(dtype, &device()).float(), &scheme);
            compare(scheme, got, Flex::quantize_dynamic(args[0].reference(dtype).float(), &scheme))
        });
    });
    family.cases("quantize", 2.0, |family, rng| {
        let shape = shape_of(rng);
        let len = shape.iter().product::<usize>();
        let scheme = scheme(rng, len);
        let count = block_elements(&scheme).map_or(1, |block| len / block);
        let domain = rng.pick(&[Domain::Normal, Domain::Special]);
        let x = Arg::random(rng, &shape, dtype, domain);
        let of_scales = rng.pick(&FLOATS);
        let domain = rng.pick(&[Domain::Positive, Domain::Positive, Domain::Special]);
        let args = [x, Arg::random(rng, &[count], of_scales, domain)];
        case(family, &args, || {
            let scales = args[1].value::<Cuda>(of_scales, &device()).float();
            let parameters = QuantizationParametersPrimitive::<Cuda> { scales };
            let got = Cuda::quantize(args[0].value::<Cuda>(dtype, &device()).float(), &scheme, parameters);
            let scales = args[1].reference(of_scales).float();
            let parameters = QuantizationParametersPrimitive::<Flex> { scales };
            let expected = Flex::quantize(args[0].reference(dtype).float(), &scheme, parameters);
            compare(scheme, got, expected)
        });
    });
    family.cases("long", 0.2, |family, rng| {
        // Beyond one chunk of the maximum, and beyond one pack, with an uneven end.
        let len = rng.pick(&[16_384, 16_385, 40_003]);
        let args = [Arg::random(rng, &[len], dtype, Domain::Normal)];
        let scheme = QuantScheme::default().with_value(rng.pick(&VALUES));
        case(family, &args, || {
            let got = Cuda::quantize_dynamic(args[0].value::<Cuda>(dtype, &device()).float(), &scheme);
            compare(scheme, got, Flex::quantize_dynamic(args[0].reference(dtype).float(), &scheme))
        });
    });
    family.cases("scales in 16 bits", 0.5, |family, rng| {
        let shape = shape_of(rng);
        let len = shape.iter().product::<usize>();
        let param = rng.pick(&[QuantParam::F16, QuantParam::BF16]);
        let scheme = scheme(rng, len).with_param(param);
        let domain = rng.pick(&[Domain::Normal, Domain::Special]);
        let args = [Arg::random(rng, &shape, dtype, domain)];
        case(family, &args, || {
            let got = Cuda::quantize_dynamic(args[0].value::<Cuda>(dtype, &device()).float(), &scheme);
            // Flex leaves the scales in f32. With the rounded ones given, it has the same values.
            let x = args[0].reference(dtype).float();
            let (_, scales) = decoded(&read::<Flex>(Flex::quantize_dynamic(x.clone(), &scheme)));
            let scales: Vec<f32> =
                scales.into_iter().map(|bits| rounded(f32::from_bits(bits), param)).collect();
            let count = scales.len();
            let scales = Flex::float_from_data(TensorData::new(scales, [count]), &Default::default());
            let expected = Flex::quantize(x, &scheme, QuantizationParametersPrimitive::<Flex> { scales });
            compare(scheme, got, expected)
        });
    });
    family.finish();
}

/// A scale in the precision of the parameters; what is no number to divide by becomes the smallest normal one.
fn rounded(scale: f32, param: QuantParam) -> f32 {
    let (rounded, smallest) = match param {
        QuantParam::F16 => (f16::from_f32(scale).to_f32(), f16::MIN_POSITIVE.to_f32()),
        _ => (bf16::from_f32(scale).to_f32(), f32::MIN_POSITIVE),
    };
    if rounded.is_normal() { rounded } else { smallest }
}

crate::per_dtype!(quantize: f32 f64 f16 bf16);

/// Values of the scheme and scales, as data.
fn data_of(shape: &[usize], scheme: QuantScheme, values: &[i8], scales: &[f32]) -> TensorData {
    let bits = scheme.value.size_bits();
    if matches!(scheme.store, QuantStore::Native) || bits == 8 {
        return TensorData::quantized(values.to_vec(), shape.to_vec(), scheme, scales);
    }
    let mask = (1u32 << bits) - 1;
    let word =
        |values: &[i8]| values.iter().rev().fold(0, |word, &q| word << bits | u32::from(q as u8) & mask);
    let mut words: Vec<u32> = values.chunks(32 / bits).map(word).collect();
    words.extend(scales.iter().map(|s| s.to_bits()));
    TensorData::from_bytes(burn_backend::Bytes::from_elems(words), shape.to_vec(), DType::QFloat(scheme))
}

fn random_data(rng: &mut Rng, shape: &[usize], scheme: QuantScheme) -> TensorData {
    let len = shape.iter().product::<usize>();
    let (low, high) = scheme.value.range();
    let (low, high) = (low as i64, high as i64);
    let count = block_elements(&scheme).map_or(1, |block| len / block);
    rng.part(|rng| {
        let values: Vec<i8> =
            (0..len).map(|_| (low + rng.below((high - low + 1) as usize) as i64) as i8).collect();
        let scales: Vec<f32> = (0..count).map(|_| rng.uniform(0.01, 1.0) as f32).collect();
        data_of(shape, scheme, &values, &scales)
    })
}

#[test]
fn data_goes_in_and_out_unchanged() {
    let mut family: Family = Family::new("quantized", DType::I8);
    family.cases("from_data, into_data", 3.0, |family, rng| {
        let shape = shape_of(rng);
        let scheme = scheme(rng, shape.iter().product());
        let data = random_data(rng, &shape, scheme);
        case(family, &[], || {
            let x = Cuda::q_from_data(data.clone(), &device());
            let back = read::<Cuda>(x.clone());
            if back.dtype != data.dtype || back.shape != data.shape {
                return Err(format!("{:?} of shape {:?}", back.dtype, back.shape));
            }
            differ("byte", back.as_bytes(), data.as_bytes())?;
            // Flex's reader takes 4 values a word, whatever the shape.
            compare(scheme, x, Flex::q_from_data(data.clone(), &Default::default()))
        });
    });
    family.finish();
}

#[test]
fn data_of_burns_cuda_backend_is_understood() {
    let _running = shared();
    let scheme = QuantScheme::default().with_value(QuantValue::Q8S).with_param(QuantParam::F16);
    let values = [-127i8, 0, 5, 127, 1, 2, 3, -4];
    let mut bytes: Vec<u8> = values.iter().map(|&q| q as u8).collect();
    bytes.extend(f16::from_f32(0.25).to_le_bytes());
    let data = TensorData::from_bytes_vec(bytes, vec![2, 4], DType::QFloat(scheme));
    let x = Cuda::q_from_data(data, &device());
    let expected: Vec<f32> = values.iter().map(|&q| 0.25 * f32::from(q)).collect();
    assert_eq!(floats::<Cuda>(Cuda::dequantize(x, FloatDType::F32)).to_vec::<f32>().unwrap(), expected);
}

/// Values and a scale for each.
#[derive(Clone)]
struct Plain {
    values: Value<Flex>,
    scales: Value<Flex>,
}

impl Plain {
    fn of(data: &TensorData) -> Plain {
        let DType::QFloat(scheme) = data.dtype else { panic!("quantised data") };
        let (values, scales) = decoded(data);
        let block = block_elements(&scheme).unwrap_or(values.len().max(1));
        let scales: Vec<f32> = (0..values.len()).map(|k| f32::from_bits(scales[k / block])).collect();
        let device = Default::default();
        Plain {
            values: Value::new(TensorData::new(values, data.shape.clone()), &device),
            scales: Value::new(TensorData::new(scales, data.shape.clone()), &device),
        }
    }

    fn map(self, f: impl Fn(Value<Flex>) -> Value<Flex>) -> Plain {
        Plain { values: f(self.values), scales: f(self.scales) }
    }

    fn read(&self) -> (Vec<usize>, Vec<i8>, Vec<f32>) {
        let (values, scales) = (self.values.clone().read(), self.scales.clone().read());
        // Flex's data need not be aligned.
        let scales = scales.as_bytes().chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        (values.shape.to_vec(), values.to_vec().unwrap(), scales.collect())
    }

    /// Whether `got` is this, exactly. Data of it are exact, too, but for blocks in which scales meet.
    fn check(&self, got: &CudaQTensor) -> Result<(), String> {
        let (shape, values, scales) = self.read();
        differ("dimension", got.shape().as_slice(), &shape)?;
        let expected: Vec<f32> = values.iter().zip(&scales).map(|(&q, s)| s * f32::from(q)).collect();
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let turned = floats::<Cuda>(Cuda::dequantize(got.clone(), FloatDType::F32)).to_vec::<f32>().unwrap();
        differ("dequantised value", &bits(&turned), &bits(&expected))?;
        let half = floats::<Cuda>(Cuda::dequantize(got.clone(), FloatDType::BF16)).to_vec::<bf16>().unwrap();
        differ("bf16", &half, &expected.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>())?;
        let scheme = *got.scheme();
        let Some(block) = block_elements(&scheme) else {
            let (got, scale) = decoded(&read::<Cuda>(got.clone()));
            differ("value", &got, &values)?;
            return if values.is_empty() { Ok(()) } else { differ("scale", &scale, &bits(&scales[..1])) };
        };
        if !values.len().is_multiple_of(block) {
            return match read_sync(Cuda::q_into_data(got.clone())) {
                Err(error) if error.to_string().contains("whole blocks") => Ok(()),
                other => Err(format!("blocks that do not come out even are read as {other:?}")),
            };
        }
        let data = read::<Cuda>(got.clone());
        let uniform = scales.chunks(block).all(|scales| scales.iter().all(|s| *s == scales[0]));
        let of_blocks: Vec<f32> = scales.iter().copied().step_by(block).collect();
        let exact = uniform && decoded(&data) == (values, bits(&of_blocks));
        if exact || expected.is_empty() {
            return Ok(());
        }
        let x = Flex::float_from_data(TensorData::new(expected, shape), &Default::default());
        same_quantized(&data, &read::<Flex>(Flex::quantize_dynamic(x, &scheme)))
            .map_err(|text| format!("scales meet in a block ({}): {text}", !uniform))
    }
}

fn moved(mut x: CudaQTensor, views: &Views) -> CudaQTensor {
    for step in views {
        x = match step {
            Step::Permute(axes) => Cuda::q_permute(x, axes),
            Step::Slice(slices) => Cuda::q_slice(x, slices),
            Step::Flip(axes) => Cuda::q_flip(x, axes),
            Step::Expand(shape) => Cuda::q_expand(x, Shape::from(shape.clone())),
            Step::Reshape(shape) => Cuda::q_reshape(x, Shape::from(shape.clone())),
        };
    }
    x
}

/// One more step, which copies: on both.
fn copied(rng: &mut Rng, x: CudaQTensor, plain: Plain) -> (String, CudaQTensor, Plain) {
    let shape = x.shape();
    let dim = rng.below(shape.num_dims());
    let size = shape[dim];
    let index = rng.pick(&[IntDType::I32, IntDType::I64, IntDType::U8]);
    let indices = |rng: &mut Rng, shape: &[usize]| {
        let len = shape.iter().product();
        let values: Vec<i64> = rng.part(|rng| (0..len).map(|_| rng.below(size.min(250)) as i64).collect());
        TensorData::new(values, shape.to_vec())
    };
    let ints = |data: &TensorData| {
        (
            Cuda::int_cast(Cuda::int_from_data(data.clone(), &device()), index),
            Flex::int_from_data(data.clone(), &Default::default()),
        )
    };
    match rng.below(5) {
        0 => {
            let count = rng.pick(&[1, 3, 8, 17, 0]);
            let data = indices(rng, &[count]);
            let (here, there) = ints(&data);
            let plain = plain.map(|value| match value {
                Value::Float(t) => Value::Float(Flex::float_select(t, dim, there.clone())),
                Value::Int(t) => Value::Int(Flex::int_select(t, dim, there.clone())),
                Value::Bool(_) => unreachable!("there are none"),
            });
            (format!("select on {dim} of {data:?}"), Cuda::q_select(x, dim, here), plain)
        }
        1 => {
            let mut shape = shape.to_vec();
            shape[dim] = rng.pick(&[1, 2, 5, 9]);
            let data = indices(rng, &shape);
            let (here, there) = ints(&data);
            let plain = plain.map(|value| match value {
                Value::Float(t) => Value::Float(Flex::float_gather(dim, t, there.clone())),
                Value::Int(t) => Value::Int(Flex::int_gather(dim, t, there.clone())),
                Value::Bool(_) => unreachable!("there are none"),
            });
            (format!("gather on {dim}"), Cuda::q_gather(dim, x, here), plain)
        }
        2 => {
            let times = rng.pick(&[2, 1, 3]);
            let plain = plain.map(|value| match value {
                Value::Float(t) => Value::Float(Flex::float_repeat_dim(t, dim, times)),
                Value::Int(t) => Value::Int(Flex::int_repeat_dim(t, dim, times)),
                Value::Bool(_) => unreachable!("there are none"),
            });
            (format!("repeat {dim} {times} times"), Cuda::q_repeat_dim(x, dim, times), plain)
        }
        3 => {
            let flat = [shape.num_elements()];
            let plain = plain.map(|value| value.reshape(&flat));
            ("flatten".into(), Cuda::q_reshape(x, Shape::from(flat.to_vec())), plain)
        }
        _ => {
            let other = rng.below(shape.num_dims());
            let plain = plain.map(|value| match value {
                Value::Float(t) => Value::Float(Flex::float_swap_dims(t, dim, other)),
                Value::Int(t) => Value::Int(Flex::int_swap_dims(t, dim, other)),
                Value::Bool(_) => unreachable!("there are none"),
            });
            (format!("swap {dim} and {other}"), Cuda::q_swap_dims(x, dim, other), plain)
        }
    }
}

#[test]
fn moved_values_keep_their_scales() {
    let mut family: Family = Family::new("quantized", DType::I8);
    family.cases("views and copies", 12.0, |family, rng| {
        let shape = shape_of(rng);
        let (base, views) = rng.part(|rng| views_to(rng, &shape));
        let scheme = scheme(rng, base.iter().product());
        let data = random_data(rng, &base, scheme);
        // Flex cannot take some views that end empty.
        if shape.contains(&0) {
            let x = moved(Cuda::q_from_data(data, &device()), &views);
            return case(family, &[], || differ("dimension", x.shape().as_slice(), &shape));
        }
        let mut steps = vec![format!("{scheme:?} {base:?} {views:?}")];
        let mut x = moved(Cuda::q_from_data(data.clone(), &device()), &views);
        let plain = Plain::of(&data);
        let mut plain = plain.map(|value| apply(value, &views));
        let mut outcome = plain.check(&x);
        for _ in 0..rng.below(4) {
            if outcome.is_err() || x.shape().contains(&0) || x.len() > 20_000 {
                break;
            }
            let (step, now, there) = copied(rng, x, plain);
            (x, plain) = (now, there);
            steps.push(step);
            outcome = plain.check(&x);
        }
        let outcome = outcome.map_err(|text| format!("{}: {text}", steps.join("; ")));
        case(family, &[], || outcome);
    });
    family.finish();
}

#[test]
fn more_dimensions_than_a_kernel_has_loops() {
    let _running = shared();
    for level in [QuantLevel::Tensor, QuantLevel::block([4])] {
        for store in [QuantStore::PackedU32(0), QuantStore::Native] {
            let scheme =
                QuantScheme::default().with_value(QuantValue::Q4S).with_level(level).with_store(store);
            let shape = [2; 11];
            let data = random_data(&mut Rng::new(3), &shape, scheme);
            let views = vec![Step::Permute((0..11).rev().collect())];
            let x = moved(Cuda::q_from_data(data.clone(), &device()), &views);
            let plain = Plain::of(&data).map(|value| apply(value, &views));
            plain.check(&x).unwrap();
            let flat = Cuda::q_reshape(x.clone(), Shape::from(vec![2048]));
            plain.clone().map(|value| value.reshape(&[2048])).check(&flat).unwrap();
            let index = TensorData::new(vec![1i64, 0, 1], [3]);
            let (here, there) = (
                Cuda::int_from_data(index.clone(), &device()),
                Flex::int_from_data(index, &Default::default()),
            );
            let picked = Cuda::q_select(x.clone(), 4, here);
            let expected = plain.clone().map(|value| match value {
                Value::Float(t) => Value::Float(Flex::float_select(t, 4, there.clone())),
                value => Value::Int(Flex::int_select(value.int(), 4, there.clone())),
            });
            expected.check(&picked).unwrap();
            let largest = Cuda::q_argmax(x, 10, IntDType::I32);
            assert_eq!(TensorMetadata::shape(&largest).as_slice(), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
        }
    }
}

#[test]
fn the_largest_and_smallest_are_found_by_value() {
    let mut family: Family = Family::new("quantized", DType::I8);
    family.cases("argmax, argmin", 1.5, |family, rng| {
        let shape = shape_of(rng);
        if shape.contains(&0) {
            return;
        }
        let scheme = scheme(rng, shape.iter().product());
        let data = random_data(rng, &shape, scheme);
        let dim = rng.below(shape.len());
        let index = rng.pick(&[IntDType::I32, IntDType::I64]);
        case(family, &[], || {
            let x = Cuda::q_from_data(data.clone(), &device());
            let there = Flex::q_from_data(data.clone(), &Default::default());
            let turned = Flex::dequantize(there, FloatDType::F32);
            let both = [
                (Cuda::q_argmax(x.clone(), dim, index), Flex::float_argmax(turned.clone(), dim, index)),
                (Cuda::q_argmin(x, dim, index), Flex::float_argmin(turned, dim, index)),
            ];
            for (got, expected) in both {
                let (got, expected) = (Value::<Cuda>::Int(got).read(), Value::<Flex>::Int(expected).read());
                if got.dtype != DType::from(index) {
                    return Err(format!("indices of {:?}", got.dtype));
                }
                same(&Dense::of(&got), &Dense::of(&expected), got.dtype, Tolerance::exact())
                    .map_err(|text| format!("{scheme:?} along {dim}: {text}"))?;
            }
            Ok(())
        });
    });
    family.finish();
}

/// What Burn composes: the same dequantised numbers go in, and results are quantised the same way.
#[test]
fn arithmetic_is_that_of_the_dequantised_numbers() {
    let mut family: Family = Family::new("quantized", DType::I8);
    let float = |primitive: TensorPrimitive<Cuda>| floats::<Cuda>(primitive.tensor());
    let reference = |primitive: TensorPrimitive<Flex>| floats::<Flex>(primitive.tensor());
    family.cases("add, matmul, cat, max", 1.5, |family, rng| {
        let (m, k, n) = (rng.range(1, 9), rng.pick(&[32, 8, 4]), rng.pick(&[16, 4, 8]));
        let scheme = scheme(rng, 4);
        let data = [random_data(rng, &[m, k], scheme), random_data(rng, &[k, n], scheme)];
        case(family, &[], || {
            let [a, b] = data.clone().map(|data| Cuda::q_from_data(data, &device()));
            let [c, d] = data.clone().map(|data| Flex::q_from_data(data, &Default::default()));
            let both = [
                (
                    float(Cuda::q_add(a.clone(), a.clone())),
                    reference(Flex::q_add(c.clone(), c.clone())),
                    Tolerance::exact(),
                ),
                (
                    float(Cuda::q_matmul(TensorPrimitive::QFloat(a.clone()), TensorPrimitive::QFloat(b))),
                    reference(Flex::q_matmul(TensorPrimitive::QFloat(c.clone()), TensorPrimitive::QFloat(d))),
                    Tolerance::sum(DType::F32, k).times(1e4),
                ),
            ];
            for (got, expected, tolerance) in both {
                same(&Dense::of(&got), &Dense::of(&expected), DType::F32, tolerance)?;
            }
            let joined = Cuda::q_cat(vec![a.clone(), Cuda::q_flip(a.clone(), &[0])], 0);
            let expected = [c.clone(), c.clone()].map(|c| Flex::dequantize(c, FloatDType::F32));
            let [first, second] = expected;
            let expected = Flex::float_cat(vec![first, Flex::float_flip(second, &[0])], 0);
            let expected = Flex::quantize_dynamic(expected, &scheme);
            same_quantized(&read::<Cuda>(joined), &read::<Flex>(expected))?;
            // The largest keeps its value and scale.
            let largest = floats::<Cuda>(Cuda::dequantize(Cuda::q_max(a), FloatDType::F32));
            let expected = floats::<Flex>(Flex::float_max(Flex::dequantize(c, FloatDType::F32)));
            differ("largest", &largest.to_vec::<f32>().unwrap(), &expected.to_vec::<f32>().unwrap())
        });
    });
    family.finish();
}

#[test]
fn transactions_read_quantised_tensors_beside_others() {
    use burn_backend::ops::{TransactionOps, TransactionPrimitive};
    let _running = shared();
    let scheme = QuantScheme::default().with_value(QuantValue::Q4S).with_level(QuantLevel::block([4]));
    let data = random_data(&mut Rng::new(8), &[3, 8], scheme);
    let float = Cuda::float_from_data(TensorData::from([1.5f32, 2.5]), &device());
    let int = Cuda::int_from_data(TensorData::from([7i32]), &device());
    let x = Cuda::q_from_data(data.clone(), &device());
    let rows = Cuda::q_flip(x.clone(), &[0]);
    let transaction = TransactionPrimitive::<Cuda>::new(vec![float], vec![x, rows], vec![int], vec![]);
    let all = read_sync(Cuda::tr_execute(transaction)).unwrap();
    assert_eq!(all.read_floats[0].to_vec::<f32>().unwrap(), [1.5, 2.5]);
    assert_eq!(all.read_ints[0].to_vec::<i32>().unwrap(), [7]);
    assert_eq!(all.read_qfloats[0].as_bytes(), data.as_bytes());
    let (values, scales) = decoded(&data);
    let rows: Vec<i8> = values.chunks(8).rev().flatten().copied().collect();
    let scales: Vec<u32> = scales.chunks(2).rev().flatten().copied().collect();
    assert_eq!(decoded(&all.read_qfloats[1]), (rows, scales));
}

/// Asserts that `f` panics with a message that has all of `parts`.
#[track_caller]
fn panics_with<R>(parts: &[&str], f: impl FnOnce() -> R) {
    let Err(text) = caught(f) else { panic!("no panic; expected one with {parts:?}") };
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn what_cannot_be_quantised_is_named() {
    let _running = shared();
    let ones = |shape: &[usize]| Cuda::float_ones(Shape::from(shape.to_vec()), &device(), FloatDType::F32);
    let base = QuantScheme::default().with_value(QuantValue::Q8S);
    let dynamic = |scheme: QuantScheme| Cuda::quantize_dynamic(ones(&[4, 6]), &scheme);
    panics_with(&["cuda:0", "quantize_dynamic", "E4M3"], || dynamic(base.with_value(QuantValue::E4M3)));
    panics_with(&["quantize_dynamic", "UE8M0"], || dynamic(base.with_param(QuantParam::UE8M0)));
    panics_with(&["quantize_dynamic", "PackedU32(1)"], || dynamic(base.with_store(QuantStore::PackedU32(1))));
    panics_with(&["native packing"], || dynamic(base.with_store(QuantStore::PackedNative(0))));
    let blocks = base.with_level(QuantLevel::block([16]));
    panics_with(&["quantize_dynamic", "24 elements", "blocks of 16", "[4, 6]"], || dynamic(blocks));
    let scales = QuantizationParametersPrimitive::<Cuda> { scales: ones(&[2]) };
    panics_with(&["quantize", "3 scales are needed", "[2]"], || {
        Cuda::quantize(ones(&[4, 6]), &base.with_level(QuantLevel::block([8])), scales)
    });
    panics_with(&["q_from_data", "quantised data is needed", "F32"], || {
        Cuda::q_from_data(TensorData::from([1f32]), &device())
    });
    panics_with(&["q_from_data", "5 bytes", "[3]"], || {
        Cuda::q_from_data(TensorData::from_bytes_vec(vec![0; 5], vec![3], DType::QFloat(base)), &device())
    });
    let x = || dynamic(base);
    panics_with(&["q_reshape", "[4, 6]", "[5]"], || Cuda::q_reshape(x(), Shape::from(vec![5])));
    panics_with(&["q_expand", "[4, 6]", "[4, 7]"], || Cuda::q_expand(x(), Shape::from(vec![4, 7])));
    panics_with(&["q_permute", "[0, 0]"], || Cuda::q_permute(x(), &[0, 0]));
    panics_with(&["q_swap_dims", "dimension 2"], || Cuda::q_swap_dims(x(), 0, 2));
    panics_with(&["q_flip", "[3]"], || Cuda::q_flip(x(), &[3]));
    panics_with(&["q_repeat_dim", "dimension 2"], || Cuda::q_repeat_dim(x(), 2, 2));
    let index = || Cuda::int_from_data(TensorData::from([[0i32, 1]]), &device());
    panics_with(&["q_select", "one dimension", "[4, 6]", "[1, 2]"], || Cuda::q_select(x(), 0, index()));
    panics_with(&["q_gather", "dimension 1 only", "[1, 2]"], || Cuda::q_gather(1, x(), index()));
    let back = floats::<Cuda>(Cuda::dequantize(x(), FloatDType::F32));
    assert_eq!(back.to_vec::<f32>().unwrap(), [1.0; 24], "new tensors work");
}

#[test]
fn an_index_out_of_range_is_reported_by_the_read() {
    let _alone = alone();
    for level in [QuantLevel::Tensor, QuantLevel::block([3])] {
        let scheme = QuantScheme::default().with_value(QuantValue::Q8S).with_level(level);
        let x = Cuda::q_from_data(random_data(&mut Rng::new(1), &[4, 3], scheme), &device());
        let index = Cuda::int_from_data(TensorData::from([1i32, 4]), &device());
        let picked = Cuda::q_select(x.clone(), 0, index);
        let text = read_sync(Cuda::q_into_data(picked.clone())).expect_err("4 is out of range").to_string();
        assert!(text.contains("q_select: index 4") && text.contains("size 4"), "{text}");
        let turned = Cuda::dequantize(picked, FloatDType::F32);
        assert!(read_sync(Cuda::float_into_data(turned)).is_err(), "what is made of it");
        assert!(read_sync(Cuda::q_into_data(x)).is_ok());
    }
    let _ = device().sync();
}

#[test]
fn quantised_tensors_work_inside_a_captured_graph() {
    let _alone = alone();
    let scheme = QuantScheme::default().with_value(QuantValue::Q4S).with_level(QuantLevel::block([8]));
    let x = Cuda::float_from_data(
        TensorData::new((0..64).map(|k| k as f32).collect::<Vec<_>>(), [8, 8]),
        &device(),
    );
    let index = Cuda::int_from_data(TensorData::from([3i32, 0]), &device());
    let work = || {
        let q = Cuda::quantize_dynamic(x.clone(), &scheme);
        let q = Cuda::q_select(Cuda::q_swap_dims(q, 0, 1), 0, index.clone());
        Cuda::dequantize(Cuda::q_reshape(q, Shape::from(vec![16])), FloatDType::F32)
    };
    let expected = floats::<Cuda>(work());
    let (captured, graph) = device().capture(work).expect("every launch can be captured");
    for _ in 0..2 {
        graph.launch().unwrap();
    }
    assert_eq!(floats::<Cuda>(captured).as_bytes(), expected.as_bytes());
}

#[test]
fn the_default_scheme_is_burns() {
    type Quantized = <Cuda as BackendTypes>::QuantizedTensorPrimitive;
    assert_eq!(Quantized::default_scheme(), QuantScheme::default());
    assert!(
        CudaDevice::default()
            == Cuda::q_device(&Cuda::quantize_dynamic(
                Cuda::float_ones(Shape::from(vec![2]), &device(), FloatDType::F32),
                &Quantized::default_scheme(),
            ))
    );
}
