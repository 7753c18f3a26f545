//! The control channel: whole messages in order between two ends that know who the other is.

use std::time::Duration;

use super::error::ServiceError;
use crate::fabric::{FabricError, Options, Peer};

/// Whole messages in order, authenticated and numbered by what carries them.
pub(crate) trait Channel: Send + Sync {
    /// Sends one message.
    ///
    /// # Errors
    /// When the other end is gone, or does not take it in time.
    fn send(&self, message: &[u8], time: Duration) -> Result<(), ServiceError>;

    /// The next message; `None` when none comes in time.
    ///
    /// # Errors
    /// When the other end is gone.
    fn receive(&self, time: Duration) -> Result<Option<Vec<u8>>, ServiceError>;

    /// Ends the connection.
    fn close(&self);

    /// Who is at the other end, as its address.
    fn address(&self) -> String;
}

/// The fabric's own messages, authenticated by its shared key.
pub(crate) struct FabricChannel(pub Peer);

impl Channel for FabricChannel {
    fn send(&self, message: &[u8], time: Duration) -> Result<(), ServiceError> {
        // The answer to a request tells that it arrived; waiting for that here as well would cost
        // another round trip.
        let sending = self.0.send(message, Options::within(time));
        match sending.is_finished() {
            true => Ok(sending.wait()?),
            false => {
                sending.detach();
                Ok(())
            }
        }
    }

    fn receive(&self, time: Duration) -> Result<Option<Vec<u8>>, ServiceError> {
        match self.0.recv(Options::within(time)).wait() {
            Ok(message) => Ok(Some(message)),
            Err(FabricError::Deadline { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn close(&self) {
        self.0.close();
    }

    fn address(&self) -> String {
        self.0.address().to_owned()
    }
}
