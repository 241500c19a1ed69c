//! Launches that the driver rejects in the middle of training: the operation is named, and the same step, taken again,
//! gives what it would have given.
//!
//! The emulator rejects one launch of a process (`KILN_EMULATOR_REJECT`), so each case is a process of its own.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn_autodiff::Autodiff;
use burn_backend::Backend;
use burn_tensor::{Int, Tensor, TensorData, activation};
use kiln::Cuda;

use crate::harness::family::caught;

type Trained = Autodiff<Cuda>;

const REJECT: &str = "KILN_EMULATOR_REJECT";

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

fn step(model: Mlp<Trained>, batch: usize) -> (Mlp<Trained>, f32) {
    let device = Default::default();
    let x: Vec<f32> = (0..24).map(|k| ((k * 7 + batch * 5) % 11) as f32 * 0.2 - 1.0).collect();
    let x = Tensor::<Trained, 2>::from_data(TensorData::new(x, [4, 6]), &device);
    let labels = Tensor::<Trained, 1, Int>::from_data(
        TensorData::new(vec![0i32, 2, 1, (batch % 3) as i32], [4]),
        &device,
    );
    let logits = model.second.forward(activation::relu(model.first.forward(x)));
    let loss = CrossEntropyLossConfig::new().init(&device).forward(logits, labels);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let value = loss.into_scalar();
    (SgdConfig::new().init().step(0.1, model, gradients), value)
}

/// The losses of six steps, and what went wrong on the way; a step that fails is taken again.
fn train(start: Mlp<Trained>) -> (Vec<f32>, Vec<String>) {
    let (mut model, mut losses, mut failures) = (start, Vec::new(), Vec::new());
    while losses.len() < 6 {
        match caught(|| step(model.clone(), losses.len())) {
            Ok((next, loss)) => {
                model = next;
                losses.push(loss);
            }
            Err(text) => failures.push(text),
        }
    }
    (losses, failures)
}

/// Does nothing on its own: the process that the next test starts.
#[test]
fn child_process() {
    let Some(rejected) = std::env::var_os(REJECT) else { return };
    let device = Default::default();
    let model = Mlp::<Trained> {
        first: LinearConfig::new(6, 8).init(&device),
        second: LinearConfig::new(8, 3).init(&device),
    };
    // Parameters are drawn when they are first used, and clones made before draw their own.
    for linear in [&model.first, &model.second] {
        drop((linear.weight.val(), linear.bias.as_ref().map(|bias| bias.val())));
    }
    let (losses, failures) = train(model.clone());
    let (again, none) = train(model);
    assert!(none.is_empty(), "{none:?}");
    assert_eq!(losses, again, "{rejected:?}");
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    println!("failures: {failures:?}");
}

#[test]
fn a_rejected_launch_is_named_and_training_goes_on() {
    let executable = std::env::current_exe().expect("a process has an executable");
    // Making the parameters launches, too; a step has some 20 launches of elementwise kernels.
    let cases =
        [("elementwise", 20), ("elementwise", 33), ("elementwise", 90), ("gather", 3), ("reduce_rows", 4)];
    for (entry, number) in cases {
        let mut command = std::process::Command::new(&executable);
        command.args(["--exact", "rejected::child_process", "--nocapture"]);
        command.env(REJECT, format!("{entry}:{number}")).env_remove("KILN_TEST_ONLY");
        let output = command.output().expect("the test binary can be started");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{entry}:{number}: {text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let line = text.lines().find(|line| line.starts_with("failures: ")).expect("what failed");
        for part in [
            "cuda:0: ",
            ": the launch with grid [",
            "was rejected",
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
            "shapes [[",
            "F32",
            entry,
        ] {
            assert!(line.contains(part), "{entry}:{number}: {part:?} is missing in: {line}");
        }
        println!("{entry}:{number}: {line}");
    }
}
