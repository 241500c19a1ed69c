//! Which cuDNN is used. One that lacks one of its parts is none: the library itself would end the process when it looks
//! for the part. Of two, one is used alone.
//!
//! A process loads its libraries once, so each case is a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use burn_backend::ops::ConvOptions;
use burn_tensor::Tensor;
use burn_tensor::module::conv2d;
use kiln::{ConvAlgorithm, Cuda, CudaDevice};

use crate::harness::family::{alone, caught, launches};

const PART: &str = "libcudnn_cnn.so.9";
/// Set in the process of a case.
const CASE: &str = "KILN_WITHOUT_CUDNN";

/// Of 64 * 9 ones; large enough to be timed if there are two ways.
fn conv(device: &CudaDevice) -> f32 {
    let (x, w) = (Tensor::<Cuda, 4>::ones([4, 64, 16, 16], device), Tensor::ones([64, 64, 3, 3], device));
    let y = conv2d(x, w, None, ConvOptions::new([1; 2], [0; 2], [1; 2], 1));
    y.slice([0..1, 0..1, 0..1, 0..1]).into_scalar()
}

#[test]
fn convolutions_without_it() {
    if std::env::var_os(CASE).is_none() {
        return;
    }
    let _alone = alone();
    let missing = CudaDevice::cudnn_version().expect_err("a part is missing").to_string();
    assert!(missing.contains(PART) && missing.contains("libcudnn.so.9"), "{missing}");
    let device = CudaDevice::new(0);
    assert_eq!(conv(&device), 576.0);
    CudaDevice::set_conv_algorithm(ConvAlgorithm::Cudnn);
    let refused = caught(|| conv(&device)).expect_err("cuDNN was asked for");
    assert!(refused.contains("conv2d") && refused.contains(PART), "{refused}");
    CudaDevice::set_conv_algorithm(ConvAlgorithm::Fastest);
    assert_eq!(conv(&device), 576.0);
    println!("computed without it");
}

#[test]
fn convolutions_by_one_of_two() {
    if std::env::var_os(CASE).is_none() {
        return;
    }
    let _alone = alone();
    let device = CudaDevice::new(0);
    CudaDevice::set_conv_algorithm(ConvAlgorithm::Cudnn);
    assert_eq!(conv(&device), 576.0);
    let by = |algorithm| {
        CudaDevice::set_conv_algorithm(algorithm);
        launches(|| conv(&device)).1
    };
    let (cudnn, columns) = (by(ConvAlgorithm::Cudnn), by(ConvAlgorithm::Columns));
    assert!(cudnn < columns, "{cudnn} launches with cuDNN, {columns} by columns");
    println!("computed by one of two");
}

/// The emulator's libraries, but those that are left out.
fn libraries(name: &str, left_out: &str) -> PathBuf {
    let libraries = std::env::var_os("KILN_CUDA_PATH").expect("the emulator's folder");
    let folder = std::env::temp_dir().join(format!("kiln-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for links");
    for entry in std::fs::read_dir(libraries).expect("the emulator's folder").flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("lib") && name != left_out {
            let _ = std::os::unix::fs::symlink(entry.path(), folder.join(name));
        }
    }
    folder
}

/// What the case of this name prints.
fn run(case: &str, folder: &Path, set: impl FnOnce(&mut Command)) -> String {
    let mut child = Command::new(std::env::current_exe().expect("a process has an executable"));
    child.args(["--exact", &format!("without_cudnn::{case}"), "--nocapture"]).env(CASE, "1");
    set(&mut child);
    let output = child.output().expect("the test binary can be started");
    std::fs::remove_dir_all(folder).expect("the folder is this process's");
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    format!("{out}\n{err}")
}

#[test]
fn a_cudnn_that_lacks_a_part_is_not_used() {
    let folder = libraries("without-cudnn", PART);
    let text = run("convolutions_without_it", &folder, |child| {
        child.env("KILN_CUDA_PATH", &folder).env("LD_LIBRARY_PATH", &folder);
    });
    assert!(text.contains("computed without it"), "{text}");
}

/// Symptom: cuDNN's own parts were called by functions of another cuDNN, which the loader found under a name without a
/// version; every convolution failed inside.
#[test]
fn of_two_cudnns_one_is_used_alone() {
    let folder = libraries("two-cudnns", "libcudnn.so");
    let other = folder.join("other");
    std::fs::create_dir_all(&other).expect("a folder for the other library");
    // A copy is another library to the loader, and knows nothing of the first one's device.
    std::fs::copy(folder.join("libcudnn.so.9"), other.join("libcudnn.so")).expect("a copy");
    let loader = format!("{}:{}", folder.display(), other.display());
    let text = run("convolutions_by_one_of_two", &folder, |child| {
        child.env_remove("KILN_CUDA_PATH").env("LD_LIBRARY_PATH", &loader);
        child.env("HOME", &folder).env("XDG_DATA_HOME", &folder);
    });
    assert!(text.contains("computed by one of two"), "{text}");
}
