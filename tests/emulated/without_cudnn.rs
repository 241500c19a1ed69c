//! A cuDNN that lacks one of its parts is none: the library itself would end the process when it looks for the part.
//!
//! A process loads its libraries once, so the case is a process of its own.

use std::process::Command;

use burn_backend::ops::ConvOptions;
use burn_tensor::Tensor;
use burn_tensor::module::conv2d;
use kiln::{ConvAlgorithm, Cuda, CudaDevice};

use crate::harness::family::{alone, caught};

const PART: &str = "libcudnn_cnn.so.9";
/// Set in the process that is without the part.
const CASE: &str = "KILN_WITHOUT_CUDNN";

#[test]
fn convolutions_without_it() {
    if std::env::var_os(CASE).is_none() {
        return;
    }
    let _alone = alone();
    let missing = CudaDevice::cudnn_version().expect_err("a part is missing").to_string();
    assert!(missing.contains(PART) && missing.contains("libcudnn.so.9"), "{missing}");
    let device = CudaDevice::new(0);
    let conv = || {
        // Large enough to be timed if there were two ways.
        let (x, w) =
            (Tensor::<Cuda, 4>::ones([4, 64, 16, 16], &device), Tensor::ones([64, 64, 3, 3], &device));
        let y = conv2d(x, w, None, ConvOptions::new([1; 2], [0; 2], [1; 2], 1));
        y.slice([0..1, 0..1, 0..1, 0..1]).into_scalar()
    };
    assert_eq!(conv(), 576.0);
    CudaDevice::set_conv_algorithm(ConvAlgorithm::Cudnn);
    let refused = caught(conv).expect_err("cuDNN was asked for");
    assert!(refused.contains("conv2d") && refused.contains(PART), "{refused}");
    CudaDevice::set_conv_algorithm(ConvAlgorithm::Fastest);
    assert_eq!(conv(), 576.0);
    println!("computed without it");
}

#[test]
fn a_cudnn_that_lacks_a_part_is_not_used() {
    let libraries = std::env::var_os("KILN_CUDA_PATH").expect("the emulator's folder");
    let folder = std::env::temp_dir().join(format!("kiln-without-cudnn-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for links");
    for entry in std::fs::read_dir(libraries).expect("the emulator's folder").flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("lib") && name != PART {
            let _ = std::os::unix::fs::symlink(entry.path(), folder.join(name));
        }
    }
    let mut child = Command::new(std::env::current_exe().expect("a process has an executable"));
    child.args(["--exact", "without_cudnn::convolutions_without_it", "--nocapture"]);
    child.env(CASE, "1").env("KILN_CUDA_PATH", &folder).env("LD_LIBRARY_PATH", &folder);
    let output = child.output().expect("the test binary can be started");
    std::fs::remove_dir_all(&folder).expect("the folder is this process's");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("computed without it"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}
