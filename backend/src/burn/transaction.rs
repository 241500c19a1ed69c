//! `TransactionOps`: many reads with one wait.

use burn_backend::ExecutionError;
use burn_backend::ops::{TransactionOps, TransactionPrimitive, TransactionPrimitiveData};

use super::{execution_error, unsupported};
use crate::Cuda;
use crate::ops::data;

impl TransactionOps<Cuda> for Cuda {
    async fn tr_execute(
        transaction: TransactionPrimitive<Cuda>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        if !transaction.read_qfloats.is_empty() {
            unsupported!(q_into_data)
        }
        let (floats, ints) = (transaction.read_floats.len(), transaction.read_ints.len());
        let mut tensors = transaction.read_floats;
        tensors.extend(transaction.read_ints);
        tensors.extend(transaction.read_bools);
        let device = tensors.first().map_or(0, |t| t.device().index);
        let mut all = data::into_data_many(tensors).map_err(|e| execution_error(device, e))?;
        let read_bools = all.split_off(floats + ints);
        let read_ints = all.split_off(floats);
        Ok(TransactionPrimitiveData { read_floats: all, read_qfloats: Vec::new(), read_ints, read_bools })
    }
}
