//! `TransactionOps`: many reads with one wait.

use burn_backend::ExecutionError;
use burn_backend::ops::{TransactionOps, TransactionPrimitive, TransactionPrimitiveData};

use super::execution_error;
use crate::Cuda;
use crate::ops::quantize;

impl TransactionOps<Cuda> for Cuda {
    async fn tr_execute(
        transaction: TransactionPrimitive<Cuda>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        let (floats, ints) = (transaction.read_floats.len(), transaction.read_ints.len());
        let quantized = transaction.read_qfloats;
        let mut tensors = transaction.read_floats;
        tensors.extend(transaction.read_ints);
        tensors.extend(transaction.read_bools);
        let device = tensors.first().map(|t| t.device().index);
        let device = device.or(quantized.first().map(|t| t.device().index)).unwrap_or(0);
        let read = quantize::into_data_many(tensors, quantized);
        let (mut all, read_qfloats) = read.map_err(|e| execution_error(device, "tr_execute", e))?;
        let read_bools = all.split_off(floats + ints);
        let read_ints = all.split_off(floats);
        Ok(TransactionPrimitiveData { read_floats: all, read_qfloats, read_ints, read_bools })
    }
}
