//! The parameters of a plan under capture: scalars and random positions that change from replay to replay.
//!
//! While a plan is captured, each scalar that is a parameter of it is a *marker*, a value that no program uses and that
//! holds the parameter's number. Where a kernel's argument is made of a marker, the argument becomes a device slot, and
//! the slot is noted together with the element type, which decides how the host writes the parameter there before a
//! replay. A parameter whose marker was never met was consumed in some other way, and the capture must not be used.

use std::cell::RefCell;

use burn_backend::Scalar;

use crate::dtype::Elem;

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Use {
    /// A scalar, converted for kernels of an element type.
    Scalar { index: usize, elem: Elem },
    /// The seed of a random draw.
    Seed { draw: usize },
    /// The offset of a random draw.
    Offset { draw: usize },
}

/// The slots of one capture: 8 bytes each from `base` on.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    base: u64,
    capacity: usize,
    uses: Vec<Use>,
    overflow: bool,
}

thread_local! {
    static SLOTS: RefCell<Option<Slots>> = const { RefCell::new(None) };
}

/// A quiet NaN that arithmetic does not produce, and an integer nobody counts up to.
const FLOAT_MARK: u64 = 0x7ffc_4b69_6c6e_0000;
const INT_MARK: u64 = 0x4b69_6c6e_4d61_0000;
const NUMBER: u64 = 0xffff;

/// The marker of scalar number `index`, of the same variant as `scalar`; `None` for a bool, which has no spare values.
pub(crate) fn marker(scalar: Scalar, index: usize) -> Option<Scalar> {
    let number = u64::try_from(index).ok().filter(|&number| number <= NUMBER)?;
    match scalar {
        Scalar::Float(_) => Some(Scalar::Float(f64::from_bits(FLOAT_MARK | number))),
        Scalar::Int(_) => Some(Scalar::Int((INT_MARK | number) as i64)),
        Scalar::UInt(_) => Some(Scalar::UInt(INT_MARK | number)),
        Scalar::Bool(_) => None,
    }
}

/// The address of the slot for a scalar, if it is a marker of this thread's capture.
#[inline]
pub(crate) fn slot(elem: Elem, scalar: Scalar) -> Option<u64> {
    let (bits, mark) = match scalar {
        Scalar::Float(x) => (x.to_bits(), FLOAT_MARK),
        Scalar::Int(x) => (x as u64, INT_MARK),
        Scalar::UInt(x) => (x, INT_MARK),
        Scalar::Bool(_) => return None,
    };
    if bits & !NUMBER != mark {
        return None;
    }
    take(Use::Scalar { index: (bits & NUMBER) as usize, elem })
}

/// The address of a slot for `what`; `None` when this thread captures no plan.
pub(crate) fn take(what: Use) -> Option<u64> {
    SLOTS.with_borrow_mut(|slots| {
        let slots = slots.as_mut()?;
        if slots.uses.len() == slots.capacity {
            slots.overflow = true;
            return Some(slots.base);
        }
        slots.uses.push(what);
        Some(slots.base + 8 * (slots.uses.len() as u64 - 1))
    })
}

/// Runs `f` with `capacity` slots from device address `base` on. Gives its result and what the slots hold, or `None`
/// if they were too few.
pub(crate) fn with_slots<R>(base: u64, capacity: usize, f: impl FnOnce() -> R) -> (R, Option<Vec<Use>>) {
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            SLOTS.take();
        }
    }
    SLOTS.set(Some(Slots { base, capacity, ..Slots::default() }));
    let clear = Clear;
    let result = f();
    let slots = SLOTS.take().unwrap_or_default();
    drop(clear);
    (result, (!slots.overflow).then_some(slots.uses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_become_slots_in_the_order_of_their_use() {
        let float = |index| marker(Scalar::Float(0.0), index).unwrap();
        let int = |index| marker(Scalar::Int(0), index).unwrap();
        let (addresses, uses) = with_slots(1000, 3, || {
            [
                slot(Elem::F32, float(7)),
                slot(Elem::I64, int(2)),
                slot(Elem::F32, Scalar::Float(f64::NAN)),
                slot(Elem::I64, Scalar::Int(3)),
                take(Use::Seed { draw: 0 }),
            ]
        });
        assert_eq!(addresses, [Some(1000), Some(1008), None, None, Some(1016)]);
        let expected = [
            Use::Scalar { index: 7, elem: Elem::F32 },
            Use::Scalar { index: 2, elem: Elem::I64 },
            Use::Seed { draw: 0 },
        ];
        assert_eq!(uses.unwrap(), expected);
    }

    #[test]
    fn outside_a_capture_nothing_is_a_marker() {
        assert_eq!(slot(Elem::F32, marker(Scalar::Float(1.0), 0).unwrap()), None);
        assert!(marker(Scalar::Bool(true), 0).is_none());
        assert!(marker(Scalar::Int(0), NUMBER as usize + 1).is_none());
    }

    #[test]
    fn too_few_slots_are_noticed() {
        let ((), uses) = with_slots(0, 1, || {
            take(Use::Seed { draw: 0 });
            take(Use::Offset { draw: 0 });
        });
        assert_eq!(uses, None);
    }
}
