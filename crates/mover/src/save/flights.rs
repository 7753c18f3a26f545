//! Buffers of a file on their way to the drive, several at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use crowfly_route::receipt::Receipt;

use super::Writing;
use crate::engine::Engine;
use crate::error::TransferError;
use crate::memory::Region;
use crate::transfer::Transfer;

/// Buffers that are being written at one time. One that ends leaves the drive the requests of the
/// others.
pub(crate) const IN_FLIGHT: usize = 3;

/// What is being written, in order, and the receipts of what has been.
#[derive(Default)]
pub(crate) struct Flights {
    flying: VecDeque<(Transfer, Region)>,
    receipts: Vec<Receipt>,
    landed: u64,
}

impl Flights {
    pub(crate) fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.flying.len()
    }

    /// Starts writing the first `length` bytes of a buffer to their place in the file.
    ///
    /// # Errors
    /// When threads cannot be had.
    pub(crate) fn launch(
        &mut self,
        engine: &Engine,
        writing: &Writing,
        buffer: Region,
        length: usize,
        at: u64,
    ) -> Result<(), TransferError> {
        let view = Region::new(Arc::clone(buffer.memory()), 0..length);
        let transfer = engine.write(writing, view, at, None)?;
        self.flying.push_back((transfer, buffer));
        Ok(())
    }

    /// Waits until no more than `most` are under way, and gives back the buffers of the others.
    ///
    /// # Errors
    /// What became of one of them.
    pub(crate) fn land(
        &mut self,
        most: usize,
        mut give_back: impl FnMut(Region),
    ) -> Result<(), TransferError> {
        while self.flying.len() > most {
            let Some((transfer, buffer)) = self.flying.pop_front() else {
                break;
            };
            // The transfer's own share of the memory has to be gone before it is filled again.
            let receipt = transfer.wait()?.receipt;
            self.landed += receipt.requested.0;
            self.receipts.push(receipt);
            give_back(buffer);
        }
        Ok(())
    }

    /// Bytes that have been written so far.
    pub(crate) fn moved(&self) -> u64 {
        let flying = self.flying.iter().map(|(transfer, _)| transfer.moved().0);
        self.landed + flying.sum::<u64>()
    }

    /// The receipts of all that have landed.
    pub(crate) fn into_receipts(self) -> Vec<Receipt> {
        self.receipts
    }
}
