//! Records that one end of a comm writes into the memory of the other, which looks for them there.
//! Writing is repeated by another rail where one fails, and a record that is written twice is the
//! same record.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crowfly_mover::fabric::{
    Access, Buffer, Fabric, FabricError, LocalSlice, Options, Page, Peer, Region, RegionDescriptor,
    RemoteSlice, Transfer,
};

/// Where the other end's records come in.
pub(crate) struct Incoming(Region);

impl Incoming {
    pub(crate) fn new(fabric: &Fabric, len: usize) -> Result<Self, FabricError> {
        // Not memory that a peer on this host could map: it would have to let go of it before this
        // end is closed, and it may be closed itself.
        let buffer = Buffer::private(len)?;
        Ok(Self(fabric.register(buffer, Access::WRITE.ordered())?))
    }

    pub(crate) fn described(&self) -> Result<Vec<u8>, FabricError> {
        Ok(self.0.descriptor().to_bytes()?)
    }

    /// The record at a place, as `decode` finds it; what was written before it is there as well.
    pub(crate) fn look<const N: usize, T>(
        &self,
        place: usize,
        decode: impl FnOnce(&[u8; N]) -> Option<T>,
    ) -> Option<T> {
        let mut bytes = [0; N];
        let found = (self.0.read_at(place, &mut bytes) == N).then(|| decode(&bytes))?;
        // Whoever wrote the record had written the bytes that it is about before.
        fence(Ordering::Acquire);
        found
    }
}

/// Records on their way to the other end.
pub(crate) struct Outgoing {
    staging: Region,
    whole: LocalSlice,
    remote: RemoteSlice,
    /// Bytes of the longest record.
    stride: usize,
    places: usize,
    next: usize,
    under_way: VecDeque<Transfer>,
}

impl Outgoing {
    /// For `places` records under way, into this region of the peer's.
    pub(crate) fn new(
        fabric: &Fabric,
        remote: &RegionDescriptor,
        stride: usize,
        places: usize,
    ) -> Result<Self, FabricError> {
        let buffer = Buffer::private(stride * places)?;
        let staging = fabric.register(buffer, Access::LOCAL)?;
        Ok(Self {
            whole: staging.whole(),
            staging,
            remote: remote.whole(),
            stride,
            places,
            next: 0,
            under_way: VecDeque::new(),
        })
    }

    /// Whether another record can be written now.
    ///
    /// # Errors
    /// When an earlier one did not arrive.
    pub(crate) fn has_room(&mut self) -> Result<bool, FabricError> {
        while let Some(first) = self.under_way.front()
            && first.is_finished()
        {
            if let Some(first) = self.under_way.pop_front() {
                first.wait()?;
            }
        }
        Ok(self.under_way.len() < self.places)
    }

    /// Writes a record to a place of the other end's ring. There must be room.
    pub(crate) fn write(&mut self, peer: &Peer, place: usize, record: &[u8], options: Options) {
        let local = self.next % self.places * self.stride;
        self.next = self.next.wrapping_add(1);
        self.staging.write_at(local, record);
        let page = Page {
            local: local as u64,
            remote: place as u64,
        };
        let len = record.len() as u64;
        let transfer = peer.write_paged(&self.whole, &self.remote, len, &[page], None, options);
        self.under_way.push_back(transfer);
    }

    /// Waits until all records have arrived, for `time` at most; whether they have.
    pub(crate) fn drain(&mut self, time: Duration) -> bool {
        let until = std::time::Instant::now() + time;
        while let Some(first) = self.under_way.pop_front() {
            let left = until.saturating_duration_since(std::time::Instant::now());
            match first.wait_for(left) {
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => return false,
            }
        }
        true
    }
}
