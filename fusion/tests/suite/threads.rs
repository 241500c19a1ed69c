//! Threads that share tensors, wait for one another and end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use burn_backend::Backend;
use burn_flex::Flex;
use burn_tensor::{Tensor, TensorData};
use kiln_fusion::{Budget, Cut, Fusion};

use crate::probe::probe;
use crate::serial;

type B = Fusion<Flex>;
type Vector = Tensor<B, 1>;

fn upload(values: &[f32]) -> Vector {
    Tensor::from_floats(values, &Default::default())
}

fn read(x: Vector) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

/// Fails when `run` takes more than a minute: threads that wait for one another.
fn watched(run: impl FnOnce() + Send + 'static) {
    let (done, over) = mpsc::channel();
    let runner = thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(run));
        done.send(()).unwrap();
        result
    });
    over.recv_timeout(Duration::from_secs(60)).expect("the threads wait for one another");
    if let Err(panic) = runner.join().unwrap() {
        std::panic::resume_unwind(panic);
    }
}

/// A generator for the order of things in a thread (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// Eight threads take vectors from a shared board, compute and put back what they have not run.
fn hammer(steps: usize, threads: usize) {
    let board: Arc<Vec<Mutex<(Vector, f32)>>> =
        Arc::new((0..16).map(|k| Mutex::new((upload(&[k as f32; 8]), k as f32))).collect());
    let workers: Vec<_> = (0..threads)
        .map(|worker| {
            let board = board.clone();
            thread::spawn(move || {
                let mut random = Random(worker as u64);
                for step in 0..steps {
                    let take = |k: usize| board[k].lock().unwrap().clone();
                    let (a, b) = (take(random.below(16)), take(random.below(16)));
                    let new = match random.below(8) {
                        0..3 => (a.0 * 0.5 + b.0, a.1 * 0.5 + b.1),
                        3 => (a.0.clone() - b.0 * 0.25, a.1 - b.1 * 0.25),
                        4 => {
                            let fresh = random.below(9) as f32;
                            (a.0 + upload(&[fresh; 8]), a.1 + fresh)
                        }
                        5 => (a.0.clamp(-8.0, 8.0), a.1.clamp(-8.0, 8.0)),
                        6 => {
                            assert_eq!(read(a.0), [a.1; 8], "thread {worker}, step {step}");
                            continue;
                        }
                        _ => {
                            B::step(&Default::default());
                            (b.0 * 0.125, b.1 * 0.125)
                        }
                    };
                    *board[random.below(16)].lock().unwrap() = new;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    for slot in &*board {
        let (x, value) = slot.lock().unwrap().clone();
        assert_eq!(read(x), [value; 8]);
    }
}

/// An operation that says when it runs and goes on when it is told to.
fn gate() -> (impl Fn(Vector) -> Vector + Send + Sync + Clone, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (reached, at_gate) = mpsc::channel::<()>();
    let (open, opened) = mpsc::channel::<()>();
    let opened = Mutex::new(opened);
    let gate = probe(move |_| {
        reached.send(()).unwrap();
        opened.lock().unwrap().recv().unwrap();
    });
    (gate, at_gate, open)
}

#[test]
fn threads_that_share_tensors_get_the_right_values() {
    let _serial = serial();
    watched(|| hammer(400, 8));
}

#[test]
fn threads_that_share_tensors_under_a_small_budget_get_the_right_values() {
    let _serial = serial();
    B::set_budget(&Default::default(), Budget { nodes: 7, ..Budget::default() });
    let result = catch_unwind(|| watched(|| hammer(300, 8)));
    B::set_budget(&Default::default(), Budget::default());
    result.unwrap();
}

#[test]
fn threads_that_share_tensors_while_plans_are_forgotten_get_the_right_values() {
    let _serial = serial();
    let over = Arc::new(AtomicBool::new(false));
    let forgetter = {
        let over = over.clone();
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                B::forget_plans(&Default::default());
                thread::yield_now();
            }
        })
    };
    let result = catch_unwind(|| watched(|| hammer(200, 6)));
    over.store(true, Ordering::Relaxed);
    forgetter.join().unwrap();
    result.unwrap();
}

#[test]
fn two_threads_that_read_each_others_pending_values_at_once_do_not_wait_for_ever() {
    let _serial = serial();
    watched(|| {
        let start = Arc::new(Barrier::new(2));
        let (to_a, from_b) = mpsc::channel::<Vector>();
        let (to_b, from_a) = mpsc::channel::<Vector>();
        let side = move |give: mpsc::Sender<Vector>,
                         take: mpsc::Receiver<Vector>,
                         start: Arc<Barrier>,
                         sign: f32| {
            let mut x = upload(&[sign; 4]);
            let mut value = sign;
            for step in 0..300 {
                let mine = x.clone() * 2.0 + step as f32;
                give.send(mine.clone()).unwrap();
                let theirs = take.recv().unwrap();
                start.wait();
                // Now each has an unread value of the other's trace: as operand in one step, as a read in the next.
                let mine_value = value * 2.0 + step as f32;
                if step % 2 == 0 {
                    let sum = read(mine + theirs.clone());
                    let other = read(theirs);
                    assert_eq!(sum[0], mine_value + other[0]);
                } else {
                    let other = read(theirs);
                    assert_eq!(read(mine + other[0]), [mine_value + other[0]; 4]);
                }
                value = sign * (step % 7) as f32;
                x = upload(&[value; 4]);
            }
        };
        let other = start.clone();
        let a = thread::spawn(move || side(to_b, from_b, start, 1.0));
        let b = thread::spawn(move || side(to_a, from_a, other, -1.0));
        a.join().unwrap();
        b.join().unwrap();
    });
}

#[test]
fn a_ring_of_threads_passes_pending_values_on() {
    let _serial = serial();
    watched(|| {
        const THREADS: usize = 6;
        let (gives, takes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Vector>()).unzip();
        let mut takes = takes.into_iter();
        let threads: Vec<_> = (0..THREADS)
            .map(|k| {
                let (give, take) = (gives[(k + 1) % THREADS].clone(), takes.next().unwrap());
                thread::spawn(move || {
                    let mut x = upload(&[k as f32]);
                    for _ in 0..50 {
                        give.send(x + 1.0).unwrap();
                        x = take.recv().unwrap() * 1.0;
                    }
                    read(x)[0]
                })
            })
            .collect();
        let mut values: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        values.sort_by(f32::total_cmp);
        assert_eq!(values, [50.0, 51.0, 52.0, 53.0, 54.0, 55.0]);
    });
}

#[test]
fn readers_cut_a_trace_that_is_being_recorded() {
    let _serial = serial();
    watched(|| {
        let latest = Arc::new(Mutex::new((upload(&[0.0, 0.0]), 0.0f32)));
        let over = Arc::new(AtomicBool::new(false));
        let owner = {
            let (latest, over) = (latest.clone(), over.clone());
            thread::spawn(move || {
                let mut x = upload(&[0.0, 0.0]);
                let mut value = 0.0f32;
                let mut random = Random(9);
                for _ in 0..3000 {
                    // Uploads make boundaries, at which readers cut; lengths vary, so that plans are passed and left.
                    let batch = random.below(5) as f32;
                    x = x * 0.5 + upload(&[batch; 2]);
                    value = value * 0.5 + batch;
                    for _ in 0..random.below(3) {
                        x = x + 1.0;
                        value += 1.0;
                    }
                    *latest.lock().unwrap() = (x.clone(), value);
                    if random.below(50) == 0 {
                        B::step(&Default::default());
                    }
                }
                over.store(true, Ordering::Release);
                assert_eq!(read(x), [value; 2]);
            })
        };
        let readers: Vec<_> = (0..3)
            .map(|k| {
                let (latest, over) = (latest.clone(), over.clone());
                thread::spawn(move || {
                    while !over.load(Ordering::Acquire) {
                        let (x, value) = latest.lock().unwrap().clone();
                        match k {
                            0 => assert_eq!(read(x), [value; 2]),
                            1 => assert_eq!(read(x * 2.0 + 1.0), [value * 2.0 + 1.0; 2]),
                            _ => assert_eq!(read(x.clone() - x), [0.0; 2]),
                        }
                    }
                })
            })
            .collect();
        owner.join().unwrap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn threads_that_end_with_pending_work_leave_right_values() {
    let _serial = serial();
    watched(|| {
        let mut sum = upload(&[0.0]);
        for k in 0..200 {
            let (kept, dropped) = thread::spawn(move || {
                let x = upload(&[k as f32]);
                (x.clone() + 1.0, x.exp())
            })
            .join()
            .unwrap();
            drop(dropped);
            if k % 3 == 0 {
                sum = sum + kept;
            }
        }
        let expected: f32 = (0..200).step_by(3).map(|k| k as f32 + 1.0).sum();
        assert_eq!(read(sum), [expected]);
        B::sync(&Default::default()).unwrap();
    });
}

#[test]
fn what_an_ended_thread_made_of_a_value_that_is_being_computed_does_not_wait_for_itself() {
    let _serial = serial();
    watched(|| {
        let device = Default::default();
        let (gate, at_gate, open) = gate();
        // The plan `x * 2`, and a longer one that is left: two jobs, of which the first stands at the gate.
        let start = move || gate(upload(&[1.0]));
        open.send(()).unwrap();
        read(start().exp().sqrt());
        open.send(()).unwrap();
        read(start());
        at_gate.try_iter().count();
        let (give, take) = mpsc::channel::<Vector>();
        let runner = thread::spawn(move || {
            let first = start();
            let second = first.clone().exp();
            give.send(second.clone()).unwrap();
            let third = second.clone() + 1.0; // leaves the longer plan; the gate is reached
            assert_eq!(read(third), [1f32.exp() + 1.0]);
            assert_eq!(read(first), [1.0]);
        });
        let second = take.recv().unwrap();
        at_gate.recv().unwrap();
        // A thread records something with the value that waits, and ends.
        let left = thread::spawn(move || {
            let kept = second.sin();
            drop(kept.clone() + 1.0);
            kept
        });
        // While the runner stands at the gate the value is pending, so this may have to wait for the gate.
        open.send(()).unwrap();
        let left = left.join().unwrap();
        runner.join().unwrap();
        B::sync(&device).unwrap();
        assert_eq!(read(left), [1f32.exp().sin()]);
    });
}

#[test]
fn an_orphan_that_reads_a_value_of_the_job_under_way_does_not_block_it() {
    let _serial = serial();
    watched(|| {
        let (gate, at_gate, open) = gate();
        // Two orphans, the first of which stands at the gate when it runs.
        let first = {
            let gate = gate.clone();
            thread::spawn(move || gate(upload(&[1.0]))).join().unwrap()
        };
        let second = thread::spawn(|| upload(&[2.0]).exp()).join().unwrap();
        let (give, take) = mpsc::channel::<Vector>();
        let runner = thread::spawn(move || {
            let x = upload(&[3.0]) * 2.0;
            give.send(x.clone()).unwrap();
            read(x)
        });
        let x = take.recv().unwrap();
        at_gate.recv().unwrap();
        // `x` is known or being computed now. A thread uses it and ends while the runner is busy with orphans.
        let third = thread::spawn(move || x + 1.0).join().unwrap();
        open.send(()).unwrap();
        assert_eq!(runner.join().unwrap(), [6.0]);
        assert_eq!(read(third), [7.0]);
        assert_eq!(read(first), [1.0]);
        assert_eq!(read(second), [2f32.exp()]);
    });
}

#[test]
fn a_reader_of_a_value_that_another_thread_computes_waits_for_it() {
    let _serial = serial();
    watched(|| {
        let (gate, at_gate, open) = gate();
        let x = gate(upload(&[1.0, 2.0])) * 2.0;
        let runner = {
            let x = x.clone();
            thread::spawn(move || read(x))
        };
        at_gate.recv().unwrap();
        let started = Arc::new(Barrier::new(4));
        let readers: Vec<_> = (0..3)
            .map(|k| {
                let (x, started) = (x.clone(), started.clone());
                thread::spawn(move || {
                    started.wait();
                    if k == 0 { read(x) } else { read(x + k as f32) }
                })
            })
            .collect();
        started.wait();
        let mine = x.clone() + 5.0; // records at once, though the value is being computed
        open.send(()).unwrap();
        assert_eq!(runner.join().unwrap(), [2.0, 4.0]);
        for (k, reader) in readers.into_iter().enumerate() {
            assert_eq!(reader.join().unwrap(), [2.0 + k as f32, 4.0 + k as f32]);
        }
        assert_eq!(read(mine), [7.0, 9.0]);
    });
}

#[test]
fn a_thread_that_panics_while_another_waits_for_its_plan_leaves_it_the_value() {
    let _serial = serial();
    watched(|| {
        read(upload(&[1.0]) * 2.0 + 1.0);
        for _ in 0..20 {
            let (give, take) = mpsc::channel::<Vector>();
            let (go_on, resume) = mpsc::channel::<()>();
            let owner = thread::spawn(move || {
                let x = upload(&[4.0]) * 2.0; // on the way to a plan
                give.send(x.clone()).unwrap();
                resume.recv().unwrap();
                std::panic::resume_unwind(Box::new(x)); // the tensor goes with the panic
            });
            let x = take.recv().unwrap();
            let reader = thread::spawn(move || read(x));
            go_on.send(()).unwrap();
            assert_eq!(reader.join().unwrap(), [8.0]);
            assert!(owner.join().is_err());
            assert_eq!(read(upload(&[1.0]) * 2.0 + 1.0), [3.0]);
        }
    });
}

#[test]
fn a_thread_that_panics_in_a_refused_call_leaves_its_trace_to_others() {
    let _serial = serial();
    watched(|| {
        let (give, take) = mpsc::channel::<Vector>();
        let owner = thread::spawn(move || {
            let x = upload(&[4.0, 5.0]) * 2.0;
            give.send(x.clone()).unwrap();
            let wide = upload(&[1.0, 2.0, 3.0]);
            let primitive = |x: Vector| x.into_primitive().tensor();
            <B as burn_backend::ops::FloatTensorOps<B>>::float_add(primitive(x), primitive(wide));
        });
        assert!(owner.join().is_err());
        assert_eq!(read(take.recv().unwrap()), [8.0, 10.0]);
    });
}

#[test]
fn reads_may_move_to_another_thread_half_way() {
    let _serial = serial();
    watched(|| {
        for _ in 0..20 {
            let x = upload(&[4.0, 5.0]) * 2.0;
            let future = x.clone().into_data_async();
            let other = x + 1.0;
            let data = thread::spawn(move || burn_std::future::block_on(future).unwrap()).join().unwrap();
            assert_eq!(data, TensorData::from([8f32, 10.0]));
            assert_eq!(read(other), [9.0, 11.0]);
        }
    });
}

#[test]
fn a_tensor_in_a_thread_local_outlives_the_recorder() {
    let _serial = serial();
    watched(|| {
        thread_local! {
            static KEPT: std::cell::RefCell<Option<Vector>> = const { std::cell::RefCell::new(None) };
        }
        for early in [false, true] {
            thread::spawn(move || {
                if early {
                    KEPT.set(None); // destroyed after what is made later
                }
                KEPT.set(Some(upload(&[1.0]) * 2.0));
            })
            .join()
            .unwrap();
        }
        B::sync(&Default::default()).unwrap();
        assert_eq!(read(upload(&[1.0]) + 1.0), [2.0]);
    });
}

#[test]
fn a_metrics_thread_does_not_change_the_keys_of_the_steps() {
    let _serial = serial();
    watched(|| {
        let device = Default::default();
        let (give, take) = mpsc::channel::<(Vector, f32)>();
        let read_losses = Arc::new(AtomicUsize::new(0));
        let metrics = {
            let read_losses = read_losses.clone();
            thread::spawn(move || {
                for (loss, expected) in take {
                    assert_eq!(read(loss), [expected]);
                    read_losses.fetch_add(1, Ordering::Release);
                }
            })
        };
        let mut weight = upload(&[0.0; 16]);
        let mut value = 0.0f32;
        for step in 0..200 {
            let batch = upload(&[(step % 3) as f32; 16]);
            let loss = (weight.clone() + batch.clone()).max();
            give.send((loss, value + (step % 3) as f32)).unwrap();
            weight = weight * 0.5 + batch;
            value = value * 0.5 + (step % 3) as f32;
            B::step(&device);
        }
        drop(give);
        metrics.join().unwrap();
        assert_eq!(read_losses.load(Ordering::Acquire), 200);
        assert_eq!(read(weight), [value; 16]);
        let stats = B::stats(&device);
        assert!(stats.misses.values().sum::<u64>() < 20, "{stats}");
        assert!(!stats.cuts.contains_key(&Cut::ThreadEnd), "{stats}");
    });
}
