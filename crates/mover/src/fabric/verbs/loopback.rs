//! A port that talks to itself, to push its own writes into a GPU's memory.
//!
//! Reads over PCIe do not overtake writes before them. So the port fetches a byte of the memory and puts
//! it down in host memory: when that has completed, all that it wrote into the memory before is there.
//! NCCL does the same with a read (`net_ib`, the flush of a receive); here the byte is written elsewhere,
//! so that the memory need not be open to reads of peers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crowfly_machine::verbs::{
    Access, CompletionQueue, GidKind, MemoryRegion, PSN_MASK, Pinned, QueuePair, Ready, Remote,
    Route, Sizes, VerbsError,
};

use super::super::identity::random;
use super::super::memory::Buffer;
use super::{NicCore, lock};

/// How long one round may take: the port never leaves the host for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of the host memory that a byte is put down in.
const DESK: usize = 4096;

/// A queue pair that is connected to itself.
pub(super) struct Loopback {
    pair: Mutex<QueuePair<Ready>>,
    queue: Arc<CompletionQueue>,
    desk: Arc<MemoryRegion>,
}

impl Loopback {
    pub(super) fn new(nic: &NicCore) -> Result<Self, String> {
        let said = |error: VerbsError| error.to_string();
        let sizes = Sizes {
            requests: 4,
            receives: 1,
            pieces: 1,
            inline: 0,
        };
        let queue = nic
            .context
            .completion_queue(sizes.requests + sizes.receives, false);
        let queue = queue.map_err(said)?;
        let pair = nic.domain.queue_pair(&queue, &queue, sizes).map_err(said)?;
        let pair = pair.initialise(nic.port.number).map_err(said)?;
        let own = nic.addresses().map_err(said)?.into_iter().next();
        let local = own.filter(|own| own.kind != GidKind::InfiniBand);
        let psn = random::<4>().map_or(0, u32::from_le_bytes) & PSN_MASK;
        let route = Route {
            port: nic.port,
            remote_gid: local.as_ref().map_or([0; 16], |own| own.address),
            local,
            remote_lid: nic.port.lid,
            remote_qp: pair.number(),
            remote_psn: psn,
            local_psn: psn,
            mtu: nic.port.mtu,
            reads: 1,
            patience: nic.settings.patience,
        };
        let pair = pair.connect(&route).map_err(said)?;
        let desk: Arc<dyn Pinned> = Buffer::private(DESK)
            .map_err(|error| error.to_string())?
            .into_backing();
        let access = Access {
            local_write: true,
            remote_write: true,
            ..Access::default()
        };
        let desk = nic.domain.register(desk, access).map_err(said)?;
        Ok(Self {
            pair: Mutex::new(pair),
            queue,
            desk,
        })
    }

    /// Fetches the first byte of a region, after everything that the port wrote into it before.
    pub(super) fn fetch(&self, region: &Arc<MemoryRegion>) -> Result<(), String> {
        let said = |error: VerbsError| error.to_string();
        let mut pair = lock(&self.pair);
        let to = Remote {
            address: self.desk.address(),
            key: self.desk.keys().remote,
        };
        let byte = region.slice(0..1).map_err(said)?;
        let mut batch = pair.batch();
        batch.write(0, vec![byte], to, None).map_err(said)?;
        batch.ring().map_err(said)?;
        let until = Instant::now() + PATIENCE;
        let mut done = Vec::new();
        while Instant::now() < until {
            self.queue.poll(&mut done).map_err(said)?;
            if let Some(completion) = done.pop() {
                pair.retire(&completion);
                return match completion.outcome {
                    Ok(_) => Ok(()),
                    Err(failed) => {
                        Err(format!("the port does not reach itself: {}", failed.status))
                    }
                };
            }
            std::hint::spin_loop();
        }
        Err(format!(
            "the port did not answer itself within {} s",
            PATIENCE.as_secs()
        ))
    }
}
